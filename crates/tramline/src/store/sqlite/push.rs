//! Push: how each subscription stands, what was tried, what has gathered.

use super::session::Session;
use crate::error::Result;
use crate::model::health::Health;
use crate::model::id::SubscriptionId;
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use crate::store::push::{attempt, health, sending, text};
use crate::store::verbs::{
    ATTEMPTS_KEPT, Gather, Gathered, ListAttempts, NumberedAttempt, PushEntry, RecordPush, Recorded,
    SteerPush,
};
use rusqlite::{OptionalExtension, params, params_from_iter};

pub(super) fn record(session: &Session<'_>, record: &RecordPush) -> Result<Recorded> {
    let (conn, id) = (session.conn, record.subscription.0);
    let push = sending(session.catalog.require_subscription(record.subscription)?)?;
    let mut health = standing(session, record.subscription)?;
    let mut disabled_now = false;
    health.count(record.counted.events, record.counted.batches);
    let mut insert =
        conn.prepare_cached("INSERT INTO tramline_attempt (subscription, entry) VALUES (?, ?)")?;
    let kept = record.attempts.len().saturating_sub(ATTEMPTS_KEPT);
    for (at, attempt) in record.attempts.iter().enumerate() {
        disabled_now |= health.record(attempt, push, session.now);
        if at >= kept {
            insert.execute(params![id, text(attempt)])?;
        }
    }
    write(session, record.subscription, &health)?;
    let sql = "DELETE FROM tramline_attempt WHERE subscription = ?1 AND id <= (SELECT id FROM tramline_attempt \
               WHERE subscription = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)";
    conn.prepare_cached(sql)?.execute(params![id, ATTEMPTS_KEPT as i64])?;
    Ok(Recorded { health, disabled_now, now: session.now })
}

pub(super) fn steer(session: &Session<'_>, steer: &SteerPush) -> Result<Health> {
    sending(session.catalog.require_subscription(steer.subscription)?)?;
    let mut health = standing(session, steer.subscription)?;
    let noted = steer.steer.apply(&mut health, session.now);
    write(session, steer.subscription, &health)?;
    if let Some((action, reason)) = noted {
        let sql = "INSERT INTO tramline_audit (subscription, at, by, action, reason) VALUES (?, ?, ?, ?, ?)";
        session.conn.execute(sql, params![steer.subscription.0, session.now.0, steer.by, action, reason])?;
    }
    Ok(health)
}

fn standing(session: &Session<'_>, id: SubscriptionId) -> Result<Health> {
    let sql = "SELECT state FROM tramline_push WHERE subscription = ?";
    let found: Option<String> =
        session.conn.prepare_cached(sql)?.query_row([id.0], |row| row.get(0)).optional()?;
    health(found.as_deref())
}

fn write(session: &Session<'_>, id: SubscriptionId, health: &Health) -> Result<()> {
    let sql = "INSERT INTO tramline_push (subscription, state) VALUES (?, ?) \
               ON CONFLICT DO UPDATE SET state = excluded.state";
    session.conn.prepare_cached(sql)?.execute(params![id.0, text(health)])?;
    Ok(())
}

pub(super) fn board(session: &Session<'_>) -> Result<Vec<PushEntry>> {
    let mut board = Vec::new();
    for subscription in session.catalog.subscriptions().iter().filter(|one| one.policy.push.is_some()) {
        let health = standing(session, subscription.id)?;
        let due = health.is_open(session.now)
            && if subscription.policy.is_ordered() {
                lanes_due(session, subscription.id)?
            } else {
                slices_due(session, subscription.id)?
            };
        board.push(PushEntry { subscription: subscription.clone(), health, due, now: session.now });
    }
    Ok(board)
}

/// Ready and due, or a lease that has ended. One probe of `tramline_slice_claim` for each priority.
fn slices_due(session: &Session<'_>, id: SubscriptionId) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM tramline_slice WHERE subscription = ?1 AND state IN (0, 1, 2) AND lane = 0 \
               AND rank IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9) AND pos <= ?2)";
    Ok(session.conn.prepare_cached(sql)?.query_row([id.0, session.now.0], |row| row.get(0))?)
}

