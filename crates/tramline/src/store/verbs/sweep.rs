//! Signs of life and housekeeping.

use crate::model::id::{Incarnation, SubscriptionId};
use crate::model::time::Time;
use serde::{Deserialize, Serialize};
use std::time::Duration;

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

/// How many dead workers one step buries: what it ends of each is locked until it is over.
pub(crate) const BURIALS: u32 = 16;

/// Ends what dead workers held.
#[derive(Clone, Debug)]
pub struct Bury {
    /// Workers without a sign of life for this long are dead.
    pub dead_after: Duration,
    /// How many of them at most.
    pub limit: u32,
    /// Test time.
    pub now: Option<Time>,
}

/// What became of dead workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buried {
    /// How many were found.
    pub workers: u64,
    /// Subscriptions with work that became due.
    pub wake: Vec<SubscriptionId>,
    /// True when the limit was reached.
    pub more: bool,
}

/// Housekeeping, in bounded steps.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Workers without a sign of life for this long are dead; `None`: judge nobody.
    pub dead_after: Option<Duration>,
    /// How many chunks past their retention to look at, and how many expired entries of each kind to remove, at most.
    pub limit: u32,
    /// Test time.
    pub now: Option<Time>,
}

impl Sweep {
    /// Its part that ends what dead workers held.
    pub(crate) fn burial(&self) -> Option<Bury> {
        let limit = self.limit.min(BURIALS);
        self.dead_after.map(|dead_after| Bury { dead_after, limit, now: self.now })
    }
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
    /// True when a limit was reached and another sweep would probably find more. What is only kept by a backlog is looked at
    /// without hurry, some of it with every sweep.
    pub more: bool,
}
