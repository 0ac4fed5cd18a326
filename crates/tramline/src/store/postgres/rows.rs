//! Rows and values: how slices, lanes and chunks are read and written. Always many at a time.

use super::failures;
use super::low::{lower, made_ready, prove};
use super::session::{Ended, Query, Session};
use super::taken::{Lows, Start, mark_before};
use crate::error::{Error, Result};
use crate::model::chunk::ChunkRow;
use crate::model::id::{ChunkId, EventId, Incarnation, LaneId, SliceId, SubscriptionId, TopicId};
use crate::model::lane::{Lane, hash};
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::time::Time;
use crate::plan::{Changes, Park};
use bytes::Bytes;
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The columns of a slice `s`, in the order [`slice`] reads them; statements write `{slice}`.
pub(super) const SLICE: &str = "s.chunk, s.id, s.subscription, s.state, s.lane, s.rank, s.mask, s.due_at, s.attempts, \
                                s.crashes, s.alone, s.epoch, s.owner, s.replayed, s.bytes, s.error, s.tallied";

pub(super) fn slice(row: &PgRow) -> Result<Slice> {
    Ok(Slice { tallied: row.try_get(16)?, ..claimed_slice(row)? })
}

/// The same without its last column, for a claim: whoever claims need not know it.
pub(super) fn claimed_slice(row: &PgRow) -> Result<Slice> {
    let state: i16 = row.try_get(3)?;
    Ok(Slice {
        chunk: ChunkId(row.try_get(0)?),
        id: SliceId(row.try_get(1)?),
        subscription: SubscriptionId(row.try_get(2)?),
        state: State::from_i16(state).ok_or_else(|| {
            Error::invalid(
                format!("a slice has the unknown state {state}"),
                "run a newer version of the program",
            )
        })?,
        lane: LaneId(row.try_get(4)?),
        rank: row.try_get(5)?,
        mask: Mask::from_i64(row.try_get(6)?),
        due_at: Time(row.try_get(7)?),
        attempts: row.try_get::<i32, _>(8)?.cast_unsigned(),
        crashes: row.try_get::<i32, _>(9)?.cast_unsigned(),
        alone: row.try_get::<i32, _>(10)?.cast_unsigned(),
        epoch: row.try_get(11)?,
        owner: Incarnation(row.try_get(12)?),
        replayed: row.try_get(13)?,
        bytes: row.try_get::<i32, _>(14)?.cast_unsigned(),
        error: row.try_get(15)?,
        tallied: false,
    })
}

pub(super) fn slices(rows: &[PgRow]) -> Result<Vec<Slice>> {
    rows.iter().map(slice).collect()
}

/// The columns of a lane `l`, in the order [`lane`] reads them; statements write `{lane}`.
pub(super) const LANE: &str =
    "l.subscription, l.lane, l.owner, l.epoch, l.until, l.halted_until, l.leased, l.marks, l.low";

/// Where to look for the rows of lanes `n` of a subscription `$1`; statements write `{newest}`, and read from [`LANES`]. The row of a lane is
/// written by every claim and settlement, and while an old transaction of anybody stays open, all its versions stay. An epoch has few of
/// them, so the newest one is looked for first, backwards, and the others are not met.
///
/// Uses the primary key `(subscription, lane, epoch)`. MATERIALIZED, and joined by all three, or the server may read all rows of the
/// subscription and compare epochs after that.
pub(super) const NEWEST: &str = "h AS MATERIALIZED (SELECT e.subscription, n.lane, e.epoch FROM n CROSS JOIN LATERAL ( \
    SELECT e.subscription, e.epoch FROM tramline_lane e WHERE e.subscription = $1 AND e.lane = n.lane \
    ORDER BY e.epoch DESC LIMIT 1) e)";

/// The lanes `l` that were looked for; statements write `{lanes}`.
pub(super) const LANES: &str =
    "h JOIN tramline_lane l ON l.subscription = h.subscription AND l.lane = h.lane AND l.epoch >= h.epoch";

