//! Steps that the server undoes because others are in their way: they are repeated, and nobody notices.

use crate::bed::{Private, done, event, ids, open};
use crate::own_server::OwnServer;
use crate::tracked::Tracked;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::verbs::Emit;

const DEADLOCK: u64 = 1213;
const RECORD_CHANGED: u64 = 1020;
/// How often a collision is tried to be made: a step that waited for its second gives up by itself, on a machine that is very busy.
const TRIES: u32 = 20;

/// Somebody else's transaction, heavy enough for the server to undo the other one of two.
async fn heavy(store: &Private) -> MySqlConnection {
    let mut other = MySqlConnection::connect(&store.url).await.unwrap();
    let sql = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
               CREATE TABLE IF NOT EXISTS ballast (n BIGINT PRIMARY KEY); START TRANSACTION; \
               INSERT INTO ballast SELECT seq FROM seq_1_to_10000";
    sqlx::raw_sql(sql).execute(&mut other).await.unwrap();
    other
}

async fn run(conn: &mut MySqlConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(conn).await.unwrap();
}

/// Waits until a statement of the store waits for a lock. Not by `innodb_trx`: the server does not look again as long as somebody keeps
/// asking.
async fn somebody_waits(store: &Private) {
    let waits = async || {
        let ours = store.rows("SELECT id FROM information_schema.processlist WHERE db = DATABASE()").await;
        let ours: Vec<String> =
            ours.iter().map(|row| format!("thread id {},", row.get::<i64, _>(0))).collect();
        let status: String = store.rows("SHOW ENGINE INNODB STATUS").await[0].try_get_unchecked(2).unwrap();
        let mut transactions = status.split("---TRANSACTION").filter(|one| one.contains("LOCK WAIT"));
        transactions.any(|one| ours.iter().any(|id| one.contains(id)))
    };
    let start = Instant::now();
    while !waits().await {
        assert!(start.elapsed() < Duration::from_secs(20), "nobody waits");
    }
}

/// The settlement has the first row and waits for the second one, whose owner then wants the first.
#[tokio::test]
async fn a_settlement_that_is_undone_in_a_deadlock_is_repeated() {
    let tracked = Tracked::on_this_thread();
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    for _ in 0..TRIES {
        store.emit(event("a")).await.unwrap();
        store.emit(event("b")).await.unwrap();
        let claimed = store.claim(queue.id, 9).await;
        let mut chunks: Vec<i64> = ids(&claimed).iter().map(|id| id.chunk().0).collect();
        chunks.sort_unstable();
        let lock = |chunk: i64| format!("SELECT id FROM tramline_slice WHERE chunk = {chunk} FOR UPDATE");
        let mut other = heavy(&store).await;
        run(&mut other, &lock(chunks[1])).await;
        let settling = tokio::spawn({
            let (store, settle) = (store.store.clone(), done(queue.id, &claimed));
            async move { store.settle(settle).await }
        });
        somebody_waits(&store).await;
        run(&mut other, &lock(chunks[0])).await;
        run(&mut other, "ROLLBACK").await;
        let settled = settling.await.unwrap().unwrap();
        assert_eq!(settled.accepted, [[true], [true]]);
        assert_eq!(store.stats(queue.id, None).await.unwrap().counts.pending(), 0);
        assert_eq!(
            store.settle_done(queue.id, &claimed).await.accepted,
            [[false], [false]],
            "it was settled"
        );
        if tracked.retried().contains(&DEADLOCK) {
            return store.close().await;
        }
    }
    panic!("there was no deadlock: {:?}", tracked.retried());
}

