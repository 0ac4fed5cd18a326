//! Rows and values: how slices, lanes and chunks are read and written. Always many at a time.

use super::failures;
use super::session::{Ended, Session};
use super::sql::{Columns, LIST, insert as insert_sql, list, maybe_text, numbered, overwrite, paired, text};
use crate::error::{Error, Result};
use crate::model::chunk::ChunkRow;
use crate::model::id::{ChunkId, EventId, Incarnation, LaneId, SliceId, SubscriptionId, TopicId};
use crate::model::lane::{Lane, hash};
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::plan::{Changes, Park};
use bytes::Bytes;
use sqlx::mysql::MySqlRow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The columns of a slice `s`, in the order in which [`slice`] reads and [`values`] writes them.
pub(super) const SLICE: &str = "s.chunk, s.id, s.subscription, s.state, s.lane, s.`rank`, s.mask, s.due_at, s.attempts, \
                                s.crashes, s.alone, s.epoch, s.owner, s.replayed, s.bytes, s.error, s.tallied";

/// The head of a statement that writes slices.
pub(super) const INSERT_SLICES: &str = "INSERT INTO tramline_slice (chunk, id, subscription, state, lane, `rank`, mask, \
    due_at, attempts, crashes, alone, epoch, owner, replayed, bytes, error, tallied, pos) VALUES ";

pub(super) fn slice(row: &MySqlRow) -> Result<Slice> {
    let state = row.small(3)?;
    Ok(Slice {
        chunk: ChunkId(row.int(0)?),
        id: SliceId(row.int(1)?),
        subscription: SubscriptionId(row.int(2)?),
        state: State::from_i16(state).ok_or_else(|| {
            Error::invalid(
                format!("a slice has the unknown state {state}"),
                "run a newer version of the program",
            )
        })?,
        lane: LaneId(row.int(4)?),
        rank: row.int(5)?,
        mask: Mask::from_i64(row.int(6)?),
        due_at: row.time(7)?,
        attempts: row.int(8)? as u32,
        crashes: row.int(9)? as u32,
        alone: row.int(10)? as u32,
        epoch: row.int(11)?,
        owner: Incarnation(row.int(12)?),
        replayed: row.flag(13)?,
        bytes: row.int(14)? as u32,
        error: row.maybe_text(15)?,
        tallied: row.flag(16)?,
    })
}

pub(super) fn slices(rows: &[MySqlRow]) -> Result<Vec<Slice>> {
    rows.iter().map(slice).collect()
}

/// A slice as a row of [`INSERT_SLICES`].
pub(super) fn values(slice: &Slice) -> String {
    format!(
        "({},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{})",
        slice.chunk.0,
        slice.id.0,
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
        maybe_text(slice.error.as_deref()),
        slice.tallied,
        slice.pos(),
    )
}

/// The columns of a lane `l`, in the order [`lane`] reads them.
pub(super) const LANE: &str =
    "l.subscription, l.lane, l.owner, l.epoch, l.until, l.halted_until, l.leased, l.marks";

pub(super) fn lane(row: &MySqlRow) -> Result<Lane> {
    Ok(Lane {
        subscription: SubscriptionId(row.int(0)?),
        lane: LaneId(row.int(1)?),
        owner: Some(row.int(2)?).filter(|owner| *owner != 0).map(Incarnation),
        epoch: row.int(3)?,
        until: row.time(4)?,
        halted_until: row.time(5)?,
        leased: row.int(6)?,
        marks: row.int(7)?,
    })
}

/// Writes lanes back. They exist, and are locked.
pub(super) fn write_lanes(session: &mut Session<'_>, lanes: &[&Lane]) {
    let values = |lane: &&Lane| {
        let owner = lane.owner.map_or(0, |owner| owner.0);
        let (until, halted) = (lane.until.0, lane.halted_until.0);
        let (subscription, lane_id) = (lane.subscription.0, lane.lane.0);
        format!(
            "({subscription},{lane_id},{owner},{},{until},{halted},{},{})",
            lane.epoch, lane.leased, lane.marks
        )
    };
    let head = "INSERT INTO tramline_lane (subscription, lane, owner, epoch, until, halted_until, leased, marks) VALUES ";
    let tail = overwrite(&["owner", "epoch", "until", "halted_until", "leased", "marks"]);
    session.write_all(insert_sql(head, lanes.iter().map(values), &tail, session.common.packet));
}

