//! Push subscriptions: what may be said of them, and what is told.

use super::bed::{Bed, ROOT};
use crate::config::Config;
use serde_json::{Value, json};

const CALLBACK: &str = "https://receiver.example/hook";

async fn bed(push: Value) -> Bed {
    let bed = Bed::guarded().await;
    bed.put("/v1/subscriptions/s", push).await.good();
    bed
}

fn push(more: Value) -> Value {
    let mut push = json!({"topics": ["t"], "kind": "push", "callback": CALLBACK});
    push.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    push
}

#[tokio::test]
async fn what_is_said_of_a_push_subscription_is_told_again_and_the_rest_is_default() {
    let more = json!({"order": "subscriber", "max_events": 7, "timeout_ms": 0, "format": "cloudevents_batch",
        "headers": {"x-team": "orders"}, "concurrency": 2, "rate": 50, "disable_after_ms": null, "max_attempts": 0,
        "filter": [{"field": "type", "prefix": ["order."]}]});
    let bed = bed(push(more.clone())).await;
    let told = bed.get("/v1/subscriptions/s").await.good();
    for (name, value) in more.as_object().unwrap().iter().filter(|(name, _)| *name != "order") {
        assert_eq!(&told[name], value, "{name} in {told}");
    }
    assert_eq!((&told["kind"], &told["ordering"]), (&json!("push"), &json!("subscriber")));
    assert_eq!((&told["request_timeout_ms"], &told["delivery"]["state"]), (&json!(20_000), &json!("active")));
    // What is left out stays.
    let changed = bed.put("/v1/subscriptions/s", json!({"topics": ["t"], "max_events": 9})).await.good();
    assert_eq!(
        (&changed["max_events"], &changed["rate"], &changed["callback"]),
        (&json!(9), &json!(50), &json!(CALLBACK))
    );
    let plain = self::bed(push(json!({}))).await.get("/v1/subscriptions/s").await.good();
    assert_eq!((&plain["max_events"], &plain["timeout_ms"]), (&json!(100), &json!(500)));
    assert_eq!(
        (&plain["backoff"]["delays_ms"][0], &plain["backoff"]["delays_ms"][6]),
        (&json!(5_000), &json!(36_000_000))
    );
}

#[tokio::test]
async fn what_cannot_be_is_refused_and_changes_nothing() {
    let bed = Bed::guarded().await;
    for wrong in [
        json!({"topics": ["t"], "kind": "push"}),
        json!({"topics": ["t"], "callback": CALLBACK}),
        push(json!({"callback": "ftp://receiver.example/"})),
        push(json!({"callback": "https://user:password@receiver.example/"})),
        push(json!({"callback": "not a url"})),
        push(json!({"max_events": 0})),
        push(json!({"timeout_ms": 3_600_001})),
        push(json!({"guarantee": "at_most_once"})),
        push(json!({"order": "subscriber", "on_exhausted": "hold"})),
        push(json!({"headers": {"Authorization": "Bearer x"}})),
        push(json!({"headers": {"a b": "x"}})),
        push(json!({"secrets": ["short"]})),
        push(json!({"filter": [{"field": "tenant", "equals": "t"}]})),
        push(json!({"filter": [{"field": "type"}]})),
        push(json!({"rate": 0})),
        json!({"topics": ["t"], "ordering": "subscriber"}),
    ] {
        bed.put("/v1/subscriptions/s", wrong.clone()).await.problem(422);
    }
    bed.get("/v1/subscriptions/s").await.problem(404);
    bed.put("/v1/subscriptions/s", push(json!({}))).await.good();
    bed.put("/v1/subscriptions/s", json!({"topics": ["t"], "kind": "pull"})).await.problem(409);
    bed.put("/v1/subscriptions/s", json!({"topics": ["t"], "kind": "pull", "callback": CALLBACK}))
        .await
        .problem(409);
    bed.post("/v1/subscriptions/s/claim", json!({})).await.problem(422);
    bed.put("/v1/subscriptions/w", json!({"topics": ["t"]})).await.good();
    for path in ["enable", "disable", "secrets"] {
        bed.post(&format!("/v1/subscriptions/w/{path}"), json!({})).await.problem(422);
    }
}

