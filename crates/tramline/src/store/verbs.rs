//! What the verbs of a store take and give. Every verb takes one of these; `now` is only set by tests.

use crate::model::event::{Emitted, Event, StoredEvent};
use crate::model::id::{EventId, Incarnation, SubscriptionId};
use crate::model::lane::{Known, Lane, Share};
use crate::model::lease::Lease;
use crate::model::mask::Mask;
use crate::model::outcome::Outcome;
use crate::model::rule::{Rule, RuleKind};
use crate::model::slice::Slice;
use crate::model::status::{Counts, Status};
use crate::model::subscription::{Policy, Start, TopicSettings};
use crate::model::time::Time;
use crate::model::token::Token;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Creates a topic or changes what may change of it.
#[derive(Clone, Debug)]
pub struct PutTopic {
    /// Its name.
    pub name: String,
    /// What is said of it.
    pub settings: TopicSettings,
    /// Test time.
    pub now: Option<Time>,
}

/// Creates a subscription or changes what may change of it.
#[derive(Clone, Debug)]
pub struct PutSubscription {
    /// Its name.
    pub name: String,
    /// The complete set of its topics; unknown ones are created.
    pub topics: Vec<String>,
    /// How its events are handled.
    pub policy: Policy,
    /// Where it starts in topics that are new to it.
    pub start: Start,
    /// Test time.
    pub now: Option<Time>,
}

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
    /// Subscriptions that have new work.
    pub wake: Vec<SubscriptionId>,
    /// True when the idempotency key was known: this is the first receipt, and nothing was stored now.
    pub repeated: bool,
}

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
    /// When something becomes due that is not yet, if the claim could have taken more.
    pub next_due: Option<Time>,
    /// True when suspects wait for a process with nothing else in flight.
    pub suspects_wait: bool,
    /// The rule that stops the subscription; then nothing was taken.
    pub stopped_by: Option<RuleKind>,
    /// True while retained events of before the subscription are still being written into it.
    pub backfilling: bool,
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

/// Writes outcomes back.
#[derive(Clone, Debug)]
pub struct Settle {
    /// Whose events.
    pub subscription: SubscriptionId,
    /// What became of them.
    pub results: Vec<SettleSlice>,
    /// Test time.
    pub now: Option<Time>,
}

/// The outcomes of some events of one lease; may be partial.
#[derive(Clone, Debug)]
pub struct SettleSlice {
    /// The right to settle them.
    pub lease: Lease,
    /// Position in the chunk and outcome.
    pub outcomes: Vec<(u32, Outcome)>,
}

/// What a settle did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// For every event, in the order given: true if its outcome was taken, false if the lease on it was lost.
    pub accepted: Vec<Vec<bool>>,
    /// True when events became due that were not before.
    pub wake: bool,
}

/// Makes leases last longer.
#[derive(Clone, Debug)]
pub struct Extend {
    /// Whose.
    pub subscription: SubscriptionId,
    /// Which.
    pub leases: Vec<Lease>,
    /// From now on for this long. `None`: as the policy says.
    pub lease: Option<Duration>,
    /// Test time.
    pub now: Option<Time>,
}

/// What an extension did: for each lease in order, its new end, `Locked`, or `Lost`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extended {
    /// It lasts until then.
    Until(Time),
    /// A transaction has it; try again.
    Locked,
    /// It has ended.
    Lost,
}

/// Gives events back at once, uncounted.
#[derive(Clone, Debug)]
pub struct Release {
    /// Whose.
    pub subscription: SubscriptionId,
    /// Which leases: all that is left of each.
    pub leases: Vec<Lease>,
    /// Test time.
    pub now: Option<Time>,
}

/// Goes on with what an earlier incarnation consumed but never started (at most once).
#[derive(Clone, Debug)]
pub struct Adopt {
    /// Whose.
    pub subscription: SubscriptionId,
    /// The leases of the earlier incarnation, with the events it never started.
    pub consumed: Vec<(Lease, Vec<EventId>)>,
    /// Test time.
    pub now: Option<Time>,
}

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

/// Sets or removes a rule.
#[derive(Clone, Debug)]
pub struct SetRule {
    /// Whose.
    pub subscription: SubscriptionId,
    /// Which kind.
    pub kind: RuleKind,
    /// The rule in force from now on; `None` removes it.
    pub until: Option<RuleEnd>,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Test time.
    pub now: Option<Time>,
}

/// When a rule ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleEnd {
    /// Only when it is removed.
    Open,
    /// At this time.
    At(Time),
}

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
    /// The event of its key that it waits for.
    pub blocked_by: Option<EventId>,
    /// Why it failed last.
    pub error: Option<String>,
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
    /// The rules in force.
    pub rules: Vec<Rule>,
}

/// Keeps a token.
#[derive(Clone, Debug)]
pub struct PutToken {
    /// The token; the store sets when it was created.
    pub token: Token,
    /// Test time.
    pub now: Option<Time>,
}

/// A sign of life of a process.
#[derive(Clone, Debug)]
pub struct Beat {
    /// Which life.
    pub incarnation: Incarnation,
    /// Its name: a new incarnation of the same name ends the old one's leases at once.
    pub name: String,
    /// What it works on.
    pub subscriptions: Vec<SubscriptionId>,
    /// True for the last one: the process leaves and holds nothing.
    pub leaving: bool,
    /// Test time.
    pub now: Option<Time>,
}

/// A process that claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Which life.
    pub incarnation: Incarnation,
    /// Its name.
    pub name: String,
    /// What it works on.
    pub subscriptions: Vec<SubscriptionId>,
    /// When it was born.
    pub born_at: Time,
    /// Its last sign of life.
    pub beat_at: Time,
}

/// For how long a worker that claims through a node is remembered after its last claim.
pub const REMEMBERED: Duration = Duration::from_secs(300);

/// Workers claimed through a node.
#[derive(Clone, Debug)]
pub struct SeeRemote {
    /// Who, and how often since the last time.
    pub workers: Vec<Seen>,
    /// Test time.
    pub now: Option<Time>,
}

/// A worker claimed through a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// What it claimed from; passed over if it is gone.
    pub subscription: SubscriptionId,
    /// How often.
    pub claims: u64,
}

/// A worker that claims through nodes, in one subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteWorker {
    /// Its name.
    pub name: String,
    /// What it claims from.
    pub subscription: SubscriptionId,
    /// When it was first seen.
    pub born_at: Time,
    /// When it was last seen.
    pub seen_at: Time,
    /// How often it claimed.
    pub claims: u64,
}

/// Housekeeping, in bounded steps.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Workers without a sign of life for this long are dead; `None`: judge nobody.
    pub dead_after: Option<Duration>,
    /// How many chunks (and expired entries of each kind) to remove at most.
    pub limit: u32,
    /// Test time.
    pub now: Option<Time>,
}

/// What a sweep did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Chunks past their retention that were removed.
    pub chunks: u64,
    /// Workers that were found dead.
    pub workers: u64,
    /// Subscriptions with work that became due, or that are being back-filled.
    pub wake: Vec<SubscriptionId>,
    /// True when a limit was reached and another sweep would find more.
    pub more: bool,
}

impl SettleSlice {
    /// The positions that are settled.
    pub(crate) fn mask(&self) -> Mask {
        self.outcomes.iter().map(|(index, _)| *index).collect()
    }

    /// True when nothing failed, and nothing is named twice.
    pub(crate) fn is_all_done(&self) -> bool {
        let done = self.outcomes.iter().all(|(_, outcome)| outcome.is_done());
        done && self.mask().count() as usize == self.outcomes.len()
    }
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
        }
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
        }
    }
}
