//! The requests of Routemaster's Ruby client (3.2.3), as it writes them.

use crate::bus::{Bus, ROOT};
use crate::stores::{Place, on_every_store};
use serde_json::{Value, json};

on_every_store![everything_that_the_ruby_client_does];

async fn everything_that_the_ruby_client_does(place: Place) {
    let bus = Bus::start(&place).await;
    let no_body = |status| (status, Value::String(String::new()));
    // configure
    assert_eq!(bus.call("GET", "/pulse", "shop", Value::Null).await, no_body(204));
    // created, updated, deleted, noop: `data` is there only if it was given
    for kind in ["create", "update", "delete", "noop"] {
        let event = json!({"type": kind, "url": "https://shop.example/widgets/1", "timestamp": null});
        assert_eq!(bus.call("POST", "/topics/widgets", "shop", event).await, no_body(200));
    }
    let event = json!({"type": "noop", "url": "https://shop.example/widgets/1", "timestamp": 1_500_000_000_000_u64,
        "data": {"foo": "bar"}});
    assert_eq!(bus.call("POST", "/topics/widgets", "shop", event).await, no_body(200));
    // subscribe
    let wanted = json!({"topics": ["widgets", "kitten"], "callback": "https://app.example.com/events", "timeout": 60_000,
        "max": 500});
    if place.is_spread() {
        let (status, told) = bus.call("POST", "/subscription", "web", wanted).await;
        assert!(status == 400 && told.as_str().unwrap().contains("no common order"), "{status}: {told}");
        return;
    }
    assert_eq!(bus.call("POST", "/subscription", "web", wanted.clone()).await, no_body(204));
    let mut with_uuid = wanted;
    with_uuid["uuid"] = json!("hello");
    assert_eq!(bus.call("POST", "/subscription", "web", with_uuid).await, no_body(204));
    // monitor_topics and monitor_subscriptions: a GET with a content type and nothing in it
    let topics = bus.call("GET", "/topics", "web", Value::Null).await;
    let listed = json!([{"name": "kitten", "publisher": null, "events": 0}, {"name": "widgets", "publisher": "shop", "events": 5}]);
    assert_eq!(topics, (200, listed));
    let subscribers = bus.call("GET", "/subscriptions", "web", Value::Null).await;
    let listed = json!([{"subscriber": "web", "uuid": "hello", "callback": "https://app.example.com/events",
        "max_events": 500, "timeout": 60_000, "topics": ["kitten", "widgets"],
        "events": {"sent": 0, "queued": 0, "oldest": null}}]);
    assert_eq!(subscribers, (200, listed));
    // unsubscribe, unsubscribe_all, delete_topic
    assert_eq!(bus.call("DELETE", "/subscriber/topics/kitten", "web", Value::Null).await, no_body(204));
    assert_eq!(bus.call("DELETE", "/subscriber", "web", Value::Null).await, no_body(204));
    assert_eq!(bus.call("DELETE", "/topics/widgets", "shop", Value::Null).await, no_body(204));
    // token_add, token_list, token_del
    let (status, made) = bus.call("POST", "/api_tokens", ROOT, json!({"name": "new", "token": null})).await;
    assert_eq!((status, &made["name"]), (201, &json!("new")));
    let (status, tokens) = bus.call("GET", "/api_tokens", ROOT, Value::Null).await;
    assert_eq!((status, &tokens[0]), (200, &made));
    let path = format!("/api_tokens/{}", made["token"].as_str().unwrap());
    assert_eq!(bus.call("DELETE", &path, ROOT, Value::Null).await, no_body(204));
}
