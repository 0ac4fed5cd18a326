//! Housekeeping: signs of life, dead workers, claims that ended, back-fill, retention.

use super::claim;
use super::drops;
use super::erase::erase;
use super::failures;
use super::limit;
use super::look::workers;
use super::mend;
use super::remote;
use super::rows::{insert, one_chunk};
use super::rules;
use super::session::Session;
use super::unique;
use crate::error::Result;
use crate::model::id::{ChunkId, Incarnation, SubscriptionId, TopicId};
use crate::model::time::Time;
use crate::store::backfill::slices_of;
use crate::store::retention::{Place, Seen, Walk};
use crate::store::verbs::{Beat, Buried, Bury, Sweep, Swept, Worker};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::{BTreeMap, BTreeSet};

/// How many chunks one step of a back-fill writes.
const BACKFILL_STEP: i64 = 64;
/// How many audit entries are kept.
const AUDIT_KEPT: i64 = 10_000;

pub(super) fn beat(session: &Session<'_>, beat: &Beat) -> Result<Vec<Worker>> {
    let conn = session.conn;
    let known = workers(conn)?;
    // A restarted process goes on at once with what its former self held.
    for former in known.iter().filter(|w| w.name == beat.name && w.incarnation != beat.incarnation) {
        bury(session, former.incarnation)?;
    }
    if beat.leaving {
        conn.prepare_cached("DELETE FROM tramline_worker WHERE incarnation = ?")?
            .execute([beat.incarnation.0])?;
    } else {
        let sql = "INSERT INTO tramline_worker (incarnation, name, subscriptions, born_at, beat_at) \
                   VALUES (?1, ?2, ?3, ?4, ?4) ON CONFLICT DO UPDATE SET subscriptions = excluded.subscriptions, \
                   beat_at = excluded.beat_at";
        let subscriptions = serde_json::to_string(&beat.subscriptions).unwrap_or_default(); // numbers always serialise
        let values = params![beat.incarnation.0, beat.name, subscriptions, session.now.0];
        conn.prepare_cached(sql)?.execute(values)?;
    }
    workers(conn)
}

/// A worker is known to be dead: its leases end now. Gives the subscriptions that have work again.
fn bury(session: &Session<'_>, owner: Incarnation) -> Result<BTreeSet<SubscriptionId>> {
    let (conn, now) = (session.conn, session.now.0);
    let mut woken = BTreeSet::new();
    for subscription in session.catalog.subscriptions() {
        let id = subscription.id.0;
        let slices = "UPDATE tramline_slice SET due_at = ?1, pos = ?1 \
                      WHERE subscription = ?2 AND state IN (1, 7) AND lane = 0 AND owner = ?3";
        let lanes = "UPDATE tramline_lane SET until = ?1 WHERE subscription = ?2 AND owner = ?3";
        let mut changed = 0;
        for sql in [slices, lanes] {
            changed += conn.prepare_cached(sql)?.execute([now, id, owner.0])?;
        }
        if changed > 0 {
            woken.insert(subscription.id);
        }
    }
    conn.prepare_cached("DELETE FROM tramline_worker WHERE incarnation = ?")?.execute([owner.0])?;
    Ok(woken)
}

