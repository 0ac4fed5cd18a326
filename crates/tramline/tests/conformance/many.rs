//! More at once than one step of a store takes: what a store does in parts looks like one step to whoever asked.

use crate::bed::*;

/// More than two steps of any store.
const MANY: usize = 450;

conformance! {
    a_settlement_that_is_refused_changes_nothing_however_large,
    many_failures_are_settled_together,
    many_leases_are_extended_and_given_back_together,
    what_is_given_back_by_the_hundreds_comes_again_in_order,
    many_dead_events_are_replayed_by_their_numbers,
    many_events_are_resent,
    many_keys_that_are_named_go_on,
    a_large_group_of_emits_keeps_the_chains_of_its_keys,
    a_backfill_of_many_lanes_misses_nothing,
}

/// Events of so many keys, each in a row of its own, all of them claimed.
async fn claimed(queue: &Queue, keys: usize) -> Claimed {
    for number in 0..MANY {
        queue.bed.emit(keyed(&format!("key-{}", number % keys))).await;
    }
    claim_all(queue).await
}

async fn claim_all(queue: &Queue) -> Claimed {
    let mut all = queue.claim(MANY as u32).await;
    loop {
        let more = queue.claim(MANY as u32).await;
        if more.slices.is_empty() {
            return all;
        }
        all.slices.extend(more.slices);
    }
}

async fn a_settlement_that_is_refused_changes_nothing_however_large(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let claimed = claimed(&queue, MANY - 1).await;
    // The key of the first event has one more, the last one.
    let events: Vec<EventId> = sorted_ids(&claimed);
    let mut outcomes: Vec<(EventId, Outcome)> = events.iter().map(|id| (*id, Outcome::Done)).collect();
    outcomes[0].1 = Outcome::retry("not yet");
    assert_eq!(queue.try_settle(&claimed, &outcomes).await.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(queue.counts().await.leased, MANY as u64);
    assert!(queue.done(&claimed).await);
    assert_eq!(queue.counts().await, Counts::default());
}

async fn many_failures_are_settled_together(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let claimed = claimed(&queue, MANY).await;
        assert!(queue.settle(&claimed, Outcome::retry("not yet")).await, "{name}");
        assert!(queue.claim(1).await.slices.is_empty(), "{name}");
        bed.pass(seconds(3_600));
        let again = claim_all(&queue).await;
        assert_eq!(sorted_ids(&again), sorted_ids(&claimed), "{name}");
        assert!(again.slices.iter().all(|slice| slice.attempts == 1), "{name}");
        assert!(queue.settle(&again, Outcome::dead("no")).await, "{name}");
        assert_eq!(queue.counts().await, Counts { dead: MANY as u64, ..Counts::default() }, "{name}");
        bed.store.delete_subscription(name).await.unwrap();
    }
}

async fn many_leases_are_extended_and_given_back_together(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let claimed = claimed(&queue, MANY).await;
        bed.pass(seconds(5));
        let extended = queue.extend(&claimed).await;
        assert_eq!(extended.len(), claimed.slices.len(), "{name}");
        assert!(extended.iter().all(|extended| matches!(extended, Extended::Until(_))), "{name}");
        assert_eq!(queue.release(&claimed).await, claimed.slices.len() as u64, "{name}");
        assert_eq!(queue.release(&claimed).await, 0, "{name}");
        let lost = queue.extend(&claimed).await;
        assert!(lost.iter().all(|extended| *extended == Extended::Lost), "{name}");
        assert_eq!(queue.counts().await, Counts { ready: MANY as u64, ..Counts::default() }, "{name}");
        assert_eq!(sorted(queue.drain().await), sorted_ids(&claimed), "{name}");
        bed.store.delete_subscription(name).await.unwrap();
    }
}

async fn what_is_given_back_by_the_hundreds_comes_again_in_order(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let claimed = claimed(&queue, 2).await;
    queue.release(&claimed).await;
    let mut last = [EventId(0); 2];
    loop {
        let again = queue.claim(64).await;
        if again.slices.is_empty() {
            break;
        }
        for event in again.slices.iter().flat_map(|slice| &slice.events) {
            let of_key = &mut last[usize::from(event.event.key.as_deref() == Some("key-1"))];
            assert_eq!(event.event.prev.unwrap_or_default(), *of_key);
            *of_key = event.event.id;
        }
        queue.done(&again).await;
    }
    assert_eq!(last.iter().max(), sorted_ids(&claimed).last());
}

async fn many_dead_events_are_replayed_by_their_numbers(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let claimed = claimed(&queue, MANY).await;
    let all = sorted_ids(&claimed);
    queue.settle(&claimed, Outcome::dead("no")).await;
    let (some, rest) = all.split_at(MANY - 10);
    assert_eq!(queue.replay(Which::Ids(some.to_vec())).await, some.len() as u64);
    assert_eq!(queue.dead_ids().await, rest);
    assert_eq!(sorted(queue.drain().await), some);
}

async fn many_events_are_resent(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let claimed = claimed(&queue, MANY).await;
    queue.done(&claimed).await;
    let all = sorted_ids(&claimed);
    assert_eq!(queue.resend(&all).await, MANY as u64);
    assert_eq!(queue.resend(&all).await, 0);
    assert_eq!(sorted(queue.drain().await), all);
}

async fn many_keys_that_are_named_go_on(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let claimed = claimed(&queue, MANY).await;
    queue.settle(&claimed, Outcome::retry("not yet")).await;
    let keys: Vec<String> = (0..MANY).map(|number| format!("key-{number}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert_eq!(queue.release_parked(&keys).await, MANY as u64);
    assert_eq!(sorted(queue.drain().await), sorted_ids(&claimed));
}

async fn a_large_group_of_emits_keeps_the_chains_of_its_keys(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let keys = 3;
    let units: Vec<Vec<Event>> =
        (0..2_500).map(|number| vec![keyed(&format!("key-{}", number % keys))]).collect();
    let emitted: Vec<_> =
        bed.emit_units(units).await.into_iter().map(|unit| unit.unwrap().events.remove(0)).collect();
    for (at, event) in emitted.iter().enumerate() {
        assert_eq!(event.prev, at.checked_sub(keys).map(|before| emitted[before].id), "event {at}");
    }
    let all: Vec<EventId> = emitted.iter().map(|event| event.id).collect();
    assert_eq!(sorted(queue.drain().await), sorted(all));
}

async fn a_backfill_of_many_lanes_misses_nothing(bed: Bed) {
    let mut all = Vec::new();
    for _ in 0..5 {
        let events = (0..512).map(|number| keyed(&format!("key-{number}"))).collect();
        all.extend(bed.emit_together(events).await.into_iter().map(|event| event.id));
    }
    let queue = bed.queue_from(Start::Beginning, ordered()).await;
    queue.backfill().await;
    assert_eq!(sorted(queue.drain().await), all);
}
