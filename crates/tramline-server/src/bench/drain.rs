//! Draining a backlog with workers whose handlers do nothing, through the public API.

use super::emit::{BULK, bulk as emit_bulk, concurrently as emit_concurrently, event};
use super::queries::QueryCounter;
use super::row::{BoxError, rate};
use super::target::Target;
use super::{Samples, Size};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokio::task::JoinSet;
use tramline::{Event, Shutdown, Tramline};

/// Handlers that run at once, per worker.
const CONCURRENCY: usize = 64;
/// The pending events of a small backlog.
const SMALL: usize = 10_000;
/// How many events of a large backlog are timed.
const TIMED: usize = 500_000;
/// Producers that emit ordered events at the same time.
const PRODUCERS: usize = 256;
/// The keys of ordered events.
const KEYS: usize = 10_000;
/// How many topics there are where there are many.
const TOPICS: usize = 16;

/// `emit_bulk` and `drain`: no order.
pub(super) async fn bulk(
    target: &Target,
    size: Size,
    round: usize,
    samples: &mut Samples,
) -> Result<(), BoxError> {
    let name = format!("drain/{round}");
    let backlog = Backlog::prepare(target, &name, false).await?;
    samples.add("emit_bulk", backlog.fill(target, size.events).await?);
    samples.add("drain", backlog.drain(target, size.events).await?);
    backlog.remove().await
}

/// `emit_topics` and `drain_topics`: the same over many topics, with one subscription of all of them; and `busiest_node_percent`, of a Redis
/// Cluster: how much of the processor's time that its nodes took for that was of one node.
pub(super) async fn topics(
    target: &Target,
    size: Size,
    round: usize,
    samples: &mut Samples,
) -> Result<(), BoxError> {
    let topics = (0..TOPICS).map(|n| format!("topics/{round}/{n}")).collect();
    let backlog = Backlog::over(target, &format!("topics/{round}"), topics, false).await?;
    let before = target.busy().await?;
    samples.add("emit_topics", backlog.fill(target, size.events).await?);
    samples.add("drain_topics", backlog.drain(target, size.events).await?);
    let busy = target.busy().await?.into_iter().zip(before).map(|(after, before)| after - before);
    let (busiest, all) = busy.fold((0.0_f64, 0.0), |(most, all), busy| (most.max(busy), all + busy));
    if all > 0.0 {
        samples.add("busiest_node_percent", busiest / all * 100.0);
    }
    backlog.remove().await
}

/// `drain_keyed`: strictly ordered per key, emitted one by one by many producers at once, as a web service does; and
/// `drain_keyed_bulk`: the same keys emitted by the thousand, where every chunk touches nearly every lane.
pub(super) async fn keyed(
    target: &Target,
    size: Size,
    round: usize,
    samples: &mut Samples,
) -> Result<(), BoxError> {
    let backlog = Backlog::prepare(target, &format!("keyed/{round}"), true).await?;
    emit_concurrently(&backlog.tram, PRODUCERS, size.events, backlog.maker()).await?;
    samples.add("drain_keyed", backlog.drain(target, size.events).await?);
    backlog.remove().await?;
    let backlog = Backlog::prepare(target, &format!("keyed-bulk/{round}"), true).await?;
    backlog.fill(target, size.events).await?;
    samples.add("drain_keyed_bulk", backlog.drain(target, size.events).await?);
    backlog.remove().await
}

/// `drain_backlog_small`.
pub(super) async fn backlog_small(
    target: &Target,
    round: usize,
    samples: &mut Samples,
) -> Result<(), BoxError> {
    let name = format!("small/{round}");
    let backlog = Backlog::prepare(target, &name, false).await?;
    backlog.fill(target, SMALL).await?;
    samples.add("drain_backlog_small", backlog.drain(target, SMALL).await?);
    backlog.remove().await
}

/// `drain_backlog_large`: the first events of a backlog that is far larger than any cache. The last median.
pub(super) async fn backlog_large(
    target: &Target,
    size: Size,
    samples: &mut Samples,
) -> Result<(), BoxError> {
    let backlog = Backlog::prepare(target, "large", false).await?;
    backlog.fill(target, size.backlog).await?;
    for _ in 0..3 {
        samples.add("drain_backlog_large", backlog.drain(target, TIMED.min(size.backlog) / 3).await?);
    }
    backlog.remove().await
}

