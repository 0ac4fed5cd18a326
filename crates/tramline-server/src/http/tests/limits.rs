//! Limits of subscriptions over the API.

use super::bed::Bed;
use serde_json::{Value, json};

const S: &str = "/v1/subscriptions/s";

async fn limited(limits: Value) -> Bed {
    let bed = Bed::open().await;
    bed.put(S, json!({"topics": ["t"], "limits": limits})).await.good();
    for _ in 0..10 {
        bed.post("/v1/topics/t/events", json!({"payload": 1, "key": "k"})).await.good();
    }
    bed
}

async fn claim(bed: &Bed) -> Value {
    bed.post("/v1/subscriptions/s/claim", json!({"worker": "w", "max_events": 100})).await.good()
}

fn count(claimed: &Value) -> usize {
    claimed["events"].as_array().unwrap().len()
}

#[tokio::test]
async fn limits_are_set_shown_kept_and_taken_away() {
    let limits = json!({"concurrency": 5, "per_key_concurrency": 2, "rate": {"events": 10, "per_ms": 60000}});
    let bed = limited(limits.clone()).await;
    assert_eq!(bed.get(S).await.good()["limits"], limits);
    let kept = bed.put(S, json!({"topics": ["t"], "max_attempts": 7})).await.good();
    assert_eq!((&kept["limits"], &kept["max_attempts"]), (&limits, &json!(7)));
    let less = bed.put(S, json!({"topics": ["t"], "limits": {"concurrency": 1}})).await.good();
    assert_eq!(less["limits"], json!({"concurrency": 1}));
    let none = bed.put(S, json!({"topics": ["t"], "limits": null})).await.good();
    assert_eq!(none.get("limits"), None);
}

#[tokio::test]
async fn a_claim_takes_no_more_than_is_allowed_and_says_until_when() {
    let bed = limited(json!({"concurrency": 3})).await;
    let claimed = claim(&bed).await;
    assert_eq!(count(&claimed), 3);
    assert_eq!(claimed["limited_until"], claimed["events"][0]["lease_until"]);
    let refused = claim(&bed).await;
    assert_eq!((count(&refused), refused["limited_until"].is_string()), (0, true));
    let event = &claimed["events"][0];
    let result = json!({"id": event["id"], "lease": event["lease"], "outcome": "done"});
    bed.post("/v1/subscriptions/s/settle", json!({"results": [result]})).await.good();
    assert_eq!(count(&claim(&bed).await), 1);
}

#[tokio::test]
async fn a_claim_that_waits_gets_the_slot_that_comes_free() {
    let bed = limited(json!({"per_key_concurrency": 1})).await;
    let claimed = claim(&bed).await;
    assert_eq!((count(&claimed), claimed.get("limited_until")), (1, None));
    let wait = json!({"worker": "v", "max_events": 1, "wait_ms": 20000});
    let event = claimed["events"][0].clone();
    let settle = async {
        let result = json!({"id": event["id"], "lease": event["lease"], "outcome": "done"});
        bed.post("/v1/subscriptions/s/settle", json!({"results": [result]})).await.good()
    };
    let (waited, _) = tokio::join!(bed.post("/v1/subscriptions/s/claim", wait), settle);
    assert_eq!(count(&waited.good()), 1);
}

#[tokio::test]
async fn a_rate_says_when_to_come_again() {
    let bed = limited(json!({"rate": {"events": 4, "per_ms": 3600000}})).await;
    assert_eq!(count(&claim(&bed).await), 4);
    let refused = claim(&bed).await;
    assert_eq!((count(&refused), refused["limited_until"].is_string()), (0, true));
}

#[tokio::test]
async fn impossible_limits_are_refused_with_a_remedy() {
    let bed = Bed::open().await;
    let bad = [
        json!(5),
        json!([5]),
        json!({"concurrency": 0}),
        json!({"concurrency": -1}),
        json!({"concurrency": 10_001}),
        json!({"concurrency": 1e20}),
        json!({"concurrency": "5"}),
        json!({"per_key_concurrency": 0}),
        json!({"rate": 5}),
        json!({"rate": {"events": 5}}),
        json!({"rate": {"events": 0, "per_ms": 1000}}),
        json!({"rate": {"events": -5, "per_ms": 1000}}),
        json!({"rate": {"events": 1_000_001, "per_ms": 1000}}),
        json!({"rate": {"events": 5, "per_ms": 99}}),
        json!({"rate": {"events": 5, "per_ms": u64::MAX}}),
        json!({"rate": {"events": 5, "per_ms": 1000, "burst": 1}}),
        json!({"unknown": 1}),
    ];
    for limits in bad {
        bed.put(S, json!({"topics": ["t"], "limits": limits})).await.problem(422);
    }
    let ordered = json!({"topics": ["t"], "ordering": "key", "limits": {"per_key_concurrency": 1}});
    bed.put(S, ordered).await.problem(422);
    let push = json!({"topics": ["t"], "kind": "push", "callback": "https://example.org/", "limits": {"concurrency": 1}});
    bed.put(S, push).await.problem(422);
    bed.get(S).await.problem(404);
}
