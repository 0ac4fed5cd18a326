//! Writes outcomes and attempts of one subscription back. What ends while something is being written shares the next transaction.

use super::Shared;
use super::batch::Batch;
use super::send::Came;
use super::standing::Standing;
use crate::engine::backoff;
use crate::engine::trace;
use crate::error::Kind;
use crate::model::health::{Attempt, Health, Verdict};
use crate::model::id::EventId;
use crate::model::lease::Lease;
use crate::model::outcome::Outcome;
use crate::model::subscription::Ordering;
use crate::model::time::Time;
use crate::push::{Sending, in_order};
use crate::store::verbs::{ATTEMPTS_KEPT, RecordPush, Sent};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// Good news is written down this often; bad news at once.
const EVERY: Duration = Duration::from_secs(1);
/// How often writing an outcome back is tried: about as long as a lease lasts. After that the batch is sent again.
const TRIES: u32 = 10;
/// So few outcomes wait a moment for company: the events of a slice end one after the other, and together they cost one row.
const FEW: usize = 1_024;
const LINGER: Duration = Duration::from_millis(10);
/// How many requests may have their outcome unwritten, for each that may be under way.
const UNWRITTEN: u64 = 32;

#[derive(Debug)]
pub(super) struct Scribe {
    shared: Arc<Shared>,
    standing: Arc<watch::Sender<Standing>>,
    pending: Mutex<Pending>,
    /// Rings when there is something to write, or no reason to wait any longer.
    bell: Notify,
    /// How many reports are written, or were given up.
    written: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Pending {
    outcomes: Vec<Settling>,
    /// They end when the outcomes are written.
    spans: trace::Settling,
    back: Vec<Lease>,
    /// The last attempts; of older deliveries only the numbers are kept.
    attempts: VecDeque<Attempt>,
    counted: Sent,
    recorded_at: Duration,
    /// How many reports came so far.
    reports: u64,
    /// Somebody waits until all this is written.
    is_hurried: bool,
    /// There is bad news, or the first good news after it.
    is_news: bool,
    /// Nothing more comes.
    is_closed: bool,
}

type Settling = (EventId, Lease, Outcome);

/// Whether somebody waits until a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hurry {
    Yes,
    No,
}

impl Pending {
    fn note(&mut self, attempt: Attempt) {
        if self.attempts.len() >= ATTEMPTS_KEPT
            && let Some(oldest) = self.attempts.pop_front_if(|oldest| oldest.verdict == Verdict::Delivered)
        {
            self.counted.events += u64::from(oldest.acknowledged);
            self.counted.batches += 1;
        }
        self.attempts.push_back(attempt);
    }
}

impl Scribe {
    pub(super) fn new(shared: Arc<Shared>, standing: Arc<watch::Sender<Standing>>) -> Scribe {
        let written = watch::Sender::new(0);
        Scribe { shared, standing, pending: Mutex::default(), bell: Notify::new(), written }
    }

    /// What came of a batch is to be written down. Gives the number of the report, for [`Scribe::written`].
    pub(super) fn report(&self, batch: Batch, came: Came, hurry: Hurry) -> u64 {
        let Came { judged, attempt, spans } = came;
        let (ordering, failures) = {
            let standing = self.standing.borrow();
            (standing.subscription.policy.ordering, standing.health.failures)
        };
        let is_news = attempt.verdict != Verdict::Delivered || failures > 0;
        let (outcomes, back) = settle(batch, judged.outcomes, ordering);
        let mut pending = self.pending();
        pending.is_news |= is_news;
        pending.spans.join(spans);
        pending.note(attempt);
        self.add(pending, outcomes, back, hurry)
    }

    /// Batches that are not sent after all: as if nobody had taken them.
    pub(super) fn give_back(&self, batches: Vec<Batch>) -> u64 {
        let ordering = self.standing.borrow().subscription.policy.ordering;
        let (mut outcomes, mut back) = (Vec::new(), Vec::new());
        for batch in batches {
            let (unsent, leases) = settle(batch, Vec::new(), ordering);
            outcomes.extend(unsent);
            back.extend(leases);
        }
        self.add(self.pending(), outcomes, back, Hurry::Yes)
    }

