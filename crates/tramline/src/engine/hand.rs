//! What a worker has in hand: claimed slices, and the outcomes of their events until they are written back.

use crate::engine::run::Run;
use crate::engine::trace::{Ended, Settling, Trail};
use crate::model::id::EventId;
use crate::model::lease::Lease;
use crate::model::mask::Mask;
use crate::model::outcome::Outcome;
use crate::model::time::Time;
use crate::store::verbs::{ClaimedEvent, ClaimedSlice, SettleSlice};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The events of one lease. Runners on many threads record outcomes; the settler takes them.
#[derive(Debug)]
pub(crate) struct Hand {
    pub(crate) run: Arc<Run>,
    pub(crate) lease: Lease,
    pub(crate) events: Vec<ClaimedEvent>,
    pub(crate) attempts: u32,
    pub(crate) crashes: u32,
    pub(crate) replayed: bool,
    pub(crate) taken: Taken,
    pub(crate) cancel: CancellationToken,
    /// The end of the lease by the store's clock, in milliseconds.
    until: AtomicI64,
    /// The reading at which the lease can no longer be relied on, in milliseconds.
    deadline: AtomicU64,
    lost: AtomicBool,
    started: AtomicBool,
    /// A handler may have told the store of a failure itself, whatever it returns.
    doubted: AtomicBool,
    /// Positions that have neither an outcome nor were set aside.
    pending: AtomicU64,
    /// Positions that are done and not yet taken by the settler.
    done: AtomicU64,
    /// Other outcomes not yet taken by the settler, by position.
    other: Mutex<Vec<(u32, Outcome)>>,
    /// What the settlement of an event follows from, by position; only where somebody records it.
    trails: Mutex<Vec<(u32, Trail)>>,
}

/// When something was claimed: by the store's clock, and by the reading taken *before* the store was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) now: Time,
    pub(crate) reading: Duration,
}

impl Hand {
    pub(crate) fn new(run: Arc<Run>, slice: ClaimedSlice, taken: Taken) -> Hand {
        let lasts = slice.until.since(taken.now);
        Hand {
            run,
            lease: slice.lease,
            attempts: slice.attempts,
            crashes: slice.crashes,
            replayed: slice.replayed,
            taken,
            cancel: CancellationToken::new(),
            until: AtomicI64::new(slice.until.0),
            deadline: AtomicU64::new((taken.reading + lasts).as_millis() as u64),
            lost: AtomicBool::new(false),
            started: AtomicBool::new(false),
            doubted: AtomicBool::new(false),
            pending: AtomicU64::new(Mask::first(slice.events.len() as u32).to_i64().cast_unsigned()),
            done: AtomicU64::new(0),
            other: Mutex::default(),
            trails: Mutex::default(),
            events: slice.events,
        }
    }

    /// Records an outcome. True if it was the last one that this hand waited for.
    pub(crate) fn record(&self, at: u32, outcome: Outcome) -> bool {
        match outcome {
            Outcome::Done => {
                self.done.fetch_or(1 << at, Ordering::Release);
            }
            other => self.other().push((at, other)),
        }
        self.set_aside(at)
    }

    /// Remembers what the settlement of an event follows from.
    pub(crate) fn leave(&self, at: u32, trail: Trail) {
        self.trails.lock().unwrap_or_else(PoisonError::into_inner).push((at, trail));
    }

    /// An event will get no outcome (any more). True if it was the last one that this hand waited for.
    pub(crate) fn set_aside(&self, at: u32) -> bool {
        self.pending.fetch_and(!(1 << at), Ordering::AcqRel) == 1 << at
    }

    /// The positions without an outcome.
    pub(crate) fn pending(&self) -> impl Iterator<Item = u32> + use<> {
        bits(self.pending.load(Ordering::Acquire))
    }

    /// True when every event has an outcome or was set aside.
    pub(crate) fn is_finished(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    /// True when there are outcomes that the settler has not taken.
    pub(crate) fn has_outcomes(&self) -> bool {
        self.done.load(Ordering::Acquire) != 0 || !self.other().is_empty()
    }

    /// Takes the outcomes recorded so far.
    pub(crate) fn take_outcomes(self: &Arc<Self>) -> Outcomes {
        let done = self.done.swap(0, Ordering::AcqRel);
        Outcomes { done, other: std::mem::take(&mut *self.other()), hand: self.clone() }
    }

    /// Drops the outcomes that the settler has not taken, and gives their positions.
    pub(crate) fn drop_outcomes(&self) -> Vec<u32> {
        let done = self.done.swap(0, Ordering::AcqRel);
        let other = std::mem::take(&mut *self.other());
        bits(done).chain(other.into_iter().map(|(at, _)| at)).collect()
    }

    /// The id of the event at a position.
    pub(crate) fn id(&self, at: u32) -> EventId {
        self.events[at as usize].event.id
    }

    /// Remembers that a handler has begun on it.
    pub(crate) fn start(&self) {
        if !self.started.load(Ordering::Relaxed) {
            self.started.store(true, Ordering::Release);
        }
    }

    /// True once a handler has begun on one of its events.
    pub(crate) fn is_started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }

