//! A store that is full: its size, what can go, and records of what went.

use crate::model::dropped::DropReason;
use crate::model::id::{EventId, SubscriptionId};
use crate::model::time::Time;

/// How much a store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreSize {
    /// In bytes. Space that is free inside of the store, and will be used again, is not counted.
    pub bytes: u64,
}

/// Makes room, in bounded steps.
#[derive(Clone, Copy, Debug)]
pub struct Shed {
    /// What may go.
    pub surplus: Surplus,
    /// Look only at what comes after this event.
    pub after: EventId,
    /// How many rows go at most.
    pub limit: u32,
    /// Not much more than this goes; at least one row whatever it weighs.
    pub bytes: u64,
    /// Test time.
    pub now: Option<Time>,
}

/// What may go when a store is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surplus {
    /// Events that nobody has to do any more, although their retention has not ended: no work is lost.
    Retained,
    /// The oldest work of the subscription that is furthest behind, as far as nobody has claimed it.
    Work {
        /// True if that may be a subscription of workers too, not only one that is sent its events.
        include_pull: bool,
    },
}

/// What a step made room with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shedded {
    /// Retained events that were removed.
    pub removed: u64,
    /// Work that was dropped: whose, and how many events.
    pub dropped: Option<(SubscriptionId, u64)>,
    /// True if other work of that subscription may run now.
    pub wake: bool,
    /// Where the next step goes on; `None` when all was looked at.
    pub next: Option<EventId>,
}

/// Lists records of what was dropped.
#[derive(Clone, Copy, Debug)]
pub struct ListDrops {
    /// Of one subscription only.
    pub subscription: Option<SubscriptionId>,
    /// Those after this number, oldest first; `None`: the newest, newest first.
    pub after: Option<i64>,
    /// How many at most.
    pub limit: u32,
}

/// How many events a subscription was dropped, ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropTotal {
    /// Whose.
    pub subscription: SubscriptionId,
    /// Why.
    pub reason: DropReason,
    /// How many.
    pub events: u64,
}
