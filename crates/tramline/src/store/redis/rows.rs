//! Rows and values: how slices, lanes and chunks are read and written.

use super::failures;
use super::link::Command;
use super::pack::{Packer, Unpacker, damaged};
use super::session::{Session, Writes, get, hget, key};
use super::tuple::{Columns, Tuple};
use super::unpark;
use crate::error::Result;
use crate::model::chunk::ChunkRow;
use crate::model::id::{ChunkId, EventId, Incarnation, LaneId, SliceId, SubscriptionId, TopicId};
use crate::model::lane::Lane;
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::time::Time;
use crate::plan::Changes;
use crate::store::tally::Ended;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A slice as its index knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) state: i64,
    pub(super) lane: LaneId,
    pub(super) rank: i64,
    pub(super) pos: i64,
    pub(super) chunk: ChunkId,
    pub(super) id: SliceId,
    pub(super) events: u32,
    pub(super) due_at: Time,
}

impl Entry {
    pub(super) fn read(member: &[u8]) -> Entry {
        let mut columns = Columns(member);
        let mut entry = Entry {
            state: columns.number(),
            lane: LaneId(columns.number()),
            rank: columns.number(),
            pos: columns.number(),
            chunk: ChunkId(columns.number()),
            id: SliceId(columns.number()),
            events: 0,
            due_at: Time(0),
        };
        let mut load = Columns(columns.load());
        entry.events = load.number() as u32;
        entry.due_at = if load.load().is_empty() { Time(entry.pos) } else { Time(load.number()) };
        entry
    }

    /// Where it is in the index.
    pub(super) fn columns(&self) -> [i64; 6] {
        [self.state, self.lane.0, self.rank, self.pos, self.chunk.0, self.id.0]
    }
}

/// The one index over the slices of a subscription: state, lane, rank, pos, chunk, number. It carries how many events there are, and
/// when they are due unless that is `pos`.
pub(super) fn index(session: &Session<'_>, subscription: SubscriptionId) -> Vec<u8> {
    session.key(&format!("i:{subscription}"))
}

fn member(slice: &Slice) -> Vec<u8> {
    let carried = Tuple::new().with(&[i64::from(slice.mask.count())]);
    let carried = if slice.pos() == slice.due_at.0 { carried } else { carried.with(&[slice.due_at.0]) };
    Tuple::new().with(&columns_of(slice)).carrying(&carried.bytes())
}

fn columns_of(slice: &Slice) -> [i64; 6] {
    [slice.state as i64, slice.lane.0, slice.rank, slice.pos(), slice.chunk.0, slice.id.0]
}

/// The slices of a chunk, in all subscriptions.
pub(super) fn slices_key(session: &Session<'_>, chunk: ChunkId) -> Vec<u8> {
    session.key(&format!("s:{chunk}"))
}

/// A slice as its row.
pub(super) fn pack(slice: &Slice) -> Vec<u8> {
    let flags = i64::from(slice.replayed) | i64::from(slice.tallied) << 1;
    Packer::new()
        .number(slice.subscription.0)
        .number(slice.state as i64)
        .number(slice.lane.0)
        .number(slice.rank)
        .bits(slice.mask.to_i64())
        .number(slice.due_at.0)
        .number(i64::from(slice.attempts))
        .number(i64::from(slice.crashes))
        .number(i64::from(slice.alone))
        .number(slice.epoch)
        .number(slice.owner.0)
        .number(flags)
        .number(i64::from(slice.bytes))
        .optional(slice.error.as_deref().map(str::as_bytes))
        .done()
}

/// A slice from its row.
pub(super) fn unpack(chunk: ChunkId, id: SliceId, row: &[u8]) -> Result<Slice> {
    let mut row = Unpacker::new(row);
    let subscription = SubscriptionId(row.number()?);
    let state = State::from_i16(row.number()? as i16).ok_or_else(damaged)?;
    let (lane, rank) = (LaneId(row.number()?), row.number()?);
    let (mask, due_at) = (Mask::from_i64(row.bits()?), Time(row.number()?));
    let (attempts, crashes, alone) = (row.number()? as u32, row.number()? as u32, row.number()? as u32);
    let (epoch, owner, flags) = (row.number()?, Incarnation(row.number()?), row.number()?);
    Ok(Slice {
        id,
        chunk,
        subscription,
        lane,
        state,
        mask,
        due_at,
        rank,
        attempts,
        crashes,
        alone,
        epoch,
        owner,
        replayed: flags & 1 != 0,
        tallied: flags & 2 != 0,
        bytes: row.number()? as u32,
        error: row.optional()?.map(|error| String::from_utf8_lossy(error).into_owned()),
    })
}

