//! The order of arrival: push subscriptions that get all their events in one line, one batch after the other.

use crate::bed::*;

conformance![
    events_of_all_topics_come_in_the_order_of_their_arrival,
    one_claim_at_a_time_is_under_way,
    what_was_taken_and_forgotten_is_given_out_again,
    a_failed_event_halts_everything,
    of_a_batch_only_what_failed_comes_again,
    failures_with_different_delays_come_again_in_order,
    many_failures_come_again_before_what_is_behind_them,
    what_fails_again_keeps_its_place,
    what_is_given_back_keeps_its_place_among_failures,
    what_waited_does_not_pass_a_batch_that_failed,
    what_waited_does_not_pass_a_batch_that_was_given_back,
    what_waited_does_not_pass_a_batch_whose_lease_has_ended,
    what_waited_comes_before_what_arrived_after_it,
    a_cancelled_failure_lets_the_line_go_on,
    a_line_goes_on_waiting_for_what_failed_and_is_left,
    a_replaced_failure_lets_the_line_go_on,
    a_failure_that_is_shed_lets_the_line_go_on,
    leaving_a_topic_takes_its_failures_out_of_the_way,
    a_released_line_goes_on_with_what_failed,
    an_event_that_is_out_of_attempts_stops_nobody,
    an_expired_lease_is_no_crash,
    a_batch_that_is_given_back_comes_again_whole,
    a_backfill_of_several_topics_keeps_the_order,
    a_topic_that_joins_brings_events_from_before_what_was_done,
    leaving_a_topic_takes_its_events_out_of_the_line,
    leaving_a_topic_frees_the_line,
    a_topic_joins_the_line_later,
    keys_mean_nothing_in_the_line,
];

const TOPICS: [&str; 3] = ["orders", "refunds", "users"];

/// A line of several topics, or of one where a line can have no more.
async fn line(bed: &Bed) -> Queue {
    line_of(bed, arrival()).await
}

async fn line_of(bed: &Bed, policy: Policy) -> Queue {
    let topics = if bed.is_spread() { &TOPICS[..1] } else { &TOPICS[..] };
    bed.queue_named("queue", topics, policy).await
}

/// A topic, or the only one that a line has.
fn in_line<'t>(bed: &Bed, topic: &'t str) -> &'t str {
    if bed.is_spread() { TOPICS[0] } else { topic }
}

async fn emit_to(bed: &Bed, topics: &[&str]) -> Vec<EventId> {
    let mut ids = Vec::new();
    for topic in topics {
        ids.push(bed.emit(Event::new(in_line(bed, topic), "x").key("a")).await);
    }
    ids
}

/// Where a line cannot have several topics, that is refused, and there is nothing else to see.
async fn lines_have_one_topic(bed: &Bed) -> bool {
    if !bed.is_spread() {
        return false;
    }
    let refused = bed.subscribe("queue", &TOPICS, arrival(), Start::Now).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid);
    assert!(bed.store.subscriptions().await.unwrap().is_empty());
    true
}

async fn events_of_all_topics_come_in_the_order_of_their_arrival(bed: Bed) {
    let queue = line(&bed).await;
    let mut emitted = emit_to(&bed, &["users", "orders", "refunds", "orders", "users"]).await;
    let unit = vec![Event::new("orders", "x"), Event::new("orders", "x").priority(0)];
    emitted.extend(bed.emit_together(unit).await.iter().map(|event| event.id));
    let mut seen = Vec::new();
    for count in [1, 3, 2, 9] {
        let claimed = queue.claim(count).await;
        seen.extend(ids(&claimed));
        assert!(queue.done(&claimed).await);
    }
    assert_eq!(seen, emitted);
}

async fn one_claim_at_a_time_is_under_way(bed: Bed) {
    let queue = line(&bed).await;
    let emitted = emit_to(&bed, &["orders", "users", "orders"]).await;
    let first = queue.claim_by(ANNA, 2).await;
    for owner in [ANNA, BERT] {
        assert!(ids(&queue.claim_by(owner, 9).await).is_empty(), "a batch is under way");
    }
    queue.settle_each(&first, &[(emitted[0], Outcome::Done)]).await;
    assert!(ids(&queue.claim_by(BERT, 9).await).is_empty(), "half a batch is under way");
    queue.settle_each(&first, &[(emitted[1], Outcome::Done)]).await;
    assert_eq!(ids(&queue.claim_by(BERT, 9).await), [emitted[2]]);
}

