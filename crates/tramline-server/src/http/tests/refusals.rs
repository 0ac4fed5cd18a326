//! Bad input: the right status, a clear message and a remedy, and a server that goes on.

use super::bed::Bed;
use crate::config::Config;
use axum::body::Body;
use axum::http::{Method, Request};
use futures_util::{FutureExt, StreamExt};
use serde_json::json;

const EVENTS: &str = "/v1/topics/orders/events";

async fn emit(bed: &Bed, body: impl Into<Body>) -> super::bed::Reply {
    let request = Request::post(EVENTS).header("content-type", "application/json").body(body.into());
    bed.send(request.unwrap()).await
}

#[tokio::test]
async fn what_is_no_json_is_malformed() {
    let bed = Bed::open().await;
    for bad in [&b""[..], b"{", b"nonsense", b"{\"payload\":\"\xff\"}", b"[{\"payload\":1},]", b"\x00"] {
        emit(&bed, bad.to_vec()).await.problem(400);
    }
}

#[tokio::test]
async fn what_is_well_formed_but_impossible_is_invalid() {
    let bed = Bed::open().await;
    let bad = [
        json!({}),
        json!("text"),
        json!([]),
        json!({"payload": 1, "key": 7}),
        json!({"payload": 1, "key": ""}),
        json!({"payload": 1, "key": "nul\u{0}"}),
        json!({"payload": 1, "delay_ms": -1}),
        json!({"payload": 1, "delay_ms": u64::MAX}),
        json!({"payload": 1, "delay_ms": 1.5}),
        json!({"payload": 1, "delay_ms": 1, "due_at": "2030-01-01T00:00:00Z"}),
        json!({"payload": 1, "due_at": "tomorrow"}),
        json!({"payload": 1, "due_at": "9999-12-31T23:59:59Z"}),
        json!({"payload": 1, "priority": 10}),
        json!({"payload": 1, "priority": 1e300}),
        json!({"payload": 1, "type": "two words"}),
        json!({"payload": 1, "headers": {"a": 1}}),
        json!({"payload": 1, "state": 1}),
        json!({"payload": 1, "unknown": 1}),
    ];
    for bad in bad {
        emit(&bed, bad.to_string()).await.problem(422);
    }
    assert_eq!(bed.get("/v1/topics").await.good()["items"], json!([]), "nothing was created");
}

#[tokio::test]
async fn too_much_is_too_large() {
    let bed = Bed::with(Config { max_body: 4 << 20, ..Config::defaults().unwrap() }).await;
    let large = json!({"payload": "x".repeat(1 << 20)}).to_string();
    emit(&bed, large).await.problem(413);
    emit(&bed, " ".repeat((4 << 20) + 1)).await.problem(413);
    emit(&bed, json!(vec![json!({"payload": 1}); 10_001]).to_string()).await.problem(413);
    emit(&bed, json!({"payload": "x".repeat((1 << 20) - 2)}).to_string()).await.good();
}

#[tokio::test]
async fn names_that_cannot_be_are_refused_everywhere() {
    let bed = Bed::open().await;
    for bad in ["bad%20name", "a%2F%2Fb", "%2A", &"x".repeat(201)] {
        bed.post(&format!("/v1/topics/{bad}/events"), json!({"payload": 1})).await.problem(422);
        bed.put(&format!("/v1/topics/{bad}"), json!({})).await.problem(422);
        bed.put(&format!("/v1/subscriptions/{bad}"), json!({"topics": ["t"]})).await.problem(422);
        bed.put("/v1/subscriptions/s", json!({"topics": ["bad name"]})).await.problem(422);
    }
    bed.get("/v1/topics/%ff/events").await.problem(400);
    bed.delete("/v1/subscriptions/%ff/secrets/x").await.problem(400);
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let bed = Bed::open().await;
    for path in
        ["/v1/topics/none", "/v1/topics/none/events", "/v1/subscriptions/none", "/v1/events/77", "/nowhere"]
    {
        bed.get(path).await.problem(404);
    }
    for verb in ["claim", "pause", "dead/replay", "parked/release"] {
        bed.post(&format!("/v1/subscriptions/none/{verb}"), json!({"all": true})).await.problem(404);
    }
    bed.delete("/v1/tokens/none").await.problem(404);
    bed.call(Method::PATCH, "/v1/topics", None, "").await.problem(405);
}

