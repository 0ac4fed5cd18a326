//! Housekeeping: signs of life, dead workers, claims that ended, back-fill, retention.

use super::claim;
use super::drops;
use super::erase::erase;
use super::failures;
use super::limit;
use super::look::workers;
use super::mend;
use super::remote;
use super::rows::{chunk, insert};
use super::rules;
use super::session::Session;
use super::unique;
use crate::error::Result;
use crate::model::id::{Incarnation, SubscriptionId, TopicId};
use crate::model::subscription::Topic;
use crate::model::time::millis;
use crate::store::backfill::slices_of;
use crate::store::verbs::{Beat, Sweep, Swept, Worker};
use sqlx::Row;
use std::collections::BTreeSet;

/// How many chunks one step of a back-fill writes.
const BACKFILL_STEP: i64 = 64;
/// How many audit entries are kept.
const AUDIT_KEPT: i64 = 10_000;

pub(super) async fn beat(session: &mut Session<'_>, beat: &Beat) -> Result<Vec<Worker>> {
    // A restarted process goes on at once with what its former self held.
    let sql = "SELECT incarnation FROM tramline_worker WHERE name = $1 AND incarnation <> $2";
    let query = session.query(sql).bind(beat.name.clone()).bind(beat.incarnation.0);
    for former in session.all(query).await? {
        bury(session, Incarnation(former.try_get(0)?)).await?;
    }
    if beat.leaving {
        let query =
            session.query("DELETE FROM tramline_worker WHERE incarnation = $1").bind(beat.incarnation.0);
        session.run(query).await?;
    } else {
        let sql = "INSERT INTO tramline_worker (incarnation, name, subscriptions, born_at, beat_at) \
                   VALUES ($1, $2, $3, $4, $4) ON CONFLICT (incarnation) \
                   DO UPDATE SET subscriptions = excluded.subscriptions, beat_at = excluded.beat_at";
        let query = session
            .query(sql)
            .bind(beat.incarnation.0)
            .bind(beat.name.clone())
            .bind(beat.subscriptions.iter().map(|id| id.0).collect::<Vec<i64>>())
            .bind(session.now.0);
        session.run(query).await?;
    }
    workers(session).await
}

/// A worker is known to be dead: its leases end now. Gives the subscriptions that have work again. What a transaction has
/// locked is passed over, so that the living do not wait for the dead: those leases end by themselves.
///
/// Uses `tramline_slice_claim`, one range of leased slices per subscription: there is no index by owner, because every
/// claim would have to write it.
async fn bury(session: &mut Session<'_>, owner: Incarnation) -> Result<BTreeSet<SubscriptionId>> {
    let slices = "WITH mine AS MATERIALIZED (SELECT s.chunk, s.id FROM tramline_slice s \
                  WHERE s.subscription IN (SELECT id FROM tramline_subscription) AND s.state IN (1, 7) \
                  AND s.lane = 0 AND s.owner = $2 ORDER BY s.chunk, s.id FOR UPDATE SKIP LOCKED) \
                  UPDATE tramline_slice s SET due_at = $1, pos = $1 FROM mine \
                  WHERE s.chunk = mine.chunk AND s.id = mine.id RETURNING s.subscription";
    let lanes = "WITH mine AS MATERIALIZED (SELECT l.subscription, l.lane FROM tramline_lane l \
                 WHERE l.owner = $2 ORDER BY l.subscription, l.lane FOR UPDATE SKIP LOCKED) \
                 UPDATE tramline_lane l SET until = $1 FROM mine \
                 WHERE l.subscription = mine.subscription AND l.lane = mine.lane RETURNING l.subscription";
    let mut woken = BTreeSet::new();
    for sql in [slices, lanes] {
        let query = session.query(sql).bind(session.now.0).bind(owner.0);
        for row in session.all(query).await? {
            woken.insert(SubscriptionId(row.try_get(0)?));
        }
    }
    let query = session.query("DELETE FROM tramline_worker WHERE incarnation = $1").bind(owner.0);
    session.run(query).await?;
    Ok(woken)
}

/// What a sweep has still to do, one step for each subscription, because it writes slices.
#[derive(Default)]
pub(super) struct Rest {
    /// At most once: claims have ended. See [`super::claim::interrupt`].
    pub(super) ended: Vec<SubscriptionId>,
    /// Dead events were kept for long enough. See [`super::mend::expire_dead`].
    pub(super) old_dead: Vec<SubscriptionId>,
}

