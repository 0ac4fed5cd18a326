//! What is special about PostgreSQL. What every store has to do is in the conformance suite.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sqlx::postgres::{PgListener, PgPool};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use std::collections::{BTreeMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tramline::error::Kind;
use tramline::model::id::{EventId, Incarnation, LaneId, SubscriptionId, TopicId};
use tramline::model::lane::{self, Known, Share};
use tramline::model::lease::Lease;
use tramline::model::outcome::Outcome;
use tramline::model::subscription::{Ordering, Policy, Start, Subscription};
use tramline::store::Store;
use tramline::store::postgres::PostgresStore;
use tramline::store::verbs::*;
use tramline::{Event, Result};

fn environment(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run ./test"))
}

fn server() -> String {
    environment("TRAMLINE_TEST_POSTGRES")
}

/// A store in a schema of its own, which is gone after [`Private::close`].
struct Private {
    store: Arc<PostgresStore>,
    schema: String,
}

impl Deref for Private {
    type Target = PostgresStore;

    fn deref(&self) -> &PostgresStore {
        &self.store
    }
}

impl Private {
    async fn open() -> Private {
        Private::open_at(&server(), "").await
    }

    async fn open_at(server: &str, more: &str) -> Private {
        let schema = format!("only_{:x}", Incarnation::random().0);
        let store = open(&format!("{server}?schema={schema}{more}")).await.unwrap();
        Private { store: Arc::new(store), schema }
    }

    /// SQL of this test's own, with `$s` for its schema.
    async fn rows(&self, sql: &str) -> Vec<sqlx::postgres::PgRow> {
        let mut connection = PgConnection::connect(&server()).await.unwrap();
        let sql = AssertSqlSafe(sql.replace("$s", &self.schema));
        sqlx::raw_sql(sql).fetch_all(&mut connection).await.unwrap()
    }

    async fn pool(&self) -> PgPool {
        PgPool::connect(&server()).await.unwrap()
    }

    async fn subscribe(&self, name: &str, ordering: Ordering) -> Subscription {
        let policy = Policy { ordering, ..Policy::default() };
        let topics = vec!["t".to_owned()];
        let put = PutSubscription { name: name.into(), topics, policy, start: Start::Beginning, now: None };
        self.store.put_subscription(put).await.unwrap()
    }

    async fn emit(&self, event: Event) -> Result<Emission> {
        let mut answers = self.store.emit(Emit { units: vec![vec![event]], now: None }).await?;
        answers.pop().unwrap()
    }

    async fn claim(&self, id: SubscriptionId, max_events: u32) -> Claimed {
        self.store.claim(claim(id, max_events)).await.unwrap()
    }

    async fn settle_done(&self, id: SubscriptionId, claimed: &Claimed) -> Settled {
        self.store.settle(done(id, claimed)).await.unwrap()
    }

    async fn close(self) {
        self.store.close().await;
        self.rows("DROP SCHEMA $s CASCADE").await;
    }
}

async fn open(url: &str) -> Result<PostgresStore> {
    PostgresStore::open(url.parse()?).await
}

fn claim(subscription: SubscriptionId, max_events: u32) -> Claim {
    Claim {
        subscription,
        owner: Incarnation::random(),
        max_events,
        max_bytes: 1 << 24,
        lease: None,
        suspects: Suspects::TakeOne,
        share: Share::ALL,
        known: Known::All,
        single: false,
        now: None,
    }
}

fn done(subscription: SubscriptionId, claimed: &Claimed) -> Settle {
    let result = |slice: &ClaimedSlice| SettleSlice {
        lease: slice.lease,
        outcomes: slice.events.iter().map(|event| (event.event.id.index(), Outcome::Done)).collect(),
    };
    Settle { subscription, results: claimed.slices.iter().map(result).collect(), now: None }
}

fn ids(claimed: &Claimed) -> Vec<EventId> {
    claimed.slices.iter().flat_map(|slice| slice.events.iter().map(|event| event.event.id)).collect()
}

fn event(key: &str) -> Event {
    Event::new("t", "x").key(key)
}

