//! Looking: counts, events, heads, logs and lists.

use crate::model::dropped::DropRecord;
use crate::model::event::StoredEvent;
use crate::model::failure::{Failure, Gone};
use crate::model::id::{EventId, Incarnation, SubscriptionId};
use crate::model::lane::Lane;
use crate::model::rule::Rule;
use crate::model::slice::Slice;
use crate::model::status::{Counts, Status};
use crate::model::time::Time;
use bytes::Bytes;
use std::sync::Arc;

/// One page of a list: at most `limit` entries after `after`.
#[derive(Clone, Debug)]
pub struct Page {
    /// Whose.
    pub subscription: SubscriptionId,
    /// Entries after this event.
    pub after: EventId,
    /// How many at most.
    pub limit: u32,
    /// Test time.
    pub now: Option<Time>,
}

/// A dead event.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadEvent {
    /// The event.
    pub event: StoredEvent,
    /// Settled failures.
    pub attempts: u32,
    /// Leases that ended by expiry.
    pub crashes: u32,
    /// Why it failed last.
    pub error: String,
    /// When it died.
    pub died_at: Time,
    /// Why its last attempts failed, oldest first.
    pub failures: Vec<Failure>,
}

/// A key that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedKey {
    /// The topic.
    pub topic: Arc<str>,
    /// The key.
    pub key: Arc<str>,
    /// The event that everything waits for.
    pub blocked_by: EventId,
    /// When that event may run; `None` if it is held.
    pub due_at: Option<Time>,
    /// Since when.
    pub since: Time,
    /// How many events wait behind it.
    pub waiting: u64,
}

/// Looks an event up.
#[derive(Clone, Debug)]
pub struct FindEvent {
    /// Which.
    pub id: EventId,
    /// Test time.
    pub now: Option<Time>,
}

/// Follows the chain of a key back along `prev`.
#[derive(Clone, Copy, Debug)]
pub struct Trace {
    /// The event to begin with.
    pub from: EventId,
    /// How many events at most.
    pub limit: u32,
}

/// A part of the chain of a key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traced {
    /// The events, newest first, from the one that was asked for.
    pub events: Vec<StoredEvent>,
    /// Where to go on; `None` when nothing older is retained.
    pub next: Option<EventId>,
}

/// An event and what every subscription makes of it.
#[derive(Clone, Debug, PartialEq)]
pub struct EventView {
    /// The event.
    pub event: StoredEvent,
    /// One entry per subscription of its topic.
    pub deliveries: Vec<Delivery>,
}

/// What one subscription makes of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Whose.
    pub subscription: Arc<str>,
    /// Where it is.
    pub status: Status,
    /// Settled failures.
    pub attempts: u32,
    /// Leases that ended by expiry.
    pub crashes: u32,
    /// When it may run, or when its lease ends.
    pub due_at: Option<Time>,
    /// Who runs it.
    pub worker: Option<Incarnation>,
    /// The event of its key that it waits for: the one for which the key is parked, or its predecessor.
    pub blocked_by: Option<EventId>,
    /// Why it failed last.
    pub error: Option<String>,
    /// Why its last attempts failed, oldest first; also when it was done after that.
    pub failures: Vec<Failure>,
    /// The rules that stop it while it is to be claimed.
    pub rules: Vec<Rule>,
    /// Why it will not run although it was not done, and since when.
    pub gone: Option<(Gone, Time)>,
    /// A record of drops that may be about it: some events between two numbers, this one among them or not.
    pub dropped: Option<DropRecord>,
}

impl Delivery {
    /// Nothing is left to do.
    pub(crate) fn settled(subscription: &Arc<str>) -> Delivery {
        Delivery {
            subscription: subscription.clone(),
            status: Status::Settled,
            attempts: 0,
            crashes: 0,
            due_at: None,
            worker: None,
            blocked_by: None,
            error: None,
            failures: Vec::new(),
            rules: Vec::new(),
            gone: None,
            dropped: None,
        }
    }

    /// True while somebody may claim it, or will.
    pub(crate) fn is_to_be_claimed(&self) -> bool {
        matches!(self.status, Status::Ready | Status::Delayed | Status::Parked)
    }

    /// What a slice says of one of its events.
    pub(crate) fn of(
        subscription: &Arc<str>,
        slice: &Slice,
        lane: Option<&Lane>,
        blocked_by: Option<EventId>,
        now: Time,
    ) -> Delivery {
        let status = slice.status(now, lane.is_some_and(|lane| lane.is_held(now)));
        let leased = status == Status::Leased;
        let end = lane.filter(|_| leased).map_or(slice.due_at, |lane| lane.until);
        Delivery {
            subscription: subscription.clone(),
            status,
            attempts: slice.attempts,
            crashes: slice.crashes,
            due_at: (status != Status::Parked).then_some(end),
            worker: leased.then_some(slice.owner),
            blocked_by,
            error: slice.error.clone(),
            failures: Vec::new(),
            rules: Vec::new(),
            gone: None,
            dropped: None,
        }
    }
}

/// The last event of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its number.
    pub last_id: EventId,
    /// The object's latest state.
    pub state: Option<Bytes>,
}

/// Reads the retained events of a topic.
#[derive(Clone, Debug)]
pub struct ReadLog {
    /// The topic.
    pub topic: String,
    /// Events after this one.
    pub after: EventId,
    /// How many at most.
    pub limit: u32,
}

/// What was read of a log.
#[derive(Clone, Debug, PartialEq)]
pub struct LogPage {
    /// The events, ascending.
    pub events: Vec<StoredEvent>,
    /// Where to go on: nothing at or before this will ever be added.
    pub next: EventId,
}

/// Counts and rules of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// How many events have which status.
    pub counts: Counts,
    /// Since when the oldest ready event could have run.
    pub oldest_ready_at: Option<Time>,
    /// When the oldest dead event died.
    pub oldest_dead_at: Option<Time>,
    /// The rules in force.
    pub rules: Vec<Rule>,
}
