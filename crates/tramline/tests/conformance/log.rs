//! Reading: the log of a topic, and what became of an event.

use crate::bed::*;

conformance![
    the_log_has_every_event_of_its_topic_in_order,
    the_log_is_read_page_by_page,
    a_reader_goes_on_where_it_stopped,
    the_log_has_the_whole_event,
    settled_events_stay_in_the_log,
    a_reader_beside_emitters_misses_nothing,
    the_end_of_a_log_is_behind_what_is_there_and_before_what_comes,
    nothing_is_added_before_the_end_of_a_log,
    an_unknown_event_is_not_found,
    a_lookup_shows_every_subscription,
    a_lookup_follows_an_event_through_its_life,
    a_lookup_shows_what_an_event_waits_for,
];

async fn the_log_has_every_event_of_its_topic_in_order(bed: Bed) {
    let mut emitted = bed.emit_plain(70).await;
    bed.emit(Event::new("refunds", "x")).await;
    emitted.push(bed.emit(keyed("a")).await);
    let log = bed.read_log(EventId(0), 71).await;
    assert_eq!(log.events.iter().map(|event| event.id).collect::<Vec<_>>(), emitted);
    assert!(log.next >= emitted[70]);
}

async fn the_log_is_read_page_by_page(bed: Bed) {
    let emitted = bed.emit_plain(150).await;
    bed.read_log(EventId(0), 150).await;
    let first = bed.log_page(EventId(0), 100).await;
    assert_eq!(first.events.iter().map(|event| event.id).collect::<Vec<_>>(), emitted[..100]);
    let second = bed.log_page(first.next, 100).await;
    assert_eq!(second.events.iter().map(|event| event.id).collect::<Vec<_>>(), emitted[100..]);
}

async fn a_reader_goes_on_where_it_stopped(bed: Bed) {
    bed.emit_plain(3).await;
    let next = bed.read_log(EventId(0), 3).await.next;
    let empty = bed.log_page(next, 10).await;
    assert!(empty.events.is_empty() && empty.next >= next);
    let new = bed.emit_plain(2).await;
    let log = bed.read_log(empty.next, 2).await;
    assert_eq!(log.events.iter().map(|event| event.id).collect::<Vec<_>>(), new);
}

async fn the_log_has_the_whole_event(bed: Bed) {
    bed.emit(keyed("a")).await;
    let id = bed.emit(keyed("a").kind("order.paid").header("h", "1")).await;
    let log = bed.read_log(EventId(id.0 - 1), 1).await;
    assert_eq!(log.events, [bed.find(id).await.unwrap().event]);
}

async fn settled_events_stay_in_the_log(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit_plain(3).await;
    queue.drain().await;
    assert_eq!(bed.read_log(EventId(0), 3).await.events.len(), 3);
}

/// Trap: commit order differs from number order; nothing at or before `next` may ever be added.
async fn a_reader_beside_emitters_misses_nothing(bed: Bed) {
    bed.topic(TOPIC, 4).await;
    let total = 4 * 40;
    let results = in_parallel(5, |number| {
        let bed = bed.clone();
        async move {
            if number == 5 {
                let log = bed.read_log(EventId(0), total).await;
                return log.events.iter().map(|event| event.id).collect();
            }
            let mut mine = Vec::new();
            for _ in 0..40 {
                mine.push(bed.emit(keyed(&format!("key{number}"))).await);
            }
            mine
        }
    });
    let mut results = results.await;
    let read = results.pop().unwrap();
    assert_eq!(read, sorted(results.concat()));
}

async fn the_end_of_a_log_is_behind_what_is_there_and_before_what_comes(bed: Bed) {
    assert_eq!(bed.store.log_end(TOPIC).await.unwrap_err().kind(), Kind::NotFound);
    bed.topic(TOPIC, 4).await;
    let empty = bed.store.log_end(TOPIC).await.unwrap();
    let first = bed.emit_plain(70).await;
    let end = bed.store.log_end(TOPIC).await.unwrap();
    assert!(first.iter().all(|id| (empty.0 + 1..=end.0).contains(&id.0)));
    let new = bed.emit_plain(2).await;
    let log = bed.read_log(end, 2).await;
    assert_eq!(log.events.iter().map(|event| event.id).collect::<Vec<_>>(), new);
}

