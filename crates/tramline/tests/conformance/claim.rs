//! Claiming without order: how much, in which order, for how long.

use crate::bed::*;

conformance![
    an_empty_queue_gives_nothing,
    a_claim_gives_no_more_than_was_asked_for,
    a_claim_for_a_few_leaves_the_rest_of_the_chunk_to_others,
    a_claimed_event_is_not_given_twice,
    lower_priorities_run_first,
    equal_priorities_run_by_due_time,
    a_delayed_event_is_not_given_before_its_time,
    an_event_may_wait_for_a_point_in_time,
    a_point_in_time_that_has_passed_means_now,
    a_claim_that_found_too_little_tells_the_next_due_time,
    the_end_of_a_lease_is_a_due_time_too,
    a_claim_is_capped_by_bytes_but_gives_at_least_one_event,
    single_claims_have_one_event_per_lease,
    a_lease_lasts_as_the_claim_or_else_the_policy_says,
    a_claim_tells_the_time_of_the_store,
    a_store_that_can_be_written_says_so_and_nothing_changes,
    a_first_claim_has_no_attempts_and_no_crashes,
    counts_show_what_is_under_way_apart,
    the_oldest_ready_event_is_told,
    claiming_for_an_unknown_subscription_is_an_error,
    parallel_claimers_never_share_an_event,
    claims_made_together_are_given_what_there_is_one_after_the_other,
    claims_made_together_have_leases_of_their_own,
    claims_made_together_keep_priorities_and_weights,
    claims_made_together_of_what_cannot_be_shared_are_made_one_by_one,
    claims_made_together_of_heavy_events_get_all_of_them,
    claims_made_together_beside_a_lapsed_lease_leave_nothing,
    who_finds_nothing_together_with_others_waits_for_their_leases,
];

/// Claims of different owners, together; each by itself that has to be.
async fn together(queue: &Queue, wishes: &[u32]) -> Vec<Claimed> {
    let wish =
        |(owner, max_events): (i64, &u32)| Claim { owner: Incarnation(owner), ..queue.wish(*max_events) };
    made_together(queue, (1_000..).zip(wishes).map(wish).collect()).await
}

async fn made_together(queue: &Queue, claims: Vec<Claim>) -> Vec<Claimed> {
    let answers = queue.bed.store.claim_together(claims.clone()).await.unwrap();
    assert_eq!(answers.len(), claims.len());
    let mut all = Vec::new();
    for (answer, claim) in answers.into_iter().zip(claims) {
        all.push(match answer.unwrap() {
            Some(claimed) => claimed,
            None => queue.bed.store.claim(claim).await.unwrap(),
        });
    }
    all
}

async fn claims_made_together_are_given_what_there_is_one_after_the_other(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let emitted = bed.emit_plain(200).await;
    let claimed = together(&queue, &[100, 3, 3, 1_000, 10]).await;
    let given: Vec<usize> = claimed.iter().map(|claimed| ids(claimed).len()).collect();
    assert_eq!(given, [100, 3, 3, 94, 0]);
    let all: Vec<EventId> = claimed.iter().flat_map(ids).collect();
    assert_eq!(all, emitted);
    for (owner, claimed) in (1_000..).zip(&claimed) {
        assert!(claimed.slices.iter().all(|slice| slice.lease.owner() == Incarnation(owner)));
        assert!(claimed.slices.is_empty() || queue.done(claimed).await);
    }
    assert_eq!(queue.counts().await.pending(), 0);
}

async fn claims_made_together_have_leases_of_their_own(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let emitted = bed.emit_plain(20).await;
    let claimed = together(&queue, &[5, 5, 5]).await;
    assert!(queue.done(&claimed[1]).await);
    queue.release(&claimed[0]).await;
    let mut free = ids(&queue.claim(100).await);
    free.sort();
    assert_eq!(free, [&emitted[..5], &emitted[15..]].concat());
    assert!(queue.done(&claimed[2]).await, "what another one gave back was not its own");
}

