//! Parked keys, and cancelling.

use crate::bed::*;

conformance![
    a_parked_key_is_listed_with_what_blocks_it,
    a_held_key_is_listed_without_a_due_time,
    parked_keys_are_listed_by_the_blocking_event_page_by_page,
    a_key_is_parked_no_more_once_its_event_is_done,
    a_released_key_runs_its_waiting_event_now,
    a_released_key_replays_its_held_event,
    a_released_key_goes_on_in_a_halted_lane,
    a_halted_lane_is_released_where_no_key_is_parked,
    a_halted_lane_goes_on_without_what_halted_it,
    a_lane_stays_halted_by_what_failed_and_is_left,
    a_delayed_event_keeps_no_lane_halted,
    only_named_keys_are_released,
    releasing_a_key_that_is_not_parked_does_nothing,
    a_cancelled_event_never_runs,
    an_event_is_cancelled_wherever_it_was_not_claimed,
    a_finished_event_cannot_be_cancelled,
    cancelling_the_blocking_event_lets_its_key_go_on,
    cancelling_a_held_event_lets_its_key_go_on,
    a_cancelled_event_behind_a_parked_one_is_a_gap,
    two_keys_of_a_lane_park_and_go_on_apart,
];

async fn fail_next(queue: &Queue) {
    assert!(queue.settle(&queue.claim(1).await, Outcome::retry("no")).await);
}

async fn a_parked_key_is_listed_with_what_blocks_it(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a", "a", "b"]).await;
    fail_next(&queue).await;
    let since = bed.time();
    queue.drain().await;
    bed.pass(seconds(1));
    let expected = ParkedKey {
        topic: TOPIC.into(),
        key: "a".into(),
        blocked_by: emitted[0],
        due_at: Some(since.after(seconds(60))),
        since,
        waiting: 2,
    };
    assert_eq!(queue.parked().await, [expected]);
    let behind = queue.delivery(emitted[1]).await;
    assert_eq!((behind.status, behind.blocked_by), (Status::Parked, Some(emitted[0])));
}

async fn a_held_key_is_listed_without_a_due_time(bed: Bed) {
    let queue = bed.lane(ordered_or(OnExhausted::Hold)).await;
    let emitted = bed.emit_keys(&["a"]).await;
    fail_next(&queue).await;
    let parked = queue.parked().await;
    assert_eq!((parked[0].blocked_by, parked[0].due_at, parked[0].waiting), (emitted[0], None, 0));
}

