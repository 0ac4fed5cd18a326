//! Records of what was dropped, the totals of topics, and the size of the store.

use super::bed::{Bed, ROOT};
use axum::http::Method;
use serde_json::{Value, json};

/// A subscription of its own topic in which two of three events gave way to the newest.
async fn compacted(bed: &Bed, name: &str) -> Vec<Value> {
    let path = name.replace('/', "%2F");
    bed.put(&format!("/v1/subscriptions/{path}"), json!({"topics": [name], "compact": true})).await.good();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let emit = json!({"payload": 1, "key": "k"});
        let emitted = bed.post(&format!("/v1/topics/{path}/events"), emit).await.good();
        ids.push(emitted["events"][0]["id"].clone());
    }
    let claim = json!({"worker": "w", "max_events": 10});
    let claimed = bed.post(&format!("/v1/subscriptions/{path}/claim"), claim).await.good();
    assert_eq!(claimed["events"].as_array().map(Vec::len), Some(1));
    assert_eq!(claimed["events"][0]["id"], ids[2]);
    ids
}

#[tokio::test]
async fn compaction_is_set_shown_and_taken_back() {
    let bed = Bed::open().await;
    let put = async |body: Value| bed.put("/v1/subscriptions/s", body).await.good()["compact"].clone();
    assert_eq!(put(json!({"topics": ["t"]})).await, false);
    assert_eq!(put(json!({"topics": ["t"], "compact": true})).await, true);
    assert_eq!(put(json!({"topics": ["t"]})).await, true);
    assert_eq!(bed.get("/v1/subscriptions/s").await.good()["compact"], true);
    assert_eq!(put(json!({"topics": ["t"], "compact": false})).await, false);
}

#[tokio::test]
async fn what_gave_way_is_listed_with_its_reason() {
    let bed = Bed::open().await;
    let ids = compacted(&bed, "a").await;
    let listed = bed.get("/v1/drops").await.good();
    let record = &listed["items"][0];
    assert_eq!((&record["subscription"], &record["reason"]), (&json!("a"), &json!("compacted")));
    assert_eq!((&record["first"], &record["last"], &record["events"]), (&ids[0], &ids[1], &json!(2)));
    assert_eq!((listed["items"].as_array().unwrap().len(), &listed["next"]), (1, &Value::Null));
}

#[tokio::test]
async fn records_come_in_pages_from_the_oldest_or_the_newest_first() {
    let bed = Bed::open().await;
    for name in ["a", "b", "c"] {
        compacted(&bed, name).await;
    }
    let names = |listed: &Value| -> Vec<String> {
        let items = listed["items"].as_array().unwrap().iter();
        items.map(|item| item["subscription"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&bed.get("/v1/drops?limit=2").await.good()), ["c", "b"]);
    let first = bed.get("/v1/drops?limit=2&after=0").await.good();
    assert_eq!(names(&first), ["a", "b"]);
    let next = first["next"].as_str().unwrap();
    let second = bed.get(&format!("/v1/drops?limit=2&after={next}")).await.good();
    assert_eq!((names(&second), &second["next"]), (vec!["c".to_owned()], &Value::Null));
    assert_eq!(names(&bed.get("/v1/drops?subscription=b").await.good()), ["b"]);
    bed.get("/v1/drops?subscription=none").await.problem(404);
    bed.get("/v1/drops?after=x").await.problem(422);
}

#[tokio::test]
async fn a_token_sees_the_drops_of_its_own_subscriptions_only() {
    let bed = Bed::guarded().await;
    for name in ["acme/a", "rival/a"] {
        compacted(&bed, name).await;
    }
    let token =
        json!({"name": "m", "scopes": ["manage"], "topics": ["acme/**"], "subscriptions": ["acme/**"]});
    let token = bed.post("/v1/tokens", token).await.good()["token"].as_str().unwrap().to_owned();
    for path in ["/v1/drops", "/v1/drops?after=0", "/v1/drops?subscription=acme/a", "/metrics"] {
        let reply = bed.call(Method::GET, path, Some(&token), "").await;
        assert!(reply.text.contains("acme/a") && !reply.text.contains("rival"), "{path}: {}", reply.text);
    }
    for name in ["rival/a", "rival/none"] {
        let path = format!("/v1/drops?subscription={name}");
        bed.call(Method::GET, &path, Some(&token), "").await.problem(403);
    }
    let all = bed.call(Method::GET, "/metrics", Some(ROOT), "").await.text;
    let line = "tramline_dropped_events_total{subscription=\"rival/a\",reason=\"compacted\"} 2\n";
    assert!(all.contains(line), "{all}");
    let size = all.lines().find_map(|line| line.strip_prefix("tramline_store_bytes ")).unwrap();
    assert!(size.parse::<u64>().unwrap() > 100_000, "{size}");
}

#[tokio::test]
async fn a_topic_tells_how_many_events_it_ever_had() {
    let bed = Bed::open().await;
    compacted(&bed, "a").await;
    assert_eq!(bed.put("/v1/topics/b", json!({"lanes": 1})).await.good()["events"], 0);
    assert_eq!(bed.get("/v1/topics/a").await.good()["events"], 3);
    let listed = bed.get("/v1/topics").await.good();
    assert_eq!((&listed["items"][0]["events"], &listed["items"][1]["events"]), (&json!(3), &json!(0)));
}
