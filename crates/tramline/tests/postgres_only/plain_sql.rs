//! Programs in other languages, which emit by plain SQL.

use crate::bed::{Private, event, ids, read_log, server};
use sqlx::postgres::{PgListener, PgPool, Postgres};
use sqlx::{AssertSqlSafe, Row, Transaction};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tramline::Event;
use tramline::error::Kind;
use tramline::model::id::{EventId, LaneId, TopicId};
use tramline::model::lane;
use tramline::model::subscription::{Ordering, Policy, Start};
use tramline::model::time::Time;
use tramline::store::Store;
use tramline::store::verbs::{Emit, Expected, FindEvent, PutSubscription};

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
async fn a_topic_that_is_draining_gives_nothing_new_by_plain_sql_either() {
    let store = Private::open().await;
    let policy = Policy { draining: vec!["t".into()], ..Policy::default() };
    let topics = vec!["t".to_owned(), "u".to_owned()];
    let put = PutSubscription {
        name: "s".into(),
        topics,
        policy,
        start: Start::Beginning,
        expected: Expected::Anything,
        now: None,
    };
    let subscription = store.put_subscription(put).await.unwrap();
    store.rows("SELECT $s.tramline_emit('t', '{}'::jsonb)").await;
    let other = EventId(store.rows("SELECT $s.tramline_emit('u', '{}'::jsonb)").await[0].get(0));
    assert_eq!(ids(&store.claim(subscription.id, 9).await), [other]);
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
        "'t', '{}'::jsonb, idempotency_key => ''",
        "'t', '{}'::jsonb, state => '{}'",
        "'t', '{}'::jsonb, delay_ms => 1, due_at => now()",
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

#[tokio::test]
async fn plain_sql_repeats_an_emit_under_an_idempotency_key() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    let emit = |more: &str| {
        format!(
            "SELECT $s.tramline_emit('t', '{{\"a\": 1}}'::jsonb, key => 'k', idempotency_key => 'once'{more})"
        )
    };
    let first = EventId(store.rows(&emit("")).await[0].get(0));
    let again = EventId(store.rows(&emit(", headers => '{\"traceparent\": \"x\"}'")).await[0].get(0));
    assert_eq!(again, first);
    assert_eq!(ids(&store.claim(queue.id, 9).await), [first]);
    let pool = store.pool().await;
    let another = emit(", priority => 1").replace("$s", &store.schema);
    let error = sqlx::raw_sql(AssertSqlSafe(another)).execute(&pool).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().unwrap(), "23505", "{error}");
    store.rows("UPDATE $s.tramline_idempotency SET expires_at = 0 WHERE key = 'once'").await;
    assert!(EventId(store.rows(&emit("")).await[0].get(0)) > first, "the key was forgotten");
    store.close().await;
}

/// Whoever moves from one to the other does not run twice what is under way.
#[tokio::test]
async fn an_emit_by_plain_sql_can_be_repeated_by_the_library_and_the_other_way_round() {
    let store = Private::open().await;
    let due = Time(1_900_000_000_123);
    let plain = || Event::new("t", "x").content_type("application/json");
    let pairs = [
        (plain(), ""),
        (plain().key("ü").kind("a.b").priority(9), ", key => 'ü', type => 'a.b', priority => 9"),
        (plain().key("k").state("s"), ", key => 'k', state => 's'::bytea"),
        (plain().delay(Duration::from_millis(70_001)), ", delay_ms => 70001"),
        (plain().at(due), ", due_at => to_timestamp(1900000000.123)"),
        (
            plain().header("b", "2").header("B", "1").header("tracestate", "x").content_type("a/b"),
            ", headers => '{\"b\": \"2\", \"B\": \"1\"}', content_type => 'a/b'",
        ),
    ];
    for (number, (event, more)) in pairs.into_iter().enumerate() {
        let sql = |key: &str| {
            format!("SELECT $s.tramline_emit('t', 'x'::bytea, idempotency_key => '{key}{number}'{more})")
        };
        let here = store.emit(event.clone().idempotency_key(format!("rust{number}"))).await.unwrap();
        assert_eq!(store.rows(&sql("rust")).await[0].get::<i64, _>(0), here.events[0].id.0, "{more}");
        let there = EventId(store.rows(&sql("sql")).await[0].get(0));
        let repeated = store.emit(event.idempotency_key(format!("sql{number}"))).await.unwrap();
        assert!(repeated.repeated, "{more}");
        assert_eq!(repeated.events[0].id, there, "{more}");
    }
    store.close().await;
}

#[tokio::test]
async fn an_emit_by_plain_sql_writes_the_state_of_its_key_and_waits_for_its_due_time() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    let sql = "SELECT $s.tramline_emit('t', '{}'::jsonb, key => 'k', state => '{\"a\": 1}', due_at => now() + interval '1 hour')";
    let late = EventId(store.rows(sql).await[0].get(0));
    let past = "SELECT $s.tramline_emit('t', '{}'::jsonb, due_at => now() - interval '1 hour')";
    let now = EventId(store.rows(past).await[0].get(0));
    assert_eq!(ids(&store.claim(queue.id, 9).await), [now]);
    assert_eq!(store.stats(queue.id, None).await.unwrap().counts.delayed, 1);
    let head = store.head("t", "k").await.unwrap().unwrap();
    assert_eq!((head.last_id, head.state.as_deref()), (late, Some(&b"{\"a\": 1}"[..])));
    store.close().await;
}