fn field(id: SliceId) -> Vec<u8> {
    id.to_string().into_bytes()
}

/// The command that reads a slice.
pub(super) fn slice_read(name: &str, chunk: ChunkId, id: SliceId) -> Command {
    hget(&key(name, &format!("s:{chunk}")), &field(id))
}

/// What the row of a slice becomes, if it is written.
pub(super) fn slice_row<'w>(name: &str, writes: &'w Writes, chunk: ChunkId, id: SliceId) -> Option<&'w [u8]> {
    writes.field(&key(name, &format!("s:{chunk}")), &field(id))
}

/// One slice.
pub(super) fn one_slice(session: &Session<'_>, chunk: ChunkId, id: SliceId) -> Result<Option<Slice>> {
    let row = session.get(&slices_key(session, chunk), &field(id))?;
    row.map(|row| unpack(chunk, id, &row)).transpose()
}

/// All slices of a chunk, by subscription and number.
pub(super) fn slices_at(session: &Session<'_>, chunk: ChunkId) -> Result<Vec<Slice>> {
    let mut slices = Vec::new();
    for (id, row) in session.all(&slices_key(session, chunk))? {
        let id = std::str::from_utf8(&id).ok().and_then(|id| id.parse().ok()).ok_or_else(damaged)?;
        slices.push(unpack(chunk, SliceId(id), &row)?);
    }
    slices.sort_by_key(|slice| (slice.subscription, slice.id));
    Ok(slices)
}

/// The slices of one chunk in one subscription.
pub(super) fn slices_of_chunk(
    session: &Session<'_>,
    subscription: SubscriptionId,
    chunk: ChunkId,
) -> Result<Vec<Slice>> {
    let mut slices = slices_at(session, chunk)?;
    slices.retain(|slice| slice.subscription == subscription);
    Ok(slices)
}

/// The slices behind members of the indexes of dead ones, read together.
pub(super) fn dead_slices(session: &Session<'_>, places: &[(ChunkId, SliceId)]) -> Result<Vec<Slice>> {
    session.expect(places.iter().map(|(chunk, id)| hget(&slices_key(session, *chunk), &field(*id))))?;
    let mut slices = Vec::with_capacity(places.len());
    for (chunk, id) in places {
        slices.extend(one_slice(session, *chunk, *id)?);
    }
    Ok(slices)
}

/// Entries of the index from a tuple on to before another one.
pub(super) fn entries(
    session: &Session<'_>,
    subscription: SubscriptionId,
    range: (Vec<u8>, Vec<u8>),
    limit: usize,
) -> Result<Vec<Entry>> {
    let members = session.range(&index(session, subscription), range, limit)?;
    Ok(members.iter().map(|member| Entry::read(member)).collect())
}

/// Says that these ranges of the index will be read.
pub(super) fn expect_entries(
    session: &Session<'_>,
    subscription: SubscriptionId,
    ranges: impl IntoIterator<Item = ((Vec<u8>, Vec<u8>), usize)>,
) -> Result<()> {
    session.expect_ranges(&index(session, subscription), ranges)
}

/// Says that the slices behind entries will be read, and the first of their chunks. Of all chunks nobody knows yet what they weigh.
pub(super) fn expect_all<'e>(
    session: &Session<'_>,
    entries: impl Iterator<Item = &'e Entry> + Clone,
    chunks: usize,
) -> Result<()> {
    let mut first: Vec<ChunkId> = entries.clone().map(|entry| entry.chunk).collect();
    first.sort_unstable();
    first.dedup();
    let chunks = first.iter().take(chunks).map(|chunk| get(&chunk_key(session, *chunk)));
    let slices = entries.map(|entry| hget(&slices_key(session, entry.chunk), &field(entry.id)));
    session.expect(slices.chain(chunks))
}

/// How many chunks a claim reads before it knows what it takes.
pub(super) const FIRST_CHUNKS: usize = 64;

