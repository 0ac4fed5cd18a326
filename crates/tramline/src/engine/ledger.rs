//! What is in hand, and how much of it: where runners, settler, keeper and the claim loop meet.

use crate::engine::hand::Hand;
use crate::model::id::LaneId;
use crate::model::lease::Lease;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// The hands of one run, and those of them that have all their outcomes.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    hands: Mutex<Hands>,
    finished: Mutex<Vec<Arc<Hand>>>,
    /// How many events the hands hold, with an outcome or without.
    unsettled: AtomicUsize,
    /// For the settler: a hand is finished or the first one is here, or it has to hurry.
    pub(crate) finish_bell: Notify,
    hurried: AtomicBool,
    /// For the keeper: there is something to keep.
    pub(crate) arrival: Notify,
    /// Changes whenever something was settled or the last event got its outcome.
    pub(crate) settled: watch::Sender<()>,
    pub(crate) load: Load,
}

/// Under one lock, so that nothing joins a lane while it is given up.
#[derive(Debug, Default)]
struct Hands {
    held: HashMap<Lease, Arc<Hand>>,
    /// The last epoch under which a lane was given up.
    given_up: HashMap<LaneId, i64>,
}

impl Ledger {
    /// Takes a hand in. False if its lane was given up under its epoch, which a claim that was on its way could not know: what comes
    /// before it in the lane is nobody's, so it must not run.
    pub(crate) fn add(&self, hand: Arc<Hand>) -> bool {
        let mut hands = self.hands();
        let Lease { lane, epoch, .. } = hand.lease;
        if hand.lease.is_ordered() && hands.given_up.get(&lane).is_some_and(|lost| *lost >= epoch) {
            return false;
        }
        self.load.add(hand.events.len());
        self.unsettled.fetch_add(hand.events.len(), Ordering::SeqCst);
        if hands.held.is_empty() {
            self.arrival.notify_one();
            // The settler looks at partial outcomes only while there is something in hand.
            self.finish_bell.notify_one();
        }
        hands.held.insert(hand.lease, hand);
        true
    }

    /// All hands of the lane of a lease, which is lost. None comes in under its epoch any more.
    pub(crate) fn give_up(&self, lease: &Lease) -> Vec<Arc<Hand>> {
        let mut hands = self.hands();
        let lost = hands.given_up.entry(lease.lane).or_insert(lease.epoch);
        *lost = lease.epoch.max(*lost);
        let same = |hand: &&Arc<Hand>| (hand.lease.lane, hand.lease.epoch) == (lease.lane, lease.epoch);
        hands.held.values().filter(same).cloned().collect()
    }

    /// All outcomes of a hand are known. Those of a suspect get no company by waiting: it ran alone.
    pub(crate) fn finish(&self, hand: Arc<Hand>) {
        let is_suspect = hand.crashes > 0;
        self.finished().push(hand);
        if is_suspect {
            self.hurried.store(true, Ordering::SeqCst);
        }
        self.finish_bell.notify_one();
    }

    /// Asks the settler to write back everything that has an outcome, now.
    pub(crate) fn hurry(&self) {
        self.hurried.store(true, Ordering::SeqCst);
        self.finish_bell.notify_one();
    }

    /// True once after each [`Ledger::hurry`].
    pub(crate) fn is_hurried(&self) -> bool {
        self.hurried.swap(false, Ordering::SeqCst)
    }

    /// How many events the finished hands hold.
    pub(crate) fn finished_events(&self) -> usize {
        self.finished().iter().map(|hand| hand.events.len()).sum()
    }

    pub(crate) fn take_finished(&self) -> Vec<Arc<Hand>> {
        std::mem::take(&mut *self.finished())
    }

    /// Everything in hand.
    pub(crate) fn all(&self) -> Vec<Arc<Hand>> {
        self.hands().held.values().cloned().collect()
    }

    /// The lanes of what is in hand, with their epochs.
    pub(crate) fn lanes(&self) -> BTreeSet<(LaneId, i64)> {
        let ordered = |lease: &&Lease| lease.is_ordered();
        self.hands().held.keys().filter(ordered).map(|lease| (lease.lane, lease.epoch)).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.hands().held.is_empty()
    }

    /// Nothing more is to be done with the hand.
    pub(crate) fn remove(&self, hand: &Hand) {
        if self.hands().held.remove(&hand.lease).is_some() {
            self.unsettled.fetch_sub(hand.events.len(), Ordering::SeqCst);
        }
    }

    /// Waits until at most `most` events wait for their outcome or to be written back. Handlers may be faster than the store; then
    /// claiming more would only fill the memory. Cancel-safe.
    pub(crate) async fn unsettled_at_most(&self, most: usize) {
        let mut settled = self.settled.subscribe();
        while self.unsettled.load(Ordering::SeqCst) > most {
            if settled.changed().await.is_err() {
                return;
            }
        }
    }

    /// Some events have their outcome or will never get one.
    pub(crate) fn done_with(&self, events: usize) {
        if self.load.remove(events) == 0 {
            self.settled.send_replace(());
        }
    }

    /// True when nothing runs and nothing waits to be written back.
    pub(crate) fn is_drained(&self) -> bool {
        self.load.events() == 0 && self.is_empty()
    }

    /// Waits until nothing runs and nothing waits to be written back. Cancel-safe.
    pub(crate) async fn drained(&self) {
        let mut settled = self.settled.subscribe();
        while !self.is_drained() {
            if settled.changed().await.is_err() {
                return;
            }
        }
    }

    /// Forgets everything; breaks the circle of a run and its hands.
    pub(crate) fn clear(&self) {
        self.hands().held.clear();
        self.finished().clear();
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finished(&self) -> MutexGuard<'_, Vec<Arc<Hand>>> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many events are in hand without an outcome, and a signal for when there are few.
#[derive(Debug, Default)]
pub(crate) struct Load {
    events: AtomicUsize,
    low: AtomicUsize,
    /// True while the claim loop waits for room, so that runners ring at most once.
    wanted: AtomicBool,
    room: Notify,
}

impl Load {
    pub(crate) fn events(&self) -> usize {
        self.events.load(Ordering::SeqCst)
    }

    fn add(&self, events: usize) {
        self.events.fetch_add(events, Ordering::SeqCst);
    }

    fn remove(&self, events: usize) -> usize {
        let left = self.events.fetch_sub(events, Ordering::SeqCst) - events;
        if left <= self.low.load(Ordering::Relaxed)
            && self.wanted.load(Ordering::SeqCst)
            && self.wanted.swap(false, Ordering::SeqCst)
        {
            self.room.notify_one();
        }
        left
    }

    /// Waits until at most `low` events are in hand. Cancel-safe.
    pub(crate) async fn at_most(&self, low: usize) {
        self.low.store(low, Ordering::SeqCst);
        loop {
            self.wanted.store(true, Ordering::SeqCst);
            if self.events() <= low {
                self.wanted.store(false, Ordering::SeqCst);
                return;
            }
            self.room.notified().await;
        }
    }
}
