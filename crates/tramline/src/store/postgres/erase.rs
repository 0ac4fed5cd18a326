//! Removes the rows of what was deleted, in steps.

use super::failures;
use super::rows::{slices, write_lanes};
use super::session::{Ended, Query, Session};
use super::taken::as_taken;
use crate::error::Result;
use crate::model::id::{LaneId, SubscriptionId, TopicId};
use crate::model::slice::Slice;
use crate::model::subscription::Ordering;
use crate::model::tally::Ending;
use crate::plan::LaneView;
use crate::store::deleted::{Deleted, InTheWay, free_line, given_up, lanes_of, within_a_step};
use crate::store::rows::StepRows;
use sqlx::Row;
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
pub(super) async fn mark(session: &mut Session<'_>, deleted: Deleted) -> Result<()> {
    let [topic, subscription] = deleted.numbers();
    let sql =
        "INSERT INTO tramline_deleted (topic, subscription, next) VALUES ($1, $2, 0) ON CONFLICT DO NOTHING";
    let query = session.query(sql).bind(topic).bind(subscription);
    session.run(query).await.map(|_| ())
}

/// True while there are rows of it.
pub(super) async fn is_marked(session: &mut Session<'_>, deleted: Deleted) -> Result<bool> {
    let [topic, subscription] = deleted.numbers();
    let sql = "SELECT EXISTS (SELECT 1 FROM tramline_deleted WHERE topic = $1 AND subscription = $2)";
    let query = session.query(sql).bind(topic).bind(subscription);
    Ok(query.fetch_one(&mut *session.conn).await?.try_get(0)?)
}

/// True while there are rows of what subscriptions had of a topic that they left.
pub(super) async fn is_left(session: &mut Session<'_>, topic: TopicId) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM tramline_deleted WHERE topic = $1 AND subscription > 0)";
    let query = session.query(sql).bind(topic.0);
    Ok(query.fetch_one(&mut *session.conn).await?.try_get(0)?)
}

/// Removes up to `limit` rows of whatever was deleted. True if there may be more. What another node is busy with is left to it.
/// Topics go last: what a subscription had of a chunk may be items of a tally, and only the chunk knows which.
pub(super) async fn erase(session: &mut Session<'_>, limit: u32) -> Result<bool> {
    let sql = "SELECT d.topic, d.subscription, d.next FROM tramline_deleted d WHERE d.subscription > 0 \
               OR NOT EXISTS (SELECT 1 FROM tramline_deleted s WHERE s.subscription > 0) \
               ORDER BY d.topic, d.subscription LIMIT 1 FOR UPDATE OF d SKIP LOCKED";
    erase_each(session, |session| session.query(sql), Busy::PassOver, limit).await
}

/// Removes up to `limit` rows of what is in the way of a change. True if there may be more.
pub(super) async fn clear(session: &mut Session<'_>, way: &InTheWay, limit: u32) -> Result<bool> {
    let (id, sql) = match way {
        InTheWay::LeftBy(name) => (
            session.catalog.subscription_named(name).map(|subscription| subscription.id.0),
            "SELECT topic, subscription, next FROM tramline_deleted WHERE subscription = $1 AND topic > 0 \
             ORDER BY topic LIMIT 1 FOR UPDATE",
        ),
        InTheWay::LeftOf(name) => (
            session.catalog.topic(name).map(|topic| topic.id.0),
            "SELECT topic, subscription, next FROM tramline_deleted WHERE topic = $1 AND subscription > 0 \
             ORDER BY subscription LIMIT 1 FOR UPDATE",
        ),
    };
    let Some(id) = id else { return Ok(false) };
    erase_each(session, |session| session.query(sql).bind(id), Busy::WaitFor, limit).await
}

