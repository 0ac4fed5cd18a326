//! What an emit takes and gives back.

use crate::model::event::{Emitted, Event};
use crate::model::id::EventId;
use crate::store::verbs::Emission;
use crate::wake::Wake;
use std::sync::Arc;

/// What can be emitted: one event, or several that are stored together or not at all.
pub trait IntoEvents {
    /// The events, in order.
    fn into_events(self) -> Vec<Event>;
}

impl IntoEvents for Event {
    fn into_events(self) -> Vec<Event> {
        vec![self]
    }
}

impl IntoEvents for Vec<Event> {
    fn into_events(self) -> Vec<Event> {
        self
    }
}

impl<const N: usize> IntoEvents for [Event; N] {
    fn into_events(self) -> Vec<Event> {
        self.into()
    }
}

/// What an emit gives back.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// One entry per event, in the order they were given.
    pub events: Vec<Emitted>,
    /// True when the idempotency key was known: this is the first receipt, and nothing was stored now.
    pub repeated: bool,
    emission: Emission,
    wake: Arc<dyn Wake>,
}

impl Receipt {
    pub(crate) fn new(emission: Emission, wake: Arc<dyn Wake>) -> Receipt {
        Receipt { events: emission.events.clone(), repeated: emission.repeated, emission, wake }
    }

    /// The id of the first event.
    pub fn id(&self) -> EventId {
        self.events.first().map_or(EventId(0), |event| event.id)
    }

    /// The ids of all events, in the order they were given.
    pub fn ids(&self) -> Vec<EventId> {
        self.events.iter().map(|event| event.id).collect()
    }

    /// Wakes the workers that have something to do now. Only for receipts of emits in a caller's own transaction, and to be
    /// called after its commit; forgetting it costs up to a second, not an event.
    pub fn wake(&self) {
        self.wake.notify(&self.emission.wake);
    }
}
