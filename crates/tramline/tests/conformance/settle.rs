//! Settling: what each outcome makes of an event.

use crate::bed::*;

conformance![
    a_done_event_never_runs_again,
    what_is_not_settled_stays_leased,
    a_failed_event_runs_again_after_the_delay_of_the_policy,
    a_handler_may_choose_the_delay,
    attempts_count_settled_failures_and_never_claims,
    an_event_out_of_attempts_is_dead,
    a_list_of_delays_is_followed,
    a_snooze_is_not_an_attempt,
    a_hopeless_event_is_dead_at_once,
    one_failure_in_a_chunk_leaves_the_others_done,
    events_that_fail_differently_come_back_at_different_times,
    an_error_text_is_kept_but_not_without_limit,
    a_repeated_settle_is_harmless,
    a_position_that_was_not_claimed_is_refused,
    a_position_past_the_end_of_a_chunk_is_refused,
    an_event_settled_twice_in_one_call_is_settled_once,
    the_leases_of_a_settle_are_answered_one_by_one,
    an_old_and_a_new_lease_in_one_settle_are_told_apart,
    a_lease_is_worth_nothing_in_another_subscription,
    a_settle_says_when_events_became_due,
    a_settle_says_which_events_their_keys_wait_for,
    a_replayed_event_is_waited_for_by_nobody,
    settling_in_one_subscription_leaves_the_others_alone,
    parallel_settles_of_one_claim_are_each_taken_once,
];

async fn a_done_event_never_runs_again(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let id = bed.emit(keyed("a")).await;
        assert!(queue.done(&queue.claim(1).await).await);
        bed.pass(seconds(10_000));
        assert!(ids(&queue.claim(10).await).is_empty());
        assert_eq!(queue.status(id).await, Status::Settled);
    }
}

async fn what_is_not_settled_stays_leased(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered()), ("once", at_most_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let emitted = bed.emit_plain(4).await;
        let claimed = queue.claim(10).await;
        queue.settle_each(&claimed, &[(emitted[1], Outcome::Done)]).await;
        assert_eq!(queue.counts().await, Counts { leased: 3, ..Counts::default() }, "{name}");
        let rest = [0, 2, 3].map(|at: usize| (emitted[at], Outcome::Done));
        assert_eq!(queue.settle_each(&claimed, &rest).await, [true; 3]);
        assert_eq!(queue.counts().await, Counts::default(), "{name}");
    }
}

async fn a_failed_event_runs_again_after_the_delay_of_the_policy(bed: Bed) {
    let queue = bed.queue(Policy { retry: Retry::constant(3, seconds(300)), ..unordered() }).await;
    let id = bed.emit(plain_event()).await;
    queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
    bed.pass(seconds(299));
    assert!(ids(&queue.claim(1).await).is_empty());
    assert_eq!(queue.counts().await, Counts { delayed: 1, ..Counts::default() });
    bed.pass(seconds(1));
    let again = queue.claim(1).await;
    assert_eq!((ids(&again), again.slices[0].attempts), (vec![id], 1));
}

async fn a_handler_may_choose_the_delay(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit(plain_event()).await;
    let outcome = Outcome::Retry { delay: Some(seconds(7)), error: "no".into() };
    queue.settle(&queue.claim(1).await, outcome).await;
    assert_eq!(queue.claim(1).await.next_due, Some(bed.time().after(seconds(7))));
}

async fn attempts_count_settled_failures_and_never_claims(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit(plain_event()).await;
    for _ in 0..5 {
        queue.release(&queue.claim(1).await).await;
    }
    queue.claim(1).await;
    bed.pass(LEASE);
    assert_eq!(queue.claim(1).await.slices[0].attempts, 0);
}

async fn an_event_out_of_attempts_is_dead(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let id = bed.emit(keyed("a")).await;
        for attempt in 0..3 {
            let claimed = queue.claim(1).await;
            assert_eq!(claimed.slices[0].attempts, attempt, "{name}");
            queue.settle(&claimed, Outcome::retry("no")).await;
            bed.pass(seconds(300));
        }
        assert!(ids(&queue.claim(1).await).is_empty());
        assert_eq!(queue.counts().await, Counts { dead: 1, ..Counts::default() }, "{name}");
        assert_eq!(queue.status(id).await, Status::Dead);
    }
}

async fn a_list_of_delays_is_followed(bed: Bed) {
    let queue = bed.queue(Policy { retry: Retry::delays([seconds(1), seconds(9)]), ..unordered() }).await;
    bed.emit(plain_event()).await;
    for delay in [1, 9] {
        queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
        assert_eq!(queue.claim(1).await.next_due, Some(bed.time().after(seconds(delay))));
        bed.pass(seconds(delay));
    }
    queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
    assert_eq!(queue.counts().await.dead, 1);
}