    /// An attempt without a batch: the receiver was asked and did not agree.
    pub(super) fn note(&self, attempt: Attempt) -> u64 {
        let mut pending = self.pending();
        pending.is_news = true;
        pending.note(attempt);
        self.add(pending, Vec::new(), Vec::new(), Hurry::Yes)
    }

    /// Waits until a report is written, or was given up.
    pub(super) async fn written(&self, report: u64) {
        // Fails only when the sender is gone, which `self` keeps.
        let _ = self.written.subscribe().wait_for(|written| *written >= report).await;
    }

    /// True if too much is unwritten, where so many requests may be under way.
    pub(super) fn is_behind(&self, width: usize) -> bool {
        self.pending().reports - *self.written.borrow() >= width as u64 * UNWRITTEN
    }

    /// The subscription stands differently now.
    pub(super) fn learn(&self, health: Health, now: Time) {
        Standing::update(&self.standing, health, now, self.shared.tram.clock());
    }

    /// Nothing more will be reported.
    pub(super) fn close(&self) {
        self.pending().is_closed = true;
        self.bell.notify_one();
    }

    /// Writes what is reported, until it is closed and all is written.
    pub(super) async fn write_all(&self) {
        let clock = self.shared.tram.clock();
        loop {
            tokio::select! {
                () = self.bell.notified() => self.linger().await,
                () = clock.sleep_until(self.record_at()) => {}
            }
            let is_closed = self.pending().is_closed;
            self.write(is_closed).await;
            if is_closed {
                return;
            }
        }
    }

    fn add(
        &self,
        mut pending: MutexGuard<'_, Pending>,
        outcomes: Vec<Settling>,
        back: Vec<Lease>,
        hurry: Hurry,
    ) -> u64 {
        let before = pending.outcomes.len();
        pending.outcomes.extend(outcomes);
        pending.back.extend(back);
        pending.is_hurried |= hurry == Hurry::Yes || pending.is_news;
        pending.reports += 1;
        let is_enough = before < FEW && pending.outcomes.len() >= FEW;
        let (rings, number) = (before == 0 || pending.is_hurried || is_enough, pending.reports);
        drop(pending);
        if rings {
            self.bell.notify_one();
        }
        number
    }

    /// Waits a moment if nobody waits for little, by the real clock: a test's time may stand still.
    async fn linger(&self) {
        let is_little = {
            let pending = self.pending();
            !pending.is_hurried && !pending.is_closed && pending.outcomes.len() < FEW
        };
        if is_little {
            let _ = tokio::time::timeout(LINGER, self.bell.notified()).await;
        }
    }

    async fn write(&self, is_last: bool) {
        let (outcomes, _spans, back, reports, is_news) = {
            let mut pending = self.pending();
            pending.is_hurried = false;
            let is_news = std::mem::take(&mut pending.is_news);
            let (outcomes, back) = (std::mem::take(&mut pending.outcomes), std::mem::take(&mut pending.back));
            (outcomes, std::mem::take(&mut pending.spans), back, pending.reports, is_news)
        };
        // First, so that a receiver that is not to be asked again is not asked again meanwhile.
        let is_disabled = if is_news || is_last { self.record().await } else { false };
        self.settle(outcomes, back).await;
        self.written.send_replace(reports);
        if is_disabled {
            // The next look at the board finds it, and tells; not while something is still to be written back.
            self.shared.tram.pushes().notify_one();
        }
        if self.shared.tram.clock().reading() >= self.record_at() {
            // One after the other: the good news of all lines at once would stand in the way of what they are about to send.
            let _turn = self.shared.recording.lock().await;
            self.record().await;
        }
    }

