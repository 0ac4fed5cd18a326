//! Dead and held events: listed, replayed and dropped; and the gaps they leave.

use crate::bed::*;

conformance![
    a_dead_event_is_listed_with_its_error,
    dead_events_are_listed_by_id_page_by_page,
    dead_events_are_listed_by_id_in_whatever_order_they_died,
    a_replayed_event_runs_again_with_its_attempts_counted_anew,
    a_replay_that_fails_again_is_dead_again,
    all_dead_events_can_be_replayed_at_once,
    those_that_died_since_a_time_can_be_replayed,
    a_dropped_event_is_gone,
    only_dead_events_are_replayed_or_dropped,
    a_dropping_subscription_keeps_nothing,
    a_dead_event_lets_its_key_go_on,
    the_next_event_of_the_key_names_what_was_skipped,
    gaps_add_up_until_an_event_is_settled,
    a_gap_is_told_again_after_a_failure_a_release_and_a_crash,
    a_gap_is_told_only_to_later_events_of_its_key,
    a_gap_before_a_settled_event_is_not_told_later,
    a_dropping_subscription_tells_its_gaps,
    a_replay_in_a_lane_is_outside_the_order,
    a_replay_that_fails_does_not_park_its_key,
    a_held_event_parks_its_key_until_somebody_acts,
    a_held_event_is_listed_with_the_dead,
    a_replayed_held_event_runs_in_its_place,
    a_dropped_held_event_lets_its_key_go_on_with_a_gap,
    a_held_event_without_a_key_is_dead,
    a_held_event_leaves_other_keys_alone,
];

/// Claims one event and lets it die.
async fn kill_next(queue: &Queue) -> EventId {
    let claimed = queue.claim(1).await;
    assert!(queue.settle(&claimed, Outcome::dead("no")).await);
    ids(&claimed)[0]
}

async fn a_dead_event_is_listed_with_its_error(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let id = bed.emit(keyed("a").kind("order.paid")).await;
        queue.settle(&queue.claim(1).await, Outcome::retry("first")).await;
        bed.pass(seconds(300));
        queue.settle(&queue.claim(1).await, Outcome::dead("second")).await;
        let dead = queue.dead().await.remove(0);
        assert_eq!(dead.event, bed.find(id).await.unwrap().event, "{name}");
        assert_eq!((dead.attempts, dead.crashes, &*dead.error), (2, 0, "second"), "{name}");
        assert_eq!(dead.died_at, bed.time(), "{name}");
        assert_eq!(queue.counts().await, Counts { dead: 1, ..Counts::default() }, "{name}");
    }
}

async fn dead_events_are_listed_by_id_page_by_page(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let mut emitted = bed.emit_plain(70).await;
    emitted.extend(bed.emit_plain(3).await);
    queue.settle(&queue.claim(100).await, Outcome::dead("no")).await;
    assert_eq!(queue.find_dead(&Letters::default(), 10).await, emitted);
}

/// Events that die one by one are rows of their own, which are numbered in the order of the deaths.
async fn dead_events_are_listed_by_id_in_whatever_order_they_died(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let emitted = bed.emit_plain(128).await;
    let claimed = queue.claim(128).await;
    for (n, id) in emitted.iter().enumerate().rev() {
        queue.settle_each(&claimed, &[(*id, Outcome::dead(format!("error {n}")))]).await;
    }
    assert_eq!(queue.find_dead(&Letters::default(), 10).await, emitted);
}

async fn a_replayed_event_runs_again_with_its_attempts_counted_anew(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let id = bed.emit(keyed("a")).await;
        kill_next(&queue).await;
        assert_eq!(queue.replay(Which::Ids(vec![id])).await, 1, "{name}");
        assert_eq!(queue.counts().await, Counts { ready: 1, ..Counts::default() }, "{name}");
        let again = queue.claim(1).await;
        assert_eq!(ids(&again), [id], "{name}");
        assert_eq!((again.slices[0].attempts, again.slices[0].replayed), (0, true), "{name}");
        assert!(queue.done(&again).await, "{name}");
        assert_eq!(queue.counts().await, Counts::default(), "{name}");
    }
}