async fn a_snooze_is_not_an_attempt(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        for _ in 0..10 {
            let claimed = queue.claim(1).await;
            assert_eq!(claimed.slices[0].attempts, 0, "{name}");
            queue.settle(&claimed, Outcome::Snooze { delay: seconds(5) }).await;
            assert!(ids(&queue.claim(1).await).is_empty(), "{name}");
            bed.pass(seconds(5));
        }
        queue.drain().await;
    }
}

async fn a_hopeless_event_is_dead_at_once(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = bed.emit(plain_event()).await;
    queue.settle(&queue.claim(1).await, Outcome::dead("no such address")).await;
    let dead = queue.dead().await;
    assert_eq!((dead[0].event.id, dead[0].attempts, &*dead[0].error), (id, 1, "no such address"));
}

async fn one_failure_in_a_chunk_leaves_the_others_done(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let emitted = bed.emit_plain(64).await;
        let claimed = queue.claim(64).await;
        let outcome = |id| if id == emitted[17] { Outcome::retry("no") } else { Outcome::Done };
        let outcomes: Vec<_> = emitted.iter().map(|id| (*id, outcome(*id))).collect();
        queue.settle_each(&claimed, &outcomes).await;
        assert_eq!(queue.counts().await, Counts { delayed: 1, ..Counts::default() }, "{name}");
        bed.pass(seconds(300));
        assert_eq!(queue.drain().await, [emitted[17]], "{name}");
    }
}

async fn events_that_fail_differently_come_back_at_different_times(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let emitted = bed.emit_plain(3).await;
    let claimed = queue.claim(3).await;
    let outcomes = [3, 1, 2].map(|delay| Outcome::Snooze { delay: seconds(delay) });
    let outcomes: Vec<_> = emitted.iter().copied().zip(outcomes).collect();
    queue.settle_each(&claimed, &outcomes).await;
    for at in [1, 2, 0] {
        bed.pass(seconds(1));
        assert_eq!(ids(&queue.claim(3).await), [emitted[at]]);
    }
}

async fn an_error_text_is_kept_but_not_without_limit(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = bed.emit(plain_event()).await;
    queue.settle(&queue.claim(1).await, Outcome::retry("é\0".repeat(5000))).await;
    let error = queue.delivery(id).await.error.unwrap();
    assert!(error.starts_with("é é é") && error.len() < 2100, "{}", error.len());
}

async fn a_repeated_settle_is_harmless(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered()), ("once", at_most_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let emitted = bed.emit_keys(&["a", "b"]).await;
        let claimed = queue.claim(2).await;
        let outcomes = [(emitted[0], Outcome::retry("no")), (emitted[1], Outcome::Done)];
        assert_eq!(queue.settle_each(&claimed, &outcomes).await, [true, true], "{name}");
        let counts = queue.counts().await;
        assert_eq!(queue.settle_each(&claimed, &outcomes).await, [false, false], "{name}");
        assert_eq!(queue.counts().await, counts, "{name}");
        bed.pass(seconds(300));
        queue.drain().await;
    }
}

async fn a_position_that_was_not_claimed_is_refused(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit_plain(2).await;
    let first = queue.claim(1).await;
    let outcomes = vec![(1, Outcome::Done)];
    let results = vec![SettleSlice { lease: leases(&first)[0], outcomes }];
    let settled = bed
        .store
        .settle(Settle { subscription: queue.id, results, worker: None, now: bed.now() })
        .await
        .unwrap();
    assert_eq!(settled.accepted, [[false]]);
    assert_eq!(queue.counts().await, Counts { ready: 1, leased: 1, ..Counts::default() });
}

async fn a_position_past_the_end_of_a_chunk_is_refused(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        let lease = leases(&queue.claim(1).await)[0];
        let results =
            vec![SettleSlice { lease, outcomes: vec![(64, Outcome::Done), (u32::MAX, Outcome::Done)] }];
        let settled = bed
            .store
            .settle(Settle { subscription: queue.id, results, worker: None, now: bed.now() })
            .await
            .unwrap();
        assert_eq!(settled.accepted, [[false, false]], "{name}");
        assert_eq!(queue.counts().await.leased, 1, "{name}");
    }
}

async fn an_event_settled_twice_in_one_call_is_settled_once(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit_plain(2).await;
        let lease = leases(&queue.claim(2).await)[0];
        let outcomes =
            vec![(0, Outcome::Done), (0, Outcome::retry("no")), (1, Outcome::Done), (1, Outcome::Done)];
        let settle = Settle {
            subscription: queue.id,
            results: vec![SettleSlice { lease, outcomes }],
            worker: None,
            now: bed.now(),
        };
        let accepted = bed.store.settle(settle).await.unwrap().accepted;
        assert_eq!(accepted[0][..3], [true, false, true], "{name}");
        assert_eq!(queue.counts().await, Counts::default(), "{name}");
    }
}

