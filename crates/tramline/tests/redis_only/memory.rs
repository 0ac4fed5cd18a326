//! What events cost in memory.

use crate::bed::{Server, emit, events, subscribe};
use tramline::model::subscription::Ordering;

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
