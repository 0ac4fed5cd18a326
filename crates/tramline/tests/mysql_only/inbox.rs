//! Programs in other languages, which insert into the inbox.

use crate::bed::{Private, event, ids, open};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, Row};
use std::sync::Arc;
use std::time::Duration;
use tramline::model::id::EventId;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::verbs::{FindEvent, Sweep};
use tramline::wake::in_process::InProcess;
use tramline::{Options, Shutdown, Tramline};

/// What the documentation tells people to do.
fn documented() -> &'static str {
    let guide = include_str!("../../../../docs/guide.md");
    let (_, rest) = guide.split_once("<!-- inbox -->\n```sql\n").unwrap();
    rest.split_once("```").unwrap().0
}

async fn sweep(store: &impl Store) {
    store.sweep(Sweep { dead_after: None, limit: 100, now: None }).await.unwrap();
}

async fn inbox(store: &Private) -> Vec<(i64, Option<String>)> {
    let rows = store.rows("SELECT id, error FROM tramline_inbox ORDER BY id").await;
    rows.iter().map(|row| (row.try_get_unchecked(0).unwrap(), row.try_get_unchecked(1).unwrap())).collect()
}

/// The connection is as a program has it that never heard of Tramline: REPEATABLE READ, whatever character set.
#[tokio::test]
async fn what_is_inserted_as_documented_is_an_event_like_any_other() {
    let store = Private::open().await;
    let plain = store.subscribe("plain", Ordering::None).await;
    let ordered = store.subscribe("ordered", Ordering::Key).await;
    store.rows("CREATE TABLE orders (id BIGINT PRIMARY KEY, status TEXT); INSERT INTO orders VALUES (42, 'open')").await;
    let first = store.emit(event("order:42")).await.unwrap().events[0].id;
    let mut program = MySqlConnection::connect(&store.url).await.unwrap();
    program.execute("SET NAMES latin1").await.unwrap();
    let sql = documented().replace("'orders'", "'t'");
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut program).await.unwrap();
    sweep(&*store).await;
    let third = store.emit(event("order:42")).await.unwrap().events[0].clone();
    let second = third.prev.unwrap();
    let view = store.event(FindEvent { id: second, now: None }).await.unwrap().unwrap();
    assert_eq!((view.event.prev, &*view.event.kind), (Some(first), "order.paid"));
    assert_eq!(
        (&view.event.payload[..], &*view.event.content_type),
        (&b"{\"total\": 12}"[..], "application/json")
    );
    for id in [plain.id, ordered.id] {
        assert_eq!(ids(&store.claim(id, 9).await), [first, second, third.id]);
    }
    assert_eq!(inbox(&store).await, []);
    store.close().await;
}

#[tokio::test]
async fn all_that_an_event_may_have_can_be_inserted() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    let sql = "INSERT INTO tramline_inbox (topic, type, `key`, payload, content_type, headers, priority, delay_ms, idempotency_key) \
               VALUES ('t', 'a', _utf8mb4 x'c3a4', x'00ff', 'x/y', '{\"trace\": \"abc\"}', 9, 60000, 'once'), \
                      ('t', 'a', _utf8mb4 x'c3a4', x'00ff', 'x/y', '{\"trace\": \"abc\"}', 9, 60000, 'once'), \
                      ('new/topic', '', NULL, '', DEFAULT, NULL, DEFAULT, DEFAULT, NULL)";
    store.rows(sql).await;
    sweep(&*store).await;
    assert_eq!(inbox(&store).await, []);
    let head = store.head("t", "\u{e4}").await.unwrap().unwrap();
    let view = store.event(FindEvent { id: head.last_id, now: None }).await.unwrap().unwrap();
    assert_eq!((&view.event.payload[..], &*view.event.content_type), (&[0, 255][..], "x/y"));
    assert_eq!((view.event.headers["trace"].as_str(), view.event.prev), ("abc", None));
    let counts = store.stats(queue.id, None).await.unwrap().counts;
    assert_eq!((counts.delayed, counts.ready), (1, 0), "the same key gives the first event");
    assert_eq!(store.topics().await.unwrap().len(), 2);
    store.close().await;
}

#[tokio::test]
async fn what_is_rolled_back_is_no_event_and_what_is_impossible_is_refused_at_once() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await;
    let mut program = MySqlConnection::connect(&store.url).await.unwrap();
    let mut tx = program.begin().await.unwrap();
    tx.execute("INSERT INTO tramline_inbox (topic, payload) VALUES ('t', 'never')").await.unwrap();
    tx.rollback().await.unwrap();
    for row in [
        "(topic, payload) VALUES ('two words', '')",
        "(topic, payload, `key`) VALUES ('t', '', '')",
        "(topic, payload, priority) VALUES ('t', '', 10)",
        "(topic, payload, headers) VALUES ('t', '', '[1]')",
        "(topic, payload, headers) VALUES ('t', '', 'nonsense')",
        "(topic, payload) VALUES ('t', REPEAT('x', 1048577))",
    ] {
        let sql = AssertSqlSafe(format!("INSERT INTO tramline_inbox {row}"));
        let error = program.execute(sql).await.unwrap_err();
        assert!(error.to_string().contains("tramline_inbox_"), "{row}: {error}");
    }
    sweep(&*store).await;
    assert_eq!(ids(&store.claim(queue.id, 9).await), []);
    store.close().await;
}