/// A claim whose answer was lost on the way.
async fn what_was_taken_and_forgotten_is_given_out_again(bed: Bed) {
    let queue = line(&bed).await;
    let emitted = emit_to(&bed, &["orders", "users"]).await;
    queue.claim(1).await;
    let again = queue.take(Claim { known: Known::Only(Vec::new()), ..queue.wish(9) }).await;
    assert_eq!(ids(&again), emitted);
}

async fn a_failed_event_halts_everything(bed: Bed) {
    let queue = line(&bed).await;
    let emitted = emit_to(&bed, &["orders", "users", "refunds"]).await;
    let claimed = queue.claim(1).await;
    queue.settle(&claimed, Outcome::retry("no")).await;
    let halted = queue.claim(9).await;
    assert!(ids(&halted).is_empty());
    assert_eq!(halted.next_due, Some(bed.time().after(seconds(60))));
    bed.pass(seconds(59));
    assert!(ids(&queue.claim(9).await).is_empty());
    bed.pass(seconds(1));
    assert_eq!(queue.drain().await, emitted);
}

async fn of_a_batch_only_what_failed_comes_again(bed: Bed) {
    let queue = line(&bed).await;
    let emitted = emit_to(&bed, &["orders", "users", "refunds", "orders"]).await;
    let claimed = queue.claim(3).await;
    let outcomes =
        [(emitted[0], Outcome::Done), (emitted[1], Outcome::retry("no")), (emitted[2], Outcome::Done)];
    assert_eq!(queue.settle_each(&claimed, &outcomes).await, [true; 3]);
    assert!(ids(&queue.claim(9).await).is_empty());
    bed.pass(seconds(60));
    assert_eq!(queue.drain().await, [emitted[1], emitted[3]]);
}

async fn failures_with_different_delays_come_again_in_order(bed: Bed) {
    let queue = line(&bed).await;
    let emitted = emit_to(&bed, &["orders", "users", "refunds"]).await;
    let claimed = queue.claim(3).await;
    let later = |after| Outcome::Snooze { delay: seconds(after) };
    let outcomes = [(emitted[2], later(10)), (emitted[1], later(20)), (emitted[0], later(30))];
    assert_eq!(queue.settle_each(&claimed, &outcomes).await, [true; 3]);
    bed.pass(seconds(29));
    assert!(ids(&queue.claim(9).await).is_empty());
    bed.pass(seconds(1));
    let mut seen = Vec::new();
    for _ in 0..3 {
        let one = queue.claim(1).await;
        seen.extend(ids(&one));
        assert!(queue.done(&one).await);
    }
    assert_eq!(seen, emitted);
}

/// A claim looked at the first of those that had failed, and filled up with what was behind the others.
async fn many_failures_come_again_before_what_is_behind_them(bed: Bed) {
    let queue = line(&bed).await;
    let mut emitted = Vec::new();
    for _ in 0..450 {
        emitted.push(bed.emit(plain_event()).await);
    }
    queue.settle(&queue.claim(400).await, Outcome::retry("no")).await;
    bed.pass(seconds(3_600));
    assert_eq!(come(&bed, &queue, emitted.len()).await, emitted);
}

/// Who failed twice waited for longer than those behind it that had failed once, and came after them.
async fn what_fails_again_keeps_its_place(bed: Bed) {
    let queue = line(&bed).await;
    let emitted = emit_to(&bed, &["orders"; 150]).await;
    queue.settle(&queue.claim(100).await, Outcome::retry("no")).await;
    bed.pass(seconds(3_600));
    queue.settle(&queue.claim(10).await, Outcome::retry("again")).await;
    bed.pass(seconds(3_600));
    assert_eq!(come(&bed, &queue, emitted.len()).await, emitted);
}

async fn what_is_given_back_keeps_its_place_among_failures(bed: Bed) {
    let queue = line(&bed).await;
    let emitted = emit_to(&bed, &["orders"; 150]).await;
    queue.settle(&queue.claim(150).await, Outcome::retry("no")).await;
    bed.pass(seconds(3_600));
    queue.release(&queue.claim(20).await).await;
    assert_eq!(come(&bed, &queue, emitted.len()).await, emitted);
}

