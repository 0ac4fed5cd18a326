//! The page of metrics in the text format of Prometheus, as far as the token may see it.

use super::Metrics;
use super::family::{AND, BUCKETS, Counter, Family, Histogram, OTHER};
use crate::http::app::{App, Shared};
use crate::http::caller::Caller;
use crate::http::health::PATIENCE;
use crate::http::problem::Answer;
use crate::http::push;
use crate::http::stats::MOST;
use crate::http::tallies::figures;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::collections::HashSet;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tramline::{RuleKind, Scope, Subscription, Time};

/// Metrics in the text format of Prometheus, as far as the token may see them. While the store is away: what this node has counted.
#[utoipa::path(get, path = "/metrics", tag = "figures", responses((status = 200, body = String, content_type = "text/plain")),
    security(("token" = ["manage"])))]
pub(crate) async fn metrics(State(app): State<Shared>, caller: Caller) -> Answer<Response> {
    caller.needs(&[Scope::Manage])?;
    let looked = look(&app, &caller).await;
    let is_up = looked.is_some();
    let (visible, figures) = looked.unwrap_or_default();
    let mut page = Page { text: String::new(), visible, caller };
    page.head(
        "store_up",
        "1 if the store answers; without it, what only the store knows is left out",
        "gauge",
    );
    page.line("store_up", "", u8::from(is_up));
    page.counted(&app.metrics);
    page.text.push_str(&figures);
    let mut response = page.text.into_response();
    let format = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, format);
    Ok(response)
}

/// The subscriptions that the caller may see, and what is known only by looking; `None` if the store does not tell, when metrics are
/// needed most. A store that hangs must not use up the patience of those who ask.
async fn look(app: &App, caller: &Caller) -> Option<(HashSet<Arc<str>>, String)> {
    let now = tokio::time::timeout(PATIENCE, app.tram.store().now()).await.ok()?.ok()?;
    let all = app.ask(app.tram.subscriptions()).await.ok()?;
    let mut page = Page { text: String::new(), visible: caller.visible(&all), caller: caller.clone() };
    page.figures(app, now, &all).await.ok()?;
    Some((page.visible, page.text))
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
        let about = "How long requests to callbacks took";
        self.histograms("push_seconds", about, Of::Subscription, &metrics.push_seconds);
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
    async fn figures(&mut self, app: &App, now: Time, all: &[Subscription]) -> Answer<()> {
        let [mut events, mut ages, mut dead, mut rules] = [const { String::new() }; 4];
        for subscription in all.iter().filter(|one| self.visible.contains(&one.name)).take(MOST) {
            let stats = match app.ask(app.tram.store().stats(subscription.id, None)).await {
                // Deleted since the list was read.
                Err(problem) if problem.status() == StatusCode::NOT_FOUND => continue,
                stats => stats?,
            };
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
            let age = stats.oldest_dead_at.map_or(Duration::ZERO, |oldest| now.since(oldest)).as_secs_f64();
            for kind in [RuleKind::Pause, RuleKind::Block] {
                let (word, count) =
                    (kind.as_str(), stats.rules.iter().filter(|rule| rule.kind == kind).count());
                let _ = writeln!(rules, "tramline_rules{{subscription=\"{name}\",kind=\"{word}\"}} {count}");
            }
            let _ = writeln!(dead, "tramline_oldest_dead_seconds{{subscription=\"{name}\"}} {age}");
        }
        self.head("events", "Events that are not settled, by status", "gauge");
        self.text.push_str(&events);
        self.head("oldest_ready_seconds", "For how long the oldest ready event could have run", "gauge");
        self.text.push_str(&ages);
        self.head("oldest_dead_seconds", "For how long the oldest dead event has been dead", "gauge");
        self.text.push_str(&dead);
        self.head("rules", "Rules that stop a subscription, by name and by pattern", "gauge");
        self.text.push_str(&rules);
        self.text.push_str(&figures::metrics(app, &self.caller).await?);
        self.text.push_str(&push::figures::metrics(app, &self.visible).await?);
        self.drops(app, all).await?;
        if self.caller.everywhere().is_ok() {
            let size = app.ask(app.tram.store().size()).await?;
            self.head("store_bytes", "How much the store holds", "gauge");
            self.line("store_bytes", "", size.bytes);
        }
        Ok(())
    }

    /// Kept by the store, so the same on every node.
    async fn drops(&mut self, app: &App, all: &[Subscription]) -> Answer<()> {
        self.head("dropped_events_total", "Events that subscriptions will never see", "counter");
        for total in app.ask(app.tram.store().drop_totals()).await? {
            let whose = all.iter().find(|one| one.id == total.subscription);
            let Some(labels) = whose.and_then(|one| self.labels(Of::Subscription, &one.name)) else {
                continue;
            };
            let labels = format!("{labels},reason=\"{}\"", total.reason.as_str());
            self.line("dropped_events_total", &labels, total.events);
        }
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