async fn a_replay_that_fails_again_is_dead_again(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let id = bed.emit(keyed("a")).await;
        kill_next(&queue).await;
        queue.replay(Which::All).await;
        for _ in 0..3 {
            queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
            bed.pass(seconds(300));
        }
        assert_eq!(queue.dead_ids().await, [id], "{name}");
        assert_eq!(queue.counts().await, Counts { dead: 1, ..Counts::default() }, "{name}");
    }
}

async fn all_dead_events_can_be_replayed_at_once(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let emitted = bed.emit_plain(200).await;
    queue.settle(&queue.claim(1000).await, Outcome::dead("no")).await;
    assert_eq!(queue.replay(Which::All).await, 200);
    assert_eq!(sorted(queue.drain().await), emitted);
}

async fn those_that_died_since_a_time_can_be_replayed(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit_plain(1).await;
    kill_next(&queue).await;
    bed.pass(seconds(10));
    let late = bed.emit(plain_event()).await;
    kill_next(&queue).await;
    assert_eq!(queue.replay(Which::Since(bed.time())).await, 1);
    assert_eq!(queue.drain().await, [late]);
}

async fn a_dropped_event_is_gone(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let id = bed.emit(keyed("a")).await;
        kill_next(&queue).await;
        assert_eq!(queue.drop_dead(Which::Ids(vec![id])).await, 1, "{name}");
        assert_eq!(queue.counts().await, Counts::default(), "{name}");
        assert_eq!(queue.status(id).await, Status::Settled, "{name}");
        assert_eq!(queue.replay(Which::Ids(vec![id])).await, 0, "{name}");
    }
}

async fn only_dead_events_are_replayed_or_dropped(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let emitted = bed.emit_plain(3).await;
    queue.claim(1).await;
    assert_eq!(queue.replay(Which::Ids(emitted.clone())).await, 0);
    assert_eq!(queue.drop_dead(Which::Ids(emitted)).await, 0);
    assert_eq!(queue.drop_dead(Which::All).await, 0);
    assert_eq!(queue.counts().await, Counts { ready: 2, leased: 1, ..Counts::default() });
}

async fn a_dropping_subscription_keeps_nothing(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let policy = Policy { on_exhausted: OnExhausted::Drop, ..policy };
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        kill_next(&queue).await;
        assert_eq!(queue.counts().await, Counts::default(), "{name}");
        assert!(queue.dead().await.is_empty(), "{name}");
    }
}

async fn a_dead_event_lets_its_key_go_on(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    kill_next(&queue).await;
    assert_eq!(queue.drain().await, emitted[1..]);
}

async fn the_next_event_of_the_key_names_what_was_skipped(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "b", "a", "a"]).await;
    kill_next(&queue).await;
    let claimed = queue.claim(10).await;
    assert_eq!(skipped(&claimed, emitted[1]), []);
    assert_eq!(skipped(&claimed, emitted[2]), emitted[..1]);
}

async fn gaps_add_up_until_an_event_is_settled(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a", "a", "a"]).await;
    kill_next(&queue).await;
    kill_next(&queue).await;
    let third = queue.claim(1).await;
    assert_eq!(skipped(&third, emitted[2]), emitted[..2]);
    queue.done(&third).await;
    let fourth = queue.claim(1).await;
    assert_eq!(skipped(&fourth, emitted[3]), []);
}

async fn a_gap_is_told_again_after_a_failure_a_release_and_a_crash(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    kill_next(&queue).await;
    for again in ["failure", "release", "crash", "done"] {
        let claimed = queue.claim(1).await;
        assert_eq!(skipped(&claimed, emitted[1]), emitted[..1], "{again}");
        match again {
            "failure" => assert!(queue.settle(&claimed, Outcome::retry("no")).await),
            "release" => assert_eq!(queue.release(&claimed).await, 1),
            _ => {}
        }
        bed.pass(seconds(60));
    }
}

async fn a_gap_is_told_only_to_later_events_of_its_key(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a", "a"]).await;
    assert_eq!(bed.cancel(emitted[1]).await, 1);
    let claimed = queue.claim(10).await;
    assert_eq!(ids(&claimed), [emitted[0], emitted[2]]);
    assert_eq!(skipped(&claimed, emitted[0]), []);
    assert_eq!(skipped(&claimed, emitted[2]), emitted[1..2]);
}

