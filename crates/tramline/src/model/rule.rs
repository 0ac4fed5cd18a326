//! Rules: what stops a subscription, and who said so.

use crate::model::time::Time;
use serde::{Deserialize, Serialize};

/// Who may set and remove a rule. Both kinds may be set; both must be gone before anything runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum RuleKind {
    /// A user's.
    Pause,
    /// An admin's.
    Block,
}

impl RuleKind {
    /// The stored and shown word.
    pub fn as_str(self) -> &'static str {
        match self {
            RuleKind::Pause => "pause",
            RuleKind::Block => "block",
        }
    }

    /// The kind behind a stored word.
    pub fn parse(word: &str) -> Option<RuleKind> {
        [RuleKind::Pause, RuleKind::Block].into_iter().find(|kind| kind.as_str() == word)
    }
}

/// A rule in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Pause or block.
    pub kind: RuleKind,
    /// Who set it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: Time,
    /// When it ends by itself.
    pub until: Option<Time>,
}

/// Something that somebody did to a subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// When.
    pub at: Time,
    /// Who.
    pub by: String,
    /// What: `pause`, `resume`, `block`, `unblock`.
    pub action: String,
    /// Why.
    pub reason: String,
}
