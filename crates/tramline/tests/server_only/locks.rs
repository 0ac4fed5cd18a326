//! Transactions of others that hold locks, and what they do not know; on every server that has some.

use crate::bed::{Private, done, event, ids, open, read_log};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tramline::error::Kind;
use tramline::model::id::EventId;
use tramline::model::lease::Lease;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::verbs::{
    Claimed, Emission, Emit, Extend, Extended, FindEvent, Over, PutSchedule, Release, Tick,
};
use tramline::{Event, Result, Schedule};

/// Trap 5: somebody's open transaction has locked a key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_key_holds_up_nobody_else() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    store.emit(event("stuck")).await.unwrap();
    let first = store.emit_in(&mut tx, [event("stuck")]).await.unwrap();
    let group = tokio::spawn({
        let store = store.store.clone();
        let unit = |key: &str| vec![event(key)];
        let units = vec![unit("a"), unit("stuck"), vec![Event::new("t", "x")], unit("b"), unit("stuck")];
        async move { store.emit(Emit { units, now: None }).await.unwrap() }
    });
    let start = Instant::now();
    let mut free = HashSet::new();
    // One was there before; a, b and the one without a key follow while "stuck" still waits.
    while free.len() < 4 {
        free.extend(ids(&store.claim(queue.id, 9).await));
        assert!(start.elapsed() < Duration::from_secs(4), "the others were held up");
    }
    store.emit(event("elsewhere")).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(4), "emits of other callers were held up");
    assert!(!group.is_finished());
    tx.commit().await.unwrap();
    let answers = group.await.unwrap();
    let stuck: Vec<&Emission> = [1, 4].map(|at: usize| answers[at].as_ref().unwrap()).into();
    assert_eq!(stuck[0].events[0].prev, Some(first.events[0].id));
    assert_eq!(stuck[1].events[0].prev, Some(stuck[0].events[0].id));
    store.close().await;
}

/// Somebody's open transaction has emitted a unique event. Those who emit many others at once lock only theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_unique_key_holds_up_no_other() {
    let store = Private::open().await;
    let unique = |key: &str| Event::new("t", "x").unique(key);
    store.emit(unique("50 stuck")).await.unwrap();
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    store.emit_in(&mut tx, [unique("50 stuck")]).await.unwrap();
    let others: Vec<Event> = (0..100).map(|number| unique(&format!("{number:02} free"))).collect();
    let answers = store.store.emit(Emit { units: vec![others], now: None }).await.unwrap();
    assert_eq!(answers[0].as_ref().unwrap().events.len(), 100);
    tx.rollback().await.unwrap();
    store.close().await;
}

/// Somebody's open transaction has a key that shows that it is locked, and one that it is just creating, which does not show.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_just_being_created_holds_up_nobody_else() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    let pool = store.pool().await;
    store.emit(event("old")).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    store.emit_in(&mut tx, [event("old"), event("new")]).await.unwrap();
    let start = Instant::now();
    let group = tokio::spawn({
        let store = store.store.clone();
        let mut units: Vec<Vec<Event>> = ["a", "old", "new", "b"].map(|key| vec![event(key)]).into();
        units.push(vec![Event::new("t", "x")]);
        async move { store.emit(Emit { units, now: None }).await.unwrap() }
    });
    let mut free = HashSet::new();
    // One was there before; a, b and the one without a key follow while the others still wait.
    while free.len() < 4 {
        free.extend(ids(&store.claim(queue.id, 9).await));
        assert!(start.elapsed() < Duration::from_secs(4), "the others were held up");
    }
    assert!(!group.is_finished());
    tx.commit().await.unwrap();
    assert!(group.await.unwrap().iter().all(Result::is_ok));
    store.close().await;
}

