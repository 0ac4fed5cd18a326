//! Rules: for one subscription, and for all whose names match. The latter are written into the rules of each subscription that they stop,
//! so that a claim reads only what stops its own.

use super::session::Session;
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::model::rule::{AuditEntry, PatternRule, Rule, RuleKind};
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use crate::store::rules::{self, PATTERN_ACTS, Stop, action, pattern, topics, unknown};
use crate::store::verbs::{RemovePatternRule, SetPatternRule, SetRule};
use rusqlite::{Connection, Row, params};

/// What stops a subscription now.
pub(super) fn stop(session: &Session<'_>, id: SubscriptionId) -> Result<Option<Stop>> {
    let sql = "SELECT kind, until FROM tramline_rule WHERE subscription = ? AND (until IS NULL OR until > ?)";
    let mut statement = session.conn.prepare_cached(sql)?;
    let rows = statement.query_map([id.0, session.now.0], |row| {
        Ok((kind(row, 0)?, row.get::<_, Option<i64>>(1)?.map(Time)))
    })?;
    Ok(Stop::of(rows.collect::<rusqlite::Result<Vec<_>>>()?.into_iter()))
}

fn kind(row: &Row<'_>, at: usize) -> rusqlite::Result<RuleKind> {
    Ok(RuleKind::parse(row.get_ref(at)?.as_str()?).unwrap_or(RuleKind::Block))
}

