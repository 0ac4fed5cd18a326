//! Events as items of tallies.

use crate::bed::*;
use crate::tally_news::{kinds, told};
use std::sync::Arc;

conformance![
    an_event_in_a_tally_is_an_item_that_ends_with_it,
    events_of_many_chunks_and_units_are_items,
    an_event_knows_its_item,
    only_the_subscription_that_ends_an_item_is_shown_it,
    only_the_named_subscription_ends_the_item,
    a_tally_without_a_subscription_to_end_its_items_is_refused,
    an_emit_into_a_sealed_or_unknown_tally_is_refused_alone,
    a_repeated_emit_adds_no_item_and_a_refused_one_keeps_no_key,
    partial_settlements_end_the_items_they_settle,
    a_retry_ends_nothing_and_a_death_fails_the_item,
    a_dropped_event_fails_its_item,
    a_held_event_is_pending_until_somebody_decides,
    a_replay_turns_failed_into_done_but_completes_nothing_again,
    a_replay_before_completion_counts_once,
    a_dropped_dead_event_stays_failed,
    a_cancelled_event_fails_its_item,
    a_deleted_subscription_fails_its_items,
    a_subscription_that_leaves_a_topic_fails_its_items,
    items_of_a_deleted_subscription_fail_also_if_its_topic_goes_with_it,
    a_quarantined_event_fails_its_item,
    at_most_once_ends_items_when_settled_or_interrupted,
    a_lost_lease_ends_nothing,
    splitting_and_parking_slices_loses_no_item,
    a_resent_event_ends_its_failed_item,
    handlers_grow_a_growing_tally_from_inside_their_event,
];

async fn sealed(bed: &Bed, events: Vec<Event>, tally: TallyId) -> Vec<EventId> {
    let emitted = bed.emit_together(events.into_iter().map(|event| event.tally(tally)).collect()).await;
    bed.seal(tally).await;
    emitted.iter().map(|event| event.id).collect()
}

async fn an_event_in_a_tally_is_an_item_that_ends_with_it(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let topic = format!("topic-{name}");
        let queue = bed.queue_named(name, &[&topic], policy).await;
        let tally = bed.open(NewTally::new()).await;
        let event = Event::new(&topic, "x").key("a").tally(tally);
        bed.emit_together(vec![event.clone(), event]).await;
        bed.seal(tally).await;
        assert_eq!(bed.tallied(tally).await, (2, 0, 0), "{name}");
        let claimed = queue.claim(10).await;
        assert!(queue.done(&claimed).await);
        assert_eq!(bed.tally(tally).await.state, TallyState::Complete, "{name}");
    }
}

async fn events_of_many_chunks_and_units_are_items(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let (one, two) = (bed.open(NewTally::new()).await, bed.open(NewTally::new()).await);
    let events = |tally, count| vec![plain_event().tally(tally); count];
    let units = vec![events(one, 200), events(two, 1), vec![plain_event(); 70], events(one, 1)];
    assert!(bed.emit_units(units).await.iter().all(|unit| unit.is_ok()));
    bed.emit_together(events(one, 5000)).await;
    bed.seal(one).await;
    bed.seal(two).await;
    assert_eq!((bed.tallied(one).await.0, bed.tallied(two).await.0), (5201, 1));
    assert_eq!(queue.drain().await.len(), 5272);
    assert!(bed.tally(one).await.is_complete() && bed.tally(two).await.is_complete());
    assert_eq!(bed.tallied(one).await, (5201, 5201, 0));
}

async fn an_event_knows_its_item(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let tally = bed.open(NewTally::new()).await;
    let late = plain_event().delay(seconds(5)).priority(2).tally(tally);
    let id = bed.emit_together(vec![plain_event().tally(tally), plain_event(), late]).await[2].id;
    let claimed = queue.claim(10).await;
    let items: Vec<Option<TallyItem>> =
        claimed.slices.iter().flat_map(|slice| &slice.events).map(|event| event.event.item).collect();
    assert_eq!(items, [Some(TallyItem { tally, number: 0 }), None]);
    let found = bed.find(id).await.unwrap().event;
    assert_eq!(found.item, Some(TallyItem { tally, number: 1 }));
}

