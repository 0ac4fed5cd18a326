//! Dead events over HTTP: why they died, which of them come back and how fast, how long they are kept; and the life of an event.

use super::bed::Bed;
use serde_json::{Value, json};

async fn bed(policy: Value) -> Bed {
    let bed = Bed::open().await;
    let mut policy = policy;
    policy["topics"] = json!(["t"]);
    bed.put("/v1/subscriptions/s", policy).await.good();
    bed
}

async fn emit(bed: &Bed, event: Value) -> String {
    let receipt = bed.post("/v1/topics/t/events", event).await.good();
    receipt["events"][0]["id"].as_str().unwrap().to_owned()
}

async fn claim(bed: &Bed) -> Value {
    let claim = json!({"worker": "anna", "max_events": 1});
    bed.post("/v1/subscriptions/s/claim", claim).await.good()["events"][0].clone()
}

async fn settle(bed: &Bed, outcome: Value) {
    let event = claim(bed).await;
    let mut result = outcome;
    result["id"] = event["id"].clone();
    result["lease"] = event["lease"].clone();
    bed.post("/v1/subscriptions/s/settle", json!({"results": [result]})).await.good();
}

/// Emits an event and lets it die.
async fn kill(bed: &Bed, event: Value, error: &str) -> String {
    let id = emit(bed, event).await;
    settle(bed, json!({"outcome": "dead", "error": error})).await;
    id
}

