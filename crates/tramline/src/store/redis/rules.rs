//! Rules: for one subscription, and for all whose names match. The latter are written into the rules of each subscription that they stop,
//! so that a claim reads only what stops its own.

use super::catalog::{read, written};
use super::session::{Session, hgetall, number};
use super::tuple::{Columns, Tuple};
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::model::pattern::Pattern;
use crate::model::rule::{AuditEntry, PatternRule, Rule, RuleKind};
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use crate::store::rules::{self, PATTERN_ACTS, Stop, action, unknown};
use crate::store::verbs::{RemovePatternRule, SetPatternRule, SetRule};
use serde::{Deserialize, Serialize};

/// How many entries of the audit go in one step.
const EXPIRED: usize = 1_000;
/// Whose acts those on patterns are.
pub(super) const PATTERNS: SubscriptionId = SubscriptionId(0);

/// A rule by pattern as it is stored, but for its number.
#[derive(Serialize, Deserialize)]
struct PatternRow {
    pattern: Pattern,
    topics: Option<Vec<Pattern>>,
    kind: RuleKind,
    by: String,
    reason: String,
    since: Time,
    until: Option<Time>,
}

/// The rules of a subscription, by the pattern that they come from (zero: none) and kind.
pub(super) fn rules_key(session: &Session<'_>, id: SubscriptionId) -> Vec<u8> {
    session.key(&format!("rules:{id}"))
}

fn field(source: i64, kind: RuleKind) -> Vec<u8> {
    Tuple::new().with(&[source]).text(kind.as_str()).bytes()
}

/// What stops a subscription now.
pub(super) fn stop(session: &Session<'_>, id: SubscriptionId) -> Result<Option<Stop>> {
    Ok(Stop::of(in_force(session, id)?.into_iter().map(|rule| (rule.kind, rule.until))))
}

/// The rules in force that stop a subscription, with those that come from patterns.
pub(super) fn in_force(session: &Session<'_>, id: SubscriptionId) -> Result<Vec<Rule>> {
    let mut rules = Vec::new();
    for row in session.all(&rules_key(session, id))?.into_values() {
        let rule: Rule = read(&row)?;
        rules.extend(Some(rule).filter(|rule| !has_ended(session, rule.until)));
    }
    rules.sort_by_key(|rule| (rule.kind.as_str(), rule.source.as_ref().map_or(0, |(source, _)| *source)));
    Ok(rules)
}

fn has_ended(session: &Session<'_>, until: Option<Time>) -> bool {
    until.is_some_and(|until| until <= session.now)
}

pub(super) fn set(session: &Session<'_>, set: &SetRule) -> Result<()> {
    session.catalog().require_subscription(set.subscription)?;
    let (table, field) = (rules_key(session, set.subscription), field(0, set.kind));
    match set.end() {
        None => session.remove(table, field),
        Some(until) => {
            let old: Option<Rule> = session.get(&table, &field)?.map(|row| read(&row)).transpose()?;
            let in_force = old.filter(|old| old.until.is_none_or(|until| until > session.now));
            let since = in_force.map_or(session.now, |old| old.since);
            let (by, reason) = (set.by.clone(), set.reason.clone());
            session.put(
                table,
                field,
                written(&Rule { kind: set.kind, by, reason, since, until, source: None }),
            );
        }
    }
    note(session, set.subscription, set.action(), &set.by, &set.reason, None)
}

/// Writes down who did what.
pub(super) fn note(
    session: &Session<'_>,
    id: SubscriptionId,
    action: &str,
    by: &str,
    reason: &str,
    pattern: Option<&Pattern>,
) -> Result<()> {
    let entry = AuditEntry {
        at: session.now,
        by: by.into(),
        action: action.into(),
        reason: reason.into(),
        pattern: pattern.cloned(),
    };
    let number = session.draw("audit", 1)?;
    session.enter(audit_key(session, id), Tuple::new().with(&[number]).carrying(&written(&entry)));
    Ok(())
}

fn patterns_key(session: &Session<'_>) -> Vec<u8> {
    session.key("patterns")
}

/// The rules by pattern in force, by number.
pub(super) fn by_pattern(session: &Session<'_>) -> Result<Vec<PatternRule>> {
    let catalog = session.catalog();
    let mut rules = all_by_pattern(session)?;
    rules.retain(|rule| !has_ended(session, rule.until));
    for rule in &mut rules {
        // Each of them has the rule among its own: both are written in one step.
        rule.subscriptions = catalog.subscriptions().iter().filter(|one| rule.stops(one)).count() as u64;
    }
    Ok(rules)
}

fn all_by_pattern(session: &Session<'_>) -> Result<Vec<PatternRule>> {
    let mut rules = Vec::new();
    for (id, row) in session.all(&patterns_key(session))? {
        let PatternRow { pattern, topics, kind, by, reason, since, until } = read(&row)?;
        let id = number(Some(id));
        rules.push(PatternRule { id, pattern, topics, kind, by, reason, since, until, subscriptions: 0 });
    }
    rules.sort_by_key(|rule| rule.id);
    Ok(rules)
}

