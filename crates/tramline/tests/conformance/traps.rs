//! Traps found in review that belong to no area of their own. The others are tested where they belong.

use crate::bed::*;

conformance![
    a_settle_that_puts_a_later_event_before_a_failed_one_is_refused,
    a_refused_settle_changes_nothing,
    a_replay_is_settled_beside_a_failed_event_of_its_key,
    a_later_event_may_die_with_an_earlier_one,
    failures_of_different_keys_are_settled_together,
    a_deleted_subscription_does_not_hold_events_back,
    heavy_events_are_stored_and_claimed,
    claims_of_heavy_events_are_capped,
    stores_can_be_opened_at_once_on_one_database,
    one_store_sees_what_another_one_did,
    every_store_emits_to_a_subscription_that_another_one_created,
    parallel_emitters_on_several_stores_make_one_chain,
    workers_on_several_stores_share_the_work,
];

/// `retry` of an event with `done` of a later one of its key cannot both be true.
async fn a_settle_that_puts_a_later_event_before_a_failed_one_is_refused(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    let claimed = queue.claim(2).await;
    for first in [Outcome::retry("no"), Outcome::Snooze { delay: seconds(5) }] {
        for outcomes in [
            [(emitted[0], first.clone()), (emitted[1], Outcome::Done)],
            [(emitted[1], Outcome::Done), (emitted[0], first.clone())],
        ] {
            let error = queue.try_settle(&claimed, &outcomes).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{error}");
        }
    }
}

async fn a_refused_settle_changes_nothing(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let emitted = bed.emit_keys(&["b", "d", "a", "a"]).await; // three lanes, of which one is refused
    let claimed = queue.claim(4).await;
    let outcomes = [Outcome::Done, Outcome::dead("no"), Outcome::retry("no"), Outcome::Done];
    let outcomes: Vec<_> = emitted.iter().copied().zip(outcomes).collect();
    assert!(queue.try_settle(&claimed, &outcomes).await.is_err());
    assert_eq!(queue.counts().await, Counts { leased: 4, ..Counts::default() });
    assert!(queue.done(&claimed).await);
}

/// What was replayed or resent is outside the order of its key.
async fn a_replay_is_settled_beside_a_failed_event_of_its_key(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    bed.cancel(emitted[1]).await;
    assert_eq!(queue.resend(&emitted[1..]).await, 1);
    let claimed = queue.claim(2).await;
    let outcomes = [(emitted[0], Outcome::retry("no")), (emitted[1], Outcome::Done)];
    assert_eq!(queue.settle_each(&claimed, &outcomes).await, [true, true]);
}

async fn a_later_event_may_die_with_an_earlier_one(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    let claimed = queue.claim(2).await;
    assert!(queue.settle(&claimed, Outcome::dead("no")).await);
    assert_eq!(queue.dead_ids().await, emitted);
}

async fn failures_of_different_keys_are_settled_together(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "b", "b"]).await;
    let claimed = queue.claim(3).await;
    let outcomes = [Outcome::retry("no"), Outcome::Done, Outcome::retry("no")];
    let outcomes: Vec<_> = emitted.iter().copied().zip(outcomes).collect();
    assert_eq!(queue.settle_each(&claimed, &outcomes).await, [true; 3]);
    assert_eq!(queue.counts().await, Counts { delayed: 2, ..Counts::default() });
}

async fn a_deleted_subscription_does_not_hold_events_back(bed: Bed) {
    let queue = bed.lane(ordered_or(OnExhausted::Hold)).await;
    bed.emit_keys(&["a", "a", "b"]).await;
    queue.settle(&queue.claim(1).await, Outcome::dead("no")).await;
    queue.claim(1).await;
    bed.store.delete_subscription("queue").await.unwrap();
    bed.pass(seconds(90_000));
    assert_eq!(bed.sweep(None).await.chunks, 3);
}

