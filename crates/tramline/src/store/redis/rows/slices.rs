//! Slices: the row of each, in a hash for its chunk. Whoever writes one sees to its places in the indexes.

use super::grow;
use super::index::{graves, index, member};
use crate::error::Result;
use crate::model::id::{ChunkId, Incarnation, LaneId, SliceId, SubscriptionId};
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::time::Time;
use crate::store::deleted::within;
use crate::store::redis::link::Command;
use crate::store::redis::pack::{Packer, Unpacker, damaged};
use crate::store::redis::session::{Session, Writes, hget, hlen, key};
use std::collections::BTreeSet;

/// The slices of a chunk, in all subscriptions.
pub(in crate::store::redis) fn slices_key(session: &Session<'_>, chunk: ChunkId) -> Vec<u8> {
    session.key(&format!("s:{chunk}"))
}

/// A slice as its row.
pub(in crate::store::redis) fn pack(slice: &Slice) -> Vec<u8> {
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
pub(in crate::store::redis) fn unpack(chunk: ChunkId, id: SliceId, row: &[u8]) -> Result<Slice> {
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

pub(super) fn field(id: SliceId) -> Vec<u8> {
    id.to_string().into_bytes()
}

/// The command that reads a slice.
pub(in crate::store::redis) fn slice_read(name: &str, chunk: ChunkId, id: SliceId) -> Command {
    hget(&key(name, &format!("s:{chunk}")), &field(id))
}

/// What the row of a slice becomes, if it is written.
pub(in crate::store::redis) fn slice_row<'w>(
    name: &str,
    writes: &'w Writes,
    chunk: ChunkId,
    id: SliceId,
) -> Option<&'w [u8]> {
    writes.field(&key(name, &format!("s:{chunk}")), &field(id))
}

/// One slice.
pub(in crate::store::redis) fn one_slice(
    session: &Session<'_>,
    chunk: ChunkId,
    id: SliceId,
) -> Result<Option<Slice>> {
    let row = session.get(&slices_key(session, chunk), &field(id))?;
    row.map(|row| unpack(chunk, id, &row)).transpose()
}

/// All slices of a chunk, by subscription and number.
pub(in crate::store::redis) fn slices_at(session: &Session<'_>, chunk: ChunkId) -> Result<Vec<Slice>> {
    let mut slices = Vec::new();
    for (id, row) in session.all(&slices_key(session, chunk))? {
        let id = std::str::from_utf8(&id).ok().and_then(|id| id.parse().ok()).ok_or_else(damaged)?;
        slices.push(unpack(chunk, SliceId(id), &row)?);
    }
    slices.sort_by_key(|slice| (slice.subscription, slice.id));
    Ok(slices)
}

/// The slices of one chunk in one subscription.
pub(in crate::store::redis) fn slices_of_chunk(
    session: &Session<'_>,
    subscription: SubscriptionId,
    chunk: ChunkId,
) -> Result<Vec<Slice>> {
    let mut slices = slices_at(session, chunk)?;
    slices.retain(|slice| slice.subscription == subscription);
    Ok(slices)
}

pub(in crate::store::redis) fn write_slice(session: &Session<'_>, slice: &Slice) -> Result<()> {
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

pub(in crate::store::redis) fn delete_slice(
    session: &Session<'_>,
    chunk: ChunkId,
    id: SliceId,
) -> Result<()> {
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
pub(in crate::store::redis) fn insert(session: &Session<'_>, slices: &[Slice]) -> Result<()> {
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
pub(in crate::store::redis) const SLICE_BYTES: i64 = 180;

/// How many slices of chunks one step of housekeeping reads or removes, about: with order a chunk may be in many lanes, and each
/// subscription has slices of its own.
pub(in crate::store::redis) const STEP_SLICES: i64 = 300;

/// How many slices each of these chunks has, in all subscriptions.
fn slice_counts(session: &Session<'_>, chunks: &[ChunkId]) -> Result<Vec<i64>> {
    let keys: Vec<Vec<u8>> = chunks.iter().map(|chunk| slices_key(session, *chunk)).collect();
    session.expect(keys.iter().map(|key| hlen(key)))?;
    keys.iter().map(|key| session.count(key)).collect()
}

/// Which of these chunks no slice refers to. Those that some do need not stay so.
pub(in crate::store::redis) fn free_among(
    session: &Session<'_>,
    chunks: impl Iterator<Item = ChunkId>,
) -> Result<BTreeSet<ChunkId>> {
    let empty = |chunks: &[ChunkId]| -> Result<Vec<ChunkId>> {
        let counts = slice_counts(session, chunks)?;
        Ok(chunks.iter().zip(counts).filter(|(_, count)| *count == 0).map(|(chunk, _)| *chunk).collect())
    };
    let all: Vec<ChunkId> = chunks.collect();
    let seem_free = session.loosely(|| empty(&all))?;
    Ok(empty(&seem_free)?.into_iter().collect())
}

/// How many of these chunks, from the first on, have so few slices that one step may read all of them: at least one.
pub(in crate::store::redis) fn within_step_slices(
    session: &Session<'_>,
    chunks: impl Iterator<Item = ChunkId>,
) -> Result<usize> {
    // What comes meanwhile makes the step a little longer.
    let chunks: Vec<ChunkId> = chunks.collect();
    let counts = session.loosely(|| slice_counts(session, &chunks))?;
    Ok(within(counts.into_iter(), STEP_SLICES))
}

/// Says that all slices of these chunks will be read.
pub(in crate::store::redis) fn expect_slices(
    session: &Session<'_>,
    chunks: impl Iterator<Item = ChunkId>,
) -> Result<()> {
    session.expect(chunks.map(|chunk| vec![b"HGETALL".to_vec(), slices_key(session, chunk)]))
}
