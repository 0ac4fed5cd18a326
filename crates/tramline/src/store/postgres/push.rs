//! Push: how each subscription stands, what was tried, what has gathered.

use super::order::lanes;
use super::session::Session;
use crate::error::Result;
use crate::model::health::Health;
use crate::model::id::SubscriptionId;
use crate::model::time::Time;
use crate::store::push::{attempt, health, sending, text};
use crate::store::verbs::{
    ATTEMPTS_KEPT, Gather, Gathered, ListAttempts, NumberedAttempt, PushEntry, RecordPush, Recorded,
    SteerPush,
};
use sqlx::Row;
use std::collections::HashMap;

pub(super) async fn record(session: &mut Session<'_>, record: &RecordPush) -> Result<Recorded> {
    let catalog = session.catalog.clone();
    let push = sending(catalog.require_subscription(record.subscription)?)?;
    let mut health = standing(session, record.subscription).await?;
    let mut disabled_now = false;
    health.count(record.counted.events, record.counted.batches);
    for attempt in &record.attempts {
        disabled_now |= health.record(attempt, push, session.now);
    }
    write(session, record.subscription, &health).await?;
    let kept = record.attempts.len().saturating_sub(ATTEMPTS_KEPT);
    let entries: Vec<String> = record.attempts[kept..].iter().map(text).collect();
    let sql = "INSERT INTO tramline_attempt (subscription, entry) SELECT $1, e.entry \
               FROM unnest($2::text[]) WITH ORDINALITY AS e(entry, place) ORDER BY e.place";
    let query = session.query(sql).bind(record.subscription.0).bind(entries);
    session.run(query).await?;
    let sql = "DELETE FROM tramline_attempt WHERE subscription = $1 AND id <= (SELECT a.id FROM tramline_attempt a \
               WHERE a.subscription = $1 ORDER BY a.id DESC LIMIT 1 OFFSET $2)";
    let query = session.query(sql).bind(record.subscription.0).bind(ATTEMPTS_KEPT as i64);
    session.run(query).await?;
    Ok(Recorded { health, disabled_now, now: session.now })
}

pub(super) async fn steer(session: &mut Session<'_>, steer: &SteerPush) -> Result<Health> {
    sending(session.catalog.require_subscription(steer.subscription)?)?;
    let mut health = standing(session, steer.subscription).await?;
    let noted = steer.steer.apply(&mut health, session.now);
    write(session, steer.subscription, &health).await?;
    let Some((action, reason)) = noted else { return Ok(health) };
    let sql = "INSERT INTO tramline_audit (subscription, at, by, action, reason) VALUES ($1, $2, $3, $4, $5)";
    let query = session
        .query(sql)
        .bind(steer.subscription.0)
        .bind(session.now.0)
        .bind(steer.by.clone())
        .bind(action)
        .bind(reason);
    session.run(query).await?;
    Ok(health)
}

/// How a subscription stands, locked: nodes that report at once take turns.
async fn standing(session: &mut Session<'_>, id: SubscriptionId) -> Result<Health> {
    let sql = "INSERT INTO tramline_push (subscription, state) VALUES ($1, '{}') ON CONFLICT DO NOTHING";
    let query = session.query(sql).bind(id.0);
    session.run(query).await?;
    let query =
        session.query("SELECT state FROM tramline_push WHERE subscription = $1 FOR UPDATE").bind(id.0);
    let state: String = query.fetch_one(&mut *session.conn).await?.try_get(0)?;
    health(Some(&state))
}

async fn write(session: &mut Session<'_>, id: SubscriptionId, health: &Health) -> Result<()> {
    let query = session
        .query("UPDATE tramline_push SET state = $2 WHERE subscription = $1")
        .bind(id.0)
        .bind(text(health));
    session.run(query).await.map(|_| ())
}

/// One look at all of them. Where there is no order: ready and due, or a lease that has ended, one probe of
/// `tramline_slice_claim` for each priority. Where there is: a lane that is free and has something to give, or whose lease
/// has ended.
pub(super) async fn board(session: &mut Session<'_>) -> Result<Vec<PushEntry>> {
    let catalog = session.catalog.clone();
    let all: Vec<_> = catalog.subscriptions().iter().filter(|one| one.policy.push.is_some()).collect();
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT u.id, p.state, CASE WHEN u.ordered THEN EXISTS (SELECT 1 FROM tramline_lane l \
            WHERE l.subscription = u.id AND l.halted_until <= $3 AND ((l.owner <> 0 AND l.until <= $3) OR (l.owner = 0 AND (\
            EXISTS (SELECT 1 FROM tramline_slice s WHERE s.subscription = u.id AND s.state = 0 AND s.lane = l.lane \
                AND s.rank = 0 AND s.pos >= l.low) OR \
            EXISTS (SELECT 1 FROM tramline_slice s WHERE s.subscription = u.id AND s.state = 3 AND s.lane = l.lane \
                AND s.rank = 0 AND s.pos <= $3))))) \
        ELSE EXISTS (SELECT 1 FROM unnest('{0,1,2}'::smallint[]) st CROSS JOIN generate_series(0, 9) r \
            CROSS JOIN LATERAL (SELECT 1 FROM tramline_slice s WHERE s.subscription = u.id AND s.state = st \
                AND s.lane = 0 AND s.rank = r AND s.pos <= $3 LIMIT 1) s) END \
        FROM unnest($1::bigint[], $2::bool[]) AS u(id, ordered) LEFT JOIN tramline_push p ON p.subscription = u.id";
    let query = session
        .query(sql)
        .bind(all.iter().map(|one| one.id.0).collect::<Vec<i64>>())
        .bind(all.iter().map(|one| one.policy.is_ordered()).collect::<Vec<bool>>())
        .bind(session.now.0);
    let mut found: HashMap<i64, (Option<String>, bool)> = HashMap::new();
    for row in session.all(query).await? {
        found.insert(row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?));
    }
    let mut board = Vec::with_capacity(all.len());
    for subscription in all {
        let (state, due) = found.remove(&subscription.id.0).unwrap_or_default();
        let health = health(state.as_deref())?;
        let due = due && health.is_open(session.now);
        board.push(PushEntry { subscription: subscription.clone(), health, due, now: session.now });
    }
    Ok(board)
}