/// The columns of a chunk, in the order [`chunk`] reads them.
pub(super) const CHUNK: &str = "chunk, topic, emitted_at, meta, prevs, mains, body";
/// The same without links and payloads.
pub(super) const META: &str = "chunk, topic, emitted_at, meta, NULL, NULL, ''";

pub(super) fn chunk(row: &MySqlRow) -> Result<ChunkRow> {
    Ok(ChunkRow {
        chunk: ChunkId(row.int(0)?),
        topic: TopicId(row.int(1)?),
        emitted_at: row.time(2)?,
        meta: row.text(3)?,
        prevs: numbers(row, 4)?,
        mains: numbers(row, 5)?,
        body: Bytes::from(row.blob(6)?),
    })
}

/// Numbers as they are stored: none where all are zero.
pub(super) fn numbers(row: &MySqlRow, at: usize) -> Result<Vec<i64>> {
    Ok(row.maybe_blob(at)?.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default())
}

/// Statements that read chunks by their numbers.
pub(super) fn chunks_sql(ids: impl Iterator<Item = ChunkId>) -> Vec<String> {
    by_number(CHUNK, ids)
}

fn by_number(columns: &str, ids: impl Iterator<Item = ChunkId>) -> Vec<String> {
    let ids: BTreeSet<i64> = ids.map(|id| id.0).collect();
    let ids: Vec<i64> = ids.into_iter().collect();
    let select = |ids: &[i64]| {
        format!("SELECT {columns} FROM tramline_chunk WHERE chunk IN ({})", list(ids.iter().copied()))
    };
    ids.chunks(LIST).map(select).collect()
}

/// A statement that locks chunks in the order of their numbers, and gives those that are there.
pub(super) fn lock_chunks_sql(ids: impl IntoIterator<Item = i64>, lock: &str) -> String {
    let ids: BTreeSet<i64> = ids.into_iter().collect();
    format!("SELECT c.chunk FROM {} STRAIGHT_JOIN tramline_chunk c ON c.chunk = n.a {lock}", numbered(ids))
}

/// Deletes chunks by their numbers.
pub(super) fn delete_chunks(session: &mut Session<'_>, ids: impl IntoIterator<Item = i64>) {
    session.write(format!("DELETE c FROM {} STRAIGHT_JOIN tramline_chunk c ON c.chunk = n.a", numbered(ids)));
}

/// Chunks by their numbers. Those that are gone are left out.
pub(super) async fn chunks(
    session: &mut Session<'_>,
    ids: impl Iterator<Item = ChunkId>,
) -> Result<HashMap<ChunkId, ChunkRow>> {
    read_chunks(session, chunks_sql(ids)).await
}

/// Chunks by their numbers, without their bodies.
pub(super) async fn metas(
    session: &mut Session<'_>,
    ids: impl Iterator<Item = ChunkId>,
) -> Result<HashMap<ChunkId, ChunkRow>> {
    read_chunks(session, by_number(META, ids)).await
}

async fn read_chunks(session: &mut Session<'_>, sql: Vec<String>) -> Result<HashMap<ChunkId, ChunkRow>> {
    if sql.is_empty() {
        return Ok(HashMap::new());
    }
    let sets = session.sets(sql).await?;
    sets.iter().flatten().map(|row| chunk(row).map(|chunk| (chunk.chunk, chunk))).collect()
}

/// Writes what a plan decided about one subscription.
pub(super) fn apply(session: &mut Session<'_>, id: SubscriptionId, changes: &Changes) {
    let ended = changes.ended.iter();
    session.end(ended.map(|&(chunk, mask, ending)| Ended { subscription: id, chunk, mask, ending }));
    session.drop(id, &changes.dropped);
    unpark(session, id, &changes.unpark);
    park(session, id, &changes.park);
    gaps(session, id, changes);
    delete(session, &changes.delete);
    update(session, &changes.update);
    insert(session, &changes.insert);
    failures::write(session, id, changes);
}

/// The parked slices of keys become ready again, or suspect if they had crashes. Keys of the same hash come along; the next
/// claim sets them aside again.
fn unpark(session: &mut Session<'_>, id: SubscriptionId, unpark: &[(LaneId, Arc<str>)]) {
    for (lane, key) in unpark {
        let (id, lane, hash) = (id.0, lane.0, hash(key));
        session.write(format!(
            "DELETE FROM tramline_parked WHERE subscription = {id} AND lane = {lane} AND `key` = {}",
            text(key)
        ));
        session.write(format!(
            "UPDATE tramline_slice FORCE INDEX (tramline_slice_claim) \
             SET state = IF(crashes > 0, 2, 0), `rank` = 0, pos = chunk \
             WHERE subscription = {id} AND state = 4 AND lane = {lane} AND `rank` = {hash}"
        ));
    }
}