/// Somebody's open transaction has locked the key of one schedule: the others run, and it runs when it can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_whose_key_is_locked_holds_up_no_other() {
    let store = Private::open().await;
    let now = store.now().await.unwrap();
    for key in ["a", "stuck", "z"] {
        let schedule = Schedule::every(key, Duration::from_secs(60), event(key));
        let put = PutSchedule { schedule, paused: None, over: Over::Anything, now: Some(now) };
        store.put_schedule(put).await.unwrap();
    }
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    let first = store.emit_in(&mut tx, [event("stuck")]).await.unwrap();
    let due = now.after(Duration::from_secs(60));
    let tick = || store.tick(Tick { limit: 100, now: Some(due) });
    let ticked = tick().await.unwrap();
    assert_eq!((ticked.events, ticked.next, ticked.more), (2, Some(due), false));
    assert_eq!(tick().await.unwrap().events, 0);
    tx.commit().await.unwrap();
    assert_eq!(tick().await.unwrap().events, 1);
    let id = store.schedule("stuck").await.unwrap().unwrap().last_event.unwrap();
    let found = store.event(FindEvent { id, now: None }).await.unwrap().unwrap();
    assert_eq!(found.event.prev, Some(first.events[0].id));
    assert_eq!(tick().await.unwrap().next, Some(due.after(Duration::from_secs(60))));
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emit_gives_up_when_its_key_stays_locked() {
    let store = Private::open().await;
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    store.emit_in(&mut tx, [event("new")]).await.unwrap();
    let units = vec![vec![event("new")], vec![event("free")]];
    let answers = store.store.emit(Emit { units, now: None }).await.unwrap();
    let error = answers[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(!error.remedy().is_empty());
    assert!(answers[1].is_ok());
    tx.commit().await.unwrap();
    assert!(store.emit(event("new")).await.unwrap().events[0].prev.is_some());
    store.close().await;
}

/// Trap 10: a handler settles in its own transaction and takes its time.
#[tokio::test]
async fn extending_does_not_wait_for_a_transaction_that_holds_one_of_the_leases() {
    for ordering in [Ordering::None, Ordering::Key] {
        let store = Private::open().await;
        let queue = store.subscribe("q", ordering).await;
        for key in ["a", "b", "c"] {
            store.emit(event(key)).await.unwrap();
        }
        let claimed = store.claim(queue.id, 9).await;
        let leases: Vec<Lease> = claimed.slices.iter().map(|slice| slice.lease).collect();
        assert_eq!(leases.len(), 3, "three keys in three lanes");
        let pool = store.pool().await;
        let mut tx = pool.begin().await.unwrap();
        let one = Claimed { slices: vec![claimed.slices[1].clone()], ..Claimed::default() };
        store.settle_in(&mut tx, done(queue.id, &one)).await.unwrap();
        let extend = || Extend { subscription: queue.id, leases: leases.clone(), lease: None, now: None };
        let answers = store.extend(extend()).await.unwrap();
        assert!(
            matches!(answers[..], [Extended::Until(_), Extended::Locked, Extended::Until(_)]),
            "{answers:?}"
        );
        tx.commit().await.unwrap();
        let answers = store.extend(extend()).await.unwrap();
        assert!(
            matches!(answers[..], [Extended::Until(_), Extended::Lost, Extended::Until(_)]),
            "{answers:?}"
        );
        store.close().await;
    }
}

/// The story: settlements of many callers go together. One of them had an old lease of a slice that somebody had locked in a transaction of his
/// own, and all of them waited for that.
#[tokio::test]
async fn an_old_lease_waits_for_nobody() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await.id;
    store.emit(event("k")).await.unwrap();
    let old = store.claim(queue, 1).await;
    let release = Release { subscription: queue, leases: vec![old.slices[0].lease], now: None };
    assert_eq!(store.store.release(release.clone()).await.unwrap(), 1);
    let new = store.claim(queue, 1).await;
    assert_eq!(ids(&new), ids(&old));
    store.emit(event("other")).await.unwrap();
    let other = store.claim(queue, 1).await;
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    store.settle_in(&mut tx, done(queue, &new)).await.unwrap();
    let mut together = done(queue, &old);
    together.results.extend(done(queue, &other).results);
    let late = async {
        let settled = store.store.settle(together).await.unwrap();
        (settled.accepted, store.store.release(release).await.unwrap())
    };
    // Whoever waits on MySQL gives up after more than that.
    let (accepted, released) =
        tokio::time::timeout(Duration::from_secs(10), late).await.expect("nobody is waited for");
    assert_eq!((accepted, released), (vec![vec![false], vec![true]], 0));
    tx.commit().await.unwrap();
    pool.close().await;
    store.close().await;
}

/// A node may know a topic that another one has deleted: the event must not be lost in a plan that has no place for it. What is emitted outside
/// of transactions is in the conformance suite.
#[tokio::test]
async fn an_emit_in_a_transaction_to_a_topic_that_another_node_deleted_creates_it_again() {
    let store = Private::open().await;
    let twin = open(&store.url).await.unwrap();
    for event in [Event::new("t", "x"), Event::new("t", "x").idempotency_key("once")] {
        store.emit(event.clone()).await.unwrap();
        twin.delete_topic("t").await.unwrap();
        let mut tx = store.store.pool().begin().await.unwrap();
        assert_eq!(store.emit_in(&mut tx, [event]).await.unwrap().events.len(), 1);
        tx.commit().await.unwrap();
    }
    assert_eq!(twin.read_log(read_log(EventId(0))).await.unwrap().events.len(), 1);
    twin.close().await;
    store.close().await;
}
