//! A step that is overtaken again and again takes the turn, and gives it back however it ends.

use crate::bed::{Server, emit, events, subscribe};
use redis::Value;
use std::sync::Arc;
use tramline::model::subscription::Ordering;

const TURN: &str = "{tramline}:turn";

/// For how many more milliseconds somebody has the turn, if anybody has.
async fn left(server: &Server) -> Option<i64> {
    match server.command(&["PTTL", TURN]).await {
        Value::Int(left) => Some(left).filter(|left| *left >= 0),
        _ => None,
    }
}

/// Others had to wait until it ended by itself whenever somebody lost patience meanwhile.
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
    let mut last = loop {
        assert!(!emitting.is_finished(), "nobody was overtaken");
        if let Some(left) = left(&server).await {
            break left;
        }
    };
    emitting.abort();
    while let Some(left) = left(&server).await {
        last = left;
    }
    assert!(last > 100, "it ended by itself");
    disturbing.abort();
}