/// Three of six events were delayed. The others are taken.
async fn some_delayed(bed: &Bed) -> (Queue, Vec<EventId>, Claimed) {
    let queue = line(bed).await;
    let delayed = || plain_event().delay(seconds(1));
    let unit = vec![plain_event(), plain_event(), delayed(), delayed(), delayed(), plain_event()];
    let emitted: Vec<EventId> = bed.emit_together(unit).await.iter().map(|event| event.id).collect();
    let batch = queue.claim(3).await;
    assert_eq!(ids(&batch), [emitted[0], emitted[1], emitted[5]]);
    (queue, emitted, batch)
}

/// The same batch comes again, and then what was delayed.
async fn comes_again(queue: &Queue, emitted: &[EventId], batch: &Claimed) {
    let again = queue.claim(3).await;
    assert_eq!(ids(&again), ids(batch));
    assert!(queue.done(&again).await);
    assert_eq!(queue.drain().await, emitted[2..5]);
}

/// What was due by then came first, and filled the next batch.
async fn what_waited_does_not_pass_a_batch_that_failed(bed: Bed) {
    let (queue, emitted, batch) = some_delayed(&bed).await;
    queue.settle(&batch, Outcome::retry("no")).await;
    bed.pass(seconds(60));
    comes_again(&queue, &emitted, &batch).await;
}

async fn what_waited_does_not_pass_a_batch_that_was_given_back(bed: Bed) {
    let (queue, emitted, batch) = some_delayed(&bed).await;
    bed.pass(seconds(1));
    queue.release(&batch).await;
    comes_again(&queue, &emitted, &batch).await;
}

async fn what_waited_does_not_pass_a_batch_whose_lease_has_ended(bed: Bed) {
    let (queue, emitted, batch) = some_delayed(&bed).await;
    bed.pass(LEASE);
    comes_again(&queue, &emitted, &batch).await;
}

async fn what_waited_comes_before_what_arrived_after_it(bed: Bed) {
    let (queue, mut emitted, batch) = some_delayed(&bed).await;
    queue.done(&batch).await;
    bed.pass(seconds(1));
    emitted.extend(emit_to(&bed, &["users", "orders"]).await);
    assert_eq!(come(&bed, &queue, 5).await, [&emitted[2..5], &emitted[6..]].concat());
}

/// The first events fail, each for so long.
async fn fail(queue: &Queue, delays: &[u64]) {
    let claimed = queue.claim(delays.len() as u32).await;
    let later = |(id, delay): (EventId, &u64)| (id, Outcome::Snooze { delay: seconds(*delay) });
    let outcomes: Vec<_> = ids(&claimed).into_iter().zip(delays).map(later).collect();
    assert!(queue.settle_each(&claimed, &outcomes).await.iter().all(|taken| *taken));
}

const MONTH: u64 = 30 * 86_400;

/// The line stood still until the event would have been due.
async fn a_cancelled_failure_lets_the_line_go_on(bed: Bed) {
    let queue = line(&bed).await;
    let emitted = emit_to(&bed, &["orders", "users", "refunds"]).await;
    fail(&queue, &[MONTH]).await;
    assert_eq!(bed.cancel(emitted[0]).await, 1);
    assert_eq!(queue.drain().await, emitted[1..]);
}

async fn a_line_goes_on_waiting_for_what_failed_and_is_left(bed: Bed) {
    let queue = line(&bed).await;
    let emitted = bed.emit_together(vec![plain_event(); 5]).await;
    let emitted: Vec<EventId> = emitted.iter().map(|event| event.id).collect();
    fail(&queue, &[10, MONTH, 20, MONTH]).await;
    for id in [emitted[1], emitted[3]] {
        assert!(ids(&queue.claim(9).await).is_empty());
        assert_eq!(bed.cancel(id).await, 1);
    }
    let halted = queue.claim(9).await;
    assert_eq!((ids(&halted), halted.next_due), (vec![], Some(bed.time().after(seconds(20)))));
    bed.pass(seconds(20));
    assert_eq!(come(&bed, &queue, 3).await, [emitted[0], emitted[2], emitted[4]]);
}

async fn a_replaced_failure_lets_the_line_go_on(bed: Bed) {
    let queue = line(&bed).await;
    let replacing = || plain_event().unique(tramline::Unique::new("u").replacing());
    bed.emit(replacing()).await;
    let next = bed.emit(plain_event()).await;
    fail(&queue, &[MONTH]).await;
    let new = bed.emit(replacing()).await;
    assert_eq!(queue.drain().await, [next, new]);
}

