//! Dead events: chosen by what they are, brought back at a rate, kept for a time.

use crate::bed::*;

conformance![
    dead_events_are_chosen_by_topic_type_and_key,
    dead_events_are_chosen_by_their_last_error,
    dead_events_are_chosen_by_the_time_of_their_death,
    all_conditions_have_to_hold,
    what_is_not_chosen_stays,
    more_dead_events_than_one_step_takes_are_all_replayed,
    a_replay_at_a_rate_gives_every_event_a_time_of_its_own,
    a_rate_holds_over_many_steps,
    a_replay_at_a_rate_does_not_stop_its_key,
    held_events_come_back_at_a_rate_in_their_order,
    dead_events_are_kept_unless_somebody_says_how_long,
    dead_events_go_when_their_time_is_over,
    what_expired_is_recorded_and_counted,
    held_events_do_not_expire,
    items_of_tallies_that_expire_have_failed,
    old_dead_events_go_in_bounded_steps,
    the_oldest_dead_event_is_told,
];

fn those() -> Letters {
    Letters::default()
}

/// Emits an event and lets it die.
async fn kill(queue: &Queue, event: Event, error: &str) -> EventId {
    let id = queue.bed.emit(event).await;
    let claimed = queue.claim(1).await;
    assert_eq!(ids(&claimed), [id]);
    assert!(queue.settle(&claimed, Outcome::dead(error)).await);
    id
}

/// Lets many die, and gives them in order.
async fn kill_many(queue: &Queue, count: usize) -> Vec<EventId> {
    let mut emitted = Vec::new();
    while emitted.len() < count {
        emitted.extend(queue.bed.emit_plain((count - emitted.len()).min(100)).await);
    }
    loop {
        let claimed = queue.claim(1_000).await;
        if ids(&claimed).is_empty() {
            return emitted;
        }
        // One by one, so that each is a row of its own.
        let outcome = |id: &EventId| (*id, Outcome::dead(format!("error {id}")));
        let outcomes: Vec<(EventId, Outcome)> = ids(&claimed).iter().map(outcome).collect();
        queue.settle_each(&claimed, &outcomes).await;
    }
}

async fn dead_events_are_chosen_by_topic_type_and_key(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC, "other"], policy).await;
        let paid = kill(&queue, keyed("a").kind("order.paid"), "no").await;
        let sent = kill(&queue, keyed("b").kind("order.sent"), "no").await;
        let other = kill(&queue, Event::new("other", "{}").key("a"), "no").await;
        let drop = async |letters: Letters| queue.drop_dead(Which::Those(letters)).await;
        assert_eq!(drop(Letters { topic: Some("nowhere".into()), ..those() }).await, 0, "{name}");
        assert_eq!(drop(Letters { topic: Some("other".into()), ..those() }).await, 1, "{name}");
        assert_eq!(queue.dead_ids().await, [paid, sent], "{name}");
        assert_eq!(queue.status(other).await, Status::Settled, "{name}");
        assert_eq!(drop(Letters { kind: Some("order.sent".into()), ..those() }).await, 1, "{name}");
        assert_eq!(drop(Letters { key: Some("b".into()), ..those() }).await, 0, "{name}");
        assert_eq!(drop(Letters { key: Some("a".into()), ..those() }).await, 1, "{name}");
    }
}

async fn dead_events_are_chosen_by_their_last_error(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let timeout = kill(&queue, plain_event(), "HTTP 504: timeout").await;
    let refused = kill(&queue, plain_event(), "refused by HTTP").await;
    let prefix = Letters { error_prefix: Some("HTTP".into()), ..those() };
    assert_eq!(queue.replay(Which::Those(prefix)).await, 1);
    assert_eq!(queue.drain().await, [timeout]);
    let part = Letters { error: Some("HTTP".into()), ..those() };
    assert_eq!(queue.replay(Which::Those(part)).await, 1);
    assert_eq!(queue.drain().await, [refused]);
}

