//! Rules: for one subscription, and for all whose names match. The latter are written into the rules of each subscription that they stop,
//! so that a claim reads only what stops its own.

use super::catalog::{load, lock_catalog};
use super::session::Session;
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::model::rule::{AuditEntry, PatternRule, Rule, RuleKind};
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use crate::store::rules::{self, PATTERN_ACTS, action, pattern, topics, unknown};
use crate::store::verbs::{RemovePatternRule, SetPatternRule, SetRule};
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The rules in force that stop a subscription, with those that come from patterns.
pub(super) async fn in_force(session: &mut Session<'_>, id: SubscriptionId) -> Result<Vec<Rule>> {
    let sql = "SELECT r.kind, r.by, r.reason, r.since, r.until, r.source, p.pattern FROM tramline_rule r \
               LEFT JOIN tramline_pattern_rule p ON p.id = r.source \
               WHERE r.subscription = $1 AND (r.until IS NULL OR r.until > $2) ORDER BY r.kind, r.source";
    let query = session.query(sql).bind(id.0).bind(session.now.0);
    let rows = session.all(query).await?;
    let rule = |row: &PgRow| {
        let source: i64 = row.try_get(5)?;
        Ok(Rule {
            kind: kind(row, 0)?,
            by: row.try_get(1)?,
            reason: row.try_get(2)?,
            since: Time(row.try_get(3)?),
            until: row.try_get::<Option<i64>, _>(4)?.map(Time),
            source: row.try_get::<Option<String>, _>(6)?.map(|text| (source, pattern(&text))),
        })
    };
    rows.iter().map(rule).collect()
}

fn kind(row: &PgRow, at: usize) -> Result<RuleKind> {
    Ok(RuleKind::parse(row.try_get(at)?).unwrap_or(RuleKind::Block))
}

pub(super) async fn set(session: &mut Session<'_>, set: &SetRule) -> Result<()> {
    session.catalog.require_subscription(set.subscription)?;
    let (id, kind) = (set.subscription.0, set.kind.as_str());
    match set.end() {
        None => {
            let sql = "DELETE FROM tramline_rule WHERE subscription = $1 AND kind = $2 AND source = 0";
            let query = session.query(sql).bind(id).bind(kind);
            session.run(query).await?;
        }
        Some(until) => {
            let sql = "INSERT INTO tramline_rule AS r (subscription, kind, source, by, reason, since, until) \
                       VALUES ($1, $2, 0, $3, $4, $5, $6) ON CONFLICT (subscription, kind, source) \
                       DO UPDATE SET by = excluded.by, reason = excluded.reason, until = excluded.until, \
                       since = CASE WHEN r.until <= excluded.since THEN excluded.since ELSE r.since END";
            let query = session.query(sql).bind(id).bind(kind).bind(set.by.clone()).bind(set.reason.clone());
            let query = query.bind(session.now.0).bind(until.map(|time| time.0));
            session.run(query).await?;
        }
    }
    note(session, id, set.action(), (&set.by, &set.reason), None).await
}

async fn note(
    session: &mut Session<'_>,
    id: i64,
    action: &'static str,
    (by, reason): (&str, &str),
    pattern: Option<&str>,
) -> Result<()> {
    let sql = "INSERT INTO tramline_audit (subscription, at, by, action, reason, pattern) VALUES ($1, $2, $3, $4, $5, $6)";
    let query = session.query(sql).bind(id).bind(session.now.0).bind(by.to_owned());
    let query = query.bind(action).bind(reason.to_owned()).bind(pattern.map(str::to_owned));
    session.run(query).await.map(|_| ())
}

/// The rules by pattern in force, by number.
pub(super) async fn by_pattern(session: &mut Session<'_>) -> Result<Vec<PatternRule>> {
    let sql = "SELECT p.id, p.pattern, p.topics, p.kind, p.by, p.reason, p.since, p.until, \
               (SELECT count(*) FROM tramline_rule r WHERE r.source <> 0 AND r.source = p.id) \
               FROM tramline_pattern_rule p WHERE p.until IS NULL OR p.until > $1 ORDER BY p.id";
    let query = session.query(sql).bind(session.now.0);
    let rows = session.all(query).await?;
    let rule = |row: &PgRow| {
        Ok(PatternRule {
            id: row.try_get(0)?,
            pattern: pattern(row.try_get(1)?),
            topics: topics(row.try_get(2)?),
            kind: kind(row, 3)?,
            by: row.try_get(4)?,
            reason: row.try_get(5)?,
            since: Time(row.try_get(6)?),
            until: row.try_get::<Option<i64>, _>(7)?.map(Time),
            subscriptions: row.try_get::<i64, _>(8)?.cast_unsigned(),
        })
    };
    rows.iter().map(rule).collect()
}

