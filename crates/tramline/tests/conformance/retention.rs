//! Retention: what the sweep removes, and what it must not.

use crate::bed::*;

conformance![
    old_settled_events_are_removed,
    young_events_stay,
    events_without_a_subscription_are_removed_too,
    pending_events_are_never_removed,
    events_under_way_are_never_removed,
    dead_events_are_never_removed,
    held_and_parked_events_are_never_removed,
    consumed_events_are_never_removed,
    one_subscription_that_still_needs_an_event_keeps_it,
    events_that_a_backfill_will_need_stay,
    a_sweep_is_bounded_and_says_whether_there_is_more,
    what_a_backlog_keeps_is_looked_at_in_steps_that_go_round,
    every_topic_has_its_own_retention,
    a_chain_outlives_its_first_events,
    rules_past_their_end_are_removed,
];

const DAY: std::time::Duration = std::time::Duration::from_secs(86_401);

async fn old_settled_events_are_removed(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let emitted = bed.emit_plain(70).await;
    queue.drain().await;
    bed.pass(DAY);
    let swept = bed.sweep(None).await;
    assert_eq!((swept.chunks, swept.more), (2, false));
    assert!(bed.find(emitted[0]).await.is_none());
    assert!(bed.log_page(EventId(0), 10).await.events.is_empty());
}

async fn young_events_stay(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = bed.emit(plain_event()).await;
    queue.drain().await;
    bed.pass(DAY / 2);
    assert_eq!(bed.sweep(None).await.chunks, 0);
    assert!(bed.find(id).await.is_some());
}

async fn events_without_a_subscription_are_removed_too(bed: Bed) {
    bed.emit(plain_event()).await;
    bed.pass(DAY);
    assert_eq!(bed.sweep(None).await.chunks, 1);
}

async fn pending_events_are_never_removed(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let emitted = bed.emit_plain(2).await;
    bed.emit(plain_event().delay(DAY * 10)).await;
    queue.done(&queue.claim(1).await).await;
    bed.pass(DAY * 5);
    assert_eq!(bed.sweep(None).await.chunks, 0);
    assert_eq!(queue.drain().await, emitted[1..]);
}

async fn events_under_way_are_never_removed(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        let claimed = queue.take(Claim { lease: Some(DAY * 2), ..queue.wish(1) }).await;
        bed.pass(DAY);
        assert_eq!(bed.sweep(None).await.chunks, 0, "{name}");
        assert!(queue.done(&claimed).await, "{name}");
        bed.store.delete_subscription(name).await.unwrap();
        assert_eq!(bed.sweep(None).await.chunks, 1, "{name}");
    }
}

async fn dead_events_are_never_removed(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = bed.emit(plain_event()).await;
    queue.settle(&queue.claim(1).await, Outcome::dead("no")).await;
    bed.pass(DAY);
    assert_eq!(bed.sweep(None).await.chunks, 0);
    assert_eq!(queue.dead_ids().await, [id]);
    queue.drop_dead(Which::All).await;
    assert_eq!(bed.sweep(None).await.chunks, 1);
}

async fn held_and_parked_events_are_never_removed(bed: Bed) {
    let queue = bed.lane(ordered_or(OnExhausted::Hold)).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    queue.settle(&queue.claim(1).await, Outcome::dead("no")).await;
    assert!(queue.drain().await.is_empty());
    bed.pass(DAY);
    assert_eq!(bed.sweep(None).await.chunks, 0);
    queue.replay(Which::All).await;
    assert_eq!(queue.drain().await, emitted);
}

async fn consumed_events_are_never_removed(bed: Bed) {
    let queue = bed.queue(at_most_once()).await;
    let id = bed.emit(plain_event()).await;
    queue.claim(1).await;
    bed.pass(DAY);
    assert_eq!(bed.sweep(None).await.chunks, 0);
    queue.claim(1).await;
    assert_eq!(queue.dead_ids().await, [id]);
}