/// The story: settlements of several workers went together, and whoever named the row first was told that he had settled it.
async fn an_old_and_a_new_lease_in_one_settle_are_told_apart(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let id = bed.emit(keyed("a")).await;
        let old = queue.claim(1).await;
        bed.pass(LEASE);
        let new = queue.claim(1).await;
        assert_eq!(ids(&new), [id], "{name}");
        for both in [[&old, &new], [&new, &old]] {
            let results = both.iter().map(|claimed| SettleSlice {
                lease: claimed.slices[0].lease,
                outcomes: vec![(id.index(), Outcome::Done)],
            });
            let results = results.collect();
            let settle = Settle { subscription: queue.id, results, worker: None, now: bed.now() };
            let accepted = bed.store.settle(settle).await.unwrap().accepted;
            let is_first = both[0].slices[0].lease == old.slices[0].lease;
            let expected = if is_first { [vec![false], vec![true]] } else { [vec![false], vec![false]] };
            assert_eq!(accepted, expected, "{name}");
        }
        assert_eq!(queue.counts().await, Counts::default(), "{name}");
    }
}

async fn the_leases_of_a_settle_are_answered_one_by_one(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit_keys(&["a", "b", "c"]).await;
        let claimed = queue.claim(3).await;
        let stale = Claimed { slices: claimed.slices[1..2].to_vec(), ..claimed.clone() };
        queue.done(&stale).await;
        let all: Vec<_> = ids(&claimed).into_iter().map(|id| (id, Outcome::Done)).collect();
        assert_eq!(queue.settle_each(&claimed, &all).await, [true, false, true], "{name}");
    }
}

async fn a_lease_is_worth_nothing_in_another_subscription(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let mine = bed.queue_named(&format!("mine-{name}"), &[TOPIC], policy.clone()).await;
        let yours = bed.queue_named(&format!("yours-{name}"), &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        let claimed = mine.claim(1).await;
        yours.claim(1).await;
        assert!(!yours.done(&claimed).await, "{name}");
        assert_eq!((mine.counts().await.leased, yours.counts().await.leased), (1, 1), "{name}");
    }
}

async fn a_settle_says_when_events_became_due(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let id = bed.emit(keyed("a")).await;
        let claimed = queue.claim(1).await;
        let now = Outcome::Snooze { delay: seconds(0) };
        assert!(queue.try_settle(&claimed, &[(id, now)]).await.unwrap().wake, "{name}");
        let claimed = queue.claim(1).await;
        let later = Outcome::Snooze { delay: seconds(9) };
        assert!(!queue.try_settle(&claimed, &[(id, later)]).await.unwrap().wake, "{name}");
    }
}

async fn a_settle_says_which_events_their_keys_wait_for(bed: Bed) {
    let once = |on_exhausted| Policy { on_exhausted, ..ordered_once() };
    let judged = [
        ("retried", ordered(), Outcome::retry("no"), true),
        ("snoozed", ordered(), Outcome::Snooze { delay: seconds(1) }, true),
        ("done", ordered(), Outcome::Done, false),
        ("dead", ordered(), Outcome::dead("no"), false),
        ("held", ordered_or(OnExhausted::Hold), Outcome::retry("no"), true),
        ("dropped", ordered_or(OnExhausted::Drop), Outcome::retry("no"), false),
        ("interrupted", once(OnExhausted::Dead), Outcome::retry("no"), false),
        ("held_once", once(OnExhausted::Hold), Outcome::retry("no"), true),
        ("unordered", unordered(), Outcome::retry("no"), false),
    ];
    for (name, policy, outcome, waits) in judged {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let emitted = bed.emit_keys(&["a", "a"]).await;
        let claimed = queue.claim(1).await;
        let settled = queue.try_settle(&claimed, &[(emitted[0], outcome)]).await.unwrap();
        let waiting = if waits { &emitted[..1] } else { &[] };
        assert_eq!(settled.waiting, waiting, "{name}");
    }
}

async fn a_replayed_event_is_waited_for_by_nobody(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    queue.drain().await;
    queue.resend(&emitted[..1]).await;
    let claimed = queue.claim(1).await;
    let settled = queue.try_settle(&claimed, &[(emitted[0], Outcome::retry("no"))]).await.unwrap();
    assert_eq!((settled.accepted, settled.waiting), (vec![vec![true]], Vec::new()));
}

async fn settling_in_one_subscription_leaves_the_others_alone(bed: Bed) {
    let mine = bed.queue_named("mine", &[TOPIC], unordered()).await;
    let yours = bed.queue_named("yours", &[TOPIC], unordered()).await;
    let emitted = bed.emit_plain(3).await;
    mine.drain().await;
    assert_eq!(yours.drain().await, emitted);
}

async fn parallel_settles_of_one_claim_are_each_taken_once(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit_plain(64).await;
        let claimed = queue.claim(64).await;
        let all: Vec<_> = ids(&claimed).into_iter().map(|id| (id, Outcome::Done)).collect();
        let answers = in_parallel(4, |_| {
            let (queue, claimed, all) = (queue.clone(), claimed.clone(), all.clone());
            async move { queue.settle_each(&claimed, &all).await }
        });
        let taken = answers.await.concat().into_iter().filter(|taken| *taken).count();
        assert_eq!(taken, 64, "{name}");
    }
}
