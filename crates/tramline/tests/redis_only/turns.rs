//! A step that is overtaken again and again takes the turn, and gives it back however it ends.

use crate::bed::{Server, emit, events, subscribe};
use redis::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tramline::model::subscription::Ordering;

const TURN: &str = "{tramline}:turn";

async fn is_taken(server: &Server) -> bool {
    server.command(&["EXISTS", TURN]).await == Value::Int(1)
}

/// Others had to wait for two seconds whenever somebody lost patience meanwhile.
#[tokio::test]
async fn a_caller_who_goes_away_gives_the_turn_back() {
    let server = Arc::new(Server::start());
    let store = server.open().await.unwrap();
    subscribe(&store, Ordering::None).await;
    // Somebody who does not wait for turns changes what every step reads.
    let disturbing = tokio::spawn({
        let server = server.clone();
        async move {
            let client = redis::Client::open(server.url()).unwrap();
            let mut connection = client.get_multiplexed_async_connection().await.unwrap();
            loop {
                let mut change = redis::cmd("HINCRBY");
                change.arg("{tramline}:meta").arg("catalog").arg(1);
                change.query_async::<()>(&mut connection).await.unwrap();
            }
        }
    });
    let emitting = tokio::spawn(async move { emit(&store, events(1)).await });
    while !is_taken(&server).await {
        assert!(!emitting.is_finished(), "nobody was overtaken");
    }
    let start = Instant::now();
    emitting.abort();
    while is_taken(&server).await {}
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    disturbing.abort();
}
