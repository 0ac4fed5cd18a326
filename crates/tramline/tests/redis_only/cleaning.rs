//! What is over is removed, however much there is of it, and never so much at a time that others have to wait.

use crate::bed::{Server, claim, done, emit, subscribe, subscribe_to};
use redis::Value;
use std::time::Duration;
use tramline::Event;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::redis::RedisStore;
use tramline::store::verbs::{Sweep, Swept};

const KEYS: usize = 450;

async fn sweep(store: &RedisStore, later: Duration, limit: u32) -> Swept {
    let now = store.now().await.unwrap().after(later);
    store.sweep(Sweep { dead_after: None, limit, now: Some(now) }).await.unwrap()
}

async fn emit_keys(store: &RedisStore, make: impl Fn(usize) -> Event) {
    for key in 0..KEYS {
        emit(store, vec![make(key)]).await.unwrap();
    }
}

/// One step of a hundred per sweep was all: whoever emitted more than that in the meantime filled the memory.
#[tokio::test]
async fn idempotency_keys_that_are_over_go_with_the_next_sweeps() {
    let server = Server::start();
    let store = server.open().await.unwrap();
    emit_keys(&store, |key| Event::new("t", "x").idempotency_key(format!("k{key}"))).await;
    let left = async || server.command(&["ZCARD", "{tramline}:once"]).await;
    assert_eq!(left().await, Value::Int(KEYS as i64));
    let day = Duration::from_secs(25 * 3600);
    assert!(sweep(&store, day, 200).await.more);
    assert_eq!(left().await, Value::Int(KEYS as i64 - 200));
    let before = server.trips().await;
    assert!(!sweep(&store, day, 1000).await.more);
    assert_eq!(left().await, Value::Int(0));
    assert_eq!(server.command(&["EXISTS", "{tramline}:once:1"]).await, Value::Int(0));
    let trips = server.trips().await - before;
    assert!(trips < 40, "{trips} trips for 250 keys");
}

#[tokio::test]
async fn unique_keys_that_count_no_longer_go_with_the_next_sweeps() {
    let server = Server::start();
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::None).await;
    emit_keys(&store, |key| Event::new("t", "x").unique(format!("k{key}"))).await;
    loop {
        let claimed = claim(&store, id, 1000).await.unwrap();
        if claimed.slices.is_empty() {
            break;
        }
        done(&store, id, &claimed).await.unwrap();
    }
    let year = Duration::from_secs(366 * 24 * 3600);
    assert!(sweep(&store, year, 200).await.more);
    assert!(!sweep(&store, year, 1000).await.more);
    assert_eq!(server.command(&["ZCARD", "{tramline}:unique"]).await, Value::Int(0));
}

/// What all subscriptions have of all topics was read once for each topic: with some thousands of both a sweep kept the server for minutes,
/// and each of its steps for more than others can wait.
#[tokio::test]
async fn a_sweep_reads_of_each_topic_only_what_is_had_of_it() {
    const TOPICS: u64 = 50;
    let server = Server::start();
    let store = server.open().await.unwrap();
    for n in 0..TOPICS {
        subscribe_to(&store, &format!("s{n}"), &format!("t{n}"), Ordering::None).await;
    }
    sweep(&store, Duration::ZERO, 1000).await;
    server.command(&["CONFIG", "RESETSTAT"]).await;
    sweep(&store, Duration::ZERO, 1000).await;
    // Rules and workers of each subscription are whole tables of its own.
    let tables = server.calls("hgetall").await;
    assert!(tables < TOPICS * 5, "{tables} tables were read");
}
