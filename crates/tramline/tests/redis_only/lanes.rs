//! Lanes: how often a claim asks the server, however many there are and however much is in them. Each time it decides anew, and what takes
//! long is overtaken, or ends after its lease.

use crate::bed::{Server, claim_by, done, emit, subscribe};
use std::time::Duration;
use tramline::Event;
use tramline::model::id::{Incarnation, SubscriptionId};
use tramline::model::outcome::Outcome;
use tramline::model::subscription::Ordering;
use tramline::model::time::Time;
use tramline::store::Store;
use tramline::store::redis::RedisStore;
use tramline::store::verbs::{Claim, Claimed, Settle, SettleSlice, Suspects};

const KEYS: usize = 7;
const EVENTS: usize = 280;
const LEASE: Duration = Duration::from_secs(30);

/// Each event in a chunk of its own, forty in each of seven lanes: more than are read at a time.
async fn full(server: &Server) -> (RedisStore, SubscriptionId) {
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::Key).await;
    for number in 0..EVENTS {
        let event = Event::new("t", "x").key(format!("key:{}", number % KEYS));
        emit(&store, vec![event]).await.unwrap();
    }
    (store, id)
}

/// What a claim takes, and how often it asks.
async fn claim(server: &Server, store: &RedisStore, claim: Claim) -> (Claimed, u64) {
    let before = server.trips().await;
    let claimed = store.claim(Claim { lease: Some(LEASE), ..claim }).await.unwrap();
    (claimed, server.trips().await - before)
}

fn by(owner: Incarnation, id: SubscriptionId, suspects: Suspects, now: Time) -> Claim {
    Claim { suspects, now: Some(now), ..claim_by(owner, id, EVENTS as u32) }
}

/// Lanes were read a moment before their slices, and what was claimed in between was counted as ready.
#[tokio::test]
async fn counts_are_of_one_moment() {
    let server = Server::start();
    let (store, id) = full(&server).await;
    let now = store.now().await.unwrap();
    claim(&server, &store, by(Incarnation::random(), id, Suspects::Leave, now)).await;
    let before = server.trips().await;
    let counts = store.stats(id, Some(now)).await.unwrap().counts;
    assert_eq!((server.trips().await - before, counts.leased), (1, EVENTS as u64));
}

/// Each page of each lane was asked for by itself.
#[tokio::test]
async fn all_lanes_are_read_together() {
    let server = Server::start();
    let (store, id) = full(&server).await;
    let now = store.now().await.unwrap();
    let (claimed, trips) = claim(&server, &store, by(Incarnation::random(), id, Suspects::Leave, now)).await;
    assert_eq!(claimed.slices.len(), EVENTS);
    assert!(trips <= 8, "{trips} trips");
}

/// The story: seven lanes of a worker that had ended were one step of forty trips, and took seconds on a busy machine: longer than the lease.
#[tokio::test]
async fn lanes_of_a_worker_that_ended_are_taken_over_together() {
    let server = Server::start();
    let (store, id) = full(&server).await;
    let now = store.now().await.unwrap();
    let later = now.after(LEASE);
    let next = Incarnation::random();
    claim(&server, &store, by(Incarnation::random(), id, Suspects::Leave, now)).await;
    let (claimed, trips) = claim(&server, &store, by(next, id, Suspects::Leave, later)).await;
    assert!(claimed.slices.is_empty() && claimed.suspects_wait);
    assert!(trips <= 15, "{trips} trips to take them over");
    let (claimed, trips) = claim(&server, &store, by(next, id, Suspects::TakeOne, later)).await;
    assert_eq!(claimed.slices.len(), 1);
    assert!(trips <= 8, "{trips} trips to take a suspect");
    done(&store, id, &claimed).await.unwrap();
    let (claimed, trips) = claim(&server, &store, by(next, id, Suspects::Leave, later)).await;
    assert!(claimed.slices.is_empty() && claimed.suspects_wait);
    assert!(trips <= 4, "{trips} trips to leave the others alone");
}

/// A failure takes back what follows in its key, so all that is taken in its lane has to be known: each lane was looked at by itself.
#[tokio::test]
async fn failures_in_many_lanes_are_settled_together() {
    let server = Server::start();
    let (store, id) = full(&server).await;
    let now = store.now().await.unwrap();
    let (claimed, _) = claim(&server, &store, by(Incarnation::random(), id, Suspects::Leave, now)).await;
    // The first seven have seven keys.
    let results = claimed.slices.iter().filter(|slice| slice.events[0].event.prev.is_none());
    let results: Vec<SettleSlice> = results
        .map(|slice| SettleSlice { lease: slice.lease, outcomes: vec![(0, Outcome::retry("not yet"))] })
        .collect();
    assert_eq!(results.len(), KEYS);
    let before = server.trips().await;
    let settle = Settle { subscription: id, results, worker: None, now: Some(now) };
    let settled = store.settle(settle).await.unwrap();
    let trips = server.trips().await - before;
    assert_eq!(settled.waiting.len(), KEYS);
    assert!(trips <= 8, "{trips} trips");
}
