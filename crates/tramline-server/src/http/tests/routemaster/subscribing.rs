//! Subscribing, and how subscribers are listed.

use super::bus::{Bus, CALLBACK, event};
use crate::http::tests::bed::ROOT;
use serde_json::{Value, json};
use tramline::store::verbs::{RecordPush, Steer, SteerPush};
use tramline::{Attempt, EventId, Format, Ordering, Retry, Time, Verdict};

#[tokio::test]
async fn a_subscriber_is_a_push_subscription_named_after_its_client() {
    let bus = Bus::open().await;
    bus.subscribe(&["widgets", "gadgets"]).await;
    let subscription = bus.0.app.tram.subscription("web").await.unwrap();
    let policy = subscription.policy;
    assert_eq!((policy.ordering, policy.retry.max_attempts), (Ordering::Subscriber, Retry::FOR_EVER));
    let push = policy.push.unwrap();
    assert_eq!((push.format, &*push.callback, push.disable_after), (Format::Routemaster, CALLBACK, None));
    let uuid = bus.0.app.keyring.open("subscription/web/user", push.user.as_deref().unwrap()).unwrap();
    assert_eq!(uuid, b"secret-of-web");
    let topic = bus.topic("gadgets").await.unwrap();
    assert_eq!(topic, json!({"name": "gadgets", "publisher": null, "events": 0}), "created, and unclaimed");
}

#[tokio::test]
async fn it_is_listed_with_what_is_queued() {
    let bus = Bus::open().await;
    bus.publish("widgets", 0).await;
    bus.subscribe(&["widgets"]).await;
    bus.publish("widgets", 1).await;
    bus.publish("widgets", 2).await;
    let mut listed = bus.subscriber().await;
    assert!(listed["events"]["oldest"].take().is_u64());
    let expected = json!({"subscriber": "web", "uuid": "secret-of-web", "callback": CALLBACK, "max_events": 100,
        "timeout": 500, "topics": ["widgets"], "events": {"sent": 0, "queued": 2, "oldest": null}});
    assert_eq!(listed, expected, "nothing from before it subscribed");
    assert_eq!(bus.get("/subscriptions", ROOT).await[0]["events"]["queued"], 2, "the other path is the same");
}

#[tokio::test]
async fn what_was_sent_is_counted() {
    let bus = Bus::open().await;
    bus.subscribe(&["widgets"]).await;
    assert_eq!(bus.subscriber().await["events"], json!({"sent": 0, "queued": 0, "oldest": null}));
    let subscription = bus.0.app.tram.subscription("web").await.unwrap().id;
    let attempt = Attempt {
        at: Time(0),
        first: EventId(64),
        last: EventId(70),
        events: 7,
        acknowledged: 7,
        verdict: Verdict::Delivered,
        status: Some(200),
        latency: std::time::Duration::ZERO,
        excerpt: String::new(),
        retry_after: None,
    };
    let record = RecordPush { subscription, attempts: vec![attempt], counted: Default::default(), now: None };
    bus.0.app.tram.store().record_push(record).await.unwrap();
    assert_eq!(bus.subscriber().await["events"]["sent"], 7);
}

/// The original showed every secret to every client.
#[tokio::test]
async fn the_uuid_is_shown_to_its_owner_and_the_root_only() {
    let bus = Bus::open().await;
    bus.subscribe(&["widgets"]).await;
    assert_eq!(bus.get("/subscribers", "web").await[0]["uuid"], "secret-of-web");
    assert_eq!(bus.get("/subscribers", ROOT).await[0]["uuid"], "secret-of-web");
    let other = bus.call("GET", "/subscribers", "shop", Value::Null).await;
    assert!(!other.text.contains("secret-of-web"));
    assert_eq!(other.json()[0]["uuid"], Value::Null);
}

#[tokio::test]
async fn what_is_left_out_stays_as_it_was_but_for_the_uuid() {
    let bus = Bus::open().await;
    let first = json!({"topics": ["widgets"], "callback": CALLBACK, "uuid": "u", "timeout": 0, "max": 7});
    bus.good("POST", "/subscriber", "web", first).await;
    let again = json!({"topics": ["widgets"], "callback": "https://web.example/new", "timeout": null});
    bus.good("POST", "/subscriber", "web", again).await;
    let listed = bus.subscriber().await;
    assert_eq!((&listed["timeout"], &listed["max_events"]), (&json!(0), &json!(7)));
    assert_eq!((&listed["callback"], &listed["uuid"]), (&json!("https://web.example/new"), &Value::Null));
    let many = json!({"topics": ["widgets"], "callback": CALLBACK, "max": 1_000_000, "timeout": 3_600_000});
    bus.good("POST", "/subscriber", "web", many).await;
    let listed = bus.subscriber().await;
    assert_eq!((&listed["timeout"], &listed["max_events"]), (&json!(3_600_000), &json!(10_000)));
}

