//! How PostgreSQL finds rows: by their keys, whatever its statistics say.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use tramline::Event;
use tramline::model::id::{Incarnation, SubscriptionId};
use tramline::model::lane::{Known, Share};
use tramline::model::outcome::Outcome;
use tramline::model::subscription::{Ordering, Policy, Start};
use tramline::store::Store;
use tramline::store::postgres::PostgresStore;
use tramline::store::verbs::{Claim, ClaimedSlice, Emit, PutSubscription, Settle, SettleSlice, Suspects};

const CHUNKS: usize = 200;
const TABLES: [&str; 7] = ["slice", "chunk", "head", "idempotency", "lane", "parked", "gap"];

/// The story: a benchmark that takes 2 s took 8 minutes once. The tables had been vacuumed while they were empty, so the
/// planner thought of one row, and every claim read the whole backlog for each slice that it took.
#[tokio::test]
async fn tables_vacuumed_while_empty_are_still_read_by_their_keys() {
    for ordering in [Ordering::None, Ordering::Key] {
        let bed = Bed::open().await;
        let fresh = bed.reads_of_a_drain(ordering).await;
        for table in TABLES {
            bed.rows(&format!("VACUUM (TRUNCATE false, ANALYZE) $s.tramline_{table}")).await;
        }
        let after = bed.reads_of_a_drain(ordering).await;
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

    /// How many rows are read while a backlog is emitted and worked off, one claim and one settlement after the other.
    async fn reads_of_a_drain(&self, ordering: Ordering) -> i64 {
        let before = self.tuples_read().await;
        let store = PostgresStore::open(self.url.parse().unwrap()).await.unwrap();
        let policy = Policy { ordering, ..Policy::default() };
        let (name, topics) = ("w".to_owned(), vec!["t".to_owned()]);
        let put = PutSubscription { name, topics, policy, start: Start::Beginning, now: None };
        let subscription = store.put_subscription(put).await.unwrap().id;
        for chunk in 0..CHUNKS {
            let event = |n| Event::new("t", vec![0]).key(format!("{}", (chunk + n) % 50));
            let emit = Emit { units: vec![(0..64).map(event).collect()], now: None };
            store.emit(emit).await.unwrap().remove(0).unwrap();
        }
        let mut left = CHUNKS * 64;
        while left > 0 {
            let claimed = store.claim(self.wish(subscription)).await.unwrap();
            let results: Vec<SettleSlice> = claimed.slices.iter().map(done).collect();
            left -= results.iter().map(|result| result.outcomes.len()).sum::<usize>();
            store.settle(Settle { subscription, results, now: None }).await.unwrap();
        }
        store.close().await;
        drop(store);
        self.tuples_read().await - before
    }

    fn wish(&self, subscription: SubscriptionId) -> Claim {
        Claim {
            subscription,
            owner: Incarnation(7),
            max_events: 256,
            max_bytes: 1 << 24,
            lease: None,
            suspects: Suspects::Leave,
            share: Share::ALL,
            known: Known::All,
            single: false,
            now: None,
        }
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

fn done(slice: &ClaimedSlice) -> SettleSlice {
    let outcomes = slice.events.iter().map(|event| (event.event.id.index(), Outcome::Done)).collect();
    SettleSlice { lease: slice.lease, outcomes }
}
