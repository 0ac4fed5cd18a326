//! What the API offers beyond claim and settle, through the real binary on every store: a request or two of each, to see that a store does
//! not only keep its promises to the library.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod node;
mod stores;

use node::{Node, answer};
use serde_json::{Value, json};
use stores::{Place, on_every_store};

on_every_store![
    a_rule_by_pattern_stops_what_it_covers_and_what_comes,
    a_limit_leaves_the_rest_for_later_and_says_until_when,
    a_unique_event_is_stored_once_or_replaces_the_one_that_waits,
    dead_letters_are_found_replayed_and_dropped_by_what_is_true_of_them,
    the_life_of_an_event_tells_who_has_it_why_it_failed_and_what_it_waits_for,
    the_chain_of_a_key_is_listed_from_both_ends,
    a_schedule_runs_when_it_is_asked_to,
    what_gave_way_to_newer_events_is_in_the_list_of_drops,
];

async fn subscribe(node: &Node, name: &str, policy: Value) {
    let mut policy = policy;
    policy["topics"] = json!(["t"]);
    node.put(&format!("/v1/subscriptions/{name}"), policy).await;
}

async fn emit(node: &Node, event: Value) -> Value {
    node.post("/v1/topics/t/events", event).await["events"][0].clone()
}

/// Claims what there is, up to ten events.
async fn claim(node: &Node, name: &str) -> Vec<Value> {
    let claim = json!({"worker": "ada", "max_events": 10});
    let claimed = node.post(&format!("/v1/subscriptions/{name}/claim"), claim).await;
    claimed["events"].as_array().unwrap().clone()
}

async fn settle(node: &Node, name: &str, event: &Value, outcome: Value) {
    let mut result = outcome;
    (result["id"], result["lease"]) = (event["id"].clone(), event["lease"].clone());
    let settled = node.post(&format!("/v1/subscriptions/{name}/settle"), json!({"results": [result]})).await;
    assert_eq!(settled["results"][0]["status"], "settled");
}

/// One field of each item of a list.
fn each(list: &Value, field: &str) -> Vec<Value> {
    list["items"].as_array().unwrap().iter().map(|item| item[field].clone()).collect()
}

async fn a_rule_by_pattern_stops_what_it_covers_and_what_comes(place: Place) {
    let node = place.node();
    subscribe(&node, "acme%2Fmails", json!({})).await;
    subscribe(&node, "other", json!({})).await;
    let pattern = json!({"pattern": "acme/**", "kind": "pause", "reason": "acme moves"});
    let rule = node.post("/v1/rules", pattern).await;
    assert_eq!(rule["subscriptions"], 1);
    subscribe(&node, "acme%2Flater", json!({})).await;
    emit(&node, json!({"payload": 1})).await;
    for name in ["acme%2Fmails", "acme%2Flater"] {
        assert_eq!(claim(&node, name).await, [] as [Value; 0]);
    }
    assert_eq!(claim(&node, "other").await.len(), 1);
    assert_eq!(node.get("/v1/rules").await["items"][0]["subscriptions"], 2);
    let remove = node.url(&format!("/v1/rules/{}", rule["id"].as_str().unwrap()));
    let removed = answer(node.http.delete(remove).send().await.unwrap()).await;
    assert_eq!(removed["subscriptions"], 2);
    assert_eq!(claim(&node, "acme%2Flater").await.len(), 1);
}

async fn a_limit_leaves_the_rest_for_later_and_says_until_when(place: Place) {
    let node = place.node();
    let rate = json!({"events": 3, "per_ms": 3_600_000});
    subscribe(&node, "s", json!({"limits": {"concurrency": 2, "rate": rate}})).await;
    let events: Vec<Value> = (0..5).map(|n| json!({"payload": n})).collect();
    node.post("/v1/topics/t/events", json!(events)).await;
    let first = claim(&node, "s").await;
    assert_eq!(first.len(), 2, "so many at once");
    for event in &first {
        settle(&node, "s", event, json!({"outcome": "done"})).await;
    }
    let claimed = node.post("/v1/subscriptions/s/claim", json!({"max_events": 10})).await;
    assert_eq!(claimed["events"].as_array().unwrap().len(), 1, "so many in an hour");
    assert!(claimed["limited_until"].is_string(), "{claimed}");
}

async fn a_unique_event_is_stored_once_or_replaces_the_one_that_waits(place: Place) {
    let node = place.node();
    subscribe(&node, "s", json!({})).await;
    let unique =
        |payload: u32, policy: &str| json!({"payload": payload, "unique": {"key": "u", "policy": policy}});
    let first = emit(&node, unique(1, "keep")).await;
    let second = emit(&node, unique(2, "keep")).await;
    assert_eq!((&second["id"], &second["duplicate"]), (&first["id"], &json!(true)));
    let third = emit(&node, unique(3, "replace")).await;
    assert_ne!(third["id"], first["id"]);
    let claimed = claim(&node, "s").await;
    assert_eq!((claimed.len(), &claimed[0]["payload"]), (1, &json!(3)));
}