/// The outcomes of one settle may come in any order.
async fn a_gap_before_a_settled_event_is_not_told_later(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a", "a"]).await;
    let claimed = queue.claim(2).await;
    let outcomes = [(emitted[1], Outcome::Done), (emitted[0], Outcome::dead("no"))];
    assert_eq!(queue.settle_each(&claimed, &outcomes).await, [true, true]);
    let next = queue.claim(1).await;
    assert_eq!((ids(&next), skipped(&next, emitted[2])), (vec![emitted[2]], vec![]));
}

async fn a_dropping_subscription_tells_its_gaps(bed: Bed) {
    let queue = bed.lane(ordered_or(OnExhausted::Drop)).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
    let next = queue.claim(1).await;
    assert_eq!(skipped(&next, emitted[1]), emitted[..1]);
}

async fn a_replay_in_a_lane_is_outside_the_order(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a", "a"]).await;
    kill_next(&queue).await;
    queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
    queue.replay(Which::All).await;
    let claimed = queue.claim(10).await;
    assert_eq!((ids(&claimed), claimed.slices[0].replayed), (vec![emitted[0]], true));
    queue.done(&claimed).await;
    bed.pass(seconds(60));
    assert_eq!(queue.drain().await, emitted[1..]);
}

async fn a_replay_that_fails_does_not_park_its_key(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    kill_next(&queue).await;
    queue.replay(Which::All).await;
    queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
    assert_eq!(queue.drain().await, emitted[1..]);
    bed.pass(seconds(60));
    assert_eq!(queue.drain().await, emitted[..1]);
}

async fn a_held_event_parks_its_key_until_somebody_acts(bed: Bed) {
    let queue = bed.lane(ordered_or(OnExhausted::Hold)).await;
    bed.emit_keys(&["a", "a"]).await;
    queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
    bed.emit(keyed("a")).await;
    bed.pass(seconds(1_000_000));
    assert!(queue.drain().await.is_empty());
    assert_eq!(queue.counts().await, Counts { parked: 3, ..Counts::default() });
}

async fn a_held_event_is_listed_with_the_dead(bed: Bed) {
    let queue = bed.lane(ordered_or(OnExhausted::Hold)).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    kill_next(&queue).await;
    let dead = queue.dead().await;
    assert_eq!((dead.len(), dead[0].event.id, &*dead[0].error), (1, emitted[0], "no"));
    assert_eq!(queue.status(emitted[0]).await, Status::Parked);
}

async fn a_replayed_held_event_runs_in_its_place(bed: Bed) {
    let queue = bed.lane(ordered_or(OnExhausted::Hold)).await;
    let emitted = bed.emit_keys(&["a", "a", "a"]).await;
    kill_next(&queue).await;
    assert_eq!(queue.replay(Which::Ids(emitted[..1].to_vec())).await, 1);
    let again = queue.claim(10).await;
    assert_eq!((ids(&again), again.slices[0].replayed), (emitted[..1].to_vec(), false));
    queue.done(&again).await;
    assert_eq!(queue.drain().await, emitted[1..]);
}

async fn a_dropped_held_event_lets_its_key_go_on_with_a_gap(bed: Bed) {
    let queue = bed.lane(ordered_or(OnExhausted::Hold)).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    kill_next(&queue).await;
    assert_eq!(queue.drop_dead(Which::All).await, 1);
    let next = queue.claim(10).await;
    assert_eq!(ids(&next), emitted[1..]);
    assert_eq!(skipped(&next, emitted[1]), emitted[..1]);
}

async fn a_held_event_without_a_key_is_dead(bed: Bed) {
    let queue = bed.lane(ordered_or(OnExhausted::Hold)).await;
    bed.emit_plain(2).await;
    kill_next(&queue).await;
    assert_eq!(queue.counts().await, Counts { ready: 1, dead: 1, ..Counts::default() });
}

async fn a_held_event_leaves_other_keys_alone(bed: Bed) {
    let queue = bed.lane(ordered_or(OnExhausted::Hold)).await;
    let emitted = bed.emit_keys(&["a", "b", "a", "b"]).await;
    kill_next(&queue).await;
    assert_eq!(queue.drain().await, [emitted[1], emitted[3]]);
}