/// A transaction in which SQL of the test has run, with `$s` for its schema.
async fn open_transaction(store: &Private, pool: &PgPool, sql: &str) -> Transaction<'static, Postgres> {
    let mut tx = pool.begin().await.unwrap();
    run(store, &mut tx, sql).await;
    tx
}

async fn run(store: &Private, tx: &mut Transaction<'static, Postgres>, sql: &str) {
    let sql = AssertSqlSafe(sql.replace("$s", &store.schema));
    sqlx::raw_sql(sql).execute(&mut **tx).await.unwrap();
}

const CREATES_A_TOPIC: &str = "SELECT $s.tramline_emit('new/one', '{}'::jsonb)";

/// The event was acknowledged, and stored for a topic that nobody could name any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emit_that_waited_while_its_topic_was_deleted_creates_it_again() {
    let store = Private::open().await;
    store.emit(event("k")).await.unwrap();
    let pool = store.pool().await;
    let lock = "SELECT pg_advisory_xact_lock('$s.tramline_topic'::regclass::oid::int, id::int) FROM $s.tramline_topic";
    let mut deletion = open_transaction(&store, &pool, lock).await;
    let emit = "SELECT $s.tramline_emit('t', '{}'::jsonb)".replace("$s", &store.schema);
    let emit = tokio::spawn({
        let pool = pool.clone();
        async move { sqlx::raw_sql(AssertSqlSafe(emit)).fetch_one(&pool).await.unwrap().get::<i64, _>(0) }
    });
    let waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                 AND classid = '$s.tramline_topic'::regclass::oid";
    while store.rows(waits).await.is_empty() {}
    let delete =
        "DELETE FROM $s.tramline_topic; UPDATE $s.tramline_meta SET value = value + 1 WHERE name = 'catalog'";
    run(&store, &mut deletion, delete).await;
    deletion.commit().await.unwrap();
    let id = EventId(emit.await.unwrap());
    let page = store.read_log(read_log(EventId(0))).await.unwrap();
    assert_eq!(page.events.iter().map(|event| event.id).collect::<Vec<_>>(), [id]);
    store.close().await;
}

/// A topic that is not committed yet keeps others from creating topics. Emits that need none waited for that, too, until all
/// connections were used up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_created_a_topic_holds_up_no_emit_to_known_ones() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    let pool = store.pool().await;
    let tx = open_transaction(&store, &pool, CREATES_A_TOPIC).await;
    let start = Instant::now();
    // More than there are connections.
    let groups: Vec<_> = (0..24)
        .map(|n| {
            let store = store.store.clone();
            let units = vec![vec![event(&format!("k{n}"))], vec![Event::new("new/two", "x")]];
            tokio::spawn(async move { store.emit(Emit { units, now: None }).await.unwrap() })
        })
        .collect();
    let mut seen = HashSet::new();
    while seen.len() < 24 {
        seen.extend(ids(&store.claim(queue.id, 99).await));
        assert!(start.elapsed() < Duration::from_secs(4), "emits to a known topic were held up");
    }
    assert!(groups.iter().all(|group| !group.is_finished()));
    tx.commit().await.unwrap();
    for group in groups {
        assert!(group.await.unwrap().iter().all(Result::is_ok));
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emit_gives_up_when_its_topic_cannot_be_created() {
    let store = Private::open().await;
    store.subscribe("q", Ordering::None).await;
    let pool = store.pool().await;
    let tx = open_transaction(&store, &pool, CREATES_A_TOPIC).await;
    let mut other = pool.begin().await.unwrap();
    let units = vec![vec![Event::new("new/two", "x")], vec![event("k")]];
    let (answers, in_other) = tokio::join!(
        store.store.emit(Emit { units, now: None }),
        store.emit_in(&mut other, [Event::new("new/three", "x")])
    );
    let answers = answers.unwrap();
    assert!(answers[1].is_ok());
    for error in [answers[0].as_ref().unwrap_err(), &in_other.unwrap_err()] {
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("created a topic"), "{error}");
        assert!(!error.remedy().is_empty());
    }
    store.emit_in(&mut other, [event("k")]).await.unwrap();
    other.commit().await.unwrap();
    tx.rollback().await.unwrap();
    store.emit(Event::new("new/two", "x")).await.unwrap();
    store.close().await;
}

/// It waited for itself.
#[tokio::test]
async fn a_transaction_that_created_a_topic_by_plain_sql_can_create_others() {
    let store = Private::open().await;
    let pool = store.pool().await;
    let mut tx = open_transaction(&store, &pool, CREATES_A_TOPIC).await;
    store.emit_in(&mut tx, [Event::new("new/two", "x")]).await.unwrap();
    store.emit_in(&mut tx, [Event::new("new/three", "x").idempotency_key("once")]).await.unwrap();
    assert!(store.topics().await.unwrap().is_empty());
    tx.commit().await.unwrap();
    let topics = store.topics().await.unwrap();
    let names: Vec<&str> = topics.iter().map(|topic| &*topic.name).collect();
    assert_eq!(names, ["new/one", "new/three", "new/two"]);
    store.emit(Event::new("new/two", "x")).await.unwrap();
    store.close().await;
}