/// A subscription that was deleted and created again under its name was shown the items of the first one, which fail whatever
/// the second one does.
async fn only_the_subscription_that_ends_an_item_is_shown_it(bed: Bed) {
    let shown = async |queue: &Queue| {
        let claimed = queue.claim(10).await;
        let item = claimed.slices[0].events[0].event.item;
        queue.settle(&claimed, Outcome::dead("no")).await;
        assert_eq!(queue.dead().await[0].event.item, item);
        item
    };
    for (topic, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let other = bed.queue_named(&format!("{topic}-other"), &[topic], policy.clone()).await;
        let own = bed.queue_named(topic, &[topic], policy.clone()).await;
        let tally = bed.open(NewTally::new()).await;
        bed.emit(Event::new(topic, "x").key("a").tally_of(tally, topic)).await;
        assert_eq!(shown(&other).await, None);
        assert_eq!(shown(&own).await, Some(TallyItem { tally, number: 0 }));
        bed.store.delete_subscription(topic).await.unwrap();
        let id = bed.subscribe(topic, &[topic], policy, Start::Beginning).await.unwrap().id;
        let again = Queue { id, ..own };
        again.backfill().await;
        assert_eq!(shown(&again).await, None);
    }
}

async fn only_the_named_subscription_ends_the_item(bed: Bed) {
    let first = bed.queue_named("first", &[TOPIC], unordered()).await;
    let second = bed.queue_named("second", &[TOPIC], ordered()).await;
    let tally = bed.open(NewTally::new()).await;
    bed.emit(keyed("a").tally_of(tally, "second")).await;
    bed.seal(tally).await;
    first.drain().await;
    assert_eq!(bed.tallied(tally).await, (1, 0, 0));
    second.drain().await;
    assert_eq!(bed.tallied(tally).await, (1, 1, 0));
}

async fn a_tally_without_a_subscription_to_end_its_items_is_refused(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    let refused = async |event: Event| bed.try_emit(vec![event]).await.unwrap_err().kind();
    assert_eq!(refused(plain_event().tally(tally)).await, Kind::Invalid);
    bed.queue_named("first", &[TOPIC], unordered()).await;
    bed.queue_named("elsewhere", &["other"], unordered()).await;
    assert_eq!(refused(plain_event().tally_of(tally, "elsewhere")).await, Kind::Invalid);
    assert_eq!(refused(plain_event().tally_of(tally, "nobody")).await, Kind::Invalid);
    bed.queue_named("second", &[TOPIC], unordered()).await;
    assert_eq!(refused(plain_event().tally(tally)).await, Kind::Invalid);
    bed.emit(plain_event().tally_of(tally, "first")).await;
    assert_eq!(bed.tallied(tally).await.0, 1);
}

async fn an_emit_into_a_sealed_or_unknown_tally_is_refused_alone(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let (open, sealed) = (bed.open(NewTally::new()).await, bed.open(NewTally::new()).await);
    bed.seal(sealed).await;
    let both = vec![plain_event().tally(open), plain_event().tally(sealed)];
    let units = vec![
        vec![plain_event().tally(open)],
        both,
        vec![plain_event().tally(TallyId(9999))],
        vec![plain_event()],
        vec![plain_event().tally(open)],
    ];
    let answers = bed.emit_units(units).await;
    let kinds: Vec<Option<Kind>> =
        answers.iter().map(|answer| answer.as_ref().err().map(|error| error.kind())).collect();
    assert_eq!(kinds, [None, Some(Kind::Conflict), Some(Kind::NotFound), None, None]);
    assert_eq!(bed.tallied(open).await.0, 2);
    assert_eq!(queue.drain().await.len(), 3);
}

async fn a_repeated_emit_adds_no_item_and_a_refused_one_keeps_no_key(bed: Bed) {
    bed.queue(unordered()).await;
    let tally = bed.open(NewTally::new()).await;
    let event = plain_event().tally(tally).idempotency_key("once");
    let first = bed.try_emit(vec![event.clone()]).await.unwrap();
    let again = bed.try_emit(vec![event.clone()]).await.unwrap();
    assert!(again.repeated && again.events == first.events);
    assert_eq!(bed.tallied(tally).await.0, 1);
    let other = event.idempotency_key("other");
    let missing = TallyId(tally.0 + 1);
    assert!(bed.try_emit(vec![other.clone().tally(missing)]).await.is_err());
    assert_eq!(bed.open(NewTally::new()).await, missing);
    assert!(!bed.try_emit(vec![other.tally(missing)]).await.unwrap().repeated);
    assert_eq!(bed.tallied(missing).await.0, 1);
}

