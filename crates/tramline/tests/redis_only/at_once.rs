//! What a process knows of its own steps saves it trips, and never makes it overlook those of others.

use crate::bed::{Server, claim, done, emit, events, subscribe};
use std::collections::BTreeSet;
use tramline::Event;
use tramline::model::subscription::Ordering;
use tramline::store::Store;

fn some(count: usize) -> Vec<Event> {
    (0..count).map(|_| Event::new("t", "x")).collect()
}

#[tokio::test]
async fn an_emit_a_claim_and_a_settlement_take_a_trip_each() {
    let server = Server::start();
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::None).await;
    // The first ones find out how things are, and bring the scripts.
    for _ in 0..3 {
        emit(&store, some(3)).await.unwrap();
        let claimed = claim(&store, id, 10).await.unwrap();
        done(&store, id, &claimed).await.unwrap();
    }
    let before = server.trips().await;
    for _ in 0..10 {
        emit(&store, some(100)).await.unwrap();
        let claimed = claim(&store, id, 100).await.unwrap();
        assert_eq!(claimed.slices.iter().map(|slice| slice.events.len()).sum::<usize>(), 100);
        let settled = done(&store, id, &claimed).await.unwrap();
        assert!(settled.accepted.iter().flatten().all(|accepted| *accepted));
    }
    assert_eq!(server.trips().await - before, 30);
    assert_eq!(store.stats(id, None).await.unwrap().counts.pending(), 0);
}

/// Where there is order, a claim has to look at its lanes first: it was six trips, and a settlement two.
#[tokio::test]
async fn in_order_a_claim_takes_three_trips_and_a_settlement_one() {
    let server = Server::start();
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::Key).await;
    for _ in 0..3 {
        emit(&store, events(3)).await.unwrap();
        let claimed = claim(&store, id, 10).await.unwrap();
        done(&store, id, &claimed).await.unwrap();
    }
    for _ in 0..10 {
        emit(&store, events(100)).await.unwrap();
        let before = server.trips().await;
        let claimed = claim(&store, id, 100).await.unwrap();
        assert_eq!(claimed.slices.iter().map(|slice| slice.events.len()).sum::<usize>(), 100);
        assert_eq!(server.trips().await - before, 3);
        let settled = done(&store, id, &claimed).await.unwrap();
        assert!(settled.accepted.iter().flatten().all(|accepted| *accepted));
        assert_eq!(server.trips().await - before, 4);
    }
    assert_eq!(store.stats(id, None).await.unwrap().counts.pending(), 0);
}

/// A claim that takes a part of a slice leaves the rest to others, as it does step by step.
#[tokio::test]
async fn a_claim_in_one_trip_splits_what_holds_too_much() {
    let server = Server::start();
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::None).await;
    claim(&store, id, 1).await.unwrap();
    emit(&store, some(150)).await.unwrap();
    let mut seen = BTreeSet::new();
    for wanted in [1, 10, 53, 1, 64, 100] {
        let claimed = claim(&store, id, wanted).await.unwrap();
        let taken = claimed.slices.iter().flat_map(|slice| &slice.events).map(|event| event.event.id);
        let before = seen.len();
        seen.extend(taken);
        assert_eq!(seen.len() - before, (wanted as usize).min(150 - before));
        done(&store, id, &claimed).await.unwrap();
    }
    assert_eq!(store.stats(id, None).await.unwrap().counts.pending(), 0);
}

#[tokio::test]
async fn what_another_process_did_since_is_not_overlooked() {
    let server = Server::start();
    let (one, other) = (server.open().await.unwrap(), server.open().await.unwrap());
    let id = subscribe(&one, Ordering::None).await;
    let mut ids = BTreeSet::new();
    for round in 0..40 {
        let store = if round % 3 == 0 { &other } else { &one };
        ids.extend(emit(store, some(2)).await.unwrap().events.iter().map(|event| event.id));
    }
    assert_eq!(ids.len(), 80);
    assert_eq!(one.stats(id, None).await.unwrap().counts.ready, 80);
    let claimed = claim(&one, id, 50).await.unwrap();
    // The same settlement twice, from two processes: the second one finds nothing of its own.
    let first = done(&other, id, &claimed).await.unwrap();
    let second = done(&one, id, &claimed).await.unwrap();
    assert!(first.accepted.iter().flatten().all(|accepted| *accepted));
    assert!(second.accepted.iter().flatten().all(|accepted| !*accepted));
    assert_eq!(one.stats(id, None).await.unwrap().counts.pending(), 30);
}
