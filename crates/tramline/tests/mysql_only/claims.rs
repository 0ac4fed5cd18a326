//! What a claim reads, and which keys are the same.

use crate::bed::{Private, done, event, ids};
use sqlx::Row;
use std::collections::HashSet;
use std::time::Duration;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::verbs::Emit;

/// A busy queue has far more that is not due than what is, and must not read it.
#[tokio::test]
async fn a_claim_reads_only_what_is_due_in_the_order_of_the_index() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    store.emit(event("k")).await.unwrap();
    let id = queue.id.0;
    let later = "CAST(UNIX_TIMESTAMP() AS SIGNED) * 1000 + 100000000 + n";
    let numbers =
        "WITH RECURSIVE numbers AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM numbers WHERE n < 900)";
    for rank in 0..10 {
        store
            .rows(&format!(
                "INSERT INTO tramline_slice (chunk, id, subscription, state, lane, `rank`, pos, mask, due_at, bytes) \
                 {numbers} SELECT 1000 + n, {rank}, {id}, 0, 0, {rank}, {later}, 1, {later}, 100 FROM numbers"
            ))
            .await;
    }
    store.rows("ANALYZE TABLE tramline_slice").await;
    let sql = store.claim_sql(queue.id).replace("@tramline_now", "CAST(UNIX_TIMESTAMP() AS SIGNED) * 1000");
    let plan = store.rows(&format!("EXPLAIN FORMAT = TRADITIONAL {sql}")).await;
    let column =
        |name: &str| plan[0].try_get_unchecked::<Option<String>, _>(name).unwrap().unwrap_or_default();
    assert_eq!(plan.len(), 1);
    assert_eq!(column("type"), "range");
    assert_eq!(column("key"), "tramline_slice_claim");
    assert!(!column("Extra").contains("filesort"), "{}", column("Extra"));
    let read = store
        .rows(&format!(
            "FLUSH STATUS; SET @tramline_now = CAST(UNIX_TIMESTAMP() AS SIGNED) * 1000; {}; \
             SHOW SESSION STATUS LIKE 'Handler_read_next'",
            store.claim_sql(queue.id)
        ))
        .await;
    let next: String = read.last().unwrap().try_get_unchecked(1).unwrap();
    assert!(next.parse::<u64>().unwrap() < 30, "{next} rows were read to find one");
    store.close().await;
}

/// A statement that locks waits for every row that it reads, wanted or not. Of most lanes of a subscription, and of most keys of a topic,
/// the servers would rather read all of them: steps on different lanes and keys waited for each other, and met in deadlocks.
#[tokio::test]
async fn who_locks_some_lanes_or_keys_waits_for_no_others() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await;
    for n in 0..100 {
        store.emit(event(&format!("k{n}"))).await.unwrap();
    }
    let first = store.claim(queue.id, 3).await;
    let rest = store.claim(queue.id, 1000).await;
    assert!(ids(&first).len() == 3 && ids(&rest).len() > 60, "another worker has most lanes");
    let mut tx = store.store.pool().begin().await.unwrap();
    store.settle_in(&mut tx, done(queue.id, &first)).await.unwrap();
    store.emit_in(&mut tx, [event("k7")]).await.unwrap();
    let start = std::time::Instant::now();
    let settled = store.store.settle(done(queue.id, &rest)).await.unwrap();
    assert!(settled.accepted.iter().flatten().all(|accepted| *accepted));
    let units = (0..100).filter(|n| *n != 7).map(|n| vec![event(&format!("k{n}"))]).collect();
    for answer in store.store.emit(Emit { units, now: None }).await.unwrap() {
        answer.unwrap();
    }
    // Who waits does so for a second at least.
    assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
    tx.rollback().await.unwrap();
    store.close().await;
}

/// Every collation that both servers know takes these for one key.
#[tokio::test]
async fn keys_that_differ_in_a_space_or_a_case_are_different() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await;
    let keys = ["a", "a ", "A", "\u{e4}", "a\u{308}", "ae"];
    for key in keys {
        assert_eq!(store.emit(event(key)).await.unwrap().events[0].prev, None, "{key:?}");
    }
    for key in keys {
        assert!(store.emit(event(key)).await.unwrap().events[0].prev.is_some());
        let once = event(key).idempotency_key(key);
        assert!(!store.emit(once).await.unwrap().repeated, "{key:?}");
    }
    let claimed: HashSet<_> = ids(&store.claim(queue.id, 99).await).into_iter().collect();
    assert_eq!(claimed.len(), 3 * keys.len());
    assert_eq!(store.head("t", "a  ").await.unwrap(), None);
    store.close().await;
}