pub(super) fn lane(row: &PgRow) -> Result<Lane> {
    Ok(Lane {
        subscription: SubscriptionId(row.try_get(0)?),
        lane: LaneId(row.try_get(1)?),
        owner: Some(row.try_get(2)?).filter(|owner| *owner != 0).map(Incarnation),
        epoch: row.try_get(3)?,
        until: Time(row.try_get(4)?),
        halted_until: Time(row.try_get(5)?),
        leased: row.try_get(6)?,
        marks: row.try_get(7)?,
    })
}

/// The same of a row that was locked just now: where the lane begins, and who has what is below, is known from then on.
pub(super) fn locked_lane(session: &mut Session<'_>, row: &PgRow) -> Result<Lane> {
    let lane = lane(row)?;
    session.starts.insert((lane.subscription, lane.lane), Start::of(&lane, row.try_get(8)?));
    Ok(lane)
}

/// Writes lanes; `$low` says where they begin. One step raises an epoch once at most, so there is no need to look among much older ones.
macro_rules! write_lanes {
    ($low:literal) => {
        concat!(
            "UPDATE tramline_lane l SET owner = u.owner, epoch = u.epoch, until = u.until, \
            halted_until = u.halted_until, leased = u.leased, marks = u.marks, low = ",
            $low,
            " FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], \
            $7::bigint[], $8::bigint[], $9::bigint[]) \
            AS u(subscription, lane, owner, epoch, until, halted_until, leased, marks, low) \
            WHERE l.subscription = u.subscription AND l.lane = u.lane AND l.epoch >= u.epoch - 8"
        )
    };
}

/// Writes lanes back.
pub(super) async fn write_lanes(session: &mut Session<'_>, lanes: &[&Lane]) -> Result<()> {
    if lanes.is_empty() {
        return Ok(());
    }
    let query = bind_lanes(session.query(write_lanes!("l.low")), lanes, &Lows::new());
    session.run(query).await.map(|_| ())
}

/// Writes lanes back that a claim has locked. They begin at what is ready now, as far as nothing below it can still come, and not below
/// what was taken without a mark (`taken`).
///
/// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`, one probe per lane.
pub(super) async fn write_taken(
    session: &mut Session<'_>,
    id: SubscriptionId,
    lanes: &[&Lane],
    taken: &Lows,
) -> Result<()> {
    if lanes.is_empty() {
        return Ok(());
    }
    let proven = prove(session, id).await?;
    let sql = concat!(
        write_lanes!(
            "CASE WHEN l.low <= $10 \
            THEN coalesce((SELECT s.pos FROM tramline_slice s WHERE s.subscription = l.subscription AND s.state = 0 \
                AND s.lane = l.lane AND s.rank = 0 AND s.pos >= greatest(l.low, u.low) AND s.pos <= $10 \
                ORDER BY s.pos LIMIT 1), $10 + 1) \
            ELSE l.low END"
        ),
        " RETURNING {lane}"
    );
    let query = bind_lanes(session.query(sql), lanes, taken).bind(proven.0);
    for row in session.all(query).await? {
        locked_lane(session, &row)?;
    }
    Ok(())
}

fn bind_lanes(query: Query, lanes: &[&Lane], lows: &Lows) -> Query {
    let column = |value: fn(&Lane) -> i64| lanes.iter().map(|lane| value(lane)).collect::<Vec<i64>>();
    query
        .bind(column(|lane| lane.subscription.0))
        .bind(column(|lane| lane.lane.0))
        .bind(column(|lane| lane.owner.map_or(0, |owner| owner.0)))
        .bind(column(|lane| lane.epoch))
        .bind(column(|lane| lane.until.0))
        .bind(column(|lane| lane.halted_until.0))
        .bind(column(|lane| lane.leased))
        .bind(column(|lane| lane.marks))
        .bind(
            lanes.iter().map(|lane| lows.get(&lane.lane).copied().unwrap_or_default()).collect::<Vec<i64>>(),
        )
}

pub(super) fn chunk(row: &PgRow) -> Result<ChunkRow> {
    chunk_at(row, 1)
}

