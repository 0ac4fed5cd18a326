//! Nodes behind PgBouncer in transaction mode.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod node;

use node::{Node, until_true};
use serde_json::json;

/// The URL of a server of the tests.
fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: run ./test"))
}

/// A private schema behind the pooler.
fn pooled() -> String {
    let (server, schema) = (server("TRAMLINE_TEST_PGBOUNCER"), tramline::Incarnation::random().0);
    format!("{server}{}schema=serve_{schema:x}&pooled=true", if server.contains('?') { '&' } else { '?' })
}

/// A figure of a node's metrics; 0 if there is none yet.
async fn figure(node: &Node, name: &str) -> u64 {
    let metrics = node.metrics().await;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0, |value| value.parse().unwrap())
}

/// How often a waiting claim of one node got an event of another within this many seconds, of five.
async fn wakes(first: &Node, second: &Node, within: &str) -> u64 {
    const CLAIMS: &str = "tramline_store_seconds_count{verb=\"claim\"}";
    second.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await;
    for round in 1..=5 {
        let before = figure(second, CLAIMS).await;
        let claim = second.post("/v1/subscriptions/s/claim", json!({"wait_ms": 30_000}));
        let emit = async {
            // It has looked, and found nothing.
            until_true(async || figure(second, CLAIMS).await > before).await;
            first.post("/v1/topics/t/events", json!({"payload": round})).await
        };
        let (claimed, emitted) = tokio::join!(claim, emit);
        assert_eq!(claimed["events"][0]["id"], emitted["events"][0]["id"]);
    }
    figure(second, &format!("tramline_wake_lag_seconds_bucket{{le=\"{within}\"}}")).await
}

/// The pooler loses LISTEN, so hints go past it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_nodes_wake_each_other_past_it() {
    let store = pooled();
    let direct = server("TRAMLINE_TEST_POSTGRES");
    let arguments = ["--store", &store, "--store-listen-url", &direct];
    let (first, second) = (Node::start(&arguments), Node::start(&arguments));
    // Without hints a claim that waits looks again after a second.
    let prompt = wakes(&first, &second, "0.25").await;
    assert!(prompt >= 3, "{prompt} of 5 events came promptly");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_without_a_way_past_it_events_are_found_by_looking() {
    let store = pooled();
    let (first, second) = (Node::start(&["--store", &store]), Node::start(&["--store", &store]));
    assert_eq!(wakes(&first, &second, "5").await, 5);
}
