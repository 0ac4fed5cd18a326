//! Events as items of tallies, tallies as items of tallies, and the events that tallies emit by themselves.

use super::bed::Bed;
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

const EVENTS: &str = "/v1/topics/t/events";

async fn bed() -> Bed {
    let bed = Bed::open().await;
    bed.put("/v1/subscriptions/s", json!({"topics": ["t"], "max_attempts": 1})).await.good();
    bed
}

async fn open(bed: &Bed, tally: Value) -> String {
    bed.post("/v1/tallies", tally).await.good()["tally"].as_str().unwrap().to_owned()
}

async fn tally(bed: &Bed, tally: &str) -> Value {
    bed.get(&format!("/v1/tallies/{tally}")).await.good()
}

async fn seal(bed: &Bed, tally: &str) {
    bed.post(&format!("/v1/tallies/{tally}/seal"), json!({})).await.good();
}

async fn claim(bed: &Bed) -> Vec<Value> {
    let claimed = bed.post("/v1/subscriptions/s/claim", json!({"max_events": 100})).await.good();
    claimed["events"].as_array().unwrap().clone()
}

async fn settle(bed: &Bed, event: &Value, outcome: &str) {
    let result = json!({"id": event["id"], "lease": event["lease"], "outcome": outcome});
    bed.post("/v1/subscriptions/s/settle", json!({"results": [result]})).await.good();
}

