//! Tokens.

use crate::model::time::Time;
use crate::model::token::Token;

/// Keeps a token.
#[derive(Clone, Debug)]
pub struct PutToken {
    /// The token; the store sets when it was created.
    pub token: Token,
    /// Test time.
    pub now: Option<Time>,
}

/// Replaces the sealed secret of a token by the same one, sealed with another key.
#[derive(Clone, Debug)]
pub struct SealToken {
    /// Which.
    pub name: String,
    /// How it was sealed. If it is no longer, nothing changes.
    pub from: String,
    /// How it is to be.
    pub to: String,
}