/// The slices behind entries, read together. What has moved since the index was read is left out.
pub(super) fn load(session: &Session<'_>, entries: &[Entry]) -> Result<Vec<Slice>> {
    expect_all(session, entries.iter(), 0)?;
    let mut slices = Vec::with_capacity(entries.len());
    for entry in entries {
        let slice = one_slice(session, entry.chunk, entry.id)?;
        slices.extend(slice.filter(|slice| columns_of(slice) == entry.columns()));
    }
    Ok(slices)
}

/// All slices whose entries begin with these columns.
pub(super) fn slices_with(
    session: &Session<'_>,
    subscription: SubscriptionId,
    columns: &[i64],
    limit: usize,
) -> Result<Vec<Slice>> {
    let entries = entries(session, subscription, Tuple::new().with(columns).all(), limit)?;
    load(session, &entries)
}

pub(super) fn write_slice(session: &Session<'_>, slice: &Slice) -> Result<()> {
    take_out(session, slice.chunk, slice.id)?;
    put_in(session, slice);
    Ok(())
}

fn put_in(session: &Session<'_>, slice: &Slice) {
    session.put(slices_key(session, slice.chunk), field(slice.id), pack(slice));
    session.enter(index(session, slice.subscription), member(slice));
    for (index, member) in graves(session, slice) {
        session.enter(index, member);
    }
}

/// The dead and held slices of a subscription, by chunk.
pub(super) fn dead_index(session: &Session<'_>, subscription: SubscriptionId) -> Vec<u8> {
    session.key(&format!("dead:{subscription}"))
}

/// The dead slices of a subscription, by the time of their death.
pub(super) fn died_index(session: &Session<'_>, subscription: SubscriptionId) -> Vec<u8> {
    session.key(&format!("died:{subscription}"))
}

/// Where else a slice is found when it is dead or held: what lives pays nothing.
fn graves(session: &Session<'_>, slice: &Slice) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (place, id) = ([slice.chunk.0, slice.id.0], slice.subscription);
    let mut graves = Vec::new();
    if matches!(slice.state, State::Dead | State::Held) {
        graves.push((dead_index(session, id), Tuple::new().with(&place).bytes()));
    }
    if slice.state == State::Dead {
        graves.push((died_index(session, id), Tuple::new().with(&[slice.due_at.0]).with(&place).bytes()));
    }
    graves
}

pub(super) fn delete_slice(session: &Session<'_>, chunk: ChunkId, id: SliceId) -> Result<()> {
    if one_slice(session, chunk, id)?.is_none() {
        return Ok(());
    }
    take_out(session, chunk, id)?;
    grow(session, -SLICE_BYTES);
    session.remove(slices_key(session, chunk), field(id));
    Ok(())
}

fn take_out(session: &Session<'_>, chunk: ChunkId, id: SliceId) -> Result<()> {
    if let Some(old) = one_slice(session, chunk, id)? {
        session.withdraw(index(session, old.subscription), member(&old));
        for (index, member) in graves(session, &old) {
            session.withdraw(index, member);
        }
    }
    Ok(())
}

/// Numbers and writes new slices.
pub(super) fn insert(session: &Session<'_>, slices: &[Slice]) -> Result<()> {
    if slices.is_empty() {
        return Ok(());
    }
    let first = session.slice_numbers(slices.len())?;
    grow(session, SLICE_BYTES * slices.len() as i64);
    for (id, slice) in (first..).zip(slices) {
        put_in(session, &Slice { id: SliceId(id), ..slice.clone() });
    }
    Ok(())
}

/// What a slice takes with its place in the index, and a chunk beside its events; about.
pub(super) const SLICE_BYTES: i64 = 180;
const CHUNK_BYTES: i64 = 220;

/// Counts what the store weighs.
fn grow(session: &Session<'_>, bytes: i64) {
    session.sum(session.key("size"), "bytes", bytes);
}

/// The lanes of a subscription.
pub(super) fn lanes_key(session: &Session<'_>, subscription: SubscriptionId) -> Vec<u8> {
    session.key(&format!("lanes:{subscription}"))
}

fn lane(subscription: SubscriptionId, lane: LaneId, row: &[u8]) -> Result<Lane> {
    let mut row = Unpacker::new(row);
    Ok(Lane {
        subscription,
        lane,
        owner: Some(row.number()?).filter(|owner| *owner != 0).map(Incarnation),
        epoch: row.number()?,
        until: Time(row.number()?),
        halted_until: Time(row.number()?),
        leased: row.number()?,
        marks: row.number()?,
    })
}

