//! How often a step waits for the server.

use crate::bed::{Private, claim, done, event, ids};
use crate::tracked::Tracked;
use tramline::model::id::SubscriptionId;
use tramline::model::lane::Share;
use tramline::model::limits::Limits;
use tramline::model::outcome::Outcome;
use tramline::model::subscription::{Ordering, Policy, Start};
use tramline::model::tally::NewTally;
use tramline::store::Store;
use tramline::store::verbs::{Claim, Emit, Expected, Gather, PutSubscription, RecordPush, Sent, Settle};
use tramline::store::verbs_tally::OpenTally;
use tramline::{Event, Push, Result};

/// What a verb gives, and how many round trips it took. The tests have one thread, so nobody else is counted.
async fn counted<T>(verb: impl Future<Output = Result<T>>) -> (T, u64) {
    let tracked = Tracked::on_this_thread();
    let given = verb.await.unwrap();
    (given, tracked.trips())
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

/// Lanes are found before they are locked, and read after that, all in one round trip; also by a worker that helps others.
#[tokio::test]
async fn where_there_is_order_they_take_two_round_trips_too() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await;
    store.emit(event("first")).await.unwrap();
    store.settle_done(queue.id, &store.claim(queue.id, 9).await).await;
    for (of, count) in [(1, 1), (1, 100), (2, 100)] {
        let share = Share { index: 0, of, help: true };
        let (_, emits) = counted(store.store.emit(emit("k", count))).await;
        let (claimed, claims) =
            counted(store.store.claim(Claim { share, ..claim(queue.id, count as u32) })).await;
        let (settled, settles) = counted(store.store.settle(done(queue.id, &claimed))).await;
        assert_eq!((emits, claims, settles), (2, 2, 2), "{count} events, {of} workers");
        assert_eq!(settled.accepted.iter().flatten().filter(|accepted| **accepted).count(), count);
    }
    let (nothing, claims) = counted(store.store.claim(claim(queue.id, 100))).await;
    assert!(nothing.slices.is_empty());
    assert_eq!(claims, 2);
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

async fn put(store: &Private, name: &str, ordering: Ordering, limits: Limits) -> SubscriptionId {
    let put = PutSubscription {
        name: name.into(),
        topics: vec!["t".to_owned()],
        policy: Policy { ordering, limits, ..Policy::default() },
        start: Start::Beginning,
        expected: Expected::Anything,
        now: None,
    };
    store.store.put_subscription(put).await.unwrap().id
}

/// Who repeats an emit, or emits what is unique and there already, finds out in the first of them.
#[tokio::test]
async fn an_emit_that_may_be_repeated_takes_two_round_trips() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    store.emit(event("first")).await.unwrap();
    let emit = async |events: Vec<Event>| {
        let units = events.into_iter().map(|event| vec![event]).collect();
        let (answers, trips) = counted(store.store.emit(Emit { units, now: None })).await;
        (answers.into_iter().map(Result::unwrap).collect::<Vec<_>>(), trips)
    };
    let once = |key: &str| event(key).idempotency_key(key);
    let (first, trips) = emit(vec![once("a"), once("b"), once("a")]).await;
    assert_eq!(trips, 2, "new");
    assert!(!first[0].repeated && !first[1].repeated && first[2].repeated);
    let (again, trips) = emit(vec![once("a")]).await;
    assert_eq!(trips, 2, "repeated");
    assert!(again[0].repeated && again[0].events == first[0].events);
    let (mixed, trips) = emit(vec![once("b"), once("c")]).await;
    assert_eq!(trips, 3, "some of it repeated");
    assert!(mixed[0].repeated && !mixed[1].repeated);
    assert_eq!(mixed[1].events[0].prev, None);

    let unique = |key: &str| Event::new("t", "x").unique(key);
    let (first, trips) = emit(vec![unique("a"), unique("b")]).await;
    assert_eq!(trips, 2, "unique");
    let (there, trips) = emit(vec![unique("a")]).await;
    assert_eq!(trips, 2, "there already");
    assert!(there[0].events[0].duplicate && there[0].events[0].id == first[0].events[0].id);
    let (some, trips) = emit(vec![unique("b"), unique("c")]).await;
    assert_eq!(trips, 3, "some of it there already");
    assert!(some[0].events[0].duplicate && !some[1].events[0].duplicate);
    store.settle_done(queue.id, &store.claim(queue.id, 100).await).await;
    let (after, trips) = emit(vec![unique("a")]).await;
    assert_eq!(trips, 2, "done, so that another one may come");
    assert!(!after[0].events[0].duplicate);
    store.close().await;
}

