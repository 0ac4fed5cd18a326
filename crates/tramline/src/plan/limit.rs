//! What a claim of a limited subscription may take.
//!
//! A slot is not counted up and down: what is under way is what is leased, read under a lock that only claims of this
//! subscription take. So whatever ends a lease frees the slot, and no death can leak one.

use crate::model::id::ChunkId;
use crate::model::lane::hash;
use crate::model::limits::{Limits, Rate, Starts};
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::time::Time;
use crate::plan::claim::Taker;
use crate::plan::{Changes, join};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What is left of the limits at one moment.
#[derive(Clone, Debug)]
pub struct Room {
    /// How many more events may be under way.
    slots: u32,
    rate: Option<(Rate, Starts)>,
    now: Time,
}

impl Room {
    /// `under_way`: how many events are leased. `starts`: when events started, if there is a rate.
    pub fn new(limits: &Limits, under_way: u64, starts: Starts, now: Time) -> Room {
        let slots = limits.most().map_or(u32::MAX, |most| u64::from(most).saturating_sub(under_way) as u32);
        Room { slots, rate: limits.rate.map(|rate| (rate, starts)), now }
    }

    /// How many events may be taken.
    pub fn events(&self) -> u32 {
        let starts = self.rate.as_ref().map_or(u32::MAX, |(rate, starts)| starts.room(*rate, self.now));
        self.slots.min(starts)
    }

    /// So many were taken. Gives what to remember of it, if there is a rate.
    pub fn take(&mut self, events: u32) -> Option<String> {
        self.slots = self.slots.saturating_sub(events);
        let (rate, starts) = self.rate.as_mut().filter(|_| events > 0)?;
        starts.add(*rate, self.now, events);
        Some(starts.text())
    }

    /// When the rate allows another event, if it is the rate that allows none now. What has no slot waits for a lease to end,
    /// and is woken when one is settled.
    pub fn next_start(&self) -> Option<Time> {
        let (rate, starts) = self.rate.as_ref()?;
        (starts.room(*rate, self.now) == 0).then(|| starts.next(*rate, self.now))
    }
}

/// The keys of the events of chunks.
pub type Keys = HashMap<ChunkId, Arc<[Option<Arc<str>>]>>;

/// How many events of each key are under way, where only so many may be.
#[derive(Clone, Debug)]
pub struct Crowd {
    most: u32,
    running: HashMap<Arc<str>, u32>,
}

impl Crowd {
    /// Counts what is under way.
    pub fn new<'a>(most: u32, leased: impl Iterator<Item = &'a (ChunkId, Mask)>, keys: &Keys) -> Crowd {
        let mut crowd = Crowd { most, running: HashMap::new() };
        for (chunk, mask) in leased {
            for key in mask.iter().filter_map(|index| key(keys, *chunk, index)) {
                *crowd.running.entry(key.clone()).or_default() += 1;
            }
        }
        crowd
    }

    /// How many events of one key may be under way.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// The hashes of the keys of which nothing more may be taken.
    pub fn full(&self) -> HashSet<i64> {
        let full = self.running.iter().filter(|(_, count)| **count >= self.most);
        full.map(|(key, _)| i64::from(hash(key))).collect()
    }

    /// True if another event of the key may be taken, and then it is.
    fn enter(&mut self, key: &Arc<str>) -> bool {
        let count = self.running.entry(key.clone()).or_default();
        let free = *count < self.most;
        *count += u32::from(free);
        free
    }
}

fn key(keys: &Keys, chunk: ChunkId, index: u32) -> Option<&Arc<str>> {
    keys.get(&chunk)?.get(index as usize)?.as_ref()
}

/// Where crowded events of a key are found: by priority, and then by the hash of the key.
fn crowded_rank(priority: i64, key: &str) -> i64 {
    priority << 32 | i64::from(hash(key))
}

/// The hash of the key in the rank of crowded slices.
pub(crate) fn hash_of(rank: i64) -> i64 {
    rank & 0xffff_ffff
}

/// The ranges of ranks in which crowded slices are looked for, in this order: priority by priority, and in each another key comes
/// first every time.
pub(crate) fn crowded_ranges(now: Time) -> Vec<(i64, i64)> {
    let first = now.0.wrapping_mul(0x9e37_79b1) & 0xffff_ffff;
    (0..10_i64)
        .map(|priority| priority << 32)
        .flat_map(|base| [(base + first, base + (1 << 32)), (base, base + first)])
        .collect()
}

/// Takes from due slices, in the order given, what the limit of each key allows. Ready events whose key has as many under way as
/// may be go aside: out of the search for what is ready, so that a busy key does not have to be passed over again and again.
pub fn take(
    due: Vec<Slice>,
    keys: &Keys,
    crowd: &mut Crowd,
    taker: &mut Taker,
    changes: &mut Changes,
) -> Vec<Slice> {
    let mut taken = Vec::new();
    for slice in due {
        if taker.is_full() {
            break;
        }
        taken.extend(place(slice, keys, crowd, taker, changes));
    }
    taken
}

/// Sorts the events of one slice, and gives the part that is taken.
fn place(
    slice: Slice,
    keys: &Keys,
    crowd: &mut Crowd,
    taker: &mut Taker,
    changes: &mut Changes,
) -> Option<Slice> {
    let most = taker.limit(&slice);
    let (mut mine, mut left, mut aside) = (Mask::EMPTY, Mask::EMPTY, Vec::new());
    for index in slice.mask.iter() {
        let bit = Mask::of(index);
        let key = key(keys, slice.chunk, index);
        if mine.count() >= most {
            left = left.plus(bit);
        } else if key.is_none_or(|key| crowd.enter(key)) {
            mine = mine.plus(bit);
        } else if let (Some(key), State::Ready) = (key, slice.state) {
            let rank = crowded_rank(slice.rank, key);
            join(&mut aside, Slice { state: State::Crowded, rank, ..slice.part(bit) });
        } else {
            left = left.plus(bit);
        }
    }
    if left == slice.mask {
        return None;
    }
    if mine.is_empty() && left.is_empty() && aside.len() == 1 {
        changes.update.extend(aside.into_iter().map(|all| Slice { id: slice.id, ..all }));
        return None;
    }
    changes.insert.extend(aside);
    if mine.is_empty() {
        // The row stays with what is left, if something is.
        match left.is_empty() {
            true => changes.delete.push((slice.chunk, slice.id)),
            false => changes.update.push(Slice { mask: left, ..slice }),
        }
        return None;
    }
    if !left.is_empty() {
        changes.insert.push(slice.part(left));
    }
    let leased = taker.lease(Slice { mask: mine, rank: priority_of(&slice), ..slice });
    changes.update.push(leased.clone());
    Some(leased)
}

/// What is crowded keeps its priority in its rank.
fn priority_of(slice: &Slice) -> i64 {
    if slice.state == State::Crowded { slice.rank >> 32 } else { slice.rank }
}

/// A crowded slice of a subscription that limits its keys no longer: ready again.
pub(crate) fn disperse(slice: Slice) -> Slice {
    Slice { state: State::Ready, rank: priority_of(&slice), ..slice }
}
