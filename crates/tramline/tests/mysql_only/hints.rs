//! Hints between processes, on a server that cannot call anybody.

use crate::bed::{Private, open};
use std::time::Duration;
use tramline::model::id::SubscriptionId;
use tramline::store::Store;
use tramline::store::verbs::{Emit, Expected, PutSubscription};
use tramline::wake::mysql::Pulse;
use tramline::wake::{Listener, Wake};
use tramline::{Event, Policy, Start};

async fn subscribe(store: &Private, topic: &str) -> SubscriptionId {
    let put = PutSubscription {
        name: topic.into(),
        topics: vec![topic.to_owned()],
        policy: Policy::default(),
        start: Start::Beginning,
        expected: Expected::Anything,
        now: None,
    };
    store.store.put_subscription(put).await.unwrap().id
}

async fn rings(listener: &mut Listener) {
    tokio::time::timeout(Duration::from_secs(30), listener.wait()).await.expect("a hint");
}

/// The story: a node with 200 push subscriptions, each of which got five events a second, claimed for all of them whenever anything
/// was emitted, and the server did hardly anything else.
#[tokio::test]
async fn an_emit_of_another_process_wakes_only_those_whom_it_concerns() {
    let store = Private::open().await;
    let (one, other) = (subscribe(&store, "one").await, subscribe(&store, "other").await);
    let twin = open(&store.url).await.unwrap();
    let emit = async |topic| {
        let units = vec![vec![Event::new(topic, "x")]];
        twin.emit(Emit { units, now: None }).await.unwrap()[0].as_ref().unwrap();
    };
    // As whoever waits has claimed before, so that this process knows what there is.
    store.claim(one, 1).await;
    let pulse = Pulse::new(store.store.clone());
    let (mut one, mut other) = (pulse.listen(one), pulse.listen(other));
    // At first nobody knows what happened before.
    rings(&mut one).await;
    rings(&mut other).await;
    for _ in 0..3 {
        emit("one").await;
        rings(&mut one).await;
        // The test has one thread: who rings has rung all bells by now.
        tokio::select! {
            biased;
            () = other.wait() => panic!("it has nothing to do"),
            () = std::future::ready(()) => {}
        }
        emit("other").await;
        rings(&mut other).await;
    }
    twin.close().await;
    drop(pulse);
    store.close().await;
}

/// The story: its number is that of the first one, which counted as this process's own, so that nobody here was told of it.
#[tokio::test]
async fn a_duplicate_of_what_another_process_has_emitted_hides_nothing() {
    let store = Private::open().await;
    let one = subscribe(&store, "one").await;
    let twin = open(&store.url).await.unwrap();
    store.claim(one, 1).await;
    let pulse = Pulse::new(store.store.clone());
    let mut listener = pulse.listen(one);
    rings(&mut listener).await;
    for number in 0..5 {
        let emit = || {
            let event = Event::new("one", "x").unique(number.to_string());
            Emit { units: vec![vec![event]], now: None }
        };
        twin.emit(emit()).await.unwrap()[0].as_ref().unwrap();
        let again = store.store.emit(emit()).await.unwrap();
        assert!(again[0].as_ref().unwrap().events[0].duplicate);
        rings(&mut listener).await;
    }
    twin.close().await;
    drop(pulse);
    store.close().await;
}