fn read_log(after: EventId) -> ReadLog {
    ReadLog { topic: "t".into(), after, limit: 100 }
}

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
    Private { store: Arc::new(stores.remove(0)), schema }.close().await;
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

#[tokio::test]
async fn an_emit_in_the_callers_transaction_shares_its_fate() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    store.emit_in(&mut tx, [event("k")]).await.unwrap();
    assert!(ids(&store.claim(queue.id, 9).await).is_empty(), "not committed yet");
    tx.rollback().await.unwrap();
    assert!(ids(&store.claim(queue.id, 9).await).is_empty());
    assert_eq!(store.head("t", "k").await.unwrap(), None);

    let mut tx = pool.begin().await.unwrap();
    let first = store.emit_in(&mut tx, [event("k"), event("k")]).await.unwrap();
    let second = store.emit_in(&mut tx, [event("k").idempotency_key("once")]).await.unwrap();
    let repeated = store.emit_in(&mut tx, [event("k").idempotency_key("once")]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(first.events[1].prev, Some(first.events[0].id));
    assert_eq!(second.events[0].prev, Some(first.events[1].id));
    assert_eq!(first.wake, [queue.id]);
    assert!(repeated.repeated);
    assert_eq!(repeated.events, second.events);
    assert_eq!(ids(&store.claim(queue.id, 9).await).len(), 3);
    store.close().await;
}

#[tokio::test]
async fn a_settle_in_the_callers_transaction_shares_its_fate() {
    for ordering in [Ordering::None, Ordering::Key] {
        let store = Private::open().await;
        let queue = store.subscribe("q", ordering).await;
        store.emit(event("k")).await.unwrap();
        let claimed = store.claim(queue.id, 9).await;
        let pool = store.pool().await;
        let mut tx = pool.begin().await.unwrap();
        let settled = store.settle_in(&mut tx, done(queue.id, &claimed)).await.unwrap();
        assert_eq!(settled.accepted, [[true]]);
        tx.rollback().await.unwrap();
        assert_eq!(store.stats(queue.id, None).await.unwrap().counts.leased, 1);
        let mut tx = pool.begin().await.unwrap();
        store.settle_in(&mut tx, done(queue.id, &claimed)).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(store.stats(queue.id, None).await.unwrap().counts.pending(), 0);
        store.close().await;
    }
}

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

