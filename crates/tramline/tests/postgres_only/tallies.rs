//! Tallies: repeated while they commit, and in place.

use crate::bed::{Private, server};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use tramline::model::tally::{Ack, Ending, NewTally};
use tramline::store::Store;
use tramline::store::verbs_tally::{AckItems, AddItems, OpenTally, SealTally};

/// The answer of an ack was lost while the server was still committing it, and the ack was repeated: the repetition had looked at
/// the tally before it waited for the part, so that neither call was told that it had completed the tally.
#[tokio::test]
async fn an_ack_that_meets_itself_is_told_that_it_completed() {
    let store = Private::open().await;
    let tally = store.open_tally(OpenTally { tally: NewTally::new(), now: None }).await.unwrap().id;
    store.add_items(AddItems { tally, count: 2, within: None, token: None, now: None }).await.unwrap();
    store.seal_tally(SealTally { tally, expected: None, by: 1, now: None }).await.unwrap();
    let ack = |item: u64, by| {
        let store = store.store.clone();
        let acks = vec![Ack { tally, items: vec![item.into()], ending: Ending::Done }];
        async move { store.ack_items(AckItems { acks, by, now: None }).await.unwrap().completed.len() }
    };
    assert_eq!(ack(0, 4).await, 0);
    let mut blocker = PgConnection::connect(&server()).await.unwrap();
    let mut tx = blocker.begin().await.unwrap();
    let lock = format!("SELECT 1 FROM {}.tramline_tally_part FOR UPDATE", store.schema);
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *tx).await.unwrap();
    let both = [tokio::spawn(ack(1, 5)), tokio::spawn(ack(1, 5))];
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%$s%'";
    while store.rows(waiting).await[0].get::<i64, _>(0) < 2 {}
    tx.rollback().await.unwrap();
    for told in both {
        assert_eq!(told.await.unwrap(), 1);
    }
    store.close().await;
}

/// Acks update a part in place, without an entry in any index: else every ack would leave garbage in two of them.
#[tokio::test]
async fn acks_update_parts_in_place() {
    let store = Private::open().await;
    let tally = store.open_tally(OpenTally { tally: NewTally::new(), now: None }).await.unwrap().id;
    store.add_items(AddItems { tally, count: 4096, within: None, token: None, now: None }).await.unwrap();
    for item in 0..40u64 {
        let acks = vec![Ack { tally, items: vec![(item * 100).into()], ending: Ending::Done }];
        store.ack_items(AckItems { acks, by: 1, now: None }).await.unwrap();
    }
    // A server counts what a connection did for certain once it has ended.
    let sql = "SELECT coalesce(sum(n_tup_upd - n_tup_hot_upd), 0)::bigint, coalesce(sum(n_tup_upd), 0)::bigint \
               FROM pg_stat_user_tables WHERE schemaname = '$s' AND relname = 'tramline_tally_part'";
    store.store.close().await;
    let mut counted = (0i64, 0i64);
    for _ in 0..1000 {
        let row = store.rows(sql).await.remove(0);
        counted = (row.try_get(0).unwrap(), row.try_get(1).unwrap());
        if counted.1 == 40 {
            break;
        }
    }
    // Now and then a page is full.
    assert!(counted.1 == 40 && counted.0 <= 4, "{counted:?}");
    store.close().await;
}
