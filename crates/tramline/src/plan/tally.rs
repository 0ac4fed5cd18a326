//! What additions, acks and seals make of a tally.
//!
//! A tally is a row with sums, and parts with masks. Acks change parts, and the row only when a part is finished (or for the
//! first failure): whoever then finds the row sealed and no part left has completed it. All that is decided about the row is
//! decided under its lock.

mod ack;
mod grow;
mod place;
#[cfg(test)]
mod tests;

pub(crate) use ack::{Acks, Delta, Standing, gather};
pub(crate) use grow::{ItemRow, Origin};
pub(crate) use place::{Placement, origins, place, unknown, wanted};

use crate::error::{Error, Result};
use crate::model::id::TallyId;
use crate::model::tally::news::{News, Outgoing};
use crate::model::tally::{MAX_ITEMS, Tally, TallyItem, TallyState};
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
    /// Where it is in its life. One whose time is over has expired, whether or not a sweep has met it; only a sweep writes that.
    pub(crate) fn state_at(&self, now: Time) -> TallyState {
        if self.is_overdue(now) { TallyState::Expired } else { self.state }
    }

    fn is_overdue(&self, now: Time) -> bool {
        !self.state.has_ended() && self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }

    /// What users are shown.
    pub(crate) fn view(self, metadata: Option<Value>, unfinished: Unfinished, now: Time) -> Tally {
        let ended_at = if self.is_overdue(now) { self.expires_at } else { self.ended_at };
        Tally {
            id: self.id,
            state: self.state_at(now),
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
            ended_at,
            active_at: unfinished.active_at.unwrap_or_default().max(self.active_at),
            expires_at: self.expires_at,
        }
    }

    /// What acks have to know of it.
    pub(crate) fn standing(&self, now: Time) -> Standing {
        Standing { state: self.state_at(now), estimated: self.estimated }
    }

    /// True if it is complete, and this call made it so: its answer was lost, and it is repeated.
    pub(crate) fn was_completed_by(&self, by: i64) -> bool {
        self.state == TallyState::Complete && self.ended_by == by && by != 0
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
        match self.state_at(now) {
            TallyState::Cancelled | TallyState::Expired => Err(self.takes_no_more(now)),
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
        if let Some(item) =
            delta.failure.filter(|_| self.tells.awaits_failure() && !self.state_at(now).has_ended())
        {
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
        let state = self.state_at(now);
        if by > 0 && state != TallyState::Open {
            return Err(self.takes_no_more(now));
        }
        if matches!(state, TallyState::Cancelled | TallyState::Expired) {
            return Ok(false);
        }
        self.total = self.total.saturating_add(by.max(0).unsigned_abs()).min(MAX_ITEMS);
        self.done = self.done.saturating_add(by.min(0).unsigned_abs()).min(MAX_ITEMS);
        self.active_at = now;
        Ok(self.complete(0, now, outbox))
    }

    /// Gives it up. False if that was done before.
    pub(crate) fn cancel(&mut self, now: Time, outbox: &mut Vec<Outgoing>) -> Result<bool> {
        match self.state_at(now) {
            TallyState::Cancelled => Ok(false),
            TallyState::Complete | TallyState::Expired => Err(self.takes_no_more(now)),
            TallyState::Open | TallyState::Sealed => {
                self.end(TallyState::Cancelled, now);
                self.tell_parent(News::ParentFailed, outbox);
                Ok(true)
            }
        }
    }

    /// Writes down that its time is over, and tells it.
    pub(crate) fn expire(&mut self, now: Time, outbox: &mut Vec<Outgoing>) {
        if !self.is_overdue(now) {
            return;
        }
        self.tell_expiry(outbox);
        self.end(TallyState::Expired, now);
        self.ended_at = self.expires_at;
    }

    fn tell_expiry(&self, outbox: &mut Vec<Outgoing>) {
        if self.tells.tells(News::Expiry) {
            outbox.push(self.outgoing(News::Expiry));
        }
        self.tell_parent(News::ParentFailed, outbox);
    }

    /// It is removed. If it has not ended, what it stands for fails; if it has expired and no sweep has told it, this is the last
    /// chance to do so.
    pub(crate) fn remove(&self, now: Time, outbox: &mut Vec<Outgoing>) {
        if self.is_overdue(now) {
            self.tell_expiry(outbox);
        } else if !self.state.has_ended() {
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
        if self.state_at(now) != TallyState::Sealed || left {
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