    /// Remembers that a handler may tell the store of a failure itself.
    pub(crate) fn doubt(&self) {
        self.doubted.store(true, Ordering::Release);
    }

    /// True if what a handler returns may not be what the store was told.
    pub(crate) fn is_doubted(&self) -> bool {
        self.doubted.load(Ordering::Acquire)
    }

    /// The lease lasts longer. Answers may come in another order than they were given.
    pub(crate) fn extend(&self, until: Time, deadline: Duration) {
        self.until.fetch_max(until.0, Ordering::Relaxed);
        self.deadline.fetch_max(deadline.as_millis() as u64, Ordering::AcqRel);
    }

    /// The end of the lease by the store's clock.
    pub(crate) fn until(&self) -> Time {
        Time(self.until.load(Ordering::Relaxed))
    }

    /// The reading at which the lease can no longer be relied on.
    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline.load(Ordering::Acquire))
    }

    /// The lease has ended: tells the handlers. True for the first one to notice.
    pub(crate) fn lose(&self) -> bool {
        self.cancel.cancel();
        !self.lost.swap(true, Ordering::AcqRel)
    }

    /// True once the lease has ended.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    fn other(&self) -> std::sync::MutexGuard<'_, Vec<(u32, Outcome)>> {
        self.other.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Outcomes on their way to the store, by position.
#[derive(Debug)]
pub(crate) struct Outcomes {
    pub(crate) hand: Arc<Hand>,
    done: u64,
    other: Vec<(u32, Outcome)>,
}

impl Outcomes {
    pub(crate) fn is_empty(&self) -> bool {
        self.done == 0 && self.other.is_empty()
    }

    /// Gives them back to the hand that they are of.
    pub(crate) fn put_back(self) {
        self.hand.done.fetch_or(self.done, Ordering::AcqRel);
        self.hand.other().extend(self.other);
    }

    pub(crate) fn len(&self) -> usize {
        self.done.count_ones() as usize + self.other.len()
    }

    /// Their settlement begins, where somebody records it.
    pub(crate) fn begin(&self, settling: &mut Settling) {
        let hand = &self.hand;
        let trails = std::mem::take(&mut *hand.trails.lock().unwrap_or_else(PoisonError::into_inner));
        let (now, later): (Vec<_>, Vec<_>) =
            trails.into_iter().partition(|(at, _)| self.outcome(*at).is_some());
        for (at, trail) in now {
            let Some(outcome) = self.outcome(at) else { continue };
            let event = &hand.events[at as usize].event;
            let ended = Ended { event, attempt: hand.attempts + 1, outcome };
            settling.begin(hand.run.tram.traces(), &hand.run.subscription, trail, ended);
        }
        hand.trails.lock().unwrap_or_else(PoisonError::into_inner).extend(later);
    }

    fn outcome(&self, at: u32) -> Option<&Outcome> {
        let other = self.other.iter().find(|(other, _)| *other == at).map(|(_, outcome)| outcome);
        other.or_else(|| (self.done & 1 << at != 0).then_some(&Outcome::Done))
    }

    /// What may have to run again before the next event of its key: what is settled by other words than done, or may have been.
    pub(crate) fn stops(&self) -> impl Iterator<Item = u32> {
        let done = if self.hand.is_doubted() { self.done } else { 0 };
        bits(done).chain(self.other.iter().map(|(at, _)| *at))
    }

    /// The ids, in the order of [`Outcomes::to_settle`].
    pub(crate) fn ids(&self) -> Vec<EventId> {
        self.positions().map(|at| self.hand.id(at)).collect()
    }

    /// As the store takes them. Made anew for every try, because the store keeps what it is given.
    pub(crate) fn to_settle(&self) -> SettleSlice {
        let index = |at: u32| self.hand.id(at).index();
        let done = bits(self.done).map(|at| (index(at), Outcome::Done));
        let other = self.other.iter().map(|(at, outcome)| (index(*at), outcome.clone()));
        SettleSlice { lease: self.hand.lease, outcomes: done.chain(other).collect() }
    }

    fn positions(&self) -> impl Iterator<Item = u32> {
        bits(self.done).chain(self.other.iter().map(|(at, _)| *at))
    }
}

fn bits(bits: u64) -> impl Iterator<Item = u32> + use<> {
    Mask::from_i64(bits.cast_signed()).iter()
}
