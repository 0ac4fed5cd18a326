//! What events cost in memory.

use crate::bed::{Server, emit, events, subscribe};
use tramline::model::subscription::Ordering;
use tramline::store::Store;

const BATCH: usize = 1_000;

async fn each_of(events_in_all: usize) -> u64 {
    let server = Server::start();
    each_in(&server, &server.open().await.unwrap(), events_in_all).await
}

async fn each_of_spread(events_in_all: usize) -> u64 {
    let server = Server::start();
    each_in(&server, &server.open_spread().await, events_in_all).await
}

async fn each_in(server: &Server, store: &dyn Store, events_in_all: usize) -> u64 {
    subscribe(store, Ordering::None).await;
    let before = server.figure("memory", "used_memory").await;
    for _ in 0..events_in_all / BATCH {
        emit(store, events(BATCH)).await.unwrap();
    }
    (server.figure("memory", "used_memory").await - before) / events_in_all as u64
}

/// In a store that is spread numbers are longer, and every row and every entry of an index has some.
#[tokio::test]
async fn a_pending_event_of_a_hundred_bytes_takes_less_than_250() {
    for each in [each_of(50_000).await, each_of_spread(50_000).await] {
        assert!(each < 250, "{each} bytes per event");
    }
}

#[tokio::test]
#[ignore = "a million events: measured on demand"]
async fn a_million_pending_events_take_less_than_250_bytes_each() {
    for each in [each_of(1_000_000).await, each_of_spread(1_000_000).await] {
        println!("{each} bytes per event");
        assert!(each < 250, "{each} bytes per event");
    }
}
