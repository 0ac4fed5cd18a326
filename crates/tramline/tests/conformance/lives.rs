//! The life of an event in each subscription, and the chain of its key.

use crate::bed::*;
use tramline::Gone;

conformance![
    the_rules_that_hold_an_event_are_told_with_it,
    an_event_tells_the_predecessor_that_it_waits_for,
    an_event_that_went_without_being_done_tells_why,
    what_was_sent_again_is_no_longer_gone,
    a_record_of_drops_that_may_be_about_an_event_is_told_with_it,
    the_chain_of_a_key_is_followed_back,
    a_chain_is_followed_piece_by_piece,
    a_chain_within_one_chunk_stays_in_its_key,
    a_chain_ends_where_events_are_no_longer_retained,
    what_is_not_there_has_no_chain,
];

async fn the_rules_that_hold_an_event_are_told_with_it(bed: Bed) {
    let queue = bed.queue_named("acme/a", &[TOPIC], unordered()).await;
    let other = bed.queue_named("other", &[TOPIC], unordered()).await;
    let id = bed.emit(plain_event()).await;
    queue.set(RuleKind::Pause).await;
    let set = SetPatternRule {
        pattern: "acme/*".parse().unwrap(),
        topics: None,
        kind: RuleKind::Block,
        until: RuleEnd::Open,
        by: "olga".into(),
        reason: String::new(),
        now: bed.now(),
    };
    bed.store.set_pattern_rule(set).await.unwrap();
    assert_eq!(queue.delivery(id).await.rules.len(), 2);
    assert!(other.delivery(id).await.rules.is_empty());
    other.done(&other.claim(1).await).await;
    other.set(RuleKind::Pause).await;
    assert!(other.delivery(id).await.rules.is_empty(), "it is done");
}

async fn an_event_tells_the_predecessor_that_it_waits_for(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let plain = bed.queue_named("plain", &[TOPIC], unordered()).await;
    let first = bed.emit(keyed("a")).await;
    let second = bed.emit(keyed("a")).await;
    let third = bed.emit(keyed("a")).await;
    let other = bed.emit(keyed("b")).await;
    assert_eq!(queue.delivery(first).await.blocked_by, None);
    assert_eq!(queue.delivery(second).await.blocked_by, Some(first));
    assert_eq!(queue.delivery(third).await.blocked_by, Some(second));
    assert_eq!(queue.delivery(other).await.blocked_by, None);
    assert_eq!(plain.delivery(second).await.blocked_by, None, "there is no order to wait in");
    queue.done(&queue.claim(1).await).await;
    assert_eq!(queue.delivery(second).await.blocked_by, None);
    queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
    assert_eq!(queue.delivery(third).await.blocked_by, Some(second), "parked behind it");
}

async fn an_event_that_went_without_being_done_tells_why(bed: Bed) {
    let policy = Policy { dead_retention: Some(seconds(60)), ..unordered() };
    let queue = bed.queue(policy).await;
    let [done, dropped, cancelled, expired] = bed.emit_plain(4).await[..] else { panic!("four events") };
    assert_eq!(bed.cancel(cancelled).await, 1);
    let claimed = queue.claim(4).await;
    let dead = || Outcome::dead("no");
    let outcomes = [(done, Outcome::Done), (dropped, dead()), (expired, dead())];
    queue.settle_each(&claimed, &outcomes).await;
    queue.drop_dead(Which::Ids(vec![dropped])).await;
    let dropped_at = bed.time();
    bed.pass(seconds(60));
    bed.sweep(None).await;
    assert_eq!(queue.delivery(done).await.gone, None);
    assert_eq!(queue.delivery(dropped).await.gone, Some((Gone::Dropped, dropped_at)));
    assert_eq!(queue.delivery(cancelled).await.gone, Some((Gone::Cancelled, dropped_at)));
    assert_eq!(queue.delivery(expired).await.gone, Some((Gone::Expired, bed.time())));
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let policy = Policy { on_exhausted: OnExhausted::Drop, ..policy };
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let id = bed.emit(keyed("a")).await;
        queue.settle(&queue.claim(1).await, Outcome::dead("no")).await;
        assert_eq!(queue.delivery(id).await.gone, Some((Gone::Exhausted, bed.time())), "{name}");
    }
}