/// All but what writes slices.
pub(super) async fn sweep(session: &mut Session<'_>, sweep: &Sweep) -> Result<(Swept, Rest)> {
    let mut swept = Swept::default();
    let mut wake = BTreeSet::new();
    if let Some(dead_after) = sweep.dead_after {
        // Locked, so that of many nodes that sweep at once only one reports a death.
        let sql = "SELECT incarnation FROM tramline_worker WHERE beat_at <= $1 ORDER BY incarnation FOR UPDATE SKIP LOCKED";
        let query = session.query(sql).bind(session.now.before(dead_after).0);
        for worker in session.all(query).await? {
            wake.extend(bury(session, Incarnation(worker.try_get(0)?)).await?);
            swept.workers += 1;
        }
    }
    let dispersed = limit::disperse_some(session, sweep.limit).await?;
    swept.more |= !dispersed.is_empty();
    wake.extend(dispersed);
    wake.extend(backfills(session).await?);
    swept.wake = wake.into_iter().collect();
    // First what was deleted: it may be all that keeps chunks past their retention.
    swept.more |= erase(session, sweep.limit).await?;
    swept.chunks = retire(session, sweep.limit).await?;
    swept.more |= swept.chunks >= u64::from(sweep.limit);
    expire_entries(session, sweep.limit).await?;
    let all = session.catalog.clone();
    let once = all.subscriptions().iter().filter(|one| one.policy.is_at_most_once());
    let ended = claim::ended(session, &once.map(|one| one.id).collect::<Vec<_>>()).await?;
    let old_dead = mend::with_old_dead(session).await?;
    Ok((swept, Rest { ended, old_dead }))
}

async fn backfills(session: &mut Session<'_>) -> Result<Vec<SubscriptionId>> {
    let sql =
        "SELECT DISTINCT subscription FROM tramline_subscription_topic WHERE backfill_next <= backfill_until";
    let query = session.query(sql);
    session.all(query).await?.iter().map(|row| Ok(SubscriptionId(row.try_get(0)?))).collect()
}

/// Removes chunks past their retention, oldest first. What a slice refers to, or a back-fill has still to read, stays.
///
/// Locked first and judged again by a second statement: a resend that was faster holds the chunk, and its slice is
/// visible only to a statement that begins after it.
async fn retire(session: &mut Session<'_>, limit: u32) -> Result<u64> {
    let choose = "SELECT c.chunk FROM tramline_chunk c WHERE c.topic = $1 AND c.emitted_at < $2 \
                  AND c.chunk < coalesce((SELECT min(st.backfill_next) FROM tramline_subscription_topic st \
                      WHERE st.topic = $1 AND st.backfill_next <= st.backfill_until), 9223372036854775807) \
                  AND NOT EXISTS (SELECT 1 FROM tramline_slice s WHERE s.chunk = c.chunk) \
                  ORDER BY c.topic, c.chunk LIMIT $3 FOR UPDATE OF c SKIP LOCKED";
    let catalog = session.catalog.clone();
    let mut topics: Vec<&Topic> = catalog.topics().iter().collect();
    topics.sort_by_key(|topic| topic.id);
    let mut removed = 0;
    for topic in topics {
        let left = i64::from(limit) - removed;
        let oldest = session.now.0.saturating_sub(millis(topic.retention));
        if left <= 0 || !is_due(session, topic.id, oldest).await? {
            continue;
        }
        let query = session.query(choose).bind(topic.id.0).bind(oldest).bind(left);
        let rows = session.all(query).await?;
        let chosen: Vec<i64> = rows.iter().map(|row| Ok(row.try_get(0)?)).collect::<Result<_>>()?;
        removed += remove_chunks(session, chosen).await?.0 as i64;
    }
    Ok(removed.cast_unsigned())
}

