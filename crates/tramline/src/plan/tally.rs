//! What additions, acks and seals make of a tally.
//!
//! A tally is a row with sums, and parts with masks. Acks change parts, and the row only when a part is finished (or for the
//! first failure): whoever then finds the row sealed and no part left has completed it. All that is decided about the row is
//! decided under its lock.

mod ack;
mod place;
#[cfg(test)]
mod tests;

pub(crate) use ack::{Acks, Delta, Standing, gather};
pub(crate) use place::{Placement, origins, place, unknown, wanted};

use crate::error::{Error, Result};
use crate::model::id::TallyId;
use crate::model::tally::news::{News, Outgoing};
use crate::model::tally::part::PART;
use crate::model::tally::{Added, MAX_ITEMS, Tally, TallyItem, TallyState};
use crate::model::time::Time;
use serde_json::Value;

/// The row of a tally.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TallyRow {
    pub(crate) id: TallyId,
    pub(crate) state: TallyState,
    pub(crate) growing: bool,
    pub(crate) estimated: bool,
    pub(crate) tells: Tells,
    pub(crate) user_key: Option<String>,
    pub(crate) topic: Option<String>,
    pub(crate) parent: Option<TallyItem>,
    /// The part with which the next addition begins.
    pub(crate) next_part: u64,
    pub(crate) total: u64,
    /// How many parts have pending items.
    pub(crate) parts_left: u64,
    /// How many items are done in finished parts; of plain counters, how much was counted down.
    pub(crate) done: u64,
    /// How many items failed in finished parts.
    pub(crate) failed: u64,
    pub(crate) created_at: Time,
    pub(crate) sealed_at: Option<Time>,
    pub(crate) ended_at: Option<Time>,
    pub(crate) active_at: Time,
    pub(crate) expires_at: Option<Time>,
    /// The call that made it complete.
    pub(crate) ended_by: i64,
}

/// Which news a tally has an event for, and whether its first failure was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tells(pub(crate) i16);

impl Tells {
    const FAILURE_TOLD: i16 = 8;

    pub(crate) fn of(news: impl Iterator<Item = News>) -> Tells {
        Tells(news.fold(0, |bits, news| bits | 1 << news as i16))
    }

    fn tells(self, news: News) -> bool {
        self.0 & (1 << news as i16) != 0
    }

    /// True if the next failure is to be told.
    pub(crate) fn awaits_failure(self) -> bool {
        self.tells(News::Failure) && self.0 & Self::FAILURE_TOLD == 0
    }
}

/// What happened in parts that the row has not heard of: sums over those that are not finished, and when they were touched last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unfinished {
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) active_at: Option<Time>,
}

impl TallyRow {
    /// What users are shown.
    pub(crate) fn view(self, metadata: Option<Value>, unfinished: Unfinished) -> Tally {
        Tally {
            id: self.id,
            state: self.state,
            user_key: self.user_key,
            topic: self.topic,
            metadata,
            growing: self.growing,
            estimated: self.estimated,
            parent: self.parent,
            total: self.total,
            done: self.done + unfinished.done,
            failed: self.failed + unfinished.failed,
            created_at: self.created_at,
            sealed_at: self.sealed_at,
            ended_at: self.ended_at,
            active_at: unfinished.active_at.unwrap_or_default().max(self.active_at),
            expires_at: self.expires_at,
        }
    }

    /// What acks have to know of it.
    pub(crate) fn standing(&self) -> Standing {
        Standing { state: self.state, estimated: self.estimated }
    }

    /// True if it is complete, and this call made it so: its answer was lost, and it is repeated.
    pub(crate) fn was_completed_by(&self, by: i64) -> bool {
        self.state == TallyState::Complete && self.ended_by == by && by != 0
    }

    /// Makes room for items. `inside`: they are added from inside an item that is unfinished.
    pub(crate) fn grow(&mut self, count: u64, inside: bool, now: Time) -> Result<Added> {
        self.check_growth(count, inside)?;
        Ok(self.grow_by(count, now))
    }

