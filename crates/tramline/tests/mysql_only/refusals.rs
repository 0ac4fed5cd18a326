//! Servers that will not do any more: a fail-over, a restart with other settings.

use crate::bed::{claim, event, open};
use crate::own_server::OwnServer;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};
use std::time::{Duration, Instant};
use tramline::error::{Error, Kind};
use tramline::model::id::SubscriptionId;
use tramline::store::Store;
use tramline::store::mysql::MysqlStore;
use tramline::store::verbs::{Emission, Emit};

struct Bed {
    root: MySqlConnection,
    store: MysqlStore,
    _server: OwnServer,
}

impl Bed {
    async fn open() -> Bed {
        let server = OwnServer::start();
        let mut root = MySqlConnection::connect(&server.url("root", "mysql")).await.unwrap();
        let user = "CREATE DATABASE d; CREATE USER u@localhost; GRANT ALL ON d.* TO u@localhost";
        sqlx::raw_sql(user).execute(&mut root).await.unwrap();
        let store = open(&server.url("u", "d")).await.unwrap();
        Bed { root, store, _server: server }
    }

    async fn set(&mut self, setting: &str) {
        sqlx::raw_sql(AssertSqlSafe(format!("SET GLOBAL {setting}"))).execute(&mut self.root).await.unwrap();
    }

    async fn emit(&self) -> Result<Emission, Error> {
        let units = vec![vec![event("k")]];
        self.store.emit(Emit { units, now: None }).await?.pop().unwrap()
    }

    /// Ends all connections of the store, as a restart does.
    async fn cut(&mut self) {
        sqlx::raw_sql("KILL USER u").execute(&mut self.root).await.unwrap();
    }
}

/// The story: after a fail-over the store went on with a server that was no primary any more, and whose answer to all it wrote was an
/// error without a remedy; or with one whose settings it would never have begun with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_will_not_do_any_more_is_refused_until_it_does() {
    let mut bed = Bed::open().await;
    bed.emit().await.unwrap();
    let start = Instant::now();
    bed.set("read_only = 1").await;
    // The connection that is at hand, and then new ones.
    for _ in 0..3 {
        let error = bed.emit().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.remedy().contains("primary"), "{error}");
    }
    let error = bed.store.claim(claim(SubscriptionId(1), 9)).await.unwrap_err();
    assert!(error.message().contains("read_only is on"), "{error}");
    bed.set("read_only = 0").await;
    bed.emit().await.unwrap();
    bed.set("innodb_flush_log_at_trx_commit = 0").await;
    bed.emit().await.unwrap();
    bed.cut().await;
    // The connection that is gone, and then new ones.
    let error = match bed.emit().await.unwrap_err() {
        error if error.message().contains("innodb_flush_log_at_trx_commit") => error,
        _ => bed.emit().await.unwrap_err(),
    };
    assert_eq!((error.kind(), error.remedy()), (Kind::Unavailable, "set it to 1"));
    bed.set("innodb_flush_log_at_trx_commit = 1").await;
    bed.emit().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(8), "nobody waits until the pool gives up");
    bed.store.close().await;
}
