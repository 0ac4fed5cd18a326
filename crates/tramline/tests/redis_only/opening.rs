//! How a store is opened, and which servers will not do.

use crate::bed::{Server, claim, emit, subscribe};
use crate::between::Between;
use crate::fail_over::{Cluster, follow, until_copied};
use crate::warned::Warned;
use std::time::{Duration, Instant};
use tramline::Event;
use tramline::error::Kind;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::redis::RedisStore;
use tramline::store::verbs::PutTopic;

#[tokio::test]
async fn a_server_that_may_throw_events_away_is_refused() {
    let server = Server::start();
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let error = server.open().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.message().contains("allkeys-lru") && error.remedy().contains("noeviction"), "{error}");
}

/// Only primaries were asked, and a replica that took over threw events away.
#[tokio::test]
async fn a_node_of_a_cluster_that_may_throw_events_away_is_refused_be_it_a_replica() {
    let cluster = Cluster::start().await;
    for node in [&cluster.primary, &cluster.replica] {
        node.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
        let error = cluster.open().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        let named = format!("127.0.0.1:{} may throw", node.port());
        assert!(error.message().contains(&named) && error.remedy().contains("noeviction"), "{error}");
        let figures = RedisStore::examine(cluster.url().parse().unwrap()).await.unwrap();
        assert!(figures.refused.unwrap().0.contains(&named));
        node.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    }
    cluster.open().await.unwrap();
}

#[tokio::test]
async fn a_server_that_keeps_nothing_is_warned_of() {
    let (server, warned) = (Server::start_with(&["--appendonly", "no"]), Warned::on_this_thread());
    server.open().await.unwrap();
    let lines = warned.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("Redis keeps nothing on its disk"), "{lines:?}");
    server.command(&["CONFIG", "SET", "save", "3600 1"]).await;
    server.open().await.unwrap();
    assert_eq!(warned.of("since its last snapshot is lost").len(), 1, "{:?}", warned.lines());
}

/// `CONFIG GET` was answered by some node, and what it said was taken for all.
#[tokio::test]
async fn a_node_of_a_cluster_that_may_lose_something_is_named() {
    let (cluster, warned) = (Cluster::start().await, Warned::on_this_thread());
    let ports = [cluster.primary.port(), cluster.replica.port()].map(|port| port.to_string());
    cluster.primary.command(&["CONFIG", "SET", "appendfsync", "always"]).await;
    cluster.open().await.unwrap();
    let lines = warned.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("once a second") && lines[0].contains(&ports[1]), "{lines:?}");
    assert!(!lines[0].contains(&ports[0]), "{lines:?}");
    cluster.replica.command(&["CONFIG", "SET", "appendonly", "no"]).await;
    cluster.open().await.unwrap();
    let [line] = &warned.of("keeps nothing")[..] else { panic!("{:?}", warned.lines()) };
    assert!(line.contains(&ports[1]) && !line.contains(&ports[0]), "{line}");
    let figures = RedisStore::examine(cluster.url().parse().unwrap()).await.unwrap();
    for (port, sync) in ports.iter().zip(["always", "everysec"]) {
        let node = figures.nodes.iter().find(|node| node.address.ends_with(port)).unwrap();
        assert_eq!(node.appendfsync.as_deref(), Some(sync));
    }
}

/// What is needed is the primary; the replica is there for when that one is not.
#[tokio::test]
async fn a_replica_that_does_not_answer_keeps_nobody_from_opening_a_store() {
    let cluster = Cluster::start().await;
    cluster.replica.hang();
    let url = format!("{}?answer_ms=500", cluster.url());
    let store = RedisStore::open(url.parse().unwrap()).await.unwrap();
    emit(&store, vec![Event::new("t", "x")]).await.unwrap();
}

/// The server was judged once, when the store was opened.
#[tokio::test]
async fn a_server_that_takes_over_and_may_throw_events_away_is_warned_of() {
    let (server, other) = (Server::start(), Server::start_with(&["--maxmemory-policy", "allkeys-lru"]));
    let (name, warned) = (Between::start(&server).await, Warned::on_this_thread());
    let store = RedisStore::open(name.url.parse().unwrap()).await.unwrap();
    emit(&store, vec![Event::new("t", "x")]).await.unwrap();
    follow(&other, &server).await;
    until_copied(&server, &other).await;
    other.command(&["REPLICAOF", "NO", "ONE"]).await;
    follow(&server, &other).await;
    assert_eq!(warned.of("allkeys-lru"), [""; 0]);
    name.lead_to(&other);
    emit(&store, vec![Event::new("t", "x")]).await.unwrap();
    let start = Instant::now();
    while warned.of("allkeys-lru").is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "nobody looked again: {:?}", warned.lines());
        tokio::task::yield_now().await;
    }
    emit(&store, vec![Event::new("t", "x")]).await.unwrap();
    assert_eq!(warned.of("allkeys-lru").len(), 1, "it is said once: {:?}", warned.lines());
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
