//! Unique events: at most one of a unique key is pending.

use crate::bed::*;
use std::collections::BTreeSet;
use tramline::{Emitted, Unique};

conformance![
    a_second_event_with_a_pending_unique_key_is_a_duplicate,
    a_duplicate_is_stored_nowhere,
    another_unique_key_or_topic_is_no_duplicate,
    what_is_done_is_no_longer_unique,
    what_is_dead_is_no_longer_unique_and_what_waits_for_its_retry_is,
    what_is_delayed_leased_or_held_is_pending,
    pending_in_one_subscription_is_pending,
    a_deleted_subscription_has_nothing_pending,
    without_subscriptions_only_the_window_counts,
    a_window_lasts_beyond_the_event,
    a_replaced_event_gives_way_to_the_new_one,
    a_replaced_event_is_a_gap_of_its_key,
    what_is_under_way_does_not_give_way,
    what_gives_way_does_so_where_nobody_has_claimed_it,
    what_was_done_lately_does_not_give_way,
    an_idempotency_key_comes_before_a_unique_key,
    an_idempotency_key_remembers_that_it_was_a_duplicate,
    a_duplicate_is_no_item_of_a_tally,
    the_item_of_a_replaced_event_fails,
    a_unit_that_its_tally_refuses_replaces_nothing,
    a_unit_stores_what_is_not_there_yet,
    a_group_with_the_same_unique_key_twice_stores_one,
    a_group_that_replaces_twice_leaves_the_last_one,
    sixteen_parallel_emits_of_one_unique_key_leave_one_pending,
    sixteen_parallel_replacements_leave_one_pending,
    emits_and_claims_at_once_never_leave_two_unclaimed,
    entries_that_are_of_no_use_are_swept,
    a_deleted_topic_forgets_its_unique_keys,
    a_schedule_does_not_pile_up_unique_events,
];

fn unique(key: &str) -> Event {
    plain_event().unique(key)
}

fn replacing(key: &str) -> Event {
    plain_event().unique(Unique::new(key).replacing())
}

fn new(emitted: &[Emitted]) -> bool {
    emitted.iter().all(|event| !event.duplicate)
}

async fn emit(bed: &Bed, event: Event) -> Emitted {
    bed.emit_together(vec![event]).await.remove(0)
}

async fn a_second_event_with_a_pending_unique_key_is_a_duplicate(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let first = emit(&bed, unique("u")).await;
    let second = emit(&bed, unique("u")).await;
    assert_eq!((first.duplicate, second.duplicate, second.id), (false, true, first.id));
    assert_eq!(queue.drain().await, [first.id]);
}

async fn a_duplicate_is_stored_nowhere(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let first = emit(&bed, unique("u").key("k").state("one")).await;
    let emission = bed.try_emit(vec![unique("u").key("k").state("two")]).await.unwrap();
    assert!(emission.wake.is_empty() && emission.events[0].duplicate);
    let head = bed.store.head(TOPIC, "k").await.unwrap().unwrap();
    assert_eq!((head.last_id, head.state.as_deref()), (first.id, Some(&b"one"[..])));
    assert_eq!(emit(&bed, keyed("k")).await.prev, Some(first.id));
    assert_eq!(queue.counts().await.ready, 2);
}

async fn another_unique_key_or_topic_is_no_duplicate(bed: Bed) {
    bed.queue_named("queue", &[TOPIC, "other"], unordered()).await;
    let others = [unique("u"), unique("v"), Event::new("other", "x").unique("u"), plain_event(), keyed("u")];
    for event in others {
        assert!(!emit(&bed, event).await.duplicate);
    }
}

async fn what_is_done_is_no_longer_unique(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[name], policy).await;
        let event = || Event::new(name, "x").key("k").unique("u");
        let first = emit(&bed, event()).await;
        queue.drain().await;
        let second = emit(&bed, event()).await;
        assert!(!second.duplicate && second.id > first.id && second.prev == Some(first.id), "{name}");
    }
}

async fn what_is_dead_is_no_longer_unique_and_what_waits_for_its_retry_is(bed: Bed) {
    let queue = bed.queue(Policy { retry: Retry::constant(2, seconds(60)), ..unordered() }).await;
    emit(&bed, unique("u")).await;
    queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
    assert!(emit(&bed, unique("u")).await.duplicate);
    bed.pass(seconds(60));
    queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
    assert_eq!(queue.counts().await.dead, 1);
    assert!(!emit(&bed, unique("u")).await.duplicate);
}