async fn partial_settlements_end_the_items_they_settle(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let topic = format!("topic-{name}");
        bed.topic(&topic, 1).await;
        let queue = bed.queue_named(name, &[&topic], policy).await;
        let tally = bed.open(NewTally::new()).await;
        let events = (0..6).map(|n| Event::new(&topic, "x").key(format!("k{n}"))).collect();
        let ids = sealed(&bed, events, tally).await;
        let claimed = queue.claim(10).await;
        queue.settle_each(&claimed, &[(ids[4], Outcome::Done), (ids[1], Outcome::Done)]).await;
        assert_eq!(bed.tallied(tally).await, (6, 2, 0), "{name}");
        let rest: Vec<_> = [0, 2, 3, 5].iter().map(|at| (ids[*at], Outcome::Done)).collect();
        queue.settle_each(&claimed, &rest).await;
        assert!(bed.tally(tally).await.is_complete(), "{name}");
    }
}

async fn a_retry_ends_nothing_and_a_death_fails_the_item(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let topic = format!("topic-{name}");
        let queue = bed.queue_named(name, &[&topic], policy).await;
        let tally = bed.open(NewTally::new()).await;
        sealed(&bed, vec![Event::new(&topic, "x").key("a")], tally).await;
        queue.settle(&queue.claim(1).await, Outcome::retry("again")).await;
        assert_eq!(bed.tallied(tally).await, (1, 0, 0), "{name}");
        bed.pass(seconds(300));
        queue.settle(&queue.claim(1).await, Outcome::dead("no")).await;
        assert_eq!(bed.tallied(tally).await, (1, 0, 1), "{name}");
        assert!(bed.tally(tally).await.is_complete(), "{name}");
    }
}

async fn a_dropped_event_fails_its_item(bed: Bed) {
    for (name, policy) in [
        ("unordered", Policy { on_exhausted: OnExhausted::Drop, ..unordered() }),
        ("ordered", ordered_or(OnExhausted::Drop)),
    ] {
        let topic = format!("topic-{name}");
        let queue = bed.queue_named(name, &[&topic], policy).await;
        let tally = bed.open(NewTally::new()).await;
        sealed(&bed, vec![Event::new(&topic, "x").key("a")], tally).await;
        queue.settle(&queue.claim(1).await, Outcome::dead("no")).await;
        assert_eq!(bed.tallied(tally).await, (1, 0, 1), "{name}");
    }
}

async fn a_held_event_is_pending_until_somebody_decides(bed: Bed) {
    let queue = bed.lane(ordered_or(OnExhausted::Hold)).await;
    let tally = bed.open(NewTally::new()).await;
    let ids = sealed(&bed, vec![keyed("a"), keyed("b")], tally).await;
    queue.settle(&queue.claim(10).await, Outcome::retry("no")).await;
    assert_eq!(bed.tallied(tally).await, (2, 0, 0));
    assert_eq!(queue.drop_dead(Which::Ids(vec![ids[0]])).await, 1);
    assert_eq!(bed.tallied(tally).await, (2, 0, 1));
    queue.replay(Which::All).await;
    queue.drain().await;
    assert_eq!(bed.tallied(tally).await, (2, 1, 1));
    assert!(bed.tally(tally).await.is_complete());
}

async fn a_replay_turns_failed_into_done_but_completes_nothing_again(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered_or(OnExhausted::Dead))] {
        let topic = format!("topic-{name}");
        let queue = bed.queue_named(name, &[&topic], policy).await;
        let tally = bed.open(NewTally::new().on_complete(told(name))).await;
        sealed(&bed, vec![Event::new(&topic, "x").key("a"); 3], tally).await;
        let claimed = queue.claim(10).await;
        queue.settle(&claimed, Outcome::dead("no")).await;
        queue.drain().await;
        queue.settle(&queue.claim(10).await, Outcome::dead("no")).await;
        assert_eq!(bed.tally(tally).await.pending(), 0, "{name}");
        let before = kinds(&bed).await;
        let ended_at = bed.tally(tally).await.ended_at;
        bed.pass(seconds(1));
        queue.replay(Which::All).await;
        queue.drain().await;
        let (total, done, failed) = bed.tallied(tally).await;
        assert_eq!((total, done, failed), (3, 3, 0), "{name}");
        assert_eq!((kinds(&bed).await, bed.tally(tally).await.ended_at), (before, ended_at), "{name}");
    }
}