pub(super) fn set_by_pattern(session: &Session<'_>, set: &SetPatternRule) -> Result<PatternRule> {
    let all = by_pattern(session)?;
    let old = set.among(&all)?;
    let id = match old {
        Some(old) => old.id,
        None => session.draw("pattern", 1)?,
    };
    let mut rule = set.rule(id, old, session.now);
    let PatternRule { pattern, topics, kind, by, reason, since, until, .. } = rule.clone();
    let row = PatternRow { pattern, topics, kind, by, reason, since, until };
    session.put(patterns_key(session), id.to_string(), written(&row));
    for subscription in session.catalog().subscriptions() {
        if rule.stops(subscription) {
            apply(session, &rule, subscription.id);
            rule.subscriptions += 1;
        }
    }
    note(session, PATTERNS, action(set.kind, true), &set.by, &set.reason, Some(&set.pattern))?;
    Ok(rule)
}

fn apply(session: &Session<'_>, rule: &PatternRule, id: SubscriptionId) {
    let own = Rule {
        kind: rule.kind,
        by: rule.by.clone(),
        reason: rule.reason.clone(),
        since: rule.since,
        until: rule.until,
        source: Some((rule.id, rule.pattern.clone())),
    };
    session.put(rules_key(session, id), field(rule.id, rule.kind), written(&own));
}

pub(super) fn remove_by_pattern(
    session: &Session<'_>,
    remove: &RemovePatternRule,
) -> Result<Vec<SubscriptionId>> {
    let all = by_pattern(session)?;
    let rule = all.iter().find(|rule| rule.id == remove.id).ok_or_else(|| unknown(remove.id))?;
    let stopped = forget(session, rule);
    note(session, PATTERNS, action(rule.kind, false), &remove.by, &remove.reason, Some(&rule.pattern))?;
    Ok(stopped)
}

/// Removes a rule by pattern wherever it is written. Gives the subscriptions that it stopped.
fn forget(session: &Session<'_>, rule: &PatternRule) -> Vec<SubscriptionId> {
    session.remove(patterns_key(session), rule.id.to_string());
    let catalog = session.catalog();
    let stopped = catalog.subscriptions().iter().filter(|one| rule.stops(one)).map(|one| one.id);
    stopped.inspect(|id| session.remove(rules_key(session, *id), field(rule.id, rule.kind))).collect()
}

/// Brings what patterns mean for a subscription up to date: it is new, or has other topics.
pub(super) fn resolve(session: &Session<'_>, subscription: &Subscription) -> Result<()> {
    for field in session.all(&rules_key(session, subscription.id))?.into_keys() {
        if Columns(&field).number() != 0 {
            session.remove(rules_key(session, subscription.id), field);
        }
    }
    for rule in by_pattern(session)?.iter().filter(|rule| rule.stops(subscription)) {
        apply(session, rule, subscription.id);
    }
    Ok(())
}

/// Removes rules that have ended.
pub(super) fn expire(session: &Session<'_>, subscriptions: &[SubscriptionId]) -> Result<()> {
    session.expect(subscriptions.iter().map(|id| hgetall(&rules_key(session, *id))))?;
    for &id in subscriptions {
        for (field, row) in session.all(&rules_key(session, id))? {
            if has_ended(session, read::<Rule>(&row)?.until) {
                session.remove(rules_key(session, id), field);
            }
        }
    }
    Ok(())
}

/// Forgets rules by pattern that have ended.
pub(super) fn expire_by_pattern(session: &Session<'_>) -> Result<()> {
    for rule in all_by_pattern(session)?.iter().filter(|rule| has_ended(session, rule.until)) {
        forget(session, rule);
    }
    Ok(())
}

fn audit_key(session: &Session<'_>, id: SubscriptionId) -> Vec<u8> {
    session.key(&format!("audit:{id}"))
}

pub(super) fn audit(session: &Session<'_>, id: SubscriptionId, limit: u32) -> Result<Vec<AuditEntry>> {
    let catalog = session.catalog();
    let Ok(subscription) = catalog.require_subscription(id) else { return Ok(Vec::new()) };
    let own = acts(session, id, limit)?;
    let by_pattern = acts(session, PATTERNS, PATTERN_ACTS)?;
    Ok(rules::audit(own, by_pattern, &subscription.name, limit))
}

fn acts(session: &Session<'_>, id: SubscriptionId, limit: u32) -> Result<Vec<(i64, AuditEntry)>> {
    let members = session.range_back(&audit_key(session, id), Tuple::new().all(), limit as usize)?;
    let entry = |member: &Vec<u8>| {
        let mut columns = Columns(member);
        Ok((columns.number(), read(columns.load())?))
    };
    members.iter().map(entry).collect()
}

/// Forgets what was written down before the last `kept` entries of all subscriptions. True if there may be more.
pub(super) fn expire_audit(
    session: &Session<'_>,
    subscriptions: &[SubscriptionId],
    kept: i64,
) -> Result<bool> {
    let before = session.draw("audit", 0)? - kept;
    if before <= 0 {
        return Ok(false);
    }
    let each = (EXPIRED / subscriptions.len().max(1)).max(1);
    let mut more = false;
    session.for_each(subscriptions, |id| {
        let index = audit_key(session, *id);
        let range = (Tuple::new().bytes(), Tuple::new().with(&[before]).bytes());
        let old = session.range(&index, range, each)?;
        more |= old.len() == each;
        old.into_iter().for_each(|member| session.withdraw(index.clone(), member));
        Ok(())
    })?;
    Ok(more)
}
