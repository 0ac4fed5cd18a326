//! Many workers on one subscription, and a tenth of what they do fails: nobody meets an error, and hardly a step is repeated. A small
//! crowd meets in every run of the tests; a large one on demand:
//!
//! ```sh
//! ./test --servers cargo test --release -p tramline --test mysql_only a_crowd -- --ignored --nocapture
//! TRAMLINE_TEST_CROWD=100000 ..                       # fewer events than a million
//! ```

use crate::bed::Private;
use crate::tracked::{Told, Tracked};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tramline::model::id::EventId;
use tramline::{Context, Event, Hooks, Retry, Settlement, Shutdown, Tramline};

/// Events of one emit.
const UNIT: usize = 500;

/// How many meet, and how often they may be in each other's way.
struct Size {
    workers: usize,
    events: usize,
    ordered: bool,
    /// Of so many round trips one may be of a step that is repeated.
    trips_per_retry: u64,
}

static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a million events; see above"]
async fn a_crowd_of_workers_meets_no_error_without_order() {
    large(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a million events; see above"]
async fn a_crowd_of_workers_meets_no_error_with_order() {
    large(true).await;
}

async fn large(ordered: bool) {
    let events: usize = std::env::var("TRAMLINE_TEST_CROWD").map_or(1_000_000, |n| n.parse().unwrap());
    // One process has one log.
    let _alone = ALONE.lock().await;
    let size = Size { workers: 64, events, ordered, trips_per_retry: 2_000 };
    crowd(size, Told::by_this_process()).await;
}

#[tokio::test]
async fn a_few_workers_meet_no_error_without_order() {
    let size = Size { workers: 8, events: 2_000, ordered: false, trips_per_retry: 50 };
    crowd(size, &Tracked::on_this_thread()).await;
}

#[tokio::test]
async fn a_few_workers_meet_no_error_with_order() {
    let size = Size { workers: 8, events: 2_000, ordered: true, trips_per_retry: 50 };
    crowd(size, &Tracked::on_this_thread()).await;
}

/// What the workers have come to.
#[derive(Debug, Default)]
struct Work {
    succeeded: Mutex<HashSet<EventId>>,
    /// Runs that succeeded where another one had before. A lease that is lost on a machine that is too busy to extend it makes some.
    again: AtomicUsize,
    /// Outcomes that came too late for their lease.
    lost: AtomicUsize,
    /// Changes when outcomes were written back.
    settled: watch::Sender<()>,
}

impl Work {
    fn succeed(&self, event: EventId) {
        if !self.succeeded.lock().unwrap().insert(event) {
            self.again.fetch_add(1, Relaxed);
        }
    }

    /// Returns when so many events have succeeded and nothing is left to do. What succeeded and could not be written back in time is
    /// left, until it has run again.
    async fn is_done(&self, events: usize, tram: &Tramline) {
        let mut settled = self.settled.subscribe();
        loop {
            let all = self.succeeded.lock().unwrap().len() == events;
            if all && tram.stats("q").await.unwrap().counts.pending() == 0 {
                return;
            }
            settled.changed().await.unwrap();
        }
    }
}

impl Hooks for Work {
    fn settled(&self, _: &str, settled: Settlement) {
        self.lost.fetch_add(settled.refused, Relaxed);
        self.settled.send_replace(());
    }
}

#[expect(clippy::print_stdout, reason = "figures for whoever asked for them")]
async fn crowd(size: Size, told: &Told) {
    let Size { workers: count, events, ordered, trips_per_retry } = size;
    let store = Private::open_with("?max_connections=3").await;
    let (work, shutdown) = (Arc::new(Work::default()), Shutdown::new());
    let mut workers = JoinSet::new();
    let emitter = Tramline::open(&store.url).await.unwrap();
    let mut trams = Vec::new();
    for _ in 0..count {
        trams.push(Tramline::open(&store.url).await.unwrap());
    }
    // What is said of the server's settings is no trouble.
    told.forget();
    let start = Instant::now();
    for (n, tram) in trams.into_iter().enumerate() {
        let worker = worker(&tram, ordered, work.clone());
        if n == 0 {
            worker.subscribe().await.unwrap();
        }
        let shutdown = shutdown.clone();
        workers.spawn(async move {
            let ran = worker.run(shutdown).await;
            tram.close().await;
            ran
        });
    }
    for first in (0..events).step_by(UNIT) {
        let unit = (first..(first + UNIT).min(events))
            .map(|n| Event::new("t", n.to_string()).key(format!("k{}", n % 10_000)));
        emitter.emit(unit.collect::<Vec<_>>()).await.unwrap();
    }
    work.is_done(events, &emitter).await;
    let took = start.elapsed();
    shutdown.start();
    while let Some(ran) = workers.join_next().await {
        ran.unwrap().unwrap();
    }
    let (trips, retried, troubles) = (told.trips(), told.retried(), told.troubles());
    println!(
        "{events} events, {count} workers, ordered: {ordered}: {took:?}, {trips} round trips, {} steps repeated, {} warnings, \
         {} ran again, {} outcomes too late",
        retried.len(),
        troubles.len(),
        work.again.load(Relaxed),
        work.lost.load(Relaxed)
    );
    assert!(troubles.is_empty(), "an error came to the surface: {:?}", &troubles[..troubles.len().min(9)]);
    assert!(retried.len() as u64 * trips_per_retry <= trips, "{retried:?} of {trips} round trips");
    emitter.close().await;
    store.close().await;
}

/// Every tenth event fails at first.
fn worker(tram: &Tramline, ordered: bool, work: Arc<Work>) -> tramline::Worker {
    let worker = tram
        .worker("q")
        .hooks(work.clone())
        .topics(["t"])
        .concurrency(64)
        .retry(Retry::constant(5, Duration::from_millis(10)));
    let worker = if ordered { worker.ordered_by_key() } else { worker };
    worker.on_any(move |cx: Context| {
        let fails = cx.attempt() <= 1 && cx.event().payload.ends_with(b"7");
        if !fails {
            work.succeed(cx.event().id);
        }
        std::future::ready(if fails { Err("every tenth") } else { Ok(()) })
    })
}