/// Counts at most as many slices as there may be events in a batch: each has at least one. A lease that has ended counts as no event,
/// but somebody has to claim what was under it.
pub(super) async fn gather(session: &mut Session<'_>, gather: &Gather) -> Result<Gathered> {
    let ordered = session.catalog.require_subscription(gather.subscription)?.policy.is_ordered();
    let sql = if ordered {
        "WITH n AS (SELECT * FROM unnest($4::bigint[]) AS n(lane)), {newest} \
         (SELECT s.mask, s.due_at, s.attempts > 0 OR s.replayed FROM {lanes} \
         CROSS JOIN LATERAL (VALUES (0::smallint, l.low), (3::smallint, 0)) AS t(state, low) \
         CROSS JOIN LATERAL (SELECT * FROM tramline_slice s WHERE s.subscription = $1 AND s.state = t.state \
            AND s.lane = l.lane AND s.rank = 0 AND s.pos >= t.low AND s.due_at <= $2 LIMIT $3) s \
         WHERE l.halted_until <= $2 AND l.owner = 0 LIMIT $3) \
         UNION ALL (SELECT 0::bigint, l.until, true FROM {lanes} \
         WHERE l.halted_until <= $2 AND l.owner <> 0 AND l.until <= $2 LIMIT 1)"
    } else {
        "(SELECT s.mask, s.due_at, s.attempts > 0 OR s.replayed FROM generate_series(0, 9) r \
         CROSS JOIN LATERAL (SELECT * FROM tramline_slice s WHERE s.subscription = $1 AND s.state = 0 AND s.lane = 0 \
            AND s.rank = r AND s.pos <= $2 LIMIT $3) s LIMIT $3) \
         UNION ALL (SELECT 0::bigint, s.pos, true FROM generate_series(0, 9) r \
         CROSS JOIN LATERAL (SELECT s.pos FROM tramline_slice s WHERE s.subscription = $1 AND s.state = 1 AND s.lane = 0 \
            AND s.rank = r AND s.pos <= $2 LIMIT 1) s LIMIT 1)"
    };
    let query =
        session.query(sql).bind(gather.subscription.0).bind(session.now.0).bind(i64::from(gather.events));
    let query = if ordered { query.bind(lanes(session, gather.subscription)?) } else { query };
    let mut gathered = Gathered { now: session.now, ..Gathered::default() };
    for row in session.all(query).await? {
        gathered.add(row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    }
    if gathered.since.is_none() {
        gathered.next_due = next_due(session, gather.subscription, ordered).await?;
    }
    Ok(gathered)
}

/// When the first of what waits is due, or the first lane that is halted goes on.
async fn next_due(session: &mut Session<'_>, id: SubscriptionId, ordered: bool) -> Result<Option<Time>> {
    let sql = if ordered {
        "WITH n AS (SELECT * FROM unnest($2::bigint[]) AS n(lane)), {newest} \
         SELECT min(CASE WHEN l.halted_until > $3 THEN l.halted_until ELSE s.pos END) FROM {lanes} \
         LEFT JOIN LATERAL (SELECT s.pos FROM tramline_slice s WHERE s.subscription = $1 AND s.state = 3 \
            AND s.lane = l.lane AND s.rank = 0 ORDER BY s.pos LIMIT 1) s ON true \
         WHERE l.owner = 0"
    } else {
        "SELECT min(s.pos) FROM generate_series(0, 9) r \
         CROSS JOIN LATERAL (SELECT s.pos FROM tramline_slice s WHERE s.subscription = $1 AND s.state = 0 AND s.lane = 0 \
            AND s.rank = r ORDER BY s.pos LIMIT 1) s"
    };
    let query = session.query(sql).bind(id.0);
    let query = if ordered { query.bind(lanes(session, id)?).bind(session.now.0) } else { query };
    let next: Option<i64> = query.fetch_one(&mut *session.conn).await?.try_get(0)?;
    Ok(next.map(Time))
}

pub(super) async fn attempts(session: &mut Session<'_>, list: &ListAttempts) -> Result<Vec<NumberedAttempt>> {
    session.catalog.require_subscription(list.subscription)?;
    let sql = "SELECT id, entry FROM tramline_attempt WHERE subscription = $1 AND id < $2 ORDER BY subscription DESC, id DESC \
               LIMIT $3";
    let query = session.query(sql).bind(list.subscription.0).bind(list.before).bind(i64::from(list.limit));
    let mut found = Vec::new();
    for row in session.all(query).await? {
        let entry: String = row.try_get(1)?;
        found.push(NumberedAttempt { number: row.try_get(0)?, attempt: attempt(&entry)? });
    }
    Ok(found)
}