/// Behind the lock of the catalogue, and with what is in it after that: no subscription comes unseen.
/// Gives the rule and whom it stops, in order.
pub(super) async fn set_by_pattern(
    session: &mut Session<'_>,
    set: &SetPatternRule,
) -> Result<(PatternRule, Vec<SubscriptionId>)> {
    lock_catalog(session).await?;
    session.catalog = Arc::new(load(session.conn, session.texts).await?);
    let all = by_pattern(session).await?;
    let old = set.among(&all)?;
    let until = set.until.time().map(|time| time.0);
    let id = match old {
        Some(old) => {
            let sql = "UPDATE tramline_pattern_rule SET by = $2, reason = $3, until = $4 WHERE id = $1";
            let query =
                session.query(sql).bind(old.id).bind(set.by.clone()).bind(set.reason.clone()).bind(until);
            session.run(query).await?;
            let sql = "DELETE FROM tramline_rule WHERE source <> 0 AND source = $1";
            let query = session.query(sql).bind(old.id);
            session.run(query).await?;
            old.id
        }
        None => {
            let sql = "INSERT INTO tramline_pattern_rule (pattern, topics, kind, by, reason, since, until) \
                       VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id";
            let query = session.query(sql).bind(set.pattern.as_str().to_owned()).bind(set.topics_text());
            let query = query.bind(set.kind.as_str()).bind(set.by.clone()).bind(set.reason.clone());
            let query = query.bind(session.now.0).bind(until);
            query.fetch_one(&mut *session.conn).await?.try_get(0)?
        }
    };
    let mut rule = set.rule(id, old, session.now);
    let catalog = session.catalog.clone();
    let stopped = catalog.subscriptions().iter().filter(|one| rule.stops(one)).map(|one| one.id);
    let stopped: BTreeSet<SubscriptionId> = stopped.collect();
    let stopped: Vec<SubscriptionId> = stopped.into_iter().collect();
    rule.subscriptions = stopped.len() as u64;
    apply(session, &rule, &stopped).await?;
    let why = (set.by.as_str(), set.reason.as_str());
    note(session, 0, action(set.kind, true), why, Some(set.pattern.as_str())).await?;
    Ok((rule, stopped))
}

/// Waits for the claims of subscriptions, which share this lock from before they look at the rules until they end, and keeps
/// others away until the transaction ends. The subscriptions are sorted, so that two never wait in a circle. Settlements
/// do not have it: they may be part of somebody's long transaction.
pub(super) async fn keep_claims_away(session: &mut Session<'_>, of: &[SubscriptionId]) -> Result<()> {
    let sql = "SELECT pg_advisory_xact_lock('tramline_rule'::regclass::oid::int, u.id::int) FROM unnest($1::bigint[]) AS u(id)";
    let query = session.query(sql).bind(of.iter().map(|id| id.0).collect::<Vec<i64>>());
    session.all(query).await.map(|_| ())
}

async fn apply(session: &mut Session<'_>, rule: &PatternRule, stopped: &[SubscriptionId]) -> Result<()> {
    let sql = "INSERT INTO tramline_rule (subscription, kind, source, by, reason, since, until) \
               SELECT u.id, $2, $3, $4, $5, $6, $7 FROM unnest($1::bigint[]) AS u(id)";
    let stopped: Vec<i64> = stopped.iter().map(|id| id.0).collect();
    let query = session.query(sql).bind(stopped).bind(rule.kind.as_str()).bind(rule.id).bind(rule.by.clone());
    let query = query.bind(rule.reason.clone()).bind(rule.since.0).bind(rule.until.map(|time| time.0));
    session.run(query).await.map(|_| ())
}

pub(super) async fn remove_by_pattern(
    session: &mut Session<'_>,
    remove: &RemovePatternRule,
) -> Result<Vec<SubscriptionId>> {
    lock_catalog(session).await?;
    let all = by_pattern(session).await?;
    let rule = all.iter().find(|rule| rule.id == remove.id).ok_or_else(|| unknown(remove.id))?;
    let query = session.query("DELETE FROM tramline_pattern_rule WHERE id = $1").bind(rule.id);
    session.run(query).await?;
    let sql = "DELETE FROM tramline_rule WHERE source <> 0 AND source = $1 RETURNING subscription";
    let query = session.query(sql).bind(rule.id);
    let rows = session.all(query).await?;
    let why = (remove.by.as_str(), remove.reason.as_str());
    note(session, 0, action(rule.kind, false), why, Some(rule.pattern.as_str())).await?;
    rows.iter().map(|row| Ok(SubscriptionId(row.try_get(0)?))).collect()
}

/// Brings what patterns mean for a subscription up to date: it is new, or has other topics. The caller has locked the catalogue.
pub(super) async fn resolve(session: &mut Session<'_>, subscription: &Subscription) -> Result<()> {
    let sql = "DELETE FROM tramline_rule WHERE subscription = $1 AND source <> 0";
    let query = session.query(sql).bind(subscription.id.0);
    session.run(query).await?;
    let mut rules = by_pattern(session).await?;
    rules.retain(|rule| rule.stops(subscription));
    if !rules.is_empty() {
        keep_claims_away(session, &[subscription.id]).await?;
    }
    for rule in &rules {
        apply(session, rule, &[subscription.id]).await?;
    }
    Ok(())
}

/// Removes rules that have ended.
pub(super) async fn expire(session: &mut Session<'_>) -> Result<()> {
    for sql in
        ["DELETE FROM tramline_rule WHERE until <= $1", "DELETE FROM tramline_pattern_rule WHERE until <= $1"]
    {
        let query = session.query(sql).bind(session.now.0);
        session.run(query).await?;
    }
    Ok(())
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
    let sql = "SELECT id, at, by, action, reason, pattern FROM tramline_audit WHERE subscription = $1 ORDER BY id DESC LIMIT $2";
    let query = session.query(sql).bind(id).bind(i64::from(limit));
    let rows = session.all(query).await?;
    let act = |row: &PgRow| {
        let entry = AuditEntry {
            at: Time(row.try_get(1)?),
            by: row.try_get(2)?,
            action: row.try_get(3)?,
            reason: row.try_get(4)?,
            pattern: row.try_get::<Option<String>, _>(5)?.map(|text| pattern(&text)),
        };
        Ok((row.try_get(0)?, entry))
    };
    rows.iter().map(act).collect()
}