/// Trap 5: somebody's open transaction has locked a key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_key_holds_up_nobody_else() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    store.emit(event("stuck")).await.unwrap();
    let first = store.emit_in(&mut tx, [event("stuck")]).await.unwrap();
    let group = tokio::spawn({
        let store = store.store.clone();
        let unit = |key: &str| vec![event(key)];
        let units = vec![unit("a"), unit("stuck"), vec![Event::new("t", "x")], unit("b"), unit("stuck")];
        async move { store.emit(Emit { units, now: None }).await.unwrap() }
    });
    let start = Instant::now();
    let mut free = HashSet::new();
    // One was there before; a, b and the one without a key follow while "stuck" still waits.
    while free.len() < 4 {
        free.extend(ids(&store.claim(queue.id, 9).await));
        assert!(start.elapsed() < Duration::from_secs(4), "the others were held up");
    }
    store.emit(event("elsewhere")).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(4), "emits of other callers were held up");
    assert!(!group.is_finished());
    tx.commit().await.unwrap();
    let answers = group.await.unwrap();
    let stuck: Vec<&Emission> = [1, 4].map(|at: usize| answers[at].as_ref().unwrap()).into();
    assert_eq!(stuck[0].events[0].prev, Some(first.events[0].id));
    assert_eq!(stuck[1].events[0].prev, Some(stuck[0].events[0].id));
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emit_gives_up_when_its_key_stays_locked() {
    let store = Private::open().await;
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    store.emit_in(&mut tx, [event("new")]).await.unwrap();
    let units = vec![vec![event("new")], vec![event("free")]];
    let answers = store.store.emit(Emit { units, now: None }).await.unwrap();
    let error = answers[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(!error.remedy().is_empty());
    assert!(answers[1].is_ok());
    tx.commit().await.unwrap();
    assert!(store.emit(event("new")).await.unwrap().events[0].prev.is_some());
    store.close().await;
}

/// Trap 10: a handler settles in its own transaction and takes its time.
#[tokio::test]
async fn extending_does_not_wait_for_a_transaction_that_holds_one_of_the_leases() {
    for ordering in [Ordering::None, Ordering::Key] {
        let store = Private::open().await;
        let queue = store.subscribe("q", ordering).await;
        for key in ["a", "b", "c"] {
            store.emit(event(key)).await.unwrap();
        }
        let claimed = store.claim(queue.id, 9).await;
        let leases: Vec<Lease> = claimed.slices.iter().map(|slice| slice.lease).collect();
        assert_eq!(leases.len(), 3, "three keys in three lanes");
        let pool = store.pool().await;
        let mut tx = pool.begin().await.unwrap();
        let one = Claimed { slices: vec![claimed.slices[1].clone()], ..Claimed::default() };
        store.settle_in(&mut tx, done(queue.id, &one)).await.unwrap();
        let extend = || Extend { subscription: queue.id, leases: leases.clone(), lease: None, now: None };
        let answers = store.extend(extend()).await.unwrap();
        assert!(
            matches!(answers[..], [Extended::Until(_), Extended::Locked, Extended::Until(_)]),
            "{answers:?}"
        );
        tx.commit().await.unwrap();
        let answers = store.extend(extend()).await.unwrap();
        assert!(
            matches!(answers[..], [Extended::Until(_), Extended::Lost, Extended::Until(_)]),
            "{answers:?}"
        );
        store.close().await;
    }
}

/// Trap 7: numbers are drawn before they are committed.
#[tokio::test]
async fn the_log_stops_before_a_transaction_that_is_still_open() {
    let store = Private::open().await;
    let before = store.emit(event("a")).await.unwrap().events[0].id;
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    let open = store.emit_in(&mut tx, [event("b")]).await.unwrap().events[0].id;
    let after = store.emit(event("c")).await.unwrap().events[0].id;
    assert!(before < open && open < after);
    let end = store.log_end("t").await.unwrap_err();
    assert_eq!(end.kind(), Kind::Unavailable, "whoever began behind it would miss it: {end}");
    let page = store.read_log(read_log(EventId(0))).await.unwrap();
    assert!(page.next < open, "{} would never be read", open);
    assert!(page.events.iter().all(|event| event.id < open));
    // Somebody else's open transaction has nothing to do with it.
    let mut other = pool.begin().await.unwrap();
    sqlx::raw_sql("SELECT pg_current_xact_id()").execute(&mut *other).await.unwrap();
    tx.commit().await.unwrap();
    let rest = store.read_log(read_log(page.next)).await.unwrap();
    let seen: Vec<EventId> = page.events.iter().chain(&rest.events).map(|event| event.id).collect();
    assert_eq!(seen, [before, open, after]);
    assert!(rest.next >= after);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_nodes_that_emit_to_the_same_keys_make_one_chain_of_each() {
    let store = Private::open().await;
    let url = format!("{}?schema={}", server(), store.schema);
    let nodes: Vec<_> = (0..4)
        .map(|node| {
            let url = url.clone();
            tokio::spawn(async move {
                let store = open(&url).await.unwrap();
                for n in 0..30 {
                    let units =
                        (0..4).map(|k| vec![event(&format!("k{}", (k * 7 + n + node) % 5)); 2]).collect();
                    let answers = store.emit(Emit { units, now: None }).await.unwrap();
                    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
                }
                store.close().await;
            })
        })
        .collect();
    for node in nodes {
        node.await.unwrap();
    }
    let mut last: BTreeMap<String, EventId> = BTreeMap::new();
    let mut page = LogPage { events: Vec::new(), next: EventId(0) };
    let mut count = 0;
    loop {
        page = store.read_log(read_log(page.next)).await.unwrap();
        if page.events.is_empty() {
            break;
        }
        for event in &page.events {
            let key = event.key.as_deref().unwrap().to_owned();
            assert_eq!(event.prev, last.insert(key, event.id));
            count += 1;
        }
    }
    assert_eq!(count, 4 * 30 * 4 * 2);
    store.close().await;
}

/// A node may know a topic that another one has deleted: the event must not be lost in a plan that has no place for it.
#[tokio::test]
async fn an_emit_to_a_topic_that_another_node_deleted_creates_it_again() {
    let store = Private::open().await;
    let twin = open(&format!("{}?schema={}", server(), store.schema)).await.unwrap();
    for event in [Event::new("t", "x"), Event::new("t", "x").idempotency_key("once")] {
        store.emit(event.clone()).await.unwrap();
        twin.delete_topic("t").await.unwrap();
        assert_eq!(store.emit(event.clone()).await.unwrap().events.len(), 1);
        twin.delete_topic("t").await.unwrap();
        let mut tx = store.store.pool().begin().await.unwrap();
        assert_eq!(store.emit_in(&mut tx, [event]).await.unwrap().events.len(), 1);
        tx.commit().await.unwrap();
    }
    assert_eq!(twin.read_log(read_log(EventId(0))).await.unwrap().events.len(), 1);
    twin.close().await;
    store.close().await;
}

#[tokio::test]
async fn sql_computes_the_lane_of_a_key_like_the_library() {
    let store = Private::open().await;
    let keys: Vec<String> = (0..400).map(|n| format!("{}:{n}:ü€", "x".repeat(n % 37))).collect();
    let pool = store.pool().await;
    let sql = format!("SELECT key, {}.tramline_hash(key) FROM unnest($1::text[]) AS k(key)", store.schema);
    let rows = sqlx::query(AssertSqlSafe(sql)).bind(&keys).fetch_all(&pool).await.unwrap();
    assert_eq!(rows.len(), 400);
    for row in rows {
        let key: String = row.get(0);
        assert_eq!(row.get::<i64, _>(1), i64::from(lane::hash(&key)), "{key}");
    }
    store.close().await;
}

#[tokio::test]
async fn events_emitted_by_plain_sql_are_events_like_any_other() {
    let store = Private::open().await;
    let plain = store.subscribe("plain", Ordering::None).await;
    let ordered = store.subscribe("ordered", Ordering::Key).await;
    let mut listener = PgListener::connect(&server()).await.unwrap();
    listener.listen(&store.wake_channel()).await.unwrap();

    let first = store.emit(event("k")).await.unwrap().events[0].id;
    let sql = "SELECT $s.tramline_emit('t', '{\"total\": 12}'::jsonb, type => 'order.paid', key => 'k', \
               headers => '{\"trace\": \"abc\"}')";
    let second = EventId(store.rows(sql).await[0].get(0));
    let third = store.emit(event("k")).await.unwrap().events[0].clone();
    assert_eq!(third.prev, Some(second));
    let bytes = "SELECT $s.tramline_emit('t', '\\x00ff'::bytea, content_type => 'application/octet-stream')";
    let keyless = EventId(store.rows(bytes).await[0].get(0));

    let view = store.event(FindEvent { id: second, now: None }).await.unwrap().unwrap();
    assert_eq!(view.event.prev, Some(first));
    assert_eq!(&*view.event.kind, "order.paid");
    assert_eq!(&view.event.payload[..], b"{\"total\": 12}");
    assert_eq!(&*view.event.content_type, "application/json");
    assert_eq!(view.event.headers["trace"], "abc");
    assert_eq!(view.deliveries.len(), 2);

    let topic = store.topics().await.unwrap()[0].clone();
    let lane = format!("SELECT lane FROM $s.tramline_slice WHERE chunk = {} AND lane <> 0", second.chunk().0);
    let expected: LaneId = lane::of(TopicId(topic.id.0), topic.lanes, "k");
    assert_eq!(store.rows(&lane).await[0].get::<i64, _>(0), expected.0);
    for id in [plain.id, ordered.id] {
        let mut claimed = ids(&store.claim(id, 9).await);
        claimed.sort();
        assert_eq!(claimed, [first, second, third.id, keyless]);
    }
    let hint = tokio::time::timeout(Duration::from_secs(5), listener.recv()).await.unwrap().unwrap();
    assert_eq!(hint.payload(), format!("{},{}", plain.id, ordered.id));
    store.close().await;
}

#[tokio::test]
async fn plain_sql_refuses_impossible_events_and_creates_topics() {
    let store = Private::open().await;
    let pool = store.pool().await;
    for arguments in [
        "'two words', '{}'::jsonb",
        "'t', '{}'::jsonb, priority => 10",
        "'t', '{}'::jsonb, key => ''",
        "'t', '{}'::jsonb, headers => '[1]'",
        "'t', '{}'::jsonb, headers => '{\"a\": 1}'",
        "'t', NULL::bytea",
    ] {
        let sql = format!("SELECT {}.tramline_emit({arguments})", store.schema);
        let error = sqlx::query(AssertSqlSafe(sql)).execute(&pool).await.unwrap_err();
        assert!(error.to_string().contains("tramline:"), "{arguments}: {error}");
    }
    store.rows("SELECT $s.tramline_emit('new/topic', '{}'::jsonb)").await;
    assert_eq!(&*store.topics().await.unwrap()[0].name, "new/topic");
    store.emit(Event::new("new/topic", "x")).await.unwrap();
    store.close().await;
}

/// A busy queue has far more that is not due than what is, and must not read it.
#[tokio::test]
async fn a_claim_reads_only_what_is_due() {
    let store = Private::open().await;
    store.rows("INSERT INTO $s.tramline_slice (chunk, subscription, state, lane, rank, pos, mask, due_at, bytes) \
                SELECT n, n % 3, n % 2, 0, n % 10, 1000000 + n, 1, 1000000 + n, 100 FROM generate_series(1, 60000) n; \
                INSERT INTO $s.tramline_slice (chunk, subscription, state, lane, rank, pos, mask, due_at, bytes) \
                SELECT 100000 + n, 1, 0, 0, 5, n, 1, n, 100 FROM generate_series(1, 50) n; ANALYZE $s.tramline_slice").await;
    let mut connection = PgConnection::connect(&server()).await.unwrap();
    let prepare = format!(
        "SET plan_cache_mode = force_generic_plan; PREPARE due (bigint, smallint, bigint, bigint) AS {}",
        store.claim_sql()
    );
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut connection).await.unwrap();
    let explain =
        sqlx::raw_sql("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) EXECUTE due (1, 0::smallint, 5000, 32)");
    let rows = explain.fetch_all(&mut connection).await.unwrap();
    let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let plan = plan.join("\n");
    assert!(plan.contains("Index Scan using tramline_slice_claim"), "{plan}");
    assert!(
        !plan.contains("Seq Scan") && !plan.contains("Rows Removed by Filter") && !plan.contains("Sort"),
        "{plan}"
    );
    store.close().await;
}

/// New emits queue behind a change of subscriptions that waits for an open transaction, so the change must not wait long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_subscription_misses_nothing_that_an_open_transaction_emits() {
    let store = Private::open().await;
    store.subscribe("q", Ordering::None).await;
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    let open = store.emit_in(&mut tx, [event("k")]).await.unwrap().events[0].id;
    let late = tokio::spawn({
        let store = store.store.clone();
        let (policy, topics) = (Policy::default(), vec!["t".to_owned()]);
        let put = PutSubscription { name: "late".into(), topics, policy, start: Start::Beginning, now: None };
        async move { store.put_subscription(put).await.unwrap() }
    });
    let during = store.emit(event("other")).await.unwrap().events[0].id;
    tx.commit().await.unwrap();
    let late = late.await.unwrap();
    while store.backfill(late.id).await.unwrap() {}
    let mut seen = ids(&store.claim(late.id, 9).await);
    seen.sort();
    assert_eq!(seen, [open, during]);
    store.close().await;
}
