//! A full store: what goes first, what never goes, and what is known of it afterwards.

use crate::bed::*;

conformance![
    a_store_that_holds_more_is_larger,
    retained_events_go_before_their_time_oldest_first,
    work_keeps_its_events_and_so_does_a_backfill,
    retained_events_of_all_topics_go_in_order,
    a_step_is_bounded_and_says_where_it_stopped,
    a_step_has_its_weight,
    the_oldest_work_of_the_stalest_push_subscription_goes,
    the_work_of_workers_goes_only_if_that_is_allowed,
    what_is_claimed_or_dead_stays,
    waiting_and_parked_events_go_and_their_key_goes_on,
    a_dropped_event_is_a_gap_in_its_key,
    a_dropped_event_fails_its_item,
    what_was_dropped_can_be_resent_while_it_is_retained,
    a_dropped_line_goes_on_with_the_next_event,
    parallel_steps_drop_every_event_once,
];

async fn step(bed: &Bed, surplus: Surplus, after: EventId, limit: u32) -> Shedded {
    bed.store.shed(Shed { surplus, after, limit, bytes: u64::MAX, now: bed.now() }).await.unwrap()
}

async fn shed_retained(bed: &Bed) -> u64 {
    step(bed, Surplus::Retained, EventId(0), 1000).await.removed
}

async fn shed_work(bed: &Bed, limit: u32) -> Option<(SubscriptionId, u64)> {
    step(bed, Surplus::Work { include_pull: false }, EventId(0), limit).await.dropped
}

async fn shed_any_work(bed: &Bed, limit: u32) -> Option<(SubscriptionId, u64)> {
    step(bed, Surplus::Work { include_pull: true }, EventId(0), limit).await.dropped
}

async fn drops(bed: &Bed) -> Vec<(SubscriptionId, DropReason, EventId, EventId, u64)> {
    let list = ListDrops { subscription: None, after: Some(0), limit: 100 };
    let records = bed.store.drops(list).await.unwrap();
    records.iter().map(|one| (one.subscription, one.reason, one.first, one.last, one.events)).collect()
}

async fn a_store_that_holds_more_is_larger(bed: Bed) {
    let size = async || bed.store.size().await.unwrap().bytes;
    let before = size().await;
    bed.emit_together(vec![Event::new(TOPIC, vec![7; 10_000]); 200]).await;
    let full = size().await;
    assert!((2_000_000..4_000_000).contains(&(full - before)), "{before}, {full}");
    while shed_retained(&bed).await > 0 {}
    let after = size().await;
    assert!(after < before + 500_000, "{before}, {full}, {after}");
}

async fn retained_events_go_before_their_time_oldest_first(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let ids = bed.emit_keys(&["a"; 5]).await;
    queue.drain().await;
    assert_eq!(step(&bed, Surplus::Retained, EventId(0), 2).await.removed, 2);
    let mut left = Vec::new();
    for id in &ids {
        left.push(bed.find(*id).await.is_some());
    }
    assert_eq!(left, [false, false, true, true, true]);
    assert_eq!(shed_retained(&bed).await, 3);
    assert_eq!(drops(&bed).await, [], "nobody missed them");
}

async fn work_keeps_its_events_and_so_does_a_backfill(bed: Bed) {
    let queue = bed.queue(pushed()).await;
    let ids = bed.emit_keys(&["a"; 3]).await;
    assert_eq!(shed_retained(&bed).await, 0);
    queue.drain().await;
    let late = bed.subscribe("late", &[TOPIC], pushed(), Start::Beginning).await.unwrap();
    assert_eq!(shed_retained(&bed).await, 0);
    let late = Queue { bed: bed.clone(), id: late.id };
    late.backfill().await;
    assert_eq!(sorted(late.drain().await), ids);
    assert_eq!(shed_retained(&bed).await, 3);
}

