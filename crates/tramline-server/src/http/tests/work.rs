//! Claims, settlements and everything that is done to the work of a subscription.

use super::bed::Bed;
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Notify;

async fn bed(policy: Value) -> Bed {
    let bed = Bed::open().await;
    let mut policy = policy;
    policy["topics"] = json!(["t"]);
    bed.put("/v1/subscriptions/s", policy).await.good();
    bed
}

async fn emit(bed: &Bed, key: &str) -> String {
    let receipt = bed.post("/v1/topics/t/events", json!({"payload": 1, "key": key})).await.good();
    receipt["events"][0]["id"].as_str().unwrap().to_owned()
}

async fn claim(bed: &Bed, max_events: u32) -> Vec<Value> {
    let claim = json!({"worker": "w", "max_events": max_events});
    bed.post("/v1/subscriptions/s/claim", claim).await.good()["events"].as_array().unwrap().clone()
}

async fn settle(bed: &Bed, event: &Value, outcome: Value) -> String {
    let mut result = outcome;
    result["id"] = event["id"].clone();
    result["lease"] = event["lease"].clone();
    let answer = bed.post("/v1/subscriptions/s/settle", json!({"results": [result]})).await.good();
    answer["results"][0]["status"].as_str().unwrap().to_owned()
}

async fn counts(bed: &Bed) -> Value {
    bed.get("/v1/subscriptions/s").await.good()["counts"].clone()
}

#[tokio::test]
async fn an_event_is_claimed_settled_and_done() {
    let bed = bed(json!({})).await;
    let id = emit(&bed, "a").await;
    let events = claim(&bed, 10).await;
    assert_eq!((events.len(), &events[0]["id"], &events[0]["attempt"]), (1, &json!(id), &json!(1)));
    assert_eq!(counts(&bed).await["leased"], 1);
    let view = bed.get(&format!("/v1/events/{id}")).await.good();
    assert_eq!(
        (&view["deliveries"][0]["status"], &view["deliveries"][0]["worker"]),
        (&json!("leased"), &json!("w"))
    );
    let one = bed.get("/v1/workers?limit=1").await.good();
    let mut workers = one["items"].as_array().unwrap().clone();
    if let Some(next) = one["next"].as_str() {
        let rest = bed.get(&format!("/v1/workers?after={}", next.replace('/', "%2F"))).await.good();
        workers.extend(rest["items"].as_array().unwrap().clone());
    }
    assert!(workers.iter().any(|worker| worker["name"] == "w"), "{workers:?}");
    assert_eq!(settle(&bed, &events[0], json!({"outcome": "done"})).await, "settled");
    assert_eq!(settle(&bed, &events[0], json!({"outcome": "done"})).await, "lease_lost");
    assert_eq!(claim(&bed, 10).await, [] as [Value; 0]);
}

#[tokio::test]
async fn an_event_in_the_hands_of_a_program_tells_the_name_of_that_program() {
    let bed = bed(json!({})).await;
    let id = emit(&bed, "a").await;
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, goes) = (begun.clone(), go.clone());
    let worker = bed.app.tram.worker("s").on_any(move || {
        let (begins, goes) = (begins.clone(), goes.clone());
        async move {
            begins.notify_one();
            goes.notified().await;
        }
    });
    let look = async {
        begun.notified().await;
        let workers = bed.get("/v1/workers").await.good();
        let name = workers["items"][0]["name"].clone();
        assert!(name.is_string(), "{workers}");
        let view = bed.get(&format!("/v1/events/{id}")).await.good();
        let chain = bed.get("/v1/topics/t/chain?key=a&deliveries=true").await.good();
        go.notify_one();
        let shown = [&view["deliveries"][0]["worker"], &chain["items"][0]["deliveries"][0]["worker"]];
        assert_eq!(shown, [&name, &name]);
    };
    worker.run_until(look).await.unwrap();
}

#[tokio::test]
async fn what_is_no_lease_is_a_lost_one() {
    let bed = bed(json!({})).await;
    emit(&bed, "a").await;
    let event = claim(&bed, 1).await.remove(0);
    let forged = json!({"id": event["id"], "lease": "nonsense"});
    assert_eq!(settle(&bed, &forged, json!({"outcome": "done"})).await, "lease_lost");
    let other = json!({"id": "1", "lease": event["lease"]});
    assert_eq!(settle(&bed, &other, json!({"outcome": "done"})).await, "lease_lost");
    assert_eq!(counts(&bed).await["leased"], 1);
}