pub(super) fn lanes(session: &Session<'_>, subscription: SubscriptionId) -> Result<Vec<Lane>> {
    let mut lanes = Vec::new();
    for (id, row) in session.all(&lanes_key(session, subscription))? {
        let id = std::str::from_utf8(&id).ok().and_then(|id| id.parse().ok()).ok_or_else(damaged)?;
        lanes.push(lane(subscription, LaneId(id), &row)?);
    }
    lanes.sort_by_key(|lane| lane.lane);
    Ok(lanes)
}

pub(super) fn one_lane(
    session: &Session<'_>,
    subscription: SubscriptionId,
    id: LaneId,
) -> Result<Option<Lane>> {
    let row = session.get(&lanes_key(session, subscription), id.to_string().as_bytes())?;
    row.map(|row| lane(subscription, id, &row)).transpose()
}

pub(super) fn write_lane(session: &Session<'_>, lane: &Lane) {
    let row = Packer::new()
        .number(lane.owner.map_or(0, |owner| owner.0))
        .number(lane.epoch)
        .number(lane.until.0)
        .number(lane.halted_until.0)
        .number(lane.leased)
        .number(lane.marks)
        .done();
    session.put(lanes_key(session, lane.subscription), lane.lane.to_string(), row);
}

fn chunk_key(session: &Session<'_>, chunk: ChunkId) -> Vec<u8> {
    session.key(&format!("c:{chunk}"))
}

pub(super) fn one_chunk(session: &Session<'_>, id: ChunkId) -> Result<Option<ChunkRow>> {
    session.blob(&chunk_key(session, id))?.map(|row| unpack_chunk(id, &row)).transpose()
}

/// A chunk from its value.
pub(super) fn unpack_chunk(id: ChunkId, row: &[u8]) -> Result<ChunkRow> {
    let mut row = Unpacker::new(row);
    let chunk = unpack_meta(id, &mut row)?;
    Ok(ChunkRow { body: Bytes::copy_from_slice(row.bytes()?), ..chunk })
}

fn unpack_meta(id: ChunkId, row: &mut Unpacker<'_>) -> Result<ChunkRow> {
    Ok(ChunkRow {
        chunk: id,
        topic: TopicId(row.number()?),
        emitted_at: Time(row.number()?),
        prevs: row.numbers()?,
        mains: row.numbers()?,
        meta: row.text()?,
        body: Bytes::new(),
    })
}

/// How much of a chunk is read where its payloads do not matter: mostly that holds everything else.
const FRONT: usize = 8192;

/// Chunks without their payloads, which may be large, by number. Those that are gone are left out.
pub(super) fn metas(
    session: &Session<'_>,
    chunks: impl Iterator<Item = ChunkId>,
) -> Result<BTreeMap<ChunkId, ChunkRow>> {
    let chunks: BTreeSet<ChunkId> = chunks.collect();
    let keys: Vec<Vec<u8>> = chunks.iter().map(|chunk| chunk_key(session, *chunk)).collect();
    session.expect_fronts(&keys, FRONT)?;
    let mut found = BTreeMap::new();
    for (&chunk, key) in chunks.iter().zip(&keys) {
        let Some(front) = session.front(key, FRONT)? else { continue };
        let meta = match unpack_meta(chunk, &mut Unpacker::new(&front)) {
            Ok(meta) => Some(meta),
            Err(_) => one_chunk(session, chunk)?,
        };
        found.extend(meta.map(|meta| (chunk, meta)));
    }
    Ok(found)
}

/// Says that these chunks will be read.
pub(super) fn expect_chunks(session: &Session<'_>, chunks: impl Iterator<Item = ChunkId>) -> Result<()> {
    session.expect(chunks.map(|chunk| get(&chunk_key(session, chunk))))
}

fn pack_chunk(row: &ChunkRow) -> Vec<u8> {
    let some = |numbers: &[i64]| {
        if numbers.iter().all(|number| *number == 0) { Vec::new() } else { numbers.to_vec() }
    };
    Packer::new()
        .number(row.topic.0)
        .number(row.emitted_at.0)
        .numbers(&some(&row.prevs))
        .numbers(&some(&row.mains))
        .bytes(row.meta.as_bytes())
        .bytes(&row.body)
        .done()
}