async fn retained_events_of_all_topics_go_in_order(bed: Bed) {
    let mut ids = Vec::new();
    for topic in ["a", "b", "a", "c", "b"] {
        ids.push(bed.emit(Event::new(topic, "x")).await);
    }
    if bed.is_spread() {
        // Topic by topic, those of each in order.
        let first = step(&bed, Surplus::Retained, EventId(0), 3).await;
        let second = step(&bed, Surplus::Retained, first.next.unwrap(), 1).await;
        assert_eq!((first.removed, second.removed), (2, 1));
        ids = vec![ids[0], ids[2], ids[1], ids[4], ids[3]];
    } else {
        assert_eq!(step(&bed, Surplus::Retained, EventId(0), 3).await.removed, 3);
    }
    for (at, id) in ids.into_iter().enumerate() {
        assert_eq!(bed.find(id).await.is_some(), at >= 3, "{at}");
    }
}

async fn a_step_is_bounded_and_says_where_it_stopped(bed: Bed) {
    bed.emit_keys(&["a"; 10]).await;
    let (mut after, mut removed) = (EventId(0), Vec::new());
    loop {
        let went = step(&bed, Surplus::Retained, after, 4).await;
        removed.push(went.removed);
        match went.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(removed, [4, 4, 2]);
}

async fn a_step_has_its_weight(bed: Bed) {
    let queue = bed.queue(pushed()).await;
    for _ in 0..10 {
        bed.emit(Event::new(TOPIC, vec![7; 1000])).await;
    }
    let step = async |surplus| {
        let shed = Shed { surplus, after: EventId(0), limit: 1000, bytes: 2500, now: bed.now() };
        bed.store.shed(shed).await.unwrap()
    };
    assert_eq!(step(Surplus::Work { include_pull: false }).await.dropped, Some((queue.id, 3)));
    assert_eq!(step(Surplus::Work { include_pull: false }).await.dropped, Some((queue.id, 3)));
    assert_eq!(step(Surplus::Retained).await.removed, 3);
}

async fn the_oldest_work_of_the_stalest_push_subscription_goes(bed: Bed) {
    let pull = bed.queue_named("pull", &[TOPIC], unordered()).await;
    let slow = bed.queue_named("slow", &[TOPIC], pushed()).await;
    let quick = bed.queue_named("quick", &[TOPIC], arrival()).await;
    let ids = bed.emit_keys(&["a", "b", "c", "d"]).await;
    assert!(quick.done(&quick.claim(1).await).await);
    assert_eq!(shed_work(&bed, 2).await, Some((slow.id, 2)));
    assert_eq!(drops(&bed).await, [(slow.id, DropReason::Shed, ids[0], ids[1], 2)]);
    assert_eq!(shed_work(&bed, 1).await, Some((quick.id, 1)), "now it is the one furthest behind");
    assert_eq!(slow.drain().await, ids[2..]);
    assert_eq!(quick.drain().await, ids[2..]);
    assert_eq!(pull.drain().await, ids);
}

async fn the_work_of_workers_goes_only_if_that_is_allowed(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let ids = bed.emit_keys(&["a", "a"]).await;
    assert_eq!(shed_work(&bed, 10).await, None);
    assert_eq!(shed_any_work(&bed, 1).await, Some((queue.id, 1)));
    assert_eq!(queue.drain().await, ids[1..]);
    assert_eq!(shed_any_work(&bed, 10).await, None);
}

async fn what_is_claimed_or_dead_stays(bed: Bed) {
    let queue = bed.queue(Policy { retry: Retry::never(), ..pushed() }).await;
    let ids = bed.emit_keys(&["a", "b", "c"]).await;
    queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
    let claimed = queue.claim(1).await;
    assert_eq!(shed_work(&bed, 10).await, Some((queue.id, 1)));
    assert_eq!(drops(&bed).await, [(queue.id, DropReason::Shed, ids[2], ids[2], 1)]);
    assert!(queue.done(&claimed).await);
    assert_eq!(queue.dead_ids().await, ids[..1]);
    assert_eq!(shed_work(&bed, 10).await, None);
}

async fn waiting_and_parked_events_go_and_their_key_goes_on(bed: Bed) {
    let queue = bed.lane(Policy { ordering: Ordering::Key, ..pushed() }).await;
    let ids = bed.emit_keys(&["a", "a", "a", "b"]).await;
    queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
    let other = queue.claim(10).await;
    assert_eq!(self::ids(&other), ids[3..]);
    let went = step(&bed, Surplus::Work { include_pull: false }, EventId(0), 2).await;
    assert_eq!((went.dropped, went.wake), (Some((queue.id, 2)), true));
    assert!(queue.parked().await.is_empty());
    assert!(queue.done(&other).await);
    let rest = queue.claim(10).await;
    assert_eq!((self::ids(&rest), skipped(&rest, ids[2])), (vec![ids[2]], ids[..2].to_vec()));
}

async fn a_dropped_event_is_a_gap_in_its_key(bed: Bed) {
    let queue = bed.lane(Policy { ordering: Ordering::Key, ..pushed() }).await;
    let ids = bed.emit_keys(&["a", "b", "a", "b"]).await;
    assert_eq!(shed_work(&bed, 2).await, Some((queue.id, 2)));
    let claimed = queue.claim(10).await;
    assert_eq!((skipped(&claimed, ids[2]), skipped(&claimed, ids[3])), (vec![ids[0]], vec![ids[1]]));
}

async fn a_dropped_event_fails_its_item(bed: Bed) {
    for policy in [pushed(), arrival()] {
        let queue = bed.queue(policy).await;
        let tally = bed.open(NewTally::new()).await;
        bed.emit_together(vec![plain_event().tally(tally); 3]).await;
        bed.seal(tally).await;
        assert_eq!(shed_work(&bed, 10).await, Some((queue.id, 3)));
        assert_eq!(bed.tallied(tally).await, (3, 0, 3));
        bed.store.delete_subscription("queue").await.unwrap();
    }
}

async fn what_was_dropped_can_be_resent_while_it_is_retained(bed: Bed) {
    for policy in [pushed(), Policy { ordering: Ordering::Key, ..pushed() }, arrival()] {
        let queue = bed.queue(policy).await;
        let emitted = bed.emit_keys(&["a", "b"]).await;
        assert_eq!(shed_work(&bed, 10).await, Some((queue.id, 2)));
        assert_eq!(queue.drain().await, []);
        assert_eq!(queue.resend(&emitted).await, 2);
        assert_eq!(shed_retained(&bed).await, 0);
        assert_eq!(sorted(queue.drain().await), emitted);
        assert_eq!(shed_retained(&bed).await, 2);
        assert_eq!(queue.resend(&emitted).await, 0);
        bed.store.delete_subscription("queue").await.unwrap();
    }
}

async fn a_dropped_line_goes_on_with_the_next_event(bed: Bed) {
    let queue = bed.queue(arrival()).await;
    let ids = bed.emit_keys(&["a", "a", "b"]).await;
    queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
    assert_eq!(shed_work(&bed, 2).await, Some((queue.id, 2)));
    bed.pass(seconds(60));
    assert_eq!(queue.drain().await, ids[2..]);
}

async fn parallel_steps_drop_every_event_once(bed: Bed) {
    let queue = bed.queue(Policy { ordering: Ordering::Key, ..pushed() }).await;
    for round in 0..10 {
        bed.emit_together((0..10).map(|n| keyed(&format!("k{}", (n + round) % 7))).collect()).await;
    }
    let dropped = in_parallel(4, |_| {
        let bed = bed.clone();
        async move {
            let mut events = 0;
            while let Some((_, count)) = shed_work(&bed, 3).await {
                events += count;
            }
            events
        }
    });
    assert_eq!(dropped.await.into_iter().sum::<u64>(), 100);
    assert_eq!(queue.counts().await, Counts::default());
    assert_eq!(bed.store.drop_totals().await.unwrap()[0].events, 100);
}
