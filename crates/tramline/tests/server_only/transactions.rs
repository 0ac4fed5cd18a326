//! Emit and settle in the caller's own transaction; on every server.

use crate::bed::{Private, WRITES_SOMETHING, done, event, ids, read_log};
use crate::support::{Disturbed, START, start};
use std::sync::Arc;
use tokio::sync::mpsc;
use tramline::error::Kind;
use tramline::model::id::EventId;
use tramline::model::subscription::{Ordering, Policy, Start};
use tramline::model::tally::NewTally;
use tramline::store::Store;
use tramline::store::verbs::{Expected, PutSubscription};
use tramline::store::verbs_tally::{NameTally, OpenTally, SealTally};
use tramline::{Clock, Duplicates, ManualClock, NoHooks, Options, StoredEvent, Tramline, Unique};

#[tokio::test]
async fn an_emit_in_the_callers_transaction_shares_its_fate() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    store.emit_in(&mut tx, [event("k")]).await.unwrap();
    assert!(ids(&store.claim(queue.id, 9).await).is_empty(), "not committed yet");
    tx.rollback().await.unwrap();
    assert!(ids(&store.claim(queue.id, 9).await).is_empty());
    assert_eq!(store.head("t", "k").await.unwrap(), None);

    let mut tx = pool.begin().await.unwrap();
    let first = store.emit_in(&mut tx, [event("k"), event("k")]).await.unwrap();
    let second = store.emit_in(&mut tx, [event("k").idempotency_key("once")]).await.unwrap();
    let repeated = store.emit_in(&mut tx, [event("k").idempotency_key("once")]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(first.events[1].prev, Some(first.events[0].id));
    assert_eq!(second.events[0].prev, Some(first.events[1].id));
    assert_eq!(first.wake, [queue.id]);
    assert!(repeated.repeated);
    assert_eq!(repeated.events, second.events);
    assert_eq!(ids(&store.claim(queue.id, 9).await).len(), 3);
    store.close().await;
}

#[tokio::test]
async fn a_unique_event_in_the_callers_transaction_shares_its_fate() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await;
    let pool = store.pool().await;
    let unique = |policy| event("k").unique(Unique::new("u").duplicates(policy));
    let mut tx = pool.begin().await.unwrap();
    store.emit_in(&mut tx, [unique(Duplicates::Keep)]).await.unwrap();
    assert!(store.emit_in(&mut tx, [unique(Duplicates::Keep)]).await.unwrap().events[0].duplicate);
    tx.rollback().await.unwrap();

    let first = store.emit(unique(Duplicates::Keep)).await.unwrap().events[0].clone();
    assert!(!first.duplicate);
    let mut tx = pool.begin().await.unwrap();
    store.emit_in(&mut tx, [unique(Duplicates::Replace)]).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(ids(&store.claim(queue.id, 9).await), [first.id], "it gave way to nothing");
    store.close().await;
}

/// Whoever emits the same unique key waits for the open transaction, and then sees what became of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unique_key_waits_for_the_transaction_that_has_it() {
    let store = std::sync::Arc::new(Private::open().await);
    let queue = store.subscribe("q", Ordering::None).await;
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    let first = store.emit_in(&mut tx, [event("a").unique("u")]).await.unwrap();
    let second = tokio::spawn({
        let store = store.clone();
        async move { store.emit(event("b").unique("u")).await.unwrap() }
    });
    let other = store.emit(event("c").unique("v")).await.unwrap();
    assert!(!other.events[0].duplicate, "other unique keys do not wait");
    tx.commit().await.unwrap();
    let second = second.await.unwrap();
    assert_eq!((second.events[0].duplicate, second.events[0].id), (true, first.events[0].id));
    assert_eq!(ids(&store.claim(queue.id, 9).await).len(), 2);
    std::sync::Arc::into_inner(store).unwrap().close().await;
}

#[tokio::test]
async fn a_settle_in_the_callers_transaction_shares_its_fate() {
    for ordering in [Ordering::None, Ordering::Key] {
        let store = Private::open().await;
        let queue = store.subscribe("q", ordering).await;
        store.emit(event("k")).await.unwrap();
        let claimed = store.claim(queue.id, 9).await;
        let pool = store.pool().await;
        let mut tx = pool.begin().await.unwrap();
        let settled = store.settle_in(&mut tx, done(queue.id, &claimed)).await.unwrap();
        assert_eq!(settled.accepted, [[true]]);
        tx.rollback().await.unwrap();
        assert_eq!(store.stats(queue.id, None).await.unwrap().counts.leased, 1);
        let mut tx = pool.begin().await.unwrap();
        store.settle_in(&mut tx, done(queue.id, &claimed)).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(store.stats(queue.id, None).await.unwrap().counts.pending(), 0);
        store.close().await;
    }
}

