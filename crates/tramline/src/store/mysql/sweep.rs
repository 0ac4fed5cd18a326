//! Housekeeping: signs of life, dead workers, claims that ended, back-fill, retention.

use super::MysqlStore;
use super::claim;
use super::drops;
use super::erase::erase;
use super::failures;
use super::limit;
use super::look::workers;
use super::mend;
use super::remote;
use super::rows::{CHUNK, chunk, delete_chunks, insert, lock_chunks_sql};
use super::rules;
use super::session::{Begin, Session};
use super::sql::{Columns, LIST, list, overwrite, paired, text};
use super::step::{Tries, step};
use super::unique;
use crate::error::{Kind, Result};
use crate::model::id::{Incarnation, SubscriptionId, TopicId};
use crate::model::subscription::Topic;
use crate::model::time::millis;
use crate::store::backfill::slices_of;
use crate::store::verbs::{Beat, Sweep, Swept, Worker};
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
            self::sweep(session, sweep)
        })?;
        for id in rest.ended {
            let begin = Begin::writing(sweep.now, id);
            let interrupted =
                step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| claim::interrupt(
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
        "SELECT chunk, id, subscription FROM tramline_slice FORCE INDEX (tramline_slice_claim) \
         WHERE subscription IN ({ids}) AND state IN (1, 7) AND lane = 0 AND owner = {owner} FOR UPDATE SKIP LOCKED"
    );
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
        let sql = format!(
            "SELECT incarnation FROM tramline_worker WHERE beat_at <= {} ORDER BY incarnation FOR UPDATE SKIP LOCKED",
            session.now.before(dead_after).0
        );
        for worker in session.rows(sql).await? {
            wake.extend(bury(session, Incarnation(worker.int(0)?)).await?);
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
    session.rows(sql).await?.iter().map(|row| Ok(SubscriptionId(row.int(0)?))).collect()
}

/// Removes chunks past their retention, oldest first. What a slice refers to, or a back-fill has still to read, stays.
///
/// Found first, then locked, and judged again by a statement after that: a resend that was faster holds the chunk, and its slice is
/// visible only to a statement that begins after it.
async fn retire(session: &mut Session<'_>, limit: u32) -> Result<u64> {
    let catalog = session.catalog.clone();
    let mut topics: Vec<&Topic> = catalog.topics().iter().collect();
    topics.sort_by_key(|topic| topic.id);
    let mut removed = 0;
    for topic in topics {
        let left = u64::from(limit).saturating_sub(removed);
        let oldest = session.now.0.saturating_sub(millis(topic.retention));
        if left == 0 || !is_due(session, topic.id, oldest).await? {
            continue;
        }
        let find = format!(
            "SELECT c.chunk FROM tramline_chunk c FORCE INDEX (tramline_chunk_topic) WHERE c.topic = {0} \
             AND c.emitted_at < {oldest} AND c.chunk < COALESCE((SELECT MIN(st.backfill_next) \
             FROM tramline_subscription_topic st WHERE st.topic = {0} AND st.backfill_next <= st.backfill_until), {1}) \
             AND {UNUSED} ORDER BY c.topic, c.chunk LIMIT {left}",
            topic.id.0,
            i64::MAX
        );
        let found = numbers(&session.rows(find).await?)?;
        if found.is_empty() {
            continue;
        }
        let locked = numbers(&session.rows(lock_chunks_sql(found, "FOR UPDATE SKIP LOCKED")).await?)?;
        removed += remove_chunks(session, locked).await?.0;
    }
    Ok(removed)
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

/// True if the oldest chunk of a topic is past its retention. Chunks ascend in time, so nothing else has to be read.
async fn is_due(session: &mut Session<'_>, topic: TopicId, oldest: i64) -> Result<bool> {
    let sql = format!(
        "SELECT emitted_at FROM tramline_chunk FORCE INDEX (tramline_chunk_topic) WHERE topic = {} \
         ORDER BY topic, chunk LIMIT 1",
        topic.0
    );
    session.rows(sql).await?.first().map_or(Ok(false), |row| Ok(row.int(0)? < oldest))
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