/// A lane that is free and has something to give, or whose lease has ended.
fn lanes_due(session: &Session<'_>, id: SubscriptionId) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM tramline_lane l WHERE l.subscription = ?1 AND l.halted_until <= ?2 AND \
               ((l.owner <> 0 AND l.until <= ?2) OR (l.owner = 0 AND (\
               EXISTS (SELECT 1 FROM tramline_slice s WHERE s.subscription = ?1 AND s.state = 0 AND s.lane = l.lane) OR \
               EXISTS (SELECT 1 FROM tramline_slice s WHERE s.subscription = ?1 AND s.state = 3 AND s.lane = l.lane \
               AND s.rank = 0 AND s.pos <= ?2)))))";
    Ok(session.conn.prepare_cached(sql)?.query_row([id.0, session.now.0], |row| row.get(0))?)
}

/// Counts at most as many slices as there may be events in a batch: each has at least one. A lease that has ended counts as no event,
/// but somebody has to claim what was under it.
pub(super) fn gather(session: &Session<'_>, gather: &Gather) -> Result<Gathered> {
    let subscription = session.catalog.require_subscription(gather.subscription)?;
    let sql = if subscription.policy.is_ordered() {
        "SELECT * FROM (SELECT s.mask, s.due_at, s.attempts > 0 OR s.replayed FROM tramline_lane l JOIN tramline_slice s \
            ON s.subscription = ?1 AND s.state IN (0, 3) AND s.lane = l.lane AND s.rank = 0 \
            WHERE l.subscription = ?1 AND l.halted_until <= ?2 AND l.owner = 0 AND s.due_at <= ?2 LIMIT ?3) \
         UNION ALL SELECT * FROM (SELECT 0, until, 1 FROM tramline_lane \
            WHERE subscription = ?1 AND halted_until <= ?2 AND owner <> 0 AND until <= ?2 LIMIT 1)"
    } else {
        "SELECT * FROM (SELECT mask, due_at, attempts > 0 OR replayed FROM tramline_slice WHERE subscription = ?1 \
            AND state = 0 AND lane = 0 AND rank IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9) AND pos <= ?2 LIMIT ?3) \
         UNION ALL SELECT * FROM (SELECT 0, pos, 1 FROM tramline_slice WHERE subscription = ?1 \
            AND state = 1 AND lane = 0 AND rank IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9) AND pos <= ?2 LIMIT 1)"
    };
    let mut gathered = Gathered { now: session.now, ..Gathered::default() };
    let mut statement = session.conn.prepare_cached(sql)?;
    let mut rows = statement.query([gather.subscription.0, session.now.0, i64::from(gather.events)])?;
    while let Some(row) = rows.next()? {
        gathered.add(row.get(0)?, row.get(1)?, row.get(2)?);
    }
    if gathered.since.is_none() {
        gathered.next_due = next_due(session, subscription)?;
    }
    Ok(gathered)
}

/// When the first of what waits is due, or the first lane that is halted goes on.
fn next_due(session: &Session<'_>, subscription: &Subscription) -> Result<Option<Time>> {
    let ordered = subscription.policy.is_ordered();
    let sql = if ordered {
        "SELECT min(CASE WHEN l.halted_until > ?2 THEN l.halted_until ELSE (SELECT min(s.pos) FROM tramline_slice s \
            WHERE s.subscription = ?1 AND s.state = 3 AND s.lane = l.lane AND s.rank = 0) END) \
         FROM tramline_lane l WHERE l.subscription = ?1 AND l.owner = 0"
    } else {
        "SELECT min(pos) FROM tramline_slice WHERE subscription = ?1 AND state = 0 AND lane = 0 \
         AND rank IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)"
    };
    let named = [subscription.id.0, session.now.0].into_iter().take(if ordered { 2 } else { 1 });
    let next: Option<i64> =
        session.conn.prepare_cached(sql)?.query_row(params_from_iter(named), |row| row.get(0))?;
    Ok(next.map(Time))
}

pub(super) fn attempts(session: &Session<'_>, list: &ListAttempts) -> Result<Vec<NumberedAttempt>> {
    session.catalog.require_subscription(list.subscription)?;
    let sql =
        "SELECT id, entry FROM tramline_attempt WHERE subscription = ? AND id < ? ORDER BY id DESC LIMIT ?";
    let mut statement = session.conn.prepare_cached(sql)?;
    let mut rows = statement.query([list.subscription.0, list.before, i64::from(list.limit)])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let entry: String = row.get(1)?;
        found.push(NumberedAttempt { number: row.get(0)?, attempt: attempt(&entry)? });
    }
    Ok(found)
}
