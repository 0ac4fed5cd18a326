//! Batches that are claimed and not sent yet. A line fills it, its senders empty it.

use super::batch::Batch;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// For how long a claimed batch may wait before it is sent: its lease is as long as a request may take, and a little more.
const GOOD_FOR: Duration = Duration::from_secs(3);
/// A receiver that answers within this time is quick.
const QUICK: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct Hand {
    /// In the order in which they were claimed, each with the reading until which it may be sent.
    held: Mutex<VecDeque<(Batch, Duration)>>,
    /// With so few in hand it is time to claim more.
    low: AtomicUsize,
    /// Rings when there are so few.
    bell: Notify,
    /// Whether the last request was answered at once.
    is_quick: AtomicBool,
}

impl Hand {
    /// Takes batches into hand that were claimed at this reading.
    pub(super) fn add(&self, batches: Vec<Batch>, reading: Duration) {
        self.held().extend(batches.into_iter().map(|batch| (batch, reading + GOOD_FOR)));
    }

    /// The next batch to send, unless it has waited for too long.
    pub(super) fn take(&self, reading: Duration) -> Option<Batch> {
        let mut held = self.held();
        let (batch, _) = held.pop_front_if(|(_, until)| *until > reading)?;
        let is_low = held.len() == self.low.load(Ordering::Relaxed);
        drop(held);
        if is_low {
            self.bell.notify_one();
        }
        Some(batch)
    }

    /// Batches that have waited for too long.
    pub(super) fn take_stale(&self, reading: Duration) -> Vec<Batch> {
        let mut held = self.held();
        // Later ones were claimed later.
        let stale = held.partition_point(|(_, until)| *until <= reading);
        held.drain(..stale).map(|(batch, _)| batch).collect()
    }

    pub(super) fn take_all(&self) -> Vec<Batch> {
        self.held().drain(..).map(|(batch, _)| batch).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.held().len()
    }

    /// Until which reading the first batch may be sent.
    pub(super) fn good_until(&self) -> Option<Duration> {
        self.held().front().map(|(_, until)| *until)
    }

    /// True when there are `low` batches or fewer; else [`Hand::is_low`] returns when there are.
    pub(super) fn is_at_most(&self, low: usize) -> bool {
        self.low.store(low, Ordering::Relaxed);
        self.len() <= low
    }

    /// Waits until the hand has got low. Cancel-safe.
    pub(super) async fn is_low(&self) {
        self.bell.notified().await;
    }

    /// Learns from a request how quick the receiver is.
    pub(super) fn pace(&self, latency: Duration) {
        self.is_quick.store(latency < QUICK, Ordering::Relaxed);
    }

    pub(super) fn is_quick(&self) -> bool {
        self.is_quick.load(Ordering::Relaxed)
    }

    fn held(&self) -> MutexGuard<'_, VecDeque<(Batch, Duration)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
