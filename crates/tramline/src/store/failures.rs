//! What is kept of failures, between reading and writing.

use crate::model::failure::{Failure, Gone, Note};
use crate::model::id::{ChunkId, EventId, SubscriptionId};
use crate::model::mask::Mask;
use crate::model::time::Time;
use crate::plan::Changes;
use std::collections::BTreeMap;

/// A note as it is stored: events of one chunk that failed alike, in one subscription.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) subscription: SubscriptionId,
    pub(crate) chunk: ChunkId,
    pub(crate) mask: Mask,
    pub(crate) attempt: u32,
    pub(crate) at: Time,
    pub(crate) worker: String,
    pub(crate) text: String,
}

/// The notes of some chunks.
#[derive(Debug, Default)]
pub(crate) struct History(pub(crate) Vec<Stored>);

impl History {
    /// Why the last attempts of an event failed, oldest first.
    pub(crate) fn failures(&self, by: SubscriptionId, event: EventId) -> Vec<Failure> {
        let attempts = self.of(by, event).filter(|note| note.attempt > 0);
        let mut failures: Vec<Failure> = attempts
            .map(|note| Failure {
                attempt: note.attempt,
                at: note.at,
                worker: note.worker.clone(),
                error: note.text.clone(),
            })
            .collect();
        failures.sort_by_key(|failure| (failure.at, failure.attempt));
        failures
    }

    /// Why and when an event went without being done.
    pub(crate) fn gone(&self, by: SubscriptionId, event: EventId) -> Option<(Gone, Time)> {
        let end = self.of(by, event).find(|note| note.attempt == 0)?;
        Gone::parse(&end.text).map(|gone| (gone, end.at))
    }

    fn of(&self, by: SubscriptionId, event: EventId) -> impl Iterator<Item = &Stored> {
        self.0.iter().filter(move |note| {
            note.subscription == by && note.chunk == event.chunk() && note.mask.contains(event.index())
        })
    }
}

/// Which older notes new ones take the place of: the events, by chunk and slot.
pub(crate) fn replaced(notes: &[Note]) -> BTreeMap<(ChunkId, i16), Mask> {
    let mut places: BTreeMap<(ChunkId, i16), Mask> = BTreeMap::new();
    for note in notes {
        let mask = places.entry((note.chunk, note.slot())).or_default();
        *mask = mask.plus(note.mask);
    }
    places
}

/// The worker that a note names.
pub(crate) fn worker(changes: &Changes, note: &Note) -> String {
    match &changes.worker {
        Some(name) => name.to_string(),
        None => format!("{:x}", note.owner.0),
    }
}