async fn claims_made_together_keep_priorities_and_weights(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let late = bed.emit(plain_event().priority(9)).await;
    let early = [bed.emit(plain_event().priority(1)).await, bed.emit(plain_event().priority(1)).await];
    let usual = bed.emit(plain_event()).await;
    let claimed = together(&queue, &[1, 2, 5]).await;
    assert_eq!(
        claimed.iter().map(ids).collect::<Vec<_>>(),
        [vec![early[0]], vec![early[1], usual], vec![late]]
    );
    bed.emit_plain(130).await;
    let light = |owner| Claim { owner: Incarnation(owner), max_bytes: 1, ..queue.wish(100) };
    for claimed in made_together(&queue, vec![light(1), light(2)]).await {
        assert_eq!(claimed.slices.len(), 1, "one slice is heavy enough for each");
    }
}

async fn claims_made_together_of_what_cannot_be_shared_are_made_one_by_one(bed: Bed) {
    let queues = [
        bed.queue_named("ordered", &[TOPIC], ordered()).await,
        bed.queue_named("once", &[TOPIC], at_most_once()).await,
    ];
    for queue in &queues {
        assert!(together(queue, &[1, 1]).await.iter().all(|claimed| claimed.slices.is_empty()));
    }
    let emitted = bed.emit_keys(&["a", "b"]).await;
    for queue in &queues {
        let claimed = together(queue, &[2, 2]).await;
        let mut all: Vec<EventId> = claimed.iter().flat_map(ids).collect();
        all.sort();
        assert_eq!(all, emitted);
    }
}

/// The story: every part of a slice brought its whole chunk, so that many small claims of one heavy chunk filled the memory.
async fn claims_made_together_of_heavy_events_get_all_of_them(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let heavy = || Event::new(TOPIC, vec![b'x'; 600 << 10]);
    let mut emitted = Vec::new();
    for _ in 0..20 {
        emitted.push(bed.emit(heavy()).await);
    }
    let mut given = Vec::new();
    for claimed in together(&queue, &[1; 20]).await {
        assert_eq!(claimed.slices.len(), 1);
        assert!(claimed.slices[0].events.iter().all(|event| event.event.payload.len() == 600 << 10));
        given.extend(ids(&claimed));
    }
    given.sort();
    assert_eq!(given, emitted);
}

/// One claim that has to look after something more holds up nobody.
async fn claims_made_together_beside_a_lapsed_lease_leave_nothing(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit_plain(6).await;
    assert_eq!(ids(&queue.claim(2).await).len(), 2);
    bed.pass(LEASE);
    let leave = |owner| Claim { owner: Incarnation(owner), suspects: Suspects::Leave, ..queue.wish(2) };
    let claimed = made_together(&queue, vec![leave(1), leave(2), leave(3)]).await;
    let given: Vec<usize> = claimed.iter().map(|claimed| ids(claimed).len()).collect();
    assert_eq!(given, [2, 2, 0], "the rest are suspects");
    assert!(claimed[2].suspects_wait);
}

async fn who_finds_nothing_together_with_others_waits_for_their_leases(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    for first in [1, 2] {
        bed.emit_plain(1).await;
        let claimed = together(&queue, &[first, 1]).await;
        assert_eq!(ids(&claimed[0]).len(), 1);
        assert!(claimed[1].slices.is_empty());
        assert_eq!(claimed[1].next_due, Some(claimed[0].slices[0].until));
    }
}

async fn an_empty_queue_gives_nothing(bed: Bed) {
    for policy in [unordered(), ordered(), at_most_once()] {
        let queue =
            bed.queue_named(&format!("{:?}-{:?}", policy.ordering, policy.guarantee), &[TOPIC], policy).await;
        let claimed = queue.claim(10).await;
        assert!(claimed.slices.is_empty());
        assert_eq!((claimed.next_due, claimed.suspects_wait, claimed.stopped_by), (None, false, None));
    }
}

