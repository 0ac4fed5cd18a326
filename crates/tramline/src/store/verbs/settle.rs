//! Everything that a lease allows: settle, extend, release; and adoption.

use crate::model::id::{EventId, SubscriptionId, TallyId};
use crate::model::lease::Lease;
use crate::model::mask::Mask;
use crate::model::outcome::Outcome;
use crate::model::time::Time;
use std::sync::Arc;
use std::time::Duration;

/// Writes outcomes back.
#[derive(Clone, Debug)]
pub struct Settle {
    /// Whose events.
    pub subscription: SubscriptionId,
    /// What became of them.
    pub results: Vec<SettleSlice>,
    /// Who ran them, for whoever asks why they failed.
    pub worker: Option<Arc<str>>,
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

/// What a settle did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// For every event, in the order given: true if its outcome was taken, false if the lease on it was lost.
    pub accepted: Vec<Vec<bool>>,
    /// Ordered: the failed events for which their keys wait now. What follows them was taken back, whatever its lease.
    pub waiting: Vec<EventId>,
    /// True when events became due that were not before.
    pub wake: bool,
    /// Tallies that have news because of this: [`Store::deliver`](crate::store::Store::deliver) sends them.
    pub news: Vec<TallyId>,
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
