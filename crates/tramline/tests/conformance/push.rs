//! What has gathered for a batch, how the sending of a subscription stands, and what was tried.

use crate::bed::*;
use std::time::Duration;
use tramline::model::health::{Attempt, Verdict};

conformance![
    what_gathers_is_counted_since_its_first_event,
    what_is_not_due_does_not_gather_and_says_when,
    what_was_tried_or_replayed_has_gathered_already,
    what_is_under_way_does_not_gather_until_its_lease_ends,
    keys_gather_together_and_a_parked_one_does_not,
    in_the_order_of_arrival_nothing_gathers_behind_a_batch_under_way,
    the_board_says_where_something_is_due,
    attempts_change_how_a_subscription_stands,
    attempts_are_listed_from_the_newest_and_only_the_last_are_kept,
    a_subscription_is_disabled_and_enabled_by_somebodys_will,
    that_failures_disabled_it_is_remembered_until_it_was_told,
    pull_subscriptions_are_not_on_the_board,
];

const MANY: u32 = 1_000;

async fn gather(queue: &Queue) -> Gathered {
    let bed = &queue.bed;
    bed.store.gather(Gather { subscription: queue.id, events: MANY, now: bed.now() }).await.unwrap()
}

fn attempt(bed: &Bed, verdict: Verdict) -> Attempt {
    Attempt {
        at: bed.time(),
        first: EventId(64),
        last: EventId(66),
        events: 3,
        acknowledged: if verdict == Verdict::Delivered { 3 } else { 0 },
        verdict,
        status: Some(if verdict == Verdict::Delivered { 200 } else { 500 }),
        latency: Duration::from_millis(7),
        excerpt: "what it said".to_owned(),
        retry_after: None,
    }
}

async fn record(queue: &Queue, attempts: Vec<Attempt>) -> Recorded {
    let bed = &queue.bed;
    let counted = Sent::default();
    let record = RecordPush { subscription: queue.id, attempts, counted, now: bed.now() };
    bed.store.record_push(record).await.unwrap()
}

async fn what_gathers_is_counted_since_its_first_event(bed: Bed) {
    let queue = bed.queue(pushed()).await;
    assert_eq!(gather(&queue).await, Gathered { now: bed.time(), ..Gathered::default() });
    let began = bed.time();
    bed.emit_plain(70).await;
    bed.pass(seconds(3));
    bed.emit_plain(2).await;
    let gathered = gather(&queue).await;
    assert_eq!((gathered.events, gathered.since, gathered.again), (72, Some(began), false));
    assert_eq!(gathered.now, bed.time());
}

async fn what_is_not_due_does_not_gather_and_says_when(bed: Bed) {
    for policy in [pushed(), Policy { ordering: Ordering::Key, ..pushed() }] {
        let queue = bed.queue_named(&format!("{:?}", policy.ordering), &[TOPIC], policy).await;
        bed.emit(keyed("later").delay(seconds(30))).await;
        queue.claim(10).await;
        let gathered = gather(&queue).await;
        let due = bed.time().after(seconds(30));
        assert_eq!((gathered.events, gathered.since, gathered.next_due), (0, None, Some(due)));
        bed.pass(seconds(30));
        assert_eq!(gather(&queue).await.events, 1);
        queue.drain().await;
    }
}

async fn what_was_tried_or_replayed_has_gathered_already(bed: Bed) {
    let queue = bed.queue(Policy { retry: Retry::constant(2, seconds(60)), ..pushed() }).await;
    bed.emit_plain(1).await;
    queue.settle(&queue.claim(10).await, Outcome::retry("no")).await;
    assert_eq!(gather(&queue).await.since, None);
    bed.pass(seconds(60));
    let again = gather(&queue).await;
    assert_eq!((again.events, again.again), (1, true));
    queue.settle(&queue.claim(10).await, Outcome::retry("no")).await;
    assert_eq!(queue.replay(Which::All).await, 1);
    let replayed = gather(&queue).await;
    assert_eq!((replayed.events, replayed.again), (1, true));
}