async fn heavy_events_are_stored_and_claimed(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let events = (0..5u8).map(|n| Event::new(TOPIC, vec![n; 700_000]).key("a")).collect();
    let emitted: Vec<EventId> = bed.emit_together(events).await.iter().map(|event| event.id).collect();
    let claimed = queue.claim(10).await;
    assert_eq!(ids(&claimed), emitted);
    for (n, slice) in claimed.slices.iter().enumerate() {
        assert_eq!(slice.events[0].event.payload, vec![n as u8; 700_000]);
    }
}

async fn claims_of_heavy_events_are_capped(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit_together(vec![Event::new(TOPIC, vec![0; 700_000]).key("a"); 5]).await;
        let mut claims = 0;
        while queue.counts().await.pending() > 0 {
            let claimed = queue.take(Claim { max_bytes: 1 << 20, ..queue.wish(100) }).await;
            assert!((1..=2).contains(&ids(&claimed).len()), "{name}");
            assert!(queue.done(&claimed).await, "{name}");
            claims += 1;
        }
        assert!(claims >= 3, "{name}");
    }
}

async fn stores_can_be_opened_at_once_on_one_database(bed: Bed) {
    let stores = in_parallel(10, |number| {
        let bed = bed.clone();
        async move {
            let twin = bed.twin().await;
            twin.emit(keyed(&format!("key{number}"))).await;
            twin
        }
    });
    for twin in stores.await {
        assert_eq!(twin.read_log(EventId(0), 10).await.events.len(), 10);
    }
}

async fn one_store_sees_what_another_one_did(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let elsewhere = queue.through(bed.twin().await);
    let first = elsewhere.bed.emit(keyed("a")).await;
    let second = bed.emit_together(vec![keyed("a")]).await;
    assert_eq!(second[0].prev, Some(first));
    let claimed = queue.claim_by(ANNA, 1).await;
    assert!(ids(&elsewhere.claim_by(BERT, 1).await).is_empty());
    assert!(elsewhere.done(&claimed).await, "whoever has the lease may settle");
    elsewhere.set(RuleKind::Pause).await;
    assert_eq!(queue.claim(1).await.stopped_by, Some(RuleKind::Pause));
}

/// Every store has a copy of the catalogue; it may not emit by an old one.
async fn every_store_emits_to_a_subscription_that_another_one_created(bed: Bed) {
    let twin = bed.twin().await;
    twin.emit(keyed("a")).await;
    let queue = bed.queue(ordered()).await;
    let id = twin.emit(keyed("a")).await;
    assert_eq!(queue.drain().await, [id]);
    bed.store.delete_subscription("queue").await.unwrap();
    let after = twin.emit(keyed("a")).await;
    assert!(bed.find(after).await.unwrap().deliveries.is_empty());
}

async fn parallel_emitters_on_several_stores_make_one_chain(bed: Bed) {
    let emitted = in_parallel(4, |_| {
        let bed = bed.clone();
        async move {
            let twin = bed.twin().await;
            let mut mine = Vec::new();
            for _ in 0..25 {
                mine.extend(twin.emit_together(vec![keyed("a"), keyed("a")]).await);
            }
            mine
        }
    });
    let mut emitted = emitted.await.concat();
    emitted.sort_by_key(|event| event.id);
    assert_eq!(emitted[0].prev, None);
    assert!(emitted.windows(2).all(|pair| pair[1].prev == Some(pair[0].id)));
}

async fn workers_on_several_stores_share_the_work(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let emitted = bed.emit_together((0..128).map(|n| keyed(&format!("key{}", n % 16))).collect()).await;
    let taken = in_parallel(4, |number| {
        let queue = queue.clone();
        async move {
            let queue = queue.through(queue.bed.twin().await);
            let mut mine = Vec::new();
            while queue.counts().await.pending() > 0 {
                let claimed = queue.claim_by(Incarnation(number), 5).await;
                mine.extend(ids(&claimed));
                assert!(queue.done(&claimed).await);
            }
            mine
        }
    });
    let emitted: Vec<EventId> = emitted.iter().map(|event| event.id).collect();
    assert_eq!(sorted(taken.await.concat()), emitted);
}
