//! Which slices a claim takes where there is no order.

use crate::model::id::Incarnation;
use crate::model::slice::{Slice, State};
use crate::model::time::Time;
use crate::plan::Changes;

/// What a claim may still take, and how.
#[derive(Clone, Debug)]
pub struct Taker {
    /// Who takes.
    pub owner: Incarnation,
    /// Until when.
    pub until: Time,
    /// Under which epoch at least: a store that may have forgotten claims makes new ones unlike them.
    pub epoch: i64,
    /// How many events are still wanted.
    pub events: u32,
    /// How many bytes may still be added; the first slice is taken whatever it weighs.
    pub bytes: i64,
    /// At most one event of every slice.
    pub single: bool,
    /// True when the claim itself consumes (at most once).
    pub consume: bool,
}

impl Taker {
    /// True when nothing more may be taken.
    pub fn is_full(&self) -> bool {
        self.events == 0 || self.bytes <= 0
    }

    /// The state of what is taken.
    pub fn state(&self) -> State {
        if self.consume { State::Consumed } else { State::Leased }
    }

    /// A slice that is taken, all of it.
    pub(crate) fn lease(&mut self, slice: Slice) -> Slice {
        self.events -= slice.mask.count();
        self.bytes -= i64::from(slice.bytes);
        let (state, owner) = (self.state(), self.owner);
        Slice { state, owner, epoch: self.after(slice.epoch), due_at: self.until, ..slice }
    }

    /// The epoch that follows another one.
    pub(crate) fn after(&self, epoch: i64) -> i64 {
        (epoch + 1).max(self.epoch)
    }

    /// How many events of a slice may be taken.
    pub fn limit(&self, slice: &Slice) -> u32 {
        let most = if self.single { 1 } else { slice.mask.count() };
        most.min(self.events)
    }
}

/// Takes from due slices, in the order given, and gives what was taken. A slice that holds more than is wanted is
/// split: the row keeps what is taken, so that the lease names a row that exists, and the rest gets a new one.
pub fn take(due: Vec<Slice>, taker: &mut Taker, changes: &mut Changes) -> Vec<Slice> {
    let mut taken = Vec::with_capacity(due.len());
    for slice in due {
        if taker.is_full() {
            break;
        }
        let (mine, rest) = slice.mask.split_lowest(taker.limit(&slice));
        if !rest.is_empty() {
            changes.insert.push(slice.part(rest));
        }
        let leased = taker.lease(Slice { mask: mine, ..slice });
        changes.update.push(leased.clone());
        taken.push(leased);
    }
    taken
}