async fn a_failure_that_is_shed_lets_the_line_go_on(bed: Bed) {
    let queue = line(&bed).await;
    let emitted = emit_to(&bed, &["orders", "users"]).await;
    fail(&queue, &[MONTH]).await;
    let shed = Shed {
        surplus: Surplus::Work { include_pull: false },
        after: EventId(0),
        limit: 1,
        bytes: u64::MAX,
        now: bed.now(),
    };
    assert_eq!(bed.store.shed(shed).await.unwrap().dropped, Some((queue.id, 1)));
    assert_eq!(queue.drain().await, emitted[1..]);
}

async fn leaving_a_topic_takes_its_failures_out_of_the_way(bed: Bed) {
    if lines_have_one_topic(&bed).await {
        return;
    }
    let queue = line(&bed).await;
    let emitted = emit_to(&bed, &["users", "orders", "refunds"]).await;
    fail(&queue, &[MONTH, 20]).await;
    bed.queue_named("queue", &["orders", "refunds"], arrival()).await;
    assert!(ids(&queue.claim(9).await).is_empty());
    assert_eq!(queue.claim(9).await.next_due, Some(bed.time().after(seconds(20))));
    bed.pass(seconds(20));
    assert_eq!(come(&bed, &queue, 2).await, emitted[1..]);
}

async fn a_released_line_goes_on_with_what_failed(bed: Bed) {
    let queue = line(&bed).await;
    let emitted = emit_to(&bed, &["orders"; 150]).await;
    assert_eq!(queue.release_parked(&[]).await, 0);
    fail(&queue, &[[MONTH; 60], [20; 60]].concat()).await;
    assert_eq!(queue.release_parked(&[]).await, 120);
    assert_eq!(come(&bed, &queue, emitted.len()).await, emitted);
    assert_eq!(queue.release_parked(&[]).await, 0);
}

/// All that comes, in this order.
async fn come(bed: &Bed, queue: &Queue, count: usize) -> Vec<EventId> {
    let mut come = Vec::new();
    while come.len() < count {
        let claimed = queue.claim(100).await;
        assert!(!claimed.slices.is_empty() || claimed.next_due == bed.now());
        come.extend(ids(&claimed));
        assert!(queue.done(&claimed).await);
    }
    come
}

async fn an_event_that_is_out_of_attempts_stops_nobody(bed: Bed) {
    for (on_exhausted, left) in [(OnExhausted::Dead, 1), (OnExhausted::Drop, 0)] {
        let policy = Policy { retry: Retry::never(), on_exhausted, ..arrival() };
        let queue = line_of(&bed, policy).await;
        let emitted = emit_to(&bed, &["orders", "users"]).await;
        let claimed = queue.claim(1).await;
        queue.settle(&claimed, Outcome::retry("no")).await;
        assert_eq!(queue.drain().await, emitted[1..]);
        assert_eq!(queue.dead_ids().await.len(), left);
        bed.store.delete_subscription("queue").await.unwrap();
    }
}

/// A sender that ends with a batch in hand did not end because of it.
async fn an_expired_lease_is_no_crash(bed: Bed) {
    for policy in [arrival(), Policy { ordering: Ordering::Key, ..arrival() }, pushed()] {
        let queue = bed.queue_named("queue", &[TOPIC], policy).await;
        let emitted = bed.emit_together(vec![keyed("a"), keyed("a"), keyed("a")]).await;
        for _ in 0..5 {
            let claimed = queue.claim_by(BERT, 9).await;
            assert_eq!(ids(&claimed), emitted.iter().map(|event| event.id).collect::<Vec<_>>());
            assert!(claimed.slices.iter().all(|slice| slice.crashes == 0 && slice.attempts == 0));
            bed.pass(LEASE);
        }
        let again = queue.take(Claim { suspects: Suspects::Leave, ..queue.wish(9) }).await;
        assert!(!again.suspects_wait && ids(&again).len() == 3);
        bed.store.delete_subscription("queue").await.unwrap();
    }
}

async fn a_batch_that_is_given_back_comes_again_whole(bed: Bed) {
    let queue = line(&bed).await;
    let emitted = emit_to(&bed, &["orders", "users", "orders"]).await;
    let claimed = queue.claim(2).await;
    assert_ne!(queue.release(&claimed).await, 0);
    assert_eq!(queue.drain().await, emitted);
}

