//! How the store is opened: schemas, migrations, poolers.

use crate::bed::{Private, environment, event, ids, open, read_log, server};
use sqlx::Row;
use std::collections::HashSet;
use std::sync::Arc;
use tramline::error::Kind;
use tramline::model::id::{EventId, Incarnation};
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::postgres::PostgresStore;
use tramline::store::verbs::{Emit, Extend, Extended, PutTopic};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_stores_opened_at_once_migrate_safely() {
    open_ten(&server(), "").await;
}

/// A question outside of a transaction has its two halves on different connections when many ask at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_stores_opened_at_once_behind_a_pooler_migrate_safely() {
    open_ten(&environment("TRAMLINE_TEST_PGBOUNCER"), "&pooled=true").await;
}

async fn open_ten(server: &str, more: &str) {
    let schema = format!("only_{:x}", Incarnation::random().0);
    let url = format!("{server}?schema={schema}&max_connections=2{more}");
    let opening: Vec<_> = (0..10)
        .map(|_| {
            tokio::spawn({
                let url = url.clone();
                async move { open(&url).await }
            })
        })
        .collect();
    let mut stores = Vec::new();
    for store in opening {
        stores.push(store.await.unwrap().unwrap());
    }
    for (n, store) in stores.iter().enumerate() {
        let put = PutTopic { name: format!("t{n}"), settings: Default::default(), now: None };
        store.put_topic(put).await.unwrap();
    }
    assert_eq!(stores[0].topics().await.unwrap().len(), 10);
    for store in &stores[1..] {
        store.close().await;
    }
    Private { store: Arc::new(stores.remove(0)), schema, url }.close().await;
}

#[tokio::test]
async fn everything_is_in_the_schema_that_the_url_names() {
    let store = Private::open().await;
    store.emit(event("k")).await.unwrap();
    let sql = "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
               WHERE n.nspname = '$s' AND c.relkind = 'r' AND c.relname LIKE 'tramline%'";
    let tables = PostgresStore::migrations(None).matches("CREATE TABLE").count();
    assert_eq!(store.rows(sql).await[0].get::<i64, _>(0), tables as i64);
    assert_eq!(store.wake_channel(), format!("{}.tramline_wake", store.schema));
    store.close().await;
}

#[tokio::test]
async fn the_printed_migrations_are_those_that_run() {
    let printed = PostgresStore::migrations(Some("elsewhere"));
    assert!(printed.contains("CREATE TABLE elsewhere.tramline_slice"), "{printed}");
    assert!(printed.contains("CREATE INDEX tramline_slice_claim ON elsewhere.tramline_slice"), "{printed}");
    let store = Private::open().await;
    store.rows("DROP SCHEMA $s CASCADE").await;
    store.rows(&PostgresStore::migrations(Some(&store.schema))).await;
    let again = open(&format!("{}?schema={}", server(), store.schema)).await.unwrap();
    assert!(again.topics().await.unwrap().is_empty());
    again.close().await;
    store.close().await;
}

#[tokio::test]
async fn a_database_that_other_migrations_made_is_refused() {
    let store = Private::open().await;
    store.rows("UPDATE $s.tramline_migration SET checksum = checksum + 1 WHERE version = 2").await;
    assert_eq!(open(&store.url).await.unwrap_err().kind(), Kind::Conflict);
    store.close().await;
}

/// The pooler gives every transaction another connection and knows nothing of prepared statements.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_works_behind_a_pooler() {
    let store =
        Private::open_at(&environment("TRAMLINE_TEST_PGBOUNCER"), "&pooled=true&max_connections=8").await;
    let plain = store.subscribe("plain", Ordering::None).await;
    let ordered = store.subscribe("ordered", Ordering::Key).await;
    let emits: Vec<_> = (0..40)
        .map(|n| {
            let store = store.store.clone();
            tokio::spawn(async move {
                let event = event(&format!("k{}", n % 5)).idempotency_key(format!("i{}", n % 20));
                let units = vec![vec![event], vec![self::event("another")]];
                store
                    .emit(Emit { units, now: None })
                    .await
                    .unwrap()
                    .into_iter()
                    .for_each(|answer| drop(answer.unwrap()));
            })
        })
        .collect();
    for emit in emits {
        emit.await.unwrap();
    }
    for id in [plain.id, ordered.id] {
        let mut seen = HashSet::new();
        loop {
            let claimed = store.claim(id, 7).await;
            if claimed.slices.is_empty() {
                break;
            }
            let extend = Extend {
                subscription: id,
                leases: claimed.slices.iter().map(|slice| slice.lease).collect(),
                lease: None,
                now: None,
            };
            let extended = store.extend(extend).await.unwrap();
            assert!(extended.iter().all(|answer| matches!(answer, Extended::Until(_))), "{extended:?}");
            seen.extend(ids(&claimed));
            store.settle_done(id, &claimed).await;
        }
        assert_eq!(seen.len(), 60);
    }
    assert_eq!(store.read_log(read_log(EventId(0))).await.unwrap().events.len(), 60);
    store.close().await;
}
