//! Chunks that were claimed in part a moment ago.
//!
//! The events of a chunk lie in many lanes, and these are claimed a few at a time: without this every chunk of a busy topic would be read
//! several times. What is in a chunk never changes, and its number does not come back, once all up to it is known to be on the disk of its
//! server (`low.rs`); only such chunks are kept.

use super::low::Proven;
use crate::model::chunk::ChunkRow;
use crate::model::id::ChunkId;
use crate::model::mask::Mask;
use crate::store::claimed::RawClaim;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is kept at most, in bytes.
const ROOM: usize = 8 << 20;

/// The last chunks that came.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Of which server ([`super::session::Session::server`]).
    server: i64,
    chunks: HashMap<ChunkId, ChunkRow>,
    /// Oldest first.
    order: VecDeque<ChunkId>,
    weight: usize,
}

impl Recent {
    /// Those of some chunks that are here.
    pub(super) fn find(&self, server: i64, wanted: &BTreeSet<ChunkId>) -> Vec<(ChunkId, ChunkRow)> {
        let kept = self.kept();
        let found = wanted.iter().filter_map(|id| Some((*id, kept.chunks.get(id)?.clone())));
        if kept.server == server { found.collect() } else { Vec::new() }
    }

    /// Keeps the chunks of which a claim in lanes took a part, up to the last one that is `proven`. Of events without keys nobody knows how
    /// many there are.
    pub(super) fn keep(&self, proven: Proven, raw: &RawClaim) {
        let mut taken: HashMap<ChunkId, Mask> = HashMap::new();
        for slice in raw.slices.iter().filter(|slice| slice.is_ordered() && slice.chunk <= proven.chunk) {
            let mask = taken.entry(slice.chunk).or_default();
            *mask = mask.plus(slice.mask);
        }
        if taken.is_empty() {
            return;
        }
        let mut kept = self.kept();
        if kept.server != proven.server {
            *kept = Kept { server: proven.server, ..Kept::default() };
        }
        for (id, mask) in taken {
            let row = raw.chunks.get(&id).filter(|row| (mask.count() as usize) < row.prevs.len());
            row.into_iter().for_each(|row| kept.add(row));
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn add(&mut self, row: &ChunkRow) {
        let weight = weight(row);
        if self.chunks.contains_key(&row.chunk) || weight > ROOM {
            return;
        }
        self.chunks.insert(row.chunk, row.clone());
        self.order.push_back(row.chunk);
        self.weight += weight;
        while self.weight > ROOM {
            let Some(oldest) = self.order.pop_front().and_then(|oldest| self.chunks.remove(&oldest)) else {
                break;
            };
            self.weight -= self::weight(&oldest);
        }
    }
}

fn weight(row: &ChunkRow) -> usize {
    row.body.len() + row.meta.len() + 8 * (row.prevs.len() + row.mains.len()) + size_of::<ChunkRow>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::{LaneId, SliceId, SubscriptionId, TopicId};
    use crate::model::slice::{Slice, State};
    use crate::model::time::Time;
    use bytes::Bytes;

    /// A claim of the first event of a chunk that has so many.
    fn claim(chunk: ChunkId, count: usize, size: usize) -> RawClaim {
        let slice = Slice {
            id: SliceId(1),
            chunk,
            subscription: SubscriptionId(1),
            lane: LaneId(5),
            state: State::Leased,
            mask: Mask::of(0),
            due_at: Time(0),
            rank: 0,
            attempts: 0,
            crashes: 0,
            alone: 0,
            epoch: 1,
            owner: Default::default(),
            replayed: false,
            tallied: false,
            bytes: 0,
            error: None,
        };
        let row = ChunkRow {
            chunk,
            topic: TopicId(1),
            emitted_at: Time(0),
            meta: String::new(),
            prevs: vec![0; count],
            mains: Vec::new(),
            body: Bytes::from(vec![0; size]),
        };
        RawClaim { slices: vec![slice], chunks: HashMap::from([(chunk, row)]), ..RawClaim::default() }
    }

    fn proven(server: i64) -> Proven {
        Proven { chunk: ChunkId(9), server }
    }

    fn has(recent: &Recent, server: i64, chunk: i64) -> bool {
        !recent.find(server, &BTreeSet::from([ChunkId(chunk)])).is_empty()
    }

    #[test]
    fn what_was_claimed_in_part_is_kept_if_it_is_proven_and_what_was_claimed_whole_is_not() {
        let recent = Recent::default();
        recent.keep(proven(1), &claim(ChunkId(1), 2, 10));
        recent.keep(proven(1), &claim(ChunkId(2), 1, 10));
        recent.keep(proven(1), &claim(ChunkId(10), 2, 10));
        assert_eq!([1, 2, 10].map(|chunk| has(&recent, 1, chunk)), [true, false, false]);
    }

    #[test]
    fn what_another_server_had_is_forgotten() {
        let recent = Recent::default();
        recent.keep(proven(1), &claim(ChunkId(1), 2, 10));
        assert!(!has(&recent, 2, 1));
        recent.keep(proven(2), &claim(ChunkId(2), 2, 10));
        assert_eq!((has(&recent, 1, 1), has(&recent, 2, 1), has(&recent, 2, 2)), (false, false, true));
    }

    #[test]
    fn the_oldest_give_way_when_there_is_no_room() {
        let recent = Recent::default();
        (1..=4).for_each(|chunk| recent.keep(proven(1), &claim(ChunkId(chunk), 2, ROOM / 3 - 1_000)));
        let kept: Vec<i64> = (1..=4).filter(|chunk| has(&recent, 1, *chunk)).collect();
        assert_eq!(kept, [2, 3, 4]);
        recent.keep(proven(1), &claim(ChunkId(5), 2, ROOM));
        assert!(!has(&recent, 1, 5));
        let kept = recent.kept();
        assert_eq!((kept.chunks.len(), kept.order.len(), kept.weight <= ROOM), (3, 3, true));
    }
}