#[tokio::test]
async fn absurd_numbers_are_invalid() {
    let bed = Bed::open().await;
    bed.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await.good();
    for bad in [
        json!({"max_events": 0}),
        json!({"max_events": -1}),
        json!({"max_events": 10_001}),
        json!({"max_events": 1e99}),
        json!({"lease_ms": 1}),
        json!({"lease_ms": u64::MAX}),
        json!({"wait_ms": u64::MAX}),
        json!({"worker": "x".repeat(201)}),
    ] {
        bed.post("/v1/subscriptions/s/claim", bad).await.problem(422);
    }
    for bad in [
        json!({"topics": []}),
        json!({"topics": ["t"], "max_attempts": 10001}),
        json!({"topics": ["t"], "lease_ms": 0}),
        json!({"topics": ["t"], "claim_size": 0}),
        json!({"topics": ["t"], "backoff": {"kind": "constant", "delay_ms": u64::MAX}}),
        json!({"topics": ["t"], "backoff": {"kind": "guess"}}),
        json!({"topics": ["t"], "ordering": "chaos"}),
        json!({"topics": ["t"], "start": "yesterday"}),
        json!({"topics": ["t"], "time_limit_ms": 0}),
        json!({"topics": ["t"], "time_limit_ms": u64::MAX}),
    ] {
        bed.put("/v1/subscriptions/s", bad).await.problem(422);
    }
    bed.put("/v1/topics/t2", json!({"lanes": 0})).await.problem(422);
    bed.put("/v1/topics/t2", json!({"retention_ms": u64::MAX})).await.problem(422);
    bed.get("/v1/topics?limit=-1").await.problem(422);
    bed.get("/v1/topics/t/events?after=x").await.problem(422);
    for id in ["x", "+64", "-1", "99999999999999999999"] {
        bed.get(&format!("/v1/events/{id}")).await.problem(400);
    }
    bed.get("/v1/events/9999999999999999999").await.problem(404);
    bed.get("/v1/topics?limit=4000000000").await.good();
}

#[tokio::test]
async fn a_query_parameter_that_nobody_knows_is_refused_with_those_that_are_known() {
    let bed = Bed::open().await;
    for (path, known) in [
        ("/v1/topics?nobody=1", "limit, after"),
        ("/v1/topics/t/events?limit=1&Key=x", "after, key, limit"),
        ("/v1/stats?limit=1", "none"),
        ("/v1/events/7?verbose", "none"),
    ] {
        let problem = bed.get(path).await.problem(400);
        assert!(problem["remedy"].as_str().unwrap().ends_with(known), "{path}: {problem}");
    }
    bed.post("/v1/topics/t/events?key=x", json!({"payload": 1})).await.problem(400);
    bed.get("/v1/topics?").await.good();
    bed.get("/v1/topics?limit=2&after=").await.good();
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let bed = Bed::open().await;
    let get = async |path: &str, size: usize| {
        let request = Request::get(path).header("x-long", "x".repeat(size)).body(Body::empty());
        bed.send(request.unwrap()).await
    };
    for path in ["/v1/topics", "/health/live"] {
        get(path, 70 << 10).await.problem(431);
        get(path, 60 << 10).await.good();
    }
}

#[tokio::test]
async fn what_never_changes_is_a_conflict() {
    let bed = Bed::open().await;
    bed.put("/v1/topics/t", json!({"lanes": 4})).await.good();
    bed.put("/v1/topics/t", json!({"lanes": 5})).await.problem(409);
    bed.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await.good();
    bed.put("/v1/subscriptions/s", json!({"topics": ["t"], "ordering": "key"})).await.problem(409);
    // Whoever leaves the callback out is told of the conflict too, not that a callback would help.
    bed.put("/v1/subscriptions/s", json!({"topics": ["t"], "kind": "push"})).await.problem(409);
    bed.delete("/v1/topics/t").await.problem(409);
}