/// A claim under a limit locks that first, and then looks like any other.
#[tokio::test]
async fn limits_cost_no_more_round_trips_unless_they_are_of_keys() {
    let store = Private::open().await;
    let limits = Limits { concurrency: Some(64), ..Limits::default() };
    let (plain, ordered) = (
        put(&store, "plain", Ordering::None, limits).await,
        put(&store, "ordered", Ordering::Key, limits).await,
    );
    let limits = Limits { per_key_concurrency: Some(1), ..Limits::default() };
    let by_key = put(&store, "by_key", Ordering::None, limits).await;
    store.store.emit(emit("k", 100)).await.unwrap();
    for (queue, name) in [(plain, "plain"), (ordered, "ordered")] {
        let (claimed, claims) = counted(store.store.claim(claim(queue, 100))).await;
        assert_eq!((ids(&claimed).len(), claims), (64, 2), "{name}");
        let (none, claims) = counted(store.store.claim(claim(queue, 100))).await;
        assert_eq!((ids(&none).len(), none.limited, claims), (0, true, 2), "{name}, at its limit");
        let (_, settles) = counted(store.store.settle(done(queue, &claimed))).await;
        assert_eq!(settles, 2, "{name}");
        let (rest, claims) = counted(store.store.claim(claim(queue, 100))).await;
        assert_eq!((ids(&rest).len(), claims), (36, 2), "{name}, the rest");
    }
    // What is ready, its keys, and those that had to wait; and of what is under way the keys.
    let (claimed, claims) = counted(store.store.claim(claim(by_key, 64))).await;
    assert_eq!(ids(&claimed).len(), 64);
    assert!(claims <= 5, "{claims} for a claim by key");
    let (claimed, claims) = counted(store.store.claim(claim(by_key, 64))).await;
    assert_eq!(ids(&claimed).len(), 36);
    assert!(claims <= 6, "{claims} for another one");
    store.close().await;
}

/// A failure concerns all that is taken in its lane; that is asked for with the rest. Where keys are parked already, they are looked at.
#[tokio::test]
async fn failures_cost_no_more_round_trips_where_there_is_order() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await;
    store.store.emit(emit("k", 64)).await.unwrap();
    let claimed = store.claim(queue.id, 64).await;
    let mut settle: Settle = done(queue.id, &claimed);
    for (_, outcome) in settle.results.iter_mut().flat_map(|result| &mut result.outcomes).step_by(10) {
        *outcome = Outcome::retry("no");
    }
    let (settled, settles) = counted(store.store.settle(settle)).await;
    assert!(settled.accepted.iter().flatten().all(|accepted| *accepted));
    assert_eq!(settles, 2);
    store.store.emit(emit("k", 64)).await.unwrap();
    let (claimed, claims) = counted(store.store.claim(claim(queue.id, 64))).await;
    assert!(!claimed.slices.is_empty() && claims <= 4, "{claims} for a claim beside parked keys");
    let (_, settles) = counted(store.store.settle(done(queue.id, &claimed))).await;
    assert!(settles <= 4, "{settles} for a settlement beside parked keys");
    store.close().await;
}

/// Items are numbered before they are stored, and ended after everything else.
#[tokio::test]
async fn items_of_a_tally_take_more_round_trips() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    store.emit(event("first")).await.unwrap();
    store.settle_done(queue.id, &store.claim(queue.id, 9).await).await;
    let tally = store.open_tally(OpenTally { tally: NewTally::new(), now: None }).await.unwrap().id;
    let units = vec![vec![event("a").tally(tally)], vec![event("b").tally(tally)]];
    let (_, emits) = counted(store.store.emit(Emit { units, now: None })).await;
    let (claimed, claims) = counted(store.store.claim(claim(queue.id, 9))).await;
    let (_, settles) = counted(store.store.settle(done(queue.id, &claimed))).await;
    assert!((emits, claims) == (4, 2) && settles <= 8, "{emits}, {claims}, {settles}");
    store.close().await;
}

/// A node looks at all of its push subscriptions every second, and a line at its own for every batch.
#[tokio::test]
async fn push_looks_in_one_round_trip_and_reports_in_two() {
    let store = Private::open().await;
    for (name, ordering) in [("plain", Ordering::None), ("ordered", Ordering::Key)] {
        let push = Push::to("http://127.0.0.1:1/");
        let put = PutSubscription {
            name: name.into(),
            topics: vec!["t".to_owned()],
            policy: Policy { ordering, push: Some(push), ..Policy::default() },
            start: Start::Beginning,
            expected: Expected::Anything,
            now: None,
        };
        let subscription = store.store.put_subscription(put).await.unwrap().id;
        store.store.push_board(None).await.unwrap();
        let (gathered, gathers) =
            counted(store.store.gather(Gather { subscription, events: 9, now: None })).await;
        assert_eq!((gathered.events, gathered.since, gathers), (0, None, 1), "{name}");
        store.emit(event("a")).await.unwrap();
        let (gathered, gathers) =
            counted(store.store.gather(Gather { subscription, events: 9, now: None })).await;
        assert_eq!((gathered.events, gathered.next_due, gathers), (1, None, 1), "{name}");
        let (board, boards) = counted(store.store.push_board(None)).await;
        assert!(board.iter().all(|entry| entry.due) && boards == 1, "{name}: {boards}");
        let record = RecordPush { subscription, attempts: Vec::new(), counted: Sent::default(), now: None };
        let (_, records) = counted(store.store.record_push(record)).await;
        assert_eq!(records, 2, "{name}");
        store.settle_done(subscription, &store.claim(subscription, 9).await).await;
    }
    store.close().await;
}
