//! Rules, between reading and writing: what stops a subscription and until when, and what rules by pattern mean for it.

use crate::error::{Error, Result};
use crate::model::id::SubscriptionId;
use crate::model::pattern::Pattern;
use crate::model::rule::{AuditEntry, PatternRule, RuleKind};
use crate::model::time::Time;
use crate::store::verbs::{MAX_PATTERN_RULES, RuleEnd, SetPatternRule, SetRule};

/// How many acts on patterns an audit looks at.
pub(crate) const PATTERN_ACTS: u32 = 1_000;

/// For the claims of how many subscriptions one transaction waits that has set rules.
pub(crate) const OUTLAST: usize = 64;

/// What stops a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// A block before a pause.
    pub(crate) kind: RuleKind,
    /// When the last rule ends by itself; `None` if one does not.
    pub(crate) until: Option<Time>,
}

impl Stop {
    /// What several rules come to: all of them must be gone.
    pub(crate) fn of(rules: impl Iterator<Item = (RuleKind, Option<Time>)>) -> Option<Stop> {
        let both = |one: Stop, other: Stop| Stop {
            kind: one.kind.max(other.kind),
            until: one.until.zip(other.until).map(|(one, other)| one.max(other)),
        };
        rules.map(|(kind, until)| Stop { kind, until }).reduce(both)
    }
}

/// The word for the audit.
pub(crate) fn action(kind: RuleKind, set: bool) -> &'static str {
    match (kind, set) {
        (RuleKind::Pause, true) => "pause",
        (RuleKind::Pause, false) => "resume",
        (RuleKind::Block, true) => "block",
        (RuleKind::Block, false) => "unblock",
    }
}

impl SetRule {
    pub(crate) fn action(&self) -> &'static str {
        action(self.kind, self.until.is_some())
    }

    /// Whom it stops, if it does: after that nothing is taken any more.
    pub(crate) fn stopped(&self) -> &[SubscriptionId] {
        if self.until.is_some() { std::slice::from_ref(&self.subscription) } else { &[] }
    }

    /// When the rule ends by itself, if there is one from now on.
    pub(crate) fn end(&self) -> Option<Option<Time>> {
        self.until.map(RuleEnd::time)
    }
}

impl SetPatternRule {
    /// The rule that it changes, if there is one; else there has to be room for another.
    ///
    /// # Errors
    /// `Conflict`.
    pub(crate) fn among<'a>(&self, all: &'a [PatternRule]) -> Result<Option<&'a PatternRule>> {
        let same = |rule: &&PatternRule| {
            rule.pattern == self.pattern && rule.kind == self.kind && rule.topics == self.topics
        };
        match all.iter().find(same) {
            None if all.len() >= MAX_PATTERN_RULES => Err(Error::conflict(
                format!("there are {MAX_PATTERN_RULES} rules by pattern already"),
                "remove some, or use a wider pattern",
            )),
            found => Ok(found),
        }
    }

    /// The rule as it is from now on.
    pub(crate) fn rule(&self, id: i64, old: Option<&PatternRule>, now: Time) -> PatternRule {
        PatternRule {
            id,
            pattern: self.pattern.clone(),
            topics: self.topics.clone(),
            kind: self.kind,
            by: self.by.clone(),
            reason: self.reason.clone(),
            since: old.map_or(now, |old| old.since),
            until: self.until.time(),
            subscriptions: 0,
        }
    }

    /// The topics as they are stored.
    pub(crate) fn topics_text(&self) -> Option<String> {
        self.topics.as_ref().map(|topics| serde_json::to_string(topics).unwrap_or_default()) // texts always serialise
    }
}

/// A stored pattern. One that cannot be read means everything: a rule may stop too much, never too little.
pub(crate) fn pattern(text: &str) -> Pattern {
    text.parse().unwrap_or_else(|_| Pattern::all())
}

/// The stored topics of a rule.
pub(crate) fn topics(text: Option<&str>) -> Option<Vec<Pattern>> {
    text.and_then(|text| serde_json::from_str(text).ok())
}

/// What was done to one subscription and to patterns that mean it, each newest first with its number, as one list.
pub(crate) fn audit(
    own: Vec<(i64, AuditEntry)>,
    by_pattern: Vec<(i64, AuditEntry)>,
    name: &str,
    limit: u32,
) -> Vec<AuditEntry> {
    let means = |entry: &AuditEntry| entry.pattern.as_ref().is_some_and(|pattern| pattern.matches(name));
    let mut all = own;
    all.extend(by_pattern.into_iter().filter(|(_, entry)| means(entry)));
    all.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    all.truncate(limit as usize);
    all.into_iter().map(|(_, entry)| entry).collect()
}

/// There is no such rule.
pub(crate) fn unknown(id: i64) -> Error {
    Error::not_found(format!("there is no rule {id}"), "list the rules; it may have ended by itself")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rules_must_be_gone_and_one_without_an_end_has_none() {
        use RuleKind::{Block, Pause};
        let stop = |rules: &[(RuleKind, Option<i64>)]| {
            Stop::of(rules.iter().map(|(kind, until)| (*kind, until.map(Time))))
        };
        assert_eq!(stop(&[]), None);
        let two = [(Pause, Some(5)), (Block, Some(3))];
        assert_eq!(stop(&two), Some(Stop { kind: Block, until: Some(Time(5)) }));
        let open = [(Pause, Some(5)), (Pause, None), (Pause, Some(9))];
        assert_eq!(stop(&open), Some(Stop { kind: Pause, until: None }));
    }
}
