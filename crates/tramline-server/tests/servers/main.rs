//! Several nodes on one store, and what they do when its server is gone.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod follow;
mod gone;
#[path = "../node/mod.rs"]
mod node;
#[path = "../own_redis/mod.rs"]
mod own_redis;
#[path = "../stores/mod.rs"]
mod stores;
mod way;

use node::{Node, until_true};
use serde_json::json;
use stores::{Place, on_every_store};

on_every_store![two_nodes_are_one_system];

async fn two_nodes_are_one_system(place: Place) {
    let (first, second) = (place.node(), place.node());
    first.put("/v1/subscriptions/s", json!({"topics": ["t"], "ordering": "key"})).await;
    let claim = second.post("/v1/subscriptions/s/claim", json!({"worker": "w", "wait_ms": 30_000}));
    let emit = async {
        until_true(async || {
            let metrics = second.metrics().await;
            metrics.contains("tramline_store_seconds_count{verb=\"claim\"}")
        })
        .await;
        first.post("/v1/topics/t/events", json!({"payload": 1, "key": "a"})).await
    };
    let (claimed, emitted) = tokio::join!(claim, emit);
    let event = &claimed["events"][0];
    assert_eq!(event["id"], emitted["events"][0]["id"]);
    let result = json!({"id": event["id"], "lease": event["lease"], "outcome": "done"});
    let settled = first.post("/v1/subscriptions/s/settle", json!({"results": [result]})).await;
    assert_eq!(settled["results"][0]["status"], "settled");
    // Who claims from one node is seen by the other.
    until_true(async || {
        let workers = first.get("/v1/workers").await;
        let items = workers["items"].as_array().unwrap();
        items
            .iter()
            .any(|it| it["name"] == "w" && it["kind"] == "http" && it["subscriptions"] == json!(["s"]))
    })
    .await;
    // A token of one node is known to the other, and so is its end.
    let token = first.post("/v1/tokens", json!({"name": "a", "scopes": ["admin"]})).await;
    let secret = token["token"].as_str().unwrap();
    let status = async |node: &Node, secret: Option<&str>| {
        let mut request = node.http.get(node.url("/v1/topics"));
        if let Some(secret) = secret {
            request = request.bearer_auth(secret);
        }
        request.send().await.unwrap().status().as_u16()
    };
    until_true(async || status(&second, Some(secret)).await == 200).await;
    until_true(async || status(&second, None).await == 401).await;
    let dropped = second.http.delete(second.url("/v1/tokens/a")).bearer_auth(secret).send().await.unwrap();
    assert_eq!(dropped.status(), 204);
    until_true(async || status(&first, None).await == 200).await;
}
