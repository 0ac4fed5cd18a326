//! Housekeeping: signs of life, dead workers, claims that ended, back-fill, retention.

use super::MysqlStore;
use super::drops;
use super::erase::erase;
use super::failures;
use super::lapsed;
use super::limit;
use super::look::workers;
use super::remote;
use super::rows::{CHUNK, chunk, delete_chunks, insert, lock_chunks_sql, pick_sql};
use super::rules;
use super::session::{Begin, Session};
use super::sql::{Columns, LIST, list, overwrite, paired, text};
use super::step::{Tries, step};
use super::unique;
use crate::error::{Kind, Result};
use crate::model::id::{ChunkId, Incarnation, SubscriptionId, TopicId};
use crate::model::time::Time;
use crate::store::backfill::slices_of;
use crate::store::mend;
use crate::store::retention::{Place, Seen, Walk};
use crate::store::verbs::{Beat, Buried, Bury, Sweep, Swept, Worker};
use std::collections::{BTreeMap, BTreeSet};

/// How many chunks one step of a back-fill writes.
const BACKFILL_STEP: usize = 64;
/// True of a chunk `c` that no slice refers to.
const UNUSED: &str = "NOT EXISTS (SELECT 1 FROM tramline_slice s WHERE s.chunk = c.chunk)";
/// How many audit entries are kept.
const AUDIT_KEPT: i64 = 10_000;

