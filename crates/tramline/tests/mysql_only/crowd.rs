//! Many workers on one subscription, and a tenth of what they do fails: nobody meets an error, and hardly a step is repeated.
//!
//! ```sh
//! ./test --servers cargo test --release -p tramline --test mysql_only a_crowd -- --ignored --nocapture
//! TRAMLINE_TEST_CROWD=100000 ..                       # fewer events than a million
//! ```

use crate::bed::Private;
use sqlx::Row;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tracing_subscriber::layer::{Context as Of, Layer, SubscriberExt};
use tramline::{Context, Event, NoHooks, Retry, Shutdown, Tramline};

const WORKERS: usize = 64;
/// Events of one emit.
const UNIT: u64 = 500;

/// What the library says of its troubles. Of handlers that fail it says nothing: the workers have no hooks.
#[derive(Clone, Default)]
struct Troubles {
    retried: Arc<AtomicU64>,
    errors: Arc<AtomicU64>,
}

impl<S: tracing::Subscriber> Layer<S> for Troubles {
    fn on_event(&self, event: &tracing::Event<'_>, _: Of<'_, S>) {
        let about = event.metadata();
        if about.target() == "tramline::retry" {
            self.retried.fetch_add(1, Relaxed);
        } else if *about.level() <= tracing::Level::WARN && about.target().starts_with("tramline") {
            self.errors.fetch_add(1, Relaxed);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a million events; see above"]
async fn a_crowd_of_workers_meets_no_error_without_order() {
    crowd(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a million events; see above"]
async fn a_crowd_of_workers_meets_no_error_with_order() {
    crowd(true).await;
}

#[expect(clippy::print_stdout, reason = "figures for whoever asked for them")]
async fn crowd(ordered: bool) {
    let events: u64 = std::env::var("TRAMLINE_TEST_CROWD").map_or(1_000_000, |n| n.parse().unwrap());
    let troubles = Troubles::default();
    // Workers log nothing else that matters here, and run on all threads.
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(troubles.clone())).ok();
    let store = Private::open_with("?max_connections=3").await;
    let before = transactions(&store).await;
    let (done, shutdown) = (Arc::new(AtomicU64::new(0)), Shutdown::new());
    let mut workers = JoinSet::new();
    let emitter = Tramline::open(&store.url).await.unwrap();
    let start = Instant::now();
    for n in 0..WORKERS {
        let tram = Tramline::open(&store.url).await.unwrap();
        let worker = worker(&tram, ordered, &done, events, &shutdown);
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
    let mut next = 0;
    while next < events {
        let unit = (next..(next + UNIT).min(events))
            .map(|n| Event::new("t", n.to_string()).key(format!("k{}", n % 10_000)));
        emitter.emit(unit.collect::<Vec<_>>()).await.unwrap();
        next += UNIT;
    }
    while let Some(ran) = workers.join_next().await {
        ran.unwrap().unwrap();
    }
    let took = start.elapsed();
    let after = transactions(&store).await;
    let begun: u64 = after.values().sum::<u64>() - before.values().sum::<u64>();
    let (retried, errors) = (troubles.retried.load(Relaxed), troubles.errors.load(Relaxed));
    println!(
        "{events} events, {WORKERS} workers, ordered: {ordered}: {took:?}, {begun} transactions, {retried} retried ({:.3} %), {errors} warnings",
        retried as f64 * 100.0 / begun as f64
    );
    assert_eq!(emitter.stats("q").await.unwrap().counts.pending(), 0);
    assert_eq!(errors, 0, "an error came to the surface");
    assert!(retried * 1000 <= begun, "{retried} of {begun} were retried");
    emitter.close().await;
    store.close().await;
}

/// Every tenth event fails at first.
fn worker(
    tram: &Tramline,
    ordered: bool,
    done: &Arc<AtomicU64>,
    events: u64,
    shutdown: &Shutdown,
) -> tramline::Worker {
    let (done, shutdown) = (done.clone(), shutdown.clone());
    let worker = tram
        .worker("q")
        .hooks(Arc::new(NoHooks))
        .topics(["t"])
        .concurrency(64)
        .retry(Retry::constant(5, Duration::from_millis(10)));
    let worker = if ordered { worker.ordered_by_key() } else { worker };
    worker.on_any(move |cx: Context| {
        let fails = cx.attempt() <= 1 && cx.event().payload.ends_with(b"7");
        if !fails && done.fetch_add(1, Relaxed) + 1 == events {
            shutdown.start();
        }
        std::future::ready(if fails { Err("every tenth") } else { Ok(()) })
    })
}

async fn transactions(store: &Private) -> BTreeMap<String, u64> {
    let rows = store.rows("SHOW GLOBAL STATUS WHERE Variable_name IN ('Com_commit', 'Com_rollback')").await;
    let number =
        |row: &sqlx::mysql::MySqlRow| row.try_get_unchecked::<String, _>(1).unwrap().parse().unwrap();
    rows.iter().map(|row| (row.try_get_unchecked(0).unwrap(), number(row))).collect()
}