#[tokio::test]
async fn a_failure_is_retried_then_dead_then_replayed() {
    let bed = bed(json!({"max_attempts": 2, "backoff": {"kind": "constant", "delay_ms": 0}})).await;
    let id = emit(&bed, "a").await;
    for attempt in 1..=2 {
        let event = claim(&bed, 1).await.remove(0);
        assert_eq!(event["attempt"], attempt);
        settle(&bed, &event, json!({"outcome": "retry", "error": "no luck"})).await;
    }
    let dead = bed.get("/v1/subscriptions/s/dead").await.good();
    assert_eq!((&dead["items"][0]["id"], &dead["items"][0]["error"]), (&json!(id), &json!("no luck")));
    bed.post("/v1/subscriptions/s/dead/replay", json!({})).await.problem(422);
    assert_eq!(bed.post("/v1/subscriptions/s/dead/replay", json!({"ids": [id]})).await.good()["count"], 1);
    let event = claim(&bed, 1).await.remove(0);
    assert_eq!((&event["replayed"], &event["attempt"]), (&json!(true), &json!(1)));
    settle(&bed, &event, json!({"outcome": "dead", "error": "never"})).await;
    assert_eq!(bed.post("/v1/subscriptions/s/dead/drop", json!({"all": true})).await.good()["count"], 1);
    assert_eq!(counts(&bed).await["dead"], 0);
}

#[tokio::test]
async fn an_ordered_lane_gives_nothing_more_while_another_claim_has_work_of_it() {
    let bed = bed(json!({"ordering": "key"})).await;
    emit(&bed, "a").await;
    let first = claim(&bed, 10).await;
    emit(&bed, "a").await;
    assert_eq!(claim(&bed, 10).await, [] as [Value; 0]);
    settle(&bed, &first[0], json!({"outcome": "done"})).await;
    assert_eq!(claim(&bed, 10).await.len(), 1);
}

/// The answer was sorted by id, and what was urgent came behind what was not.
#[tokio::test]
async fn an_answer_has_the_urgent_events_first_unless_keys_are_ordered() {
    for (ordering, priorities) in [("none", [0, 5, 9]), ("key", [9, 5, 0])] {
        let bed = bed(json!({"ordering": ordering})).await;
        for priority in [9, 5, 0] {
            let event = json!({"payload": priority, "key": "a", "priority": priority});
            bed.post("/v1/topics/t/events", event).await.good();
        }
        let payloads: Vec<Value> =
            claim(&bed, 10).await.iter().map(|event| event["payload"].clone()).collect();
        assert_eq!(payloads, priorities, "{ordering}");
    }
}

#[tokio::test]
async fn done_after_a_retry_of_the_same_key_is_refused() {
    let bed = bed(json!({"ordering": "key"})).await;
    emit(&bed, "a").await;
    emit(&bed, "a").await;
    let events = claim(&bed, 10).await;
    let result = |at: usize, outcome| json!({"id": events[at]["id"], "lease": events[at]["lease"], "outcome": outcome});
    let results = json!({"results": [result(0, "retry"), result(1, "done")]});
    bed.post("/v1/subscriptions/s/settle", results).await.problem(422);
    assert_eq!(counts(&bed).await["leased"], 2);
}

#[tokio::test]
async fn a_retrying_key_is_parked_and_can_be_released() {
    let bed = bed(json!({"ordering": "key"})).await;
    let blocker = emit(&bed, "a").await;
    emit(&bed, "a").await;
    let events = claim(&bed, 10).await;
    settle(&bed, &events[0], json!({"outcome": "retry"})).await;
    let parked = bed.get("/v1/subscriptions/s/parked").await.good();
    assert_eq!(
        (&parked["items"][0]["key"], &parked["items"][0]["blocked_by"]),
        (&json!("a"), &json!(blocker))
    );
    bed.post("/v1/subscriptions/s/parked/release", json!({})).await.problem(422);
    let released =
        bed.post("/v1/subscriptions/s/parked/release", json!({"keys": [{"key": "a"}]})).await.good();
    assert_eq!(released["count"], 1);
}

#[tokio::test]
async fn leases_are_extended_and_given_back() {
    let bed = bed(json!({})).await;
    emit(&bed, "a").await;
    let event = claim(&bed, 1).await.remove(0);
    let leases = json!({"leases": [event["lease"], "nonsense"], "lease_ms": 120_000});
    let extended = bed.post("/v1/subscriptions/s/extend", leases.clone()).await.good();
    assert_eq!(
        (&extended["results"][0]["status"], &extended["results"][1]["status"]),
        (&json!("extended"), &json!("lease_lost"))
    );
    assert!(extended["results"][0]["lease_until"].as_str() > event["lease_until"].as_str());
    let release =
        async || bed.post("/v1/subscriptions/s/release", leases.clone()).await.good()["leases"].clone();
    assert_eq!((release().await, release().await), (json!(1), json!(0)), "what is lost is not counted");
    let again = claim(&bed, 1).await.remove(0);
    assert_eq!((&again["attempt"], &again["crashes"]), (&json!(1), &json!(0)));
}

#[tokio::test]
async fn a_claim_waits_for_what_comes() {
    let bed = bed(json!({})).await;
    let claim = bed.post("/v1/subscriptions/s/claim", json!({"worker": "w", "wait_ms": 60_000}));
    let (claimed, id) = tokio::join!(claim, async {
        while bed.app.waiting.available_permits() == bed.app.config.max_waiting {
            tokio::task::yield_now().await;
        }
        // Who waits takes no room from those who work.
        assert_eq!(bed.app.requests.available_permits(), bed.app.config.max_requests);
        emit(&bed, "a").await
    });
    assert_eq!(claimed.good()["events"][0]["id"], id);
}