/// Whoever begins at the end of a log must not miss what was being written when it was asked for.
async fn nothing_is_added_before_the_end_of_a_log(bed: Bed) {
    bed.topic(TOPIC, 4).await;
    let results = in_parallel(5, |number| {
        let bed = bed.clone();
        async move {
            if number < 5 {
                bed.emit_keys(&[&*format!("key{number}"); 40]).await;
                return Vec::new();
            }
            let mut ends = Vec::new();
            for _ in 0..20 {
                let end = bed.store.log_end(TOPIC).await.unwrap();
                ends.push((end, ids_until(&bed, end).await));
            }
            ends
        }
    });
    for (end, then) in results.await.concat() {
        assert_eq!(ids_until(&bed, end).await, then, "before {end}");
    }
}

async fn ids_until(bed: &Bed, end: EventId) -> Vec<EventId> {
    let mut page = bed.log_page(EventId(0), 1000).await;
    assert!(page.events.len() < 1000);
    page.events.retain(|event| event.id <= end);
    page.events.iter().map(|event| event.id).collect()
}

async fn an_unknown_event_is_not_found(bed: Bed) {
    let id = bed.emit(plain_event()).await;
    assert!(bed.find(EventId(id.0 + 1)).await.is_none());
    assert!(bed.find(EventId(1 << 50)).await.is_none());
    assert!(bed.find(EventId(-5)).await.is_none());
}

async fn a_lookup_shows_every_subscription(bed: Bed) {
    let first = bed.queue_named("first", &[TOPIC], unordered()).await;
    bed.queue_named("second", &[TOPIC], ordered()).await;
    bed.queue_named("other", &["refunds"], unordered()).await;
    let id = bed.emit(keyed("a")).await;
    first.drain().await;
    let mut deliveries = bed.find(id).await.unwrap().deliveries;
    deliveries.sort_by(|a, b| a.subscription.cmp(&b.subscription));
    let seen: Vec<_> = deliveries.iter().map(|one| (&*one.subscription, one.status)).collect();
    assert_eq!(seen, [("first", Status::Settled), ("second", Status::Ready)]);
}

async fn a_lookup_follows_an_event_through_its_life(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let id = bed.emit(keyed("a").delay(seconds(5))).await;
        assert_eq!(queue.status(id).await, Status::Delayed, "{name}");
        bed.pass(seconds(5));
        assert_eq!(queue.status(id).await, Status::Ready, "{name}");
        let claimed = queue.claim(1).await;
        let delivery = queue.delivery(id).await;
        assert_eq!((delivery.status, delivery.worker), (Status::Leased, Some(ANNA)), "{name}");
        assert_eq!(delivery.due_at, Some(claimed.slices[0].until), "{name}");
        queue.settle(&claimed, Outcome::retry("no")).await;
        let delivery = queue.delivery(id).await;
        assert_eq!(
            (delivery.status, delivery.attempts, delivery.worker),
            (Status::Delayed, 1, None),
            "{name}"
        );
        assert_eq!(delivery.error.as_deref(), Some("no"), "{name}");
        bed.pass(seconds(300));
        queue.settle(&queue.claim(1).await, Outcome::dead("never")).await;
        assert_eq!(queue.status(id).await, Status::Dead, "{name}");
    }
}

async fn a_lookup_shows_what_an_event_waits_for(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
    queue.drain().await;
    assert_eq!(queue.delivery(emitted[0]).await.due_at, Some(bed.time().after(seconds(60))));
    let behind = queue.delivery(emitted[1]).await;
    assert_eq!((behind.status, behind.blocked_by), (Status::Parked, Some(emitted[0])));
}
