//! Rows and values: how slices, lanes and chunks are read and written.

use super::failures;
use super::session::{Ended, Session};
use crate::error::{Error, Result};
use crate::model::chunk::ChunkRow;
use crate::model::id::{ChunkId, EventId, Incarnation, LaneId, SliceId, SubscriptionId, TopicId};
use crate::model::lane::{Lane, hash};
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::time::Time;
use crate::plan::Changes;
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, params};

/// The columns of a slice, in the order [`slice`] reads them.
pub(super) const SLICE: &str = "chunk, id, subscription, state, lane, rank, mask, due_at, attempts, crashes, alone, epoch, \
                                owner, replayed, bytes, error, tallied";

pub(super) fn slice(row: &Row<'_>) -> rusqlite::Result<Slice> {
    let state: i16 = row.get(3)?;
    Ok(Slice {
        chunk: ChunkId(row.get(0)?),
        id: SliceId(row.get(1)?),
        subscription: SubscriptionId(row.get(2)?),
        state: State::from_i16(state).ok_or(rusqlite::Error::IntegralValueOutOfRange(3, i64::from(state)))?,
        lane: LaneId(row.get(4)?),
        rank: row.get(5)?,
        mask: Mask::from_i64(row.get(6)?),
        due_at: Time(row.get(7)?),
        attempts: row.get(8)?,
        crashes: row.get(9)?,
        alone: row.get(10)?,
        epoch: row.get(11)?,
        owner: Incarnation(row.get(12)?),
        replayed: row.get(13)?,
        bytes: row.get(14)?,
        error: row.get(15)?,
        tallied: row.get(16)?,
    })
}

