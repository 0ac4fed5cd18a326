//! What emits decide between reading and writing, whatever the database.

use crate::error::{Error, Result};
use crate::model::event::Event;
use crate::model::id::{ChunkId, TopicId};
use crate::plan::emit::{EmitPlan, Numbers};
use crate::store::catalog::Catalog;
use crate::store::verbs::Emission;
use std::collections::{BTreeMap, HashSet};

/// How often an emit is planned anew because the catalogue changes.
pub(crate) const TRIES: u32 = 10;

pub(crate) type Units = Vec<Vec<Event>>;
/// Units by their place in the call, and what became of them.
pub(crate) type Answers = Vec<(usize, Result<Emission>)>;

/// True for units that take more than the usual steps: with an idempotency key, in a tally, or with unique events.
pub(crate) fn needs_steps(unit: &[Event]) -> bool {
    unit.first().is_some_and(|event| event.idempotency_key.is_some())
        || unit.iter().any(|event| event.tally.is_some() || event.unique.is_some())
}

/// The units of a group that need not wait, and those that do, by the key that is locked. If no lock is visible (another
/// transaction is just creating a key), every first key has to be tried for itself.
pub(crate) fn families(
    units: &[Vec<Event>],
    group: Vec<usize>,
    locked: &HashSet<(TopicId, String)>,
) -> (Vec<usize>, Vec<Vec<usize>>) {
    let locked: HashSet<&str> = locked.iter().map(|(_, key)| key.as_str()).collect();
    let mut free = Vec::new();
    let mut families: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for at in group {
        let mut keys = units[at].iter().filter_map(|event| event.key.as_deref());
        match keys.find(|key| locked.is_empty() || locked.contains(key)) {
            Some(key) => families.entry(key).or_default().push(at),
            None => free.push(at),
        }
    }
    (free, families.into_values().collect())
}

/// The key of an event, by topic.
pub(crate) fn named(event: &Event, catalog: &Catalog) -> Option<(TopicId, String)> {
    Some((catalog.topic(&event.topic)?.id, event.key.clone()?))
}

/// The numbers that a plan got.
pub(crate) struct Stored {
    pub(crate) chunks: Vec<ChunkId>,
    pub(crate) heads: Vec<i64>,
}

impl Stored {
    pub(crate) fn emissions(&self, plan: &EmitPlan, units: usize) -> Vec<Emission> {
        let numbers = Numbers { chunks: &self.chunks, heads: &self.heads };
        let emission = |at| Emission {
            events: plan.emitted(at, &numbers),
            wake: plan.wake(at).to_vec(),
            repeated: false,
        };
        (0..units).map(emission).collect()
    }
}

/// Somebody has had a lock for too long.
pub(crate) fn busy() -> Error {
    Error::unavailable(
        "another transaction has locked a key of this emit, or its topic, for too long",
        "end that transaction; then emit again",
    )
}

/// The catalogue changed each time the emit was planned.
pub(crate) fn restless() -> Error {
    Error::unavailable("topics and subscriptions change too fast to emit", "try again when they have settled")
}