async fn parked_keys_are_listed_by_the_blocking_event_page_by_page(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let keys: Vec<String> = (0..7).map(|n| format!("key{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let emitted = bed.emit_keys(&keys).await;
    queue.settle(&queue.claim(10).await, Outcome::retry("no")).await;
    let first = bed.store.parked(Page { limit: 3, ..queue.page() }).await.unwrap();
    let rest = bed.store.parked(Page { after: first[2].blocked_by, ..queue.page() }).await.unwrap();
    let listed: Vec<EventId> = first.iter().chain(&rest).map(|parked| parked.blocked_by).collect();
    assert_eq!(listed, emitted);
}

async fn a_key_is_parked_no_more_once_its_event_is_done(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    bed.emit_keys(&["a", "a"]).await;
    fail_next(&queue).await;
    bed.pass(seconds(60));
    queue.drain().await;
    assert!(queue.parked().await.is_empty());
    assert_eq!(queue.counts().await, Counts::default());
}

async fn a_released_key_runs_its_waiting_event_now(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    fail_next(&queue).await;
    assert_eq!(queue.release_parked(&["a"]).await, 1);
    let claimed = queue.claim(10).await;
    assert_eq!((ids(&claimed), claimed.slices[0].attempts), (emitted[..1].to_vec(), 1));
    queue.done(&claimed).await;
    assert_eq!(queue.drain().await, emitted[1..]);
}

async fn a_released_key_replays_its_held_event(bed: Bed) {
    let queue = bed.lane(ordered_or(OnExhausted::Hold)).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    fail_next(&queue).await;
    assert_eq!(queue.release_parked(&[]).await, 1);
    assert_eq!(queue.drain().await, emitted);
}

async fn a_released_key_goes_on_in_a_halted_lane(bed: Bed) {
    let queue = bed.lane(Policy { while_retrying: WhileRetrying::Halt, ..ordered() }).await;
    let emitted = bed.emit_keys(&["a", "b"]).await;
    fail_next(&queue).await;
    assert_eq!(queue.release_parked(&[]).await, 1);
    assert_eq!(queue.drain().await, emitted);
}

fn halting() -> Policy {
    Policy { while_retrying: WhileRetrying::Halt, ..ordered() }
}

/// It could not be released at all, because nothing was parked behind it.
async fn a_halted_lane_is_released_where_no_key_is_parked(bed: Bed) {
    let queue = bed.lane(halting()).await;
    let emitted = [bed.emit(plain_event()).await, bed.emit(keyed("a")).await];
    fail_next(&queue).await;
    assert_eq!(queue.release_parked(&["a"]).await, 0);
    assert!(ids(&queue.claim(9).await).is_empty());
    assert_eq!(queue.release_parked(&[]).await, 1);
    assert_eq!(queue.drain().await, emitted);
}

/// It stood still until the event would have been due.
async fn a_halted_lane_goes_on_without_what_halted_it(bed: Bed) {
    let queue = bed.lane(halting()).await;
    let emitted = bed.emit_keys(&["a", "b", "a"]).await;
    fail_next(&queue).await;
    assert!(ids(&queue.claim(9).await).is_empty());
    assert_eq!(bed.cancel(emitted[0]).await, 1);
    assert_eq!(queue.drain().await, emitted[1..]);
}

async fn a_lane_stays_halted_by_what_failed_and_is_left(bed: Bed) {
    let queue = bed.lane(halting()).await;
    let unit = vec![keyed("a"), keyed("b"), keyed("c"), keyed("d"), keyed("e")];
    let emitted: Vec<EventId> = bed.emit_together(unit).await.iter().map(|event| event.id).collect();
    let claimed = queue.claim(4).await;
    let delays = [300, 10, 300, 20].map(|delay| Outcome::Snooze { delay: seconds(delay) });
    let outcomes: Vec<_> = ids(&claimed).into_iter().zip(delays).collect();
    queue.settle_each(&claimed, &outcomes).await;
    for (cancelled, left) in [(0, 300), (2, 20)] {
        assert_eq!(bed.cancel(emitted[cancelled]).await, 1);
        assert!(ids(&queue.claim(9).await).is_empty());
        bed.pass(seconds(left - 1).min(seconds(9)));
        assert!(ids(&queue.claim(9).await).is_empty());
    }
    bed.pass(seconds(2));
    assert_eq!(queue.drain().await, [emitted[1], emitted[3], emitted[4]]);
}

/// Nobody tried it yet, so it holds nobody up.
async fn a_delayed_event_keeps_no_lane_halted(bed: Bed) {
    let queue = bed.lane(halting()).await;
    let emitted = bed.emit_keys(&["a", "b"]).await;
    let delayed = bed.emit(keyed("c").delay(seconds(30))).await;
    let claimed = queue.claim(3).await;
    assert_eq!(ids(&claimed), emitted);
    let outcomes = [(emitted[0], Outcome::retry("no")), (emitted[1], Outcome::retry("no"))];
    queue.settle_each(&claimed, &outcomes).await;
    for id in emitted {
        assert!(ids(&queue.claim(9).await).is_empty());
        assert_eq!(bed.cancel(id).await, 1);
    }
    let next = bed.emit(keyed("d")).await;
    assert_eq!(queue.drain().await, [next]);
    bed.pass(seconds(30));
    assert_eq!(queue.drain().await, [delayed]);
}

async fn only_named_keys_are_released(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "b"]).await;
    queue.settle(&queue.claim(2).await, Outcome::retry("no")).await;
    assert_eq!(queue.release_parked(&["b"]).await, 1);
    assert_eq!(queue.drain().await, emitted[1..]);
    assert_eq!(queue.release_parked(&[]).await, 1);
    assert_eq!(queue.drain().await, emitted[..1]);
}