async fn erase_each(
    session: &mut Session<'_>,
    first: impl Fn(&Session<'_>) -> Query,
    busy: Busy,
    limit: u32,
) -> Result<bool> {
    let mut left = i64::from(limit);
    loop {
        let Some(row) = first(session).fetch_optional(&mut *session.conn).await? else { return Ok(false) };
        let (topic, subscription, next): (i64, i64, i64) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        left -= match Deleted::from_numbers(topic, subscription) {
            // What has ended in this step may be of this topic, so its chunks stay until the next one.
            Deleted::Topic(_) if session.has_ended() => return Ok(true),
            Deleted::Topic(topic) => erase_topic(session, topic, left).await?,
            Deleted::Subscription(id) => erase_subscription(session, id, left).await?,
            Deleted::Left(id, topic) => {
                let (gone, next) = erase_left(session, (id, topic), next, busy, left).await?;
                let sql = "UPDATE tramline_deleted SET next = $3 WHERE topic = $1 AND subscription = $2";
                let query = session.query(sql).bind(topic.0).bind(id.0).bind(next);
                session.run(query).await?;
                gone
            }
        };
        if left <= 0 {
            return Ok(true);
        }
        let sql = "DELETE FROM tramline_deleted WHERE topic = $1 AND subscription = $2";
        let query = session.query(sql).bind(topic).bind(subscription);
        session.run(query).await?;
    }
}

/// Gives how many rows went: fewer than `limit` only if there are no more.
async fn erase_topic(session: &mut Session<'_>, topic: TopicId, limit: i64) -> Result<i64> {
    let mut gone = erase_chunks(session, topic, limit).await?;
    for sql in [
        "DELETE FROM tramline_head h USING (SELECT d.topic, d.key FROM tramline_head d WHERE d.topic = $1 LIMIT $2) d \
         WHERE h.topic = d.topic AND h.key = d.key",
        "DELETE FROM tramline_idempotency i USING \
         (SELECT d.topic, d.key FROM tramline_idempotency d WHERE d.topic = $1 LIMIT $2) d \
         WHERE i.topic = d.topic AND i.key = d.key",
        "DELETE FROM tramline_unique u USING (SELECT d.topic, d.key FROM tramline_unique d WHERE d.topic = $1 LIMIT $2) d \
         WHERE u.topic = d.topic AND u.key = d.key",
    ] {
        let query = session.query(sql).bind(topic.0).bind(limit - gone);
        gone += session.run(query).await? as i64;
    }
    Ok(gone)
}

async fn erase_chunks(session: &mut Session<'_>, topic: TopicId, limit: i64) -> Result<i64> {
    let sql =
        "SELECT chunk, bytes::bigint FROM tramline_chunk WHERE topic = $1 ORDER BY topic, chunk LIMIT $2";
    let query = session.query(sql).bind(topic.0).bind(limit);
    let rows = session.all(query).await?;
    let weights: Vec<i64> = rows.iter().map(|row| Ok(row.try_get(1)?)).collect::<Result<_>>()?;
    let count = within_a_step(weights.into_iter());
    let chunks: Vec<i64> = rows[..count].iter().map(|row| Ok(row.try_get(0)?)).collect::<Result<_>>()?;
    let query = session.query("DELETE FROM tramline_chunk WHERE chunk = ANY($1)").bind(chunks.clone());
    session.run(query).await?;
    failures::forget(session, chunks).await?;
    // What was too heavy for this step is for the next one.
    Ok(if count < rows.len() { limit } else { count as i64 })
}

async fn erase_subscription(session: &mut Session<'_>, id: SubscriptionId, limit: i64) -> Result<i64> {
    let sql = "SELECT {slice} FROM tramline_slice s WHERE s.subscription = $1 LIMIT $2";
    let query = session.query(sql).bind(id.0).bind(limit);
    let found = slices(&session.all(query).await?)?;
    let gone = erase_slices(session, &found).await?;
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
    let sql =
        "SELECT chunk FROM tramline_chunk WHERE topic = $1 AND chunk >= $2 ORDER BY topic, chunk LIMIT $3";
    let query = session.query(sql).bind(topic.0).bind(next).bind(limit);
    let rows = session.all(query).await?;
    let chunks: Vec<i64> = rows.iter().map(|row| Ok(row.try_get(0)?)).collect::<Result<_>>()?;
    let sql = match busy {
        Busy::PassOver => {
            "SELECT {slice} FROM tramline_slice s WHERE s.chunk = ANY($1) AND s.subscription + 0 = $2 \
             ORDER BY s.chunk, s.id FOR UPDATE SKIP LOCKED"
        }
        Busy::WaitFor => {
            "SELECT {slice} FROM tramline_slice s WHERE s.chunk = ANY($1) AND s.subscription + 0 = $2 \
             ORDER BY s.chunk, s.id FOR UPDATE"
        }
    };
    let mut line = lock_line(session, id).await?;
    let query = session.query(sql).bind(chunks.clone()).bind(id.0);
    let found = slices(&session.all(query).await?)?;
    erase_slices(session, &found).await?;
    if let Some(view) = &mut line {
        let found: Vec<Slice> = found.into_iter().map(|slice| as_taken(slice, &session.starts)).collect();
        free_line(view, &found);
        write_lanes(session, &[&view.lane]).await?;
    }
    let sql = "SELECT min(s.chunk) FROM tramline_slice s WHERE s.chunk = ANY($1) AND s.subscription + 0 = $2";
    let query = session.query(sql).bind(chunks.clone()).bind(id.0);
    if let Some(locked) = query.fetch_one(&mut *session.conn).await?.try_get(0)? {
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
async fn erase_slices(session: &mut Session<'_>, slices: &[Slice]) -> Result<i64> {
    session.end(given_up(slices).map(|(subscription, chunk, mask)| Ended {
        subscription,
        chunk,
        mask,
        ending: Ending::Failed,
    }));
    let sql = "DELETE FROM tramline_slice s USING unnest($1::bigint[], $2::bigint[]) AS u(chunk, id) \
               WHERE s.chunk = u.chunk AND s.id = u.id";
    let query = session
        .query(sql)
        .bind(slices.iter().map(|slice| slice.chunk.0).collect::<Vec<i64>>())
        .bind(slices.iter().map(|slice| slice.id.0).collect::<Vec<i64>>());
    session.run(query).await?;
    Ok(slices.len() as i64)
}

/// Parked keys and gaps in a range of lanes.
async fn erase_marks(
    session: &mut Session<'_>,
    id: SubscriptionId,
    lanes: [i64; 2],
    limit: i64,
) -> Result<i64> {
    let mut gone = 0;
    for sql in [
        "DELETE FROM tramline_parked p USING (SELECT d.lane, d.key FROM tramline_parked d \
         WHERE d.subscription = $1 AND d.lane >= $2 AND d.lane < $3 LIMIT $4) d \
         WHERE p.subscription = $1 AND p.lane = d.lane AND p.key = d.key",
        "DELETE FROM tramline_gap g USING (SELECT d.lane, d.key, d.id FROM tramline_gap d \
         WHERE d.subscription = $1 AND d.lane >= $2 AND d.lane < $3 LIMIT $4) d \
         WHERE g.subscription = $1 AND g.lane = d.lane AND g.key = d.key AND g.id = d.id",
    ] {
        let query = session.query(sql).bind(id.0).bind(lanes[0]).bind(lanes[1]).bind(limit - gone);
        gone += session.run(query).await? as i64;
    }
    Ok(gone)
}
