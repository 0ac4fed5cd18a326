//! How often a step waits for the server.

use crate::bed::{Private, claim, done, event};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tramline::model::outcome::Outcome;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::verbs::{Emit, Settle};
use tramline::{Event, Result};

/// Counts what the store says of each round trip.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicU64>);

impl<S: tracing::Subscriber> Layer<S> for Counter {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "tramline::query" {
            self.0.fetch_add(1, Relaxed);
        }
    }
}

/// What a verb gives, and how many round trips it took. The tests have one thread, so nobody else is counted.
async fn counted<T>(verb: impl Future<Output = Result<T>>) -> (T, u64) {
    let counter = Counter::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(counter.clone()));
    let given = verb.await.unwrap();
    (given, counter.0.load(Relaxed))
}

fn emit(key: &str, count: usize) -> Emit {
    let units = (0..count).map(|n| vec![Event::new("t", "x").key(format!("{key}{n}"))]).collect();
    Emit { units, now: None }
}

#[tokio::test]
async fn emit_claim_and_settle_take_two_round_trips_each() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    store.emit(event("first")).await.unwrap();
    store.settle_done(queue.id, &store.claim(queue.id, 9).await).await;
    for count in [1, 100] {
        let (_, emits) = counted(store.store.emit(emit("k", count))).await;
        let (claimed, claims) = counted(store.store.claim(claim(queue.id, 100))).await;
        let (_, settles) = counted(store.store.settle(done(queue.id, &claimed))).await;
        assert_eq!((emits, claims, settles), (2, 2, 2), "{count} events");
    }
    let (nothing, claims) = counted(store.store.claim(claim(queue.id, 100))).await;
    assert!(nothing.slices.is_empty());
    assert_eq!(claims, 2);
    store.close().await;
}

/// Lanes are found before they are locked.
#[tokio::test]
async fn where_there_is_order_a_claim_takes_three() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await;
    store.emit(event("first")).await.unwrap();
    store.settle_done(queue.id, &store.claim(queue.id, 9).await).await;
    let (_, emits) = counted(store.store.emit(emit("k", 100))).await;
    let (claimed, claims) = counted(store.store.claim(claim(queue.id, 100))).await;
    let (_, settles) = counted(store.store.settle(done(queue.id, &claimed))).await;
    assert_eq!((emits, claims, settles), (2, 3, 2));
    store.close().await;
}

/// A failure writes another due time; that is no reason to ask more often.
#[tokio::test]
async fn failures_cost_no_more_round_trips() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    store.store.emit(emit("k", 64)).await.unwrap();
    let claimed = store.claim(queue.id, 64).await;
    let mut settle: Settle = done(queue.id, &claimed);
    for (_, outcome) in settle.results.iter_mut().flat_map(|result| &mut result.outcomes).step_by(10) {
        *outcome = Outcome::retry("no");
    }
    let (_, settles) = counted(store.store.settle(settle)).await;
    assert_eq!(settles, 2);
    store.close().await;
}
