//! Metrics in the text format of Prometheus. Names in labels are bounded in number, so that nobody can fill the memory with them.

use crate::http::app::{App, Shared};
use crate::http::caller::Caller;
use crate::http::problem::Answer;
use crate::http::stats::MOST;
use crate::http::tallies::figures;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tramline::store::verbs::Claimed;
use tramline::{Scope, Subscription};

/// How many different labels a metric has at most; the rest is counted together.
const LABELS: usize = 1_000;
const OTHER: &str = "(other)";
/// Between the values of two labels.
const AND: char = '\u{1}';
/// The upper bounds of the buckets, in seconds.
const BUCKETS: [f64; 16] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 300.0,
    3600.0,
];

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
    wake_lag: Family<Histogram>,
    pub(crate) store_seconds: Family<Histogram>,
    pub(crate) store_failures: Family<Counter>,
    answers: Family<Counter>,
    pub(crate) refused: Family<Counter>,
    pub(crate) connections: AtomicI64,
}

impl Metrics {
    /// Events were claimed, after waiting for so long.
    pub(crate) fn claimed(&self, subscription: &str, claimed: &Claimed, waited: Duration) {
        let events = claimed.slices.iter().flat_map(|slice| &slice.events);
        let mut newest = None;
        for event in events.clone() {
            self.queue_seconds.observe(subscription, claimed.now.since(event.event.emitted_at));
            newest = newest.max(Some(event.event.emitted_at));
        }
        self.claimed.add(subscription, events.count() as u64);
        // Only what came while somebody was waiting tells how long a hint takes.
        if let Some(newest) = newest.filter(|newest| *newest >= claimed.now.before(waited)) {
            self.wake_lag.observe("", claimed.now.since(newest));
        }
    }

    /// A request was answered.
    pub(crate) fn answered(&self, status: StatusCode) {
        self.answers.add(status.as_str(), 1);
    }
}

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
    fn all(&self) -> Vec<(String, Arc<T>)> {
        let series = self.series.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = series.iter().map(|(label, one)| (label.clone(), one.clone())).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

/// Only grows.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

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
    buckets: [AtomicU64; BUCKETS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Family<Histogram> {
    pub(crate) fn observe(&self, label: &str, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = BUCKETS.partition_point(|bound| *bound < seconds);
        self.with(label, |histogram| {
            if let Some(bucket) = histogram.buckets.get(bucket) {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
            histogram.count.fetch_add(1, Ordering::Relaxed);
            histogram
                .micros
                .fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        });
    }
}

/// Metrics in the text format of Prometheus, as far as the token may see them.
#[utoipa::path(get, path = "/metrics", tag = "figures", responses((status = 200, body = String, content_type = "text/plain")),
    security(("token" = ["manage"])))]
pub(crate) async fn metrics(State(app): State<Shared>, caller: Caller) -> Answer<Response> {
    caller.needs(&[Scope::Manage])?;
    let all = app.ask(app.tram.subscriptions()).await?;
    let mut page = Page { text: String::new(), visible: caller.visible(&all), caller };
    page.counted(&app.metrics);
    page.figures(&app, &all).await?;
    let mut response = page.text.into_response();
    let format = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, format);
    Ok(response)
}

/// What the labels of a metric are.
#[derive(Clone, Copy)]
enum Of {
    Topic,
    Subscription,
    /// A subscription and an outcome.
    Outcome,
    /// Nobody's secret.
    Plain(&'static str),
    Nothing,
}

/// The page as it is written.
struct Page {
    text: String,
    caller: Caller,
    /// The subscriptions that the caller may see.
    visible: HashSet<Arc<str>>,
}

impl Page {
    fn counted(&mut self, metrics: &Metrics) {
        self.counters("emitted_events_total", "Events stored", Of::Topic, &metrics.emitted);
        self.counters("emit_failures_total", "Emits that failed", Of::Topic, &metrics.emit_failures);
        self.histograms("emit_seconds", "How long emits took", Of::Topic, &metrics.emit_seconds);
        self.counters("claimed_events_total", "Events claimed over HTTP", Of::Subscription, &metrics.claimed);
        let about = "How long events were stored before they were claimed over HTTP";
        self.histograms("queue_seconds", about, Of::Subscription, &metrics.queue_seconds);
        self.counters("settled_events_total", "Outcomes over HTTP", Of::Outcome, &metrics.settled);
        let about = "Items of tallies acked over HTTP";
        self.counters("tally_items_total", about, Of::Plain("outcome"), &metrics.tally_items);
        let about = "How long after it was stored a waiting claim got an event";
        self.histograms("wake_lag_seconds", about, Of::Nothing, &metrics.wake_lag);
        let about = "How long the verbs of the store took";
        self.histograms("store_seconds", about, Of::Plain("verb"), &metrics.store_seconds);
        let about = "Verbs of the store that found it away";
        self.counters("store_failures_total", about, Of::Plain("verb"), &metrics.store_failures);
        self.counters("http_answers_total", "Answers by status", Of::Plain("status"), &metrics.answers);
        self.counters("http_refused_total", "Requests turned away", Of::Plain("reason"), &metrics.refused);
        self.head("http_connections", "Open connections", "gauge");
        self.line("http_connections", "", metrics.connections.load(Ordering::Relaxed));
    }

