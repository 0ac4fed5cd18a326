//! Which items a tally takes, and which of them another tally may stand for.

use super::{Delta, TallyRow};
use crate::error::{Error, Result};
use crate::model::tally::news::Outgoing;
use crate::model::tally::part::{PART, Part};
use crate::model::tally::{Added, MAX_ITEMS, TallyState};
use crate::model::time::Time;

/// What is known of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ItemRow {
    pub(crate) pending: bool,
    /// True if it was added as an event.
    pub(crate) is_event: bool,
}

impl ItemRow {
    /// The item with a number, out of the part in which it would be; `None` if it was never added.
    pub(crate) fn of(number: u64, part: &Part, is_event: bool) -> Option<ItemRow> {
        let index = (number % PART) as u32;
        (index < part.items()).then(|| ItemRow { pending: part.is_pending(index), is_event })
    }
}

/// From inside which item a tally grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) number: u64,
    pub(crate) item: Option<ItemRow>,
}

impl TallyRow {
    /// Makes room for items.
    pub(crate) fn grow(&mut self, count: u64, origin: Option<Origin>, now: Time) -> Result<Added> {
        self.check_growth(count, origin, now)?;
        Ok(self.grow_by(count, now))
    }

    pub(super) fn check_growth(&self, count: u64, origin: Option<Origin>, now: Time) -> Result<()> {
        if self.estimated {
            return Err(Error::invalid(
                format!("tally {} is estimated and has no items", self.id),
                "count it up instead",
            ));
        }
        let inside = origin.and_then(|origin| origin.item).is_some_and(|item| item.pending);
        let state = self.state_at(now);
        let grows = state == TallyState::Sealed && self.growing && inside;
        if state != TallyState::Open && !grows {
            return Err(self.takes_no_more(now));
        }
        if let Some(Origin { number, item: None }) = origin {
            return Err(Error::conflict(
                format!("tally {} has no item {number} to grow from inside of", self.id),
                "name an item as adding or the claim gave it, or none",
            ));
        }
        if count == 0 || self.total.saturating_add(count) > MAX_ITEMS {
            return Err(Error::invalid(
                format!("{count} items cannot be added"),
                "add at least one; a tally has at most 2^40",
            ));
        }
        Ok(())
    }

    /// Every addition begins a part: so it never changes one that somebody may be acking.
    pub(super) fn grow_by(&mut self, count: u64, now: Time) -> Added {
        let added = Added { first: self.next_part * PART, count };
        let parts = count.div_ceil(PART);
        self.next_part += parts;
        self.parts_left += parts;
        self.total += count;
        self.active_at = now;
        added
    }

    /// Takes back an addition of which no item has ended. That may have been all that it waited for.
    pub(crate) fn take_back(&mut self, added: Added, now: Time, outbox: &mut Vec<Outgoing>) {
        self.total = self.total.saturating_sub(added.count);
        let emptied = added.count.div_ceil(PART);
        self.take(&Delta { emptied, ..Delta::default() }, 0, now, outbox);
    }

    pub(super) fn takes_no_more(&self, now: Time) -> Error {
        let (what, remedy) = match self.state_at(now) {
            TallyState::Sealed if self.growing => (
                "is sealed and grows only from inside its unfinished items",
                "name an item that is not finished",
            ),
            TallyState::Sealed => ("is sealed", "add before sealing, or open it as growing"),
            TallyState::Complete => ("is complete", "open another one"),
            TallyState::Cancelled => ("was cancelled", "open another one"),
            TallyState::Expired => ("has expired", "open another one"),
            TallyState::Open => ("takes no more items", ""),
        };
        Error::conflict(format!("tally {} {what}", self.id), remedy)
    }

    /// Checks that another tally may stand for an item: that it is pending, and that nothing else ends it. `taken`: a tally that
    /// exists, or has just gone, was opened for it before.
    pub(crate) fn check_child(
        &self,
        number: u64,
        item: Option<ItemRow>,
        taken: bool,
        now: Time,
    ) -> Result<()> {
        let why = match item {
            Some(ItemRow { is_event: true, .. }) => "is an event, and ends with it",
            Some(_) if taken => "has another tally that stands for it",
            Some(ItemRow { pending: true, .. }) if !self.state_at(now).has_ended() => return Ok(()),
            _ => "is not pending",
        };
        Err(Error::conflict(
            format!("item {number} of tally {} {why}", self.id),
            "name no item, so that one is added for the new tally, or add one first",
        ))
    }
}
