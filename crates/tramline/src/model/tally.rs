//! Tallies: sets of items that are tracked to completion.
//!
//! - [`new`]: a tally to open
//! - [`part`]: which of up to 4,096 items are still pending
//! - [`group`]: the same items under the names that Carlyle gives them
//! - [`news`]: the events that a tally emits by itself

pub mod group;
pub mod new;
pub mod news;
pub mod part;

pub use new::{NewTally, Parent};

use crate::model::id::TallyId;
use crate::model::time::Time;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::RangeInclusive;

/// How many items a tally has at most.
pub const MAX_ITEMS: u64 = 1 << 40;

/// Where a tally is in its life. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(i16)]
pub enum TallyState {
    /// Items may be added.
    Open = 0,
    /// All items are there; some are pending.
    Sealed = 1,
    /// Sealed, and no item is pending. Told exactly once.
    Complete = 2,
    /// Somebody gave it up. Nothing changes it any more.
    Cancelled = 3,
    /// Its time was over before it was complete. Nothing changes it any more.
    Expired = 4,
}

impl TallyState {
    /// All states, by number.
    pub const ALL: [TallyState; 5] = [
        TallyState::Open,
        TallyState::Sealed,
        TallyState::Complete,
        TallyState::Cancelled,
        TallyState::Expired,
    ];

    /// The state behind a stored number.
    pub fn from_i16(number: i16) -> Option<TallyState> {
        TallyState::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// True when nothing follows.
    pub fn has_ended(self) -> bool {
        !matches!(self, TallyState::Open | TallyState::Sealed)
    }
}

/// One item of one tally.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TallyItem {
    /// Which tally.
    pub tally: TallyId,
    /// Which item.
    pub number: u64,
}

/// A tally as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Tally {
    /// Its number.
    pub id: TallyId,
    /// Where it is in its life.
    pub state: TallyState,
    /// The caller's own name for it.
    pub user_key: Option<String>,
    /// The topic to which it belongs.
    pub topic: Option<String>,
    /// What the caller wanted to be kept with it.
    pub metadata: Option<Value>,
    /// True if it may grow after it is sealed.
    pub growing: bool,
    /// True if it is a plain counter: what was counted twice is in the counts twice.
    pub estimated: bool,
    /// The item of another tally that it stands for.
    pub parent: Option<TallyItem>,
    /// How many items were added.
    pub total: u64,
    /// How many of them are done.
    pub done: u64,
    /// How many of them failed.
    pub failed: u64,
    /// When it was opened.
    pub created_at: Time,
    /// When it was sealed.
    pub sealed_at: Option<Time>,
    /// When it was complete, cancelled or expired.
    pub ended_at: Option<Time>,
    /// When something happened to it last.
    pub active_at: Time,
    /// When it expires.
    pub expires_at: Option<Time>,
}

impl Tally {
    /// True once it was sealed, whatever followed.
    pub fn is_sealed(&self) -> bool {
        self.sealed_at.is_some()
    }

    /// True when it is complete.
    pub fn is_complete(&self) -> bool {
        self.state == TallyState::Complete
    }

    /// How many items are neither done nor failed.
    pub fn pending(&self) -> u64 {
        self.total.saturating_sub(self.done).saturating_sub(self.failed)
    }

    /// How much of it is finished, from 0 to 1; nothing of nothing is all of it.
    pub fn progress(&self) -> f64 {
        if self.total == 0 {
            return if self.is_sealed() { 1.0 } else { 0.0 };
        }
        1.0 - self.pending() as f64 / self.total as f64
    }

    /// Items finished per second, from its opening to the last thing that happened to it.
    pub fn rate(&self) -> f64 {
        let seconds = self.active_at.since(self.created_at).as_secs_f64();
        if seconds > 0.0 { (self.done + self.failed) as f64 / seconds } else { 0.0 }
    }
}

/// Items that were added together: `first`, `first + 1`, and so on. Between those of two additions are gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Added {
    /// The number of the first one.
    pub first: u64,
    /// How many.
    pub count: u64,
}

impl Added {
    /// All of their numbers.
    pub fn items(&self) -> Items {
        Items { first: self.first, last: self.first + self.count.saturating_sub(1) }
    }
}

/// Some items of a tally: one, or all from one to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Items {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
}

impl Items {
    /// How many numbers these are.
    pub fn count(&self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }
}

impl From<u64> for Items {
    fn from(number: u64) -> Items {
        Items { first: number, last: number }
    }
}

impl From<RangeInclusive<u64>> for Items {
    fn from(range: RangeInclusive<u64>) -> Items {
        Items { first: *range.start(), last: *range.end() }
    }
}

/// How an item ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It is done.
    Done,
    /// It will never be done.
    Failed,
}

/// Items that have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Of which tally.
    pub tally: TallyId,
    /// Which items, by numbers and ranges.
    pub items: Vec<Items>,
    /// How they ended.
    pub ending: Ending,
}

/// What became of the items of one number or range. A number is counted in exactly one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AckCount {
    /// They were pending, and have ended now.
    pub acked: u64,
    /// They had ended before: nothing was changed, not even done to failed or back.
    pub already: u64,
    /// There are no such items, or no such tally.
    pub unknown: u64,
    /// The tally is cancelled or has expired: nothing was changed.
    pub closed: u64,
}

impl AckCount {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: AckCount) -> AckCount {
        AckCount {
            acked: self.acked + other.acked,
            already: self.already + other.already,
            unknown: self.unknown + other.unknown,
            closed: self.closed + other.closed,
        }
    }
}
