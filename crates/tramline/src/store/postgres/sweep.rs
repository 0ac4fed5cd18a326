//! Housekeeping: signs of life, dead workers, claims that ended, back-fill, retention.

use super::PostgresStore;
use super::claim;
use super::drops;
use super::erase::erase;
use super::failures;
use super::limit;
use super::look::workers;
use super::low::lower;
use super::remote;
use super::rows::{chunk, insert};
use super::rules;
use super::session::{Begin, Session};
use super::step::{Tries, step};
use super::taken::{mark, set_back};
use super::unique;
use crate::error::{Kind, Result};
use crate::model::id::{ChunkId, Incarnation, SubscriptionId, TopicId};
use crate::model::time::Time;
use crate::store::backfill::slices_of;
use crate::store::mend;
use crate::store::retention::{Place, Seen, Walk};
use crate::store::verbs::{Beat, Buried, Bury, Sweep, Swept, Worker};
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::collections::BTreeSet;

/// How many chunks one step of a back-fill writes.
const BACKFILL_STEP: i64 = 64;
/// How many audit entries are kept.
const AUDIT_KEPT: i64 = 10_000;

impl PostgresStore {
    /// One step for all, and one for each subscription in which something has ended.
    pub(super) async fn sweep_all(&self, sweep: Sweep) -> Result<Swept> {
        let begin = Begin::reading(sweep.now);
        let (mut swept, rest) = step!(self, Tries::few(), |tx| self.session(tx, begin), |session| {
            self::sweep(session, &sweep, self.round.place())
        })?;
        self.round.go_on_at(rest.place);
        for id in rest.ended {
            let begin = Begin::writing(sweep.now, id);
            let interrupted =
                step!(self, Tries::few(), |tx| self.session(tx, begin), |session| claim::interrupt(
                    session, id
                ));
            match interrupted {
                Ok(more) => swept.more |= more,
                // Deleted meanwhile.
                Err(error) if error.kind() == Kind::NotFound => continue,
                Err(error) => return Err(error),
            }
            swept.wake.push(id);
        }
        for id in rest.old_dead {
            let begin = Begin::writing(sweep.now, id);
            let expired = step!(self, Tries::few(), |tx| self.session(tx, begin), |session| {
                mend::expire_dead(session, id, sweep.limit)
            });
            match expired {
                Ok(more) => swept.more |= more,
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        swept.wake.sort_unstable();
        swept.wake.dedup();
        Ok(swept)
    }
}

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

/// Ends what workers held that were silent for too long.
pub(super) async fn bury_silent(session: &mut Session<'_>, given: &Bury) -> Result<Buried> {
    // Locked, so that of many nodes that do this at once only one reports a death.
    let sql = "SELECT incarnation FROM tramline_worker WHERE beat_at <= $1 ORDER BY incarnation LIMIT $2 FOR UPDATE SKIP LOCKED";
    let oldest = session.now.before(given.dead_after);
    let query = session.query(sql).bind(oldest.0).bind(i64::from(given.limit));
    let dead = session.all(query).await?;
    let mut wake = BTreeSet::new();
    for worker in &dead {
        wake.extend(bury(session, Incarnation(worker.try_get(0)?)).await?);
    }
    let more = dead.len() == given.limit as usize;
    Ok(Buried { workers: dead.len() as u64, wake: wake.into_iter().collect(), more })
}

/// What a sweep has still to do, one step for each subscription, because it writes slices.
pub(super) struct Rest {
    /// Where the next one goes on with retention.
    pub(super) place: Place,
    /// At most once: claims have ended. See [`super::claim::interrupt`].
    pub(super) ended: Vec<SubscriptionId>,
    /// Dead events were kept for long enough. See [`crate::store::mend::expire_dead`].
    pub(super) old_dead: Vec<SubscriptionId>,
}

/// All but what writes slices.
pub(super) async fn sweep(session: &mut Session<'_>, sweep: &Sweep, place: Place) -> Result<(Swept, Rest)> {
    let mut swept = Swept::default();
    let mut wake = BTreeSet::new();
    if let Some(burial) = sweep.burial() {
        let buried = bury_silent(session, &burial).await?;
        (swept.workers, swept.more) = (buried.workers, buried.more);
        wake.extend(buried.wake);
    }
    let dispersed = limit::disperse_some(session, sweep.limit).await?;
    swept.more |= !dispersed.is_empty();
    wake.extend(dispersed);
    wake.extend(backfills(session).await?);
    swept.wake = wake.into_iter().collect();
    // First what was deleted: it may be all that keeps chunks past their retention.
    swept.more |= erase(session, sweep.limit).await?;
    let mut walk = Walk::new(session.catalog.topics(), place, sweep.limit);
    swept.chunks = retire(session, &mut walk).await?;
    swept.more |= walk.is_cut_short();
    expire_entries(session, sweep.limit).await?;
    let all = session.catalog.clone();
    let once = all.subscriptions().iter().filter(|one| one.policy.is_at_most_once());
    let ended = claim::ended(session, &once.map(|one| one.id).collect::<Vec<_>>()).await?;
    let old_dead = mend::with_old_dead(session).await?;
    Ok((swept, Rest { place: walk.place(), ended, old_dead }))
}

async fn backfills(session: &mut Session<'_>) -> Result<Vec<SubscriptionId>> {
    let sql =
        "SELECT DISTINCT subscription FROM tramline_subscription_topic WHERE backfill_next <= backfill_until";
    let query = session.query(sql);
    session.all(query).await?.iter().map(|row| Ok(SubscriptionId(row.try_get(0)?))).collect()
}

/// Removes chunks past their retention. What a slice refers to, or a back-fill has still to read, stays.
///
/// Locked first and judged again by a second statement: a resend that was faster holds the chunk, and its slice is
/// visible only to a statement that begins after it.
async fn retire(session: &mut Session<'_>, walk: &mut Walk) -> Result<u64> {
    let look = "SELECT c.chunk, c.emitted_at, c.emitted_at < $5 \
                AND NOT EXISTS (SELECT 1 FROM tramline_slice s WHERE s.chunk = c.chunk) \
                FROM (SELECT o.chunk, o.emitted_at FROM tramline_chunk o WHERE o.topic = $1 AND o.chunk >= $2 \
                AND o.chunk < coalesce((SELECT min(st.backfill_next) FROM tramline_subscription_topic st \
                WHERE st.topic = $1 AND st.backfill_next <= st.backfill_until), $3) \
                ORDER BY o.topic, o.chunk LIMIT $4) c ORDER BY c.chunk";
    let lock = "SELECT c.chunk FROM tramline_chunk c WHERE c.chunk = ANY($1) ORDER BY c.chunk FOR UPDATE SKIP LOCKED";
    let mut free: Vec<i64> = Vec::new();
    while let Some(stretch) = walk.stretch() {
        let query = session
            .query(look)
            .bind(stretch.topic.0)
            .bind(stretch.from.0)
            .bind(i64::MAX)
            .bind(i64::from(stretch.most))
            .bind(stretch.oldest(session.now).0);
        let rows = session.all(query).await?;
        let seen: Vec<Seen> = rows.iter().map(seen).collect::<Result<_>>()?;
        let looked = stretch.look(session.now, seen);
        free.extend(looked.free.iter().map(|chunk| chunk.0));
        walk.pass(&stretch, &looked);
    }
    if free.is_empty() {
        return Ok(0);
    }
    let query = session.query(lock).bind(free);
    let rows = session.all(query).await?;
    let locked: Vec<i64> = rows.iter().map(|row| Ok(row.try_get(0)?)).collect::<Result<_>>()?;
    Ok(remove_chunks(session, locked).await?.0)
}

fn seen(row: &PgRow) -> Result<Seen> {
    Ok(Seen { chunk: ChunkId(row.try_get(0)?), emitted_at: Time(row.try_get(1)?), free: row.try_get(2)? })
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
    // Before anything is written, so that nobody raises their beginnings above what comes now.
    let ready = || new.iter().filter(|slice| slice.is_ordered()).map(|slice| (slice.lane, slice.chunk));
    let lanes = set_back(session, id, ready()).await?;
    mark(session, id, lanes).await?;
    insert(session, &new).await?;
    lower(session, id, ready()).await?;
    let reached = if (rows.len() as i64) < BACKFILL_STEP { until } else { last };
    let sql =
        "UPDATE tramline_subscription_topic SET backfill_next = $3 WHERE subscription = $1 AND topic = $2";
    let query = session.query(sql).bind(id.0).bind(topic).bind(reached + 1);
    session.run(query).await?;
    Ok(backfills(session).await?.contains(&id))
}