    async fn settle(&self, outcomes: Vec<Settling>, back: Vec<Lease>) {
        let (id, tram) = (self.standing.borrow().subscription.id, &self.shared.tram);
        for tries in 1..=TRIES {
            if outcomes.is_empty() {
                break;
            }
            match tram.settle(id, outcomes.clone(), Some(tram.presence().name.clone())).await {
                Ok(_) => break,
                Err(error) if error.kind() == Kind::Unavailable && tries < TRIES => {
                    tram.clock().sleep(backoff::delay(tries)).await;
                }
                // Deleted meanwhile: there is nothing to write back.
                Err(error) if error.kind() == Kind::NotFound => return,
                Err(error) => {
                    tracing::warn!(
                        error = %error,
                        events = outcomes.len(),
                        "what became of pushed events could not be written; they are sent again when their lease ends"
                    );
                    return;
                }
            }
        }
        if !back.is_empty()
            && let Err(error) = tram.release(id, distinct(back)).await
        {
            tracing::debug!(error = %error, "events that were not sent wait for the end of their lease");
        }
    }

    /// True if what was tried has disabled the subscription.
    async fn record(&self) -> bool {
        let (attempts, counted) = {
            let mut pending = self.pending();
            pending.recorded_at = self.shared.tram.clock().reading();
            (std::mem::take(&mut pending.attempts), std::mem::take(&mut pending.counted))
        };
        if attempts.is_empty() {
            return false;
        }
        let (tram, subscription) = (&self.shared.tram, self.standing.borrow().subscription.clone());
        let record = RecordPush {
            subscription: subscription.id,
            attempts: attempts.into(),
            counted,
            now: tram.clock().now(),
        };
        match tram.store().record_push(record).await {
            Ok(recorded) => {
                self.learn(recorded.health, recorded.now);
                recorded.disabled_now
            }
            Err(error) if error.kind() == Kind::NotFound => false,
            Err(error) => {
                tracing::warn!(error = %error, "attempts of a push subscription could not be written");
                false
            }
        }
    }

    /// At which reading good news is to be written down.
    fn record_at(&self) -> Duration {
        let pending = self.pending();
        if pending.attempts.is_empty() { Duration::MAX } else { pending.recorded_at + EVERY }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What to write back of a batch, and which leases to give back. Without outcomes nothing came of it.
fn settle(batch: Batch, outcomes: Vec<Outcome>, ordering: Ordering) -> (Vec<Settling>, Vec<Lease>) {
    let Batch { events, leases } = batch;
    if ordering == Ordering::None {
        // Other batches may share the lease, and be under way.
        let outcomes = outcomes.into_iter().chain(std::iter::repeat(AT_ONCE));
        let all = events.iter().zip(leases).zip(outcomes);
        return (all.map(|((sending, lease), outcome)| (sending.event.id, lease, outcome)).collect(), vec![]);
    }
    if outcomes.is_empty() {
        return (Vec::new(), leases);
    }
    let count = events.len();
    let given = leases.clone();
    let all: Vec<((Sending, Lease), Outcome)> = events.into_iter().zip(leases).zip(outcomes).collect();
    let key = |(sending, _): &(Sending, Lease)| {
        let key = sending.event.key.clone().filter(|_| !sending.replayed)?;
        Some((sending.event.topic.clone(), key))
    };
    let kept = if ordering == Ordering::Key { in_order(all, key) } else { all };
    let outcomes: Vec<Settling> =
        kept.into_iter().map(|((sending, lease), outcome)| (sending.event.id, lease, outcome)).collect();
    // What was left out is set aside with the failed event before it; unless that one is out of attempts, and its key goes on.
    let given = if outcomes.len() == count { Vec::new() } else { given };
    (outcomes, given)
}

/// As if it had never been claimed.
const AT_ONCE: Outcome = Outcome::Snooze { delay: Duration::ZERO };

fn distinct(mut leases: Vec<Lease>) -> Vec<Lease> {
    leases.sort_unstable();
    leases.dedup();
    leases
}
