//! Removes the rows of what was deleted, in steps.

use super::failures;
use super::rows::{one_lane, slices, write_lane};
use super::session::{Ended, Session};
use crate::error::Result;
use crate::model::id::{LaneId, SubscriptionId, TopicId};
use crate::model::slice::Slice;
use crate::model::tally::Ending;
use crate::plan::LaneView;
use crate::store::deleted::{Deleted, InTheWay, free_line, given_up, lanes_of, within_a_step};
use rusqlite::{Connection, OptionalExtension, params};

/// All lanes there can be.
const ALL_LANES: [i64; 2] = [0, i64::MAX];

/// Says that something is deleted. Its rows stay until a step removes them.
pub(super) fn mark(conn: &Connection, deleted: Deleted) -> Result<()> {
    let [topic, subscription] = deleted.numbers();
    let sql =
        "INSERT INTO tramline_deleted (topic, subscription, next) VALUES (?, ?, 0) ON CONFLICT DO NOTHING";
    conn.prepare_cached(sql)?.execute([topic, subscription])?;
    Ok(())
}

/// True while there are rows of it.
pub(super) fn is_marked(conn: &Connection, deleted: Deleted) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM tramline_deleted WHERE topic = ? AND subscription = ?)";
    Ok(conn.prepare_cached(sql)?.query_row(deleted.numbers(), |row| row.get(0))?)
}

/// True while there are rows of what subscriptions had of a topic that they left.
pub(super) fn is_left(conn: &Connection, topic: TopicId) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM tramline_deleted WHERE topic = ? AND subscription > 0)";
    Ok(conn.prepare_cached(sql)?.query_row([topic.0], |row| row.get(0))?)
}

/// Removes up to `limit` rows of whatever was deleted. True if there may be more.
pub(super) fn erase(session: &Session<'_>, limit: u32) -> Result<bool> {
    erase_where(session, "?1 = ?2", [0, 0], limit)
}

/// Removes up to `limit` rows of what is in the way of a change. True if there may be more.
pub(super) fn clear(session: &Session<'_>, way: &InTheWay, limit: u32) -> Result<bool> {
    match way {
        InTheWay::LeftBy(name) => {
            let Some(subscription) = session.catalog.subscription_named(name) else { return Ok(false) };
            erase_where(session, "subscription = ?1 AND topic > ?2", [subscription.id.0, 0], limit)
        }
        InTheWay::LeftOf(name) => {
            let Some(topic) = session.catalog.topic(name) else { return Ok(false) };
            erase_where(session, "topic = ?1 AND subscription > ?2", [topic.id.0, 0], limit)
        }
    }
}

