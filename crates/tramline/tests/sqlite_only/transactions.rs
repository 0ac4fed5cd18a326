//! Emit and settle in the caller's own transaction.

use crate::bed::{Private, done, event, ids};
use crate::support::{Disturbed, START, start};
use rusqlite::{Transaction, TransactionBehavior};
use std::sync::Arc;
use tokio::sync::mpsc;
use tramline::error::Kind;
use tramline::model::subscription::Ordering;
use tramline::model::tally::NewTally;
use tramline::store::Store;
use tramline::store::verbs_tally::{NameTally, OpenTally, SealTally};
use tramline::{Clock, Duplicates, ManualClock, NoHooks, Options, StoredEvent, Tramline, Unique};

fn begin(connection: &mut rusqlite::Connection) -> Transaction<'_> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap()
}

#[tokio::test]
async fn an_emit_in_the_callers_transaction_shares_its_fate() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    let mut mine = store.connection();
    mine.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)", []).unwrap();
    let tx = begin(&mut mine);
    tx.execute("INSERT INTO orders VALUES (1)", []).unwrap();
    store.emit_in(&tx, [event("k")]).unwrap();
    tx.rollback().unwrap();
    assert!(ids(&store.claim(queue.id, 9).await).is_empty());
    assert_eq!(store.head("t", "k").await.unwrap(), None);

    let tx = begin(&mut mine);
    tx.execute("INSERT INTO orders VALUES (1)", []).unwrap();
    let first = store.emit_in(&tx, [event("k"), event("k")]).unwrap();
    let second = store.emit_in(&tx, [event("k").idempotency_key("once")]).unwrap();
    let repeated = store.emit_in(&tx, [event("k").idempotency_key("once")]).unwrap();
    let other = store.emit_in(&tx, [event("l").idempotency_key("once")]).unwrap_err();
    tx.commit().unwrap();
    assert_eq!(other.kind(), Kind::Conflict);
    assert_eq!(first.events[1].prev, Some(first.events[0].id));
    assert_eq!(second.events[0].prev, Some(first.events[1].id));
    assert_eq!(first.wake, [queue.id]);
    assert!(repeated.repeated);
    assert_eq!(repeated.events, second.events);
    assert_eq!(ids(&store.claim(queue.id, 9).await).len(), 3);
    let orders: i64 = mine.query_row("SELECT count(*) FROM orders", [], |row| row.get(0)).unwrap();
    assert_eq!(orders, 1);
}

/// What the store remembers of its topics must not be what a transaction made that was never committed.
#[tokio::test]
async fn a_topic_of_the_callers_transaction_shares_its_fate() {
    let store = Private::open().await;
    let mut mine = store.connection();
    let tx = begin(&mut mine);
    let gone = store.emit_in(&tx, [event("k")]).unwrap();
    tx.rollback().unwrap();
    assert!(store.topics().await.unwrap().is_empty());
    let queue = store.subscribe("q", Ordering::Key).await;
    let stored = store.emit(event("k")).await.unwrap();
    assert_eq!((gone.events[0].prev, stored.events[0].prev), (None, None));
    assert_eq!(ids(&store.claim(queue.id, 9).await), [stored.events[0].id]);
}

#[tokio::test]
async fn a_unique_event_in_the_callers_transaction_shares_its_fate() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await;
    let unique = |policy| event("k").unique(Unique::new("u").duplicates(policy));
    let mut mine = store.connection();
    let tx = begin(&mut mine);
    store.emit_in(&tx, [unique(Duplicates::Keep)]).unwrap();
    assert!(store.emit_in(&tx, [unique(Duplicates::Keep)]).unwrap().events[0].duplicate);
    tx.rollback().unwrap();

    let first = store.emit(unique(Duplicates::Keep)).await.unwrap().events[0].clone();
    assert!(!first.duplicate);
    let tx = begin(&mut mine);
    store.emit_in(&tx, [unique(Duplicates::Replace)]).unwrap();
    tx.rollback().unwrap();
    assert_eq!(ids(&store.claim(queue.id, 9).await), [first.id], "it gave way to nothing");
}

#[tokio::test]
async fn a_settle_in_the_callers_transaction_shares_its_fate() {
    for ordering in [Ordering::None, Ordering::Key] {
        let store = Private::open().await;
        let queue = store.subscribe("q", ordering).await;
        store.emit(event("k")).await.unwrap();
        let claimed = store.claim(queue.id, 9).await;
        let mut mine = store.connection();
        let tx = begin(&mut mine);
        assert_eq!(store.settle_in(&tx, &done(queue.id, &claimed)).unwrap().accepted, [[true]]);
        tx.rollback().unwrap();
        assert_eq!(store.stats(queue.id, None).await.unwrap().counts.leased, 1);
        let tx = begin(&mut mine);
        store.settle_in(&tx, &done(queue.id, &claimed)).unwrap();
        tx.commit().unwrap();
        assert_eq!(store.stats(queue.id, None).await.unwrap().counts.pending(), 0);
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
    let mut mine = store.connection();
    let tx = begin(&mut mine);
    store.emit_in(&tx, [event("k").tally(tally)]).unwrap();
    tx.rollback().unwrap();
    assert_eq!(counts().await, (0, 0));
    let tx = begin(&mut mine);
    store.emit_in(&tx, [event("k").tally(tally)]).unwrap();
    tx.commit().unwrap();
    let seal = SealTally { tally, expected: Some(1), by: 1, now: None };
    store.seal_tally(seal).await.unwrap();
    let claimed = store.claim(queue.id, 9).await;
    let tx = begin(&mut mine);
    store.settle_in(&tx, &done(queue.id, &claimed)).unwrap();
    tx.rollback().unwrap();
    assert_eq!(counts().await, (1, 0));
    let tx = begin(&mut mine);
    assert_eq!(store.settle_in(&tx, &done(queue.id, &claimed)).unwrap().news, [tally]);
    tx.commit().unwrap();
    assert_eq!(counts().await, (1, 1));
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
    let mut mine = store.connection();
    let mut woken = 0;
    for _ in 0..20 {
        counted.left_alone().await;
        let looked = counted.calls("claim");
        let tx = begin(&mut mine);
        let receipt = tram.receipt(store.emit_in(&tx, [event("k")]).unwrap());
        tx.commit().unwrap();
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
}