async fn a_claim_gives_no_more_than_was_asked_for(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let ids_emitted = bed.emit_plain(200).await;
    assert_eq!(ids(&queue.claim(5).await).len(), 5);
    assert_eq!(ids(&queue.claim(100).await).len(), 100);
    assert_eq!(ids(&queue.claim(1000).await).len(), ids_emitted.len() - 105);
}

async fn a_claim_for_a_few_leaves_the_rest_of_the_chunk_to_others(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let emitted = bed.emit_plain(64).await;
    let few = queue.claim_by(ANNA, 5).await;
    let rest = queue.claim_by(BERT, 64).await;
    assert_eq!(ids(&few), emitted[..5]);
    assert_eq!(ids(&rest), emitted[5..]);
    assert!(queue.done(&few).await && queue.done(&rest).await);
}

async fn a_claimed_event_is_not_given_twice(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit_plain(10).await;
    queue.claim_by(ANNA, 10).await;
    assert!(ids(&queue.claim_by(BERT, 10).await).is_empty());
    assert!(ids(&queue.claim_by(ANNA, 10).await).is_empty());
}

async fn lower_priorities_run_first(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let priorities = [5, 9, 0, 3];
    let events = priorities.iter().map(|priority| plain_event().priority(*priority)).collect();
    let emitted = bed.emit_together(events).await;
    let mut order = Vec::new();
    for _ in priorities {
        order.extend(ids(&queue.claim(1).await));
    }
    assert_eq!(order, [2, 3, 0, 1].map(|at: usize| emitted[at].id));
}

async fn equal_priorities_run_by_due_time(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let late = bed.emit(plain_event().delay(seconds(20))).await;
    let early = bed.emit(plain_event().delay(seconds(10))).await;
    bed.pass(seconds(60));
    assert_eq!(ids(&queue.claim(1).await), [early]);
    assert_eq!(ids(&queue.claim(1).await), [late]);
}

async fn a_delayed_event_is_not_given_before_its_time(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = bed.emit(plain_event().delay(seconds(10))).await;
    bed.pass(seconds(9));
    assert!(ids(&queue.claim(1).await).is_empty());
    assert_eq!(queue.counts().await, Counts { delayed: 1, ..Counts::default() });
    bed.pass(seconds(1));
    assert_eq!(ids(&queue.claim(1).await), [id]);
}

async fn an_event_may_wait_for_a_point_in_time(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = bed.emit(plain_event().at(bed.time().after(seconds(5)))).await;
    assert!(ids(&queue.claim(1).await).is_empty());
    bed.pass(seconds(5));
    assert_eq!(ids(&queue.claim(1).await), [id]);
}

async fn a_point_in_time_that_has_passed_means_now(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = bed.emit(plain_event().at(Time(5))).await;
    assert_eq!(ids(&queue.claim(1).await), [id]);
}

async fn a_claim_that_found_too_little_tells_the_next_due_time(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a").delay(seconds(20))).await;
        bed.emit(keyed("b").delay(seconds(10))).await;
        let claimed = queue.claim(1).await;
        assert_eq!(claimed.next_due, Some(bed.time().after(seconds(10))), "{name}");
        bed.pass(seconds(60));
        queue.drain().await;
    }
}

async fn the_end_of_a_lease_is_a_due_time_too(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        let held = queue.claim_by(ANNA, 1).await;
        let next_due = queue.claim_by(BERT, 1).await.next_due;
        assert_eq!(next_due, Some(held.slices[0].until), "{name}");
        assert!(queue.done(&held).await);
    }
}