#[tokio::test]
async fn subscribing_again_changes_nothing() {
    let bus = Bus::open().await;
    bus.subscribe(&["widgets", "widgets"]).await;
    let before = bus.0.app.tram.subscription("web").await.unwrap();
    bus.subscribe(&["widgets"]).await;
    assert_eq!(bus.0.app.tram.subscription("web").await.unwrap(), before);
}

#[tokio::test]
async fn a_subscription_that_is_rejected_creates_nothing() {
    let bus = Bus::open().await;
    let good = json!({"topics": ["widgets"], "callback": CALLBACK, "uuid": "u"});
    for (field, bad) in [
        ("topics", json!("widgets")),
        ("topics", json!(["widgets", "Bad"])),
        ("topics", json!(["widgets", 5])),
        ("topics", json!([])),
        ("topics", Value::Null),
        ("callback", json!("http://web.example/")),
        ("callback", json!("https://web.example/?x=y")),
        ("callback", json!("https://u:p@web.example/")),
        ("callback", json!("web")),
        ("callback", json!("")),
        ("callback", Value::Null),
        ("uuid", json!(5)),
        ("uuid", json!("x".repeat(256))),
        ("timeout", json!(-1)),
        ("timeout", json!(3_600_001)),
        ("timeout", json!("500")),
        ("timeout", json!(0.5)),
        ("max", json!(0)),
        ("max", json!(-1)),
        ("max", json!("100")),
        ("extra", json!(1)),
    ] {
        let mut wanted = good.clone();
        wanted[field] = bad;
        let what = wanted.to_string();
        let reply = bus.call("POST", "/subscription", "web", wanted).await;
        assert_eq!(reply.status, 400, "{what}: {}", reply.text);
        assert_eq!(reply.headers["content-type"], "text/plain; charset=utf-8");
    }
    for bad in ["{", "", "[]", "null"] {
        bus.raw("POST", "/subscription", "web", bad).await.refused(400, "bad data in payload");
    }
    assert_eq!(bus.stored_topics().await, [""; 0]);
    assert_eq!(bus.get("/subscribers", ROOT).await, json!([]));
}

#[tokio::test]
async fn a_subscription_of_another_kind_is_not_touched() {
    let bus = Bus::open().await;
    bus.0.put("/v1/subscriptions/web", json!({"topics": ["orders"]})).await.good();
    let wanted = json!({"topics": ["widgets"], "callback": CALLBACK});
    bus.call("POST", "/subscription", "web", wanted).await.refused(400, "a subscription of another kind");
    bus.call("DELETE", "/subscriber", "web", Value::Null).await.refused(404, "subscriber not found");
    assert_eq!(bus.get("/subscribers", ROOT).await, json!([]));
    bus.0.get("/v1/subscriptions/web").await.good();
}

#[tokio::test]
async fn who_unsubscribes_is_gone_with_what_was_queued() {
    let bus = Bus::open().await;
    bus.call("DELETE", "/subscriber", "web", Value::Null).await.refused(404, "subscriber not found");
    bus.subscribe(&["widgets"]).await;
    bus.good("POST", "/topics/widgets", "shop", event(1)).await;
    assert_eq!(bus.call("DELETE", "/subscriber", "web", Value::Null).await.status, 204);
    assert_eq!(bus.get("/subscribers", ROOT).await, json!([]));
    bus.subscribe(&["widgets"]).await;
    assert_eq!(bus.subscriber().await["events"]["queued"], 0);
}

#[tokio::test]
async fn who_was_disabled_and_subscribes_again_is_sent_to_again() {
    let bus = Bus::open().await;
    bus.subscribe(&["widgets"]).await;
    let subscription = bus.0.app.tram.subscription("web").await.unwrap().id;
    let steer = Steer::Disable { reason: "410".into() };
    let store = bus.0.app.tram.store();
    store.steer_push(SteerPush { subscription, steer, by: "test".into(), now: None }).await.unwrap();
    bus.subscribe(&["widgets"]).await;
    assert_eq!(store.push_board(None).await.unwrap()[0].health.disabled, None);
}

/// What one node had read, another one changed before it wrote.
#[tokio::test]
async fn topics_that_are_left_at_once_are_all_left() {
    let bus = Bus::open().await;
    let twin = Bus(bus.0.twin(bus.0.app.config.clone()).await);
    let names = ["a", "b", "c", "d", "e", "f"];
    bus.subscribe(&[&names[..], &["stays"]].concat()).await;
    let left = names.iter().enumerate().map(|(number, name)| {
        let node = if number % 2 == 0 { &bus } else { &twin };
        let path = format!("/subscriber/topics/{name}");
        async move { node.call("DELETE", &path, "web", Value::Null).await.status }
    });
    for status in futures_util::future::join_all(left).await {
        assert_eq!(status, 204);
    }
    assert_eq!(bus.subscriber().await["topics"], json!(["stays"]));
}
