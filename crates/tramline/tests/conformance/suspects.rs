//! Suspects: events whose worker ended without a word.

use crate::bed::*;

conformance![
    a_busy_worker_leaves_suspects_alone,
    an_idle_worker_takes_one_suspect_and_nothing_else,
    a_suspect_chunk_is_claimed_in_halves,
    two_events_that_crashed_together_run_apart,
    a_fatal_event_is_found_by_halving,
    a_crash_is_not_an_attempt,
    a_fatal_event_is_quarantined_and_its_neighbours_are_done,
    a_fatal_event_in_a_lane_is_quarantined_and_its_neighbours_are_done,
    an_event_is_quarantined_only_after_three_crashes_alone,
    an_event_whose_owner_lives_is_not_quarantined,
    a_settled_suspect_is_a_suspect_no_more,
    a_released_suspect_is_still_a_suspect,
    suspects_do_not_hold_up_the_rest_of_a_queue,
    a_suspect_lane_leaves_other_lanes_alone,
    suspects_of_a_key_wait_for_one_that_is_retried,
    suspects_of_a_key_wait_for_one_that_is_held,
    suspects_of_a_key_keep_their_order_across_due_times,
    what_was_given_back_runs_before_later_suspects,
    what_was_given_back_runs_before_later_suspects_of_the_same_chunk,
    what_was_given_back_runs_before_a_later_suspect_when_an_earlier_one_waits,
    a_quarantined_event_is_a_gap_for_its_key,
];

async fn a_busy_worker_leaves_suspects_alone(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        queue.claim_by(BERT, 1).await;
        bed.pass(LEASE);
        let claimed = queue.take(Claim { suspects: Suspects::Leave, ..queue.wish(10) }).await;
        assert!(ids(&claimed).is_empty(), "{name}");
        assert!(claimed.suspects_wait, "{name}");
        assert_eq!(queue.counts().await, Counts { ready: 1, ..Counts::default() }, "{name}");
        assert_eq!(ids(&queue.claim(10).await).len(), 1, "{name}");
    }
}

async fn an_idle_worker_takes_one_suspect_and_nothing_else(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let suspect = bed.emit(keyed("a")).await;
        queue.claim_by(BERT, 1).await;
        bed.pass(LEASE);
        bed.emit_keys(&["a", "b", "c"]).await;
        let claimed = queue.claim(10).await;
        assert_eq!(ids(&claimed), [suspect], "{name}");
        assert_eq!(claimed.slices[0].crashes, 1, "{name}");
    }
}

async fn a_suspect_chunk_is_claimed_in_halves(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let emitted = bed.emit_plain(64).await;
        queue.claim(64).await;
        bed.pass(LEASE);
        for half in [&emitted[..32], &emitted[32..]] {
            let claimed = queue.claim(64).await;
            assert_eq!(ids(&claimed), half, "{name}");
            assert!(queue.done(&claimed).await, "{name}");
        }
    }
}

async fn two_events_that_crashed_together_run_apart(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let emitted = bed.emit_plain(2).await;
        queue.claim(2).await;
        bed.pass(LEASE);
        for id in emitted {
            let claimed = queue.claim(2).await;
            assert_eq!(ids(&claimed), [id], "{name}");
            assert!(queue.done(&claimed).await, "{name}");
        }
    }
}

async fn a_crash_is_not_an_attempt(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let id = bed.emit(keyed("a")).await;
        queue.claim(1).await;
        bed.pass(LEASE);
        let slice = queue.claim(1).await.slices.remove(0);
        assert_eq!((slice.attempts, slice.crashes), (0, 1), "{name}");
        let delivery = queue.delivery(id).await;
        assert_eq!((delivery.attempts, delivery.crashes), (0, 1), "{name}");
    }
}

/// Workers die whenever they run the fatal event, and settle everything else. Gives how many events each of the dead had.
async fn run_with_a_fatal_event(queue: &Queue, fatal: EventId) -> Vec<usize> {
    let mut crashed_with = Vec::new();
    for _ in 0..100 {
        let claimed = queue.claim_by(Incarnation::random(), 64).await;
        if claimed.slices.is_empty() {
            return crashed_with;
        }
        if ids(&claimed).contains(&fatal) {
            crashed_with.push(ids(&claimed).len());
            queue.bed.pass(LEASE);
        } else {
            assert!(queue.done(&claimed).await);
        }
    }
    panic!("the queue never comes to rest");
}

