//! The words in which the tests are written: a store in a database of its own.

pub(crate) use crate::words::{claim, done, environment, event, ids, read_log};
use sqlx::mysql::{MySqlPool, MySqlPoolOptions, MySqlRow};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};
use std::ops::Deref;
use std::sync::Arc;
use tramline::model::id::{Incarnation, SubscriptionId};
use tramline::model::subscription::{Ordering, Policy, Start, Subscription};
use tramline::store::Store;
use tramline::store::mysql::MysqlStore;
use tramline::store::verbs::{Claimed, Emission, Emit, Expected, PutSubscription, Settled};
use tramline::{Event, Result};

pub(crate) fn server() -> String {
    environment("TRAMLINE_TEST_MYSQL")
}

/// A statement that makes the server count a transaction.
pub(crate) const WRITES_SOMETHING: &str = "UPDATE tramline_migration SET version = version";

/// A store in a database of its own, which is gone after [`Private::close`].
pub(crate) struct Private {
    pub(crate) store: Arc<MysqlStore>,
    pub(crate) url: String,
}

impl Deref for Private {
    type Target = MysqlStore;

    fn deref(&self) -> &MysqlStore {
        &self.store
    }
}

impl Private {
    pub(crate) async fn open() -> Private {
        Private::open_with("").await
    }

    pub(crate) async fn open_with(parameters: &str) -> Private {
        let url = format!("{}{parameters}", database().await);
        Private { store: Arc::new(open(&url).await.unwrap()), url }
    }

    /// SQL of this test's own.
    pub(crate) async fn rows(&self, sql: &str) -> Vec<MySqlRow> {
        let mut connection = MySqlConnection::connect(&self.url).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_all(&mut connection).await.unwrap()
    }

    /// Connections of a caller, set up as the store demands.
    pub(crate) async fn pool(&self) -> MySqlPool {
        let pool = MySqlPoolOptions::new().after_connect(|connection, _| {
            Box::pin(async move {
                let sql = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
                sqlx::raw_sql(sql).execute(connection).await.map(|_| ())
            })
        });
        pool.connect(&self.url).await.unwrap()
    }

    pub(crate) async fn subscribe(&self, name: &str, ordering: Ordering) -> Subscription {
        let policy = Policy { ordering, ..Policy::default() };
        let topics = vec!["t".to_owned()];
        let put = PutSubscription {
            name: name.into(),
            topics,
            policy,
            start: Start::Beginning,
            expected: Expected::Anything,
            now: None,
        };
        self.store.put_subscription(put).await.unwrap()
    }

    pub(crate) async fn emit(&self, event: Event) -> Result<Emission> {
        let mut answers = self.store.emit(Emit { units: vec![vec![event]], now: None }).await?;
        answers.pop().unwrap()
    }

    pub(crate) async fn claim(&self, id: SubscriptionId, max_events: u32) -> Claimed {
        self.store.claim(claim(id, max_events)).await.unwrap()
    }

    pub(crate) async fn settle_done(&self, id: SubscriptionId, claimed: &Claimed) -> Settled {
        self.store.settle(done(id, claimed)).await.unwrap()
    }

    pub(crate) async fn close(self) {
        self.store.close().await;
        let name = self.url.split(['/', '?']).nth(3).unwrap();
        self.rows(&format!("DROP DATABASE {name}")).await;
    }
}

/// The URL of a new database.
pub(crate) async fn database() -> String {
    let name = format!("only_{:x}", Incarnation::random().0);
    let mut connection = MySqlConnection::connect(&server()).await.unwrap();
    let sql = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    format!("{}/{name}", server())
}

pub(crate) async fn open(url: &str) -> Result<MysqlStore> {
    MysqlStore::open(url.parse()?).await
}