async fn what_is_delayed_leased_or_held_is_pending(bed: Bed) {
    let queue = bed.lane(ordered_or(OnExhausted::Hold)).await;
    emit(&bed, unique("delayed").delay(seconds(60)).key("a")).await;
    emit(&bed, unique("leased").key("b")).await;
    let claimed = queue.claim(10).await;
    assert_eq!(ids(&claimed).len(), 1);
    assert!(emit(&bed, unique("delayed")).await.duplicate);
    assert!(emit(&bed, unique("leased")).await.duplicate);
    queue.settle(&claimed, Outcome::dead("no")).await;
    assert_eq!(queue.counts().await.parked, 1);
    assert!(emit(&bed, unique("leased")).await.duplicate, "it is held now");
}

async fn pending_in_one_subscription_is_pending(bed: Bed) {
    let queues = [
        bed.queue_named("one", &[TOPIC], unordered()).await,
        bed.queue_named("two", &[TOPIC], ordered()).await,
    ];
    emit(&bed, unique("u").key("k")).await;
    queues[0].drain().await;
    assert!(emit(&bed, unique("u")).await.duplicate);
    queues[1].drain().await;
    assert!(!emit(&bed, unique("u")).await.duplicate);
}

async fn a_deleted_subscription_has_nothing_pending(bed: Bed) {
    bed.queue(unordered()).await;
    emit(&bed, unique("u")).await;
    bed.store.delete_subscription("queue").await.unwrap();
    assert!(!emit(&bed, unique("u")).await.duplicate);
}

async fn without_subscriptions_only_the_window_counts(bed: Bed) {
    assert!(!emit(&bed, unique("u")).await.duplicate);
    assert!(!emit(&bed, plain_event().unique(Unique::new("u").within(seconds(10)))).await.duplicate);
    assert!(emit(&bed, unique("u")).await.duplicate);
    bed.pass(seconds(10));
    assert!(!emit(&bed, unique("u")).await.duplicate);
}

async fn a_window_lasts_beyond_the_event(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let windowed = || plain_event().unique(Unique::new("u").within(seconds(60)));
    let first = emit(&bed, windowed()).await;
    queue.drain().await;
    bed.pass(seconds(59));
    let again = emit(&bed, windowed()).await;
    assert_eq!((again.duplicate, again.id), (true, first.id));
    bed.pass(seconds(1));
    assert!(!emit(&bed, windowed()).await.duplicate, "it lasts from the emit that was stored");
    bed.pass(seconds(3600));
    assert!(emit(&bed, windowed()).await.duplicate, "what is pending counts however long that takes");
}

async fn a_replaced_event_gives_way_to_the_new_one(bed: Bed) {
    let plain = bed.queue_named("plain", &[TOPIC], unordered()).await;
    let lanes = bed.queue_named("lanes", &[TOPIC], ordered()).await;
    let first = emit(&bed, unique("u").key("k")).await;
    let second = emit(&bed, replacing("u").key("k")).await;
    assert!(!second.duplicate && second.prev == Some(first.id));
    for queue in [plain, lanes] {
        assert_eq!(queue.status(first.id).await, Status::Settled);
        assert_eq!(queue.drain().await, [second.id]);
    }
    assert!(
        bed.store.drops(ListDrops { subscription: None, after: None, limit: 10 }).await.unwrap().is_empty()
    );
}

async fn a_replaced_event_is_a_gap_of_its_key(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let first = emit(&bed, unique("u").key("k")).await;
    let second = emit(&bed, replacing("u").key("k")).await;
    let claimed = queue.claim(10).await;
    assert_eq!(skipped(&claimed, second.id), [first.id]);
}

async fn what_is_under_way_does_not_give_way(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered()), ("once", at_most_once())] {
        let queue = bed.queue_named(name, &[name], policy).await;
        let event = |unique: Unique| Event::new(name, "x").key("k").unique(unique);
        let first = emit(&bed, event(Unique::new("u"))).await;
        let claimed = queue.claim(1).await;
        let second = emit(&bed, event(Unique::new("u").replacing())).await;
        assert!(!second.duplicate, "{name}");
        let third = emit(&bed, event(Unique::new("u").replacing())).await;
        assert!(!third.duplicate, "{name}");
        assert_eq!(ids(&claimed), [first.id], "{name}");
        assert!(queue.done(&claimed).await, "{name}: it is not taken away");
        assert_eq!(queue.drain().await, [third.id], "{name}: the second gave way");
    }
}