async fn a_fatal_event_is_found_by_halving(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let emitted = bed.emit_plain(64).await;
        let crashed_with = run_with_a_fatal_event(&queue, emitted[40]).await;
        assert_eq!(crashed_with, [64, 32, 16, 8, 4, 2, 1, 1, 1], "{name}");
    }
}

async fn a_fatal_event_is_quarantined_and_its_neighbours_are_done(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let emitted = bed.emit_plain(64).await;
    run_with_a_fatal_event(&queue, emitted[17]).await;
    let dead = queue.dead().await;
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].event.id, dead[0].attempts), (emitted[17], 0));
    assert!(dead[0].crashes >= 3 && dead[0].error.contains("quarantined"), "{:?}", dead[0]);
    assert_eq!(queue.counts().await, Counts { dead: 1, ..Counts::default() });
}

async fn a_fatal_event_in_a_lane_is_quarantined_and_its_neighbours_are_done(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let events = (0..64).map(|n| keyed(&format!("key{}", n % 5))).collect();
    let emitted = bed.emit_together(events).await;
    run_with_a_fatal_event(&queue, emitted[17].id).await;
    assert_eq!(queue.dead_ids().await, [emitted[17].id]);
    assert_eq!(queue.counts().await, Counts { dead: 1, ..Counts::default() });
}

async fn an_event_is_quarantined_only_after_three_crashes_alone(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let id = bed.emit(keyed("a")).await;
        // The first time it ran among others, for all that is known.
        for crashes in 0..4 {
            let claimed = queue.claim(1).await;
            assert_eq!((ids(&claimed), claimed.slices[0].crashes), (vec![id], crashes), "{name}");
            bed.pass(LEASE);
        }
        assert!(ids(&queue.claim(1).await).is_empty(), "{name}");
        assert_eq!(queue.dead_ids().await, [id], "{name}");
    }
}

/// The owner asks again and knows nothing of what it has: answers were lost, or came too late. It counts, so that nothing runs twice under
/// one lease; but nobody has ended.
async fn an_event_whose_owner_lives_is_not_quarantined(bed: Bed) {
    let queue = bed.queue_named("ordered", &[TOPIC], ordered()).await;
    let id = bed.emit(keyed("a")).await;
    for crashes in 0..6 {
        let claimed = queue.take(Claim { known: Known::Only(Vec::new()), ..queue.wish(1) }).await;
        assert_eq!((ids(&claimed), claimed.slices[0].crashes), (vec![id], crashes));
    }
    for crashes in 6..9 {
        bed.pass(LEASE);
        let claimed = queue.claim(1).await;
        assert_eq!(claimed.slices.first().map(|slice| slice.crashes), (crashes < 8).then_some(crashes));
    }
    assert_eq!(queue.dead_ids().await, [id]);
}

async fn a_settled_suspect_is_a_suspect_no_more(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        queue.claim(1).await;
        bed.pass(LEASE);
        queue.settle(&queue.claim(1).await, Outcome::Snooze { delay: seconds(1) }).await;
        bed.pass(seconds(1));
        let busy = queue.take(Claim { suspects: Suspects::Leave, ..queue.wish(10) }).await;
        assert_eq!(busy.slices[0].crashes, 0, "{name}");
        assert!(!busy.suspects_wait, "{name}");
    }
}

async fn a_released_suspect_is_still_a_suspect(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        queue.claim(1).await;
        bed.pass(LEASE);
        queue.release(&queue.claim(1).await).await;
        let busy = queue.take(Claim { suspects: Suspects::Leave, ..queue.wish(10) }).await;
        assert!(ids(&busy).is_empty() && busy.suspects_wait, "{name}");
    }
}

async fn suspects_do_not_hold_up_the_rest_of_a_queue(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit(plain_event()).await;
    queue.claim(1).await;
    bed.pass(LEASE);
    let fresh = bed.emit(plain_event()).await;
    let busy = queue.take(Claim { suspects: Suspects::Leave, ..queue.wish(10) }).await;
    assert_eq!(ids(&busy), [fresh]);
    assert!(busy.suspects_wait);
}

async fn a_suspect_lane_leaves_other_lanes_alone(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    bed.emit(keyed("a")).await;
    queue.claim_by(BERT, 1).await;
    bed.pass(LEASE);
    let emitted = bed.emit_keys(&["a", "b"]).await; // their lanes differ
    let busy = queue.take(Claim { suspects: Suspects::Leave, ..queue.wish(10) }).await;
    assert_eq!(ids(&busy), [emitted[1]]);
    assert!(busy.suspects_wait);
}

