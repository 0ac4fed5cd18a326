//! Rules: for one subscription, and for all whose names match. The latter are written into the rules of each subscription that they stop,
//! so that a claim reads only what stops its own.

use super::catalog::{load, lock_catalog};
use super::session::Session;
use super::sql::{Columns, insert, join, maybe_text, maybe_time, numbered, overwrite, text};
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::model::rule::{AuditEntry, PatternRule, Rule, RuleKind};
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use crate::store::rules::{self, PATTERN_ACTS, action, pattern, topics, unknown};
use crate::store::verbs::{RemovePatternRule, SetPatternRule, SetRule};
use sqlx::mysql::MySqlRow;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The rules in force that stop a subscription, with those that come from patterns.
pub(super) async fn in_force(session: &mut Session<'_>, id: SubscriptionId) -> Result<Vec<Rule>> {
    let sql = format!(
        "SELECT r.kind, r.`by`, r.reason, r.since, r.until, r.source, p.pattern FROM tramline_rule r \
         LEFT JOIN tramline_pattern_rule p ON p.id = r.source \
         WHERE r.subscription = {} AND (r.until IS NULL OR r.until > {}) ORDER BY r.kind, r.source",
        id.0, session.now.0
    );
    let rule = |row: &MySqlRow| {
        let source = row.int(5)?;
        Ok(Rule {
            kind: kind(row, 0)?,
            by: row.text(1)?,
            reason: row.text(2)?,
            since: row.time(3)?,
            until: row.maybe_int(4)?.map(Time),
            source: row.maybe_text(6)?.map(|text| (source, pattern(&text))),
        })
    };
    session.rows(sql).await?.iter().map(rule).collect()
}

fn kind(row: &MySqlRow, at: usize) -> Result<RuleKind> {
    Ok(RuleKind::parse(&row.text(at)?).unwrap_or(RuleKind::Block))
}

pub(super) async fn set(session: &mut Session<'_>, set: &SetRule) -> Result<()> {
    session.catalog.require_subscription(set.subscription)?;
    let (id, kind) = (set.subscription.0, text(set.kind.as_str()));
    match set.end() {
        None => session.write(format!(
            "DELETE FROM tramline_rule WHERE subscription = {id} AND kind = {kind} AND source = 0"
        )),
        Some(until) => session.write(format!(
            "INSERT INTO tramline_rule (subscription, kind, source, `by`, reason, since, until) \
             VALUES ({id}, {kind}, 0, {}, {}, {}, {}){}, until = VALUES(until)",
            text(&set.by),
            text(&set.reason),
            session.now.0,
            maybe_time(until),
            // What is set first is seen by what is set next: the end comes last.
            overwrite(&["`by`", "reason"]) + ", since = IF(until <= VALUES(since), VALUES(since), since)"
        )),
    }
    note(session, id, set.action(), (&set.by, &set.reason), None);
    Ok(())
}

fn note(session: &mut Session<'_>, id: i64, action: &str, (by, reason): (&str, &str), pattern: Option<&str>) {
    let values = [
        id.to_string(),
        session.now.0.to_string(),
        text(by),
        text(action),
        text(reason),
        maybe_text(pattern),
    ];
    session.write(format!(
        "INSERT INTO tramline_audit (subscription, at, `by`, action, reason, pattern) VALUES ({})",
        join(values.into_iter())
    ));
}

/// The rules by pattern in force, by number.
pub(super) async fn by_pattern(session: &mut Session<'_>) -> Result<Vec<PatternRule>> {
    let sql = format!(
        "SELECT p.id, p.pattern, p.topics, p.kind, p.`by`, p.reason, p.since, p.until, \
         (SELECT COUNT(*) FROM tramline_rule r WHERE r.source = p.id) \
         FROM tramline_pattern_rule p WHERE p.until IS NULL OR p.until > {} ORDER BY p.id",
        session.now.0
    );
    let rule = |row: &MySqlRow| {
        Ok(PatternRule {
            id: row.int(0)?,
            pattern: pattern(&row.text(1)?),
            topics: topics(row.maybe_text(2)?.as_deref()),
            kind: kind(row, 3)?,
            by: row.text(4)?,
            reason: row.text(5)?,
            since: row.time(6)?,
            until: row.maybe_int(7)?.map(Time),
            subscriptions: row.count(8)?,
        })
    };
    session.rows(sql).await?.iter().map(rule).collect()
}

/// Behind the lock of the catalogue, and with what is in it after that: no subscription comes unseen.
/// Gives the rule and whom it stops, in order.
pub(super) async fn set_by_pattern(
    session: &mut Session<'_>,
    set: &SetPatternRule,
) -> Result<(PatternRule, Vec<SubscriptionId>)> {
    lock_catalog(session).await?;
    session.catalog = Arc::new(load(session).await?);
    let all = by_pattern(session).await?;
    let old = set.among(&all)?;
    let (by, reason, until) = (text(&set.by), text(&set.reason), maybe_time(set.until.time()));
    let id = match old {
        Some(old) => {
            session.write(format!(
                "UPDATE tramline_pattern_rule SET `by` = {by}, reason = {reason}, until = {until} WHERE id = {}",
                old.id
            ));
            session.write(format!("DELETE FROM tramline_rule WHERE source = {}", old.id));
            old.id
        }
        None => {
            session.write(format!(
                "INSERT INTO tramline_pattern_rule (pattern, topics, kind, `by`, reason, since, until) \
                 VALUES ({}, {}, {}, {by}, {reason}, {}, {until})",
                text(set.pattern.as_str()),
                maybe_text(set.topics_text().as_deref()),
                text(set.kind.as_str()),
                session.now.0
            ));
            session.rows("SELECT LAST_INSERT_ID()").await?.first().map_or(Ok(0), |row| row.int(0))?
        }
    };
    let mut rule = set.rule(id, old, session.now);
    let catalog = session.catalog.clone();
    let stopped = catalog.subscriptions().iter().filter(|one| rule.stops(one)).map(|one| one.id);
    let stopped: BTreeSet<SubscriptionId> = stopped.collect();
    let stopped: Vec<SubscriptionId> = stopped.into_iter().collect();
    rule.subscriptions = stopped.len() as u64;
    apply(session, &rule, &stopped);
    let why = (set.by.as_str(), set.reason.as_str());
    note(session, 0, action(set.kind, true), why, Some(set.pattern.as_str()));
    Ok((rule, stopped))
}

