//! Replay, drop, resend, cancel, and the release of parked keys.

use crate::model::id::{EventId, SubscriptionId};
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
}

/// Takes dead or held events out of their state.
#[derive(Clone, Debug)]
pub struct Revive {
    /// Whose.
    pub subscription: SubscriptionId,
    /// Which dead or held events.
    pub which: Which,
    /// What to do with them.
    pub how: Revival,
    /// Test time.
    pub now: Option<Time>,
}

/// What becomes of a dead or held event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revival {
    /// It runs again, with its attempts counted anew.
    Replay,
    /// It is dropped.
    Drop,
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