/// What no constraint can know. The reason stays with it, and all others go on.
#[tokio::test]
async fn what_cannot_be_emitted_stays_with_the_reason() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await;
    let sql = "INSERT INTO tramline_inbox (topic, `key`, payload, headers, idempotency_key) VALUES \
               ('t', 'k', '1', '{\"a\": 1}', NULL), ('t', 'k', '2', NULL, 'once'), ('t', 'k', '3', NULL, 'once'), ('t', 'k', '4', NULL, NULL)";
    store.rows(sql).await;
    sweep(&*store).await;
    let left = inbox(&store).await;
    let why: Vec<&str> = left.iter().map(|(_, why)| why.as_deref().unwrap()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(why[0].contains("headers") && why[1].contains("key"), "{why:?}");
    sweep(&*store).await;
    assert_eq!(ids(&store.claim(queue.id, 9).await).len(), 2);
    store.close().await;
}

/// Two nodes that took from it at the same time would change the order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_nodes_take_each_row_once_and_in_order() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await;
    let rows: Vec<String> = (0..600).map(|n| format!("('t', 'k{}', '{n}')", n % 3)).collect();
    store
        .rows(&format!("INSERT INTO tramline_inbox (topic, `key`, payload) VALUES {}", rows.join(",")))
        .await;
    let nodes: Vec<_> = (0..4)
        .map(|_| {
            let url = store.url.clone();
            tokio::spawn(async move {
                let node = open(&url).await.unwrap();
                for _ in 0..20 {
                    sweep(&node).await;
                }
                node.close().await;
            })
        })
        .collect();
    for node in nodes {
        node.await.unwrap();
    }
    sweep(&*store).await;
    assert_eq!(inbox(&store).await, []);
    let claimed = store.claim(queue.id, 1000).await;
    let mut last = [-1i64; 3];
    let mut count = 0;
    for event in claimed.slices.iter().flat_map(|slice| &slice.events) {
        let number: i64 = std::str::from_utf8(&event.event.payload).unwrap().parse().unwrap();
        let key = (number % 3) as usize;
        assert!(number > last[key], "{number} after {}", last[key]);
        last[key] = number;
        count += 1;
    }
    assert_eq!(count, 600);
    store.close().await;
}

#[tokio::test]
async fn a_key_that_somebody_has_locked_holds_up_its_own_rows_only() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await;
    store.emit(event("locked")).await.unwrap();
    let mut tx = store.store.pool().begin().await.unwrap();
    store.emit_in(&mut tx, [event("locked")]).await.unwrap();
    let sql = "INSERT INTO tramline_inbox (topic, `key`, payload) VALUES \
               ('t', 'free', '1'), ('t', 'locked', '2'), ('t', 'locked', '3'), ('t', 'free', '4')";
    store.rows(sql).await;
    sweep(&*store).await;
    assert_eq!(inbox(&store).await.len(), 2);
    assert!(store.head("t", "free").await.unwrap().is_some());
    tx.rollback().await.unwrap();
    sweep(&*store).await;
    assert_eq!(inbox(&store).await, []);
    let claimed = store.claim(queue.id, 9).await;
    let of_locked: Vec<EventId> = claimed
        .slices
        .iter()
        .flat_map(|slice| &slice.events)
        .filter(|event| event.event.key.as_deref() == Some("locked"))
        .map(|event| event.event.id)
        .collect();
    assert_eq!(of_locked.len(), 3);
    assert!(of_locked.is_sorted());
    store.close().await;
}

/// Nobody sweeps: whoever waits for work feels that there is some.
#[tokio::test]
async fn a_worker_that_waits_gets_what_is_inserted() {
    let store = Private::open().await;
    gets_what_is_inserted(&store, Options::new(&store.url)).await;
    store.close().await;
}

/// The story: with another way for hints nobody but the sweep, every ten seconds, looked into the inbox.
#[tokio::test]
async fn however_hints_travel_a_worker_gets_what_is_inserted() {
    let store = Private::open().await;
    gets_what_is_inserted(&store, Options::new(&store.url).wake_url("in-process")).await;
    gets_what_is_inserted(&store, Options::new(&store.url).wake(Arc::new(InProcess::new()))).await;
    store.close().await;
}

/// Several times, so that it was no sweep.
async fn gets_what_is_inserted(store: &Private, options: Options) {
    let tram = Tramline::with(options).await.unwrap();
    let (got, mut gets) = tokio::sync::mpsc::channel(9);
    let worker = tram.worker("q").topics(["t"]).on_any(move || {
        let got = got.clone();
        async move { got.send(()).await.map_err(|_| "over") }
    });
    worker.subscribe().await.unwrap();
    let shutdown = Shutdown::new();
    let done = shutdown.clone();
    let running = tokio::spawn(async move { worker.run(done).await });
    let all = async {
        for _ in 0..4 {
            store.rows("INSERT INTO tramline_inbox (topic, payload) VALUES ('t', '1')").await;
            gets.recv().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(20), all).await.unwrap();
    shutdown.start();
    running.await.unwrap().unwrap();
    tram.close().await;
}