/// `queries_per_1000_events`: statements that one drain takes, of claims and settlements together. On PostgreSQL also what
/// emitting and draining an event writes: `wal_bytes_per_event`, `dead_tuples_per_event`.
pub(super) async fn statements(
    target: &Target,
    size: Size,
    queries: &QueryCounter,
    samples: &mut Samples,
) -> Result<(), BoxError> {
    let backlog = Backlog::prepare(target, "statements", false).await?;
    let before = target.writes().await?;
    backlog.fill(target, size.events).await?;
    queries.start();
    backlog.drain(target, size.events).await?;
    let events = size.events as f64;
    samples.add("queries_per_1000_events", queries.stop() as f64 * 1000.0 / events);
    // A server counts what a connection did for certain once it has ended.
    backlog.tram.close().await;
    if let (Some(before), Some(after)) = (before, target.writes().await?) {
        samples.add("wal_bytes_per_event", (after.wal_bytes - before.wal_bytes) / events);
        samples.add("dead_tuples_per_event", (after.dead_tuples - before.dead_tuples) / events);
    }
    Backlog { tram: target.open().await?, ..backlog }.remove().await
}

/// Topics and their one subscription.
struct Backlog {
    tram: Tramline,
    name: String,
    topics: Vec<String>,
    ordered: bool,
}

impl Backlog {
    /// Of one topic, which has the name of the subscription.
    async fn prepare(target: &Target, name: &str, ordered: bool) -> Result<Backlog, BoxError> {
        Backlog::over(target, name, vec![name.to_owned()], ordered).await
    }

    async fn over(
        target: &Target,
        name: &str,
        topics: Vec<String>,
        ordered: bool,
    ) -> Result<Backlog, BoxError> {
        let backlog = Backlog { tram: target.open().await?, name: name.to_owned(), topics, ordered };
        backlog.worker(&backlog.tram).subscribe().await?;
        Ok(backlog)
    }

    fn worker(&self, tram: &Tramline) -> tramline::Worker {
        let topics = self.topics.iter().map(String::as_str);
        let worker = tram.worker(&self.name).topics(topics).concurrency(CONCURRENCY);
        if self.ordered { worker.ordered_by_key() } else { worker }
    }

    async fn fill(&self, target: &Target, events: usize) -> Result<f64, BoxError> {
        emit_bulk(&self.tram, target.tasks(), events, self.maker()).await
    }

    /// Makes the n-th event. Those that are emitted together are of one topic.
    fn maker(&self) -> impl Fn(usize) -> Event + Clone + Send + 'static {
        let (topics, ordered) = (self.topics.clone(), self.ordered);
        move |n: usize| {
            let event = event(&topics[n / BULK % topics.len()]);
            // Multiplying by a large odd number spreads the keys like chance would, the same way in every run.
            if ordered {
                event.key(format!("key:{}", (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) % KEYS))
            } else {
                event
            }
        }
    }

    /// Runs workers until `events` events are handled and settled.
    async fn drain(&self, target: &Target, events: usize) -> Result<f64, BoxError> {
        let handled = Arc::new(AtomicUsize::new(0));
        let shutdown = Shutdown::new();
        // Each worker has a handle, and so connections, of its own, as it would have in a process of its own.
        let mut handles = vec![self.tram.clone()];
        while handles.len() < target.tasks() {
            handles.push(target.open().await?);
        }
        let start = Instant::now();
        let mut workers = JoinSet::new();
        for tram in handles {
            let (handled, done) = (handled.clone(), shutdown.clone());
            let worker = self.worker(&tram).on_any(move || {
                if handled.fetch_add(1, Ordering::Relaxed) + 1 == events {
                    done.start();
                }
                std::future::ready(())
            });
            let shutdown = shutdown.clone();
            workers.spawn(async move { worker.run(shutdown).await });
        }
        while let Some(done) = workers.join_next().await {
            done??;
        }
        Ok(rate(handled.load(Ordering::Relaxed), start.elapsed()))
    }

    async fn remove(self) -> Result<(), BoxError> {
        self.tram.delete_subscription(&self.name).await?;
        for topic in &self.topics {
            self.tram.delete_topic(topic).await?;
        }
        // What is left of it must not be removed while the next figure is measured.
        while self.tram.sweep().await?.more {}
        self.tram.close().await;
        Ok(())
    }
}
