//! Routemaster's metrics, sent to a statsd server every ten seconds: counters as what was added since, gauges as they are. Tags are
//! written as Datadog's agent and most others read them (`|#queue:web,status:success`).

use super::queues::{self, Queue};
use super::traffic::{Passed, Since, Traffic, Tried, Wait};
use crate::http::app::{App, Shared};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UdpSocket, lookup_host};
use tokio::task::JoinHandle;
use tramline::SubscriptionId;
use tramline::store::verbs::FindEvent;

/// How often it is reported.
const EVERY: Duration = Duration::from_secs(10);
/// What fits into one packet on every network, in bytes.
const PACKET: usize = 1_400;
/// How long sending may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Reports until the server drains, if there is somebody to report to.
pub(crate) fn start(app: &Shared) -> Option<JoinHandle<()>> {
    let target = app.config.statsd.clone()?;
    app.metrics.traffic.get_or_init(Traffic::default);
    Some(tokio::spawn(report(app.clone(), target)))
}

async fn report(app: Shared, target: String) {
    let mut failing = false;
    while !app.draining.is_cancelled() {
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = app.draining.cancelled() => {}
        }
        let Some(lines) = lines(&app).await else { continue };
        let sent = tokio::time::timeout(PATIENCE, send(&target, &lines)).await;
        let error = match sent {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("it took too long".to_owned()),
        };
        if let Some(error) = error.as_ref().filter(|_| !failing) {
            tracing::warn!(error, target, "metrics cannot be sent; they are dropped until they can");
        }
        failing = error.is_some();
    }
}

async fn send(target: &str, lines: &[String]) -> std::io::Result<()> {
    let address = lookup_host(target).await?.next().ok_or(std::io::ErrorKind::NotFound)?;
    let own = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(own).await?;
    for packet in packets(lines) {
        socket.send_to(packet.as_bytes(), address).await?;
    }
    Ok(())
}

/// Lines in packets, none larger than it may be.
fn packets(lines: &[String]) -> Vec<String> {
    let mut packets: Vec<String> = Vec::new();
    for line in lines {
        match packets.last_mut() {
            Some(last) if last.len() + 1 + line.len() <= PACKET => {
                last.push('\n');
                last.push_str(line);
            }
            _ => packets.push(line.clone()),
        }
    }
    packets
}

/// The report of now. `None` while the store does not answer: counts are kept until it does.
async fn lines(app: &App) -> Option<Vec<String>> {
    let queues = queues::all(app, Duration::ZERO).await.ok()?;
    let since = app.metrics.traffic.get()?.take();
    let mut lines = Lines { prefix: &app.config.statsd_prefix, lines: Vec::new() };
    let names = queues.iter().map(|queue| (queue.id, queue.name.clone())).collect();
    lines.counts(&since, &names);
    lines.latencies(&latencies(app, &since.waits).await, &names);
    lines.gauges(&queues);
    Some(lines.lines)
}

/// How long batches of a subscription waited.
#[derive(Default)]
struct Latency {
    batches: u64,
    first: Duration,
    last: Duration,
}

/// From when the first event of a batch was stored until it was tried.
async fn latencies(app: &App, waits: &[Wait]) -> HashMap<SubscriptionId, Latency> {
    let mut latencies: HashMap<SubscriptionId, Latency> = HashMap::new();
    for wait in waits {
        let found = app.ask(app.tram.store().event(FindEvent { id: wait.first, now: None })).await;
        let Ok(Some(view)) = found else { continue };
        let waited = wait.at.since(view.event.emitted_at);
        let latency = latencies.entry(wait.subscription).or_default();
        if wait.is_first {
            latency.batches += 1;
            latency.first += waited;
        }
        if wait.is_last {
            latency.last += waited;
        }
    }
    latencies
}

type Names = HashMap<SubscriptionId, Arc<str>>;

/// A report as it is written.
struct Lines<'a> {
    prefix: &'a str,
    lines: Vec<String>,
}

