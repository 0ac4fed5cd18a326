//! Tokens of clients.

use super::bus::{Bus, CALLBACK, event};
use crate::config::Config;
use crate::http::tests::bed::{Bed, ROOT};
use serde_json::{Value, json};

async fn bare() -> Bus {
    Bus(Bed::guarded().await)
}

/// The original answers 204 to an empty list, at which its own client breaks.
#[tokio::test]
async fn no_tokens_are_an_empty_list() {
    let reply = bare().await.call("GET", "/api_tokens", ROOT, Value::Null).await;
    assert_eq!((reply.status.as_u16(), reply.json()), (200, json!([])));
}

#[tokio::test]
async fn a_token_is_made_of_its_name_and_listed() {
    let bus = bare().await;
    let reply = bus.call("POST", "/api_tokens", ROOT, json!({"name": "shop"})).await;
    assert_eq!(reply.status, 201);
    let made = reply.json();
    let token = made["token"].as_str().unwrap().to_owned();
    let random = token.strip_prefix("shop--").unwrap();
    assert!(
        random.len() == 32 && random.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)),
        "{token}"
    );
    assert_eq!(made, json!({"name": "shop", "token": token}));
    let given =
        bus.call("POST", "/api_tokens", ROOT, json!({"name": "web", "token": "my:own_token-1"})).await;
    assert_eq!(
        (given.status.as_u16(), given.json()),
        (201, json!({"name": "web", "token": "my:own_token-1"}))
    );
    assert_eq!(bus.get("/api_tokens", ROOT).await, json!([made, {"name": "web", "token": "my:own_token-1"}]));
    bus.good("POST", "/topics/widgets", &token, event(1)).await;
    assert_eq!(bus.get("/topics", "my:own_token-1").await[0]["publisher"], "shop");
}

#[tokio::test]
async fn what_cannot_be_a_token_is_refused() {
    let bus = bare().await;
    for bad in [
        json!({}),
        json!({"name": ""}),
        json!({"name": 5}),
        json!({"name": "Shop"}),
        json!({"name": "a b"}),
        json!({"name": "x".repeat(31)}),
        json!({"name": "shop", "token": ""}),
        json!({"name": "shop", "token": "A"}),
        json!({"name": "shop", "token": "x".repeat(65)}),
        json!({"name": "shop", "more": 1}),
        json!({"name": "shop", "token": ROOT}),
    ] {
        let reply = bus.call("POST", "/api_tokens", ROOT, bad.clone()).await;
        assert_eq!(reply.status, 400, "{bad}: {}", reply.text);
    }
    bus.good("POST", "/api_tokens", ROOT, json!({"name": "x".repeat(64), "token": "x"})).await;
}

/// In the original a name is a label, and each token is a client of its own.
#[tokio::test]
async fn several_tokens_of_one_name_are_several_clients() {
    let bus = bare().await;
    for token in ["one", "two"] {
        bus.good("POST", "/api_tokens", ROOT, json!({"name": "shop", "token": token})).await;
    }
    let listed = bus.get("/api_tokens", ROOT).await;
    assert_eq!(listed, json!([{"name": "shop", "token": "one"}, {"name": "shop", "token": "two"}]));
    bus.good("POST", "/topics/widgets", "one", event(1)).await;
    bus.call("POST", "/topics/widgets", "two", event(1)).await.refused(403, "topic claimed");
    for token in ["one", "two"] {
        bus.good("POST", "/subscription", token, json!({"topics": ["widgets"], "callback": CALLBACK})).await;
    }
    let names: Vec<Value> = bus
        .get("/subscribers", ROOT)
        .await
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["subscriber"].clone())
        .collect();
    assert_eq!(names, ["shop", "shop:2"]);
}

