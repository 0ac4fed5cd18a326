//! At most once: the claim consumes.

use crate::bed::*;

conformance![
    a_consumed_event_never_runs_again_by_itself,
    a_failure_is_final,
    a_consumed_event_can_be_snoozed,
    an_expired_claim_is_interrupted,
    an_expired_claim_in_a_lane_is_interrupted,
    an_expired_claim_is_interrupted_by_the_sweep,
    a_sweep_lets_the_key_of_an_interrupted_event_go_on,
    a_sweep_leaves_living_claims_and_at_least_once_alone,
    a_sweep_interrupts_any_number_of_claims,
    the_key_of_an_interrupted_event_goes_on,
    a_graceful_stop_gives_unstarted_events_back,
    a_restarted_worker_goes_on_with_what_never_started,
    what_was_adopted_once_is_not_adopted_again,
    an_old_lease_is_refused_after_an_adoption,
    a_lane_is_free_once_all_that_was_consumed_is_adopted,
    an_interrupted_event_that_never_started_can_be_adopted,
    what_somebody_else_has_begun_is_not_adopted,
    several_interrupted_events_of_a_key_are_held_in_order,
    what_follows_an_event_that_was_given_back_is_not_interrupted,
    only_what_was_consumed_can_be_adopted,
    an_interrupted_event_can_be_replayed,
    a_settled_event_can_be_resent,
    a_resend_reaches_only_its_subscription,
    a_resend_does_not_double_pending_events,
    a_resend_of_what_is_not_there_does_nothing,
    a_resend_in_a_lane_does_not_disturb_its_order,
    parallel_workers_consume_every_event_once,
    clocks_that_differ_give_no_event_twice,
];