/// The emit has the first key and waits for the second one, whose owner then wants the first.
#[tokio::test]
async fn an_emit_that_is_undone_in_a_deadlock_is_stored_once() {
    let tracked = Tracked::on_this_thread();
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    let topic = store.topics().await.unwrap()[0].id.0;
    let lock = |key: &str| {
        format!("SELECT last_id FROM tramline_head WHERE topic = {topic} AND `key` = '{key}' FOR UPDATE")
    };
    for _ in 0..TRIES {
        store.emit(event("a")).await.unwrap();
        store.emit(event("b")).await.unwrap();
        store.settle_done(queue.id, &store.claim(queue.id, 9).await).await;
        let mut other = heavy(&store).await;
        run(&mut other, &lock("b")).await;
        let emitting = tokio::spawn({
            let store = store.store.clone();
            let units = vec![vec![event("a"), event("b")]];
            async move { store.emit(Emit { units, now: None }).await }
        });
        somebody_waits(&store).await;
        run(&mut other, &lock("a")).await;
        run(&mut other, "ROLLBACK").await;
        let emission = emitting.await.unwrap().unwrap().pop().unwrap().unwrap();
        let stored = store.claim(queue.id, 9).await;
        let given: Vec<_> = emission.events.iter().map(|event| event.id).collect();
        assert_eq!(ids(&stored), given, "stored once");
        store.settle_done(queue.id, &stored).await;
        if tracked.retried().contains(&DEADLOCK) {
            return store.close().await;
        }
    }
    panic!("there was no deadlock: {:?}", tracked.retried());
}

/// Newer servers of MariaDB refuse to lock a row that changed after the statement began to look. Here the emit finds the open side of
/// its topic, waits for it, and finds it changed.
#[tokio::test]
async fn an_emit_that_meets_a_changed_row_is_stored_once() {
    let tracked = Tracked::on_this_thread();
    let server = OwnServer::start();
    let mut root = MySqlConnection::connect(&server.url("root", "mysql")).await.unwrap();
    run(&mut root, "SET GLOBAL innodb_snapshot_isolation = ON; CREATE DATABASE d").await;
    let url = server.url("root", "d");
    let store = Private { store: Arc::new(open(&url).await.unwrap()), url };
    let queue = store.subscribe("q", Ordering::None).await;
    for _ in 0..TRIES {
        let mut other = MySqlConnection::connect(&store.url).await.unwrap();
        let change =
            "START TRANSACTION; UPDATE tramline_gate SET `open` = 1 - `open` WHERE kind = 0 AND side < 2";
        run(&mut other, change).await;
        let emitting = tokio::spawn({
            let store = store.store.clone();
            let units = vec![vec![event("k")]];
            async move { store.emit(Emit { units, now: None }).await }
        });
        somebody_waits(&store).await;
        run(&mut other, "COMMIT").await;
        let emission = emitting.await.unwrap().unwrap().pop().unwrap().unwrap();
        let stored = store.claim(queue.id, 9).await;
        assert_eq!(ids(&stored), [emission.events[0].id], "stored once");
        store.settle_done(queue.id, &stored).await;
        if tracked.retried().contains(&RECORD_CHANGED) {
            return store.store.close().await;
        }
    }
    panic!("no row had changed: {:?}", tracked.retried());
}

/// The same servers undo the whole transaction when a statement looks at a row, waits for it and finds it changed. A transaction of the
/// caller cannot be repeated: its handler would have failed because its lease was being extended.
#[tokio::test]
async fn a_settlement_in_the_callers_transaction_bears_an_extension_beside_it() {
    let server = OwnServer::start();
    let mut root = MySqlConnection::connect(&server.url("root", "mysql")).await.unwrap();
    run(&mut root, "SET GLOBAL innodb_snapshot_isolation = ON; CREATE DATABASE d").await;
    let url = server.url("root", "d");
    let store = Private { store: Arc::new(open(&url).await.unwrap()), url };
    let queue = store.subscribe("q", Ordering::None).await;
    store.emit(event("k")).await.unwrap();
    let claimed = store.claim(queue.id, 1).await;
    let mut other = MySqlConnection::connect(&store.url).await.unwrap();
    run(&mut other, "START TRANSACTION; UPDATE tramline_slice SET due_at = due_at + 1000 WHERE state = 1")
        .await;
    let mut tx = store.store.pool().begin().await.unwrap();
    let settle = done(queue.id, &claimed);
    let (settled, ()) = tokio::join!(store.store.settle_in(&mut tx, settle), async {
        somebody_waits(&store).await;
        run(&mut other, "COMMIT").await;
    });
    assert_eq!(settled.unwrap().accepted, [[true]]);
    tx.commit().await.unwrap();
    store.store.close().await;
}
