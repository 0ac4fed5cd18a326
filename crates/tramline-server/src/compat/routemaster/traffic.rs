//! What went through this node since the last report. Counted only where somebody wants reports.
//!
//! It is seen from the verbs of the store that this process calls, so that what several nodes report adds up.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tramline::store::verbs::{Emission, RecordPush};
use tramline::{Attempt, EventId, SubscriptionId, Time, Verdict};

/// How many topics and publishers, and how many subscriptions, are told apart between two reports.
const MOST: usize = 10_000;
/// Of how many batches between two reports it is told how long they waited.
const MOST_WAITS: usize = 200;

/// What went through this node since the last report.
#[derive(Default)]
pub(crate) struct Traffic(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    since: Since,
    /// The first event of the batch that failed last, so that it is known again.
    failing: HashMap<SubscriptionId, EventId>,
}

/// Counts since the last report.
#[derive(Default)]
pub(super) struct Since {
    /// Events by topic and publisher.
    pub(super) published: HashMap<(String, String), u64>,
    pub(super) queues: HashMap<SubscriptionId, Passed>,
    /// Batches of which it may be told how long they waited.
    pub(super) waits: Vec<Wait>,
    /// Workers that were found dead.
    pub(super) scrubbed: u64,
}

/// What passed one subscription.
#[derive(Default)]
pub(super) struct Passed {
    pub(super) added: u64,
    pub(super) removed: u64,
    pub(super) autodropped: u64,
    pub(super) success: Tried,
    pub(super) failure: Tried,
}

/// Requests of one outcome.
#[derive(Default)]
pub(super) struct Tried {
    pub(super) events: u64,
    pub(super) batches: u64,
    pub(super) time: Duration,
}

/// A batch that was tried.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) subscription: SubscriptionId,
    /// Its first event.
    pub(super) first: EventId,
    pub(super) at: Time,
    /// True for the first attempt.
    pub(super) is_first: bool,
    /// True for the last attempt.
    pub(super) is_last: bool,
}

impl Traffic {
    /// A client published an event.
    pub(super) fn published(&self, topic: &str, publisher: &str) {
        let published = &mut self.lock().since.published;
        let key = (topic.to_owned(), publisher.to_owned());
        if published.len() < MOST || published.contains_key(&key) {
            *published.entry(key).or_default() += 1;
        }
    }

    /// Events were stored, and are work of these subscriptions.
    pub(crate) fn emitted(&self, emission: &Emission) {
        let events = if emission.repeated { 0 } else { emission.events.len() as u64 };
        let mut inner = self.lock();
        for subscription in &emission.wake {
            if let Some(passed) = inner.since.of(*subscription) {
                passed.added += events;
            }
        }
    }

    /// Batches were sent.
    pub(crate) fn tried(&self, record: &RecordPush) {
        let mut inner = self.lock();
        if let Some(passed) = inner.since.of(record.subscription) {
            passed.removed += record.counted.events;
            passed.success.events += record.counted.events;
            passed.success.batches += record.counted.batches;
        }
        for attempt in &record.attempts {
            inner.tried(record.subscription, attempt);
        }
    }

    /// Events of a subscription were given up to make room.
    pub(crate) fn autodropped(&self, subscription: SubscriptionId, events: u64) {
        if let Some(passed) = self.lock().since.of(subscription) {
            passed.autodropped += events;
            passed.removed += events;
        }
    }

    /// Workers were found dead.
    pub(crate) fn scrubbed(&self, workers: u64) {
        self.lock().since.scrubbed += workers;
    }

    /// Everything since the last report. It begins anew.
    pub(super) fn take(&self) -> Since {
        std::mem::take(&mut self.lock().since)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Since {
    fn of(&mut self, subscription: SubscriptionId) -> Option<&mut Passed> {
        let room = self.queues.len() < MOST || self.queues.contains_key(&subscription);
        room.then(|| self.queues.entry(subscription).or_default())
    }
}

impl Inner {
    fn tried(&mut self, subscription: SubscriptionId, attempt: &Attempt) {
        let delivered = attempt.verdict == Verdict::Delivered;
        if let Some(passed) = self.since.of(subscription) {
            passed.removed += u64::from(attempt.acknowledged);
            let tried = if delivered { &mut passed.success } else { &mut passed.failure };
            tried.events += u64::from(attempt.events);
            tried.batches += 1;
            tried.time += attempt.latency;
        }
        let failed_before = match delivered {
            true => self.failing.remove(&subscription),
            false if self.failing.len() < MOST => self.failing.insert(subscription, attempt.first),
            false => None,
        };
        let is_first = failed_before != Some(attempt.first);
        if (is_first || delivered) && self.since.waits.len() < MOST_WAITS {
            let (first, at) = (attempt.first, attempt.at);
            self.since.waits.push(Wait { subscription, first, at, is_first, is_last: delivered });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SubscriptionId = SubscriptionId(7);

    fn attempt(first: i64, verdict: Verdict) -> Attempt {
        Attempt {
            at: Time(1_000),
            first: EventId(first),
            last: EventId(first + 4),
            events: 5,
            acknowledged: if verdict == Verdict::Delivered { 5 } else { 0 },
            verdict,
            status: None,
            latency: Duration::from_millis(20),
            excerpt: String::new(),
            retry_after: None,
        }
    }

    #[test]
    fn deliveries_are_counted_by_outcome_and_a_retry_is_known() {
        let traffic = Traffic::default();
        let attempts = vec![
            attempt(64, Verdict::Failed),
            attempt(64, Verdict::Failed),
            attempt(64, Verdict::Delivered),
            attempt(128, Verdict::Delivered),
        ];
        traffic.tried(&RecordPush { subscription: ID, attempts, counted: Default::default(), now: None });
        traffic.autodropped(ID, 3);
        let since = traffic.take();
        let passed = &since.queues[&ID];
        assert_eq!((passed.success.events, passed.success.batches), (10, 2));
        assert_eq!((passed.failure.batches, passed.failure.time), (2, Duration::from_millis(40)));
        assert_eq!((passed.removed, passed.autodropped), (13, 3));
        let waits: Vec<_> =
            since.waits.iter().map(|wait| (wait.first.0, wait.is_first, wait.is_last)).collect();
        assert_eq!(waits, [(64, true, false), (64, false, true), (128, true, true)]);
        assert!(traffic.take().queues.is_empty(), "it begins anew");
    }

    #[test]
    fn what_is_told_apart_is_bounded() {
        let traffic = Traffic::default();
        for number in 0..MOST + 5 {
            traffic.published(&format!("t{number}"), "web");
        }
        traffic.published("t0", "web");
        let published = traffic.take().published;
        assert_eq!((published.len(), published[&("t0".to_owned(), "web".to_owned())]), (MOST, 2));
    }
}
