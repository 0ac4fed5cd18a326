//! Tallies through the real binary, on every store: races of many clients, and nodes that share a store.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod node;
mod stores;

use futures_util::future::join_all;
use node::Node;
use serde_json::{Value, json};
use stores::{Place, on_every_store};

on_every_store![
    of_many_clients_that_ack_fail_add_and_seal_at_once_exactly_one_is_told,
    a_look_on_one_node_sees_the_end_that_another_brought,
    a_completion_event_comes_once_whoever_dies,
];

async fn open(node: &Node, tally: Value) -> String {
    node.post("/v1/tallies", tally).await["tally"].as_str().unwrap().to_owned()
}

async fn told(node: &Node, tally: &str, verb: &str, body: Value) -> usize {
    let answer = node.post(&format!("/v1/tallies/{tally}/{verb}"), body).await;
    usize::from(answer["completed_now"] == true)
}

/// Adds items of its own and ends them, like a producer that works itself.
async fn fill_and_end(node: &Node, tally: &str, client: u64) -> usize {
    let mut count = 0;
    for _ in 0..3 {
        let added = node.post(&format!("/v1/tallies/{tally}/add"), json!({"count": 5})).await;
        let first = added["first"].as_u64().unwrap();
        let verb = if client.is_multiple_of(3) { "fail" } else { "ack" };
        count += told(node, tally, "ack", json!({"items": [[first + 1, first + 4]]})).await;
        count += told(node, tally, verb, json!({"items": [[first, first + 2]]})).await;
    }
    count
}

async fn of_many_clients_that_ack_fail_add_and_seal_at_once_exactly_one_is_told(place: Place) {
    let nodes = [place.node(), place.node()];
    for round in 0..15 {
        let tally = open(&nodes[0], json!({"user_key": format!("round {round}")})).await;
        nodes[0].post(&format!("/v1/tallies/{tally}/add"), json!({"count": 40})).await;
        let fills = (0..4).map(|client| fill_and_end(&nodes[client as usize % 2], &tally, client));
        let before: usize = join_all(fills).await.into_iter().sum();
        assert_eq!(before, 0, "nothing is complete before it is sealed");
        let (nodes, tally) = (&nodes, &tally);
        let acks = (0..40usize).map(|n| {
            let verb = if n.is_multiple_of(7) { "fail" } else { "ack" };
            told(&nodes[n % 2], tally, verb, json!({"items": [(n * 11) % 40]}))
        });
        let seals = (0..6).map(|n| told(&nodes[n % 2], tally, "seal", json!({})));
        let (acked, sealed) = tokio::join!(join_all(acks), join_all(seals));
        assert_eq!(acked.into_iter().chain(sealed).sum::<usize>(), 1, "round {round}");
        let seen = nodes[1].get(&format!("/v1/tallies/{tally}")).await;
        assert_eq!(
            (&seen["complete"], &seen["total"], &seen["pending"]),
            (&json!(true), &json!(100), &json!(0))
        );
    }
}

async fn a_look_on_one_node_sees_the_end_that_another_brought(place: Place) {
    let (one, other) = (place.node(), place.node());
    let tally = open(&one, json!({})).await;
    one.post(&format!("/v1/tallies/{tally}/add"), json!({"count": 1})).await;
    one.post(&format!("/v1/tallies/{tally}/seal"), json!({})).await;
    let path = format!("/v1/tallies/{tally}?wait_ms=30000");
    let (seen, _) = tokio::join!(other.get(&path), told(&one, &tally, "ack", json!({"items": [0]})));
    assert_eq!(seen["complete"], true);
}

async fn a_completion_event_comes_once_whoever_dies(place: Place) {
    let mut node = place.node();
    for _ in 0..5 {
        let on_complete = json!({"topic": "told", "payload": {"n": 1}});
        let tally = open(&node, json!({"on_complete": on_complete})).await;
        node.post(&format!("/v1/tallies/{tally}/seal"), json!({})).await;
        node.signal("-KILL");
        node.ended();
        node = place.node();
    }
    let events = stores::until(async || {
        let reply = node.http.get(node.url("/v1/topics/told/events")).send().await.unwrap();
        let events: Value = serde_json::from_str(&reply.text().await.unwrap()).unwrap();
        let items = events["items"].as_array().cloned().unwrap_or_default();
        (items.len() >= 5).then_some(items)
    })
    .await;
    let mut tallies: Vec<String> =
        events.iter().map(|event| event["headers"]["tramline-tally"].to_string()).collect();
    tallies.dedup();
    assert_eq!((events.len(), tallies.len()), (5, 5), "{events:?}");
}