#[tokio::test]
async fn a_secret_is_shown_when_it_is_made_and_never_again() {
    let bed = bed(push(json!({"authorization": "Bearer hidden-token"}))).await;
    let made = bed.post("/v1/subscriptions/s/secrets", json!({"kind": "ed25519"})).await.good();
    let secret = made["secret"].as_str().unwrap().to_owned();
    assert!(secret.starts_with("whsk_") && made["public"].as_str().unwrap().starts_with("whpk_"));
    let own = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let given = bed.post("/v1/subscriptions/s/secrets", json!({"secret": own})).await.good();
    assert_eq!(given["secret"], Value::Null);
    for path in ["/v1/subscriptions/s", "/v1/subscriptions", "/v1/stats"] {
        let text = bed.get(path).await.text;
        assert!(!text.contains(&secret) && !text.contains(own) && !text.contains("hidden-token"), "{path}");
        assert!(!text.contains("s1."), "sealed texts stay here, too: {path}");
    }
    let told = bed.get("/v1/subscriptions/s").await.good();
    assert_eq!(told["has_authorization"], true);
    assert_eq!((told["secrets"].as_array().unwrap().len(), &told["secrets"][0]["id"]), (2, &given["id"]));
    let path = format!("/v1/subscriptions/s/secrets/{}", made["id"].as_str().unwrap());
    let left = bed.delete(&path).await.good();
    assert_eq!((left["secrets"].as_array().unwrap().len(), &left["secrets"][0]["id"]), (1, &given["id"]));
    bed.delete(&path).await.problem(404);
}

#[tokio::test]
async fn without_a_key_no_secret_is_stored_and_the_remedy_says_what_to_set() {
    let bed = Bed::open().await;
    bed.put("/v1/subscriptions/s", push(json!({}))).await.good();
    let problem = bed.post("/v1/subscriptions/s/secrets", json!({})).await.problem(422);
    assert!(problem["remedy"].as_str().unwrap().contains("TRAMLINE_SECRET_KEY"), "{problem}");
}

#[tokio::test]
async fn a_new_key_opens_what_the_old_one_sealed() {
    let config = Config { root_token: Some(ROOT.into()), ..Config::defaults().unwrap() };
    let sealed = config.keyring().unwrap().seal("p", b"secret").unwrap();
    let new = Config { secret_key: Some("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=".into()), ..config };
    let keyring = new.keyring().unwrap();
    assert_eq!(keyring.open("p", &sealed).unwrap(), b"secret");
    assert!(!keyring.is_current(&sealed));
}

#[tokio::test]
async fn disabling_and_enabling_are_told_with_the_reason() {
    let bed = bed(push(json!({}))).await;
    let told = bed.post("/v1/subscriptions/s/disable", json!({"reason": "moving"})).await.good();
    bed.post("/v1/topics/t/events", json!({"payload": 1})).await.good();
    let stats = bed.get("/v1/stats").await.good();
    let delivery = &stats["subscriptions"][0]["delivery"];
    assert_eq!(
        (&delivery["gathering"], &delivery["ready"], &delivery["sending"]),
        (&json!(1), &json!(0), &json!(0))
    );
    assert_eq!(
        (&told["delivery"]["state"], &told["delivery"]["disabled_because"]),
        (&json!("disabled"), &json!("moving"))
    );
    let told = bed.post("/v1/subscriptions/s/enable", json!({})).await.good();
    assert_eq!(
        (&told["delivery"]["state"], &told["delivery"]["disabled_because"]),
        (&json!("active"), &Value::Null)
    );
    let replayed =
        bed.post("/v1/subscriptions/s/replay", json!({"since": "2026-01-01T00:00:00Z"})).await.good();
    assert_eq!(replayed, json!({"count": 0, "next": null}), "what is pending stays as it is");
    bed.post("/v1/subscriptions/s/replay", json!({"since": "2026-01-01T00:00:00Z", "after": "x"}))
        .await
        .problem(422);
    assert_eq!(bed.get("/v1/subscriptions/s/attempts").await.good(), json!({"items": [], "next": null}));
}