async fn a_replay_before_completion_counts_once(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let tally = bed.open(NewTally::new()).await;
    let ids = sealed(&bed, vec![plain_event(); 2], tally).await;
    let claimed = queue.claim(10).await;
    queue.settle_each(&claimed, &[(ids[0], Outcome::dead("no"))]).await;
    queue.replay(Which::All).await;
    let again = queue.claim(10).await;
    queue.settle(&again, Outcome::dead("no")).await;
    assert_eq!(bed.tallied(tally).await, (2, 0, 1));
    queue.replay(Which::All).await;
    assert!(queue.done(&queue.claim(10).await).await);
    assert_eq!(bed.tallied(tally).await, (2, 1, 0));
    queue.settle_each(&claimed, &[(ids[1], Outcome::Done)]).await;
    assert!(bed.tally(tally).await.is_complete());
}

async fn a_dropped_dead_event_stays_failed(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let tally = bed.open(NewTally::new()).await;
    sealed(&bed, vec![plain_event(); 2], tally).await;
    queue.settle(&queue.claim(1).await, Outcome::dead("no")).await;
    queue.drop_dead(Which::All).await;
    assert_eq!(bed.tallied(tally).await, (2, 0, 1));
}

async fn a_cancelled_event_fails_its_item(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let topic = format!("topic-{name}");
        let queue = bed.queue_named(name, &[&topic], policy).await;
        let tally = bed.open(NewTally::new()).await;
        let ids = sealed(&bed, vec![Event::new(&topic, "x").key("a"); 2], tally).await;
        assert_eq!(bed.cancel(ids[0]).await, 1);
        assert_eq!(bed.cancel(ids[0]).await, 0);
        assert_eq!(bed.tallied(tally).await, (2, 0, 1), "{name}");
        queue.drain().await;
        assert_eq!(bed.tallied(tally).await, (2, 1, 1), "{name}");
    }
}

/// Trap 15 of the design.
async fn a_deleted_subscription_fails_its_items(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    bed.queue_named("other", &[TOPIC], unordered()).await;
    let tally = bed.open(NewTally::new().on_complete(told("complete"))).await;
    let events = (0..300).map(|n| keyed(&format!("k{n}")).tally_of(tally, "queue")).collect();
    bed.emit_together(events).await;
    bed.seal(tally).await;
    let claimed = queue.claim(10).await;
    queue.done(&claimed).await;
    queue.settle(&queue.claim(1).await, Outcome::dead("no")).await;
    queue.claim(10).await;
    bed.store.delete_subscription("queue").await.unwrap();
    bed.sweep(None).await;
    assert_eq!(bed.tallied(tally).await, (300, 10, 290));
    assert!(bed.tally(tally).await.is_complete());
    assert_eq!(kinds(&bed).await, [Arc::from("complete")]);
}

async fn a_subscription_that_leaves_a_topic_fails_its_items(bed: Bed) {
    bed.subscribe("queue", &["a", "b"], unordered(), Start::Now).await.unwrap();
    let tally = bed.open(NewTally::new()).await;
    bed.emit(Event::new("a", "x").tally(tally)).await;
    bed.emit(Event::new("b", "x").tally(tally)).await;
    bed.subscribe("queue", &["b"], unordered(), Start::Now).await.unwrap();
    assert_eq!(bed.tallied(tally).await, (2, 0, 1));
}

/// The events were gone when it was asked which items they were, and the tally waited for ever.
async fn items_of_a_deleted_subscription_fail_also_if_its_topic_goes_with_it(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        bed.queue_named(name, &[name], policy).await;
        let tally = bed.open(NewTally::new()).await;
        sealed(&bed, vec![Event::new(name, "x").key("a"), Event::new(name, "x").key("b")], tally).await;
        bed.store.delete_subscription(name).await.unwrap();
        bed.store.delete_topic(name).await.unwrap();
        while bed.sweep(None).await.more {}
        assert_eq!(bed.tallied(tally).await, (2, 0, 2), "{name}");
        assert_eq!(bed.tally(tally).await.state, TallyState::Complete, "{name}");
    }
}

async fn a_quarantined_event_fails_its_item(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let topic = format!("topic-{name}");
        let queue = bed.queue_named(name, &[&topic], policy).await;
        let tally = bed.open(NewTally::new()).await;
        sealed(&bed, vec![Event::new(&topic, "x").key("a")], tally).await;
        let mut news = Vec::new();
        for _ in 0..5 {
            news.extend(queue.claim(1).await.news);
            bed.pass(LEASE);
        }
        assert_eq!(queue.dead().await.len(), 1, "{name}");
        assert_eq!(bed.tallied(tally).await, (1, 0, 1), "{name}");
        assert_eq!(news, [tally], "{name}");
    }
}

