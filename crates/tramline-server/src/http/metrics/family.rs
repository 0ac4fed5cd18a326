//! Counters and histograms with labels. Labels are bounded in number, so that nobody can fill the memory with names.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// How many different labels a metric has at most; the rest is counted together.
const LABELS: usize = 1_000;
pub(super) const OTHER: &str = "(other)";
/// Between the values of two labels.
pub(super) const AND: char = '\u{1}';
/// The upper bounds of the buckets, in seconds.
pub(super) const BUCKETS: [f64; 16] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 300.0,
    3600.0,
];

/// One metric with all its labels.
#[derive(Default)]
pub(crate) struct Family<T> {
    series: RwLock<HashMap<String, Arc<T>>>,
}

impl<T: Default> Family<T> {
    fn with(&self, label: &str, act: impl Fn(&T)) {
        if let Some(one) = self.series.read().unwrap_or_else(PoisonError::into_inner).get(label) {
            return act(one);
        }
        let mut series = self.series.write().unwrap_or_else(PoisonError::into_inner);
        let label = if series.len() < LABELS { label } else { OTHER };
        act(series.entry(label.to_owned()).or_default());
    }

    /// All labels in order.
    pub(super) fn all(&self) -> Vec<(String, Arc<T>)> {
        let series = self.series.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = series.iter().map(|(label, one)| (label.clone(), one.clone())).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

/// Only grows.
#[derive(Default)]
pub(crate) struct Counter(pub(super) AtomicU64);

impl Family<Counter> {
    pub(crate) fn add(&self, label: &str, count: u64) {
        self.with(label, |counter| {
            counter.0.fetch_add(count, Ordering::Relaxed);
        });
    }

    pub(crate) fn add_two(&self, first: &str, second: &str, count: u64) {
        self.add(&format!("{first}{AND}{second}"), count);
    }
}

/// How often something took how long.
#[derive(Default)]
pub(crate) struct Histogram {
    pub(super) buckets: [AtomicU64; BUCKETS.len()],
    pub(super) count: AtomicU64,
    pub(super) micros: AtomicU64,
}

impl Family<Histogram> {
    pub(crate) fn observe(&self, label: &str, took: Duration) {
        self.observe_many(label, took, 1);
    }

    /// So many that took the same.
    pub(crate) fn observe_many(&self, label: &str, took: Duration, count: u64) {
        let seconds = took.as_secs_f64();
        let bucket = BUCKETS.partition_point(|bound| *bound < seconds);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).saturating_mul(count);
        self.with(label, |histogram| {
            if let Some(bucket) = histogram.buckets.get(bucket) {
                bucket.fetch_add(count, Ordering::Relaxed);
            }
            histogram.count.fetch_add(count, Ordering::Relaxed);
            histogram.micros.fetch_add(micros, Ordering::Relaxed);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded_and_the_rest_is_counted_together() {
        let family = Family::<Counter>::default();
        for number in 0..LABELS + 10 {
            family.add(&format!("t{number}"), 1);
        }
        let all = family.all();
        assert_eq!(all.len(), LABELS + 1);
        let other = all.iter().find(|(label, _)| label == OTHER).unwrap();
        assert_eq!(other.1.0.load(Ordering::Relaxed), 10);
    }

    #[test]
    fn a_histogram_counts_what_is_at_or_below_its_bounds() {
        let family = Family::<Histogram>::default();
        for millis in [1, 3, 9_999_999] {
            family.observe("x", Duration::from_millis(millis));
        }
        let histogram = &family.all()[0].1;
        let counts: Vec<u64> =
            histogram.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        assert_eq!((counts[3], counts[5], counts.iter().sum::<u64>()), (1, 1, 2));
        assert_eq!(histogram.count.load(Ordering::Relaxed), 3);
    }
}
