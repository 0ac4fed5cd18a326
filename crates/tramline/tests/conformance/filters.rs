//! Filters: what a subscription does not want never becomes its work.

use crate::bed::*;
use serde_json::{Value, json};

conformance![
    what_a_filter_keeps_out_never_becomes_work,
    each_subscription_of_a_topic_has_its_own_filter,
    an_emit_wakes_only_those_whose_filters_it_passes,
    a_filtered_key_keeps_its_order,
    a_backfill_brings_only_what_passes,
    a_change_of_the_filter_counts_from_the_next_emit_on,
    an_item_of_a_tally_that_its_subscription_keeps_out_is_refused,
    a_resend_asks_no_filter,
    a_payload_that_is_no_json_has_no_fields,
    patterns_match_segments,
];

fn only(conditions: Value, policy: Policy) -> Policy {
    Policy { filter: serde_json::from_value(conditions).unwrap(), ..policy }
}

fn paid(policy: Policy) -> Policy {
    only(json!([{"field": "type", "equals": "paid"}]), policy)
}

fn of_kind(kind: &str) -> Event {
    keyed("a").kind(kind)
}

async fn what_a_filter_keeps_out_never_becomes_work(bed: Bed) {
    for (name, policy) in [("plain", unordered()), ("ordered", ordered()), ("pushed", arrival())] {
        let queue = bed.queue_named(name, &[TOPIC], paid(policy)).await;
        let emitted = bed.emit_together(["paid", "open", "paid", "open"].map(of_kind).to_vec()).await;
        let alone = bed.emit(of_kind("open")).await;
        assert_eq!(queue.counts().await, Counts { ready: 2, ..Counts::default() }, "{name}");
        assert_eq!(queue.drain().await, [emitted[0].id, emitted[2].id], "{name}");
        let seen = bed.find(alone).await.unwrap().deliveries;
        assert!(seen.iter().all(|delivery| delivery.status == Status::Settled), "{name}: {seen:?}");
        bed.store.delete_subscription(name).await.unwrap();
    }
}

async fn each_subscription_of_a_topic_has_its_own_filter(bed: Bed) {
    let all = bed.queue_named("all", &[TOPIC], ordered()).await;
    let country = |code: &str| json!([{"field": "payload.country", "in": [code]}]);
    let at = bed.queue_named("at", &[TOPIC], only(country("AT"), unordered())).await;
    let de = bed.queue_named("de", &[TOPIC], only(country("DE"), ordered())).await;
    let key = json!([{"field": "key", "prefix": "order:"}, {"field": "header.region", "equals": "eu"}]);
    let both = bed.queue_named("both", &[TOPIC], only(key, unordered())).await;
    let event = |code: &str, key: &str, region: &str| {
        Event::json(TOPIC, &json!({"country": code})).unwrap().key(key).header("region", region)
    };
    let events = vec![
        event("AT", "order:1", "eu"),
        event("DE", "order:1", "us"),
        event("FR", "order:2", "eu"),
        event("DE", "cart:1", "eu"),
    ];
    let ids: Vec<EventId> = bed.emit_together(events).await.iter().map(|event| event.id).collect();
    assert_eq!(sorted(all.drain().await), ids);
    assert_eq!(at.drain().await, [ids[0]]);
    assert_eq!(sorted(de.drain().await), [ids[1], ids[3]]);
    assert_eq!(both.drain().await, [ids[0], ids[2]]);
}

async fn an_emit_wakes_only_those_whose_filters_it_passes(bed: Bed) {
    let all = bed.queue_named("all", &[TOPIC], unordered()).await;
    let paid = bed.queue_named("paid", &[TOPIC], paid(unordered())).await;
    let units = vec![vec![of_kind("open")], vec![of_kind("open"), of_kind("paid")]];
    let emitted = bed.emit_units(units).await;
    let woken: Vec<_> = emitted.into_iter().map(|unit| unit.unwrap().wake).collect();
    assert_eq!(woken, [vec![all.id], vec![all.id, paid.id]]);
}

async fn a_filtered_key_keeps_its_order(bed: Bed) {
    let queue = bed.queue(paid(ordered())).await;
    let mut ids = Vec::new();
    for kind in ["paid", "open", "paid", "open", "paid"] {
        ids.push(bed.emit(of_kind(kind)).await);
    }
    let claimed = queue.claim(1).await;
    queue.settle(&claimed, Outcome::retry("no")).await;
    assert!(self::ids(&queue.claim(10).await).is_empty());
    bed.pass(seconds(60));
    assert_eq!(queue.drain().await, [ids[0], ids[2], ids[4]]);
}

