//! Emitting.

use crate::model::event::{Emitted, Event};
use crate::model::id::SubscriptionId;
use crate::model::time::Time;

/// Events to emit together: in all their subscriptions or nowhere.
#[derive(Clone, Debug)]
pub struct Emit {
    /// Independent emits that share a transaction. Each was checked before.
    pub units: Vec<Vec<Event>>,
    /// Test time.
    pub now: Option<Time>,
}

/// What one unit of an emit gives back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emission {
    /// One entry per event, in the order they were given.
    pub events: Vec<Emitted>,
    /// Subscriptions that have new work of which somebody has to be told.
    pub wake: Vec<SubscriptionId>,
    /// True when the idempotency key was known: this is the first receipt, and nothing was stored now.
    pub repeated: bool,
    /// True when the hint for it was given with the commit, or comes with another emit that was committed together with it.
    pub hinted: bool,
}
