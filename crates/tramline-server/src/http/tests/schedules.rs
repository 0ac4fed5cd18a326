//! Schedules over HTTP.

use super::bed::Bed;
use axum::http::Method;
use serde_json::{Value, json};

const NIGHTLY: &str = "/v1/schedules/nightly";

fn nightly() -> Value {
    json!({"cron": "30 3 * * *", "zone": "Europe/Vienna", "topic": "reports", "type": "report", "key": "k",
        "payload": {"big": 12345678901234567890123_u128.to_string(), "n": 1.50}, "headers": {"h": "v"}, "missed": "all"})
}

#[tokio::test]
async fn a_schedule_is_put_shown_changed_and_deleted() {
    let bed = Bed::open().await;
    let put = bed.put(NIGHTLY, nightly()).await.good();
    for (field, value) in nightly().as_object().unwrap() {
        assert_eq!(&put[field], value, "{field}");
    }
    assert_eq!(
        (&put["name"], &put["paused"], &put["last_run_at"]),
        (&json!("nightly"), &json!(false), &Value::Null)
    );
    let next = put["next_run_at"].as_str().unwrap();
    assert!(next.ends_with("T01:30:00.000Z") || next.ends_with("T02:30:00.000Z"), "{next}");
    assert_eq!(bed.get(NIGHTLY).await.good(), put);
    let every = bed.put(NIGHTLY, json!({"every_ms": 60_000, "topic": "reports"})).await.good();
    assert_eq!(
        (&every["every_ms"], &every["missed"], &every["payload"]),
        (&json!(60_000), &json!("one"), &Value::Null)
    );
    assert!(every.get("cron").is_none() && every.get("zone").is_none());
    assert_eq!(every["created_at"], put["created_at"]);
    bed.delete(NIGHTLY).await.good();
    bed.get(NIGHTLY).await.problem(404);
    bed.delete(NIGHTLY).await.problem(404);
}

#[tokio::test]
async fn a_schedule_rests_runs_on_request_and_goes_on() {
    let bed = Bed::open().await;
    bed.put(NIGHTLY, nightly()).await.good();
    let paused = bed.post(&format!("{NIGHTLY}/pause"), json!({})).await.good();
    assert_eq!((&paused["paused"], &paused["next_run_at"]), (&json!(true), &Value::Null));
    assert_eq!(bed.put(NIGHTLY, nightly()).await.good()["paused"], true, "put again, it still rests");
    let run = bed.post(&format!("{NIGHTLY}/run"), json!({})).await;
    assert_eq!(run.status, 201);
    let run = run.good();
    assert_eq!(run["events"][0]["key"], "k");
    let id = run["events"][0]["id"].as_str().unwrap().to_owned();
    let event = bed.get(&format!("/v1/events/{id}")).await.good();
    assert_eq!((&event["type"], &event["payload"]), (&json!("report"), &nightly()["payload"]));
    assert_eq!(
        (&event["headers"]["tramline-schedule"], &event["headers"]["h"]),
        (&json!("nightly"), &json!("v"))
    );
    assert!(event["headers"]["tramline-scheduled-at"].is_string());
    assert_eq!(bed.get(NIGHTLY).await.good()["last_event"], id);
    let resumed = bed.post(&format!("{NIGHTLY}/resume"), json!({})).await.good();
    assert!(resumed["next_run_at"].is_string());
    let put = json!({"cron": "@daily", "topic": "reports", "paused": true});
    assert_eq!(bed.put(NIGHTLY, put).await.good()["paused"], true);
}

#[tokio::test]
async fn schedules_are_listed_in_pages() {
    let bed = Bed::open().await;
    for n in 0..7 {
        let path = format!("/v1/schedules/a%2Fn{n}");
        bed.put(&path, json!({"cron": "@daily", "topic": "t"})).await.good();
    }
    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let page = bed.get(&format!("/v1/schedules?limit=3&after={after}")).await.good();
        names.extend(
            page["items"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap().to_owned()),
        );
        match page["next"].as_str() {
            Some(next) => after = next.replace('/', "%2F"),
            None => break,
        }
    }
    assert_eq!(names, (0..7).map(|n| format!("a/n{n}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn impossible_schedules_are_refused_with_a_remedy() {
    let bed = Bed::open().await;
    for bad in [
        json!({"topic": "t"}),
        json!({"topic": "t", "cron": "@daily", "every_ms": 60_000}),
        json!({"topic": "t", "every_ms": 60_000, "zone": "UTC"}),
        json!({"topic": "t", "every_ms": 999}),
        json!({"topic": "t", "cron": "61 * * * *"}),
        json!({"topic": "t", "cron": "0 0 30 2 *"}),
        json!({"topic": "t", "cron": "@daily", "zone": "Nowhere/City"}),
        json!({"topic": "no topic", "cron": "@daily"}),
        json!({"topic": "t", "cron": "@daily", "missed": "some"}),
        json!({"topic": "t", "cron": "@daily", "type": "two words"}),
        json!({"cron": "@daily"}),
    ] {
        let problem = bed.put(NIGHTLY, bad.clone()).await.problem(422);
        assert!(!problem["remedy"].as_str().unwrap().is_empty(), "{bad}");
    }
    let large = json!({"topic": "t", "cron": "@daily", "payload": "x".repeat(70_000)});
    bed.put(NIGHTLY, large).await.problem(413);
    bed.put("/v1/schedules/a%20b", nightly()).await.problem(422);
    bed.get(NIGHTLY).await.problem(404);
}

#[tokio::test]
async fn a_token_sees_the_schedules_of_its_topics_whatever_their_names() {
    let bed = Bed::guarded().await;
    bed.put("/v1/schedules/theirs", json!({"cron": "@daily", "topic": "rival/a"})).await.good();
    let token = json!({"name": "acme", "scopes": ["manage"], "topics": ["acme/**"]});
    let token = bed.post("/v1/tokens", token).await.good()["token"].as_str().unwrap().to_owned();
    let call = async |method: Method, path: &str, body: Value| {
        bed.call(method, path, Some(&token), &body.to_string()).await
    };
    let own = || json!({"cron": "@daily", "topic": "acme/a"});
    call(Method::PUT, "/v1/schedules/mine", own()).await.good();
    let listed = call(Method::GET, "/v1/schedules", json!({})).await.good();
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    call(Method::GET, "/v1/schedules/theirs", json!({})).await.problem(404);
    call(Method::PUT, "/v1/schedules/theirs", own()).await.problem(409);
    call(Method::PUT, "/v1/schedules/mine", json!({"cron": "@daily", "topic": "rival/a"})).await.problem(403);
    call(Method::PUT, "/v1/schedules/mine", json!({"cron": "@hourly", "topic": "acme/b"})).await.good();
    assert_eq!(bed.get("/v1/schedules/theirs").await.good()["topic"], "rival/a");
}