async fn a_backfill_brings_only_what_passes(bed: Bed) {
    let emitted = bed.emit_together(["paid", "open", "paid"].map(of_kind).to_vec()).await;
    bed.emit(of_kind("open")).await;
    for (name, policy) in [("plain", unordered()), ("ordered", ordered()), ("pushed", arrival())] {
        let made = bed.subscribe(name, &[TOPIC], paid(policy), Start::Beginning).await.unwrap();
        let queue = Queue { bed: bed.clone(), id: made.id };
        queue.backfill().await;
        assert_eq!(queue.drain().await, [emitted[0].id, emitted[2].id], "{name}");
    }
}

async fn a_change_of_the_filter_counts_from_the_next_emit_on(bed: Bed) {
    let queue = bed.queue(paid(unordered())).await;
    let before = bed.emit_together(vec![of_kind("paid"), of_kind("open")]).await;
    let opened = only(json!([{"field": "type", "equals": "open"}]), unordered());
    assert_eq!(bed.queue(opened).await.id, queue.id);
    let after = bed.emit_together(vec![of_kind("paid"), of_kind("open")]).await;
    assert_eq!(sorted(queue.drain().await), [before[0].id, after[1].id]);
    bed.queue(unordered()).await;
    let all = bed.emit_together(vec![of_kind("paid"), of_kind("open")]).await;
    assert_eq!(sorted(queue.drain().await), [all[0].id, all[1].id]);
}

async fn an_item_of_a_tally_that_its_subscription_keeps_out_is_refused(bed: Bed) {
    let queue = bed.queue(paid(unordered())).await;
    let tally = bed.open(NewTally::new()).await;
    let units = vec![vec![of_kind("open").tally(tally)], vec![of_kind("paid").tally(tally)]];
    let emitted = bed.emit_units(units).await;
    assert_eq!(emitted[0].as_ref().unwrap_err().kind(), Kind::Invalid);
    assert!(emitted[1].is_ok());
    bed.seal(tally).await;
    queue.drain().await;
    assert_eq!(bed.tallied(tally).await, (1, 1, 0));
}

/// Who asks for an event by its number means it.
async fn a_resend_asks_no_filter(bed: Bed) {
    let queue = bed.queue(paid(ordered())).await;
    let kept_out = bed.emit(of_kind("open")).await;
    assert_eq!(queue.resend(&[kept_out]).await, 1);
    assert_eq!(queue.drain().await, [kept_out]);
}

async fn a_payload_that_is_no_json_has_no_fields(bed: Bed) {
    let queue = bed.queue(only(json!([{"field": "payload.a", "equals": 1}]), unordered())).await;
    let fitting = Event::json(TOPIC, &json!({"a": 1})).unwrap();
    let as_text = fitting.clone().content_type("text/plain");
    let broken = Event::new(TOPIC, "{\"a\": 1").content_type("application/json");
    let emitted = bed.emit_together(vec![as_text, broken, fitting]).await;
    assert_eq!(queue.drain().await, [emitted[2].id]);
}

async fn patterns_match_segments(bed: Bed) {
    let topics = ["acme/orders", "acme/mails", "shop/orders"];
    let matching =
        |field: &str, pattern: &str| only(json!([{"field": field, "matches": pattern}]), unordered());
    let orders = bed.queue_named("orders", &topics, matching("topic", "*/orders")).await;
    let acme = bed.queue_named("acme", &topics, matching("topic", "acme/**")).await;
    let paid = bed.queue_named("paid", &topics, matching("type", "order/*")).await;
    let tyrol = bed.queue_named("tyrol", &topics, matching("payload.place", "at/*/tyrol")).await;
    let mut ids = Vec::new();
    for (topic, kind, place) in [
        ("acme/orders", "order/paid", "at/west/tyrol"),
        ("acme/mails", "order", "at/tyrol"),
        ("shop/orders", "order/line/paid", "at/west/tyrol"),
    ] {
        let event = Event::json(topic, &json!({"place": place})).unwrap().kind(kind);
        ids.push(bed.emit(event).await);
    }
    assert_eq!(sorted(orders.drain().await), [ids[0], ids[2]]);
    assert_eq!(sorted(acme.drain().await), [ids[0], ids[1]]);
    assert_eq!(paid.drain().await, [ids[0]]);
    assert_eq!(sorted(tyrol.drain().await), [ids[0], ids[2]]);
}
