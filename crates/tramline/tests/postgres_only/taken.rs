//! What is taken from the beginning of a lane: nothing is written of it but where the lane begins.

use crate::bed::{Private, claim, done, event, ids};
use sqlx::Row;
use tramline::model::id::{EventId, Incarnation, SubscriptionId};
use tramline::model::lane::hash;
use tramline::model::limits::Limits;
use tramline::model::status::Status;
use tramline::model::subscription::{Ordering, Policy};
use tramline::store::Store;
use tramline::store::verbs::{Cancel, Claim, Claimed, FindEvent, Release, Settle};

/// Keys of one lane.
fn beside(key: &'static str) -> impl Iterator<Item = String> {
    (0..).map(|number| format!("key{number}")).filter(move |other| hash(other) % 32 == hash(key) % 32)
}

/// Emits to so many keys of one lane.
async fn emit_beside(store: &Private, count: usize) -> Vec<EventId> {
    let mut ids = Vec::new();
    for key in beside("k").take(count) {
        ids.push(store.emit(event(&key)).await.unwrap().events[0].id);
    }
    ids
}

async fn claim_for(store: &Private, owner: Incarnation, id: SubscriptionId, max_events: u32) -> Claimed {
    store.store.claim(Claim { owner, ..claim(id, max_events) }).await.unwrap()
}

/// How many slices have which state in their rows.
async fn states(store: &Private) -> Vec<(i16, i64)> {
    let sql = "SELECT state, count(*) FROM $s.tramline_slice WHERE chunk > 0 GROUP BY state ORDER BY state";
    store.rows(sql).await.iter().map(|row| (row.get(0), row.get(1))).collect()
}

async fn ready_and_leased(store: &Private, id: SubscriptionId) -> (u64, u64) {
    let counts = store.stats(id, None).await.unwrap().counts;
    (counts.ready, counts.leased)
}

#[tokio::test]
async fn what_has_no_mark_is_taken_for_everybody() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await.id;
    let emitted = emit_beside(&store, 3).await;
    let claimed = store.claim(queue, 9).await;
    assert_eq!(ids(&claimed), emitted);
    assert_eq!(states(&store).await, [(0, 3)], "nothing was written");
    assert_eq!(ready_and_leased(&store, queue).await, (0, 3));
    let view = store.event(FindEvent { id: emitted[1], now: None }).await.unwrap().unwrap();
    let delivery = &view.deliveries[0];
    assert_eq!((delivery.status, delivery.worker), (Status::Leased, Some(claimed.slices[1].lease.owner())));
    assert!(store.cancel(Cancel { id: emitted[1], now: None }).await.unwrap().is_empty());
    assert!(ids(&store.claim(queue, 9).await).is_empty());
    let all = done(queue, &claimed);
    let first = Settle { results: vec![all.results[0].clone()], ..all.clone() };
    assert_eq!(store.settle(first.clone()).await.unwrap().accepted, [[true]]);
    assert_eq!(store.settle(first).await.unwrap().accepted, [[false]]);
    assert_eq!(ready_and_leased(&store, queue).await, (0, 2));
    assert_eq!(store.settle(all).await.unwrap().accepted, [[false], [true], [true]]);
    assert_eq!(states(&store).await, []);
    store.close().await;
}

#[tokio::test]
async fn what_stays_taken_gets_a_mark_when_something_before_it_is_given_back() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await.id;
    let emitted = emit_beside(&store, 3).await;
    let owner = Incarnation::random();
    let claimed = claim_for(&store, owner, queue, 9).await;
    let leases = vec![claimed.slices[1].lease];
    assert_eq!(store.release(Release { subscription: queue, leases, now: None }).await.unwrap(), 1);
    assert_eq!(states(&store).await, [(0, 1), (1, 2)]);
    assert_eq!(ready_and_leased(&store, queue).await, (1, 2));
    let again = claim_for(&store, owner, queue, 9).await;
    assert_eq!(ids(&again), [emitted[1]]);
    assert_eq!(store.settle_done(queue, &again).await.accepted, [[true]]);
    assert_eq!(store.settle_done(queue, &claimed).await.accepted, [[true], [false], [true]]);
    assert_eq!(states(&store).await, []);
    store.close().await;
}

#[tokio::test]
async fn what_has_no_mark_counts_where_there_is_a_limit() {
    let store = Private::open().await;
    let limits = Limits { concurrency: Some(3), ..Limits::default() };
    let policy = Policy { ordering: Ordering::Key, limits, ..Policy::default() };
    let queue = store.subscribe_with("q", policy).await.id;
    let emitted = emit_beside(&store, 5).await;
    let owner = Incarnation::random();
    let first = claim_for(&store, owner, queue, 2).await;
    assert_eq!(ids(&first), emitted[..2]);
    assert_eq!(states(&store).await, [(0, 5)], "nothing was written");
    let second = claim_for(&store, owner, queue, 9).await;
    assert_eq!(ids(&second), emitted[2..3]);
    store.settle_done(queue, &first).await;
    assert_eq!(ids(&claim_for(&store, owner, queue, 9).await), emitted[3..]);
    store.close().await;
}

/// Behind an emit that may still come there are marks.
#[tokio::test]
async fn what_is_not_proven_to_be_complete_is_marked() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await.id;
    let mut keys = beside("k");
    let mut tx = store.store.pool().begin().await.unwrap();
    let late = store.emit_in(&mut tx, [event(&keys.next().unwrap())]).await.unwrap().events[0].id;
    let early = store.emit(event(&keys.next().unwrap())).await.unwrap().events[0].id;
    let owner = Incarnation::random();
    let first = claim_for(&store, owner, queue, 9).await;
    assert_eq!(ids(&first), [early]);
    assert_eq!(states(&store).await, [(1, 1)]);
    tx.commit().await.unwrap();
    let second = claim_for(&store, owner, queue, 9).await;
    assert_eq!(ids(&second), [late]);
    assert_eq!(store.settle_done(queue, &first).await.accepted, [[true]]);
    assert_eq!(store.settle_done(queue, &second).await.accepted, [[true]]);
    store.close().await;
}