async fn what_gives_way_does_so_where_nobody_has_claimed_it(bed: Bed) {
    let busy = bed.queue_named("busy", &[TOPIC], unordered()).await;
    let idle = bed.queue_named("idle", &[TOPIC], unordered()).await;
    let first = emit(&bed, unique("u")).await;
    let claimed = busy.claim(1).await;
    let second = emit(&bed, replacing("u")).await;
    assert_eq!(idle.drain().await, [second.id]);
    assert!(busy.done(&claimed).await);
    assert_eq!((ids(&claimed), busy.drain().await), (vec![first.id], vec![second.id]));
}

async fn what_was_done_lately_does_not_give_way(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let replacing = || plain_event().unique(Unique::new("u").within(seconds(60)).replacing());
    let first = emit(&bed, replacing()).await;
    let second = emit(&bed, replacing()).await;
    assert!(!second.duplicate && second.id > first.id);
    queue.drain().await;
    let third = emit(&bed, replacing()).await;
    assert_eq!((third.duplicate, third.id), (true, second.id));
}

async fn an_idempotency_key_comes_before_a_unique_key(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let event = || unique("u").idempotency_key("i");
    let first = bed.try_emit(vec![event()]).await.unwrap();
    queue.drain().await;
    let again = bed.try_emit(vec![event()]).await.unwrap();
    assert!(again.repeated && again.events == first.events);
    assert!(queue.drain().await.is_empty());
    let other = unique("v").idempotency_key("i");
    assert_eq!(bed.try_emit(vec![other]).await.unwrap_err().kind(), Kind::Conflict);
}

async fn an_idempotency_key_remembers_that_it_was_a_duplicate(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let first = emit(&bed, unique("u")).await;
    let event = || unique("u").idempotency_key("i");
    let duplicate = bed.try_emit(vec![event()]).await.unwrap();
    assert_eq!((duplicate.repeated, duplicate.events[0].duplicate), (false, true));
    queue.drain().await;
    let again = bed.try_emit(vec![event()]).await.unwrap();
    assert_eq!((again.repeated, &again.events), (true, &duplicate.events));
    assert_eq!(again.events[0].id, first.id);
}

async fn a_duplicate_is_no_item_of_a_tally(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let tally = bed.open(NewTally::default()).await;
    emit(&bed, unique("u").tally(tally)).await;
    assert!(emit(&bed, unique("u").tally(tally)).await.duplicate);
    assert_eq!(bed.tallied(tally).await, (1, 0, 0));
    queue.drain().await;
    assert_eq!(bed.tallied(tally).await, (1, 1, 0));
}

async fn the_item_of_a_replaced_event_fails(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[name], policy).await;
        let tally = bed.open(NewTally::default()).await;
        let event = || Event::new(name, "x").key("k").unique(Unique::new("u").replacing()).tally(tally);
        emit(&bed, event()).await;
        emit(&bed, event()).await;
        assert_eq!(bed.tallied(tally).await, (2, 0, 1), "{name}: as if it had been cancelled");
        queue.drain().await;
        assert_eq!(bed.tallied(tally).await, (2, 1, 1), "{name}");
    }
}

async fn a_unit_that_its_tally_refuses_replaces_nothing(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let first = emit(&bed, unique("u")).await;
    let refused = bed.try_emit(vec![replacing("u").tally(TallyId(4711))]).await;
    assert_eq!(refused.unwrap_err().kind(), Kind::NotFound);
    assert!(emit(&bed, unique("u")).await.duplicate);
    assert_eq!(queue.drain().await, [first.id]);
    assert!(!emit(&bed, unique("u")).await.duplicate);
}

async fn a_unit_stores_what_is_not_there_yet(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let first = emit(&bed, unique("b")).await;
    let unit = vec![plain_event().key("k"), unique("b").key("k"), unique("a").key("k"), keyed("k")];
    let emitted = bed.emit_together(unit).await;
    let duplicates: Vec<bool> = emitted.iter().map(|event| event.duplicate).collect();
    assert_eq!(duplicates, [false, true, false, false]);
    assert_eq!(emitted[1].id, first.id);
    assert_eq!((emitted[2].prev, emitted[3].prev), (Some(emitted[0].id), Some(emitted[2].id)));
    assert_eq!(queue.drain().await.len(), 4);
}

async fn a_group_with_the_same_unique_key_twice_stores_one(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let units =
        vec![vec![unique("u")], vec![plain_event()], vec![unique("u")], vec![unique("v"), unique("u")]];
    let emissions: Vec<Emission> = bed.emit_units(units).await.into_iter().map(Result::unwrap).collect();
    assert!(new(&emissions[0].events) && new(&emissions[1].events));
    assert_eq!(
        (emissions[2].events[0].duplicate, emissions[2].events[0].id),
        (true, emissions[0].events[0].id)
    );
    assert!(!emissions[3].events[0].duplicate && emissions[3].events[1].duplicate);
    assert_eq!(queue.drain().await.len(), 3);
}