async fn dead_letters_are_found_replayed_and_dropped_by_what_is_true_of_them(place: Place) {
    let node = place.node();
    subscribe(&node, "s", json!({})).await;
    for kind in ["paid", "sent", "sent"] {
        emit(&node, json!({"payload": 1, "type": kind})).await;
    }
    for event in claim(&node, "s").await {
        settle(&node, "s", &event, json!({"outcome": "dead", "error": "HTTP 503"})).await;
    }
    let found = node.get("/v1/subscriptions/s/dead?type=sent&error=HTTP%2050").await;
    assert_eq!(each(&found, "type"), ["sent", "sent"]);
    assert_eq!(found["items"][0]["failures"][0]["worker"], "ada");
    let replayed = node.post("/v1/subscriptions/s/dead/replay", json!({"type": "paid"})).await;
    assert_eq!((&replayed["count"], &claim(&node, "s").await[0]["replayed"]), (&json!(1), &json!(true)));
    let dropped = node.post("/v1/subscriptions/s/dead/drop", json!({"error_prefix": "HTTP"})).await;
    assert_eq!(dropped["count"], 2);
    assert_eq!(node.get("/v1/subscriptions/s").await["counts"]["dead"], 0);
}

async fn the_life_of_an_event_tells_who_has_it_why_it_failed_and_what_it_waits_for(place: Place) {
    let node = place.node();
    subscribe(
        &node,
        "s",
        json!({"ordering": "key", "max_attempts": 2, "backoff": {"kind": "constant", "delay_ms": 0}}),
    )
    .await;
    let first = emit(&node, json!({"payload": 1, "key": "k"})).await;
    let second = emit(&node, json!({"payload": 2, "key": "k"})).await;
    let life = async |event: &Value| {
        let view = node.get(&format!("/v1/events/{}", event["id"].as_str().unwrap())).await;
        view["deliveries"][0].clone()
    };
    let claimed = claim(&node, "s").await;
    let told = life(&first).await;
    assert_eq!((&told["status"], &told["worker"]), (&json!("leased"), &json!("ada")));
    settle(&node, "s", &claimed[0], json!({"outcome": "dead", "error": "no such mailbox"})).await;
    let told = life(&first).await;
    assert_eq!((&told["status"], &told["failures"][0]["error"]), (&json!("dead"), &json!("no such mailbox")));
    node.post("/v1/subscriptions/s/dead/drop", json!({"all": true})).await;
    assert_eq!(life(&first).await["gone"]["reason"], "dropped");
    node.post("/v1/subscriptions/s/pause", json!({"reason": "moves"})).await;
    let third = emit(&node, json!({"payload": 3, "key": "k"})).await;
    let told = life(&third).await;
    assert_eq!((&told["rules"][0]["reason"], &told["blocked_by"]), (&json!("moves"), &second["id"]));
}

async fn the_chain_of_a_key_is_listed_from_both_ends(place: Place) {
    let node = place.node();
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(emit(&node, json!({"payload": n, "key": "k"})).await["id"].clone());
        emit(&node, json!({"payload": n, "key": "other"})).await;
    }
    let oldest = node.get("/v1/topics/t/chain?key=k&order=oldest").await;
    assert_eq!(each(&oldest, "id"), ids);
    assert_eq!(each(&oldest, "prev"), [Value::Null, ids[0].clone(), ids[1].clone()]);
    let after = ids[2].as_str().unwrap();
    let newest = node.get(&format!("/v1/topics/t/chain?key=k&after={after}")).await;
    assert_eq!(each(&newest, "id"), [ids[1].clone(), ids[0].clone()]);
}

async fn a_schedule_runs_when_it_is_asked_to(place: Place) {
    let node = place.node();
    let yearly = json!({"cron": "@yearly", "topic": "t", "type": "report", "payload": {"year": true}});
    let next = node.put("/v1/schedules/yearly", yearly).await["next_run_at"].clone();
    let ran = node.post("/v1/schedules/yearly/run", json!({})).await;
    let log = node.get("/v1/topics/t/events").await;
    assert_eq!(each(&log, "id"), [ran["events"][0]["id"].clone()]);
    assert_eq!(log["items"][0]["headers"]["tramline-schedule"], "yearly");
    assert_eq!(node.get("/v1/schedules/yearly").await["next_run_at"], next);
}

async fn what_gave_way_to_newer_events_is_in_the_list_of_drops(place: Place) {
    let node = place.node();
    subscribe(&node, "s", json!({"compact": true})).await;
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(emit(&node, json!({"payload": n, "key": "k"})).await["id"].clone());
    }
    assert_eq!(claim(&node, "s").await.len(), 1);
    let record = node.get("/v1/drops?subscription=s").await["items"][0].clone();
    assert_eq!((&record["reason"], &record["events"]), (&json!("compacted"), &json!(2)));
    assert_eq!((&record["first"], &record["last"]), (&ids[0], &ids[1]));
}
