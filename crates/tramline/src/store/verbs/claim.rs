//! Claiming.

use crate::model::event::StoredEvent;
use crate::model::id::{EventId, Incarnation, SubscriptionId, TallyId};
use crate::model::lane::{Known, Share};
use crate::model::lease::Lease;
use crate::model::rule::RuleKind;
use crate::model::time::Time;
use std::time::Duration;

/// Takes events for a limited time.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Whose events.
    pub subscription: SubscriptionId,
    /// Who takes them.
    pub owner: Incarnation,
    /// At most this many.
    pub max_events: u32,
    /// Not much more than this; at least one event is given whatever it weighs.
    pub max_bytes: usize,
    /// For how long. `None`: as the policy says.
    pub lease: Option<Duration>,
    /// Whether to take a suspect.
    pub suspects: Suspects,
    /// Ordered subscriptions: which lanes.
    pub share: Share,
    /// Ordered subscriptions: what the owner knows of its lanes.
    pub known: Known,
    /// One event per lease, for handlers that settle in their own transaction.
    pub single: bool,
    /// Test time.
    pub now: Option<Time>,
}

/// Whether a claim takes suspects: slices whose last lease ended by expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspects {
    /// Leave them alone: something else is in flight in this process.
    Leave,
    /// Take one and nothing else, if there is one: nothing else is in flight.
    TakeOne,
}

/// What a claim found.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    /// What was taken. Slices may interleave: whoever runs the events of a key in order sorts them by id.
    pub slices: Vec<ClaimedSlice>,
    /// The store's time of the claim.
    pub now: Time,
    /// When something becomes due that is not yet, if the claim could have taken more; or when a limit allows more.
    pub next_due: Option<Time>,
    /// True when suspects wait for a process with nothing else in flight.
    pub suspects_wait: bool,
    /// The rule that stops the subscription; then nothing was taken.
    pub stopped_by: Option<RuleKind>,
    /// True while retained events of before the subscription are still being written into it.
    pub backfilling: bool,
    /// True when something that is due was left because another transaction had it locked at this moment, perhaps only to look
    /// at it: look again soon. Where there is order this is not told.
    pub passed_over: bool,
    /// True when a limit of the subscription is why nothing more was taken.
    pub limited: bool,
    /// Tallies that have news, because an expired lease ended one of their items.
    pub news: Vec<TallyId>,
}

/// Events that share a lease.
#[derive(Clone, Debug)]
pub struct ClaimedSlice {
    /// The right to settle them.
    pub lease: Lease,
    /// When it ends unless it is extended.
    pub until: Time,
    /// The events, ascending.
    pub events: Vec<ClaimedEvent>,
    /// Settled failures so far.
    pub attempts: u32,
    /// Leases on them that ended by expiry.
    pub crashes: u32,
    /// True if somebody replayed them: they may be out of order.
    pub replayed: bool,
}

/// A claimed event.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimedEvent {
    /// The event.
    pub event: StoredEvent,
    /// Preceding events of its key that this subscription will never see.
    pub skipped: Vec<EventId>,
}