async fn what_is_under_way_does_not_gather_until_its_lease_ends(bed: Bed) {
    for policy in [pushed(), Policy { ordering: Ordering::Key, ..pushed() }, arrival()] {
        let queue = bed.queue_named(&format!("{:?}", policy.ordering), &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        assert_eq!(sorted_ids(&queue.claim(10).await).len(), 1);
        assert_eq!(gather(&queue).await.since, None, "it is under way");
        bed.pass(seconds(61));
        let gathered = gather(&queue).await;
        assert!(gathered.since.is_some() && gathered.again, "somebody has to see to it: {gathered:?}");
        queue.drain().await;
    }
}

async fn keys_gather_together_and_a_parked_one_does_not(bed: Bed) {
    let queue = bed.queue(Policy { ordering: Ordering::Key, ..pushed() }).await;
    bed.emit_keys(&["a", "b"]).await;
    let claimed = queue.claim(10).await;
    let outcomes: Vec<(EventId, Outcome)> = ids(&claimed)
        .into_iter()
        .enumerate()
        .map(|(at, id)| (id, if at == 0 { Outcome::retry("no") } else { Outcome::Done }))
        .collect();
    queue.settle_each(&claimed, &outcomes).await;
    queue.release(&claimed).await;
    bed.emit_keys(&["a", "b", "c"]).await;
    // What is behind a failed event of its key is set aside when a claim meets it.
    let claimed = queue.claim(10).await;
    assert_eq!(ids(&claimed).len(), 2);
    queue.release(&claimed).await;
    assert_eq!(gather(&queue).await.events, 2);
}

async fn in_the_order_of_arrival_nothing_gathers_behind_a_batch_under_way(bed: Bed) {
    let queue = bed.queue(arrival()).await;
    bed.emit_plain(3).await;
    let claimed = queue.claim(1).await;
    assert_eq!(gather(&queue).await.since, None);
    queue.done(&claimed).await;
    queue.release(&claimed).await;
    assert_eq!(gather(&queue).await.events, 2);
}

async fn the_board_says_where_something_is_due(bed: Bed) {
    let queue = bed.queue(pushed()).await;
    let due = async || {
        let board = bed.store.push_board(bed.now()).await.unwrap();
        assert_eq!(board.len(), 1);
        assert_eq!(board[0].subscription.id, queue.id);
        board[0].due
    };
    assert!(!due().await);
    bed.emit(plain_event().delay(seconds(10))).await;
    assert!(!due().await, "not yet");
    bed.pass(seconds(10));
    assert!(due().await);
    let claimed = queue.claim(10).await;
    assert!(!due().await, "it is under way");
    queue.done(&claimed).await;
    assert!(!due().await);
    bed.emit_plain(1).await;
    record(&queue, vec![attempt(&bed, Verdict::Failed)]).await;
    assert!(!due().await, "it is left alone for a while");
}

async fn attempts_change_how_a_subscription_stands(bed: Bed) {
    let queue = bed.queue(pushed()).await;
    let together = vec![attempt(&bed, Verdict::Failed); 2];
    let first = record(&queue, together).await.health;
    assert_eq!((first.failures, first.failed), (1, 2), "requests that failed together are one failure");
    bed.pass(seconds(1));
    let failed = record(&queue, vec![attempt(&bed, Verdict::Failed)]).await;
    assert_eq!((failed.health.failures, failed.health.failed, failed.disabled_now), (2, 3, false));
    assert!(failed.health.put_off_until > bed.time());
    let counted = Sent { events: 200, batches: 2 };
    let attempts = vec![attempt(&bed, Verdict::Delivered)];
    let record_push = RecordPush { subscription: queue.id, attempts, counted, now: bed.now() };
    let better = bed.store.record_push(record_push).await.unwrap().health;
    assert_eq!((better.failures, better.sent, better.batches), (0, 203, 3));
    let gone = record(&queue, vec![attempt(&bed, Verdict::Gone)]).await;
    assert!(gone.disabled_now && gone.health.disabled.is_some());
    let still = record(&queue, vec![attempt(&bed, Verdict::Gone)]).await;
    assert!(!still.disabled_now, "it is told once");
    let board = bed.store.push_board(bed.now()).await.unwrap();
    assert_eq!(board[0].health, still.health);
}

async fn attempts_are_listed_from_the_newest_and_only_the_last_are_kept(bed: Bed) {
    let queue = bed.queue(pushed()).await;
    let list = async |before: i64, limit: u32| {
        let list = ListAttempts { subscription: queue.id, before, limit };
        bed.store.attempts(list).await.unwrap()
    };
    for _ in 0..3 {
        let few = ATTEMPTS_KEPT / 2;
        record(&queue, vec![attempt(&bed, Verdict::Delivered); few]).await;
    }
    let last = attempt(&bed, Verdict::Failed);
    record(&queue, vec![last.clone()]).await;
    let all = list(i64::MAX, 1_000).await;
    assert_eq!(all.len(), ATTEMPTS_KEPT);
    assert_eq!(all[0].attempt, last);
    assert!(all.is_sorted_by(|a, b| a.number > b.number));
    let page = list(all[1].number, 2).await;
    assert_eq!(page, all[2..4]);
}

async fn a_subscription_is_disabled_and_enabled_by_somebodys_will(bed: Bed) {
    let queue = bed.queue(pushed()).await;
    let steer = async |steer: Steer| {
        let steer = SteerPush { subscription: queue.id, steer, by: "ada".to_owned(), now: bed.now() };
        bed.store.steer_push(steer).await.unwrap()
    };
    record(&queue, vec![attempt(&bed, Verdict::Failed)]).await;
    let disabled = steer(Steer::Disable { reason: "moving".to_owned() }).await.disabled.unwrap();
    assert_eq!(disabled.at, bed.time());
    assert!(disabled.reason.contains("moving"), "{disabled:?}");
    let enabled = steer(Steer::Enable).await;
    assert_eq!((enabled.disabled, enabled.failures), (None, 0));
    assert!(enabled.put_off_until <= bed.time(), "it is tried at once");
    let agreed = steer(Steer::Agreed { callback: "https://example.org/hook".to_owned() }).await;
    assert_eq!(agreed.agreed.as_deref(), Some("https://example.org/hook"));
}

/// The event that tells it was emitted after the attempts were written. Whoever died in between told nobody.
async fn that_failures_disabled_it_is_remembered_until_it_was_told(bed: Bed) {
    let queue = bed.queue(pushed()).await;
    let gone = record(&queue, vec![attempt(&bed, Verdict::Gone)]).await.health;
    let at = gone.disabled.unwrap().at;
    let told = async |at: Time| {
        let steer = Steer::Told { at };
        let steer = SteerPush { subscription: queue.id, steer, by: "a node".to_owned(), now: bed.now() };
        bed.store.steer_push(steer).await.unwrap().is_untold
    };
    assert!(bed.store.push_board(bed.now()).await.unwrap()[0].health.is_untold);
    assert!(told(at.after(seconds(1))).await, "that was another time");
    assert!(!told(at).await);
    assert!(!bed.store.push_board(bed.now()).await.unwrap()[0].health.is_untold);
    assert_eq!(bed.store.audit(queue.id, 10).await.unwrap(), [], "nobody's will");
}

async fn pull_subscriptions_are_not_on_the_board(bed: Bed) {
    bed.queue(unordered()).await;
    assert_eq!(bed.store.push_board(bed.now()).await.unwrap(), []);
    let queue = bed.queue_named("pushed", &[TOPIC], pushed()).await;
    let board = bed.store.push_board(bed.now()).await.unwrap();
    assert_eq!(board.iter().map(|entry| entry.subscription.id).collect::<Vec<_>>(), [queue.id]);
}
