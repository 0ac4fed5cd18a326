//! Deleting: gone at once, and removed in steps that nobody waits for.

use crate::bed::*;

conformance![
    a_large_topic_is_deleted_at_once_and_removed_in_steps,
    a_topic_of_the_same_name_is_not_touched_by_the_removal_of_the_old_one,
    a_large_subscription_is_deleted_at_once_and_removed_in_steps,
    what_is_left_of_a_deleted_subscription_is_in_nobodys_way,
    a_topic_that_was_left_and_joined_again_brings_no_old_work_back,
    a_topic_that_was_left_can_be_deleted_at_once,
    leaving_a_topic_takes_nothing_of_the_others,
];

/// Sweeps until nothing is left to do; gives how often, with at most `limit` rows at a time.
async fn sweeps(bed: &Bed, limit: u32) -> u32 {
    let mut count = 1;
    while bed.store.sweep(Sweep { dead_after: None, limit, now: bed.now() }).await.unwrap().more {
        count += 1;
    }
    count
}

async fn a_large_topic_is_deleted_at_once_and_removed_in_steps(bed: Bed) {
    let emitted = bed.emit_keys(&["a"; 10]).await;
    bed.store.delete_topic(TOPIC).await.unwrap();
    assert!(bed.store.topics().await.unwrap().is_empty());
    for id in emitted {
        assert!(bed.find(id).await.is_none());
        assert_eq!(bed.cancel(id).await, 0);
    }
    assert!(sweeps(&bed, 3).await >= 4, "ten chunks and a head, three rows at a time");
    assert_eq!(sweeps(&bed, 3).await, 1);
}

async fn a_topic_of_the_same_name_is_not_touched_by_the_removal_of_the_old_one(bed: Bed) {
    let old = keyed("a").idempotency_key("first");
    let old = bed.try_emit(vec![old.clone()]).await.unwrap().events[0].id;
    bed.store.delete_topic(TOPIC).await.unwrap();
    let queue = bed.queue(ordered()).await;
    let new = bed.try_emit(vec![keyed("a").idempotency_key("first")]).await.unwrap();
    assert!(!new.repeated && new.events[0].id > old && new.events[0].prev.is_none());
    sweeps(&bed, 1).await;
    assert_eq!(bed.store.head(TOPIC, "a").await.unwrap().map(|head| head.last_id), Some(new.events[0].id));
    assert!(bed.try_emit(vec![keyed("a").idempotency_key("first")]).await.unwrap().repeated);
    assert_eq!(queue.drain().await, [new.events[0].id]);
}

async fn a_large_subscription_is_deleted_at_once_and_removed_in_steps(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered()), ("once", ordered_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit_keys(&["a", "a", "b", "b", "c", "d", "e", "f"]).await;
        queue.settle(&queue.claim(1).await, Outcome::Snooze { delay: seconds(1) }).await;
        queue.settle(&queue.claim(1).await, Outcome::dead("no")).await;
        queue.claim(1).await;
        bed.store.delete_subscription(name).await.unwrap();
        assert!(bed.store.subscriptions().await.unwrap().is_empty(), "{name}");
        assert_eq!(bed.store.stats(queue.id, bed.now()).await.unwrap_err().kind(), Kind::NotFound, "{name}");
        assert!(sweeps(&bed, 2).await >= 4, "{name}: seven slices, two at a time");
        assert_eq!(sweeps(&bed, 2).await, 1, "{name}");
    }
}

/// Its rows are still there: in the consumption log, in lanes, and under the events that others want to cancel.
async fn what_is_left_of_a_deleted_subscription_is_in_nobodys_way(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered()), ("once", ordered_once())] {
        let gone = bed.queue_named("gone", &[TOPIC], policy.clone()).await;
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.beat(ANNA, "anna").await;
        let emitted = bed.emit_keys(&["a", "b", "c"]).await;
        gone.claim(1).await;
        bed.store.delete_subscription("gone").await.unwrap();
        assert_eq!(bed.cancel(emitted[2]).await, 1, "{name}");
        assert_eq!(bed.find(emitted[0]).await.unwrap().deliveries.len(), 1, "{name}");
        bed.pass(seconds(10));
        let swept =
            bed.store.sweep(Sweep { dead_after: Some(seconds(5)), limit: 1, now: bed.now() }).await.unwrap();
        assert_eq!((swept.workers, swept.wake), (1, Vec::new()), "{name}");
        sweeps(&bed, 1).await;
        assert_eq!(sorted(queue.drain().await), emitted[..2], "{name}");
        bed.store.delete_subscription(name).await.unwrap();
        sweeps(&bed, 100).await;
    }
}

async fn a_topic_that_was_left_and_joined_again_brings_no_old_work_back(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &["a", "b"], policy.clone()).await;
        let on = |topic: &str| Event::new(topic, "x").key("k");
        bed.emit(on("a")).await;
        queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
        bed.emit_together(vec![on("a"), on("a")]).await;
        bed.queue_named(name, &["b"], policy.clone()).await;
        assert_eq!(queue.counts().await, Counts::default(), "{name}");
        assert!(queue.parked().await.is_empty(), "{name}");
        bed.queue_named(name, &["a", "b"], policy).await;
        assert_eq!(queue.counts().await, Counts::default(), "{name}");
        let new = bed.emit(on("a")).await;
        assert_eq!(queue.drain().await, [new], "{name}");
    }
}

async fn a_topic_that_was_left_can_be_deleted_at_once(bed: Bed) {
    let queue = bed.queue_named("queue", &["a", "b"], unordered()).await;
    bed.emit(Event::new("a", "x")).await;
    let kept = bed.emit(Event::new("b", "x")).await;
    bed.queue_named("queue", &["b"], unordered()).await;
    bed.store.delete_topic("a").await.unwrap();
    sweeps(&bed, 1).await;
    assert_eq!(queue.drain().await, [kept]);
}

async fn leaving_a_topic_takes_nothing_of_the_others(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &["a", "b"], policy.clone()).await;
        let other = bed.queue_named("other", &["a"], policy.clone()).await;
        let on = |topic: &str| Event::new(topic, "x").key("k");
        let (left, kept) = (bed.emit(on("a")).await, bed.emit(on("b")).await);
        bed.queue_named(name, &["b"], policy).await;
        assert_eq!((queue.drain().await, other.drain().await), (vec![kept], vec![left]), "{name}");
        bed.store.delete_subscription("other").await.unwrap();
    }
}