/// The events of a topic, as soon as there are any: tallies emit a moment after what they tell.
async fn emitted(bed: &Bed, topic: &str) -> Vec<Value> {
    loop {
        let reply = bed.get(&format!("/v1/topics/{topic}/events")).await;
        if reply.status == 200
            && let Some(items) = reply.json()["items"].as_array().filter(|items| !items.is_empty())
        {
            return items.clone();
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn settling_events_ends_the_items_that_they_are() {
    let bed = bed().await;
    let on_complete =
        json!({"topic": "done", "type": "import.done", "key": "import-7", "payload": {"import": 7}});
    let on_failure = json!({"topic": "failures", "payload": "look"});
    let id = open(&bed, json!({"on_complete": on_complete, "on_failure": on_failure})).await;
    bed.post(EVENTS, json!({"payload": 1, "tally": {"id": id}})).await.good();
    bed.post(EVENTS, json!([{"payload": 2, "tally": {"id": id, "subscription": "s"}}, {"payload": 3}]))
        .await
        .good();
    let lines = format!("{{\"payload\": 4, \"tally\": {{\"id\": \"{id}\"}}}}\n");
    let request = Request::post(EVENTS).header("content-type", "application/x-ndjson");
    bed.send(request.body(Body::from(lines)).unwrap()).await.good();
    let request = Request::post(EVENTS).header("content-type", "text/plain").header("tramline-tally", &id);
    bed.send(request.body(Body::from("raw")).unwrap()).await.good();
    seal(&bed, &id).await;
    let events = claim(&bed).await;
    let items: Vec<bool> = events.iter().map(|event| event["tally"]["id"] == json!(id)).collect();
    assert_eq!(items, [true, true, false, true, true]);
    assert!(events.iter().filter_map(|event| event.get("tally")).all(|tally| tally["item"].is_u64()));
    settle(&bed, &events[0], "dead").await;
    let failure = &emitted(&bed, "failures").await[0];
    assert_eq!((&failure["payload"], &failure["headers"]["tramline-tally"]), (&json!("look"), &json!(id)));
    for event in &events[1..] {
        settle(&bed, event, "done").await;
    }
    let seen = tally(&bed, &id).await;
    assert_eq!((&seen["complete"], &seen["done"], &seen["failed"]), (&json!(true), &json!(3), &json!(1)));
    let told = emitted(&bed, "done").await;
    assert_eq!(
        (told.len(), &told[0]["type"], &told[0]["key"]),
        (1, &json!("import.done"), &json!("import-7"))
    );
    let headers = &told[0]["headers"];
    assert_eq!(
        (&headers["tramline-tally-total"], &headers["tramline-tally-failed"]),
        (&json!("4"), &json!("1"))
    );
}

#[tokio::test]
async fn a_growing_tally_takes_events_and_items_from_inside_its_own_after_it_was_sealed() {
    let bed = bed().await;
    let id = open(&bed, json!({"growing": true})).await;
    bed.post(EVENTS, json!({"payload": 1, "tally": {"id": id}})).await.good();
    seal(&bed, &id).await;
    bed.post(EVENTS, json!({"payload": 2, "tally": {"id": id}})).await.problem(409);
    let event = claim(&bed).await.remove(0);
    let within = &event["tally"]["item"];
    bed.post(EVENTS, json!({"payload": 2, "tally": {"id": id, "within": within}})).await.good();
    let request = Request::post(EVENTS).header("content-type", "text/plain");
    let request = request.header("tramline-tally", &id).header("tramline-tally-within", within.to_string());
    bed.send(request.body(Body::from("raw")).unwrap()).await.good();
    let add = format!("/v1/tallies/{id}/add");
    let keyed = || {
        let request = Request::post(&add).header("idempotency-key", "a");
        request.body(Body::from(json!({"count": 2, "within": within}).to_string())).unwrap()
    };
    let added = bed.send(keyed()).await.good();
    assert_eq!(bed.send(keyed()).await.good()["first"], added["first"]);
    bed.post(&add, json!({"count": 1})).await.problem(409);
    settle(&bed, &event, "done").await;
    bed.post(&add, json!({"count": 1, "within": within})).await.problem(409);
    for event in claim(&bed).await {
        settle(&bed, &event, "done").await;
    }
    assert_eq!(tally(&bed, &id).await["pending"], 2);
    let first = added["first"].as_u64().unwrap();
    let last =
        bed.post(&format!("/v1/tallies/{id}/ack"), json!({"items": [[first, first + 1]]})).await.good();
    assert_eq!((&last["completed_now"], &last["total"]), (&json!(true), &json!(5)));
}

#[tokio::test]
async fn an_item_ends_with_one_subscription_and_it_must_be_known_which() {
    let bed = Bed::open().await;
    let id = open(&bed, json!({})).await;
    let member =
        |subscription: Value| json!({"payload": 1, "tally": {"id": id, "subscription": subscription}});
    bed.post(EVENTS, member(Value::Null)).await.problem(422);
    for name in ["s", "other"] {
        bed.put(&format!("/v1/subscriptions/{name}"), json!({"topics": ["t"]})).await.good();
    }
    bed.post(EVENTS, member(Value::Null)).await.problem(422);
    bed.post(EVENTS, member(json!("nobody"))).await.problem(422);
    bed.post(EVENTS, member(json!("s"))).await.good();
    bed.post(EVENTS, json!({"payload": 1, "tally": {"id": "999999", "subscription": "s"}}))
        .await
        .problem(404);
    bed.post(EVENTS, json!({"payload": 1, "tally": {"id": 5}})).await.problem(422);
    let raw = Request::post(EVENTS).header("content-type", "text/plain").header("tramline-tally", "x");
    bed.send(raw.body(Body::from("raw")).unwrap()).await.problem(422);
    assert_eq!(tally(&bed, &id).await["total"], 1);
}

#[tokio::test]
async fn a_tally_is_an_item_of_another() {
    let bed = Bed::open().await;
    let parent = open(&bed, json!({})).await;
    let opened = bed.post("/v1/tallies", json!({"parent": {"id": parent}})).await.good();
    let child = opened["tally"].as_str().unwrap();
    assert_eq!(opened["parent"]["id"], json!(parent));
    assert_eq!(tally(&bed, child).await["parent"], opened["parent"]);
    seal(&bed, &parent).await;
    seal(&bed, child).await;
    let seen = bed.get(&format!("/v1/tallies/{parent}?wait_ms=60000")).await.good();
    assert_eq!((&seen["complete"], &seen["total"]), (&json!(true), &json!(1)));
    bed.post("/v1/tallies", json!({"parent": {"id": parent}})).await.problem(409);
}