/// It was answered at once with nothing, and its client asked again at once: thousands of them were a storm.
#[tokio::test]
async fn a_claim_that_may_not_wait_is_told_to_come_later_unless_there_is_something() {
    let bed = bed(json!({})).await;
    let _all = bed.app.waiting.clone().acquire_many_owned(bed.app.config.max_waiting as u32).await.unwrap();
    let claim = || bed.post("/v1/subscriptions/s/claim", json!({"wait_ms": 60_000}));
    let refused = claim().await;
    assert!(refused.headers.contains_key("retry-after"));
    refused.problem(503);
    let id = emit(&bed, "a").await;
    assert_eq!(claim().await.good()["events"][0]["id"], id);
}

#[tokio::test]
async fn a_waiting_claim_answers_when_the_server_drains() {
    let bed = bed(json!({})).await;
    let claim = bed.post("/v1/subscriptions/s/claim", json!({"wait_ms": 60_000}));
    let (claimed, ()) = tokio::join!(claim, async {
        while bed.app.waiting.available_permits() == bed.app.config.max_waiting {
            tokio::task::yield_now().await;
        }
        bed.app.draining.cancel();
    });
    assert_eq!(claimed.good()["events"], json!([]));
}

/// A client that is gone before its answer was written would hold the events until their lease ends.
#[tokio::test]
async fn a_client_that_leaves_gives_its_events_back_uncounted() {
    let bed = bed(json!({})).await;
    emit(&bed, "a").await;
    let request = Request::post("/v1/subscriptions/s/claim").body(Body::from("{}")).unwrap();
    drop(bed.unread(request).await);
    loop {
        let events = claim(&bed, 1).await;
        if let Some(event) = events.first() {
            assert_eq!((&event["attempt"], &event["crashes"]), (&json!(1), &json!(0)));
            break;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn rules_stop_a_subscription_and_both_must_be_gone() {
    let bed = bed(json!({})).await;
    emit(&bed, "a").await;
    let rules = bed.post("/v1/subscriptions/s/pause", json!({"reason": "lunch"})).await.good();
    assert_eq!((&rules["rules"][0]["kind"], &rules["rules"][0]["by"]), (&json!("pause"), &json!("local")));
    bed.post("/v1/subscriptions/s/block", json!({"until": "2999-01-01T00:00:00Z"})).await.good();
    bed.post("/v1/subscriptions/s/resume", json!({})).await.good();
    assert_eq!(claim(&bed, 1).await, [] as [Value; 0]);
    assert_eq!(bed.post("/v1/subscriptions/s/unblock", json!({})).await.good()["rules"], json!([]));
    assert_eq!(claim(&bed, 1).await.len(), 1);
}

#[tokio::test]
async fn an_event_can_be_cancelled_and_a_settled_one_sent_again() {
    let bed = bed(json!({})).await;
    let id = emit(&bed, "a").await;
    let cancelled = bed.post(&format!("/v1/events/{id}/cancel"), json!({})).await.good();
    assert_eq!(cancelled["cancelled"], json!(["s"]));
    assert_eq!(claim(&bed, 1).await, [] as [Value; 0]);
    assert_eq!(bed.post("/v1/subscriptions/s/resend", json!({"ids": [id]})).await.good()["count"], 1);
    assert_eq!(claim(&bed, 1).await[0]["id"], id);
}

#[tokio::test]
async fn a_new_subscription_gets_what_is_retained() {
    let bed = Bed::open().await;
    let id = emit(&bed, "a").await;
    bed.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await.good();
    assert_eq!(claim(&bed, 1).await[0]["id"], id);
}

#[tokio::test]
async fn what_is_left_out_of_a_change_stays_as_it_was() {
    let bed = bed(json!({"max_attempts": 7, "lease_ms": 5_000})).await;
    let changed = bed.put("/v1/subscriptions/s", json!({"topics": ["t"], "claim_size": 9})).await.good();
    assert_eq!((&changed["max_attempts"], &changed["lease_ms"]), (&json!(7), &json!(5_000)));
    assert_eq!(changed["claim_size"], 9);
}

#[tokio::test]
async fn null_takes_a_setting_back() {
    let bed = bed(json!({"time_limit_ms": 5_000, "lease_ms": 5_000, "claim_size": 9})).await;
    let nulls = json!({"topics": ["t"], "time_limit_ms": null, "lease_ms": null, "claim_size": null});
    let changed = bed.put("/v1/subscriptions/s", nulls).await.good();
    assert_eq!(changed["time_limit_ms"], Value::Null);
    assert_eq!((&changed["lease_ms"], &changed["claim_size"]), (&json!(60_000), &json!(4_096)));
}
