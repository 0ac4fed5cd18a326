//! From a publisher to a drain.

use crate::bus::{Bus, ROOT};
use crate::drain::Drain;
use crate::stores::{Place, on_every_store, until};
use serde_json::{Value, json};

on_every_store![
    events_reach_a_drain_in_the_order_of_their_arrival,
    a_full_batch_goes_at_once,
    what_a_drain_refuses_comes_again_though_its_topic_is_gone,
    a_client_whose_token_is_gone_is_sent_nothing,
];

async fn events_reach_a_drain_in_the_order_of_their_arrival(place: Place) {
    let (bus, mut drain) = (Bus::start(&place).await, Drain::open().await);
    let topics = if place.is_spread() { &["widgets"][..] } else { &["widgets", "gadgets"] };
    bus.subscribe(topics, &drain.callback, 0, 100).await;
    let mut published = Vec::new();
    for number in 0..20 {
        let topic = topics[number as usize % 3 % topics.len()];
        published.push(bus.publish(topic, number).await);
    }
    let with_data =
        json!({"type": "delete", "url": "https://shop.example/x", "timestamp": 5, "data": {"a": 1}});
    assert_eq!(bus.call("POST", "/topics/widgets", "shop", with_data).await.0, 200);
    published.push(json!({"topic": "widgets", "type": "delete", "url": "https://shop.example/x", "t": 5, "data": {"a": 1}}));
    let mut drained = Vec::new();
    while drained.len() < published.len() {
        let (status, events) = drain.next().await;
        assert_eq!(status, 204, "{events:?}");
        drained.extend(events);
    }
    assert_eq!(drained, published);
    let figures = json!({"sent": 21, "queued": 0, "oldest": null});
    until(async || (bus.events().await == figures).then_some(())).await;
}

async fn a_full_batch_goes_at_once(place: Place) {
    let (bus, mut drain) = (Bus::start(&place).await, Drain::open().await);
    bus.subscribe(&["widgets"], &drain.callback, 3_600_000, 3).await;
    let mut published = Vec::new();
    for number in 0..4 {
        published.push(bus.publish("widgets", number).await);
    }
    assert_eq!(drain.next().await.1, published[..3]);
    until(async || (bus.events().await["sent"] == 3).then_some(())).await;
    assert_eq!(bus.events().await["queued"], 1, "one waits for an hour, or for two more");
    bus.subscribe(&["widgets"], &drain.callback, 0, 3).await;
    assert_eq!(drain.next().await.1, published[3..], "or for another time-out");
}

async fn what_a_drain_refuses_comes_again_though_its_topic_is_gone(place: Place) {
    let (bus, mut drain) = (Bus::start(&place).await, Drain::open().await);
    bus.subscribe(&["widgets"], &drain.callback, 0, 100).await;
    drain.is_well(false);
    let event = bus.publish("widgets", 1).await;
    assert_eq!(drain.next().await, (500, vec![event.clone()]));
    assert_eq!(bus.call("DELETE", "/topics/widgets", "shop", Value::Null).await.0, 204);
    assert_eq!(bus.call("GET", "/topics", ROOT, Value::Null).await.1, json!([]));
    drain.is_well(true);
    loop {
        let (status, events) = drain.next().await;
        assert_eq!(events, std::slice::from_ref(&event));
        if status == 204 {
            break;
        }
    }
    let figures = json!({"sent": 1, "queued": 0, "oldest": null});
    until(async || (bus.events().await == figures).then_some(())).await;
}

async fn a_client_whose_token_is_gone_is_sent_nothing(place: Place) {
    let (bus, mut drain) = (Bus::start(&place).await, Drain::open().await);
    bus.subscribe(&["widgets"], &drain.callback, 0, 100).await;
    let event = bus.publish("widgets", 1).await;
    assert_eq!(drain.next().await.1, [event]);
    assert_eq!(bus.call("DELETE", "/api_tokens/web", ROOT, Value::Null).await.0, 204);
    bus.publish("widgets", 2).await;
    assert_eq!(bus.call("GET", "/subscribers", ROOT, Value::Null).await.1, json!([]));
    assert_eq!(bus.call("GET", "/topics", "web", Value::Null).await.0, 401);
}