/// Waits for the claims of subscriptions, which share this lock from before they look at the rules until they end, and keeps
/// others away until the transaction ends. The subscriptions are sorted, so that two never wait in a circle. Settlements
/// do not have it: they may be part of somebody's long transaction.
pub(super) async fn keep_claims_away(session: &mut Session<'_>, of: &[SubscriptionId]) -> Result<()> {
    let sql = format!(
        "SELECT g.id FROM {} STRAIGHT_JOIN tramline_gate g ON g.kind = 1 AND g.id = n.a AND g.side = 1 FOR UPDATE",
        numbered(of.iter().map(|id| id.0))
    );
    session.rows(sql).await.map(|_| ())
}

fn apply(session: &mut Session<'_>, rule: &PatternRule, stopped: &[SubscriptionId]) {
    let rest = format!(
        "{},{},{},{},{},{}",
        text(rule.kind.as_str()),
        rule.id,
        text(&rule.by),
        text(&rule.reason),
        rule.since.0,
        maybe_time(rule.until)
    );
    let rows = stopped.iter().map(|id| format!("({},{rest})", id.0));
    let head = "INSERT INTO tramline_rule (subscription, kind, source, `by`, reason, since, until) VALUES ";
    session.write_all(insert(head, rows, "", session.common.packet));
}

pub(super) async fn remove_by_pattern(
    session: &mut Session<'_>,
    remove: &RemovePatternRule,
) -> Result<Vec<SubscriptionId>> {
    lock_catalog(session).await?;
    let all = by_pattern(session).await?;
    let rule = all.iter().find(|rule| rule.id == remove.id).ok_or_else(|| unknown(remove.id))?;
    let sql = format!("SELECT subscription FROM tramline_rule WHERE source = {} FOR UPDATE", rule.id);
    let rows = session.rows(sql).await?;
    session.write(format!("DELETE FROM tramline_pattern_rule WHERE id = {}", rule.id));
    session.write(format!("DELETE FROM tramline_rule WHERE source = {}", rule.id));
    let why = (remove.by.as_str(), remove.reason.as_str());
    note(session, 0, action(rule.kind, false), why, Some(rule.pattern.as_str()));
    rows.iter().map(|row| row.int(0).map(SubscriptionId)).collect()
}

/// Brings what patterns mean for a subscription up to date: it is new, or has other topics. The caller has locked the catalogue.
pub(super) async fn resolve(session: &mut Session<'_>, subscription: &Subscription) -> Result<()> {
    session.write(format!(
        "DELETE FROM tramline_rule WHERE subscription = {} AND source <> 0",
        subscription.id.0
    ));
    let mut rules = by_pattern(session).await?;
    rules.retain(|rule| rule.stops(subscription));
    if !rules.is_empty() {
        keep_claims_away(session, &[subscription.id]).await?;
    }
    for rule in &rules {
        apply(session, rule, &[subscription.id]);
    }
    Ok(())
}

/// Removes rules that have ended.
pub(super) fn expire(session: &mut Session<'_>) {
    for table in ["tramline_rule", "tramline_pattern_rule"] {
        session.write(format!("DELETE FROM {table} WHERE until <= {}", session.now.0));
    }
}

pub(super) async fn audit(
    session: &mut Session<'_>,
    id: SubscriptionId,
    limit: u32,
) -> Result<Vec<AuditEntry>> {
    let catalog = session.catalog.clone();
    let Ok(subscription) = catalog.require_subscription(id) else { return Ok(Vec::new()) };
    let own = acts(session, id.0, limit).await?;
    let by_pattern = acts(session, 0, PATTERN_ACTS).await?;
    Ok(rules::audit(own, by_pattern, &subscription.name, limit))
}

async fn acts(session: &mut Session<'_>, id: i64, limit: u32) -> Result<Vec<(i64, AuditEntry)>> {
    let sql = format!(
        "SELECT id, at, `by`, action, reason, pattern FROM tramline_audit WHERE subscription = {id} \
         ORDER BY id DESC LIMIT {limit}"
    );
    let act = |row: &MySqlRow| {
        let entry = AuditEntry {
            at: row.time(1)?,
            by: row.text(2)?,
            action: row.text(3)?,
            reason: row.text(4)?,
            pattern: row.maybe_text(5)?.map(|text| pattern(&text)),
        };
        Ok((row.int(0)?, entry))
    };
    session.rows(sql).await?.iter().map(act).collect()
}
