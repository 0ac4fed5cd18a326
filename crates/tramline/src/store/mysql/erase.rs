//! Removes the rows of what was deleted, in steps.

use super::failures;
use super::rows::{SLICE, delete, delete_chunks, slices, slices_sql, write_lanes};
use super::session::{Ended, Session};
use super::sql::{Columns, list};
use crate::error::Result;
use crate::model::id::{LaneId, SubscriptionId, TopicId};
use crate::model::slice::Slice;
use crate::model::subscription::Ordering;
use crate::model::tally::Ending;
use crate::plan::LaneView;
use crate::store::deleted::{Deleted, InTheWay, free_line, given_up, lanes_of, within_a_step};
use crate::store::rows::StepRows;
use std::collections::BTreeSet;

/// All lanes there can be.
const ALL_LANES: [i64; 2] = [0, i64::MAX];

/// What a step does about rows that a transaction has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    /// The next step looks at them again.
    PassOver,
    /// Somebody waits for the last row.
    WaitFor,
}

/// Says that something is deleted. Its rows stay until a step removes them.
pub(super) fn mark(session: &mut Session<'_>, deleted: Deleted) {
    let [topic, subscription] = deleted.numbers();
    session.write(format!(
        "INSERT IGNORE INTO tramline_deleted (topic, subscription, next) VALUES ({topic}, {subscription}, 0)"
    ));
}

/// True while there are rows of it.
pub(super) async fn is_marked(session: &mut Session<'_>, deleted: Deleted) -> Result<bool> {
    let [topic, subscription] = deleted.numbers();
    let sql =
        format!("SELECT 1 FROM tramline_deleted WHERE topic = {topic} AND subscription = {subscription}");
    Ok(!session.rows(sql).await?.is_empty())
}

/// True while there are rows of what subscriptions had of a topic that they left.
pub(super) async fn is_left(session: &mut Session<'_>, topic: TopicId) -> Result<bool> {
    let sql =
        format!("SELECT 1 FROM tramline_deleted WHERE topic = {} AND subscription > 0 LIMIT 1", topic.0);
    Ok(!session.rows(sql).await?.is_empty())
}

/// Removes up to `limit` rows of whatever was deleted. True if there may be more. What another node is busy with is left to it.
/// Topics go last: what a subscription had of a chunk may be items of a tally, and only the chunk knows which.
pub(super) async fn erase(session: &mut Session<'_>, limit: u32) -> Result<bool> {
    let sql = "SELECT topic, subscription, next FROM tramline_deleted WHERE subscription > 0 \
               ORDER BY topic, subscription LIMIT 1 FOR UPDATE SKIP LOCKED";
    if erase_each(session, sql, Busy::PassOver, limit).await? {
        return Ok(true);
    }
    let left = "SELECT 1 FROM tramline_deleted WHERE subscription > 0 LIMIT 1";
    if !session.rows(left).await?.is_empty() {
        return Ok(false);
    }
    let sql = "SELECT topic, subscription, next FROM tramline_deleted WHERE subscription = 0 \
               ORDER BY topic, subscription LIMIT 1 FOR UPDATE SKIP LOCKED";
    erase_each(session, sql, Busy::PassOver, limit).await
}

/// Removes up to `limit` rows of what is in the way of a change. True if there may be more.
pub(super) async fn clear(session: &mut Session<'_>, way: &InTheWay, limit: u32) -> Result<bool> {
    let which = match way {
        InTheWay::LeftBy(name) => session
            .catalog
            .subscription_named(name)
            .map(|subscription| format!("subscription = {} AND topic > 0 ORDER BY topic", subscription.id.0)),
        InTheWay::LeftOf(name) => session
            .catalog
            .topic(name)
            .map(|topic| format!("topic = {} AND subscription > 0 ORDER BY subscription", topic.id.0)),
    };
    let Some(which) = which else { return Ok(false) };
    // Looked at first: who locks what does not exist locks its neighbours.
    let rows = session.rows(format!("SELECT 1 FROM tramline_deleted WHERE {which} LIMIT 1")).await?;
    if rows.is_empty() {
        return Ok(false);
    }
    let sql =
        format!("SELECT topic, subscription, next FROM tramline_deleted WHERE {which} LIMIT 1 FOR UPDATE");
    erase_each(session, &sql, Busy::WaitFor, limit).await
}

async fn erase_each(session: &mut Session<'_>, first: &str, busy: Busy, limit: u32) -> Result<bool> {
    let mut left = i64::from(limit);
    loop {
        let rows = session.rows(first).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        let (topic, subscription, next) = (row.int(0)?, row.int(1)?, row.int(2)?);
        left -= match Deleted::from_numbers(topic, subscription) {
            // What has ended in this step may be of this topic, so its chunks stay until the next one.
            Deleted::Topic(_) if session.has_ended() => return Ok(true),
            Deleted::Topic(topic) => erase_topic(session, topic, left).await?,
            Deleted::Subscription(id) => erase_subscription(session, id, left).await?,
            Deleted::Left(id, topic) => {
                let (gone, next) = erase_left(session, (id, topic), next, busy, left).await?;
                session.write(format!(
                    "UPDATE tramline_deleted SET next = {next} WHERE topic = {} AND subscription = {}",
                    topic.0, id.0
                ));
                gone
            }
        };
        if left <= 0 {
            return Ok(true);
        }
        session.write(format!(
            "DELETE FROM tramline_deleted WHERE topic = {topic} AND subscription = {subscription}"
        ));
    }
}