/// The rules in force that stop a subscription, with those that come from patterns.
pub(super) fn in_force(conn: &Connection, id: SubscriptionId, now: Time) -> Result<Vec<Rule>> {
    let sql = "SELECT r.kind, r.by, r.reason, r.since, r.until, r.source, p.pattern FROM tramline_rule r \
               LEFT JOIN tramline_pattern_rule p ON p.id = r.source \
               WHERE r.subscription = ? AND (r.until IS NULL OR r.until > ?) ORDER BY r.kind, r.source";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([id.0, now.0], |row| {
        let source: i64 = row.get(5)?;
        Ok(Rule {
            kind: kind(row, 0)?,
            by: row.get(1)?,
            reason: row.get(2)?,
            since: Time(row.get(3)?),
            until: row.get::<_, Option<i64>>(4)?.map(Time),
            source: row.get::<_, Option<String>>(6)?.map(|text| (source, pattern(&text))),
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn set(session: &Session<'_>, set: &SetRule) -> Result<()> {
    session.catalog.require_subscription(set.subscription)?;
    let (conn, id) = (session.conn, set.subscription.0);
    match set.end() {
        None => {
            let sql = "DELETE FROM tramline_rule WHERE subscription = ? AND kind = ? AND source = 0";
            conn.execute(sql, params![id, set.kind.as_str()])?;
        }
        Some(until) => {
            let sql = "INSERT INTO tramline_rule (subscription, kind, source, by, reason, since, until) \
                       VALUES (?, ?, 0, ?, ?, ?, ?) \
                       ON CONFLICT DO UPDATE SET by = excluded.by, reason = excluded.reason, until = excluded.until, \
                       since = CASE WHEN until <= excluded.since THEN excluded.since ELSE since END";
            let until = until.map(|time| time.0);
            conn.execute(sql, params![id, set.kind.as_str(), set.by, set.reason, session.now.0, until])?;
        }
    }
    note(session, id, set.action(), &set.by, &set.reason, None)
}

fn note(
    session: &Session<'_>,
    id: i64,
    action: &str,
    by: &str,
    reason: &str,
    pattern: Option<&str>,
) -> Result<()> {
    let sql = "INSERT INTO tramline_audit (subscription, at, by, action, reason, pattern) VALUES (?, ?, ?, ?, ?, ?)";
    session.conn.execute(sql, params![id, session.now.0, by, action, reason, pattern])?;
    Ok(())
}

/// The rules by pattern in force, by number.
pub(super) fn by_pattern(conn: &Connection, now: Time) -> Result<Vec<PatternRule>> {
    let sql = "SELECT id, pattern, topics, kind, by, reason, since, until, \
               (SELECT count(*) FROM tramline_rule r WHERE r.source <> 0 AND r.source = p.id) \
               FROM tramline_pattern_rule p WHERE until IS NULL OR until > ? ORDER BY id";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([now.0], |row| {
        Ok(PatternRule {
            id: row.get(0)?,
            pattern: pattern(row.get_ref(1)?.as_str()?),
            topics: topics(row.get::<_, Option<String>>(2)?.as_deref()),
            kind: kind(row, 3)?,
            by: row.get(4)?,
            reason: row.get(5)?,
            since: Time(row.get(6)?),
            until: row.get::<_, Option<i64>>(7)?.map(Time),
            subscriptions: row.get::<_, i64>(8)?.max(0).cast_unsigned(),
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn set_by_pattern(session: &Session<'_>, set: &SetPatternRule) -> Result<PatternRule> {
    let conn = session.conn;
    let all = by_pattern(conn, session.now)?;
    let old = set.among(&all)?;
    let until = set.until.time().map(|time| time.0);
    let id = match old {
        Some(old) => {
            let sql = "UPDATE tramline_pattern_rule SET by = ?, reason = ?, until = ? WHERE id = ?";
            conn.execute(sql, params![set.by, set.reason, until, old.id])?;
            conn.execute("DELETE FROM tramline_rule WHERE source <> 0 AND source = ?", [old.id])?;
            old.id
        }
        None => {
            let sql = "INSERT INTO tramline_pattern_rule (pattern, topics, kind, by, reason, since, until) \
                       VALUES (?, ?, ?, ?, ?, ?, ?)";
            let (pattern, kind) = (set.pattern.as_str(), set.kind.as_str());
            let values = params![pattern, set.topics_text(), kind, set.by, set.reason, session.now.0, until];
            conn.execute(sql, values)?;
            conn.last_insert_rowid()
        }
    };
    let mut rule = set.rule(id, old, session.now);
    for subscription in session.catalog.subscriptions() {
        if rule.stops(subscription) {
            apply(conn, &rule, subscription.id)?;
            rule.subscriptions += 1;
        }
    }
    note(session, 0, action(set.kind, true), &set.by, &set.reason, Some(set.pattern.as_str()))?;
    Ok(rule)
}

fn apply(conn: &Connection, rule: &PatternRule, id: SubscriptionId) -> Result<()> {
    let sql = "INSERT INTO tramline_rule (subscription, kind, source, by, reason, since, until) VALUES (?, ?, ?, ?, ?, ?, ?)";
    let (kind, until) = (rule.kind.as_str(), rule.until.map(|time| time.0));
    let values = params![id.0, kind, rule.id, rule.by, rule.reason, rule.since.0, until];
    conn.prepare_cached(sql)?.execute(values)?;
    Ok(())
}

pub(super) fn remove_by_pattern(
    session: &Session<'_>,
    remove: &RemovePatternRule,
) -> Result<Vec<SubscriptionId>> {
    let conn = session.conn;
    let all = by_pattern(conn, session.now)?;
    let rule = all.iter().find(|rule| rule.id == remove.id).ok_or_else(|| unknown(remove.id))?;
    conn.execute("DELETE FROM tramline_pattern_rule WHERE id = ?", [rule.id])?;
    let sql = "DELETE FROM tramline_rule WHERE source <> 0 AND source = ? RETURNING subscription";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([rule.id], |row| row.get(0).map(SubscriptionId))?;
    let stopped = rows.collect::<rusqlite::Result<_>>()?;
    note(session, 0, action(rule.kind, false), &remove.by, &remove.reason, Some(rule.pattern.as_str()))?;
    Ok(stopped)
}

/// Brings what patterns mean for a subscription up to date: it is new, or has other topics.
pub(super) fn resolve(session: &Session<'_>, subscription: &Subscription) -> Result<()> {
    let sql = "DELETE FROM tramline_rule WHERE subscription = ? AND source <> 0";
    session.conn.execute(sql, [subscription.id.0])?;
    for rule in by_pattern(session.conn, session.now)?.iter().filter(|rule| rule.stops(subscription)) {
        apply(session.conn, rule, subscription.id)?;
    }
    Ok(())
}

/// Removes rules that have ended.
pub(super) fn expire(conn: &Connection, now: Time) -> Result<()> {
    conn.prepare_cached("DELETE FROM tramline_rule WHERE until <= ?")?.execute([now.0])?;
    conn.prepare_cached("DELETE FROM tramline_pattern_rule WHERE until <= ?")?.execute([now.0])?;
    Ok(())
}

pub(super) fn audit(session: &Session<'_>, id: SubscriptionId, limit: u32) -> Result<Vec<AuditEntry>> {
    let Ok(subscription) = session.catalog.require_subscription(id) else { return Ok(Vec::new()) };
    let own = acts(session.conn, id.0, limit)?;
    let by_pattern = acts(session.conn, 0, PATTERN_ACTS)?;
    Ok(rules::audit(own, by_pattern, &subscription.name, limit))
}

fn acts(conn: &Connection, id: i64, limit: u32) -> Result<Vec<(i64, AuditEntry)>> {
    let sql = "SELECT id, at, by, action, reason, pattern FROM tramline_audit WHERE subscription = ? ORDER BY id DESC LIMIT ?";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([id, i64::from(limit)], |row| {
        let pattern = row.get::<_, Option<String>>(5)?.map(|text| pattern(&text));
        let entry = AuditEntry {
            at: Time(row.get(1)?),
            by: row.get(2)?,
            action: row.get(3)?,
            reason: row.get(4)?,
            pattern,
        };
        Ok((row.get(0)?, entry))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}