/// A chunk as the log of its topic knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Logged {
    pub(super) chunk: ChunkId,
    pub(super) emitted_at: Time,
    pub(super) count: i64,
    pub(super) bytes: i64,
}

impl Logged {
    pub(super) fn member(&self) -> Vec<u8> {
        Tuple::new().with(&[self.chunk.0, self.emitted_at.0, self.count, self.bytes]).bytes()
    }

    fn read(member: &[u8]) -> Logged {
        let mut columns = Columns(member);
        Logged {
            chunk: ChunkId(columns.number()),
            emitted_at: Time(columns.number()),
            count: columns.number(),
            bytes: columns.number(),
        }
    }
}

/// Writes a chunk.
pub(super) fn write_chunk(session: &Session<'_>, row: &ChunkRow, logged: &Logged) {
    session.put_blob(chunk_key(session, row.chunk), pack_chunk(row));
    session.enter(log_key(session, row.topic), logged.member());
    grow(session, logged.bytes + CHUNK_BYTES);
}

/// Removes chunks that nothing refers to. Their events stay counted.
pub(super) fn remove_chunks(session: &Session<'_>, topic: TopicId, chunks: &[Logged]) {
    for logged in chunks {
        session.withdraw(log_key(session, topic), logged.member());
        session.remove_blob(chunk_key(session, logged.chunk));
        failures::forget(session, logged.chunk);
        grow(session, -logged.bytes - CHUNK_BYTES);
    }
}

/// The chunks of a topic, by number.
fn log_key(session: &Session<'_>, topic: TopicId) -> Vec<u8> {
    session.key(&format!("l:{topic}"))
}

/// The next chunks of a topic, from one on to before another.
pub(super) fn logged(
    session: &Session<'_>,
    topic: TopicId,
    from: i64,
    to: i64,
    limit: usize,
) -> Result<Vec<Logged>> {
    let range = (Tuple::new().with(&[from]).bytes(), Tuple::new().with(&[to]).bytes());
    let members = session.range(&log_key(session, topic), range, limit)?;
    Ok(members.iter().map(|member| Logged::read(member)).collect())
}

/// True if the chunk is there, and stays until this step is over.
pub(super) fn is_logged(session: &Session<'_>, topic: TopicId, chunk: ChunkId) -> Result<bool> {
    Ok(!logged(session, topic, chunk.0, chunk.0.saturating_add(1), 1)?.is_empty())
}

/// Writes what a plan decided about one subscription.
pub(super) fn apply(session: &Session<'_>, subscription: SubscriptionId, changes: &Changes) -> Result<()> {
    session.end(changes.ended.iter().map(|&(chunk, mask, ending)| Ended {
        subscription,
        chunk,
        mask,
        ending,
    }));
    session.drop(subscription, &changes.dropped);
    failures::write(session, subscription, changes)?;
    for (lane, key) in &changes.unpark {
        unpark::unpark(session, subscription, *lane, key)?;
    }
    for park in &changes.park {
        remove_parked(session, subscription, park.lane, &park.key)?;
        let row = Packer::new().number(park.blocked_by.0).number(park.since.0).done();
        session.put(parked_key(session, subscription), mark_field(park.lane, &park.key), row);
        let member = Tuple::new().with(&[park.blocked_by.0, park.lane.0]).text(&park.key).bytes();
        session.enter(parked_index(session, subscription), member);
    }
    change_gaps(session, subscription, changes)?;
    for (chunk, id) in &changes.delete {
        delete_slice(session, *chunk, *id)?;
    }
    for slice in &changes.update {
        write_slice(session, slice)?;
    }
    insert(session, &changes.insert)
}

/// Each key once, however many gaps it got: compaction may bring thousands.
fn change_gaps(session: &Session<'_>, subscription: SubscriptionId, changes: &Changes) -> Result<()> {
    let mut keys: BTreeMap<(LaneId, &str), (Vec<EventId>, EventId)> = BTreeMap::new();
    for (lane, key, event) in &changes.gaps {
        keys.entry((*lane, key)).or_default().0.push(*event);
    }
    for (lane, key, event) in &changes.told {
        let told = &mut keys.entry((*lane, key)).or_default().1;
        *told = (*told).max(*event);
    }
    for ((lane, key), (new, told)) in keys {
        let mut known: BTreeSet<EventId> = gaps(session, subscription, lane, key)?.into_iter().collect();
        known.extend(new);
        let left: Vec<EventId> = known.into_iter().filter(|gap| *gap > told).collect();
        write_gaps(session, subscription, lane, key, &left);
    }
    Ok(())
}

