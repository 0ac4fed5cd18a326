//! Transactions that look at the past.

use crate::bed::{Private, event};
use tramline::error::Kind;
use tramline::model::subscription::Ordering;

/// A transaction with an old snapshot does not see a subscription that was added since. An emit in it would miss that
/// subscription, so it has to fail.
#[tokio::test]
async fn an_emit_that_looks_at_an_old_snapshot_fails_rather_than_miss_a_subscription() {
    let store = Private::open().await;
    store.subscribe("q", Ordering::None).await;
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .execute(&mut *tx)
        .await
        .unwrap();
    store.subscribe("late", Ordering::None).await;
    let error = store.emit_in(&mut tx, [event("k")]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    tx.rollback().await.unwrap();
    store.close().await;
}
