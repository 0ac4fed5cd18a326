//! Writes outcomes and attempts of one subscription back. Requests that end while something is being written share the next
//! transaction.

use super::Shared;
use super::batch::Batch;
use super::standing::Standing;
use crate::engine::backoff;
use crate::error::{Kind, Result};
use crate::model::health::{Attempt, Health, Verdict};
use crate::model::id::EventId;
use crate::model::lease::Lease;
use crate::model::outcome::Outcome;
use crate::model::subscription::Ordering;
use crate::model::time::Time;
use crate::push::{Judged, Sending, in_order};
use crate::store::verbs::{ATTEMPTS_KEPT, RecordPush, Sent};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Good news is written down this often; bad news at once.
pub(super) const EVERY: Duration = Duration::from_secs(1);
/// How often writing an outcome back is tried: about as long as a lease lasts. After that the batch is sent again.
const TRIES: u32 = 10;

#[derive(Debug)]
pub(super) struct Scribe {
    shared: Arc<Shared>,
    standing: Arc<watch::Sender<Standing>>,
    pending: Mutex<Pending>,
    /// One writes at a time; whoever waits finds his own written, or writes for all who came meanwhile.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Pending {
    outcomes: Vec<(EventId, Lease, Outcome)>,
    back: Vec<Lease>,
    /// The last attempts; of older deliveries only the numbers are kept.
    attempts: VecDeque<Attempt>,
    counted: Sent,
    written_at: Duration,
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
        Scribe { shared, standing, pending: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    /// Writes down what came of a batch. Returns when it is written, or was given up.
    pub(super) async fn report(&self, batch: Batch, judged: Judged, attempt: Attempt) {
        let urgent = attempt.verdict != Verdict::Delivered || self.standing.borrow().health.failures > 0;
        let (outcomes, back) = self.settle(batch, judged);
        {
            let mut pending = self.pending();
            pending.outcomes.extend(outcomes);
            pending.back.extend(back);
            pending.note(attempt);
        }
        let _turn = self.turn.lock().await;
        // A receiver that is not to be asked again is not asked again meanwhile.
        if urgent || self.is_time() {
            self.try_record().await;
        }
        self.write().await;
    }

    /// Gives batches back that were claimed and are not to be sent.
    pub(super) async fn give_back(&self, batches: impl Iterator<Item = Batch>) {
        for batch in batches {
            let (outcomes, back) = self.unsent(batch);
            let mut pending = self.pending();
            pending.outcomes.extend(outcomes);
            pending.back.extend(back);
        }
        let _turn = self.turn.lock().await;
        self.write().await;
    }

    /// The subscription stands differently now.
    pub(super) fn learn(&self, health: Health, now: Time) {
        Standing::update(&self.standing, health, now, self.shared.tram.clock());
    }

    /// Attempts without a batch: the receiver was asked and did not agree.
    pub(super) async fn note(&self, attempt: Attempt) -> Result<()> {
        self.pending().note(attempt);
        let _turn = self.turn.lock().await;
        self.record().await
    }

    /// Writes down what waits, if it has waited for long enough.
    pub(super) async fn catch_up(&self) {
        if self.is_time() {
            self.finish().await;
        }
    }

    /// Writes down all that waits.
    pub(super) async fn finish(&self) {
        let _turn = self.turn.lock().await;
        self.try_record().await;
    }

    /// What to write back, and which leases to give back.
    fn settle(&self, batch: Batch, judged: Judged) -> (Vec<(EventId, Lease, Outcome)>, Vec<Lease>) {
        if judged.outcomes.is_empty() {
            return self.unsent(batch);
        }
        let Batch { events, leases } = batch;
        let by_key = self.standing.borrow().subscription.policy.ordering == Ordering::Key;
        let all: Vec<((Sending, Lease), Outcome)> =
            events.into_iter().zip(leases).zip(judged.outcomes).collect();
        if !by_key {
            let plain =
                |((sending, lease), outcome): ((Sending, Lease), Outcome)| (sending.event.id, lease, outcome);
            return (all.into_iter().map(plain).collect(), Vec::new());
        }
        let count = all.len();
        let mut given: Vec<Lease> = all.iter().map(|((_, lease), _)| *lease).collect();
        let kept = in_order(all, |(sending, _)| {
            let key = sending.event.key.clone().filter(|_| !sending.replayed)?;
            Some((sending.event.topic.clone(), key))
        });
        let outcomes: Vec<_> =
            kept.into_iter().map(|((sending, lease), outcome)| (sending.event.id, lease, outcome)).collect();
        // What was left out is set aside with the failed event before it; unless that one is out of attempts, and its key goes on.
        if outcomes.len() == count {
            given.clear();
        }
        (outcomes, distinct(given))
    }

    /// What to write back for a batch that is not to be sent, and which leases to give back. Where there is no order a lease is
    /// shared by batches that may be under way: only the batch's own events go back.
    fn unsent(&self, batch: Batch) -> (Vec<(EventId, Lease, Outcome)>, Vec<Lease>) {
        let Batch { events, leases } = batch;
        if self.standing.borrow().subscription.policy.is_ordered() {
            return (Vec::new(), distinct(leases));
        }
        let back = Outcome::Snooze { delay: Duration::ZERO };
        let each = |(sending, lease): (Sending, Lease)| (sending.event.id, lease, back.clone());
        (events.into_iter().zip(leases).map(each).collect(), Vec::new())
    }

    async fn write(&self) {
        let (outcomes, back) = {
            let mut pending = self.pending();
            (std::mem::take(&mut pending.outcomes), std::mem::take(&mut pending.back))
        };
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
            && let Err(error) = tram.release(id, back).await
        {
            tracing::debug!(error = %error, "events that were not sent wait for the end of their lease");
        }
    }

    async fn try_record(&self) {
        if let Err(error) = self.record().await {
            tracing::warn!(error = %error, "attempts of a push subscription could not be written");
        }
    }

    async fn record(&self) -> Result<()> {
        let (attempts, counted) = {
            let mut pending = self.pending();
            pending.written_at = self.shared.tram.clock().reading();
            (std::mem::take(&mut pending.attempts), std::mem::take(&mut pending.counted))
        };
        if attempts.is_empty() {
            return Ok(());
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
                self.learn(recorded.health.clone(), recorded.now);
                if recorded.disabled_now
                    && let Err(error) = self.shared.tell_disabled(&subscription, &recorded.health).await
                {
                    tracing::warn!(error = %error, "nobody could be told that a push subscription was disabled");
                }
            }
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// True if something waits to be written down.
    pub(super) fn is_behind(&self) -> bool {
        !self.pending().attempts.is_empty()
    }

    fn is_time(&self) -> bool {
        let pending = self.pending();
        let waited = self.shared.tram.clock().reading().saturating_sub(pending.written_at);
        waited >= EVERY && !pending.attempts.is_empty()
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn distinct(mut leases: Vec<Lease>) -> Vec<Lease> {
    leases.sort_unstable();
    leases.dedup();
    leases
}