    /// What is known only by looking.
    async fn figures(&mut self, app: &App, all: &[Subscription]) -> Answer<()> {
        let now = app.ask(app.tram.store().now()).await?;
        let (mut events, mut ages) = (String::new(), String::new());
        for subscription in all.iter().filter(|one| self.visible.contains(&one.name)).take(MOST) {
            let Ok(stats) = app.ask(app.tram.store().stats(subscription.id, None)).await else { continue };
            let (name, counts) = (&*subscription.name, stats.counts);
            let by_status = [
                ("ready", counts.ready),
                ("delayed", counts.delayed),
                ("leased", counts.leased),
                ("parked", counts.parked),
                ("dead", counts.dead),
            ];
            for (status, count) in by_status {
                let _ = writeln!(
                    events,
                    "tramline_events{{subscription=\"{name}\",status=\"{status}\"}} {count}"
                );
            }
            let age = stats.oldest_ready_at.map_or(Duration::ZERO, |oldest| now.since(oldest)).as_secs_f64();
            let _ = writeln!(ages, "tramline_oldest_ready_seconds{{subscription=\"{name}\"}} {age}");
        }
        self.head("events", "Events that are not settled, by status", "gauge");
        self.text.push_str(&events);
        self.head("oldest_ready_seconds", "For how long the oldest ready event could have run", "gauge");
        self.text.push_str(&ages);
        self.text.push_str(&figures::metrics(app, &self.caller).await?);
        Ok(())
    }

    fn counters(&mut self, name: &str, about: &str, of: Of, family: &Family<Counter>) {
        self.head(name, about, "counter");
        for (label, counter) in family.all() {
            if let Some(labels) = self.labels(of, &label) {
                self.line(name, &labels, counter.0.load(Ordering::Relaxed));
            }
        }
    }

    fn histograms(&mut self, name: &str, about: &str, of: Of, family: &Family<Histogram>) {
        self.head(name, about, "histogram");
        for (label, histogram) in family.all() {
            let Some(labels) = self.labels(of, &label) else { continue };
            let comma = if labels.is_empty() { "" } else { "," };
            let mut below = 0;
            for (bucket, bound) in histogram.buckets.iter().zip(BUCKETS) {
                below += bucket.load(Ordering::Relaxed);
                self.line(&format!("{name}_bucket"), &format!("{labels}{comma}le=\"{bound}\""), below);
            }
            // Read after the buckets, so that it is never less than their sum.
            let count = histogram.count.load(Ordering::Relaxed).max(below);
            self.line(&format!("{name}_bucket"), &format!("{labels}{comma}le=\"+Inf\""), count);
            self.line(&format!("{name}_sum"), &labels, histogram.micros.load(Ordering::Relaxed) as f64 / 1e6);
            self.line(&format!("{name}_count"), &labels, count);
        }
    }

    /// The labels of a series, if the caller may see it.
    fn labels(&self, of: Of, label: &str) -> Option<String> {
        // What is gone, or counted together, is nobody's in particular.
        let all = self.caller.everywhere().is_ok();
        let everybody = label == OTHER && all;
        match of {
            Of::Topic => (everybody || self.caller.sees_topic(label)).then(|| format!("topic=\"{label}\"")),
            Of::Subscription => {
                let seen = all || self.visible.contains(label);
                seen.then(|| format!("subscription=\"{label}\""))
            }
            Of::Outcome => {
                let (name, outcome) = label.split_once(AND).unwrap_or((label, OTHER));
                let seen = all || self.visible.contains(name);
                seen.then(|| format!("subscription=\"{name}\",outcome=\"{outcome}\""))
            }
            Of::Plain(name) => Some(format!("{name}=\"{label}\"")),
            Of::Nothing => Some(String::new()),
        }
    }

    fn head(&mut self, name: &str, about: &str, kind: &str) {
        let _ = writeln!(self.text, "# HELP tramline_{name} {about}.\n# TYPE tramline_{name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = match labels {
            "" => writeln!(self.text, "tramline_{name} {value}"),
            _ => writeln!(self.text, "tramline_{name}{{{labels}}} {value}"),
        };
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
