//! Workers whose handlers settle in their own transaction; on every server.

use crate::bed::{Private, event};
use sqlx::AssertSqlSafe;
use std::sync::Arc;
use std::time::Duration;
use tramline::model::id::Incarnation;
use tramline::store::verbs::Settled;
use tramline::{Context, Counts, NoHooks, Options, Outcome, Tramline};

const HOUR: Duration = Duration::from_secs(3600);

/// A table of the caller's own beside those of the store.
struct Books {
    store: Private,
    tram: Tramline,
    table: String,
}

impl Books {
    async fn open() -> Books {
        let store = Private::open().await;
        let tram = Tramline::from_store(store.store.clone(), Options::new("").hooks(Arc::new(NoHooks)));
        let books = Books { store, tram, table: format!("account_{:x}", Incarnation::random().0) };
        books.execute(&format!("CREATE TABLE {} (event BIGINT PRIMARY KEY)", books.table)).await;
        books
    }

    async fn execute(&self, sql: &str) {
        let pool = self.store.pool().await;
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&pool).await.unwrap();
    }

    /// Settles each event in the transaction that writes it down, with the outcome that `judge` gives. The first attempt of what is
    /// called `undone` ends before its transaction does.
    async fn worker(&self, judge: fn(&Context) -> Outcome) -> tramline::Worker {
        let (store, pool, table) = (self.store.store.clone(), self.store.pool().await, self.table.clone());
        let worker = self.tram.worker("w").topics(["t"]).concurrency(1).settles_in_transaction();
        let worker = worker.retry(tramline::Retry::constant(5, Duration::ZERO));
        worker.on_any(move |cx: Context| {
            let (store, pool) = (store.clone(), pool.clone());
            let write = AssertSqlSafe(format!("INSERT INTO {table} VALUES ({})", cx.event().id.0));
            async move {
                let mut tx = pool.begin().await.map_err(|error| error.to_string())?;
                sqlx::raw_sql(write).execute(&mut *tx).await.map_err(|error| error.to_string())?;
                let settled: Settled = store
                    .settle_in(&mut tx, cx.settlement(judge(&cx)))
                    .await
                    .map_err(|error| error.to_string())?;
                assert_eq!(settled.accepted, [[true]]);
                if cx.attempt() <= 1 && cx.event().key.as_deref() == Some("undone") {
                    return Err("before its end".to_owned());
                }
                tx.commit().await.map_err(|error| error.to_string())
            }
        })
    }

    async fn written(&self) -> i64 {
        let count = AssertSqlSafe(format!("SELECT count(*) FROM {}", self.table));
        sqlx::query_scalar(count).fetch_one(&self.store.pool().await).await.unwrap()
    }

    async fn counts(&self) -> Counts {
        self.tram.stats("w").await.unwrap().counts
    }

    async fn close(self) {
        self.tram.close().await;
        self.execute(&format!("DROP TABLE {}", self.table)).await;
        self.store.close().await;
    }
}

#[tokio::test]
async fn a_handler_may_settle_in_its_own_transaction() {
    let books = Books::open().await;
    let worker = books.worker(|_| Outcome::Done).await;
    worker.subscribe().await.unwrap();
    for key in ["a", "b", "c"] {
        books.store.emit(event(key)).await.unwrap();
    }
    assert_eq!(worker.drain().await.unwrap(), 3);
    assert_eq!((books.written().await, books.counts().await), (3, Counts::default()));
    books.close().await;
}

/// What it wrote and what it settled go together; the worker settles what its handler could not.
#[tokio::test]
async fn a_handler_that_fails_before_its_transaction_ends_runs_again() {
    let books = Books::open().await;
    let worker = books.worker(|_| Outcome::Done).await;
    worker.subscribe().await.unwrap();
    books.store.emit(event("undone")).await.unwrap();
    assert_eq!(worker.drain().await.unwrap(), 2, "two attempts");
    assert_eq!((books.written().await, books.counts().await), (1, Counts::default()));
    books.close().await;
}

/// The handler returns `Ok`, but what it told the store is that its event has to run again.
#[tokio::test]
async fn a_failure_that_a_handler_settles_itself_keeps_its_key_waiting() {
    let books = Books::open().await;
    let later = |_: &Context| Outcome::Retry { delay: Some(HOUR), error: "later".into() };
    let worker = books.worker(later).await.ordered_by_key();
    worker.subscribe().await.unwrap();
    for _ in 0..3 {
        books.store.emit(event("k")).await.unwrap();
    }
    worker.drain().await.unwrap();
    assert_eq!(books.written().await, 1);
    assert_eq!(books.counts().await, Counts { delayed: 1, parked: 2, ..Counts::default() });
    books.close().await;
}