async fn one_subscription_that_still_needs_an_event_keeps_it(bed: Bed) {
    let quick = bed.queue_named("quick", &[TOPIC], unordered()).await;
    let slow = bed.queue_named("slow", &[TOPIC], ordered()).await;
    let id = bed.emit(keyed("a")).await;
    quick.drain().await;
    bed.pass(DAY);
    assert_eq!(bed.sweep(None).await.chunks, 0);
    assert_eq!(slow.drain().await, [id]);
    assert_eq!(bed.sweep(None).await.chunks, 1);
}

async fn events_that_a_backfill_will_need_stay(bed: Bed) {
    let emitted = bed.emit_plain(3).await;
    let queue = bed.queue_from(Start::Beginning, unordered()).await;
    bed.pass(DAY);
    assert_eq!(bed.sweep(None).await.chunks, 0);
    queue.backfill().await;
    assert_eq!(queue.drain().await, emitted);
    assert_eq!(bed.sweep(None).await.chunks, 1);
}

async fn a_sweep_is_bounded_and_says_whether_there_is_more(bed: Bed) {
    for _ in 0..5 {
        bed.emit(plain_event()).await;
    }
    bed.pass(DAY);
    let sweep = Sweep { dead_after: None, limit: 3, now: bed.now() };
    let first = bed.store.sweep(sweep.clone()).await.unwrap();
    assert_eq!((first.chunks, first.more), (3, true));
    let second = bed.store.sweep(sweep).await.unwrap();
    assert_eq!((second.chunks, second.more), (2, false));
}

/// A paused subscription with millions of events: every sweep went through all of them, and on SQLite nobody could emit meanwhile.
async fn what_a_backlog_keeps_is_looked_at_in_steps_that_go_round(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    for _ in 0..5 {
        bed.emit(plain_event()).await;
    }
    // In a topic that is somewhere else it would not be behind.
    if !bed.is_spread() {
        bed.emit(Event::new("behind", "x")).await;
    }
    bed.pass(DAY);
    let sweep = async || {
        let swept = bed.store.sweep(Sweep { dead_after: None, limit: 2, now: bed.now() }).await.unwrap();
        (swept.chunks, swept.more)
    };
    assert_eq!(sweep().await, (0, true), "the first two are kept, and no more were looked at");
    assert_eq!(sweep().await, (0, true));
    let behind = u64::from(!bed.is_spread());
    assert_eq!(sweep().await, (behind, behind > 0), "the last one is kept, the one behind it is not");
    queue.drain().await;
    if !bed.is_spread() {
        assert_eq!(sweep().await, (0, false), "the end of the round");
    }
    assert_eq!([sweep().await, sweep().await, sweep().await], [(2, true), (2, true), (1, false)]);
}

async fn every_topic_has_its_own_retention(bed: Bed) {
    let put = PutTopic {
        name: "short".into(),
        settings: TopicSettings { retention: Some(seconds(10)), ..Default::default() },
        now: bed.now(),
    };
    bed.store.put_topic(put).await.unwrap();
    let short = bed.emit(Event::new("short", "x")).await;
    let long = bed.emit(plain_event()).await;
    bed.pass(seconds(11));
    bed.sweep(None).await;
    assert!(bed.find(short).await.is_none());
    assert!(bed.find(long).await.is_some());
}

async fn a_chain_outlives_its_first_events(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let first = bed.emit(keyed("a")).await;
    queue.drain().await;
    bed.pass(DAY);
    assert_eq!(bed.sweep(None).await.chunks, 1);
    let second = bed.emit_together(vec![keyed("a")]).await;
    assert_eq!(second[0].prev, Some(first));
    assert_eq!(queue.drain().await, [second[0].id]);
}

async fn rules_past_their_end_are_removed(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    queue.rule(RuleKind::Pause, Some(RuleEnd::At(bed.time().after(seconds(5))))).await;
    queue.set(RuleKind::Block).await;
    bed.pass(seconds(5));
    bed.sweep(None).await;
    let kinds: Vec<RuleKind> = queue.stats().await.rules.iter().map(|rule| rule.kind).collect();
    assert_eq!(kinds, [RuleKind::Block]);
}