async fn a_backfill_of_several_topics_keeps_the_order(bed: Bed) {
    if lines_have_one_topic(&bed).await {
        return;
    }
    let mut emitted = Vec::new();
    for _ in 0..70 {
        emitted.extend(emit_to(&bed, &["users", "orders", "refunds"]).await);
    }
    let made = bed.subscribe("queue", &TOPICS, arrival(), Start::Beginning).await.unwrap();
    let queue = Queue { bed: bed.clone(), id: made.id };
    emitted.extend(emit_to(&bed, &["refunds", "users"]).await);
    let mut seen = Vec::new();
    while bed.store.backfill(queue.id).await.unwrap() {
        seen.extend(queue.drain().await);
    }
    seen.extend(queue.drain().await);
    assert_eq!(seen, emitted);
}

async fn a_topic_that_joins_brings_events_from_before_what_was_done(bed: Bed) {
    if lines_have_one_topic(&bed).await {
        return;
    }
    let old = bed.emit(Event::new("refunds", "x")).await;
    let queue = bed.queue(arrival()).await;
    for _ in 0..3 {
        bed.pass(seconds(1));
        let new = bed.emit(plain_event()).await;
        assert_eq!(queue.drain().await, [new]);
    }
    bed.subscribe("queue", &[TOPIC, "refunds"], arrival(), Start::Beginning).await.unwrap();
    queue.backfill().await;
    assert_eq!(queue.drain().await, [old]);
}

async fn leaving_a_topic_takes_its_events_out_of_the_line(bed: Bed) {
    if lines_have_one_topic(&bed).await {
        return;
    }
    let queue = line(&bed).await;
    let emitted = emit_to(&bed, &["orders", "users", "refunds", "users"]).await;
    bed.queue_named("queue", &["orders", "refunds"], arrival()).await;
    let later = emit_to(&bed, &["users", "orders"]).await;
    assert_eq!(queue.drain().await, [emitted[0], emitted[2], later[1]]);
}

/// What was under way of the topic is gone; nobody waits for its lease to end.
async fn leaving_a_topic_frees_the_line(bed: Bed) {
    if lines_have_one_topic(&bed).await {
        return;
    }
    let queue = line(&bed).await;
    let emitted = emit_to(&bed, &["users", "orders", "refunds"]).await;
    let claimed = queue.claim(2).await;
    bed.queue_named("queue", &["orders", "refunds"], arrival()).await;
    assert!(ids(&queue.claim_by(BERT, 9).await).is_empty());
    let outcomes = [(emitted[0], Outcome::Done), (emitted[1], Outcome::Done)];
    assert_eq!(queue.settle_each(&claimed, &outcomes).await, [false, true]);
    assert_eq!(ids(&queue.claim_by(BERT, 9).await), [emitted[2]]);
}

async fn a_topic_joins_the_line_later(bed: Bed) {
    if lines_have_one_topic(&bed).await {
        return;
    }
    let queue = bed.queue_named("queue", &["orders"], arrival()).await;
    let old = emit_to(&bed, &["users", "orders"]).await;
    bed.subscribe("queue", &["orders", "users"], arrival(), Start::Beginning).await.unwrap();
    let new = emit_to(&bed, &["orders", "users"]).await;
    queue.backfill().await;
    assert_eq!(queue.drain().await, [old, new].concat());
}

async fn keys_mean_nothing_in_the_line(bed: Bed) {
    let queue = line(&bed).await;
    let emitted = bed.emit_keys(&["a", "b", "a"]).await;
    let claimed = queue.claim(9).await;
    let outcomes =
        [(emitted[0], Outcome::retry("no")), (emitted[1], Outcome::Done), (emitted[2], Outcome::Done)];
    assert_eq!(queue.settle_each(&claimed, &outcomes).await, [true; 3], "the batch was sent as a whole");
    assert!(queue.parked().await.is_empty());
    assert_eq!(bed.cancel(emitted[0]).await, 1);
    let next = bed.emit(keyed("a")).await;
    bed.pass(seconds(60));
    let claimed = queue.claim(9).await;
    assert_eq!((ids(&claimed), skipped(&claimed, next)), (vec![next], vec![]));
}