fn park(session: &mut Session<'_>, id: SubscriptionId, park: &[Park]) {
    let values = |park: &Park| {
        format!("({},{},{},{},{})", id.0, park.lane.0, text(&park.key), park.blocked_by.0, park.since.0)
    };
    let head = "INSERT INTO tramline_parked (subscription, lane, `key`, blocked_by, since) VALUES ";
    let tail = overwrite(&["blocked_by", "since"]);
    session.write_all(insert_sql(head, park.iter().map(values), &tail, session.common.packet));
}

fn gaps(session: &mut Session<'_>, id: SubscriptionId, changes: &Changes) {
    let values = |(lane, key, event): &(LaneId, Arc<str>, EventId)| {
        format!("({},{},{},{})", id.0, lane.0, text(key), event.0)
    };
    let head = "INSERT IGNORE INTO tramline_gap (subscription, lane, `key`, id) VALUES ";
    session.write_all(insert_sql(head, changes.gaps.iter().map(values), "", session.common.packet));
    for (lane, key, event) in &changes.told {
        session.write(format!(
            "DELETE FROM tramline_gap WHERE subscription = {} AND lane = {} AND `key` = {} AND id <= {}",
            id.0,
            lane.0,
            text(key),
            event.0
        ));
    }
}

/// A statement that locks those slices `s` of chunks for which `which` is true, in the order of their numbers.
pub(super) fn slices_sql(which: &str, chunks: impl IntoIterator<Item = i64>, lock: &str) -> String {
    let chunks: BTreeSet<i64> = chunks.into_iter().collect();
    format!(
        "SELECT {SLICE} FROM {} STRAIGHT_JOIN tramline_slice s FORCE INDEX (PRIMARY) ON s.chunk = n.a \
         WHERE {which} {lock}",
        numbered(chunks)
    )
}

/// A statement that locks slices `s` by the primary key: of those whose `chunk` and `id` are `found`, the first ones for which `still`
/// is true. What somebody else has locked is passed over.
///
/// Slices are found by the claim index without locks, and `found` has to have a LIMIT, or MySQL would join the two into one statement.
/// A statement that locks by that index locks its entries before the rows, and the entry behind each range too; a settlement
/// has the rows, and then needs their entries. The two would wait for each other, as SKIP LOCKED waits too for a moment in MariaDB.
pub(super) fn pick_sql(found: &str, still: &str, limit: u32) -> String {
    format!(
        "SELECT {SLICE} FROM ({found}) n STRAIGHT_JOIN tramline_slice s FORCE INDEX (PRIMARY) \
         ON s.chunk = n.chunk AND s.id = n.id WHERE {still} LIMIT {limit} FOR UPDATE SKIP LOCKED"
    )
}

/// Deletes slices by the primary key.
pub(super) fn delete(session: &mut Session<'_>, rows: &[(ChunkId, SliceId)]) {
    for some in rows.chunks(LIST) {
        session.write(format!(
            "DELETE s FROM {} STRAIGHT_JOIN tramline_slice s FORCE INDEX (PRIMARY) ON s.chunk = n.a AND s.id = n.b",
            paired(some.iter().map(|(chunk, id)| (chunk.0, id.0)))
        ));
    }
}

/// The rows exist, and are locked or in a lane that is: nothing is inserted.
fn update(session: &mut Session<'_>, rows: &[Slice]) {
    let columns = [
        "state", "`rank`", "pos", "mask", "due_at", "attempts", "crashes", "alone", "epoch", "owner",
        "replayed", "error",
    ];
    let tail = overwrite(&columns);
    session.write_all(insert_sql(INSERT_SLICES, rows.iter().map(values), &tail, session.common.packet));
}

/// Writes new slices, and numbers them.
pub(super) fn insert(session: &mut Session<'_>, rows: &[Slice]) {
    let common = session.common;
    let values = |slice: &Slice| values(&Slice { id: common.slice_id(), ..slice.clone() });
    session.write_all(insert_sql(INSERT_SLICES, rows.iter().map(values), "", common.packet));
}