#[tokio::test]
async fn items_of_a_tally_share_the_fate_of_the_callers_transaction() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    let open = OpenTally { tally: NewTally::new(), now: None };
    let tally = store.open_tally(open).await.unwrap().id;
    let counts = async || {
        let tally = store.tally(NameTally { tally, now: None }).await.unwrap().unwrap();
        (tally.total, tally.done)
    };
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    store.emit_in(&mut tx, [event("k").tally(tally)]).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(counts().await, (0, 0));
    let mut tx = pool.begin().await.unwrap();
    store.emit_in(&mut tx, [event("k").tally(tally)]).await.unwrap();
    tx.commit().await.unwrap();
    let seal = SealTally { tally, expected: Some(1), by: 1, now: None };
    store.seal_tally(seal).await.unwrap();
    let claimed = store.claim(queue.id, 9).await;
    let mut tx = pool.begin().await.unwrap();
    store.settle_in(&mut tx, done(queue.id, &claimed)).await.unwrap();
    assert_eq!(counts().await, (1, 0), "not committed yet");
    tx.rollback().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let settled = store.settle_in(&mut tx, done(queue.id, &claimed)).await.unwrap();
    assert_eq!(settled.news, [tally]);
    tx.commit().await.unwrap();
    assert_eq!(counts().await, (1, 1));
    store.close().await;
}

/// New emits queue behind a change of subscriptions that waits for an open transaction, so the change must not wait long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_subscription_misses_nothing_that_an_open_transaction_emits() {
    let store = Private::open().await;
    store.subscribe("q", Ordering::None).await;
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    let open = store.emit_in(&mut tx, [event("k")]).await.unwrap().events[0].id;
    let late = tokio::spawn({
        let store = store.store.clone();
        let (policy, topics) = (Policy::default(), vec!["t".to_owned()]);
        let put = PutSubscription {
            name: "late".into(),
            topics,
            policy,
            start: Start::Beginning,
            expected: Expected::Anything,
            now: None,
        };
        async move { store.put_subscription(put).await.unwrap() }
    });
    let during = store.emit(event("other")).await.unwrap().events[0].id;
    tx.commit().await.unwrap();
    let late = late.await.unwrap();
    while store.backfill(late.id).await.unwrap() {}
    let mut seen = ids(&store.claim(late.id, 9).await);
    seen.sort();
    assert_eq!(seen, [open, during]);
    store.close().await;
}

/// Trap 7: numbers are drawn before they are committed.
#[tokio::test]
async fn the_log_stops_before_a_transaction_that_is_still_open() {
    let store = Private::open().await;
    let before = store.emit(event("a")).await.unwrap().events[0].id;
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    let open = store.emit_in(&mut tx, [event("b")]).await.unwrap().events[0].id;
    let after = store.emit(event("c")).await.unwrap().events[0].id;
    assert!(before < open && open < after);
    let end = store.log_end("t").await.unwrap_err();
    assert_eq!(end.kind(), Kind::Unavailable, "whoever began behind it would miss it: {end}");
    let page = store.read_log(read_log(EventId(0))).await.unwrap();
    assert!(page.next < open, "{} would never be read", open);
    assert!(page.events.iter().all(|event| event.id < open));
    // Somebody else's open transaction has nothing to do with it.
    let mut other = pool.begin().await.unwrap();
    sqlx::raw_sql(WRITES_SOMETHING).execute(&mut *other).await.unwrap();
    tx.commit().await.unwrap();
    let rest = store.read_log(read_log(page.next)).await.unwrap();
    let seen: Vec<EventId> = page.events.iter().chain(&rest.events).map(|event| event.id).collect();
    assert_eq!(seen, [before, open, after]);
    assert!(rest.next >= after);
    other.rollback().await.unwrap();
    store.close().await;
}

/// Time stands still, so that no slow poll can help.
#[tokio::test]
async fn a_receipt_wakes_a_worker_after_the_commit() {
    let store = Private::open().await;
    let counted = Arc::new(Disturbed::new(store.store.clone()));
    let options = Options::new("").clock(Clock::Manual(ManualClock::new(START))).hooks(Arc::new(NoHooks));
    let tram = Tramline::from_store(counted.clone(), options);
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = tram.worker("w").topics(["t"]).on_any(move |event: StoredEvent| {
        tell.send(event.id).unwrap();
        async {}
    });
    worker.subscribe().await.unwrap();
    let (shutdown, running) = start(worker);
    let pool = store.pool().await;
    let mut woken = 0;
    for _ in 0..20 {
        counted.left_alone().await;
        let looked = counted.calls("claim");
        let mut tx = pool.begin().await.unwrap();
        let receipt = tram.receipt(store.emit_in(&mut tx, [event("k")]).await.unwrap());
        tx.commit().await.unwrap();
        counted.left_alone().await;
        // A worker may look whenever it likes; if it just did, this time shows nothing.
        if counted.calls("claim") == looked {
            assert!(told.try_recv().is_err(), "nobody told it yet");
            woken += 1;
        }
        receipt.wake();
        assert_eq!(told.recv().await.unwrap(), receipt.id());
    }
    assert!(woken >= 3, "it looks all the time: {woken} of 20");
    shutdown.start();
    running.await.unwrap().unwrap();
    store.close().await;
}