async fn at_most_once_ends_items_when_settled_or_interrupted(bed: Bed) {
    let queue = bed.queue(at_most_once()).await;
    let tally = bed.open(NewTally::new()).await;
    sealed(&bed, vec![plain_event(); 3], tally).await;
    let claimed = queue.claim(1).await;
    assert_eq!(bed.tallied(tally).await, (3, 0, 0));
    queue.done(&claimed).await;
    queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
    assert_eq!(bed.tallied(tally).await, (3, 1, 1));
    queue.claim(1).await;
    bed.pass(LEASE);
    queue.claim(1).await;
    assert_eq!(bed.tallied(tally).await, (3, 1, 2));
    assert!(bed.tally(tally).await.is_complete());
}

async fn a_lost_lease_ends_nothing(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let tally = bed.open(NewTally::new()).await;
    sealed(&bed, vec![plain_event()], tally).await;
    let lost = queue.claim(1).await;
    bed.pass(LEASE);
    let mine = queue.claim_by(BERT, 1).await;
    assert!(!queue.done(&lost).await);
    assert_eq!(bed.tallied(tally).await, (1, 0, 0));
    assert!(queue.done(&mine).await);
    assert!(!queue.done(&mine).await);
    assert_eq!(bed.tallied(tally).await, (1, 1, 0));
}

async fn splitting_and_parking_slices_loses_no_item(bed: Bed) {
    let unordered = bed.queue_named("unordered", &[TOPIC], unordered()).await;
    let ordered = bed.queue_named("ordered", &[TOPIC], ordered()).await;
    let (one, two) = (bed.open(NewTally::new()).await, bed.open(NewTally::new()).await);
    let event = |n: usize| keyed(&format!("k{}", n % 7)).delay(seconds((n % 3) as u64));
    bed.emit_together((0..100).map(|n| event(n).tally_of(one, "unordered")).collect()).await;
    bed.emit_together((0..100).map(|n| event(n).tally_of(two, "ordered")).collect()).await;
    bed.seal(one).await;
    bed.seal(two).await;
    for round in 0..200 {
        for queue in [&unordered, &ordered] {
            let claimed = queue.claim(1 + round % 5).await;
            let outcome = if round % 4 == 0 { Outcome::retry("again") } else { Outcome::Done };
            let Some(first) = ids(&claimed).first().copied() else { continue };
            queue.settle_each(&claimed, &[(first, outcome)]).await;
            queue.release(&claimed).await;
        }
        bed.pass(seconds(20));
    }
    // What was retried last is not due yet.
    bed.pass(seconds(3600));
    unordered.drain().await;
    ordered.drain().await;
    for tally in [one, two] {
        let tally = bed.tally(tally).await;
        assert_eq!((tally.state, tally.total, tally.pending()), (TallyState::Complete, 100, 0));
    }
}

async fn a_resent_event_ends_its_failed_item(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let tally = bed.open(NewTally::new()).await;
    let ids = sealed(&bed, vec![plain_event(); 2], tally).await;
    queue.settle(&queue.claim(2).await, Outcome::dead("no")).await;
    queue.drop_dead(Which::All).await;
    queue.resend(&ids).await;
    queue.drain().await;
    assert_eq!(bed.tallied(tally).await, (2, 2, 0));
}

async fn handlers_grow_a_growing_tally_from_inside_their_event(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let tally = bed.open(NewTally::new().growing()).await;
    sealed(&bed, vec![plain_event()], tally).await;
    let claimed = queue.claim(1).await;
    let item = claimed.slices[0].events[0].event.item.unwrap();
    assert_eq!(bed.try_emit(vec![plain_event().tally(tally)]).await.unwrap_err().kind(), Kind::Conflict);
    bed.emit(plain_event().within(item)).await;
    queue.done(&claimed).await;
    assert_eq!(bed.tallied(tally).await, (2, 1, 0));
    assert_eq!(bed.try_emit(vec![plain_event().within(item)]).await.unwrap_err().kind(), Kind::Conflict);
    queue.drain().await;
    assert!(bed.tally(tally).await.is_complete());
}