#[tokio::test]
async fn a_server_with_too_much_to_do_says_when_to_come_back() {
    let bed = Bed::with(Config { max_requests: 1, max_followers: 1, ..Config::defaults().unwrap() }).await;
    bed.put("/v1/topics/t", json!({})).await.good();
    let busy = bed.app.requests.clone().try_acquire_owned().unwrap();
    let reply = bed.get("/v1/topics").await;
    assert_eq!(reply.headers["retry-after"], "1");
    reply.problem(503);
    drop(busy);
    let _seat = bed.app.followers.clone().try_acquire_owned().unwrap();
    let follow =
        Request::get("/v1/topics/t/events").header("accept", "text/event-stream").body(Body::empty());
    let reply = bed.send(follow.unwrap()).await;
    assert_eq!(reply.headers["retry-after"], "1");
    reply.problem(429);
}

/// A thousand clients that sent a byte now and then took all places, and everybody else was refused.
#[tokio::test]
async fn a_request_whose_body_is_still_coming_takes_no_place() {
    let bed = Bed::with(Config { max_requests: 1, ..Config::defaults().unwrap() }).await;
    let (say, heard) = tokio::sync::oneshot::channel();
    let (give, rest) = tokio::sync::oneshot::channel::<Body>();
    let slow = async {
        let begun = futures_util::stream::once(async { Ok::<_, axum::Error>("{\"payload\"".into()) });
        let rest = async {
            say.send(()).unwrap();
            rest.await.unwrap().into_data_stream()
        };
        emit(&bed, Body::from_stream(begun.chain(rest.flatten_stream()))).await
    };
    let others = async {
        heard.await.unwrap();
        emit(&bed, r#"{"payload": 1}"#).await.good();
        // All places are taken when the rest comes: it waits for one.
        let busy = bed.app.requests.clone().try_acquire_owned().unwrap();
        give.send(Body::from(": 2}")).unwrap();
        tokio::task::yield_now().await;
        emit(&bed, r#"{"payload": 3}"#).await.problem(503);
        drop(busy);
    };
    let (slow, ()) = tokio::join!(slow, others);
    slow.good();
    assert_eq!(bed.app.requests.available_permits(), 1);
}

/// Tokens that are not known are looked up in the store, which takes a while.
#[tokio::test]
async fn whoever_guesses_tokens_takes_no_place() {
    let bed = Bed::with(Config {
        max_requests: 1,
        root_token: Some(super::bed::ROOT.into()),
        ..Config::defaults().unwrap()
    })
    .await;
    let _busy = bed.app.requests.clone().try_acquire_owned().unwrap();
    bed.call(Method::GET, "/v1/topics", Some("tl_guess"), "").await.problem(401);
    bed.get("/v1/topics").await.problem(503);
}

#[tokio::test]
async fn a_store_that_is_gone_is_told_and_nothing_is_acknowledged() {
    let bed = Bed::open().await;
    bed.post(EVENTS, json!({"payload": 1})).await.good();
    bed.app.tram.close().await;
    let reply = bed.post(EVENTS, json!({"payload": 2})).await;
    assert_eq!(reply.headers["retry-after"], "1");
    reply.problem(503);
}

#[tokio::test]
async fn without_tokens_only_this_machine_may_call() {
    let bed = Bed::open().await;
    for (name, value, status) in [
        ("host", "localhost:7070", 200),
        ("host", "evil.example", 403),
        ("origin", "http://localhost:3000", 200),
        ("origin", "https://evil.example", 403),
        ("origin", "null", 403),
    ] {
        let request = Request::get("/v1/topics").header(name, value).body(Body::empty()).unwrap();
        assert_eq!(bed.send(request).await.status, status, "{name}: {value}");
    }
}
