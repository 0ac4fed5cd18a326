//! How PostgreSQL finds rows: by their keys, whatever its statistics say.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use std::sync::atomic::{AtomicUsize, Ordering};
use tramline::model::id::Incarnation;
use tramline::{Event, Shutdown, Tramline};

const CHUNKS: usize = 200;
const TABLES: [&str; 7] = ["slice", "chunk", "head", "idempotency", "lane", "parked", "gap"];

/// The story: a benchmark that takes 2 s took 8 minutes once. The tables had been vacuumed while they were empty, so the
/// planner thought of one row, and every claim read the whole backlog for each slice that it took.
#[tokio::test]
async fn tables_vacuumed_while_empty_are_still_read_by_their_keys() {
    for ordered in [false, true] {
        let bed = Bed::open().await;
        let fresh = bed.reads_of_a_drain(ordered).await;
        for table in TABLES {
            bed.rows(&format!("VACUUM (TRUNCATE false, ANALYZE) $s.tramline_{table}")).await;
        }
        let after = bed.reads_of_a_drain(ordered).await;
        assert!(after < fresh * 3 / 2, "{after} rows were read, {fresh} before the vacuum");
        bed.close().await;
    }
}

struct Bed {
    server: String,
    schema: String,
    url: String,
}

impl Bed {
    async fn open() -> Bed {
        let server = std::env::var("TRAMLINE_TEST_POSTGRES").unwrap();
        let schema = format!("plans_{:x}", Incarnation::random().0);
        Bed { url: format!("{server}?schema={schema}&application_name={schema}"), server, schema }
    }

    /// How many rows are read while a backlog is emitted and worked off.
    async fn reads_of_a_drain(&self, ordered: bool) -> i64 {
        let before = self.tuples_read().await;
        let tram = Tramline::open(&self.url).await.unwrap();
        let worker = tram.worker("w").topics(["t"]);
        let worker = if ordered { worker.ordered_by_key() } else { worker };
        worker.subscribe().await.unwrap();
        for chunk in 0..CHUNKS {
            let event = |n| Event::new("t", vec![0]).key(format!("{}", (chunk + n) % 50));
            tram.emit((0..64).map(event).collect::<Vec<_>>()).await.unwrap();
        }
        let shutdown = Shutdown::new();
        let (handled, done) = (AtomicUsize::new(0), shutdown.clone());
        let worker = worker.on_any(move || {
            if handled.fetch_add(1, Ordering::Relaxed) + 1 == CHUNKS * 64 {
                done.start();
            }
            std::future::ready(())
        });
        worker.run(shutdown).await.unwrap();
        drop(worker);
        tram.close().await;
        drop(tram);
        self.tuples_read().await - before
    }

    /// Rows that index scans have read so far. Connections report when they end: this waits until they have.
    async fn tuples_read(&self) -> i64 {
        let sql = "SELECT 1 FROM pg_stat_activity WHERE application_name = '$s'";
        while !self.rows(sql).await.is_empty() {
            tokio::task::yield_now().await;
        }
        let sql =
            "SELECT coalesce(sum(idx_tup_read), 0)::bigint FROM pg_stat_user_indexes WHERE schemaname = '$s'";
        self.rows(sql).await[0].get(0)
    }

    /// SQL of this test's own, with `$s` for its schema.
    async fn rows(&self, sql: &str) -> Vec<sqlx::postgres::PgRow> {
        let mut connection = PgConnection::connect(&self.server).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(sql.replace("$s", &self.schema)))
            .fetch_all(&mut connection)
            .await
            .unwrap()
    }

    async fn close(self) {
        self.rows("DROP SCHEMA $s CASCADE").await;
    }
}
