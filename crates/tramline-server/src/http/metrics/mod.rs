//! Metrics: everything that is counted as it happens.
//!
//! - [`family`]: counters and histograms with labels, bounded in number
//! - [`page`]: all of them, and what is known only by looking, in the text format of Prometheus

mod family;
mod page;

pub(crate) use page::{__path_metrics, metrics};

use crate::compat::routemaster::traffic::Traffic;
use axum::http::StatusCode;
use family::{Counter, Family, Histogram};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::time::Duration;
use tramline::store::verbs::Claimed;

/// Everything that is counted as it happens.
#[derive(Default)]
pub(crate) struct Metrics {
    pub(crate) emitted: Family<Counter>,
    pub(crate) emit_failures: Family<Counter>,
    pub(crate) emit_seconds: Family<Histogram>,
    claimed: Family<Counter>,
    queue_seconds: Family<Histogram>,
    pub(crate) settled: Family<Counter>,
    pub(crate) tally_items: Family<Counter>,
    pub(crate) push_seconds: Family<Histogram>,
    wake_lag: Family<Histogram>,
    pub(crate) store_seconds: Family<Histogram>,
    pub(crate) store_failures: Family<Counter>,
    /// A verb has failed since it was last shown that the store can be written.
    pub(crate) store_doubted: AtomicBool,
    answers: Family<Counter>,
    pub(crate) refused: Family<Counter>,
    pub(crate) connections: AtomicI64,
    /// What Routemaster's metrics are made of, where they are wanted.
    pub(crate) traffic: OnceLock<Traffic>,
}

impl Metrics {
    /// Events were claimed, after waiting for so long.
    pub(crate) fn claimed(&self, subscription: &str, claimed: &Claimed, waited: Duration) {
        let (mut events, mut newest) = (0, None);
        // Events that were stored together have waited for the same time.
        let times = claimed.slices.iter().flat_map(|slice| &slice.events).map(|one| one.event.emitted_at);
        for (emitted_at, count) in runs(times) {
            let waited = claimed.now.since(emitted_at);
            self.queue_seconds.observe_many(subscription, waited, count);
            newest = newest.max(Some(emitted_at));
            events += count;
        }
        self.claimed.add(subscription, events);
        // Only what came while somebody was waiting tells how long a hint takes. Both times are cut to milliseconds.
        let since = claimed.now.before(waited + Duration::from_millis(1));
        if let Some(newest) = newest.filter(|newest| *newest >= since) {
            self.wake_lag.observe("", claimed.now.since(newest));
        }
    }

    /// A request was answered.
    pub(crate) fn answered(&self, status: StatusCode) {
        self.answers.add(status.as_str(), 1);
    }
}

/// Equal values that follow each other, and how many they are.
pub(crate) fn runs<T: PartialEq>(values: impl Iterator<Item = T>) -> impl Iterator<Item = (T, u64)> {
    let mut values = values.peekable();
    std::iter::from_fn(move || {
        let first = values.next()?;
        let mut count = 1;
        while values.next_if_eq(&first).is_some() {
            count += 1;
        }
        Some((first, count))
    })
}