/// A chunk whose number is the first column and whose other columns begin at `at`.
pub(super) fn chunk_at(row: &PgRow, at: usize) -> Result<ChunkRow> {
    Ok(ChunkRow {
        chunk: ChunkId(row.try_get(0)?),
        topic: TopicId(row.try_get(at)?),
        emitted_at: Time(row.try_get(at + 1)?),
        meta: row.try_get(at + 2)?,
        prevs: row.try_get::<Option<Vec<i64>>, _>(at + 3)?.unwrap_or_default(),
        mains: row.try_get::<Option<Vec<i64>>, _>(at + 4)?.unwrap_or_default(),
        body: Bytes::from(row.try_get::<Vec<u8>, _>(at + 5)?),
    })
}

/// Chunks by their numbers. Those that are gone are left out.
pub(super) async fn chunks(
    session: &mut Session<'_>,
    ids: impl Iterator<Item = ChunkId>,
) -> Result<HashMap<ChunkId, ChunkRow>> {
    let sql =
        "SELECT chunk, topic, emitted_at, meta, prevs, mains, body FROM tramline_chunk WHERE chunk = ANY($1)";
    rows_of(session, sql, ids).await
}

/// Chunks by their numbers, without their bodies.
pub(super) async fn metas(
    session: &mut Session<'_>,
    ids: impl Iterator<Item = ChunkId>,
) -> Result<HashMap<ChunkId, ChunkRow>> {
    let sql = "SELECT chunk, topic, emitted_at, meta, NULL::bigint[], NULL::bigint[], ''::bytea \
               FROM tramline_chunk WHERE chunk = ANY($1)";
    rows_of(session, sql, ids).await
}

async fn rows_of(
    session: &mut Session<'_>,
    sql: &'static str,
    ids: impl Iterator<Item = ChunkId>,
) -> Result<HashMap<ChunkId, ChunkRow>> {
    let ids: BTreeSet<i64> = ids.map(|id| id.0).collect();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let query = session.query(sql).bind(ids.into_iter().collect::<Vec<i64>>());
    let rows = session.all(query).await?;
    rows.iter().map(|row| chunk(row).map(|chunk| (chunk.chunk, chunk))).collect()
}

/// Writes what a plan decided about one subscription.
pub(super) async fn apply(session: &mut Session<'_>, id: SubscriptionId, changes: &Changes) -> Result<()> {
    let ended = changes.ended.iter();
    session.end(ended.map(|&(chunk, mask, ending)| Ended { subscription: id, chunk, mask, ending }));
    session.drop(id, &changes.dropped);
    mark_before(session, id, changes).await?;
    let unparked = unpark(session, id, &changes.unpark).await?;
    park(session, id, &changes.park).await?;
    gaps(session, id, changes).await?;
    delete(session, &changes.delete).await?;
    update(session, &changes.update).await?;
    insert(session, &changes.insert).await?;
    lower(session, id, made_ready(changes).chain(unparked)).await?;
    failures::write(session, id, changes).await
}

/// The parked slices of keys become ready again, or suspect if they had crashes. Keys of the same hash come along; the next
/// claim sets them aside again. Gives the lanes and chunks of them.
async fn unpark(
    session: &mut Session<'_>,
    id: SubscriptionId,
    unpark: &[(LaneId, Arc<str>)],
) -> Result<Vec<(LaneId, ChunkId)>> {
    if unpark.is_empty() {
        return Ok(Vec::new());
    }
    let lanes: Vec<i64> = unpark.iter().map(|(lane, _)| lane.0).collect();
    let keys: Vec<String> = unpark.iter().map(|(_, key)| key.to_string()).collect();
    let hashes: Vec<i64> = unpark.iter().map(|(_, key)| i64::from(hash(key))).collect();
    let sql = "DELETE FROM tramline_parked p USING unnest($2::bigint[], $3::text[]) AS u(lane, key) \
               WHERE p.subscription = $1 AND p.lane = u.lane AND p.key = u.key";
    let query = session.query(sql).bind(id.0).bind(lanes.clone()).bind(keys);
    session.run(query).await?;
    let sql = "UPDATE tramline_slice s SET state = CASE WHEN s.crashes > 0 THEN 2 ELSE 0 END, rank = 0, pos = s.chunk \
               FROM unnest($2::bigint[], $3::bigint[]) AS u(lane, hash) \
               WHERE s.subscription = $1 AND s.state = 4 AND s.lane = u.lane AND s.rank = u.hash \
               RETURNING s.lane, s.chunk";
    let query = session.query(sql).bind(id.0).bind(lanes).bind(hashes);
    let rows = session.all(query).await?;
    rows.iter().map(|row| Ok((LaneId(row.try_get(0)?), ChunkId(row.try_get(1)?)))).collect()
}

