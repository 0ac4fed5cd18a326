//! How the store is opened: migrations, servers that will not do, sessions that will not do.

use crate::bed::{Private, database, event, open, server};
use sqlx::{Connection, Row};
use std::sync::Arc;
use tramline::error::Kind;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::mysql::MysqlStore;
use tramline::store::verbs::PutTopic;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_stores_opened_at_once_migrate_safely() {
    let url = format!("{}?max_connections=2", database().await);
    let opening: Vec<_> = (0..10)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move { open(&url).await })
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
    Private { store: Arc::new(stores.remove(0)), url }.close().await;
}

/// The server commits each change of a table by itself, so a crash may leave a migration half done.
#[tokio::test]
async fn a_migration_that_was_left_half_done_is_done_again() {
    let url = database().await;
    let mut connection = sqlx::MySqlConnection::connect(&url).await.unwrap();
    let all = MysqlStore::migrations();
    let half: String = all.split_inclusive(";\n").take(4).collect();
    sqlx::raw_sql(sqlx::AssertSqlSafe(half)).execute(&mut connection).await.unwrap();
    let store = Private { store: Arc::new(open(&url).await.unwrap()), url };
    store.emit(event("k")).await.unwrap();
    // By hand, and again.
    sqlx::raw_sql(sqlx::AssertSqlSafe(all)).execute(&mut connection).await.unwrap();
    assert_eq!(store.subscribe("q", Ordering::None).await.topics.len(), 1);
    store.close().await;
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused() {
    let store = Private::open().await;
    store.rows("INSERT INTO tramline_migration VALUES (999, 0)").await;
    assert_eq!(open(&store.url).await.unwrap_err().kind(), Kind::Conflict);
    store.close().await;
}

#[tokio::test]
async fn a_database_that_other_migrations_made_is_refused() {
    let store = Private::open().await;
    store.rows("UPDATE tramline_migration SET checksum = checksum + 1 WHERE version = 2").await;
    assert_eq!(open(&store.url).await.unwrap_err().kind(), Kind::Conflict);
    store.close().await;
}

#[tokio::test]
async fn what_cannot_be_reached_or_does_not_exist_says_so_at_once() {
    for url in [format!("{}/there_is_none", server()), "mysql://root@127.0.0.1:1/x".to_owned()] {
        let error = open(&url).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(!error.remedy().is_empty());
    }
}

/// Whatever a server is set to, the store's own connections are set up as it needs them.
#[tokio::test]
async fn the_defaults_of_a_server_do_not_matter() {
    let url = database().await;
    let name = url.rsplit('/').next().unwrap().to_owned();
    let mut root = sqlx::MySqlConnection::connect(&url).await.unwrap();
    let user = format!("CREATE USER {name}@'127.0.0.1'; GRANT ALL ON {name}.* TO {name}@'127.0.0.1'");
    sqlx::raw_sql(sqlx::AssertSqlSafe(user)).execute(&mut root).await.unwrap();
    let store = open(&url.replace("root@", &format!("{name}@"))).await.unwrap();
    let mut connection = store.pool().acquire().await.unwrap();
    let sql = "SELECT @@sql_mode, @@sql_safe_updates, @@innodb_lock_wait_timeout, @@time_zone, @@autocommit";
    let row = sqlx::query(sql).fetch_one(&mut *connection).await.unwrap();
    let mode: String = row.try_get_unchecked(0).unwrap();
    assert!(mode.contains("STRICT_ALL_TABLES") && !mode.contains("ANSI_QUOTES"), "{mode}");
    assert_eq!(row.try_get_unchecked::<String, _>(3).unwrap(), "+00:00");
    let isolation = "SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')";
    let row = sqlx::query(isolation).fetch_one(&mut *connection).await.unwrap();
    assert_eq!(row.try_get_unchecked::<String, _>(1).unwrap(), "READ-COMMITTED");
    drop(connection);
    let store = Private { store: Arc::new(store), url };
    store.subscribe("q", Ordering::Key).await;
    store.emit(event("k")).await.unwrap();
    let drop_user = format!("DROP USER {name}@'127.0.0.1'");
    store.close().await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(drop_user)).execute(&mut root).await.unwrap();
}

/// In REPEATABLE READ, the default of both servers, a step would decide by what is no longer so.
#[tokio::test]
async fn a_transaction_that_looks_at_the_past_is_refused() {
    let store = Private::open().await;
    store.subscribe("q", Ordering::None).await;
    let mut connection = sqlx::MySqlConnection::connect(&store.url).await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    let error = store.emit_in(&mut tx, [event("k")]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.remedy().contains("READ COMMITTED"), "{}", error.remedy());
    tx.rollback().await.unwrap();
    let set = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
    sqlx::raw_sql(set).execute(&mut connection).await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    store.emit_in(&mut tx, [event("k")]).await.unwrap();
    tx.commit().await.unwrap();
    store.close().await;
}
