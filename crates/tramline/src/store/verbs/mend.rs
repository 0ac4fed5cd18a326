//! Replay, drop, resend, cancel, and the release of parked keys.

use crate::model::id::{EventId, SubscriptionId};
use crate::model::letter::{Letters, Pace};
use crate::model::time::Time;

/// Which events a control verb is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// These.
    Ids(Vec<EventId>),
    /// All.
    All,
    /// Those that died at or after this time.
    Since(Time),
    /// Those of which all this is true.
    Those(Letters),
}

impl Which {
    /// What has to be true of an event; `None`: its number says it.
    pub(crate) fn letters(&self) -> Option<Letters> {
        match self {
            Which::Ids(_) => None,
            Which::All => Some(Letters::default()),
            Which::Since(time) => Some(Letters { since: Some(*time), ..Letters::default() }),
            Which::Those(letters) => Some(letters.clone()),
        }
    }
}

/// How many rows one step of a revival looks at: more than one chunk can have.
pub(crate) const REVIVE_STEP: u32 = 500;

/// Takes dead or held events out of their state, step by step.
#[derive(Clone, Debug)]
pub struct Revive {
    /// Whose.
    pub subscription: SubscriptionId,
    /// Which dead or held events.
    pub which: Which,
    /// What to do with them.
    pub how: Revival,
    /// Those after this event: zero, or the `next` of the step before.
    pub after: EventId,
    /// Test time.
    pub now: Option<Time>,
}

/// What a step of a revival did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Revived {
    /// How many events it took.
    pub count: u64,
    /// Where the next step goes on; `None` when there is nothing more.
    pub next: Option<EventId>,
    /// The store's time.
    pub now: Time,
}

/// What becomes of a dead or held event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revival {
    /// It runs again, with its attempts counted anew.
    Replay,
    /// The same, one after the other.
    Stagger(Stagger),
    /// It is dropped.
    Drop,
}

/// How events come back one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stagger {
    /// How fast.
    pub rate: Pace,
    /// When the first one comes; `None`: now.
    pub start: Option<Time>,
    /// How many came before, in earlier steps.
    pub done: u64,
}

impl Stagger {
    /// When the next event comes.
    pub(crate) fn next(&mut self, now: Time) -> Time {
        let due = self.rate.due(self.start.unwrap_or(now), self.done);
        self.done += 1;
        due
    }
}

/// Restores bits of events that a subscription had settled or lost; it does not emit again.
#[derive(Clone, Debug)]
pub struct Resend {
    /// Whose.
    pub subscription: SubscriptionId,
    /// Which.
    pub ids: Vec<EventId>,
    /// Test time.
    pub now: Option<Time>,
}

/// Cancels an event wherever it has not been claimed.
#[derive(Clone, Debug)]
pub struct Cancel {
    /// Which.
    pub id: EventId,
    /// Test time.
    pub now: Option<Time>,
}

/// Lets parked keys go on: a waiting event runs now, a held one is replayed.
#[derive(Clone, Debug)]
pub struct ReleaseParked {
    /// Whose.
    pub subscription: SubscriptionId,
    /// Which keys, by topic name and key; empty stands for all.
    pub keys: Vec<(String, String)>,
    /// Test time.
    pub now: Option<Time>,
}