async fn what_was_sent_again_is_no_longer_gone(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = bed.emit(plain_event()).await;
    bed.cancel(id).await;
    assert!(queue.delivery(id).await.gone.is_some());
    assert_eq!(queue.resend(&[id]).await, 1);
    assert_eq!(queue.drain().await, [id]);
    assert_eq!(queue.delivery(id).await.gone, None);
}

async fn a_record_of_drops_that_may_be_about_an_event_is_told_with_it(bed: Bed) {
    let queue = bed.queue(Policy { compact: true, ..unordered() }).await;
    let emitted = bed.emit_keys(&["a", "a", "a"]).await;
    assert_eq!(queue.drain().await, emitted[2..]);
    let record = queue.delivery(emitted[0]).await.dropped.unwrap();
    assert_eq!((record.reason, record.events), (DropReason::Compacted, 2));
    assert_eq!(queue.delivery(emitted[2]).await.dropped, None);
}

async fn trace(bed: &Bed, from: EventId, limit: u32) -> (Vec<EventId>, Option<EventId>) {
    let traced = bed.store.trace(Trace { from, limit }).await.unwrap();
    (traced.events.iter().map(|event| event.id).collect(), traced.next)
}

/// Emits one by one, in chunks of their own.
async fn emit_apart(bed: &Bed, keys: &[&str]) -> Vec<EventId> {
    let mut emitted = Vec::new();
    for key in keys {
        emitted.push(bed.emit(keyed(key)).await);
    }
    emitted
}

async fn the_chain_of_a_key_is_followed_back(bed: Bed) {
    bed.topic(TOPIC, 4).await;
    let emitted = emit_apart(&bed, &["a", "b", "a", "b", "a"]).await;
    assert_eq!(trace(&bed, emitted[4], 10).await, (vec![emitted[4], emitted[2], emitted[0]], None));
    assert_eq!(trace(&bed, emitted[2], 10).await, (vec![emitted[2], emitted[0]], None));
    let traced = bed.store.trace(Trace { from: emitted[3], limit: 10 }).await.unwrap();
    assert_eq!(traced.events[0].prev, Some(emitted[1]));
    assert_eq!(traced.events[1], bed.find(emitted[1]).await.unwrap().event);
}

async fn a_chain_is_followed_piece_by_piece(bed: Bed) {
    bed.topic(TOPIC, 4).await;
    let mut emitted = emit_apart(&bed, &["a"; 5]).await;
    emitted
        .extend(bed.emit_together((0..70).map(|_| keyed("a")).collect()).await.iter().map(|event| event.id));
    emitted.reverse();
    let (mut seen, mut next) = (Vec::new(), Some(emitted[0]));
    while let Some(from) = next {
        let (some, rest) = trace(&bed, from, 7).await;
        assert!(some.len() <= 7);
        seen.extend(some);
        next = rest;
    }
    assert_eq!(seen, emitted);
}

async fn a_chain_within_one_chunk_stays_in_its_key(bed: Bed) {
    bed.topic(TOPIC, 4).await;
    let emitted = bed.emit_keys(&["a", "b", "a", "c", "a", "b"]).await;
    assert_eq!(trace(&bed, emitted[4], 10).await, (vec![emitted[4], emitted[2], emitted[0]], None));
    assert_eq!(trace(&bed, emitted[3], 10).await, (vec![emitted[3]], None));
}

async fn a_chain_ends_where_events_are_no_longer_retained(bed: Bed) {
    bed.topic(TOPIC, 4).await;
    emit_apart(&bed, &["a", "a"]).await;
    bed.pass(seconds(48 * 3_600));
    let kept = bed.emit(keyed("a")).await;
    bed.sweep(None).await;
    assert_eq!(trace(&bed, kept, 10).await, (vec![kept], None));
    assert!(bed.find(kept).await.unwrap().event.prev.is_some());
}

async fn what_is_not_there_has_no_chain(bed: Bed) {
    bed.topic(TOPIC, 4).await;
    let id = bed.emit(plain_event()).await;
    assert_eq!(trace(&bed, id, 10).await, (vec![id], None));
    assert_eq!(trace(&bed, id, 0).await, (vec![], Some(id)));
    for nothing in [EventId(0), EventId(id.0 + 1), EventId(i64::MAX)] {
        assert_eq!(trace(&bed, nothing, 10).await, (vec![], None));
    }
}
