//! Programs in other languages, which emit by plain SQL.

use crate::bed::{Private, event, ids, server};
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Row};
use std::time::Duration;
use tramline::Event;
use tramline::model::id::{EventId, LaneId, TopicId};
use tramline::model::lane;
use tramline::model::subscription::{Ordering, Policy, Start};
use tramline::store::Store;
use tramline::store::verbs::{Expected, FindEvent, PutSubscription};

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
