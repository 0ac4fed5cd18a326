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
];

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
