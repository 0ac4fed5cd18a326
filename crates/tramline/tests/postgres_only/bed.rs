//! The words in which the tests are written: a store in a schema of its own.

pub(crate) use crate::words::{claim, done, environment, event, ids, read_log};
use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use std::ops::Deref;
use std::sync::Arc;
use tramline::model::id::{Incarnation, SubscriptionId};
use tramline::model::subscription::{Ordering, Policy, Start, Subscription};
use tramline::store::Store;
use tramline::store::postgres::PostgresStore;
use tramline::store::verbs::{Claimed, Emission, Emit, Expected, PutSubscription, Settled};
use tramline::{Event, Result};

pub(crate) fn server() -> String {
    environment("TRAMLINE_TEST_POSTGRES")
}

/// A statement that makes the server count a transaction.
pub(crate) const WRITES_SOMETHING: &str = "SELECT pg_current_xact_id()";

/// A store in a schema of its own, which is gone after [`Private::close`].
pub(crate) struct Private {
    pub(crate) store: Arc<PostgresStore>,
    pub(crate) schema: String,
    pub(crate) url: String,
}

impl Deref for Private {
    type Target = PostgresStore;

    fn deref(&self) -> &PostgresStore {
        &self.store
    }
}

impl Private {
    pub(crate) async fn open() -> Private {
        Private::open_at(&server(), "").await
    }

    pub(crate) async fn open_at(server: &str, more: &str) -> Private {
        Private::open_in(server, format!("only_{:x}", Incarnation::random().0), more).await
    }

    pub(crate) async fn open_in(server: &str, schema: String, more: &str) -> Private {
        let url = format!("{server}?schema={schema}{more}");
        let store = open(&url).await.unwrap();
        Private { store: Arc::new(store), schema, url }
    }

    /// SQL of this test's own, with `$s` for its schema.
    pub(crate) async fn rows(&self, sql: &str) -> Vec<sqlx::postgres::PgRow> {
        let mut connection = PgConnection::connect(&server()).await.unwrap();
        let sql = AssertSqlSafe(sql.replace("$s", &self.schema));
        sqlx::raw_sql(sql).fetch_all(&mut connection).await.unwrap()
    }

    pub(crate) async fn pool(&self) -> PgPool {
        PgPool::connect(&server()).await.unwrap()
    }

    pub(crate) async fn subscribe(&self, name: &str, ordering: Ordering) -> Subscription {
        self.subscribe_with(name, Policy { ordering, ..Policy::default() }).await
    }

    pub(crate) async fn subscribe_with(&self, name: &str, policy: Policy) -> Subscription {
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
        self.rows("DROP SCHEMA $s CASCADE").await;
    }
}

pub(crate) async fn open(url: &str) -> Result<PostgresStore> {
    PostgresStore::open(url.parse()?).await
}