async fn releasing_a_key_that_is_not_parked_does_nothing(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    bed.emit(keyed("a")).await;
    assert_eq!(queue.release_parked(&["a", "b"]).await, 0);
    assert_eq!(queue.release_parked(&[]).await, 0);
    let claimed = queue.claim(1).await;
    assert_eq!(queue.release_parked(&[]).await, 0);
    assert!(queue.done(&claimed).await);
}

async fn a_cancelled_event_never_runs(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered()), ("once", at_most_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let emitted = bed.emit_plain(3).await;
        let delayed = bed.emit(plain_event().delay(seconds(5))).await;
        assert!(bed.cancel(emitted[1]).await > 0, "{name}");
        assert!(bed.cancel(delayed).await > 0, "{name}");
        bed.pass(seconds(5));
        assert_eq!(queue.drain().await, [emitted[0], emitted[2]], "{name}");
        assert_eq!(queue.status(delayed).await, Status::Settled, "{name}");
    }
}

async fn an_event_is_cancelled_wherever_it_was_not_claimed(bed: Bed) {
    let running = bed.queue_named("running", &[TOPIC], unordered()).await;
    let waiting = bed.queue_named("waiting", &[TOPIC], ordered()).await;
    let id = bed.emit(keyed("a")).await;
    let claimed = running.claim(1).await;
    let cancelled = bed.store.cancel(Cancel { id, now: bed.now() }).await.unwrap();
    assert_eq!(cancelled.iter().map(|name| &**name).collect::<Vec<_>>(), ["waiting"]);
    assert!(running.done(&claimed).await);
    assert!(waiting.drain().await.is_empty());
}

async fn a_finished_event_cannot_be_cancelled(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = bed.emit(plain_event()).await;
    queue.drain().await;
    assert_eq!(bed.cancel(id).await, 0);
    assert_eq!(bed.cancel(EventId(1 << 40)).await, 0);
}

async fn cancelling_the_blocking_event_lets_its_key_go_on(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    fail_next(&queue).await;
    assert!(queue.drain().await.is_empty());
    assert_eq!(bed.cancel(emitted[0]).await, 1);
    let next = queue.claim(10).await;
    assert_eq!(ids(&next), emitted[1..]);
    assert_eq!(skipped(&next, emitted[1]), emitted[..1]);
}

async fn cancelling_a_held_event_lets_its_key_go_on(bed: Bed) {
    let queue = bed.lane(ordered_or(OnExhausted::Hold)).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    fail_next(&queue).await;
    assert_eq!(bed.cancel(emitted[0]).await, 1);
    assert_eq!(queue.drain().await, emitted[1..]);
}

async fn a_cancelled_event_behind_a_parked_one_is_a_gap(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a", "a"]).await;
    fail_next(&queue).await;
    assert!(queue.drain().await.is_empty());
    assert_eq!(bed.cancel(emitted[1]).await, 1);
    bed.pass(seconds(60));
    let first = queue.claim(10).await;
    assert_eq!(ids(&first), emitted[..1]);
    queue.done(&first).await;
    let last = queue.claim(10).await;
    assert_eq!(ids(&last), emitted[2..]);
    assert_eq!(skipped(&last, emitted[2]), emitted[1..2]);
}

async fn two_keys_of_a_lane_park_and_go_on_apart(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "b", "a", "b"]).await;
    let claimed = queue.claim(2).await;
    let snooze = |delay| Outcome::Snooze { delay: seconds(delay) };
    queue.settle_each(&claimed, &[(emitted[0], snooze(20)), (emitted[1], snooze(10))]).await;
    assert!(queue.drain().await.is_empty());
    bed.pass(seconds(10));
    assert_eq!(queue.drain().await, [emitted[1], emitted[3]]);
    bed.pass(seconds(10));
    assert_eq!(queue.drain().await, [emitted[0], emitted[2]]);
}