async fn a_group_that_replaces_twice_leaves_the_last_one(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let units = vec![vec![replacing("u").key("k")]; 3];
    let emissions: Vec<Emission> = bed.emit_units(units).await.into_iter().map(Result::unwrap).collect();
    assert!(emissions.iter().all(|emission| new(&emission.events)));
    assert_eq!(queue.drain().await, [emissions[2].events[0].id]);
}

async fn sixteen_parallel_emits_of_one_unique_key_leave_one_pending(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let twin = bed.twin().await;
    for round in 0..5 {
        let emitted = in_parallel(16, |number| {
            let bed = if number % 2 == 0 { twin.clone() } else { bed.clone() };
            async move { emit(&bed, unique("u").key(format!("key {number}"))).await }
        });
        let emitted = emitted.await;
        let ids: BTreeSet<EventId> = emitted.iter().map(|event| event.id).collect();
        assert_eq!(ids.len(), 1, "round {round}: all name the same event");
        assert_eq!(emitted.iter().filter(|event| !event.duplicate).count(), 1, "round {round}");
        assert_eq!(queue.drain().await, Vec::from_iter(ids), "round {round}");
    }
}

async fn sixteen_parallel_replacements_leave_one_pending(bed: Bed) {
    let plain = bed.queue_named("plain", &[TOPIC], unordered()).await;
    let lanes = bed.queue_named("lanes", &[TOPIC], ordered()).await;
    let twin = bed.twin().await;
    let emitted = in_parallel(16, |number| {
        let bed = if number % 2 == 0 { twin.clone() } else { bed.clone() };
        async move { emit(&bed, replacing("u").key("k")).await }
    });
    let emitted = emitted.await;
    assert!(new(&emitted));
    let last = emitted.iter().map(|event| event.id).max().unwrap();
    assert_eq!((plain.drain().await, lanes.drain().await), (vec![last], vec![last]));
}

async fn emits_and_claims_at_once_never_leave_two_unclaimed(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[name], policy).await;
        let twin = bed.twin().await;
        let tasks = in_parallel(8, |number| {
            let (bed, queue) = (bed.clone(), queue.through(twin.clone()));
            async move {
                for _ in 0..10 {
                    if number % 2 == 0 {
                        let event = Event::new(name, "x").key("k").unique(Unique::new("u").replacing());
                        assert!(!emit(&bed, event).await.duplicate);
                    } else {
                        let claimed = queue.claim_by(Incarnation(number), 1).await;
                        assert!(queue.done(&claimed).await);
                    }
                    let counts = queue.counts().await;
                    assert!(counts.ready <= 1, "{name}: {counts:?}");
                }
            }
        });
        tasks.await;
        assert!(queue.drain().await.len() <= 1, "{name}");
    }
}

async fn entries_that_are_of_no_use_are_swept(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let pending = emit(&bed, unique("pending").delay(seconds(30 * 24 * 3600))).await;
    emit(&bed, unique("done")).await;
    emit(&bed, plain_event().unique(Unique::new("window").within(seconds(10 * 24 * 3600)))).await;
    queue.drain().await;
    for _ in 0..5 {
        bed.pass(seconds(24 * 3600));
        bed.sweep(None).await;
    }
    // Whatever entry is still there counts for ever now.
    bed.spoil("UPDATE tramline_unique SET until = 9000000000000000000").await;
    let again = emit(&bed, unique("pending")).await;
    assert_eq!((again.duplicate, again.id), (true, pending.id));
    assert!(emit(&bed, unique("window")).await.duplicate);
    assert!(!emit(&bed, unique("done")).await.duplicate);
}

async fn a_deleted_topic_forgets_its_unique_keys(bed: Bed) {
    let windowed = || plain_event().unique(Unique::new("u").within(seconds(3600)));
    emit(&bed, windowed()).await;
    bed.store.delete_topic(TOPIC).await.unwrap();
    assert!(!emit(&bed, windowed()).await.duplicate, "it is another topic");
    while bed.sweep(None).await.more {}
    assert!(emit(&bed, windowed()).await.duplicate);
}

async fn a_schedule_does_not_pile_up_unique_events(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.put_schedule(Schedule::every("s", seconds(60), unique("u")).missed(Missed::All)).await;
    for _ in 0..5 {
        bed.pass(seconds(180));
        bed.tick().await;
        assert_eq!(queue.counts().await.ready, 1);
    }
    queue.drain().await;
    bed.pass(seconds(60));
    bed.tick().await;
    assert_eq!(queue.counts().await.ready, 1);
}
