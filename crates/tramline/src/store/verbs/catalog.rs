//! Topics, subscriptions and rules.

use crate::model::id::SubscriptionId;
use crate::model::pattern::Pattern;
use crate::model::rule::RuleKind;
use crate::model::subscription::{Policy, Start, Subscription, TopicSettings};
use crate::model::time::Time;

/// Creates a topic or changes what may change of it.
#[derive(Clone, Debug)]
pub struct PutTopic {
    /// Its name.
    pub name: String,
    /// What is said of it.
    pub settings: TopicSettings,
    /// Test time.
    pub now: Option<Time>,
}

/// Creates a subscription or changes what may change of it.
#[derive(Clone, Debug)]
pub struct PutSubscription {
    /// Its name.
    pub name: String,
    /// The complete set of its topics; unknown ones are created.
    pub topics: Vec<String>,
    /// How its events are handled.
    pub policy: Policy,
    /// Where it starts in topics that are new to it.
    pub start: Start,
    /// What it has to be until then. Anything else is `Changed`, unless it is already as it shall be.
    pub expected: Expected,
    /// Test time.
    pub now: Option<Time>,
}

/// What a change of a subscription expects to find, so that of two who read and then write none undoes what the other did.
#[derive(Clone, Debug, Default)]
pub enum Expected {
    /// Whatever there is.
    #[default]
    Anything,
    /// No subscription of that name.
    Nothing,
    /// This one, as it was read.
    This(Box<Subscription>),
}

/// Sets or removes a rule.
#[derive(Clone, Debug)]
pub struct SetRule {
    /// Whose.
    pub subscription: SubscriptionId,
    /// Which kind.
    pub kind: RuleKind,
    /// The rule in force from now on; `None` removes it.
    pub until: Option<RuleEnd>,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Test time.
    pub now: Option<Time>,
}

/// How many rules by pattern there are at most.
pub const MAX_PATTERN_RULES: usize = 1_000;

/// Sets a rule for all subscriptions whose names match. The same pattern, kind and topics again change the rule.
#[derive(Clone, Debug)]
pub struct SetPatternRule {
    /// Which names.
    pub pattern: Pattern,
    /// Only subscriptions of which all topics match one of these; `None`: whatever they consume.
    pub topics: Option<Vec<Pattern>>,
    /// Which kind.
    pub kind: RuleKind,
    /// When it ends by itself.
    pub until: RuleEnd,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Test time.
    pub now: Option<Time>,
}

/// Removes a rule by pattern.
#[derive(Clone, Debug)]
pub struct RemovePatternRule {
    /// Which.
    pub id: i64,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Test time.
    pub now: Option<Time>,
}

/// When a rule ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleEnd {
    /// Only when it is removed.
    Open,
    /// At this time.
    At(Time),
}

impl RuleEnd {
    pub(crate) fn time(self) -> Option<Time> {
        match self {
            RuleEnd::Open => None,
            RuleEnd::At(time) => Some(time),
        }
    }
}
