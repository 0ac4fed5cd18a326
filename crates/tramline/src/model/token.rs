//! Tokens: who may do what, over the network. The secret itself is never kept, only its hash.

use crate::error::{Error, Result};
use crate::model::pattern::Pattern;
use crate::model::time::Time;
use serde::{Deserialize, Serialize};

/// How many patterns of each kind a token has at most.
const MAX_PATTERNS: usize = 100;
/// The longest name of a token, in bytes.
const MAX_NAME: usize = 100;

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Scope {
    /// Emit.
    Publish,
    /// Claim, settle and read.
    Consume,
    /// Create, change, pause, replay and delete.
    Manage,
    /// Everything, also blocks and tokens.
    Admin,
}

/// A token as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its name, unique.
    pub name: String,
    /// The SHA-256 of the secret.
    pub hash: [u8; 32],
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// In which topics; `None`: in all.
    pub topics: Option<Vec<Pattern>>,
    /// In which subscriptions; `None`: in all.
    pub subscriptions: Option<Vec<Pattern>>,
    /// When it was created.
    pub created_at: Time,
    /// From when on it is refused.
    pub expires_at: Option<Time>,
    /// When it was last used, within a minute or so.
    pub used_at: Option<Time>,
    /// The secret with the name that was asked for, encrypted: only of those that an admin may list with their secrets.
    pub sealed: Option<String>,
}

impl Token {
    /// Checks everything that can be known before the store is asked.
    pub(crate) fn check(&self) -> Result<()> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._:-@".contains(&b);
        if self.name.is_empty() || self.name.len() > MAX_NAME || !self.name.bytes().all(plain) {
            return Err(Error::invalid(
                "this is not a valid token name",
                "use 1 to 100 letters, digits or . _ : - @",
            ));
        }
        if self.scopes.is_empty() {
            return Err(Error::invalid(
                "the token has no scopes",
                "give it at least one of publish, consume, manage, admin",
            ));
        }
        let most = |patterns: &Option<Vec<Pattern>>| patterns.as_ref().map_or(0, Vec::len);
        if most(&self.topics).max(most(&self.subscriptions)) > MAX_PATTERNS {
            return Err(Error::invalid("the token has too many patterns", "use at most 100 of each kind"));
        }
        Ok(())
    }
}