/// All slices that `filter` (an SQL condition) selects.
pub(super) fn slices(conn: &Connection, filter: &str, values: &[i64]) -> Result<Vec<Slice>> {
    let sql = format!("SELECT {SLICE} FROM tramline_slice WHERE {filter}");
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map(rusqlite::params_from_iter(values), slice)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The slices of one chunk in one subscription, by the primary key.
pub(super) fn slices_of_chunk(
    conn: &Connection,
    subscription: SubscriptionId,
    chunk: ChunkId,
) -> Result<Vec<Slice>> {
    slices(conn, "chunk = ? AND subscription = ? ORDER BY id", &[chunk.0, subscription.0])
}

/// The columns of a lane, in the order [`lane`] reads them.
const LANE: &str = "subscription, lane, owner, epoch, until, halted_until, leased, marks";

fn lane(row: &Row<'_>) -> rusqlite::Result<Lane> {
    Ok(Lane {
        subscription: SubscriptionId(row.get(0)?),
        lane: LaneId(row.get(1)?),
        owner: Some(row.get(2)?).filter(|owner| *owner != 0).map(Incarnation),
        epoch: row.get(3)?,
        until: Time(row.get(4)?),
        halted_until: Time(row.get(5)?),
        leased: row.get(6)?,
        marks: row.get(7)?,
    })
}

pub(super) fn lanes(conn: &Connection, subscription: SubscriptionId) -> Result<Vec<Lane>> {
    let sql = format!("SELECT {LANE} FROM tramline_lane WHERE subscription = ? ORDER BY lane");
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map([subscription.0], lane)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn one_lane(conn: &Connection, subscription: SubscriptionId, id: LaneId) -> Result<Option<Lane>> {
    let sql = format!("SELECT {LANE} FROM tramline_lane WHERE subscription = ? AND lane = ?");
    Ok(conn.prepare_cached(&sql)?.query_row([subscription.0, id.0], lane).optional()?)
}

pub(super) fn write_lane(conn: &Connection, lane: &Lane) -> Result<()> {
    let sql = "UPDATE tramline_lane SET owner = ?, epoch = ?, until = ?, halted_until = ?, leased = ?, marks = ? \
               WHERE subscription = ? AND lane = ?";
    conn.prepare_cached(sql)?.execute(params![
        lane.owner.map_or(0, |owner| owner.0),
        lane.epoch,
        lane.until.0,
        lane.halted_until.0,
        lane.leased,
        lane.marks,
        lane.subscription.0,
        lane.lane.0,
    ])?;
    Ok(())
}

/// The columns of a chunk, in the order [`chunk`] reads them.
pub(super) const CHUNK: &str = "chunk, topic, emitted_at, meta, prevs, mains, body";

pub(super) fn chunk(row: &Row<'_>) -> rusqlite::Result<ChunkRow> {
    Ok(ChunkRow {
        chunk: ChunkId(row.get(0)?),
        topic: TopicId(row.get(1)?),
        emitted_at: Time(row.get(2)?),
        meta: row.get(3)?,
        prevs: numbers(row.get_ref(4)?.as_str_or_null()?),
        mains: numbers(row.get_ref(5)?.as_str_or_null()?),
        body: Bytes::from(row.get::<_, Vec<u8>>(6)?),
    })
}

pub(super) fn one_chunk(conn: &Connection, id: ChunkId) -> Result<Option<ChunkRow>> {
    let sql = format!("SELECT {CHUNK} FROM tramline_chunk WHERE chunk = ?");
    Ok(conn.prepare_cached(&sql)?.query_row([id.0], chunk).optional()?)
}

/// A chunk without its body, which may be large.
pub(super) fn one_meta(conn: &Connection, id: ChunkId) -> Result<Option<ChunkRow>> {
    let sql = "SELECT chunk, topic, emitted_at, meta, NULL, NULL, x'' FROM tramline_chunk WHERE chunk = ?";
    Ok(conn.prepare_cached(sql)?.query_row([id.0], chunk).optional()?)
}

/// A JSON array of numbers; what is absent is empty.
fn numbers(text: Option<&str>) -> Vec<i64> {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Numbers as they are stored: NULL where all are zero.
pub(super) fn numbers_text(numbers: &[i64]) -> Option<String> {
    if numbers.iter().all(|number| *number == 0) {
        return None;
    }
    serde_json::to_string(numbers).ok()
}

/// Draws `count` numbers of a counter and gives the first.
pub(super) fn draw(conn: &Connection, counter: &str, count: usize) -> Result<i64> {
    let sql = "UPDATE tramline_meta SET value = value + ?1 WHERE name = ?2 RETURNING value - ?1 + 1";
    Ok(conn.prepare_cached(sql)?.query_row(params![count as i64, counter], |row| row.get(0))?)
}

/// Writes what a plan decided about one subscription.
pub(super) fn apply(session: &Session<'_>, subscription: SubscriptionId, changes: &Changes) -> Result<()> {
    let conn = session.conn;
    session.end(changes.ended.iter().map(|&(chunk, mask, ending)| Ended {
        subscription,
        chunk,
        mask,
        ending,
    }));
    session.drop(subscription, &changes.dropped);
    failures::write(session, subscription, changes)?;
    for (lane, key) in &changes.unpark {
        unpark(conn, subscription, *lane, key)?;
    }
    for park in &changes.park {
        let sql = "INSERT INTO tramline_parked (subscription, lane, key, blocked_by, since) VALUES (?, ?, ?, ?, ?) \
                   ON CONFLICT DO UPDATE SET blocked_by = excluded.blocked_by, since = excluded.since";
        let values = params![subscription.0, park.lane.0, &*park.key, park.blocked_by.0, park.since.0];
        conn.prepare_cached(sql)?.execute(values)?;
    }
    for (lane, key, event) in &changes.gaps {
        let sql = "INSERT OR IGNORE INTO tramline_gap (subscription, lane, key, id) VALUES (?, ?, ?, ?)";
        conn.prepare_cached(sql)?.execute(params![subscription.0, lane.0, &**key, event.0])?;
    }
    for (lane, key, event) in &changes.told {
        let sql = "DELETE FROM tramline_gap WHERE subscription = ? AND lane = ? AND key = ? AND id <= ?";
        conn.prepare_cached(sql)?.execute(params![subscription.0, lane.0, &**key, event.0])?;
    }
    for (chunk, id) in &changes.delete {
        let sql = "DELETE FROM tramline_slice WHERE chunk = ? AND id = ?";
        conn.prepare_cached(sql)?.execute([chunk.0, id.0])?;
    }
    for slice in &changes.update {
        update(conn, slice)?;
    }
    insert(conn, &changes.insert)
}

/// The parked slices of a key become ready again, or suspect if they had crashes. Keys of the same hash come along; the next claim sets them aside again.
fn unpark(conn: &Connection, subscription: SubscriptionId, lane: LaneId, key: &str) -> Result<()> {
    let sql = "DELETE FROM tramline_parked WHERE subscription = ? AND lane = ? AND key = ?";
    conn.prepare_cached(sql)?.execute(params![subscription.0, lane.0, key])?;
    let sql = "UPDATE tramline_slice SET state = CASE WHEN crashes > 0 THEN 2 ELSE 0 END, rank = 0, pos = chunk \
               WHERE subscription = ? AND state = 4 AND lane = ? AND rank = ?";
    conn.prepare_cached(sql)?.execute([subscription.0, lane.0, i64::from(hash(key))])?;
    Ok(())
}

fn update(conn: &Connection, slice: &Slice) -> Result<()> {
    let sql = "UPDATE tramline_slice SET state = ?, rank = ?, pos = ?, mask = ?, due_at = ?, attempts = ?, crashes = ?, \
               alone = ?, epoch = ?, owner = ?, replayed = ?, error = ? WHERE chunk = ? AND id = ?";
    conn.prepare_cached(sql)?.execute(params![
        slice.state as i16,
        slice.rank,
        slice.pos(),
        slice.mask.to_i64(),
        slice.due_at.0,
        slice.attempts,
        slice.crashes,
        slice.alone,
        slice.epoch,
        slice.owner.0,
        slice.replayed,
        slice.error,
        slice.chunk.0,
        slice.id.0,
    ])?;
    Ok(())
}

/// Numbers and writes new slices.
pub(super) fn insert(conn: &Connection, slices: &[Slice]) -> Result<()> {
    if slices.is_empty() {
        return Ok(());
    }
    let first = draw(conn, "slice", slices.len())?;
    let sql = format!(
        "INSERT INTO tramline_slice ({SLICE}, pos) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    for (id, slice) in (first..).zip(slices) {
        statement.execute(params![
            slice.chunk.0,
            id,
            slice.subscription.0,
            slice.state as i16,
            slice.lane.0,
            slice.rank,
            slice.mask.to_i64(),
            slice.due_at.0,
            slice.attempts,
            slice.crashes,
            slice.alone,
            slice.epoch,
            slice.owner.0,
            slice.replayed,
            slice.bytes,
            slice.error,
            slice.tallied,
            slice.pos(),
        ])?;
    }
    Ok(())
}

/// The event that blocks a key, if the key is parked.
pub(super) fn blocked_by(
    conn: &Connection,
    subscription: SubscriptionId,
    lane: LaneId,
    key: &str,
) -> Result<Option<EventId>> {
    let sql = "SELECT blocked_by FROM tramline_parked WHERE subscription = ? AND lane = ? AND key = ?";
    let mut statement = conn.prepare_cached(sql)?;
    Ok(statement.query_row(params![subscription.0, lane.0, key], |row| row.get(0).map(EventId)).optional()?)
}

/// The gaps of a key, ascending.
pub(super) fn gaps(
    conn: &Connection,
    subscription: SubscriptionId,
    lane: LaneId,
    key: &str,
) -> Result<Vec<EventId>> {
    let sql = "SELECT id FROM tramline_gap WHERE subscription = ? AND lane = ? AND key = ? ORDER BY id";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map(params![subscription.0, lane.0, key], |row| row.get(0).map(EventId))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Error {
        use rusqlite::ErrorCode::*;
        let remedy = match error.sqlite_error_code() {
            Some(DiskFull) => "free some disk space; work goes on by itself",
            Some(DatabaseBusy | DatabaseLocked) => "another process holds the database; try again",
            Some(CannotOpen | ReadOnly | PermissionDenied) => {
                "check that the file and its folder can be written"
            }
            Some(DatabaseCorrupt | NotADatabase) => "restore the file from a backup",
            _ => "try again; if it stays, check the database file",
        };
        Error::unavailable("SQLite failed", remedy).because(error)
    }
}