async fn a_consumed_event_never_runs_again_by_itself(bed: Bed) {
    for (name, policy) in [("unordered", at_most_once()), ("ordered", ordered_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        assert_eq!(ids(&queue.claim_by(ANNA, 1).await).len(), 1, "{name}");
        for worker in [ANNA, BERT, ANNA] {
            bed.pass(LEASE);
            assert!(ids(&queue.claim_by(worker, 10).await).is_empty(), "{name}");
        }
    }
}

async fn a_failure_is_final(bed: Bed) {
    for (name, policy) in [("unordered", at_most_once()), ("ordered", ordered_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let id = bed.emit(keyed("a")).await;
        assert!(queue.settle(&queue.claim(1).await, Outcome::retry("no")).await, "{name}");
        assert_eq!(queue.dead_ids().await, [id], "{name}");
        bed.pass(seconds(10_000));
        assert!(ids(&queue.claim(1).await).is_empty(), "{name}");
    }
}

async fn a_consumed_event_can_be_snoozed(bed: Bed) {
    let queue = bed.queue(at_most_once()).await;
    let id = bed.emit(plain_event()).await;
    queue.settle(&queue.claim(1).await, Outcome::Snooze { delay: seconds(5) }).await;
    bed.pass(seconds(5));
    assert_eq!(ids(&queue.claim(1).await), [id]);
}

async fn an_expired_claim_is_interrupted(bed: Bed) {
    let queue = bed.queue(at_most_once()).await;
    let emitted = bed.emit_plain(3).await;
    let claimed = queue.claim(2).await;
    queue.settle_each(&claimed, &[(emitted[0], Outcome::Done)]).await;
    bed.pass(LEASE);
    assert_eq!(ids(&queue.claim_by(BERT, 10).await), emitted[2..]);
    let dead = queue.dead().await;
    assert_eq!((dead.len(), dead[0].event.id), (1, emitted[1]));
    assert!(dead[0].error.contains("interrupted"), "{}", dead[0].error);
    assert!(!queue.settle_each(&claimed, &[(emitted[1], Outcome::Done)]).await[0]);
}

async fn an_expired_claim_in_a_lane_is_interrupted(bed: Bed) {
    let queue = bed.lane(ordered_once()).await;
    let emitted = bed.emit_keys(&["a", "b"]).await;
    queue.claim(1).await;
    bed.pass(LEASE);
    assert_eq!(ids(&queue.claim_by(BERT, 10).await), emitted[1..]);
    assert_eq!(queue.dead_ids().await, emitted[..1]);
}

/// Nobody may ever claim again, so the next claim cannot be the one who notices.
async fn an_expired_claim_is_interrupted_by_the_sweep(bed: Bed) {
    for (name, policy) in [("unordered", at_most_once()), ("ordered", ordered_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let id = bed.emit(keyed("a")).await;
        let claimed = queue.claim(1).await;
        bed.pass(LEASE);
        assert_eq!(queue.counts().await, Counts { leased: 1, ..Counts::default() }, "{name}");
        assert_eq!(bed.sweep(None).await.wake, [queue.id], "{name}");
        let dead = queue.dead().await;
        assert_eq!((dead.len(), dead[0].event.id), (1, id), "{name}");
        assert!(dead[0].error.contains("interrupted"), "{name}: {}", dead[0].error);
        assert!(!queue.done(&claimed).await, "{name}: it came too late");
        assert_eq!(bed.sweep(None).await.wake, [], "{name}: once");
    }
}

async fn a_sweep_lets_the_key_of_an_interrupted_event_go_on(bed: Bed) {
    let queue = bed.lane(ordered_once()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    queue.claim(1).await;
    bed.pass(LEASE);
    bed.sweep(None).await;
    let next = queue.claim_by(BERT, 10).await;
    assert_eq!(ids(&next), emitted[1..]);
    assert_eq!(skipped(&next, emitted[1]), emitted[..1]);
}

async fn a_sweep_leaves_living_claims_and_at_least_once_alone(bed: Bed) {
    let once = bed.queue(at_most_once()).await;
    let lanes = bed.queue_named("lanes", &[TOPIC], ordered_once()).await;
    let least = bed.queue_named("least", &[TOPIC], unordered()).await;
    bed.emit(keyed("a")).await;
    let old = least.claim(1).await;
    bed.pass(LEASE);
    let living = [once.claim(1).await, lanes.claim(1).await];
    assert_eq!(bed.sweep(None).await.wake, []);
    assert!(once.done(&living[0]).await && lanes.done(&living[1]).await);
    assert!(least.done(&old).await, "nobody else took it");
}

async fn a_sweep_interrupts_any_number_of_claims(bed: Bed) {
    let queue = bed.queue(at_most_once()).await;
    let mut emitted = Vec::new();
    for _ in 0..70 {
        emitted.push(bed.emit(plain_event()).await);
        queue.claim(1).await;
    }
    bed.pass(LEASE);
    while bed.sweep(None).await.more {}
    assert_eq!(queue.counts().await, Counts { dead: 70, ..Counts::default() });
}

async fn the_key_of_an_interrupted_event_goes_on(bed: Bed) {
    let queue = bed.lane(ordered_once()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    queue.claim(1).await;
    bed.pass(LEASE);
    let next = queue.claim_by(BERT, 10).await;
    assert_eq!(ids(&next), emitted[1..]);
    assert_eq!(skipped(&next, emitted[1]), emitted[..1]);
}

async fn a_graceful_stop_gives_unstarted_events_back(bed: Bed) {
    for (name, policy) in [("unordered", at_most_once()), ("ordered", ordered_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let emitted = bed.emit_plain(4).await;
        let claimed = queue.claim_by(ANNA, 4).await;
        queue.settle_each(&claimed, &[(emitted[0], Outcome::Done)]).await;
        queue.release(&claimed).await;
        assert_eq!(ids(&queue.claim_by(BERT, 10).await), emitted[1..], "{name}");
    }
}

async fn adopt(queue: &Queue, claimed: &Claimed, events: &[EventId]) -> Vec<EventId> {
    let consumed = vec![(leases(claimed)[0], events.to_vec())];
    let adopt = Adopt { subscription: queue.id, consumed, now: queue.bed.now() };
    sorted(queue.bed.store.adopt(adopt).await.unwrap())
}

async fn a_restarted_worker_goes_on_with_what_never_started(bed: Bed) {
    for (name, policy) in [("unordered", at_most_once()), ("ordered", ordered_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let emitted = bed.emit_plain(4).await;
        let claimed = queue.claim_by(ANNA, 4).await;
        // The first one was done, the second one had started when the process ended.
        queue.settle_each(&claimed, &[(emitted[0], Outcome::Done)]).await;
        assert_eq!(adopt(&queue, &claimed, &emitted[2..]).await, emitted[2..], "{name}");
        assert_eq!(ids(&queue.claim_by(ANNA, 10).await), emitted[2..], "{name}");
        assert_eq!(queue.status(emitted[0]).await, Status::Settled, "{name}");
        assert_ne!(queue.status(emitted[1]).await, Status::Ready, "{name}");
    }
}

async fn what_was_adopted_once_is_not_adopted_again(bed: Bed) {
    for (name, policy) in [("unordered", at_most_once()), ("ordered", ordered_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let emitted = bed.emit_plain(4).await;
        let claimed = queue.claim_by(ANNA, 4).await;
        assert_eq!(adopt(&queue, &claimed, &emitted).await, emitted, "{name}");
        assert!(adopt(&queue, &claimed, &emitted).await.is_empty(), "{name}");
        assert_eq!(queue.counts().await, Counts { ready: 4, ..Counts::default() }, "{name}");
    }
}

async fn an_old_lease_is_refused_after_an_adoption(bed: Bed) {
    let queue = bed.queue(at_most_once()).await;
    let emitted = bed.emit_plain(2).await;
    let old = queue.claim_by(ANNA, 2).await;
    adopt(&queue, &old, &emitted).await;
    let new = queue.claim_by(BERT, 2).await;
    assert!(!queue.done(&old).await);
    assert!(queue.done(&new).await);
}

async fn a_lane_is_free_once_all_that_was_consumed_is_adopted(bed: Bed) {
    let queue = bed.lane(ordered_once()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    let old = queue.claim_by(ANNA, 1).await;
    assert_eq!(adopt(&queue, &old, &emitted[..1]).await, emitted[..1]);
    assert_eq!(ids(&queue.claim_by(BERT, 10).await), emitted);
}

/// Somebody else found the worker dead before it was back. Its key has gone on, so the event is out of order now.
async fn an_interrupted_event_that_never_started_can_be_adopted(bed: Bed) {
    let queue = bed.lane(ordered_once()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    let old = queue.claim_by(ANNA, 1).await;
    bed.pass(LEASE);
    assert!(queue.done(&queue.claim_by(BERT, 1).await).await);
    assert_eq!(adopt(&queue, &old, &emitted[..1]).await, emitted[..1]);
    let again = queue.claim_by(ANNA, 1).await;
    assert_eq!((ids(&again), again.slices[0].replayed), (emitted[..1].to_vec(), true));
}

/// It was given back, and its next worker ended with it. The journal of the first one knows nothing of that.
async fn what_somebody_else_has_begun_is_not_adopted(bed: Bed) {
    for (name, policy) in [("unordered", at_most_once()), ("ordered", ordered_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let id = bed.emit(keyed("a")).await;
        let old = queue.claim_by(ANNA, 1).await;
        queue.release(&old).await;
        assert_eq!(ids(&queue.claim_by(BERT, 1).await), [id], "{name}");
        bed.pass(LEASE);
        assert!(ids(&queue.claim_by(BERT, 1).await).is_empty(), "{name}");
        assert_eq!(queue.dead_ids().await, [id], "{name}");
        assert!(adopt(&queue, &old, &[id]).await.is_empty(), "{name}");
    }
}

/// All were consumed, so none may run by itself; the first one holds the key, and the rest are gaps behind it.
async fn several_interrupted_events_of_a_key_are_held_in_order(bed: Bed) {
    let queue = bed.lane(Policy { on_exhausted: OnExhausted::Hold, ..ordered_once() }).await;
    let emitted = bed.emit_keys(&["a", "a", "a"]).await;
    queue.claim_by(ANNA, 2).await;
    bed.pass(LEASE);
    assert!(ids(&queue.claim_by(BERT, 10).await).is_empty());
    assert_eq!(queue.parked().await[0].blocked_by, emitted[0]);
    queue.release_parked(&[]).await;
    assert_eq!(queue.drain().await, [emitted[0], emitted[2]]);
    assert_eq!(queue.dead_ids().await, emitted[1..2]);
}

/// The key is parked behind its first event because the last one is delayed. Once the first one was given back, the second
/// could only be called dead when its worker ended, although neither had begun.
async fn what_follows_an_event_that_was_given_back_is_not_interrupted(bed: Bed) {
    let queue = bed.lane(Policy { on_exhausted: OnExhausted::Hold, ..ordered_once() }).await;
    let mut emitted = bed.emit_keys(&["a", "a"]).await;
    emitted.push(bed.emit(keyed("a").delay(seconds(20))).await);
    let mut claimed = queue.claim_by(ANNA, 10).await;
    assert_eq!(sorted_ids(&claimed), emitted[..2]);
    claimed.slices.retain(|slice| slice.events[0].event.id == emitted[0]);
    queue.release(&claimed).await;
    bed.pass(LEASE);
    assert_eq!(queue.drain().await, emitted);
    assert_eq!(queue.counts().await, Counts::default());
}

async fn only_what_was_consumed_can_be_adopted(bed: Bed) {
    let queue = bed.queue(at_most_once()).await;
    let emitted = bed.emit_plain(4).await;
    let claimed = queue.claim_by(ANNA, 2).await;
    assert_eq!(adopt(&queue, &claimed, &emitted).await, emitted[..2]);
    assert_eq!(queue.counts().await, Counts { ready: 4, ..Counts::default() });
}

async fn an_interrupted_event_can_be_replayed(bed: Bed) {
    let queue = bed.queue(at_most_once()).await;
    let id = bed.emit(plain_event()).await;
    queue.claim(1).await;
    bed.pass(LEASE);
    queue.claim(1).await;
    assert_eq!(queue.replay(Which::Ids(vec![id])).await, 1);
    let again = queue.claim(1).await;
    assert_eq!((ids(&again), again.slices[0].replayed), (vec![id], true));
}

async fn a_settled_event_can_be_resent(bed: Bed) {
    for (name, policy) in [("unordered", at_most_once()), ("ordered", ordered_once()), ("least", unordered())]
    {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let emitted = bed.emit_keys(&["a", "a"]).await;
        assert_eq!(sorted(queue.drain().await), emitted, "{name}");
        assert_eq!(queue.resend(&emitted[..1]).await, 1, "{name}");
        let again = queue.claim(10).await;
        assert_eq!((ids(&again), again.slices[0].replayed), (vec![emitted[0]], true), "{name}");
        assert!(queue.done(&again).await, "{name}");
        assert!(ids(&queue.claim(10).await).is_empty(), "{name}");
    }
}

async fn a_resend_reaches_only_its_subscription(bed: Bed) {
    let queue = bed.queue(at_most_once()).await;
    let other = bed.queue_named("other", &[TOPIC], unordered()).await;
    let id = bed.emit(plain_event()).await;
    queue.drain().await;
    other.drain().await;
    queue.resend(&[id]).await;
    assert_eq!((queue.counts().await.ready, other.counts().await.ready), (1, 0));
}

async fn a_resend_does_not_double_pending_events(bed: Bed) {
    let queue = bed.queue(at_most_once()).await;
    let emitted = bed.emit_plain(3).await;
    let claimed = queue.claim(1).await;
    assert_eq!(queue.resend(&emitted).await, 0);
    assert_eq!(queue.counts().await, Counts { ready: 2, leased: 1, ..Counts::default() });
    queue.done(&claimed).await;
    assert_eq!(queue.resend(&emitted).await, 1);
    assert_eq!(queue.resend(&emitted).await, 0);
    assert_eq!(queue.counts().await, Counts { ready: 3, ..Counts::default() });
}

async fn a_resend_of_what_is_not_there_does_nothing(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let foreign = bed.emit(Event::new("refunds", "x")).await;
    let id = bed.emit(plain_event()).await;
    let missing = EventId(id.0 + 1);
    assert_eq!(queue.resend(&[foreign, missing, EventId(1 << 40)]).await, 0);
    assert_eq!(queue.counts().await, Counts { ready: 1, ..Counts::default() });
}

async fn a_resend_in_a_lane_does_not_disturb_its_order(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let done = bed.emit_keys(&["a"]).await;
    queue.drain().await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
    assert_eq!(queue.resend(&done).await, 1);
    assert_eq!(queue.drain().await, done, "the key is parked, but what was resent is outside its order");
    bed.pass(seconds(60));
    assert_eq!(queue.drain().await, emitted);
}

async fn parallel_workers_consume_every_event_once(bed: Bed) {
    let queue = bed.queue(at_most_once()).await;
    let emitted = bed.emit_plain(200).await;
    let taken = in_parallel(8, |number| {
        let queue = queue.clone();
        async move {
            let mut mine = Vec::new();
            while queue.counts().await.ready > 0 {
                mine.extend(ids(&queue.claim_by(Incarnation(number), 3).await));
            }
            mine
        }
    });
    assert_eq!(sorted(taken.await.concat()), emitted);
}

/// For a worker whose clock is an hour ahead, what others have just claimed has expired long ago, and for those what it has claimed stays
/// leased for an hour.
async fn clocks_that_differ_give_no_event_twice(bed: Bed) {
    for (name, policy) in [("unordered", at_most_once()), ("ordered", ordered_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let events = (0..60).map(|number| keyed(&format!("k{}", number % 12))).collect();
        let emitted: Vec<EventId> = bed.emit_together(events).await.iter().map(|event| event.id).collect();
        let given = in_parallel(4, |worker| {
            let queue = queue.clone();
            async move {
                let mut mine = Vec::new();
                for turn in 0..12 {
                    let ahead = seconds(3600 * (1 + (turn + worker.unsigned_abs()) % 2));
                    let now = Some(queue.bed.time().after(ahead));
                    let claim = Claim { owner: Incarnation(worker), now, ..queue.wish(2) };
                    let claimed = queue.take(claim).await;
                    mine.extend(ids(&claimed));
                    // Some are settled, by a clock that is behind all of them; the rest is left to whoever finds it expired.
                    if turn % 3 == 0 && !claimed.slices.is_empty() {
                        queue.done(&claimed).await;
                    }
                    if turn % 5 == 0 {
                        queue.bed.sweep(None).await;
                    }
                }
                mine
            }
        });
        let given = given.await.concat();
        bed.pass(seconds(3 * 3600));
        let rest = queue.drain().await;
        assert_eq!(sorted([given, rest].concat()), emitted, "{name}");
    }
}
