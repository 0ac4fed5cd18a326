//! Publishing, and topics with their owners.

use super::bus::{Bus, event};
use crate::http::tests::bed::ROOT;
use serde_json::{Value, json};
use tramline::EventId;

#[tokio::test]
async fn an_event_is_stored_as_it_is_sent_on() {
    let bus = Bus::open().await;
    let full = json!({"type": "create", "url": "https://shop.example/widgets/1", "timestamp": 1_500_000_000_000_u64,
        "data": {"lat": 45.1882728}});
    let reply = bus.call("POST", "/topics/widgets", "shop", full).await;
    assert_eq!((reply.status.as_u16(), &*reply.text), (200, ""));
    let stored = bus.0.app.tram.read_log("widgets", EventId(0), 10).await.unwrap().events.remove(0);
    assert_eq!((&*stored.kind, stored.key.as_deref()), ("create", Some("https://shop.example/widgets/1")));
    let payload: Value = serde_json::from_slice(&stored.payload).unwrap();
    let sent = json!({"url": "https://shop.example/widgets/1", "t": 1_500_000_000_000_u64, "data": {"lat": 45.1882728}});
    assert_eq!(payload, sent);
}

#[tokio::test]
async fn without_a_timestamp_it_is_now() {
    let bus = Bus::open().await;
    let mut event = event(1);
    event["timestamp"] = Value::Null;
    bus.good("POST", "/topics/widgets", "shop", event).await;
    let stored = bus.0.app.tram.read_log("widgets", EventId(0), 10).await.unwrap().events.remove(0);
    let payload: Value = serde_json::from_slice(&stored.payload).unwrap();
    let t = payload["t"].as_i64().unwrap();
    assert!((stored.emitted_at.0 - t).abs() < 60_000, "{t} is not now");
}

#[tokio::test]
async fn the_first_to_publish_owns_the_topic() {
    let bus = Bus::open().await;
    bus.publish("widgets", 1).await;
    bus.call("POST", "/topics/widgets", "web", event(2)).await.refused(403, "topic claimed");
    bus.publish("widgets", 3).await;
    assert_eq!(
        bus.get("/topics", "web").await,
        json!([{"name": "widgets", "publisher": "shop", "events": 2}])
    );
}

#[tokio::test]
async fn of_many_who_publish_first_one_owns_the_topic() {
    let bus = Bus::open().await;
    let (shop, web) = tokio::join!(
        bus.call("POST", "/topics/widgets", "shop", event(1)),
        bus.call("POST", "/topics/widgets", "web", event(1))
    );
    let mut statuses = [shop.status.as_u16(), web.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 403]);
}

/// The original stored a topic with a bad name although it answered 400, and let bad events claim topics.
#[tokio::test]
async fn what_is_rejected_creates_and_claims_nothing() {
    let bus = Bus::open().await;
    for topic in ["Widgets", "widgets1", "a-b", "a.b", &"x".repeat(65)] {
        bus.call("POST", &format!("/topics/{topic}"), "shop", event(1)).await.refused(400, "bad topic");
    }
    for bad in [
        json!({"type": "whatever", "url": "https://a.example/"}),
        json!({"type": "create", "url": "http://a.example/"}),
        json!({"type": "create", "url": "https://a.example/?q"}),
        json!({"type": "create", "url": "https://a example/"}),
        json!({"type": "create", "url": "https://a.example/", "timestamp": "yesterday"}),
        json!({"type": "create", "url": "https://a.example/", "extra": true}),
        json!({"type": "create", "url": "https://a.example/", "data": {"a": "x".repeat(80)}}),
        json!([event(1)]),
        Value::Null,
    ] {
        bus.call("POST", "/topics/widgets", "shop", bad).await.refused(400, "bad event");
    }
    for bad in ["{", "whatever", "\u{0}", "{\"type\": \"create\", \"url\": }"] {
        bus.raw("POST", "/topics/widgets", "shop", bad).await.refused(400, "bad event");
    }
    assert_eq!(bus.stored_topics().await, [""; 0]);
    bus.good("POST", "/topics/widgets", "web", event(1)).await;
}

#[tokio::test]
async fn what_may_be_large_is_a_setting() {
    let bus = Bus::open().await;
    let with_data = |size: usize| {
        let mut event = event(1);
        event["data"] = json!({"a": "x".repeat(size)});
        event
    };
    // One byte for the object, two for its name, two for the length of the text.
    bus.good("POST", "/topics/widgets", "shop", with_data(59)).await;
    bus.call("POST", "/topics/widgets", "shop", with_data(60)).await.refused(400, "bad event: the data");
}

#[tokio::test]
async fn a_url_longer_than_a_key_is_published_too() {
    let bus = Bus::open().await;
    let url = format!("https://shop.example/{}", "x".repeat(1000));
    bus.good("POST", "/topics/widgets", "shop", json!({"type": "noop", "url": url})).await;
    let stored = bus.0.app.tram.read_log("widgets", EventId(0), 10).await.unwrap().events.remove(0);
    assert!(stored.key.unwrap().starts_with("sha256:"));
    assert_eq!(serde_json::from_slice::<Value>(&stored.payload).unwrap()["url"], url);
}

#[tokio::test]
async fn the_root_is_no_client() {
    let bus = Bus::open().await;
    let reply = bus.call("POST", "/topics/widgets", ROOT, event(1)).await;
    assert_eq!(reply.headers["www-authenticate"], "Basic");
    reply.refused(401, "this endpoint requires authentication with a client token");
}

#[tokio::test]
async fn topics_of_others_apis_are_not_listed() {
    let bus = Bus::open().await;
    bus.0.post("/v1/topics/orders/events", json!({"payload": 1})).await.good();
    bus.0.post("/v1/topics/carlyle%2Fexact/events", json!({"payload": 1})).await.good();
    assert_eq!(bus.get("/topics", ROOT).await, json!([]));
    bus.publish("orders", 1).await;
    assert_eq!(bus.topic("orders").await.unwrap()["publisher"], "shop");
}