#[tokio::test]
async fn tokens_of_one_name_that_are_created_at_once_are_all_created() {
    let bus = bare().await;
    let create = || bus.call("POST", "/api_tokens", ROOT, json!({"name": "shop"}));
    let (one, two, three) = tokio::join!(create(), create(), create());
    assert_eq!([one.status.as_u16(), two.status.as_u16(), three.status.as_u16()], [201; 3]);
    assert_eq!(bus.get("/api_tokens", ROOT).await.as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn the_same_token_again_is_the_same_and_of_another_name_is_refused() {
    let bus = bare().await;
    let shop = json!({"name": "shop", "token": "secret"});
    for _ in 0..2 {
        assert_eq!(bus.good("POST", "/api_tokens", ROOT, shop.clone()).await, shop);
    }
    assert_eq!(bus.get("/api_tokens", ROOT).await, json!([shop]));
    let other = json!({"name": "web", "token": "secret"});
    bus.call("POST", "/api_tokens", ROOT, other).await.refused(400, "the token is taken");
}

#[tokio::test]
async fn a_deleted_token_is_gone_with_its_subscriber() {
    let bus = Bus::open().await;
    bus.subscribe(&["widgets"]).await;
    for _ in 0..2 {
        let reply = bus.call("DELETE", "/api_tokens/web", ROOT, Value::Null).await;
        assert_eq!((reply.status.as_u16(), &*reply.text), (204, ""));
    }
    assert_eq!(bus.get("/subscribers", ROOT).await, json!([]));
    assert_eq!(bus.get("/api_tokens", ROOT).await, json!([{"name": "shop", "token": "shop"}]));
    assert_eq!(bus.call("GET", "/topics", "web", Value::Null).await.status, 401);
}

#[tokio::test]
async fn whoever_gets_a_token_of_the_same_name_owns_its_topics_again() {
    let bus = Bus::open().await;
    bus.publish("widgets", 1).await;
    bus.good("DELETE", "/api_tokens/shop", ROOT, Value::Null).await;
    bus.good("POST", "/api_tokens", ROOT, json!({"name": "shop", "token": "new"})).await;
    bus.good("POST", "/topics/widgets", "new", event(2)).await;
}

#[tokio::test]
async fn tokens_of_both_apis_are_kept_apart() {
    let bus = Bus::open().await;
    let own = bus.0.post("/v1/tokens", json!({"name": "ci", "scopes": ["publish"]})).await.good();
    let own = own["token"].as_str().unwrap();
    let listed = bus.call("GET", "/api_tokens", ROOT, Value::Null).await;
    assert!(!listed.text.contains("ci") && !listed.text.contains(own));
    bus.good("DELETE", &format!("/api_tokens/{own}"), ROOT, Value::Null).await;
    bus.good("POST", "/topics/widgets", own, event(1)).await;
    // And the tokens of Routemaster's clients open nothing of Tramline's own API.
    bus.publish("gadgets", 1).await;
    bus.good("POST", "/subscription", "shop", json!({"topics": ["gadgets"], "callback": CALLBACK})).await;
    for (method, path, body) in [
        ("GET", "/v1/topics/gadgets/events", Value::Null),
        ("POST", "/v1/topics/gadgets/events", json!({"payload": 1})),
        ("POST", "/v1/subscriptions/shop/claim", json!({})),
        ("GET", "/v1/tokens", Value::Null),
    ] {
        assert_eq!(bus.call(method, path, "shop", body).await.status, 403, "{path}");
    }
    assert_eq!(bus.get("/v1/topics", "shop").await["items"], json!([]));
    let names = bus.0.get("/v1/tokens").await;
    assert!(names.text.contains("\"shop\"") && !names.text.contains("sealed"), "{}", names.text);
}

#[tokio::test]
async fn the_secret_of_a_token_is_not_in_the_store() {
    let bus = bare().await;
    bus.good("POST", "/api_tokens", ROOT, json!({"name": "shop", "token": "a-long-secret"})).await;
    let kept = bus.0.app.tram.store().tokens().await.unwrap().remove(0);
    assert!(!format!("{kept:?}").contains("a-long-secret"));
}

/// Or everybody would be locked out for good.
#[tokio::test]
async fn without_a_root_there_are_no_tokens() {
    let local = Bus::local().await;
    local.call("POST", "/api_tokens", "", json!({"name": "shop"})).await.refused(400, "the first token");
    let key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let keyed = Config { secret_key: Some(key.into()), ..Config::defaults().unwrap() };
    let keyed = Bus(Bed::with(keyed).await);
    keyed.call("POST", "/api_tokens", "", json!({"name": "shop"})).await.refused(400, "the first token");
    assert_eq!(keyed.get("/api_tokens", "").await, json!([]));
}

/// Only subscriptions were sealed again: when the old key was taken away, nobody could list the tokens any more.
#[tokio::test]
async fn tokens_are_sealed_again_with_a_new_key() {
    let [old, new] =
        ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=", "enl4d3Z1dHNycXBvbm1sa2ppaGdmZWRjYmF6eXh3dnU="];
    let keys = |keys: String| Config {
        root_token: Some(ROOT.into()),
        secret_key: Some(keys),
        ..Config::defaults().unwrap()
    };
    let before = Bus(Bed::with(keys(old.to_owned())).await);
    before.call("POST", "/api_tokens", ROOT, json!({"name": "web", "token": "my-own"})).await;
    let between = Bus(before.0.twin(keys(format!("{new},{old}"))).await);
    crate::serve::reseal::reseal(&between.0.app).await.unwrap();
    let after = Bus(before.0.twin(keys(new.to_owned())).await);
    assert_eq!(after.get("/api_tokens", ROOT).await, json!([{"name": "web", "token": "my-own"}]));
}