async fn dead_events_are_chosen_by_the_time_of_their_death(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let mut killed = Vec::new();
    for _ in 0..4 {
        killed.push(kill(&queue, plain_event(), "no").await);
        bed.pass(seconds(10));
    }
    let (since, until) = (bed.time().before(seconds(30)), bed.time().before(seconds(10)));
    let between = Letters { since: Some(since), until: Some(until), ..those() };
    assert_eq!(queue.drop_dead(Which::Those(between)).await, 2);
    assert_eq!(queue.dead_ids().await, [killed[0], killed[3]]);
}

async fn all_conditions_have_to_hold(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    kill(&queue, keyed("a").kind("x"), "first").await;
    kill(&queue, keyed("a").kind("y"), "second").await;
    let id = kill(&queue, keyed("a").kind("x"), "second").await;
    let both =
        Letters { kind: Some("x".into()), error: Some("sec".into()), key: Some("a".into()), ..those() };
    assert_eq!(queue.replay(Which::Those(both)).await, 1);
    assert_eq!(queue.drain().await, [id]);
}

/// Events that died together are one row.
async fn what_is_not_chosen_stays(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let kinds = (0..64).map(|n| plain_event().kind(if n % 2 == 0 { "even" } else { "odd" }));
    let emitted = bed.emit_together(kinds.collect()).await;
    queue.settle(&queue.claim(64).await, Outcome::dead("no")).await;
    let odd = Letters { kind: Some("odd".into()), ..those() };
    assert_eq!(queue.replay(Which::Those(odd)).await, 32);
    let even: Vec<EventId> = emitted.iter().step_by(2).map(|event| event.id).collect();
    assert_eq!(queue.dead_ids().await, even);
    assert_eq!(queue.drain().await.len(), 32);
}

async fn more_dead_events_than_one_step_takes_are_all_replayed(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let emitted = kill_many(&queue, 1_200).await;
    assert_eq!(queue.counts().await.dead, 1_200);
    let nothing = Letters { error: Some("is not there".into()), ..those() };
    assert_eq!(queue.replay(Which::Those(nothing)).await, 0);
    assert_eq!(queue.replay(Which::All).await, 1_200);
    assert_eq!(sorted(queue.drain().await), emitted);
}

async fn a_replay_at_a_rate_gives_every_event_a_time_of_its_own(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit_keys(&["a", "a", "b", "b", "c"]).await;
        queue.settle(&queue.claim(10).await, Outcome::dead("no")).await;
        while !ids(&queue.claim(10).await).is_empty() {}
        let dead = queue.counts().await.dead;
        assert_eq!(queue.stagger(Which::All, Pace { events: 1, per: seconds(10) }).await, dead, "{name}");
        for _ in 0..dead {
            let claimed = queue.claim(10).await;
            assert_eq!((ids(&claimed).len(), claimed.slices[0].replayed), (1, true), "{name}");
            queue.done(&claimed).await;
            let next = queue.claim(10).await;
            assert!(ids(&next).is_empty(), "{name}");
            bed.pass(next.next_due.map_or(seconds(1), |due| due.since(bed.time())));
        }
        assert_eq!(queue.counts().await, Counts::default(), "{name}");
    }
}

async fn a_rate_holds_over_many_steps(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    kill_many(&queue, 1_100).await;
    assert_eq!(queue.stagger(Which::All, Pace { events: 100, per: seconds(1) }).await, 1_100);
    let mut seconds_taken = 0;
    let mut left = 1_100;
    while left > 0 {
        let ready = queue.claim(2_000).await;
        let count = ids(&ready).len();
        assert!(count <= 100, "{count} at once");
        left -= count;
        queue.done(&ready).await;
        bed.pass(seconds(1));
        seconds_taken += 1;
    }
    assert_eq!(seconds_taken, 12, "the first one at once, the last one before the eleventh second ends");
}

async fn a_replay_at_a_rate_does_not_stop_its_key(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a", "a"]).await;
    for _ in 0..2 {
        queue.settle(&queue.claim(1).await, Outcome::dead("no")).await;
    }
    queue.stagger(Which::All, Pace { events: 1, per: seconds(60) }).await;
    assert_eq!(queue.drain().await, [emitted[0], emitted[2]]);
    bed.pass(seconds(60));
    assert_eq!(queue.drain().await, [emitted[1]]);
}

