//! A node that has nothing to do asks its store for nothing but what heartbeats and slow polls need, where wake-ups travel another way.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use support::stores::{Fresh, Place};
use support::{Disturbed, START, all_wait, until};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tramline::model::id::Incarnation;
use tramline::{Clock, ManualClock, NoHooks, Options, Tramline};

const SLOW_POLL: Duration = Duration::from_secs(1);
const POLLS: u64 = 6;
/// How many seconds are between two heartbeats, and two looks for schedules.
const BEAT: u64 = 2;
const LOOK: u64 = 5;
/// How many statements a call takes at most.
const EACH: u64 = 6;

/// Counts what the stores say of each statement. The tests have one thread, so nobody else is counted.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicU64>);

impl<S: tracing::Subscriber> Layer<S> for Counter {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if ["sqlx::query", "tramline::query"].contains(&event.metadata().target()) {
            self.0.fetch_add(1, Relaxed);
        }
    }
}

/// A node with a worker on a store, and what it asks for. Its time stands still until it is moved.
struct Idle {
    clock: ManualClock,
    store: Arc<Disturbed>,
    statements: Counter,
}

impl Idle {
    async fn open(fresh: &Fresh, statements: Counter) -> (Idle, Tramline) {
        let (clock, watched) = (ManualClock::new(START), Arc::new(OnceLock::new()));
        let keep = watched.clone();
        let nats = std::env::var("TRAMLINE_TEST_NATS").expect("TRAMLINE_TEST_NATS is not set: run ./test");
        let options = Options::new(&fresh.url)
            .clock(Clock::Manual(clock.clone()))
            .hooks(Arc::new(NoHooks))
            .wake_url(format!("{nats}?channel=idle_{:x}", Incarnation::random().0))
            .watch_store(move |store| keep.get_or_init(|| Arc::new(Disturbed::new(store))).clone());
        let tram = Tramline::with(options).await.unwrap();
        let store = watched.get().unwrap().clone();
        (Idle { clock, store, statements }, tram)
    }

    /// Waits until calls of a verb were answered so many times.
    async fn answered(&self, verb: &'static str, times: u64) {
        until(verb, || async { self.store.answers(verb) >= times }).await;
    }

    fn calls(&self) -> [u64; 3] {
        ["claim", "beat", "tick"].map(|verb| self.store.calls(verb))
    }
}

/// `in_a_second`: how many statements are allowed in a second in which the time of the node stands still.
async fn nothing_but_heartbeats_and_slow_polls(place: Place, in_a_second: u64) {
    let statements = Counter::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(statements.clone()));
    let fresh = Fresh::open(place).await;
    let (idle, tram) = Idle::open(&fresh, statements).await;
    let worker = tram.worker("w").topics(["t"]).on_any(|| async {});
    worker.subscribe().await.unwrap();
    let (shutdown, running) = support::start(worker);
    // The second look is for what was said before the hints could be heard.
    for (verb, times) in [("claim", 2), ("beat", 1), ("tick", 1)] {
        idle.answered(verb, times).await;
    }
    all_wait().await;
    let (before, [claims, beats, ticks]) = (idle.statements.0.load(Relaxed), idle.calls());
    // Here nothing is to be waited for: it is the time in which nothing may happen.
    tokio::time::sleep(SLOW_POLL).await;
    let still = idle.statements.0.load(Relaxed) - before;
    assert!(still <= in_a_second, "{still} statements in a second in which nothing was to be done");
    assert_eq!(idle.calls(), [claims, beats, ticks]);

    let before = idle.statements.0.load(Relaxed);
    for second in 1..=POLLS {
        idle.clock.advance(SLOW_POLL);
        for (verb, times) in
            [("claim", claims + second), ("beat", beats + second / BEAT), ("tick", ticks + second / LOOK)]
        {
            idle.answered(verb, times).await;
        }
        all_wait().await;
    }
    let calls = [POLLS, POLLS / BEAT, POLLS / LOOK];
    assert_eq!(idle.calls(), [claims + calls[0], beats + calls[1], ticks + calls[2]]);
    let (polled, called) = (idle.statements.0.load(Relaxed) - before, calls.iter().sum::<u64>());
    assert!((called..=called * EACH).contains(&polled), "{polled} statements for {called} calls");
    shutdown.start();
    running.await.unwrap().unwrap();
    tram.close().await;
    fresh.close().await;
}

#[tokio::test]
async fn an_idle_node_on_postgres_sends_nothing_but_heartbeats_and_slow_polls() {
    nothing_but_heartbeats_and_slow_polls(Place::Postgres, 0).await;
}

/// Its inbox, of which nobody is told, was looked at five times a second.
#[tokio::test]
async fn an_idle_node_on_mysql_also_looks_at_the_inbox_but_no_more_often_than_that() {
    nothing_but_heartbeats_and_slow_polls(Place::Mysql, 2).await;
}

#[tokio::test]
async fn an_idle_node_on_redis_sends_nothing_but_heartbeats_and_slow_polls() {
    nothing_but_heartbeats_and_slow_polls(Place::Redis, 0).await;
}

#[tokio::test]
async fn an_idle_node_on_a_cluster_sends_nothing_but_heartbeats_and_slow_polls() {
    nothing_but_heartbeats_and_slow_polls(Place::RedisCluster, 0).await;
}

#[tokio::test]
async fn an_idle_node_on_a_store_that_is_spread_sends_nothing_but_heartbeats_and_slow_polls() {
    nothing_but_heartbeats_and_slow_polls(Place::RedisSpread, 0).await;
}
