//! The indexes over the slices of a subscription: all of them, and those that are dead.

use super::chunks::chunk_key;
use super::slices::{field, one_slice, slices_key};
use crate::error::Result;
use crate::model::id::{ChunkId, LaneId, SliceId, SubscriptionId};
use crate::model::slice::{Slice, State};
use crate::model::time::Time;
use crate::store::redis::session::{Session, get, hget};
use crate::store::redis::tuple::{Columns, Tuple};

/// A slice as its index knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::redis) struct Entry {
    pub(in crate::store::redis) state: i64,
    pub(in crate::store::redis) lane: LaneId,
    pub(in crate::store::redis) rank: i64,
    pub(in crate::store::redis) pos: i64,
    pub(in crate::store::redis) chunk: ChunkId,
    pub(in crate::store::redis) id: SliceId,
    pub(in crate::store::redis) events: u32,
    pub(in crate::store::redis) due_at: Time,
}

impl Entry {
    pub(in crate::store::redis) fn read(member: &[u8]) -> Entry {
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
    pub(in crate::store::redis) fn columns(&self) -> [i64; 6] {
        [self.state, self.lane.0, self.rank, self.pos, self.chunk.0, self.id.0]
    }
}

/// The one index over the slices of a subscription: state, lane, rank, pos, chunk, number. It carries how many events there are, and
/// when they are due unless that is `pos`.
pub(super) fn index(session: &Session<'_>, subscription: SubscriptionId) -> Vec<u8> {
    session.key(&format!("i:{subscription}"))
}

pub(super) fn member(slice: &Slice) -> Vec<u8> {
    let carried = Tuple::new().with(&[i64::from(slice.mask.count())]);
    let carried = if slice.pos() == slice.due_at.0 { carried } else { carried.with(&[slice.due_at.0]) };
    Tuple::new().with(&columns_of(slice)).carrying(&carried.bytes())
}

fn columns_of(slice: &Slice) -> [i64; 6] {
    [slice.state as i64, slice.lane.0, slice.rank, slice.pos(), slice.chunk.0, slice.id.0]
}

/// The slices behind members of the indexes of dead ones, read together.
pub(in crate::store::redis) fn dead_slices(
    session: &Session<'_>,
    places: &[(ChunkId, SliceId)],
) -> Result<Vec<Slice>> {
    session.expect(places.iter().map(|(chunk, id)| hget(&slices_key(session, *chunk), &field(*id))))?;
    let mut slices = Vec::with_capacity(places.len());
    for (chunk, id) in places {
        slices.extend(one_slice(session, *chunk, *id)?);
    }
    Ok(slices)
}

/// Entries of the index from a tuple on to before another one.
pub(in crate::store::redis) fn entries(
    session: &Session<'_>,
    subscription: SubscriptionId,
    range: (Vec<u8>, Vec<u8>),
    limit: usize,
) -> Result<Vec<Entry>> {
    let members = session.range(&index(session, subscription), range, limit)?;
    Ok(members.iter().map(|member| Entry::read(member)).collect())
}

/// Says that these ranges of the index will be read.
pub(in crate::store::redis) fn expect_entries(
    session: &Session<'_>,
    subscription: SubscriptionId,
    ranges: impl IntoIterator<Item = ((Vec<u8>, Vec<u8>), usize)>,
) -> Result<()> {
    session.expect_ranges(&index(session, subscription), ranges)
}

/// Says that the slices behind entries will be read, and the first of their chunks. Of all chunks nobody knows yet what they weigh.
pub(in crate::store::redis) fn expect_all<'e>(
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
pub(in crate::store::redis) const FIRST_CHUNKS: usize = 64;

/// The slices behind entries, read together. What has moved since the index was read is left out.
pub(in crate::store::redis) fn load(session: &Session<'_>, entries: &[Entry]) -> Result<Vec<Slice>> {
    expect_all(session, entries.iter(), 0)?;
    let mut slices = Vec::with_capacity(entries.len());
    for entry in entries {
        let slice = one_slice(session, entry.chunk, entry.id)?;
        slices.extend(slice.filter(|slice| columns_of(slice) == entry.columns()));
    }
    Ok(slices)
}

/// All slices whose entries begin with these columns.
pub(in crate::store::redis) fn slices_with(
    session: &Session<'_>,
    subscription: SubscriptionId,
    columns: &[i64],
    limit: usize,
) -> Result<Vec<Slice>> {
    let entries = entries(session, subscription, Tuple::new().with(columns).all(), limit)?;
    load(session, &entries)
}

/// The dead and held slices of a subscription, by chunk.
pub(in crate::store::redis) fn dead_index(session: &Session<'_>, subscription: SubscriptionId) -> Vec<u8> {
    session.key(&format!("dead:{subscription}"))
}

/// The dead slices of a subscription, by the time of their death.
pub(in crate::store::redis) fn died_index(session: &Session<'_>, subscription: SubscriptionId) -> Vec<u8> {
    session.key(&format!("died:{subscription}"))
}

/// Where else a slice is found when it is dead or held: what lives pays nothing.
pub(super) fn graves(session: &Session<'_>, slice: &Slice) -> Vec<(Vec<u8>, Vec<u8>)> {
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