async fn a_claim_is_capped_by_bytes_but_gives_at_least_one_event(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        for _ in 0..3 {
            bed.emit(Event::new(TOPIC, vec![7; 1000])).await;
        }
        let small = queue.take(Claim { max_bytes: 10, ..queue.wish(10) }).await;
        assert_eq!(ids(&small).len(), 1, "{name}");
        let rest = queue.take(Claim { max_bytes: 100_000, ..queue.wish(10) }).await;
        assert_eq!(ids(&rest).len(), 2, "{name}");
        assert!(queue.done(&small).await && queue.done(&rest).await);
    }
}

async fn single_claims_have_one_event_per_lease(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit_plain(5).await;
        let mut seen = 0;
        while seen < 5 {
            let claimed = queue.take(Claim { single: true, ..queue.wish(5) }).await;
            assert!(!claimed.slices.is_empty(), "{name}: only {seen} events were given");
            assert!(claimed.slices.iter().all(|slice| slice.events.len() == 1), "{name}");
            seen += claimed.slices.len();
            assert!(queue.done(&claimed).await);
        }
    }
}

async fn a_lease_lasts_as_the_claim_or_else_the_policy_says(bed: Bed) {
    let policy = Policy { lease: Some(seconds(7)), ..unordered() };
    let queue = bed.queue(policy).await;
    bed.emit_plain(2).await;
    assert_eq!(queue.claim(1).await.slices[0].until, bed.time().after(seconds(7)));
    let own = queue.take(Claim { lease: Some(seconds(3)), ..queue.wish(1) }).await;
    assert_eq!(own.slices[0].until, bed.time().after(seconds(3)));
}

async fn a_claim_tells_the_time_of_the_store(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    assert_eq!(queue.claim(1).await.now, bed.time());
    let by_its_clock = queue.take(Claim { now: None, ..queue.wish(1) }).await.now;
    assert!(by_its_clock <= bed.store.now().await.unwrap());
}

async fn a_store_that_can_be_written_says_so_and_nothing_changes(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let before = bed.emit(plain_event()).await;
    bed.store.probe().await.unwrap();
    assert_eq!(queue.counts().await, Counts { ready: 1, ..Counts::default() });
    assert!(before < bed.emit(plain_event()).await);
}

async fn a_first_claim_has_no_attempts_and_no_crashes(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit(plain_event()).await;
    let slice = &queue.claim(1).await.slices[0];
    assert_eq!((slice.attempts, slice.crashes, slice.replayed), (0, 0, false));
}

async fn counts_show_what_is_under_way_apart(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered()), ("once", at_most_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit_plain(10).await;
        let claimed = queue.claim(4).await;
        bed.emit(plain_event().delay(seconds(100))).await;
        assert_eq!(
            queue.counts().await,
            Counts { ready: 6, delayed: 1, leased: 4, ..Counts::default() },
            "{name}"
        );
        queue.done(&claimed).await;
        assert_eq!(queue.counts().await, Counts { ready: 6, delayed: 1, ..Counts::default() }, "{name}");
        bed.pass(seconds(1000));
        queue.drain().await;
    }
}

async fn the_oldest_ready_event_is_told(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        assert_eq!(queue.stats().await.oldest_ready_at, None, "{name}");
        let first = bed.time();
        bed.emit(keyed("a")).await;
        bed.pass(seconds(5));
        bed.emit(keyed("b")).await;
        assert_eq!(queue.stats().await.oldest_ready_at, Some(first), "{name}");
        queue.drain().await;
    }
}

async fn claiming_for_an_unknown_subscription_is_an_error(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.store.delete_subscription("queue").await.unwrap();
    let error = bed.store.claim(queue.wish(1)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}

async fn parallel_claimers_never_share_an_event(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let emitted = bed.emit_plain(640).await;
    let taken = in_parallel(8, |number| {
        let queue = queue.clone();
        async move {
            let mut mine = Vec::new();
            while queue.counts().await.ready > 0 {
                mine.extend(ids(&queue.claim_by(Incarnation(number), 7).await));
            }
            mine
        }
    });
    assert_eq!(sorted(taken.await.concat()), emitted);
}
