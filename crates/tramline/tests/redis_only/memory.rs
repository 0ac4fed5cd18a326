//! What events cost in memory, and how long the server is kept busy at a time.

use crate::bed::{Server, claim, done, emit, events, subscribe};
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::verbs::Sweep;

const EVENTS: usize = 50_000;
const BATCH: usize = 1_000;

#[tokio::test]
async fn a_pending_event_of_a_hundred_bytes_takes_less_than_250() {
    let server = Server::start();
    let store = server.open().await.unwrap();
    subscribe(&store, Ordering::None).await;
    let before = server.figure("memory", "used_memory").await;
    for _ in 0..EVENTS / BATCH {
        emit(&store, events(BATCH)).await.unwrap();
    }
    let each = (server.figure("memory", "used_memory").await - before) / EVENTS as u64;
    assert!(each < 250, "{each} bytes per event");
}

/// While a script runs, everybody else waits.
#[tokio::test]
async fn no_step_keeps_the_server_busy_for_long() {
    let server = Server::start();
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "5000"]).await;
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::Key).await;
    for _ in 0..5 {
        emit(&store, events(BATCH)).await.unwrap();
    }
    loop {
        let claimed = claim(&store, id, 1000).await.unwrap();
        if claimed.slices.is_empty() {
            break;
        }
        done(&store, id, &claimed).await.unwrap();
    }
    let later = store.now().await.unwrap().after(std::time::Duration::from_secs(48 * 3600));
    while store.sweep(Sweep { dead_after: None, limit: 1000, now: Some(later) }).await.unwrap().more {}
    let slow = server.command(&["SLOWLOG", "LEN"]).await;
    assert_eq!(slow, redis::Value::Int(0), "{:?}", server.command(&["SLOWLOG", "GET", "3"]).await);
}
