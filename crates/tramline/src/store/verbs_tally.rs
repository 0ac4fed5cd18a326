//! What the verbs of a store that are about tallies take and give; `now` is only set by tests.

use crate::model::id::{SubscriptionId, TallyId};
use crate::model::tally::{Ack, AckCount, NewTally, Tally, TallyItem, TallyState};
use crate::model::time::Time;
use std::time::Duration;

/// Opens a tally.
#[derive(Clone, Debug)]
pub struct OpenTally {
    /// What it shall be; checked before.
    pub tally: NewTally,
    /// Test time.
    pub now: Option<Time>,
}

/// An open tally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedTally {
    /// Its number.
    pub id: TallyId,
    /// The item of another tally that it stands for.
    pub parent: Option<TallyItem>,
    /// True when the idempotency key was known: this is the first answer, and nothing was stored now.
    pub repeated: bool,
}

/// Adds items to a tally.
#[derive(Clone, Copy, Debug)]
pub struct AddItems {
    /// To which.
    pub tally: TallyId,
    /// How many, at least one.
    pub count: u64,
    /// From inside which unfinished item of the same tally: a growing one may grow so after it is sealed.
    pub within: Option<u64>,
    /// Adding again under the same token gives the same items.
    pub token: Option<i64>,
    /// Test time.
    pub now: Option<Time>,
}

/// Says that a tally has all its items.
#[derive(Clone, Copy, Debug)]
pub struct SealTally {
    /// Which.
    pub tally: TallyId,
    /// How many items it must have by now.
    pub expected: Option<u64>,
    /// Names the call: if its answer is lost and it is repeated, it is told once more that it was the one that completed.
    pub by: i64,
    /// Test time.
    pub now: Option<Time>,
}

/// A sealed tally.
#[derive(Clone, Debug, PartialEq)]
pub struct SealedTally {
    /// As it is now.
    pub tally: Tally,
    /// True for exactly one call: the one that made it complete.
    pub completed_now: bool,
}

/// Ends items.
#[derive(Clone, Debug)]
pub struct AckItems {
    /// Which, and how. Of two that are about one item, the first one counts.
    pub acks: Vec<Ack>,
    /// Names the call; see [`SealTally::by`].
    pub by: i64,
    /// Test time.
    pub now: Option<Time>,
}

/// What became of acks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AckedItems {
    /// For every number or range of every ack, in the order given.
    pub results: Vec<Vec<AckCount>>,
    /// The tallies that this call made complete.
    pub completed: Vec<CompletedTally>,
    /// Tallies that have news, so that [`Store::deliver`](crate::store::Store::deliver) may find something to send.
    pub news: Vec<TallyId>,
}

/// A tally that a call made complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedTally {
    /// Which.
    pub id: TallyId,
    /// The caller's own name for it.
    pub user_key: Option<String>,
}

/// Counts estimated tallies up and down.
#[derive(Clone, Debug)]
pub struct CountTallies {
    /// Which, and by how much: positive for work that was added, negative for work that was done.
    pub counts: Vec<(TallyId, i64)>,
    /// Test time.
    pub now: Option<Time>,
}

/// An estimated tally after it was counted.
#[derive(Clone, Debug, PartialEq)]
pub struct CountedTally {
    /// As it is now.
    pub tally: Tally,
    /// True for exactly one count: the one that made it complete.
    pub completed_now: bool,
}

/// Looks a tally up, or ends it.
#[derive(Clone, Copy, Debug)]
pub struct NameTally {
    /// Which.
    pub tally: TallyId,
    /// Test time.
    pub now: Option<Time>,
}

/// One page of tallies, by number.
#[derive(Clone, Debug)]
pub struct ListTallies {
    /// In one of these states; empty stands for all.
    pub states: Vec<TallyState>,
    /// With this user key.
    pub user_key: Option<String>,
    /// After this one.
    pub after: TallyId,
    /// How many at most.
    pub limit: u32,
    /// Test time.
    pub now: Option<Time>,
}

/// Removes tallies that nothing has happened to for long. Work is bounded: repeat it while there is more.
#[derive(Clone, Debug)]
pub struct ReapTallies {
    /// True for those that are open, false for those that were sealed or have ended.
    pub open: bool,
    /// Those to which nothing has happened since.
    pub idle_since: Time,
    /// Only those that belong to this topic.
    pub topic: Option<String>,
    /// How many to look at, at most.
    pub limit: u32,
    /// Test time.
    pub now: Option<Time>,
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReapedTallies {
    /// How many tallies.
    pub tallies: u64,
    /// How many items they had.
    pub items: u64,
    /// True when the limit was reached and there may be more.
    pub more: bool,
}

/// How many tallies there are in each state. One whose time is over counts as expired once a sweep has met it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TallyCounts {
    /// Take items.
    pub open: u64,
    /// Have all their items, some of them pending.
    pub sealed: u64,
    /// Every item has ended.
    pub complete: u64,
    /// Were given up.
    pub cancelled: u64,
    /// Were not complete in time.
    pub expired: u64,
}

impl TallyCounts {
    /// The count of one state.
    pub(crate) fn of(&mut self, state: TallyState) -> &mut u64 {
        match state {
            TallyState::Open => &mut self.open,
            TallyState::Sealed => &mut self.sealed,
            TallyState::Complete => &mut self.complete,
            TallyState::Cancelled => &mut self.cancelled,
            TallyState::Expired => &mut self.expired,
        }
    }
}

/// Emits what tallies have to tell, and passes on to parents how their items ended.
#[derive(Clone, Copy, Debug)]
pub struct Deliver {
    /// How many pieces of news at most.
    pub limit: u32,
    /// Test time.
    pub now: Option<Time>,
}

/// What was delivered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// How many pieces of news.
    pub count: u64,
    /// Subscriptions that have new work.
    pub wake: Vec<SubscriptionId>,
    /// Tallies that were completed by this.
    pub completed: Vec<TallyId>,
    /// True when there is more.
    pub more: bool,
}

/// Looks after tallies, in bounded steps: expiry, proof that none is stuck, removal of what nobody uses.
#[derive(Clone, Copy, Debug)]
pub struct SweepTallies {
    /// Open ones to which nothing happens are kept for this long.
    pub keep_open: Duration,
    /// The others are kept for this long.
    pub keep_sealed: Duration,
    /// How many of each kind to look at, at most.
    pub limit: u32,
    /// Test time.
    pub now: Option<Time>,
}

/// What a sweep did about tallies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweptTallies {
    /// How many expired.
    pub expired: u64,
    /// How many had lost count and were put right. Anything but zero is a fault worth a report.
    pub repaired: u64,
    /// How many were removed.
    pub reaped: u64,
    /// Tallies that have news, or ended.
    pub news: Vec<TallyId>,
    /// True when a limit was reached and another sweep would find more.
    pub more: bool,
}