async fn dead(bed: &Bed) -> Vec<String> {
    let dead = bed.get("/v1/subscriptions/s/dead").await.good();
    dead["items"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

async fn life(bed: &Bed, id: &str) -> Value {
    bed.get(&format!("/v1/events/{id}")).await.good()["deliveries"][0].clone()
}

#[tokio::test]
async fn every_failed_attempt_is_told_in_the_list_of_the_dead_and_in_the_life_of_the_event() {
    let bed = bed(json!({"max_attempts": 2, "backoff": {"kind": "constant", "delay_ms": 0}})).await;
    let id = emit(&bed, json!({"payload": 1})).await;
    settle(&bed, json!({"outcome": "retry", "error": "first"})).await;
    settle(&bed, json!({"outcome": "retry", "error": "second"})).await;
    let listed = bed.get("/v1/subscriptions/s/dead").await.good()["items"][0]["failures"].clone();
    let told: Vec<_> =
        listed.as_array().unwrap().iter().map(|one| (&one["attempt"], &one["error"])).collect();
    assert_eq!(told, [(&json!(1), &json!("first")), (&json!(2), &json!("second"))]);
    assert!(listed.as_array().unwrap().iter().all(|one| one["worker"] == "anna" && one["at"].is_string()));
    assert_eq!(life(&bed, &id).await["failures"], listed);
}

#[tokio::test]
async fn dead_events_are_replayed_and_dropped_by_what_they_are() {
    let bed = bed(json!({})).await;
    let paid = kill(&bed, json!({"payload": 1, "type": "order.paid", "key": "a"}), "HTTP 500").await;
    let sent = kill(&bed, json!({"payload": 1, "type": "order.sent", "key": "b"}), "HTTP 404").await;
    let lost = kill(&bed, json!({"payload": 1, "key": "a"}), "no route").await;
    let revive = async |verb: &str, which: Value| {
        bed.post(&format!("/v1/subscriptions/s/dead/{verb}"), which).await.good()["count"].clone()
    };
    assert_eq!(revive("drop", json!({"topic": "other"})).await, 0);
    assert_eq!(revive("drop", json!({"until": "2001-01-01T00:00:00Z"})).await, 0);
    assert_eq!(revive("drop", json!({"type": "order.paid", "error": "404"})).await, 0);
    assert_eq!(dead(&bed).await, [paid.clone(), sent.clone(), lost.clone()]);
    assert_eq!(revive("replay", json!({"type": "order.paid", "error_prefix": "HTTP"})).await, 1);
    assert_eq!(revive("drop", json!({"key": "a", "since": "2001-01-01T00:00:00Z"})).await, 1);
    assert_eq!(dead(&bed).await, std::slice::from_ref(&sent));
    let gone = life(&bed, &lost).await;
    assert_eq!((&gone["status"], &gone["gone"]["reason"]), (&json!("settled"), &json!("dropped")));
    assert_eq!(life(&bed, &paid).await["status"], "ready");
}

#[tokio::test]
async fn dead_events_are_listed_by_what_they_are() {
    let bed = bed(json!({})).await;
    let paid = kill(&bed, json!({"payload": 1, "type": "order.paid", "key": "a"}), "HTTP 500").await;
    let sent = kill(&bed, json!({"payload": 1, "type": "order.sent", "key": "b"}), "HTTP 404").await;
    let list = async |query: &str| {
        let dead = bed.get(&format!("/v1/subscriptions/s/dead?{query}")).await.good();
        let items = dead["items"].as_array().unwrap().clone();
        items.iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(list("type=order.paid").await, std::slice::from_ref(&paid));
    assert_eq!(list("key=b&error_prefix=HTTP%204").await, std::slice::from_ref(&sent));
    assert_eq!(list("error=HTTP&since=2001-01-01T00:00:00Z&limit=5").await, [paid, sent]);
    assert_eq!(list("until=2001-01-01T00:00:00Z").await, [""; 0]);
    for bad in ["since=yesterday", "topic=%20", "erorr=x", "error=%00".repeat(400).as_str()] {
        let refused = bed.get(&format!("/v1/subscriptions/s/dead?{bad}")).await;
        assert!([400, 422].contains(&refused.status.as_u16()), "{bad}: {}", refused.text);
    }
}

#[tokio::test]
async fn a_replay_with_a_rate_comes_back_one_after_the_other() {
    let bed = bed(json!({})).await;
    for _ in 0..3 {
        kill(&bed, json!({"payload": 1}), "no").await;
    }
    let replay = json!({"all": true, "rate": {"events": 1, "per_ms": 3_600_000}});
    assert_eq!(bed.post("/v1/subscriptions/s/dead/replay", replay).await.good()["count"], 3);
    let counts = bed.get("/v1/subscriptions/s").await.good()["counts"].clone();
    assert_eq!((&counts["ready"], &counts["delayed"], &counts["dead"]), (&json!(1), &json!(2), &json!(0)));
}

/// The story: one call replayed everything, and when there was too much for the time of a request, it began again with another rate.
#[tokio::test]
async fn a_replay_of_very_many_goes_on_from_call_to_call_at_one_rate() {
    let bed = bed(json!({})).await;
    let many = 2_100;
    for _ in 0..many {
        bed.app.tram.emit(tramline::Event::new("t", "x")).await.unwrap();
    }
    loop {
        let claim = json!({"worker": "anna", "max_events": 1000});
        let events = bed.post("/v1/subscriptions/s/claim", claim).await.good()["events"].clone();
        let die = |event: &Value| json!({"id": event["id"], "lease": event["lease"], "outcome": "dead"});
        let results: Vec<Value> = events.as_array().unwrap().iter().map(die).collect();
        if results.is_empty() {
            break;
        }
        bed.post("/v1/subscriptions/s/settle", json!({"results": results})).await.good();
    }
    let mut replay = json!({"all": true, "rate": {"events": 1, "per_ms": 3_600_000}, "limit": 1_000});
    let (mut counts, mut is_over) = (Vec::new(), false);
    while !is_over {
        let part = bed.post("/v1/subscriptions/s/dead/replay", replay.clone()).await.good();
        counts.push(part["count"].as_u64().unwrap());
        is_over = part.get("next").is_none();
        replay["after"] = part["next"].clone();
    }
    assert_eq!(counts.iter().sum::<u64>(), many);
    assert!(counts.len() > 1, "one call does no more than it may");
    let counts = bed.get("/v1/subscriptions/s").await.good()["counts"].clone();
    assert_eq!((&counts["ready"], &counts["delayed"]), (&json!(1), &json!(many - 1)), "one is first");
}

#[tokio::test]
async fn what_is_not_clear_or_out_of_range_is_refused() {
    let bed = bed(json!({})).await;
    for bad in [
        json!({}),
        json!({"all": false}),
        json!({"all": true, "type": "x"}),
        json!({"ids": ["1"], "key": "a"}),
        json!({"error": "x".repeat(1_001)}),
        json!({"since": "yesterday"}),
        json!({"all": true, "rate": {"events": 0, "per_ms": 1_000}}),
        json!({"all": true, "rate": {"events": 1, "per_ms": 0}}),
        json!({"all": true, "rate": {"events": 1, "per_ms": 86_400_001}}),
        json!({"all": true, "rate": {"events": 1}}),
        json!({"all": true, "rate": 5}),
        json!({"rate": {"events": 1, "per_ms": 1_000}}),
        json!({"all": true, "after": "somewhere"}),
        json!({"all": true, "limit": 0}),
    ] {
        bed.post("/v1/subscriptions/s/dead/replay", bad).await.problem(422);
    }
    let drop = json!({"all": true, "rate": {"events": 1, "per_ms": 1_000}});
    bed.post("/v1/subscriptions/s/dead/drop", drop).await.problem(422);
    bed.put("/v1/subscriptions/s", json!({"topics": ["t"], "dead_retention_ms": 0})).await.problem(422);
}

#[tokio::test]
async fn how_long_dead_events_are_kept_is_a_setting_like_others() {
    let bed = bed(json!({"dead_retention_ms": 86_400_000})).await;
    let shown = async || bed.get("/v1/subscriptions/s").await.good();
    assert_eq!(shown().await["dead_retention_ms"], 86_400_000);
    bed.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await.good();
    assert_eq!(shown().await["dead_retention_ms"], 86_400_000, "what is left out is as it was");
    bed.put("/v1/subscriptions/s", json!({"topics": ["t"], "dead_retention_ms": null})).await.good();
    assert_eq!(shown().await["dead_retention_ms"], Value::Null);
}

#[tokio::test]
async fn the_age_of_the_oldest_dead_event_is_in_all_figures() {
    let bed = bed(json!({})).await;
    assert_eq!(bed.get("/v1/subscriptions/s").await.good()["oldest_dead_at"], Value::Null);
    kill(&bed, json!({"payload": 1}), "no").await;
    assert!(bed.get("/v1/subscriptions/s").await.good()["oldest_dead_at"].is_string());
    assert!(bed.get("/v1/stats").await.good()["subscriptions"][0]["oldest_dead_at"].is_string());
    assert!(bed.get("/metrics").await.text.contains("tramline_oldest_dead_seconds{subscription=\"s\"} "));
}

#[tokio::test]
async fn the_life_of_an_event_tells_what_holds_it() {
    let bed = bed(json!({"ordering": "key"})).await;
    let first = emit(&bed, json!({"payload": 1, "key": "a"})).await;
    let second = emit(&bed, json!({"payload": 2, "key": "a"})).await;
    assert_eq!(life(&bed, &first).await["blocked_by"], Value::Null);
    assert_eq!(life(&bed, &second).await["blocked_by"], json!(first));
    bed.post("/v1/rules", json!({"pattern": "*", "kind": "block", "reason": "audit"})).await.good();
    let held = life(&bed, &first).await["rules"][0].clone();
    assert_eq!(
        (&held["kind"], &held["pattern"], &held["reason"]),
        (&json!("block"), &json!("*"), &json!("audit"))
    );
    bed.post(&format!("/v1/events/{second}/cancel"), json!({})).await.good();
    assert_eq!(life(&bed, &second).await["gone"]["reason"], "cancelled");
}

async fn chain(bed: &Bed, query: &str) -> (Vec<Value>, Value) {
    let page = bed.get(&format!("/v1/topics/t/chain?{query}")).await.good();
    let ids = page["items"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect();
    (ids, page["next"].clone())
}

#[tokio::test]
async fn the_events_of_a_key_are_listed_back_and_forth_page_by_page() {
    let bed = bed(json!({})).await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(json!(emit(&bed, json!({"payload": n, "key": "a/b"})).await));
        emit(&bed, json!({"payload": n, "key": "other"})).await;
    }
    let back: Vec<Value> = ids.iter().rev().cloned().collect();
    assert_eq!(chain(&bed, "key=a%2Fb").await, (back.clone(), Value::Null));
    assert_eq!(chain(&bed, "key=a%2Fb&order=oldest").await, (ids.clone(), Value::Null));
    for (order, all) in [("newest", back), ("oldest", ids.clone())] {
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let (some, next) = chain(&bed, &format!("key=a%2Fb&order={order}&limit=2&after={after}")).await;
            seen.extend(some);
            match next.as_str() {
                Some(next) => after = next.to_owned(),
                None => break,
            }
        }
        assert_eq!(seen, all, "{order}");
    }
    let page = bed.get("/v1/topics/t/chain?key=a%2Fb&deliveries=true&limit=1").await.good();
    let newest = &page["items"][0];
    assert_eq!((&newest["prev"], &newest["deliveries"][0]["status"]), (&ids[3], &json!("ready")));
    assert_eq!(chain(&bed, "key=nobody").await, (Vec::new(), Value::Null));
}

#[tokio::test]
async fn a_chain_that_makes_no_sense_is_refused() {
    let bed = bed(json!({})).await;
    emit(&bed, json!({"payload": 1, "key": "a"})).await;
    let other = emit(&bed, json!({"payload": 1, "key": "b"})).await;
    bed.get("/v1/topics/none/chain?key=a").await.problem(404);
    bed.get("/v1/topics/t/chain").await.problem(422);
    bed.get("/v1/topics/t/chain?key=a&order=sideways").await.problem(422);
    bed.get("/v1/topics/t/chain?key=a&after=x").await.problem(422);
    bed.get(&format!("/v1/topics/t/chain?key=a&after={other}")).await.problem(422);
}
