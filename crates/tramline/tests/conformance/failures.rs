//! Why events failed, attempt by attempt.

use crate::bed::*;

conformance![
    every_failed_attempt_is_told_with_its_time_and_worker,
    the_last_ten_failures_are_kept,
    a_long_error_is_cut,
    events_that_fail_together_have_errors_of_their_own,
    what_was_put_off_is_no_failure,
    failures_are_told_after_the_event_was_done,
    a_replayed_event_still_tells_why_it_died,
    each_subscription_has_failures_of_its_own,
    an_interrupted_event_tells_so,
    failures_go_with_their_events,
    nothing_is_written_where_nothing_fails,
];

async fn fail(queue: &Queue, error: &str) {
    let claimed = queue.claim(1).await;
    assert!(queue.settle(&claimed, Outcome::retry(error)).await);
    queue.bed.pass(seconds(3_600));
}

/// Fails if there is a row to change.
const NONE_IS_LEFT: &str = "UPDATE tramline_failure SET mask = NULL WHERE chunk > 0";

fn patient(policy: Policy) -> Policy {
    Policy { retry: Retry { max_attempts: 0, ..Retry::default() }, ..policy }
}

fn errors(failures: &[Failure]) -> Vec<(u32, &str)> {
    failures.iter().map(|failure| (failure.attempt, &*failure.error)).collect()
}

async fn every_failed_attempt_is_told_with_its_time_and_worker(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], patient(policy)).await;
        let id = bed.emit(keyed("a")).await;
        let first = bed.time();
        fail(&queue, "first").await;
        let claimed = queue.claim(1).await;
        let lease = claimed.slices[0].lease;
        let results = vec![SettleSlice { lease, outcomes: vec![(id.index(), Outcome::dead("second"))] }];
        let worker = Some("anna".into());
        let settle = Settle { subscription: queue.id, results, worker, now: bed.now() };
        bed.store.settle(settle).await.unwrap();
        let failures = queue.dead().await.remove(0).failures;
        assert_eq!(errors(&failures), [(1, "first"), (2, "second")], "{name}");
        assert_eq!((failures[0].at, failures[1].at), (first, bed.time()), "{name}");
        assert_eq!(failures[0].worker, format!("{:x}", ANNA.0), "{name}: who gave no name is told by number");
        assert_eq!(failures[1].worker, "anna", "{name}");
        assert_eq!(queue.delivery(id).await.failures, failures, "{name}");
    }
}

async fn the_last_ten_failures_are_kept(bed: Bed) {
    let queue = bed.queue(patient(unordered())).await;
    let id = bed.emit(plain_event()).await;
    for attempt in 1..=23 {
        fail(&queue, &format!("error {attempt}")).await;
    }
    let failures = queue.delivery(id).await.failures;
    let attempts: Vec<u32> = failures.iter().map(|failure| failure.attempt).collect();
    assert_eq!(attempts, (14..=23).collect::<Vec<u32>>());
    assert_eq!(failures[9].error, "error 23");
}

async fn a_long_error_is_cut(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = bed.emit(plain_event()).await;
    fail(&queue, &"é".repeat(4_000)).await;
    let error = &queue.delivery(id).await.failures[0].error;
    assert!(error.len() <= 1_024 + '…'.len_utf8() && error.ends_with('…'), "{}", error.len());
}

/// They share rows, of which each has its own part.
async fn events_that_fail_together_have_errors_of_their_own(bed: Bed) {
    let queue = bed.queue(patient(unordered())).await;
    let emitted = bed.emit_plain(64).await;
    for round in 0..12 {
        let claimed = queue.claim(64).await;
        let outcome = |(n, id): (usize, &EventId)| (*id, Outcome::retry(format!("{round} of {}", n % 3)));
        let outcomes: Vec<(EventId, Outcome)> = emitted.iter().enumerate().map(outcome).collect();
        assert!(queue.settle_each(&claimed, &outcomes).await.iter().all(|accepted| *accepted));
        bed.pass(seconds(3_600));
    }
    for n in [0, 1, 2, 62, 63] {
        let failures = queue.delivery(emitted[n]).await.failures;
        let wanted: Vec<String> = (2..12).map(|round| format!("{round} of {}", n % 3)).collect();
        assert_eq!(failures.iter().map(|failure| failure.error.clone()).collect::<Vec<_>>(), wanted);
    }
}

async fn what_was_put_off_is_no_failure(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = bed.emit(plain_event()).await;
    fail(&queue, "no").await;
    queue.settle(&queue.claim(1).await, Outcome::Snooze { delay: seconds(1) }).await;
    assert_eq!(errors(&queue.delivery(id).await.failures), [(1, "no")]);
}

async fn failures_are_told_after_the_event_was_done(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = bed.emit(plain_event()).await;
    fail(&queue, "not yet").await;
    queue.done(&queue.claim(1).await).await;
    let delivery = queue.delivery(id).await;
    assert_eq!((delivery.status, errors(&delivery.failures)), (Status::Settled, vec![(1, "not yet")]));
}

async fn a_replayed_event_still_tells_why_it_died(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = bed.emit(plain_event()).await;
    for error in ["one", "two", "three"] {
        fail(&queue, error).await;
    }
    queue.replay(Which::All).await;
    assert_eq!(queue.delivery(id).await.failures.len(), 3);
    fail(&queue, "again").await;
    assert_eq!(errors(&queue.delivery(id).await.failures), [(2, "two"), (3, "three"), (1, "again")]);
}

async fn each_subscription_has_failures_of_its_own(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let other = bed.queue_named("other", &[TOPIC], unordered()).await;
    let id = bed.emit(plain_event()).await;
    fail(&queue, "mine").await;
    fail(&other, "yours").await;
    assert_eq!(errors(&queue.delivery(id).await.failures), [(1, "mine")]);
    assert_eq!(errors(&other.delivery(id).await.failures), [(1, "yours")]);
}

async fn an_interrupted_event_tells_so(bed: Bed) {
    for (name, policy) in [("unordered", at_most_once()), ("ordered", ordered_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let id = bed.emit(keyed("a")).await;
        queue.claim(1).await;
        bed.pass(seconds(3_600));
        bed.sweep(None).await;
        let failures = queue.delivery(id).await.failures;
        assert_eq!(failures.len(), 1, "{name}");
        assert!(failures[0].attempt == 1 && failures[0].error.starts_with("interrupted"), "{name}");
    }
}

async fn failures_go_with_their_events(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit(plain_event()).await;
    fail(&queue, "no").await;
    queue.done(&queue.claim(1).await).await;
    bed.pass(seconds(48 * 3_600));
    assert_eq!(bed.sweep(None).await.chunks, 1);
    bed.spoil(NONE_IS_LEFT).await;
}

async fn nothing_is_written_where_nothing_fails(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        queue.drain().await;
        bed.spoil(NONE_IS_LEFT).await;
    }
}