async fn held_events_come_back_at_a_rate_in_their_order(bed: Bed) {
    let queue = bed.lane(ordered_or(OnExhausted::Hold)).await;
    let emitted = bed.emit_keys(&["a", "b", "a", "b"]).await;
    for _ in 0..2 {
        queue.settle(&queue.claim(1).await, Outcome::dead("no")).await;
    }
    assert_eq!(queue.stagger(Which::All, Pace { events: 1, per: seconds(60) }).await, 2);
    assert_eq!(queue.drain().await, [emitted[0], emitted[2]]);
    bed.pass(seconds(60));
    assert_eq!(queue.drain().await, [emitted[1], emitted[3]]);
}

async fn dead_events_are_kept_unless_somebody_says_how_long(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = kill(&queue, plain_event(), "no").await;
    bed.pass(seconds(400 * 24 * 3_600));
    bed.sweep(None).await;
    assert_eq!(queue.dead_ids().await, [id]);
}

fn for_an_hour(policy: Policy) -> Policy {
    Policy { dead_retention: Some(seconds(3_600)), ..policy }
}

async fn dead_events_go_when_their_time_is_over(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], for_an_hour(policy)).await;
        kill(&queue, keyed("a"), "no").await;
        bed.pass(seconds(1_800));
        let later = kill(&queue, keyed("a"), "no").await;
        bed.pass(seconds(1_799));
        bed.sweep(None).await;
        assert_eq!(queue.counts().await.dead, 2, "{name}");
        bed.pass(seconds(1));
        bed.sweep(None).await;
        assert_eq!(queue.dead_ids().await, [later], "{name}");
        bed.pass(seconds(1_800));
        bed.sweep(None).await;
        assert_eq!(queue.counts().await, Counts::default(), "{name}");
    }
}

async fn what_expired_is_recorded_and_counted(bed: Bed) {
    let queue = bed.queue(for_an_hour(unordered())).await;
    let first = kill(&queue, plain_event(), "no").await;
    let last = kill(&queue, plain_event(), "no").await;
    bed.pass(seconds(3_600));
    bed.sweep(None).await;
    let list = ListDrops { subscription: Some(queue.id), after: None, limit: 10 };
    let records = bed.store.drops(list).await.unwrap();
    assert_eq!(records.len(), 1);
    let DropRecord { reason, first: from, last: to, events, .. } = records[0];
    assert_eq!((reason, from, to, events), (DropReason::Expired, first, last, 2));
    assert_eq!(bed.store.drop_totals().await.unwrap()[0].events, 2);
}

async fn held_events_do_not_expire(bed: Bed) {
    let queue = bed.lane(for_an_hour(ordered_or(OnExhausted::Hold))).await;
    let id = kill(&queue, keyed("a"), "no").await;
    bed.pass(seconds(1_000_000));
    bed.sweep(None).await;
    assert_eq!(queue.dead_ids().await, [id]);
}

async fn items_of_tallies_that_expire_have_failed(bed: Bed) {
    let queue = bed.queue(for_an_hour(unordered())).await;
    let tally = bed.open(NewTally::default()).await;
    kill(&queue, plain_event().tally(tally), "no").await;
    bed.pass(seconds(3_600));
    bed.sweep(None).await;
    assert_eq!(queue.counts().await, Counts::default());
    assert_eq!(bed.tallied(tally).await, (1, 0, 1));
}

async fn old_dead_events_go_in_bounded_steps(bed: Bed) {
    let queue = bed.queue(for_an_hour(unordered())).await;
    kill_many(&queue, 130).await;
    bed.pass(seconds(3_600));
    let step = Sweep { dead_after: None, limit: 50, now: bed.now() };
    let mut steps = 0;
    while bed.store.sweep(step.clone()).await.unwrap().more {
        steps += 1;
        assert!(steps < 20);
    }
    assert!(steps >= 1, "one step takes no more than its limit, or its chunks");
    assert_eq!(queue.counts().await, Counts::default());
}

async fn the_oldest_dead_event_is_told(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    assert_eq!(queue.stats().await.oldest_dead_at, None);
    let first = bed.time();
    kill(&queue, plain_event(), "no").await;
    bed.pass(seconds(5));
    kill(&queue, plain_event(), "no").await;
    assert_eq!(queue.stats().await.oldest_dead_at, Some(first));
}