fn erase_where(session: &Session<'_>, filter: &str, values: [i64; 2], limit: u32) -> Result<bool> {
    let conn = session.conn;
    let sql = format!(
        "SELECT topic, subscription, next FROM tramline_deleted WHERE {filter} ORDER BY topic, subscription LIMIT 1"
    );
    let mut first = conn.prepare_cached(&sql)?;
    let mut left = i64::from(limit);
    while let Some((topic, subscription, next)) =
        first.query_row(values, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?
    {
        left -= match Deleted::from_numbers(topic, subscription) {
            // What has ended in this step may be of this topic, so its chunks stay until the next one.
            Deleted::Topic(_) if session.has_ended() => return Ok(true),
            Deleted::Topic(topic) => erase_topic(conn, topic, left)?,
            Deleted::Subscription(id) => erase_subscription(session, id, left)?,
            Deleted::Left(id, topic) => erase_left(session, id, topic, next, left)?,
        };
        if left <= 0 {
            return Ok(true);
        }
        let sql = "DELETE FROM tramline_deleted WHERE topic = ? AND subscription = ?";
        conn.prepare_cached(sql)?.execute([topic, subscription])?;
    }
    Ok(false)
}

/// Gives how many rows went: fewer than `limit` only if there are no more.
fn erase_topic(conn: &Connection, topic: TopicId, limit: i64) -> Result<i64> {
    let mut gone = erase_chunks(conn, topic, limit)?;
    for sql in [
        "DELETE FROM tramline_head WHERE (topic, key) IN (SELECT topic, key FROM tramline_head WHERE topic = ? LIMIT ?)",
        "DELETE FROM tramline_idempotency WHERE (topic, key) IN \
         (SELECT topic, key FROM tramline_idempotency WHERE topic = ? LIMIT ?)",
        "DELETE FROM tramline_unique WHERE (topic, key) IN \
         (SELECT topic, key FROM tramline_unique WHERE topic = ? LIMIT ?)",
    ] {
        gone += conn.prepare_cached(sql)?.execute([topic.0, limit - gone])? as i64;
    }
    Ok(gone)
}

fn erase_chunks(conn: &Connection, topic: TopicId, limit: i64) -> Result<i64> {
    let sql = "SELECT chunk, bytes FROM tramline_chunk WHERE topic = ? ORDER BY chunk LIMIT ?";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([topic.0, limit], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let found: Vec<(i64, i64)> = rows.collect::<rusqlite::Result<_>>()?;
    let count = within_a_step(found.iter().map(|(_, bytes)| *bytes));
    let mut delete = conn.prepare_cached("DELETE FROM tramline_chunk WHERE chunk = ?")?;
    for (chunk, _) in &found[..count] {
        delete.execute([chunk])?;
    }
    failures::forget(conn, found[..count].iter().map(|(chunk, _)| chunk))?;
    // What was too heavy for this step is for the next one.
    Ok(if count < found.len() { limit } else { count as i64 })
}

fn erase_subscription(session: &Session<'_>, id: SubscriptionId, limit: i64) -> Result<i64> {
    let conn = session.conn;
    let found = slices(conn, "subscription = ? LIMIT ?", &[id.0, limit])?;
    let gone = erase_slices(session, &found)?;
    Ok(gone + erase_marks(conn, id, ALL_LANES, limit - gone)?)
}

/// Hops over the chunks of the topic: the subscription may have any number of slices in others.
fn erase_left(
    session: &Session<'_>,
    id: SubscriptionId,
    topic: TopicId,
    next: i64,
    limit: i64,
) -> Result<i64> {
    let conn = session.conn;
    let sql = "SELECT chunk FROM tramline_chunk WHERE topic = ? AND chunk >= ? ORDER BY chunk LIMIT ?";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([topic.0, next, limit], |row| row.get(0))?;
    let chunks: Vec<i64> = rows.collect::<rusqlite::Result<_>>()?;
    let mut gone = Vec::new();
    for chunk in &chunks {
        let found = slices(conn, "chunk = ? AND subscription = ?", &[*chunk, id.0])?;
        erase_slices(session, &found)?;
        gone.extend(found);
    }
    leave_line(conn, id, &gone)?;
    if let Some(last) = chunks.last() {
        let sql = "UPDATE tramline_deleted SET next = ? WHERE topic = ? AND subscription = ?";
        conn.prepare_cached(sql)?.execute([last + 1, topic.0, id.0])?;
    }
    let looked = chunks.len() as i64;
    Ok(looked + erase_marks(conn, id, lanes_of(topic), limit - looked)?)
}

fn leave_line(conn: &Connection, id: SubscriptionId, gone: &[Slice]) -> Result<()> {
    if gone.iter().all(|slice| slice.lane != LaneId::WHOLE) {
        return Ok(());
    }
    let Some(lane) = one_lane(conn, id, LaneId::WHOLE)? else { return Ok(()) };
    let mut view = LaneView::new(lane);
    free_line(&mut view, gone);
    write_lane(conn, &view.lane)
}

/// What will never be done fails, where it is an item of a tally.
fn erase_slices(session: &Session<'_>, slices: &[Slice]) -> Result<i64> {
    session.end(given_up(slices).map(|(subscription, chunk, mask)| Ended {
        subscription,
        chunk,
        mask,
        ending: Ending::Failed,
    }));
    let mut delete = session.conn.prepare_cached("DELETE FROM tramline_slice WHERE chunk = ? AND id = ?")?;
    for slice in slices {
        delete.execute([slice.chunk.0, slice.id.0])?;
    }
    Ok(slices.len() as i64)
}

/// Parked keys and gaps in a range of lanes.
fn erase_marks(conn: &Connection, id: SubscriptionId, lanes: [i64; 2], limit: i64) -> Result<i64> {
    let mut gone = 0;
    for (table, columns) in [("parked", "subscription, lane, key"), ("gap", "subscription, lane, key, id")] {
        let sql = format!(
            "DELETE FROM tramline_{table} WHERE ({columns}) IN (SELECT {columns} FROM tramline_{table} \
             WHERE subscription = ? AND lane >= ? AND lane < ? LIMIT ?)"
        );
        gone += conn.prepare_cached(&sql)?.execute(params![id.0, lanes[0], lanes[1], limit - gone])? as i64;
    }
    Ok(gone)
}
