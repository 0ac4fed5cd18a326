//! Claims that stand in a store until something is emitted. A store need not keep any; then whoever emits has to hint at what waits.

use crate::bed::*;
use std::time::Duration;
use tramline::store::standing::Standing;

conformance![
    a_standing_claim_is_given_what_is_emitted_next,
    a_claim_that_was_taken_back_takes_nothing,
    a_claim_that_was_served_before_it_was_taken_back_has_what_it_was_given,
    who_gets_less_than_there_is_leaves_the_rest_to_a_hint,
    a_paused_subscription_gives_a_standing_claim_nothing,
    what_is_delayed_is_told_and_not_given,
    what_is_due_soon_is_hinted_at_all_the_same,
    with_order_nobody_is_served_and_the_hint_stays,
    many_events_at_once_are_left_to_a_hint,
    of_several_who_stand_each_event_goes_to_one,
    who_is_not_needed_goes_on_standing,
    other_subscriptions_are_hinted_at,
    at_most_once_what_a_standing_claim_took_is_consumed,
];

/// What a standing claim was given, if this store keeps claims.
async fn given(standing: Option<Standing>) -> Option<Claimed> {
    let mut standing = standing?;
    let served = tokio::time::timeout(seconds(30), standing.served()).await.expect("it is served");
    Some(served.unwrap().unwrap().claimed)
}

fn stand(queue: &Queue, max_events: u32) -> Option<Standing> {
    queue.bed.store.stand(queue.wish(max_events))
}

async fn a_standing_claim_is_given_what_is_emitted_next(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let standing = stand(&queue, 10);
    assert_eq!(standing.is_some(), bed.keeps_claims());
    let emission = bed.try_emit(vec![plain_event(), plain_event()]).await.unwrap();
    let emitted: Vec<EventId> = emission.events.iter().map(|event| event.id).collect();
    let Some(claimed) = given(standing).await else {
        assert_eq!(emission.wake, [queue.id]);
        return;
    };
    assert_eq!(ids(&claimed), emitted);
    assert_eq!(emission.wake, [], "nothing is left of it");
    assert!(queue.claim(10).await.slices.is_empty());
    assert_eq!(queue.counts().await.leased, 2);
    assert!(queue.done(&claimed).await, "its lease is one like any other");
    assert_eq!(queue.counts().await.pending(), 0);
}

async fn a_claim_that_was_taken_back_takes_nothing(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    if let Some(standing) = stand(&queue, 10) {
        assert!(standing.withdraw().await.unwrap().is_none());
    }
    drop(stand(&queue, 10));
    let emission = bed.try_emit(vec![plain_event()]).await.unwrap();
    assert_eq!(emission.wake, [queue.id]);
    assert_eq!(queue.counts().await.ready, 1);
}

async fn a_claim_that_was_served_before_it_was_taken_back_has_what_it_was_given(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let standing = stand(&queue, 10);
    let id = bed.emit(plain_event()).await;
    if let Some(standing) = standing {
        let stood = standing.withdraw().await.unwrap().unwrap();
        assert_eq!(ids(&stood.claimed), [id]);
    }
}

async fn who_gets_less_than_there_is_leaves_the_rest_to_a_hint(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let standing = stand(&queue, 2);
    let emission = bed.try_emit(vec![plain_event(); 5]).await.unwrap();
    assert_eq!(emission.wake, [queue.id]);
    let taken = given(standing).await.map_or(0, |claimed| ids(&claimed).len());
    assert_eq!(taken + ids(&queue.claim(10).await).len(), 5);
}

async fn a_paused_subscription_gives_a_standing_claim_nothing(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let standing = stand(&queue, 10);
    queue.set(RuleKind::Pause).await;
    let emission = bed.try_emit(vec![plain_event()]).await.unwrap();
    assert_eq!(emission.wake, [queue.id]);
    if let Some(claimed) = given(standing).await {
        assert!(claimed.slices.is_empty());
        assert_eq!(claimed.stopped_by, Some(RuleKind::Pause));
    }
    assert_eq!(queue.counts().await.ready, 1);
}

async fn what_is_delayed_is_told_and_not_given(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let standing = stand(&queue, 10);
    bed.emit(plain_event().delay(seconds(60))).await;
    if let Some(claimed) = given(standing).await {
        assert!(claimed.slices.is_empty());
        assert_eq!(claimed.next_due, Some(bed.time().after(seconds(60))));
    }
    assert_eq!(queue.counts().await.delayed, 1);
}

async fn what_is_due_soon_is_hinted_at_all_the_same(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let _standing = stand(&queue, 10);
    let emission = bed.try_emit(vec![plain_event().delay(Duration::from_millis(300))]).await.unwrap();
    assert_eq!(emission.wake, [queue.id], "who was served may be busy by then");
}

async fn with_order_nobody_is_served_and_the_hint_stays(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let standing = stand(&queue, 10);
    let emission = bed.try_emit(vec![keyed("k")]).await.unwrap();
    assert_eq!(emission.wake, [queue.id]);
    if let Some(mut standing) = standing {
        assert!(standing.served().await.unwrap().is_none());
    }
    assert_eq!(queue.counts().await.ready, 1);
}

async fn many_events_at_once_are_left_to_a_hint(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let standing = stand(&queue, 10);
    let emission = bed.try_emit(vec![plain_event(); 300]).await.unwrap();
    assert_eq!(emission.wake, [queue.id]);
    assert_eq!(queue.counts().await.ready, 300);
    if let Some(standing) = standing {
        assert!(standing.withdraw().await.unwrap().is_none());
    }
}

async fn of_several_who_stand_each_event_goes_to_one(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let standing: Vec<Standing> = (0..3).filter_map(|_| stand(&queue, 2)).collect();
    let emitted = bed.emit_plain(5).await;
    let mut seen = Vec::new();
    for one in standing {
        seen.extend(ids(&given(Some(one)).await.unwrap()));
    }
    seen.extend(ids(&queue.claim(10).await));
    seen.sort_unstable();
    assert_eq!(seen, emitted);
}

async fn who_is_not_needed_goes_on_standing(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    for standing in (0..3).filter_map(|_| stand(&queue, 10)).collect::<Vec<_>>() {
        let id = bed.emit(plain_event()).await;
        assert_eq!(ids(&given(Some(standing)).await.unwrap()), [id]);
    }
}

async fn other_subscriptions_are_hinted_at(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let other = bed.queue_named("other", &[TOPIC], unordered()).await;
    let standing = stand(&queue, 10);
    let emission = bed.try_emit(vec![plain_event()]).await.unwrap();
    assert!(emission.wake.contains(&other.id));
    assert_eq!(emission.wake.contains(&queue.id), standing.is_none());
    assert_eq!(ids(&other.claim(10).await).len(), 1);
}

async fn at_most_once_what_a_standing_claim_took_is_consumed(bed: Bed) {
    let queue = bed.queue(at_most_once()).await;
    let standing = stand(&queue, 1);
    let id = bed.emit(plain_event()).await;
    if let Some(claimed) = given(standing).await {
        assert_eq!(ids(&claimed), [id]);
        bed.pass(LEASE);
        assert!(queue.claim(1).await.slices.is_empty(), "it never runs again");
    }
}