/// Parked keys of a subscription, by lane and key; and by the event that blocks them.
pub(super) fn parked_key(session: &Session<'_>, subscription: SubscriptionId) -> Vec<u8> {
    session.key(&format!("parked:{subscription}"))
}

pub(super) fn parked_index(session: &Session<'_>, subscription: SubscriptionId) -> Vec<u8> {
    session.key(&format!("blocked:{subscription}"))
}

pub(super) fn mark_field(lane: LaneId, key: &str) -> Vec<u8> {
    Tuple::new().with(&[lane.0]).text(key).bytes()
}

/// The event that blocks a key, and since when, if the key is parked.
pub(super) fn parked(
    session: &Session<'_>,
    subscription: SubscriptionId,
    lane: LaneId,
    key: &str,
) -> Result<Option<(EventId, Time)>> {
    let Some(row) = session.get(&parked_key(session, subscription), &mark_field(lane, key))? else {
        return Ok(None);
    };
    let mut row = Unpacker::new(&row);
    Ok(Some((EventId(row.number()?), Time(row.number()?))))
}

pub(super) fn remove_parked(
    session: &Session<'_>,
    subscription: SubscriptionId,
    lane: LaneId,
    key: &str,
) -> Result<()> {
    let Some((blocked_by, _)) = parked(session, subscription, lane, key)? else { return Ok(()) };
    session.remove(parked_key(session, subscription), mark_field(lane, key));
    let member = Tuple::new().with(&[blocked_by.0, lane.0]).text(key).bytes();
    session.withdraw(parked_index(session, subscription), member);
    Ok(())
}

/// Gaps of a subscription, by lane and key; and the index of those.
pub(super) fn gaps_key(session: &Session<'_>, subscription: SubscriptionId) -> Vec<u8> {
    session.key(&format!("gaps:{subscription}"))
}

pub(super) fn gaps_index(session: &Session<'_>, subscription: SubscriptionId) -> Vec<u8> {
    session.key(&format!("gapped:{subscription}"))
}

/// The gaps of a key, ascending.
pub(super) fn gaps(
    session: &Session<'_>,
    subscription: SubscriptionId,
    lane: LaneId,
    key: &str,
) -> Result<Vec<EventId>> {
    let Some(row) = session.get(&gaps_key(session, subscription), &mark_field(lane, key))? else {
        return Ok(Vec::new());
    };
    Ok(Unpacker::new(&row).numbers()?.into_iter().map(EventId).collect())
}

pub(super) fn write_gaps(
    session: &Session<'_>,
    subscription: SubscriptionId,
    lane: LaneId,
    key: &str,
    gaps: &[EventId],
) {
    let (table, index, field) =
        (gaps_key(session, subscription), gaps_index(session, subscription), mark_field(lane, key));
    if gaps.is_empty() {
        session.remove(table, field.clone());
        session.withdraw(index, field);
        return;
    }
    let numbers: Vec<i64> = gaps.iter().map(|gap| gap.0).collect();
    session.put(table, field.clone(), Packer::new().numbers(&numbers).done());
    session.enter(index, field);
}

/// Says that the marks of these keys will be read.
pub(super) fn expect_marks<'k>(
    session: &Session<'_>,
    subscription: SubscriptionId,
    lane: LaneId,
    keys: impl Iterator<Item = &'k Arc<str>>,
) -> Result<()> {
    let tables = [parked_key(session, subscription), gaps_key(session, subscription)];
    let reads = |key: &'k Arc<str>| {
        let field = mark_field(lane, key);
        tables.each_ref().map(|table| hget(table, &field))
    };
    session.expect(keys.flat_map(reads))
}

/// Says that all slices of these chunks will be read.
pub(super) fn expect_slices(session: &Session<'_>, chunks: impl Iterator<Item = ChunkId>) -> Result<()> {
    session.expect(chunks.map(|chunk| vec![b"HGETALL".to_vec(), slices_key(session, chunk)]))
}
