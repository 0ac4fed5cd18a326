//! Emitting: what is stored, where it goes, and what the receipt says.

use crate::bed::*;

conformance![
    an_event_is_claimed_as_it_was_emitted,
    an_event_is_found_as_it_was_emitted,
    ids_ascend_within_a_topic,
    a_large_emit_is_cut_into_chunks_and_loses_nothing,
    an_event_reaches_every_subscription_of_its_topic,
    an_event_reaches_no_subscription_of_another_topic,
    an_unknown_topic_is_created,
    units_that_share_a_call_get_receipts_of_their_own,
    the_receipt_names_the_subscriptions_that_have_work,
    an_emit_to_several_topics_gets_its_receipt_in_its_own_order,
    sub_events_carry_the_id_of_their_main_event,
    a_main_event_and_its_sub_events_stay_adjacent,
    the_state_of_a_key_is_stored_with_its_event,
    an_event_without_state_leaves_the_state_as_it_was,
    an_event_without_a_key_has_no_predecessor,
];

fn full_event() -> Event {
    let event = Event::new(TOPIC, vec![0, 159, 146, 150]).kind("order.paid").key("ключ:42");
    event.content_type("application/x-own").header("trace", "00-é").header("a", "")
}

async fn an_event_is_claimed_as_it_was_emitted(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = bed.emit(full_event()).await;
    let claimed = queue.claim(1).await;
    let event = &claimed.slices[0].events[0].event;
    assert_eq!((event.id, &*event.topic, &*event.kind), (id, TOPIC, "order.paid"));
    assert_eq!(event.key.as_deref(), Some("ключ:42"));
    assert_eq!(&event.payload[..], [0, 159, 146, 150]);
    assert_eq!(&*event.content_type, "application/x-own");
    assert_eq!(event.headers["trace"], "00-é");
    assert_eq!(event.emitted_at, bed.time());
}

async fn an_event_is_found_as_it_was_emitted(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = bed.emit(full_event()).await;
    let found = bed.find(id).await.unwrap().event;
    assert_eq!(found, queue.claim(1).await.slices[0].events[0].event);
}

async fn ids_ascend_within_a_topic(bed: Bed) {
    let mut ids = bed.emit_plain(3).await;
    ids.extend(bed.emit_plain(70).await);
    ids.extend(bed.emit_plain(1).await);
    assert!(ids.is_sorted_by(|a, b| a < b));
}

async fn a_large_emit_is_cut_into_chunks_and_loses_nothing(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let emitted = bed.emit_plain(200).await;
    let chunks: std::collections::BTreeSet<_> = emitted.iter().map(|id| id.chunk()).collect();
    assert_eq!(chunks.len(), 4);
    assert_eq!(sorted_ids(&queue.claim(1000).await), emitted);
}

async fn an_event_reaches_every_subscription_of_its_topic(bed: Bed) {
    let mails = bed.queue_named("mails", &[TOPIC], unordered()).await;
    let bills = bed.queue_named("bills", &[TOPIC, "refunds"], ordered()).await;
    let id = bed.emit(keyed("a")).await;
    assert_eq!(ids(&mails.claim(10).await), [id]);
    assert_eq!(ids(&bills.claim(10).await), [id]);
}

async fn an_event_reaches_no_subscription_of_another_topic(bed: Bed) {
    let queue = bed.queue_named("queue", &["refunds"], unordered()).await;
    bed.emit(plain_event()).await;
    assert!(ids(&queue.claim(10).await).is_empty());
    assert_eq!(queue.counts().await, Counts::default());
}

async fn an_unknown_topic_is_created(bed: Bed) {
    bed.emit(Event::new("new/topic", "x")).await;
    let topics = bed.store.topics().await.unwrap();
    assert_eq!(topics.len(), 1);
    assert_eq!((&*topics[0].name, topics[0].lanes), ("new/topic", 32));
}

