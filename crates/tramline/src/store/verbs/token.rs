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