/// Two slices of a lane became suspects together. The first one's event must wait; the second one's may not overtake it.
async fn suspects_of_a_key_wait_for_one_that_is_retried(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a", "b"]).await;
    queue.claim(10).await;
    bed.pass(LEASE);
    let first = queue.claim(1).await;
    assert_eq!(ids(&first), emitted[..1]);
    queue.settle(&first, Outcome::retry("no")).await;
    assert_eq!(queue.drain().await, emitted[2..]);
    bed.pass(seconds(60));
    assert_eq!(queue.drain().await, emitted[..2]);
}

async fn suspects_of_a_key_wait_for_one_that_is_held(bed: Bed) {
    let queue = bed.lane(ordered_or(OnExhausted::Hold)).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    queue.claim(10).await;
    bed.pass(LEASE);
    queue.settle(&queue.claim(1).await, Outcome::dead("no")).await;
    assert!(queue.drain().await.is_empty());
    assert_eq!(queue.replay(Which::All).await, 1);
    assert_eq!(queue.drain().await, emitted);
}

/// Events of one chunk with different due times are different slices, but still one sequence.
async fn suspects_of_a_key_keep_their_order_across_due_times(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let events = vec![keyed("a"), keyed("a").delay(seconds(1)), keyed("a")];
    let emitted: Vec<EventId> = bed.emit_together(events).await.iter().map(|event| event.id).collect();
    bed.pass(seconds(1));
    assert_eq!(sorted_ids(&queue.claim(10).await), emitted);
    bed.pass(LEASE);
    assert_eq!(queue.drain().await, emitted);
}

/// A worker gives back the first of two slices, and ends with the second one in hand.
async fn what_was_given_back_runs_before_later_suspects(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "b", "b"]).await;
    let mut claimed = queue.claim(3).await;
    claimed.slices.sort_by_key(|slice| slice.events[0].event.id);
    claimed.slices.truncate(1);
    queue.release(&claimed).await;
    bed.pass(LEASE);
    let busy = queue.take(Claim { suspects: Suspects::Leave, ..queue.wish(10) }).await;
    assert_eq!(ids(&busy), emitted[..1]);
    assert!(busy.suspects_wait);
    assert!(queue.done(&busy).await);
    assert_eq!(queue.drain().await, emitted[1..]);
}

async fn what_was_given_back_runs_before_later_suspects_of_the_same_chunk(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    for given_back in 0..2 {
        let late = |key| keyed(key).delay(seconds(1));
        let events = vec![keyed("a"), late("b"), keyed("c"), late("d")];
        let emitted: Vec<EventId> = bed.emit_together(events).await.iter().map(|event| event.id).collect();
        bed.pass(seconds(1));
        let mut claimed = queue.claim(10).await;
        assert_eq!(sorted_ids(&claimed), emitted);
        claimed.slices.sort_by_key(|slice| slice.events[0].event.id);
        // The first and the third event are in one slice, the other two in another.
        claimed.slices = vec![claimed.slices.swap_remove(given_back)];
        queue.release(&claimed).await;
        bed.pass(LEASE);
        let order = queue.drain().await;
        assert_eq!(order, emitted, "slice {given_back} was given back");
    }
}

/// What was given back lies between two suspects of its chunk, and the first of these waits behind its key.
async fn what_was_given_back_runs_before_a_later_suspect_when_an_earlier_one_waits(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let events = ["a", "a", "b", "c"].map(keyed).to_vec();
    let emitted: Vec<EventId> = bed.emit_together(events).await.iter().map(|event| event.id).collect();
    queue.claim(2).await;
    let given_back = queue.claim(1).await;
    assert_eq!(ids(&given_back), emitted[2..3]);
    queue.claim(1).await;
    queue.release(&given_back).await;
    bed.pass(LEASE);
    let first = queue.claim(1).await;
    assert_eq!(ids(&first), emitted[..1]);
    queue.settle(&first, Outcome::retry("no")).await;
    for id in &emitted[2..] {
        let next = queue.claim(1).await;
        assert_eq!(ids(&next), [*id]);
        assert!(next.slices.iter().all(|slice| !slice.events.is_empty()));
        assert!(queue.done(&next).await);
    }
    bed.pass(seconds(60));
    assert_eq!(queue.drain().await, emitted[..2]);
}

async fn a_quarantined_event_is_a_gap_for_its_key(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    for _ in 0..4 {
        assert_eq!(ids(&queue.claim(1).await), emitted[..1]);
        bed.pass(LEASE);
    }
    let next = queue.claim(1).await;
    assert_eq!(ids(&next), emitted[1..]);
    assert_eq!(skipped(&next, emitted[1]), emitted[..1]);
}
