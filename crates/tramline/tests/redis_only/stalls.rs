//! While a script runs, everybody else waits: none may take long, however much there is.

use crate::bed::{Server, claim, done, emit, events, subscribe};
use redis::Value;
use std::time::Duration;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::redis::RedisStore;
use tramline::store::verbs::Sweep;

const EVENTS: usize = 1_000_000;
const BATCH: usize = 1_000;
const LONGEST: i64 = 5_000;

/// What took the server longest since it was asked before, in microseconds.
async fn longest(server: &Server, doing: &str) -> i64 {
    let Value::Array(slow) = server.command(&["SLOWLOG", "GET", "-1"]).await else { panic!("no slow log") };
    server.command(&["SLOWLOG", "RESET"]).await;
    let micros = |entry: &Value| match entry {
        Value::Array(fields) => match fields.get(2) {
            Some(Value::Int(micros)) => *micros,
            _ => 0,
        },
        _ => 0,
    };
    let longest = slow.iter().map(micros).max().unwrap_or(0);
    println!("{doing}: {longest} us at most, {} above 500", slow.len());
    longest
}

async fn sweep_all(store: &RedisStore, later: Duration, dead_after: Option<Duration>) {
    loop {
        let now = Some(store.now().await.unwrap().after(later));
        if !store.sweep(Sweep { dead_after, limit: 1_000, now }).await.unwrap().more {
            break;
        }
    }
}

#[tokio::test]
#[ignore = "a million events: measured on demand, on a machine that does nothing else"]
async fn nothing_takes_the_server_five_milliseconds() {
    let server = Server::start_with(&["--slowlog-log-slower-than", "500", "--slowlog-max-len", "100000"]);
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::None).await;
    for _ in 0..EVENTS / BATCH {
        emit(&store, events(BATCH)).await.unwrap();
    }
    let mut figures = vec![longest(&server, "emitting").await];
    for _ in 0..200 {
        let claimed = claim(&store, id, BATCH as u32).await.unwrap();
        done(&store, id, &claimed).await.unwrap();
    }
    figures.push(longest(&server, "working").await);
    for _ in 0..100 {
        claim(&store, id, BATCH as u32).await.unwrap();
    }
    sweep_all(&store, Duration::from_secs(3600), Some(Duration::from_secs(60))).await;
    claim(&store, id, 1).await.unwrap();
    figures.push(longest(&server, "ending leases").await);
    sweep_all(&store, Duration::from_secs(400 * 24 * 3600), None).await;
    figures.push(longest(&server, "retention").await);
    store.delete_subscription("q").await.unwrap();
    sweep_all(&store, Duration::ZERO, None).await;
    figures.push(longest(&server, "a deleted subscription").await);
    store.delete_topic("t").await.unwrap();
    sweep_all(&store, Duration::ZERO, None).await;
    figures.push(longest(&server, "a deleted topic").await);
    assert!(figures.iter().all(|longest| *longest < LONGEST), "{figures:?}");
}