impl MysqlStore {
    /// All of it: first what writes no slices, then claims that ended, subscription by subscription, then the inbox.
    pub(super) async fn sweep_all(&self, sweep: &Sweep) -> Result<Swept> {
        let begin = Begin::reading(sweep.now);
        let (mut swept, rest) = step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| {
            self::sweep(session, sweep, self.round.place())
        })?;
        self.round.go_on_at(rest.place);
        for id in rest.ended {
            let begin = Begin::writing(sweep.now, id);
            let interrupted =
                step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| lapsed::interrupt(
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
            let expired = step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| {
                mend::expire_dead(session, id, sweep.limit)
            });
            match expired {
                Ok(more) => swept.more |= more,
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        swept.wake.extend(self.take_in().await?);
        swept.wake.sort_unstable();
        swept.wake.dedup();
        Ok(swept)
    }
}

pub(super) async fn beat(session: &mut Session<'_>, beat: &Beat) -> Result<Vec<Worker>> {
    // A restarted process goes on at once with what its former self held.
    let (incarnation, name) = (beat.incarnation, text(&beat.name));
    let sql = format!(
        "SELECT incarnation FROM tramline_worker WHERE name = {name} AND incarnation <> {}",
        incarnation.0
    );
    for former in session.rows(sql).await? {
        bury(session, Incarnation(former.int(0)?)).await?;
    }
    if beat.leaving {
        session.write(format!("DELETE FROM tramline_worker WHERE incarnation = {}", incarnation.0));
    } else {
        let ids: Vec<i64> = beat.subscriptions.iter().map(|id| id.0).collect();
        let ids = serde_json::to_string(&ids).unwrap_or_default(); // numbers always serialise
        session.write(format!(
            "INSERT INTO tramline_worker (incarnation, name, subscriptions, born_at, beat_at) \
             VALUES ({}, {name}, {}, {now}, {now}){}",
            incarnation.0,
            text(&ids),
            overwrite(&["subscriptions", "beat_at"]),
            now = session.now.0
        ));
    }
    workers(session).await
}

/// A worker is known to be dead: its leases end now. Gives the subscriptions that have work again. What a transaction has
/// locked is passed over, so that the living do not wait for the dead: those leases end by themselves.
///
/// Uses `tramline_slice_claim`, one range of leased slices per subscription: there is no index by owner, because every
/// claim would have to write it.
async fn bury(
    session: &mut Session<'_>,
    Incarnation(owner): Incarnation,
) -> Result<BTreeSet<SubscriptionId>> {
    let ids = list(session.catalog.subscriptions().iter().map(|subscription| subscription.id.0));
    let slices = format!(
        "SELECT c.chunk, c.id FROM tramline_slice c FORCE INDEX (tramline_slice_claim) \
         WHERE c.subscription IN ({ids}) AND c.state IN (1, 7) AND c.lane = 0 AND c.owner = {owner} LIMIT {most}",
        most = u32::MAX
    );
    let slices = pick_sql(&slices, &format!("s.state IN (1, 7) AND s.owner = {owner}"), u32::MAX);
    let lanes = format!(
        "SELECT subscription, lane, subscription FROM tramline_lane WHERE subscription IN ({ids}) AND owner = {owner} \
         FOR UPDATE SKIP LOCKED"
    );
    let now = session.now.0;
    let sets = session.sets(vec![slices, lanes]).await?;
    let mut woken = BTreeSet::new();
    let updates = [
        ("tramline_slice t ON t.chunk = n.a AND t.id = n.b", format!("t.due_at = {now}, t.pos = {now}")),
        ("tramline_lane t ON t.subscription = n.a AND t.lane = n.b", format!("t.until = {now}")),
    ];
    for (rows, (table, change)) in sets.iter().zip(updates) {
        let mut which = Vec::new();
        for row in rows {
            which.push((row.int(0)?, row.int(1)?));
            woken.insert(SubscriptionId(row.int(2)?));
        }
        for some in which.chunks(LIST) {
            let which = paired(some.iter().copied());
            session.write(format!("UPDATE {which} STRAIGHT_JOIN {table} SET {change}"));
        }
    }
    session.write(format!("DELETE FROM tramline_worker WHERE incarnation = {owner}"));
    Ok(woken)
}

/// Ends what workers held that were silent for too long.
pub(super) async fn bury_silent(session: &mut Session<'_>, given: &Bury) -> Result<Buried> {
    // Locked, so that of many nodes that do this at once only one reports a death.
    let sql = format!(
        "SELECT incarnation FROM tramline_worker WHERE beat_at <= {} ORDER BY incarnation LIMIT {} FOR UPDATE SKIP LOCKED",
        session.now.before(given.dead_after).0,
        given.limit
    );
    let dead = session.rows(sql).await?;
    let mut wake = BTreeSet::new();
    for worker in &dead {
        wake.extend(bury(session, Incarnation(worker.int(0)?)).await?);
    }
    let more = dead.len() == given.limit as usize;
    Ok(Buried { workers: dead.len() as u64, wake: wake.into_iter().collect(), more })
}

/// What a sweep has still to do, one step for each subscription, because it writes slices.
pub(super) struct Rest {
    /// Where the next one goes on with retention.
    pub(super) place: Place,
    /// At most once: claims have ended. See [`super::lapsed::interrupt`].
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
    let ended = lapsed::ended(session, &once.map(|one| one.id).collect::<Vec<_>>()).await?;
    let old_dead = mend::with_old_dead(session).await?;
    Ok((swept, Rest { place: walk.place(), ended, old_dead }))
}

async fn backfills(session: &mut Session<'_>) -> Result<Vec<SubscriptionId>> {
    let sql =
        "SELECT DISTINCT subscription FROM tramline_subscription_topic WHERE backfill_next <= backfill_until";
    session.rows(sql).await?.iter().map(|row| Ok(SubscriptionId(row.int(0)?))).collect()
}

/// Removes chunks past their retention. What a slice refers to, or a back-fill has still to read, stays.
///
/// Found first, then locked, and judged again by a statement after that: a resend that was faster holds the chunk, and its slice is
/// visible only to a statement that begins after it.
async fn retire(session: &mut Session<'_>, walk: &mut Walk) -> Result<u64> {
    let mut free: Vec<i64> = Vec::new();
    while let Some(stretch) = walk.stretch() {
        let look = format!(
            "SELECT c.chunk, c.emitted_at, c.emitted_at < {oldest} AND {UNUSED} FROM (SELECT o.chunk, o.emitted_at \
             FROM tramline_chunk o FORCE INDEX (tramline_chunk_topic) WHERE o.topic = {topic} AND o.chunk >= {from} \
             AND o.chunk < COALESCE((SELECT MIN(st.backfill_next) FROM tramline_subscription_topic st \
             WHERE st.topic = {topic} AND st.backfill_next <= st.backfill_until), {end}) \
             ORDER BY o.topic, o.chunk LIMIT {most}) c ORDER BY c.chunk",
            oldest = stretch.oldest(session.now).0,
            topic = stretch.topic.0,
            from = stretch.from.0,
            end = i64::MAX,
            most = stretch.most
        );
        let mut seen = Vec::new();
        for row in &session.rows(look).await? {
            let (chunk, emitted_at) = (ChunkId(row.int(0)?), Time(row.int(1)?));
            seen.push(Seen { chunk, emitted_at, free: row.int(2)? != 0 });
        }
        let looked = stretch.look(session.now, seen);
        free.extend(looked.free.iter().map(|chunk| chunk.0));
        walk.pass(&stretch, &looked);
    }
    if free.is_empty() {
        return Ok(0);
    }
    let locked = numbers(&session.rows(lock_chunks_sql(free, "FOR UPDATE SKIP LOCKED")).await?)?;
    Ok(remove_chunks(session, locked).await?.0)
}

/// Removes those of the locked chunks that nothing refers to, and goes on counting their events. Gives how many chunks, and how
/// many events.
pub(super) async fn remove_chunks(session: &mut Session<'_>, locked: Vec<i64>) -> Result<(u64, u64)> {
    if locked.is_empty() {
        return Ok((0, 0));
    }
    let judge = format!(
        "SELECT c.chunk, c.topic, c.count FROM tramline_chunk c WHERE c.chunk IN ({}) AND {UNUSED}",
        list(locked)
    );
    let mut by_topic: BTreeMap<i64, i64> = BTreeMap::new();
    let rows = session.rows(judge).await?;
    for row in &rows {
        *by_topic.entry(row.int(1)?).or_default() += row.int(2)?;
    }
    if rows.is_empty() {
        return Ok((0, 0));
    }
    let gone = numbers(&rows)?;
    failures::forget(session, &gone);
    delete_chunks(session, gone);
    // In the order of their numbers: two nodes that remove at once wait for each other and never in a circle.
    for (topic, events) in &by_topic {
        session.write(format!(
            "UPDATE tramline_topic SET removed_events = removed_events + {events} WHERE id = {topic}"
        ));
    }
    Ok((rows.len() as u64, by_topic.values().sum::<i64>().cast_unsigned()))
}

pub(super) fn numbers(rows: &super::Rows) -> Result<Vec<i64>> {
    rows.iter().map(|row| row.int(0)).collect()
}

async fn expire_entries(session: &mut Session<'_>, limit: u32) -> Result<()> {
    let now = session.now.0;
    session.write(format!(
        "DELETE FROM tramline_idempotency WHERE expires_at <= {now} AND receipt <> '' ORDER BY expires_at LIMIT {limit}"
    ));
    rules::expire(session);
    remote::expire(session, limit);
    session.write(format!(
        "DELETE FROM tramline_audit WHERE id <= (SELECT last FROM (SELECT MAX(id) AS last FROM tramline_audit) a) - {AUDIT_KEPT}"
    ));
    drops::expire(session, limit).await?;
    unique::expire(session, limit).await
}

/// Writes the next retained chunks into a subscription that came after them. The row of the back-fill is locked: two
/// nodes that do it at once take turns.
pub(super) async fn backfill(session: &mut Session<'_>, id: SubscriptionId) -> Result<bool> {
    let catalog = session.catalog.clone();
    let subscription = catalog.require_subscription(id)?;
    let sql = format!(
        "SELECT topic, backfill_next, backfill_until FROM tramline_subscription_topic \
         WHERE subscription = {} AND backfill_next <= backfill_until ORDER BY topic LIMIT 1 FOR UPDATE",
        id.0
    );
    let rows = session.rows(sql).await?;
    let Some(step) = rows.first() else { return Ok(false) };
    let (topic, next, until) = (step.int(0)?, step.int(1)?, step.int(2)?);
    let sql = format!(
        "SELECT {CHUNK} FROM tramline_chunk FORCE INDEX (tramline_chunk_topic) \
         WHERE topic = {topic} AND chunk BETWEEN {next} AND {until} ORDER BY topic, chunk LIMIT {BACKFILL_STEP}"
    );
    let rows = session.rows(sql).await?;
    let Some(of) = catalog.topic_by_id(TopicId(topic)) else { return Ok(false) };
    let (mut new, mut last) = (Vec::new(), next);
    for row in &rows {
        let row = chunk(row)?;
        last = row.chunk.0;
        new.extend(slices_of(&row, of, subscription)?);
    }
    insert(session, &new);
    let reached = if rows.len() < BACKFILL_STEP { until } else { last };
    session.write(format!(
        "UPDATE tramline_subscription_topic SET backfill_next = {} WHERE subscription = {} AND topic = {topic}",
        reached + 1,
        id.0
    ));
    Ok(backfills(session).await?.contains(&id))
}
