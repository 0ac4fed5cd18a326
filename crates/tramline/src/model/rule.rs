//! Rules: what stops a subscription, and who said so.

use crate::model::pattern::Pattern;
use crate::model::subscription::Subscription;
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

/// A rule for all subscriptions whose names match, those that there are and those that come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternRule {
    /// Its number, never reused.
    pub id: i64,
    /// Which names.
    pub pattern: Pattern,
    /// Only subscriptions of which all topics match one of these; `None`: whatever they consume.
    pub topics: Option<Vec<Pattern>>,
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
    /// How many subscriptions it stops now.
    pub subscriptions: u64,
}

impl PatternRule {
    /// True if the rule is about this subscription.
    pub fn stops(&self, subscription: &Subscription) -> bool {
        let topics = self.topics.as_deref();
        self.pattern.matches(&subscription.name)
            && topics.is_none_or(|all| {
                subscription.topics.iter().all(|topic| all.iter().any(|pattern| pattern.matches(topic)))
            })
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
    /// The rule by pattern that it comes from: its number and its pattern.
    pub source: Option<(i64, Pattern)>,
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
    /// The pattern, if it was done to all subscriptions whose names match.
    pub pattern: Option<Pattern>,
}
