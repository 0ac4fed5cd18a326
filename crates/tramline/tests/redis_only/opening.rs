//! How a store is opened, and which servers will not do.

use crate::bed::{Server, claim, emit, subscribe};
use tramline::Event;
use tramline::error::Kind;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::verbs::PutTopic;

#[tokio::test]
async fn a_server_that_may_throw_events_away_is_refused() {
    let server = Server::start();
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let error = server.open().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.message().contains("allkeys-lru") && error.remedy().contains("noeviction"), "{error}");
}

#[tokio::test]
async fn a_store_of_a_newer_version_is_refused() {
    let server = Server::start();
    server.open().await.unwrap();
    server.command(&["HSET", "{tramline}:meta", "layout", "999"]).await;
    assert_eq!(server.open().await.unwrap_err().kind(), Kind::Conflict);
}

#[tokio::test]
async fn what_cannot_be_reached_says_so() {
    let error = tramline::store::open("redis://127.0.0.1:1").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(!error.remedy().is_empty());
}

#[tokio::test]
async fn stores_of_different_names_know_nothing_of_each_other() {
    let server = Server::start();
    let first = tramline::store::open(&format!("{}?name=a", server.url())).await.unwrap();
    let second = tramline::store::open(&format!("{}?name=b", server.url())).await.unwrap();
    let put = PutTopic { name: "t".into(), settings: Default::default(), now: None };
    first.put_topic(put).await.unwrap();
    assert_eq!(first.topics().await.unwrap().len(), 1);
    assert!(second.topics().await.unwrap().is_empty());
}

/// What a process knows of topics and subscriptions is read whenever they have changed, and is no more than a moment may read.
#[tokio::test]
async fn a_catalogue_of_any_size_is_read() {
    let server = Server::start();
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::None).await;
    let many = (0..4_000).map(|n| Event::new(format!("{n}-{}", "x".repeat(190)), "")).collect();
    emit(&store, many).await.unwrap();
    emit(&store, vec![Event::new("t", "x")]).await.unwrap();
    let another = server.open().await.unwrap();
    assert_eq!(another.topics().await.unwrap().len(), 4_001);
    assert_eq!(claim(&another, id, 10).await.unwrap().slices.len(), 1);
}