/// Ends what workers held that were silent for too long.
pub(super) fn bury_silent(session: &Session<'_>, given: &Bury) -> Result<Buried> {
    let sql = "SELECT incarnation FROM tramline_worker WHERE beat_at <= ? ORDER BY incarnation LIMIT ?";
    let mut statement = session.conn.prepare_cached(sql)?;
    let values = params![session.now.before(given.dead_after).0, given.limit];
    let dead: Vec<i64> = statement.query_map(values, |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let mut wake = BTreeSet::new();
    for owner in &dead {
        wake.extend(bury(session, Incarnation(*owner))?);
    }
    let more = dead.len() == given.limit as usize;
    Ok(Buried { workers: dead.len() as u64, wake: wake.into_iter().collect(), more })
}

/// Retention begins at a place, and gives the one at which the next sweep goes on.
pub(super) fn sweep(session: &Session<'_>, sweep: &Sweep, place: Place) -> Result<(Swept, Place)> {
    let mut swept = Swept::default();
    let mut wake = BTreeSet::new();
    if let Some(burial) = sweep.burial() {
        let buried = bury_silent(session, &burial)?;
        (swept.workers, swept.more) = (buried.workers, buried.more);
        wake.extend(buried.wake);
    }
    for subscription in session.catalog.subscriptions().iter().filter(|one| one.policy.is_at_most_once()) {
        let interrupted = claim::interrupt(session, subscription)?;
        swept.more |= interrupted.more;
        if interrupted.some {
            wake.insert(subscription.id);
        }
    }
    for subscription in session.catalog.subscriptions() {
        swept.more |= mend::expire_dead(session, subscription, sweep.limit)?;
    }
    let dispersed = limit::disperse_some(session, sweep.limit)?;
    swept.more |= !dispersed.is_empty();
    wake.extend(dispersed);
    wake.extend(backfills(session.conn)?);
    swept.wake = wake.into_iter().collect();
    // First what was deleted: it may be all that keeps chunks past their retention.
    swept.more |= erase(session, sweep.limit)?;
    let mut walk = Walk::new(session.catalog.topics(), place, sweep.limit);
    swept.chunks = retire(session, &mut walk)?;
    swept.more |= walk.is_cut_short();
    expire_entries(session, sweep.limit)?;
    Ok((swept, walk.place()))
}

fn backfills(conn: &Connection) -> Result<Vec<SubscriptionId>> {
    let sql =
        "SELECT DISTINCT subscription FROM tramline_subscription_topic WHERE backfill_next <= backfill_until";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| row.get(0).map(SubscriptionId))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Removes chunks past their retention. What a slice refers to, or a back-fill has still to read, stays.
fn retire(session: &Session<'_>, walk: &mut Walk) -> Result<u64> {
    let sql = "SELECT chunk, emitted_at, NOT EXISTS (SELECT 1 FROM tramline_slice AS s WHERE s.chunk = c.chunk) \
               FROM tramline_chunk AS c WHERE topic = ? AND chunk >= ? AND chunk < ? ORDER BY topic, chunk LIMIT ?";
    let mut removed = 0;
    while let Some(stretch) = walk.stretch() {
        let until = backfill_floor(session.conn, stretch.topic)?;
        let mut statement = session.conn.prepare_cached(sql)?;
        let values = [stretch.topic.0, stretch.from.0, until, i64::from(stretch.most)];
        let rows = statement.query_map(values, |row| {
            Ok(Seen { chunk: ChunkId(row.get(0)?), emitted_at: Time(row.get(1)?), free: row.get(2)? })
        })?;
        // Read one by one: what is behind the first young one costs nothing.
        let mut failed = None;
        let seen = rows.map_while(|row| row.map_err(|error| failed = Some(error)).ok());
        let looked = stretch.look(session.now, seen);
        if let Some(error) = failed {
            return Err(error.into());
        }
        let chunks: Vec<i64> = looked.free.iter().map(|chunk| chunk.0).collect();
        removed += remove_chunks(session.conn, &chunks)?.0;
        walk.pass(&stretch, &looked);
    }
    Ok(removed)
}

/// Removes chunks that nothing refers to, and goes on counting their events. Gives how many chunks, and how many events.
pub(super) fn remove_chunks(conn: &Connection, chunks: &[i64]) -> Result<(u64, u64)> {
    let mut delete =
        conn.prepare_cached("DELETE FROM tramline_chunk WHERE chunk = ? RETURNING topic, count")?;
    let mut events: BTreeMap<i64, i64> = BTreeMap::new();
    for chunk in chunks {
        let (topic, count): (i64, i64) = delete.query_row([chunk], |row| Ok((row.get(0)?, row.get(1)?)))?;
        *events.entry(topic).or_default() += count;
    }
    failures::forget(conn, chunks)?;
    let sql = "UPDATE tramline_topic SET removed_events = removed_events + ? WHERE id = ?";
    for (topic, count) in &events {
        conn.prepare_cached(sql)?.execute([count, topic])?;
    }
    Ok((chunks.len() as u64, events.into_values().sum::<i64>().cast_unsigned()))
}

pub(super) fn backfill_floor(conn: &Connection, topic: TopicId) -> Result<i64> {
    let sql = "SELECT coalesce(min(backfill_next), 9223372036854775807) FROM tramline_subscription_topic \
               WHERE topic = ? AND backfill_next <= backfill_until";
    Ok(conn.prepare_cached(sql)?.query_row([topic.0], |row| row.get(0))?)
}

fn expire_entries(session: &Session<'_>, limit: u32) -> Result<()> {
    let (conn, now, limit) = (session.conn, session.now.0, i64::from(limit));
    let sql = "DELETE FROM tramline_idempotency WHERE (topic, key) IN (SELECT topic, key FROM tramline_idempotency \
               WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)";
    conn.prepare_cached(sql)?.execute([now, limit])?;
    rules::expire(conn, session.now)?;
    remote::expire(conn, session.now, limit)?;
    drops::expire(session, limit)?;
    unique::expire(session, limit)?;
    let sql = "DELETE FROM tramline_audit WHERE id <= (SELECT max(id) FROM tramline_audit) - ?";
    conn.prepare_cached(sql)?.execute([AUDIT_KEPT])?;
    Ok(())
}

/// Writes the next retained chunks into a subscription that came after them.
pub(super) fn backfill(session: &Session<'_>, id: SubscriptionId) -> Result<bool> {
    let subscription = session.catalog.require_subscription(id)?;
    let sql = "SELECT topic, backfill_next, backfill_until FROM tramline_subscription_topic \
               WHERE subscription = ? AND backfill_next <= backfill_until ORDER BY topic LIMIT 1";
    let step = session
        .conn
        .prepare_cached(sql)?
        .query_row([id.0], |row| Ok((TopicId(row.get(0)?), row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)));
    let Some((topic, next, until)) = step.optional()? else { return Ok(false) };
    let sql =
        "SELECT chunk FROM tramline_chunk WHERE topic = ? AND chunk BETWEEN ? AND ? ORDER BY chunk LIMIT ?";
    let mut statement = session.conn.prepare_cached(sql)?;
    let rows = statement.query_map([topic.0, next, until, BACKFILL_STEP], |row| row.get(0).map(ChunkId))?;
    let chunks: Vec<ChunkId> = rows.collect::<rusqlite::Result<_>>()?;
    let Some(of) = session.catalog.topic_by_id(topic) else { return Ok(false) };
    for chunk in &chunks {
        if let Some(row) = one_chunk(session.conn, *chunk)? {
            insert(session.conn, &slices_of(&row, of, subscription)?)?;
        }
    }
    let done = (chunks.len() as i64) < BACKFILL_STEP;
    let reached = if done { until } else { chunks.last().map_or(until, |chunk| chunk.0) };
    let sql = "UPDATE tramline_subscription_topic SET backfill_next = ? WHERE subscription = ? AND topic = ?";
    session.conn.prepare_cached(sql)?.execute([reached + 1, id.0, topic.0])?;
    Ok(backfills(session.conn)?.contains(&id))
}