async fn park(session: &mut Session<'_>, id: SubscriptionId, park: &[Park]) -> Result<()> {
    // One statement may write a row once only: of two entries for a key, the later one counts.
    let last: BTreeMap<(LaneId, &str), &Park> =
        park.iter().map(|park| ((park.lane, &*park.key), park)).collect();
    if last.is_empty() {
        return Ok(());
    }
    let sql = "INSERT INTO tramline_parked (subscription, lane, key, blocked_by, since) \
               SELECT $1, * FROM unnest($2::bigint[], $3::text[], $4::bigint[], $5::bigint[]) \
               ON CONFLICT (subscription, lane, key) \
               DO UPDATE SET blocked_by = excluded.blocked_by, since = excluded.since";
    let query = session
        .query(sql)
        .bind(id.0)
        .bind(last.keys().map(|(lane, _)| lane.0).collect::<Vec<i64>>())
        .bind(last.keys().map(|(_, key)| key.to_string()).collect::<Vec<String>>())
        .bind(last.values().map(|park| park.blocked_by.0).collect::<Vec<i64>>())
        .bind(last.values().map(|park| park.since.0).collect::<Vec<i64>>());
    session.run(query).await.map(|_| ())
}

async fn gaps(session: &mut Session<'_>, id: SubscriptionId, changes: &Changes) -> Result<()> {
    let add = "INSERT INTO tramline_gap (subscription, lane, key, id) \
               SELECT $1, * FROM unnest($2::bigint[], $3::text[], $4::bigint[]) ON CONFLICT DO NOTHING";
    let tell = "DELETE FROM tramline_gap g USING unnest($2::bigint[], $3::text[], $4::bigint[]) AS u(lane, key, id) \
                WHERE g.subscription = $1 AND g.lane = u.lane AND g.key = u.key AND g.id <= u.id";
    for (sql, list) in [(add, &changes.gaps), (tell, &changes.told)] {
        if list.is_empty() {
            continue;
        }
        let query = session
            .query(sql)
            .bind(id.0)
            .bind(list.iter().map(|(lane, _, _)| lane.0).collect::<Vec<i64>>())
            .bind(list.iter().map(|(_, key, _)| key.to_string()).collect::<Vec<String>>())
            .bind(list.iter().map(|(_, _, id): &(LaneId, Arc<str>, EventId)| id.0).collect::<Vec<i64>>());
        session.run(query).await?;
    }
    Ok(())
}

async fn delete(session: &mut Session<'_>, rows: &[(ChunkId, SliceId)]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let sql = "DELETE FROM tramline_slice s USING unnest($1::bigint[], $2::bigint[]) AS u(chunk, id) \
               WHERE s.chunk = u.chunk AND s.id = u.id";
    let query = session
        .query(sql)
        .bind(rows.iter().map(|(chunk, _)| chunk.0).collect::<Vec<i64>>())
        .bind(rows.iter().map(|(_, id)| id.0).collect::<Vec<i64>>());
    session.run(query).await.map(|_| ())
}