    fn check_growth(&self, count: u64, inside: bool) -> Result<()> {
        if self.estimated {
            return Err(Error::invalid(
                format!("tally {} is estimated and has no items", self.id),
                "count it up instead",
            ));
        }
        let grows = self.state == TallyState::Sealed && self.growing && inside;
        if self.state != TallyState::Open && !grows {
            return Err(self.takes_no_more());
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
    fn grow_by(&mut self, count: u64, now: Time) -> Added {
        let added = Added { first: self.next_part * PART, count };
        let parts = count.div_ceil(PART);
        self.next_part += parts;
        self.parts_left += parts;
        self.total += count;
        self.active_at = now;
        added
    }

    fn takes_no_more(&self) -> Error {
        let (what, remedy) = match self.state {
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

    /// Seals it. Gives whether `by` is the call that completed it.
    pub(crate) fn seal(
        &mut self,
        expected: Option<u64>,
        by: i64,
        now: Time,
        outbox: &mut Vec<Outgoing>,
    ) -> Result<bool> {
        // One that grows may have grown since it was sealed.
        let grown = self.growing && self.state != TallyState::Open;
        let wrong = expected.filter(|expected| *expected != self.total && !grown);
        match self.state {
            TallyState::Cancelled | TallyState::Expired => Err(self.takes_no_more()),
            _ if wrong.is_some() => Err(Error::conflict(
                format!("tally {} has {} items and not {}", self.id, self.total, wrong.unwrap_or_default()),
                "add what is missing, or seal it without naming a number",
            )),
            TallyState::Sealed => Ok(false),
            TallyState::Complete => Ok(self.was_completed_by(by)),
            TallyState::Open => {
                self.state = TallyState::Sealed;
                self.sealed_at = Some(now);
                self.active_at = now;
                Ok(self.complete(by, now, outbox))
            }
        }
    }

    /// Takes over what happened in its parts. True if this completes it.
    pub(crate) fn take(&mut self, delta: &Delta, by: i64, now: Time, outbox: &mut Vec<Outgoing>) -> bool {
        self.parts_left = self.parts_left.saturating_sub(delta.emptied);
        self.done = self.done.saturating_add_signed(delta.done);
        self.failed = self.failed.saturating_add_signed(delta.failed);
        self.active_at = self.active_at.max(now);
        if let Some(item) = delta.failure.filter(|_| self.tells.awaits_failure() && !self.state.has_ended()) {
            self.tells.0 |= Tells::FAILURE_TOLD;
            outbox.push(Outgoing { item: Some(item), ..self.outgoing(News::Failure) });
        }
        self.complete(by, now, outbox)
    }

    /// Counts a plain counter up or down. True if this completes it.
    pub(crate) fn count(&mut self, by: i64, now: Time, outbox: &mut Vec<Outgoing>) -> Result<bool> {
        if !self.estimated {
            return Err(Error::invalid(
                format!("tally {} has items and is not estimated", self.id),
                "add items, and ack them by their numbers",
            ));
        }
        if by.unsigned_abs() > MAX_ITEMS {
            return Err(Error::invalid(format!("{by} is too much to count at once"), "count at most 2^40"));
        }
        if by > 0 && self.state != TallyState::Open {
            return Err(self.takes_no_more());
        }
        if matches!(self.state, TallyState::Cancelled | TallyState::Expired) {
            return Ok(false);
        }
        self.total = self.total.saturating_add(by.max(0).unsigned_abs()).min(MAX_ITEMS);
        self.done = self.done.saturating_add(by.min(0).unsigned_abs()).min(MAX_ITEMS);
        self.active_at = now;
        Ok(self.complete(0, now, outbox))
    }

    /// Gives it up. False if that was done before.
    pub(crate) fn cancel(&mut self, now: Time, outbox: &mut Vec<Outgoing>) -> Result<bool> {
        match self.state {
            TallyState::Cancelled => Ok(false),
            TallyState::Complete | TallyState::Expired => Err(self.takes_no_more()),
            TallyState::Open | TallyState::Sealed => {
                self.end(TallyState::Cancelled, now);
                self.tell_parent(News::ParentFailed, outbox);
                Ok(true)
            }
        }
    }

    /// Its time is over.
    pub(crate) fn expire(&mut self, now: Time, outbox: &mut Vec<Outgoing>) {
        if self.state.has_ended() {
            return;
        }
        self.end(TallyState::Expired, now);
        if self.tells.tells(News::Expiry) {
            outbox.push(self.outgoing(News::Expiry));
        }
        self.tell_parent(News::ParentFailed, outbox);
    }

    /// It is removed. If it has not ended, what it stands for fails.
    pub(crate) fn remove(&self, outbox: &mut Vec<Outgoing>) {
        if !self.state.has_ended() {
            self.tell_parent(News::ParentFailed, outbox);
        }
    }

    /// Puts it right after its parts were counted. True if it was wrong.
    pub(crate) fn recount(
        &mut self,
        parts_left: u64,
        finished: Unfinished,
        now: Time,
        outbox: &mut Vec<Outgoing>,
    ) -> bool {
        let counted = (parts_left, finished.done, finished.failed);
        let wrong = !self.estimated && (self.parts_left, self.done, self.failed) != counted;
        if wrong {
            (self.parts_left, self.done, self.failed) = counted;
        }
        self.complete(0, now, outbox) || wrong
    }

    /// Completes it if it is sealed and nothing is left.
    fn complete(&mut self, by: i64, now: Time, outbox: &mut Vec<Outgoing>) -> bool {
        let left = if self.estimated { self.total > self.done } else { self.parts_left > 0 };
        if self.state != TallyState::Sealed || left {
            return false;
        }
        self.end(TallyState::Complete, now);
        self.ended_by = by;
        if self.tells.tells(News::Complete) {
            outbox.push(self.outgoing(News::Complete));
        }
        let news = if self.failed > 0 { News::ParentFailed } else { News::ParentDone };
        self.tell_parent(news, outbox);
        true
    }

    fn end(&mut self, state: TallyState, now: Time) {
        self.state = state;
        self.ended_at = Some(now);
        self.active_at = self.active_at.max(now);
    }

    fn tell_parent(&self, news: News, outbox: &mut Vec<Outgoing>) {
        if self.parent.is_some() {
            outbox.push(self.outgoing(news));
        }
    }

    fn outgoing(&self, news: News) -> Outgoing {
        let TallyRow { total, done, failed, .. } = *self;
        Outgoing { tally: self.id, news, total, done, failed, item: None }
    }
}