/// Gives how many rows went: fewer than `limit` only if there are no more.
async fn erase_topic(session: &mut Session<'_>, topic: TopicId, limit: i64) -> Result<i64> {
    let mut gone = erase_chunks(session, topic, limit).await?;
    for table in ["tramline_head", "tramline_idempotency", "tramline_unique"] {
        let left = (limit - gone).max(0);
        gone += session.count(format!("DELETE FROM {table} WHERE topic = {} LIMIT {left}", topic.0)).await?
            as i64;
    }
    Ok(gone)
}

async fn erase_chunks(session: &mut Session<'_>, topic: TopicId, limit: i64) -> Result<i64> {
    let sql = format!(
        "SELECT chunk, bytes FROM tramline_chunk FORCE INDEX (tramline_chunk_topic) WHERE topic = {} \
         ORDER BY topic, chunk LIMIT {limit}",
        topic.0
    );
    let rows = session.rows(sql).await?;
    let weights: Vec<i64> = rows.iter().map(|row| row.int(1)).collect::<Result<_>>()?;
    let count = within_a_step(weights.into_iter());
    let chunks: Vec<i64> = rows[..count].iter().map(|row| row.int(0)).collect::<Result<_>>()?;
    failures::forget(session, &chunks);
    delete_chunks(session, chunks);
    // What was too heavy for this step is for the next one.
    Ok(if count < rows.len() { limit } else { count as i64 })
}

async fn erase_subscription(session: &mut Session<'_>, id: SubscriptionId, limit: i64) -> Result<i64> {
    let sql = format!(
        "SELECT {SLICE} FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE s.subscription = {} LIMIT {limit}",
        id.0
    );
    let found = slices(&session.rows(sql).await?)?;
    let gone = erase_slices(session, &found);
    Ok(gone + erase_marks(session, id, ALL_LANES, limit - gone).await?)
}

/// Hops over the chunks of the topic: the subscription may have any number of slices in others. Also gives the chunk with which the
/// next step goes on.
async fn erase_left(
    session: &mut Session<'_>,
    (id, topic): (SubscriptionId, TopicId),
    next: i64,
    busy: Busy,
    limit: i64,
) -> Result<(i64, i64)> {
    let sql = format!(
        "SELECT chunk FROM tramline_chunk FORCE INDEX (tramline_chunk_topic) WHERE topic = {} AND chunk >= {next} \
         ORDER BY topic, chunk LIMIT {limit}",
        topic.0
    );
    let rows = session.rows(sql).await?;
    let chunks: Vec<i64> = rows.iter().map(|row| row.int(0)).collect::<Result<_>>()?;
    let lock = match busy {
        Busy::PassOver => "FOR UPDATE SKIP LOCKED",
        Busy::WaitFor => "FOR UPDATE",
    };
    let sql = slices_sql(&format!("s.subscription = {}", id.0), chunks.iter().copied(), lock);
    let mut line = lock_line(session, id).await?;
    let found = slices(&session.rows(sql).await?)?;
    erase_slices(session, &found);
    if let Some(view) = &mut line {
        free_line(view, &found);
        write_lanes(session, &[&view.lane]);
    }
    let sql = format!(
        "SELECT MIN(s.chunk) FROM tramline_slice s FORCE INDEX (PRIMARY) WHERE s.chunk IN ({}) AND s.subscription = {}",
        list(chunks.iter().copied()),
        id.0
    );
    if let Some(locked) = session.rows(sql).await?.first().map_or(Ok(None), |row| row.maybe_int(0))? {
        return Ok((limit, locked));
    }
    let looked = chunks.len() as i64;
    let gone = looked + erase_marks(session, id, lanes_of(topic), limit - looked).await?;
    Ok((gone, chunks.last().map_or(next, |last| last + 1)))
}

/// A line of all events outlives its topics and counts what is taken of it, so it is locked before its slices.
async fn lock_line(session: &mut Session<'_>, id: SubscriptionId) -> Result<Option<LaneView>> {
    let catalog = session.catalog.clone();
    match catalog.require_subscription(id) {
        Ok(subscription) if subscription.policy.ordering == Ordering::Subscriber => {
            Ok(session.lock_lanes(id, &BTreeSet::from([LaneId::WHOLE])).await?.remove(&LaneId::WHOLE))
        }
        _ => Ok(None),
    }
}

/// What will never be done fails, where it is an item of a tally.
fn erase_slices(session: &mut Session<'_>, slices: &[Slice]) -> i64 {
    session.end(given_up(slices).map(|(subscription, chunk, mask)| Ended {
        subscription,
        chunk,
        mask,
        ending: Ending::Failed,
    }));
    delete(session, &slices.iter().map(|slice| (slice.chunk, slice.id)).collect::<Vec<_>>());
    slices.len() as i64
}

/// Parked keys and gaps in a range of lanes.
async fn erase_marks(
    session: &mut Session<'_>,
    id: SubscriptionId,
    [first, end]: [i64; 2],
    limit: i64,
) -> Result<i64> {
    let mut gone = 0;
    for table in ["tramline_parked", "tramline_gap"] {
        let sql = format!(
            "DELETE FROM {table} WHERE subscription = {} AND lane >= {first} AND lane < {end} LIMIT {}",
            id.0,
            (limit - gone).max(0)
        );
        gone += session.count(sql).await? as i64;
    }
    Ok(gone)
}