impl Lines<'_> {
    fn counts(&mut self, since: &Since, names: &Names) {
        for ((topic, publisher), events) in &since.published {
            self.count("events.published", *events, &format!("topic:{topic},publisher:{publisher}"));
        }
        for (id, passed) in &since.queues {
            if let Some(name) = names.get(id) {
                self.passed(name, passed);
            }
        }
        self.count("workers.scrubbed", since.scrubbed, "");
    }

    fn passed(&mut self, name: &str, passed: &Passed) {
        let queue = format!("queue:{name}");
        self.count("events.added", passed.added, &queue);
        self.count("events.removed", passed.removed, &queue);
        self.count("events.autodropped", passed.autodropped, &queue);
        self.tried(&format!("{queue},status:success"), &passed.success);
        self.tried(&format!("{queue},status:failure"), &passed.failure);
    }

    fn tried(&mut self, tags: &str, tried: &Tried) {
        self.count("delivery.events", tried.events, tags);
        self.count("delivery.batches", tried.batches, tags);
        self.count("delivery.time", millis(tried.time), tags);
    }

    fn latencies(&mut self, latencies: &HashMap<SubscriptionId, Latency>, names: &Names) {
        for (id, latency) in latencies {
            let Some(name) = names.get(id) else { continue };
            let queue = format!("queue:{name}");
            self.count("latency.batches.count", latency.batches, &queue);
            self.count("latency.batches.first_attempt", millis(latency.first), &queue);
            self.count("latency.batches.last_attempt", millis(latency.last), &queue);
        }
    }

    fn gauges(&mut self, queues: &[Queue]) {
        for queue in queues {
            let subscriber = format!("subscriber:{}", queue.name);
            self.line("subscriber.queue.events", queue.events, "g", &subscriber);
            self.line("subscriber.queue.batches", queue.batches, "g", &subscriber);
        }
        let due: u64 = queues.iter().map(|queue| queue.due).sum();
        let all: u64 = queues.iter().map(|queue| queue.batches).sum();
        self.line("jobs.count", due, "g", "queue:main,status:instant");
        self.line("jobs.count", all.saturating_sub(due), "g", "queue:main,status:scheduled");
    }

    /// A counter to which nothing was added is not sent.
    fn count(&mut self, name: &str, value: u64, tags: &str) {
        if value > 0 {
            self.line(name, value, "c", tags);
        }
    }

    fn line(&mut self, name: &str, value: u64, kind: &str, tags: &str) {
        let tags = if tags.is_empty() { String::new() } else { format!("|#{tags}") };
        self.lines.push(format!("{}.{name}:{value}|{kind}{tags}", self.prefix));
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_routemasters_names_and_tags() {
        let id = SubscriptionId(1);
        let names = Names::from([(id, Arc::from("web"))]);
        let tried = |events| Tried { events, batches: 1, time: Duration::from_millis(30) };
        let passed = Passed { added: 9, removed: 7, autodropped: 2, success: tried(5), failure: tried(4) };
        let since = Since {
            published: HashMap::from([(("widgets".into(), "shop".into()), 3)]),
            queues: HashMap::from([(id, passed)]),
            scrubbed: 1,
            ..Since::default()
        };
        let mut lines = Lines { prefix: "routemaster", lines: Vec::new() };
        lines.counts(&since, &names);
        let latency =
            Latency { batches: 2, first: Duration::from_millis(8), last: Duration::from_millis(40) };
        lines.latencies(&HashMap::from([(id, latency)]), &names);
        lines.gauges(&[Queue { id, name: "web".into(), events: 120, batches: 2, due: 1 }]);
        assert_eq!(
            lines.lines,
            [
                "routemaster.events.published:3|c|#topic:widgets,publisher:shop",
                "routemaster.events.added:9|c|#queue:web",
                "routemaster.events.removed:7|c|#queue:web",
                "routemaster.events.autodropped:2|c|#queue:web",
                "routemaster.delivery.events:5|c|#queue:web,status:success",
                "routemaster.delivery.batches:1|c|#queue:web,status:success",
                "routemaster.delivery.time:30|c|#queue:web,status:success",
                "routemaster.delivery.events:4|c|#queue:web,status:failure",
                "routemaster.delivery.batches:1|c|#queue:web,status:failure",
                "routemaster.delivery.time:30|c|#queue:web,status:failure",
                "routemaster.workers.scrubbed:1|c",
                "routemaster.latency.batches.count:2|c|#queue:web",
                "routemaster.latency.batches.first_attempt:8|c|#queue:web",
                "routemaster.latency.batches.last_attempt:40|c|#queue:web",
                "routemaster.subscriber.queue.events:120|g|#subscriber:web",
                "routemaster.subscriber.queue.batches:2|g|#subscriber:web",
                "routemaster.jobs.count:1|g|#queue:main,status:instant",
                "routemaster.jobs.count:1|g|#queue:main,status:scheduled",
            ]
        );
    }

    #[test]
    fn packets_are_full_but_not_too_large() {
        let lines: Vec<String> = (0..100).map(|number| format!("{number:0>99}")).collect();
        let packets = packets(&lines);
        assert_eq!(packets.len(), 8);
        assert!(packets.iter().all(|packet| packet.len() <= PACKET));
        assert_eq!(packets.join("\n"), lines.join("\n"));
    }
}