/// Removes those of the locked chunks that nothing refers to, and goes on counting their events. Gives how many chunks, and how
/// many events.
pub(super) async fn remove_chunks(session: &mut Session<'_>, chunks: Vec<i64>) -> Result<(u64, u64)> {
    if chunks.is_empty() {
        return Ok((0, 0));
    }
    let sql = "WITH gone AS (DELETE FROM tramline_chunk c WHERE c.chunk = ANY($1) \
               AND NOT EXISTS (SELECT 1 FROM tramline_slice s WHERE s.chunk = c.chunk) RETURNING c.topic, c.count) \
               SELECT g.topic, count(*), sum(g.count)::bigint FROM gone g GROUP BY g.topic";
    let query = session.query(sql).bind(chunks.clone());
    let (mut topics, mut counts, mut removed) = (Vec::new(), Vec::new(), 0);
    for row in session.all(query).await? {
        topics.push(row.try_get::<i64, _>(0)?);
        removed += row.try_get::<i64, _>(1)?;
        counts.push(row.try_get::<i64, _>(2)?);
    }
    failures::forget(session, chunks).await?;
    let events: i64 = counts.iter().sum();
    // In the order of their numbers: two nodes that remove at once wait for each other and never in a circle.
    let sql = "UPDATE tramline_topic t SET removed_events = t.removed_events + l.events FROM ( \
               SELECT u.topic, u.events FROM unnest($1::bigint[], $2::bigint[]) AS u(topic, events) \
               JOIN tramline_topic o ON o.id = u.topic ORDER BY u.topic FOR UPDATE OF o) l WHERE t.id = l.topic";
    let query = session.query(sql).bind(topics).bind(counts);
    session.run(query).await?;
    Ok((removed.cast_unsigned(), events.cast_unsigned()))
}

/// True if the oldest chunk of a topic is past its retention. Chunks ascend in time, so nothing else has to be read.
async fn is_due(session: &mut Session<'_>, topic: TopicId, oldest: i64) -> Result<bool> {
    let sql = "SELECT emitted_at FROM tramline_chunk WHERE topic = $1 ORDER BY topic, chunk LIMIT 1";
    let query = session.query(sql).bind(topic.0);
    match session.all(query).await?.first() {
        Some(row) => Ok(row.try_get::<i64, _>(0)? < oldest),
        None => Ok(false),
    }
}

async fn expire_entries(session: &mut Session<'_>, limit: u32) -> Result<()> {
    let sql = "DELETE FROM tramline_idempotency WHERE (topic, key) IN (SELECT i.topic, i.key FROM tramline_idempotency i \
               WHERE i.expires_at <= $1 ORDER BY i.expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)";
    let query = session.query(sql).bind(session.now.0).bind(i64::from(limit));
    session.run(query).await?;
    rules::expire(session).await?;
    remote::expire(session, limit).await?;
    drops::expire(session, limit).await?;
    unique::expire(session, limit).await?;
    let sql = "DELETE FROM tramline_audit WHERE id <= (SELECT max(id) FROM tramline_audit) - $1";
    let query = session.query(sql).bind(AUDIT_KEPT);
    session.run(query).await.map(|_| ())
}

/// Writes the next retained chunks into a subscription that came after them. The row of the back-fill is locked: two
/// nodes that do it at once take turns.
pub(super) async fn backfill(session: &mut Session<'_>, id: SubscriptionId) -> Result<bool> {
    let catalog = session.catalog.clone();
    let subscription = catalog.require_subscription(id)?;
    let sql = "SELECT topic, backfill_next, backfill_until FROM tramline_subscription_topic \
               WHERE subscription = $1 AND backfill_next <= backfill_until ORDER BY topic LIMIT 1 FOR UPDATE";
    let query = session.query(sql).bind(id.0);
    let Some(step) = query.fetch_optional(&mut *session.conn).await? else { return Ok(false) };
    let (topic, next, until): (i64, i64, i64) = (step.try_get(0)?, step.try_get(1)?, step.try_get(2)?);
    let sql = "SELECT chunk, topic, emitted_at, meta, NULL::bigint[], NULL::bigint[], body FROM tramline_chunk \
               WHERE topic = $1 AND chunk BETWEEN $2 AND $3 ORDER BY topic, chunk LIMIT $4";
    let query = session.query(sql).bind(topic).bind(next).bind(until).bind(BACKFILL_STEP);
    let rows = session.all(query).await?;
    let Some(of) = catalog.topic_by_id(TopicId(topic)) else { return Ok(false) };
    let (mut new, mut last) = (Vec::new(), next);
    for row in &rows {
        let row = chunk(row)?;
        last = row.chunk.0;
        new.extend(slices_of(&row, of, subscription)?);
    }
    insert(session, &new).await?;
    let reached = if (rows.len() as i64) < BACKFILL_STEP { until } else { last };
    let sql =
        "UPDATE tramline_subscription_topic SET backfill_next = $3 WHERE subscription = $1 AND topic = $2";
    let query = session.query(sql).bind(id.0).bind(topic).bind(reached + 1);
    session.run(query).await?;
    Ok(backfills(session).await?.contains(&id))
}