async fn units_that_share_a_call_get_receipts_of_their_own(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let units = vec![vec![keyed("a"), keyed("b")], vec![keyed("a")], vec![plain_event()]];
    let receipts = bed.emit_units(units).await;
    let counts: Vec<usize> = receipts.iter().map(|receipt| receipt.as_ref().unwrap().events.len()).collect();
    assert_eq!(counts, [2, 1, 1]);
    assert_eq!(queue.counts().await.ready, 4);
}

async fn the_receipt_names_the_subscriptions_that_have_work(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let ordered = bed.queue_named("ordered", &[TOPIC], ordered()).await;
    bed.queue_named("other", &["refunds"], unordered()).await;
    let mut wake = bed.try_emit(vec![plain_event()]).await.unwrap().wake;
    wake.sort_unstable();
    assert_eq!(wake, [queue.id, ordered.id]);
}

async fn an_emit_to_several_topics_gets_its_receipt_in_its_own_order(bed: Bed) {
    let topics = ["b", "a", "b", "c", "a"];
    let events: Vec<Event> = topics.iter().map(|topic| Event::new(*topic, "x").key("k")).collect();
    if bed.is_spread() {
        assert_eq!(bed.try_emit(events).await.unwrap_err().kind(), Kind::Invalid);
        assert!(bed.store.topics().await.unwrap().is_empty(), "nothing was stored, and no topic made for it");
        return;
    }
    let emitted = bed.emit_together(events).await;
    for (topic, emitted) in topics.iter().zip(&emitted) {
        assert_eq!(&*bed.find(emitted.id).await.unwrap().event.topic, *topic);
    }
    assert_eq!(emitted[2].prev, Some(emitted[0].id));
    assert_eq!(emitted[4].prev, Some(emitted[1].id));
    assert_eq!(emitted[3].prev, None);
}

async fn sub_events_carry_the_id_of_their_main_event(bed: Bed) {
    let sub = || keyed("a").header("own", "1").sub_event();
    let emitted = bed.emit_together(vec![keyed("a"), sub(), sub()]).await;
    assert!(!bed.find(emitted[0].id).await.unwrap().event.headers.contains_key("tramline-main"));
    for sub in &emitted[1..] {
        let headers = bed.find(sub.id).await.unwrap().event.headers;
        assert_eq!(headers["tramline-main"], emitted[0].id.to_string());
        assert_eq!(headers["own"], "1");
    }
}

async fn a_main_event_and_its_sub_events_stay_adjacent(bed: Bed) {
    bed.queue(ordered()).await;
    let group = |key: &str| vec![keyed(key), keyed(key).sub_event(), keyed(key).sub_event()];
    for receipt in bed.emit_units(vec![group("a"), group("b"), group("a")]).await {
        let emitted = receipt.unwrap().events;
        assert_eq!(emitted[1].prev, Some(emitted[0].id));
        assert_eq!(emitted[2].prev, Some(emitted[1].id));
    }
}

async fn the_state_of_a_key_is_stored_with_its_event(bed: Bed) {
    bed.topic(TOPIC, 4).await;
    assert_eq!(bed.store.head(TOPIC, "a").await.unwrap(), None);
    bed.emit(keyed("a").state("open")).await;
    let last = bed.emit_together(vec![keyed("a").state("paid"), keyed("a").state("sent")]).await[1].id;
    let head = bed.store.head(TOPIC, "a").await.unwrap();
    assert_eq!(head, Some(Head { last_id: last, state: Some("sent".into()) }));
}

async fn an_event_without_state_leaves_the_state_as_it_was(bed: Bed) {
    bed.emit(keyed("a").state("open")).await;
    let last_id = bed.emit(keyed("a")).await;
    let head = bed.store.head(TOPIC, "a").await.unwrap();
    assert_eq!(head, Some(Head { last_id, state: Some("open".into()) }));
}

async fn an_event_without_a_key_has_no_predecessor(bed: Bed) {
    let emitted = bed.emit_together(vec![plain_event(), keyed("a"), plain_event()]).await;
    assert!(emitted.iter().all(|event| event.prev.is_none()));
}
