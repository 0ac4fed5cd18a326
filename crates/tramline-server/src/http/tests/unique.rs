//! Unique events over the API.

use super::bed::Bed;
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

const EVENTS: &str = "/v1/topics/t/events";

async fn bed() -> Bed {
    let bed = Bed::open().await;
    bed.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await.good();
    bed
}

async fn emit(bed: &Bed, unique: Value) -> Value {
    let receipt = bed.post(EVENTS, json!({"payload": 1, "unique": unique})).await.good();
    receipt["events"][0].clone()
}

async fn pending(bed: &Bed) -> Value {
    bed.get("/v1/subscriptions/s").await.good()["counts"]["ready"].clone()
}

#[tokio::test]
async fn a_duplicate_is_answered_with_the_event_that_is_there() {
    let bed = bed().await;
    let first = emit(&bed, json!({"key": "u"})).await;
    assert_eq!(first.get("duplicate"), None);
    let second = emit(&bed, json!({"key": "u", "policy": "keep"})).await;
    assert_eq!((&second["id"], &second["duplicate"]), (&first["id"], &json!(true)));
    assert_eq!(pending(&bed).await, 1);
    let third = emit(&bed, json!({"key": "u", "policy": "replace"})).await;
    assert!(third["id"] != first["id"] && third.get("duplicate").is_none());
    assert_eq!(pending(&bed).await, 1);
}

#[tokio::test]
async fn a_window_is_given_in_milliseconds() {
    let bed = Bed::open().await;
    let first = emit(&bed, json!({"key": "u", "for_ms": 3_600_000})).await;
    assert_eq!(emit(&bed, json!({"key": "u"})).await["id"], first["id"]);
}

#[tokio::test]
async fn an_array_stores_what_is_not_there_yet() {
    let bed = bed().await;
    let first = emit(&bed, json!({"key": "u"})).await;
    let unit = json!([{"payload": 1}, {"payload": 2, "unique": {"key": "u"}}, {"payload": 3, "unique": {"key": "v"}}]);
    let receipt = bed.post(EVENTS, unit).await.good();
    assert_eq!(
        receipt["events"][1],
        json!({"id": first["id"], "prev": null, "key": null, "duplicate": true})
    );
    assert_eq!(pending(&bed).await, 3);
    let twice = json!([{"payload": 1, "unique": {"key": "w"}}, {"payload": 2, "unique": {"key": "w"}}]);
    bed.post(EVENTS, twice).await.problem(422);
    assert_eq!(pending(&bed).await, 3);
}

#[tokio::test]
async fn raw_bytes_say_it_in_headers() {
    let bed = bed().await;
    let send = async |policy: &str| {
        let request = Request::post(EVENTS)
            .header("content-type", "text/plain")
            .header("tramline-unique", "u")
            .header("tramline-unique-for-ms", "1000")
            .header("tramline-unique-policy", policy);
        bed.send(request.body(Body::from("x")).unwrap()).await
    };
    let first = send("keep").await.good();
    assert_eq!(send("keep").await.good()["events"][0]["id"], first["events"][0]["id"]);
    assert!(send("replace").await.good()["events"][0].get("duplicate").is_none());
    send("nonsense").await.problem(422);
    assert_eq!(pending(&bed).await, 1);
}

#[tokio::test]
async fn a_schedule_may_emit_unique_events() {
    let bed = bed().await;
    let schedule = json!({"every_ms": 60000, "topic": "t", "unique": {"key": "u", "policy": "replace"}});
    let stored = bed.put("/v1/schedules/n", schedule).await.good();
    assert_eq!(stored["unique"], json!({"key": "u", "for_ms": 0, "policy": "replace"}));
    for _ in 0..3 {
        bed.post("/v1/schedules/n/run", json!({})).await.good();
    }
    assert_eq!(pending(&bed).await, 1);
}

#[tokio::test]
async fn impossible_unique_keys_are_refused_with_a_remedy() {
    let bed = Bed::open().await;
    let bad = [
        json!("u"),
        json!(["u"]),
        json!({}),
        json!({"key": ""}),
        json!({"key": 7}),
        json!({"key": "k".repeat(513)}),
        json!({"key": "nul\u{0}"}),
        json!({"key": "u", "for_ms": -1}),
        json!({"key": "u", "for_ms": 2_678_400_001_u64}),
        json!({"key": "u", "for_ms": u64::MAX}),
        json!({"key": "u", "for_ms": "1"}),
        json!({"key": "u", "policy": "drop"}),
        json!({"key": "u", "unknown": 1}),
    ];
    for unique in bad {
        bed.post(EVENTS, json!({"payload": 1, "unique": unique})).await.problem(422);
    }
    assert_eq!(bed.get("/v1/topics").await.good()["items"], json!([]), "nothing was created");
}
