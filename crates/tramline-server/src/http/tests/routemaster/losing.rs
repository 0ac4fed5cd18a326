//! Losing topics: by unsubscribing, by subscribing to others, or because the topic is deleted.

use super::bus::{Bus, CALLBACK, event};
use crate::http::tests::bed::ROOT;
use serde_json::{Value, json};

/// The original broke its lists when a topic with subscribers was deleted.
#[tokio::test]
async fn a_deleted_topic_is_lost_and_what_was_queued_stays() {
    let bus = Bus::open().await;
    bus.subscribe(&["gadgets", "widgets"]).await;
    bus.publish("widgets", 1).await;
    assert_eq!(bus.call("DELETE", "/topics/widgets", "shop", Value::Null).await.status, 204);
    assert_eq!(bus.topic("widgets").await, None);
    let listed = bus.subscriber().await;
    assert_eq!((&listed["topics"], &listed["events"]["queued"]), (&json!(["gadgets"]), &json!(1)));
    bus.call("DELETE", "/topics/widgets", "shop", Value::Null).await.refused(404, "topic not found");
    // Whoever publishes next owns it; the subscriber has lost it.
    bus.good("POST", "/topics/widgets", "web", event(2)).await;
    assert_eq!(bus.topic("widgets").await.unwrap()["publisher"], "web");
    assert_eq!(bus.subscriber().await["events"]["queued"], 1);
    bus.subscribe(&["gadgets", "widgets"]).await;
    bus.good("POST", "/topics/widgets", "web", event(3)).await;
    assert_eq!(bus.subscriber().await["events"]["queued"], 2);
}

#[tokio::test]
async fn a_topic_without_anything_queued_is_gone_at_once() {
    let bus = Bus::open().await;
    bus.subscribe(&["gadgets", "widgets"]).await;
    assert_eq!(bus.call("DELETE", "/topics/widgets", ROOT, Value::Null).await.status, 204);
    assert_eq!(bus.stored_topics().await, ["gadgets"]);
    assert_eq!(bus.subscriber().await["topics"], json!(["gadgets"]));
}

#[tokio::test]
async fn the_last_topic_can_be_deleted_too() {
    let bus = Bus::open().await;
    bus.subscribe(&["widgets"]).await;
    bus.publish("widgets", 1).await;
    assert_eq!(bus.call("DELETE", "/topics/widgets", ROOT, Value::Null).await.status, 204);
    let listed = bus.subscriber().await;
    assert_eq!((&listed["topics"], &listed["events"]["queued"]), (&json!([]), &json!(1)));
    assert_eq!(bus.get("/topics", ROOT).await, json!([]));
}

/// In the original any client could delete any topic.
#[tokio::test]
async fn only_the_owner_and_the_root_delete_a_topic() {
    let bus = Bus::open().await;
    bus.call("DELETE", "/topics/widgets", "shop", Value::Null).await.refused(404, "topic not found");
    bus.publish("widgets", 1).await;
    bus.subscribe(&["gadgets"]).await;
    for topic in ["widgets", "gadgets"] {
        assert_eq!(bus.call("DELETE", &format!("/topics/{topic}"), "web", Value::Null).await.status, 403);
        assert!(bus.topic(topic).await.is_some());
    }
    assert_eq!(bus.call("DELETE", "/topics/widgets", "shop", Value::Null).await.status, 204);
    assert_eq!(bus.call("DELETE", "/topics/gadgets", ROOT, Value::Null).await.status, 204);
}

#[tokio::test]
async fn consumers_of_other_kinds_keep_a_deleted_topic() {
    let bus = Bus::open().await;
    bus.0.put("/v1/subscriptions/audit", json!({"topics": ["widgets"]})).await.good();
    bus.publish("widgets", 1).await;
    assert_eq!(bus.call("DELETE", "/topics/widgets", "shop", Value::Null).await.status, 204);
    assert_eq!(bus.topic("widgets").await, None);
    assert_eq!(bus.0.get("/v1/subscriptions/audit").await.good()["counts"]["ready"], 1);
    bus.call("DELETE", "/topics/widgets", ROOT, Value::Null).await.refused(404, "topic not found");
}

#[tokio::test]
async fn a_topic_that_is_unsubscribed_gives_nothing_new() {
    let bus = Bus::open().await;
    let leave = async |topic: &str| {
        bus.call("DELETE", &format!("/subscriber/topics/{topic}"), "web", Value::Null).await
    };
    leave("widgets").await.refused(404, "subscriber not found");
    bus.subscribe(&["gadgets", "widgets"]).await;
    bus.publish("widgets", 1).await;
    assert_eq!(leave("widgets").await.status, 204);
    leave("widgets").await.refused(404, "not subscribed");
    leave("gizmos").await.refused(404, "not subscribed");
    bus.publish("widgets", 2).await;
    let listed = bus.subscriber().await;
    assert_eq!((&listed["topics"], &listed["events"]["queued"]), (&json!(["gadgets"]), &json!(1)));
    assert_eq!(leave("gadgets").await.status, 204);
    assert_eq!(bus.subscriber().await["topics"], json!([]));
    assert_eq!(bus.call("DELETE", "/subscriber", "web", Value::Null).await.status, 204);
}

#[tokio::test]
async fn the_topics_of_a_subscription_are_all_it_has() {
    let bus = Bus::open().await;
    bus.subscribe(&["gadgets", "widgets"]).await;
    bus.publish("widgets", 1).await;
    bus.subscribe(&["gadgets", "gizmos"]).await;
    bus.publish("widgets", 2).await;
    bus.publish("gizmos", 3).await;
    let listed = bus.subscriber().await;
    assert_eq!((&listed["topics"], &listed["events"]["queued"]), (&json!(["gadgets", "gizmos"]), &json!(2)));
    bus.good("POST", "/subscription", "web", json!({"topics": [], "callback": CALLBACK})).await;
    assert_eq!(bus.subscriber().await["topics"], json!([]));
}
