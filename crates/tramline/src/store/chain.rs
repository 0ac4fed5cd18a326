//! The events of a key, from one of them back along `prev`.

use crate::model::event::StoredEvent;
use crate::model::id::{ChunkId, EventId};
use crate::store::verbs::{Trace, Traced};

/// How many bytes of chunks one look reads, about.
const MOST_BYTES: usize = 16 << 20;

/// A walk from event to event. Whoever walks reads one chunk after the other.
#[derive(Debug)]
pub(crate) struct Walk {
    traced: Traced,
    wanted: usize,
    bytes: usize,
}

impl Walk {
    pub(crate) fn begin(trace: &Trace) -> Walk {
        let traced = Traced { events: Vec::new(), next: Some(trace.from) };
        Walk { traced, wanted: trace.limit as usize, bytes: 0 }
    }

    /// The chunk to read next; `None` at the end of this look.
    pub(crate) fn chunk(&self) -> Option<ChunkId> {
        let more = self.traced.events.len() < self.wanted && self.bytes < MOST_BYTES;
        self.traced.next.filter(|_| more).map(EventId::chunk)
    }

    /// Goes on within the chunk that was asked for, as far as the key has events in it. Of one that is gone there are no events: there the
    /// chain ends.
    pub(crate) fn follow(&mut self, events: &[StoredEvent]) {
        self.bytes += events.iter().map(|event| event.payload.len()).sum::<usize>();
        let chunk = self.chunk_at_hand();
        while let Some(id) = self.traced.next.filter(|id| Some(id.chunk()) == chunk) {
            let Some(event) = events.get(id.index() as usize) else {
                self.traced.next = None;
                return;
            };
            if self.traced.events.len() == self.wanted {
                return;
            }
            // Numbers descend along the chain, whatever a damaged row says.
            self.traced.next = event.prev.filter(|prev| *prev < id);
            self.traced.events.push(event.clone());
        }
    }

    fn chunk_at_hand(&self) -> Option<ChunkId> {
        self.traced.next.map(EventId::chunk)
    }

    pub(crate) fn end(self) -> Traced {
        self.traced
    }
}
