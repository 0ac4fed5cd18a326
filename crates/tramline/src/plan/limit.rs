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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::{Incarnation, LaneId, SliceId, SubscriptionId};
    use proptest::prelude::*;
    use std::time::Duration;

    const KEYS: [Option<&str>; 4] = [Some("a"), Some("b"), Some("c"), None];

    fn slice(chunk: i64, events: usize, state: State) -> Slice {
        Slice {
            id: SliceId(chunk),
            chunk: ChunkId(chunk),
            subscription: SubscriptionId(1),
            lane: LaneId::UNORDERED,
            state,
            mask: Mask::first(events as u32),
            due_at: Time(0),
            rank: 5,
            attempts: 0,
            crashes: 0,
            alone: 0,
            epoch: 0,
            owner: Incarnation::default(),
            replayed: false,
            tallied: false,
            bytes: 1,
            error: None,
        }
    }

    fn taker(events: u32, single: bool) -> Taker {
        let (owner, until) = (Incarnation(7), Time(9));
        Taker { owner, until, epoch: 0, events, bytes: i64::MAX, single, consume: false }
    }

    #[test]
    fn slots_and_starts_are_what_is_left_of_the_limits() {
        let rate = Rate::new(4, Duration::from_secs(10));
        let limits = Limits { concurrency: Some(10), rate: Some(rate), ..Limits::default() };
        let mut room = Room::new(&limits, 7, Starts::default(), Time(1_000));
        assert_eq!((room.events(), room.next_start()), (3, None));
        assert!(room.take(3).is_some());
        assert_eq!((room.events(), room.next_start()), (0, None), "there is no slot, and one start");
        let room = Room::new(&limits, 11, Starts::default(), Time(1_000));
        assert_eq!(room.events(), 0, "more may be under way than a limit that was lowered allows");
        let unlimited = Room::new(&Limits::default(), 1_000_000, Starts::default(), Time(1_000));
        assert_eq!(unlimited.events(), u32::MAX);
    }

    #[test]
    fn the_ranges_of_crowded_ranks_hold_every_rank_once() {
        for now in [0, 1, 1_800_000_000_000, i64::MAX] {
            let ranges = crowded_ranges(Time(now));
            for (priority, key) in [(0, "a"), (5, "b"), (9, "zzz")] {
                let rank = crowded_rank(priority, key);
                assert_eq!(ranges.iter().filter(|(from, end)| (*from..*end).contains(&rank)).count(), 1);
                assert_eq!(hash_of(rank), i64::from(hash(key)));
            }
        }
    }

    proptest! {
        #[test]
        fn no_event_is_lost_and_no_key_is_over_its_limit(
            chunks in proptest::collection::vec(proptest::collection::vec(0..4_usize, 1..20), 1..8),
            most in 1..4_u32,
            events in 1..40_u32,
            single in any::<bool>(),
        ) {
            let mut keys = Keys::new();
            let mut due = Vec::new();
            for (at, events) in chunks.iter().enumerate() {
                let chunk = at as i64 + 1;
                let names = events.iter().map(|key| KEYS[*key].map(Arc::from)).collect();
                keys.insert(ChunkId(chunk), names);
                due.push(slice(chunk, events.len(), State::Ready));
            }
            let mut crowd = Crowd::new(most, [].iter(), &keys);
            let (mut taker, mut changes) = (taker(events, single), Changes::default());
            let taken = take(due.clone(), &keys, &mut crowd, &mut taker, &mut changes);
            let mut counts: HashMap<Arc<str>, u32> = HashMap::new();
            for slice in &taken {
                for key in slice.mask.iter().filter_map(|index| key(&keys, slice.chunk, index)) {
                    *counts.entry(key.clone()).or_default() += 1;
                }
            }
            prop_assert!(counts.values().all(|count| *count <= most));
            prop_assert!(taken.iter().map(|slice| slice.mask.count()).sum::<u32>() <= events);
            for old in &due {
                let gone = changes.delete.contains(&(old.chunk, old.id));
                let row = changes.update.iter().find(|row| row.id == old.id).or(Some(old)).filter(|_| !gone);
                let parts = row.into_iter().chain(changes.insert.iter().filter(|row| row.chunk == old.chunk));
                let (mut union, mut count) = (Mask::EMPTY, 0);
                for part in parts {
                    union = union.plus(part.mask);
                    count += part.mask.count();
                    prop_assert!(part.state != State::Crowded || disperse(part.clone()).rank == 5);
                }
                prop_assert_eq!((union, count), (old.mask, old.mask.count()), "every event is in one row");
            }
        }
    }
}