#[tokio::test]
async fn who_may_not_read_events_may_not_have_them_sent_and_credentials_stay_with_their_receiver() {
    let bed = bed(push(json!({"authorization": "Bearer hidden-token"}))).await;
    let wish = json!({"name": "manager", "scopes": ["manage"]});
    let manager = bed.post("/v1/tokens", wish).await.good()["token"].as_str().unwrap().to_owned();
    let elsewhere = push(json!({"callback": "https://elsewhere.example/"})).to_string();
    let put = axum::http::Method::PUT;
    bed.call(put.clone(), "/v1/subscriptions/s", Some(&manager), &elsewhere).await.problem(403);
    let less = json!({"topics": ["t"], "max_events": 5}).to_string();
    bed.call(put, "/v1/subscriptions/s", Some(&manager), &less).await.good();
    assert_eq!(bed.get("/v1/subscriptions/s").await.good()["has_authorization"], true);
    let moved =
        bed.put("/v1/subscriptions/s", push(json!({"callback": "https://elsewhere.example/"}))).await.good();
    assert_eq!(moved["has_authorization"], false);
}

/// Reading and writing again lost all but one of them.
#[tokio::test(flavor = "multi_thread")]
async fn secrets_that_are_added_at_once_are_all_kept() {
    let bed = bed(push(json!({}))).await;
    let add = || bed.post("/v1/subscriptions/s/secrets", json!({}));
    let added = tokio::join!(add(), add(), add(), add(), add());
    for reply in [added.0, added.1, added.2, added.3, added.4] {
        reply.good();
    }
    assert_eq!(bed.get("/v1/subscriptions/s").await.good()["secrets"].as_array().unwrap().len(), 5);
}

/// Each node read all secrets, added its own, and wrote them: what another one had added in between was gone.
#[tokio::test]
async fn nodes_that_change_a_subscription_at_once_undo_nothing_of_each_other() {
    let bed = bed(push(json!({}))).await;
    let twin = bed.twin(bed.app.config.clone()).await;
    let added = (0..8).map(|number| {
        let node = if number % 2 == 0 { &bed } else { &twin };
        node.post("/v1/subscriptions/s/secrets", json!({}))
    });
    let added = futures_util::future::join_all(added);
    let rate = twin.put("/v1/subscriptions/s", json!({"topics": ["t"], "rate": 7}));
    let (added, rate) = tokio::join!(added, rate);
    rate.good();
    let mut ids: Vec<String> =
        added.into_iter().map(|reply| reply.good()["id"].as_str().unwrap().to_owned()).collect();
    let told = bed.get("/v1/subscriptions/s").await.good();
    let mut kept: Vec<String> = told["secrets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|secret| secret["id"].as_str().unwrap().to_owned())
        .collect();
    ids.sort();
    kept.sort();
    assert_eq!((kept, &told["rate"]), (ids, &json!(7)));
}

#[tokio::test]
async fn a_node_without_the_key_of_a_secret_says_that_it_sends_nothing() {
    let bed = bed(push(json!({"authorization": "Bearer x"}))).await;
    let told = bed.get("/v1/subscriptions/s").await.good();
    assert_eq!(told["delivery"].get("locked_because"), None);
    let other = Config { root_token: Some("another root token".into()), ..Config::defaults().unwrap() };
    let told = bed.twin(other).await.get("/v1/subscriptions/s").await.good();
    let why = told["delivery"]["locked_because"].as_str().unwrap();
    assert!(why.contains("which is not here"), "{why}");
}