async fn update(session: &mut Session<'_>, rows: &[Slice]) -> Result<()> {
    // As with parked keys: one statement writes a row once only.
    let last: BTreeMap<(ChunkId, SliceId), &Slice> =
        rows.iter().map(|slice| ((slice.chunk, slice.id), slice)).collect();
    if last.is_empty() {
        return Ok(());
    }
    let rows: Vec<&Slice> = last.into_values().collect();
    let sql = "UPDATE tramline_slice s SET state = u.state, rank = u.rank, pos = u.pos, mask = u.mask, \
               due_at = u.due_at, attempts = u.attempts, crashes = u.crashes, alone = u.alone, epoch = u.epoch, \
               owner = u.owner, replayed = u.replayed, error = u.error \
               FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bigint[], $6::bigint[], \
               $7::bigint[], $8::int[], $9::int[], $10::int[], $11::bigint[], $12::bigint[], $13::boolean[], \
               $14::text[]) AS u(chunk, id, state, rank, pos, mask, due_at, attempts, crashes, alone, epoch, owner, \
               replayed, error) WHERE s.chunk = u.chunk AND s.id = u.id";
    let big = |value: fn(&Slice) -> i64| rows.iter().map(|slice| value(slice)).collect::<Vec<i64>>();
    let int = |value: fn(&Slice) -> u32| rows.iter().map(|s| value(s).cast_signed()).collect::<Vec<i32>>();
    let query = session
        .query(sql)
        .bind(big(|slice| slice.chunk.0))
        .bind(big(|slice| slice.id.0))
        .bind(rows.iter().map(|slice| slice.state as i16).collect::<Vec<i16>>())
        .bind(big(|slice| slice.rank))
        .bind(big(Slice::pos))
        .bind(big(|slice| slice.mask.to_i64()))
        .bind(big(|slice| slice.due_at.0))
        .bind(int(|slice| slice.attempts))
        .bind(int(|slice| slice.crashes))
        .bind(int(|slice| slice.alone))
        .bind(big(|slice| slice.epoch))
        .bind(big(|slice| slice.owner.0))
        .bind(rows.iter().map(|slice| slice.replayed).collect::<Vec<bool>>())
        .bind(rows.iter().map(|slice| slice.error.clone()).collect::<Vec<Option<String>>>());
    session.run(query).await.map(|_| ())
}

/// Writes new slices; the sequence numbers them.
pub(super) async fn insert(session: &mut Session<'_>, rows: &[Slice]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let sql = "INSERT INTO tramline_slice (chunk, subscription, state, lane, rank, pos, mask, due_at, attempts, \
               crashes, alone, epoch, owner, replayed, bytes, error, tallied) \
               SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bigint[], \
               $6::bigint[], $7::bigint[], $8::bigint[], $9::int[], $10::int[], $11::int[], $12::bigint[], \
               $13::bigint[], $14::boolean[], $15::int[], $16::text[], $17::boolean[])";
    let big = |value: fn(&Slice) -> i64| rows.iter().map(value).collect::<Vec<i64>>();
    let int = |value: fn(&Slice) -> u32| rows.iter().map(|s| value(s).cast_signed()).collect::<Vec<i32>>();
    let query = session
        .query(sql)
        .bind(big(|slice| slice.chunk.0))
        .bind(big(|slice| slice.subscription.0))
        .bind(rows.iter().map(|slice| slice.state as i16).collect::<Vec<i16>>())
        .bind(big(|slice| slice.lane.0))
        .bind(big(|slice| slice.rank))
        .bind(big(Slice::pos))
        .bind(big(|slice| slice.mask.to_i64()))
        .bind(big(|slice| slice.due_at.0))
        .bind(int(|slice| slice.attempts))
        .bind(int(|slice| slice.crashes))
        .bind(int(|slice| slice.alone))
        .bind(big(|slice| slice.epoch))
        .bind(big(|slice| slice.owner.0))
        .bind(rows.iter().map(|slice| slice.replayed).collect::<Vec<bool>>())
        .bind(int(|slice| slice.bytes))
        .bind(rows.iter().map(|slice| slice.error.clone()).collect::<Vec<Option<String>>>())
        .bind(rows.iter().map(|slice| slice.tallied).collect::<Vec<bool>>());
    session.run(query).await.map(|_| ())
}
