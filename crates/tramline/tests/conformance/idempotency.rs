//! Idempotency keys.

use crate::bed::*;

conformance![
    the_same_key_gives_the_first_receipt,
    the_same_key_with_another_body_is_a_conflict,
    whatever_matters_of_an_event_is_compared,
    a_conflict_stores_nothing_and_harms_no_other_unit,
    a_key_is_forgotten_after_a_day,
    a_sweep_forgets_expired_keys,
    a_key_belongs_to_its_topic,
    the_key_of_the_first_event_stands_for_the_unit,
    a_key_may_be_twice_in_a_group,
    a_key_may_be_twice_in_a_group_with_different_bodies,
    a_first_receipt_wakes_nobody_twice,
    parallel_emits_with_one_key_are_stored_once,
];

fn paid(key: &str) -> Event {
    keyed("order").kind("order.paid").idempotency_key(key)
}

async fn the_same_key_gives_the_first_receipt(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let unit = || vec![paid("i"), keyed("other")];
    let first = bed.try_emit(unit()).await.unwrap();
    bed.emit(keyed("order")).await;
    let again = bed.try_emit(unit()).await.unwrap();
    assert!(!first.repeated && again.repeated);
    assert_eq!(again.events, first.events);
    assert_eq!(queue.counts().await.ready, 3);
}

async fn the_same_key_with_another_body_is_a_conflict(bed: Bed) {
    bed.emit(paid("i")).await;
    let other = Event::new(TOPIC, "other").key("order").kind("order.paid").idempotency_key("i");
    assert_eq!(bed.try_emit(vec![other]).await.unwrap_err().kind(), Kind::Conflict);
}

async fn whatever_matters_of_an_event_is_compared(bed: Bed) {
    bed.emit(paid("i")).await;
    let changes = [
        vec![paid("i").key("elsewhere")],
        vec![paid("i").kind("order.sent")],
        vec![paid("i").header("h", "1")],
        vec![paid("i").content_type("text/plain")],
        vec![paid("i").state("s")],
        vec![paid("i"), plain_event()],
    ];
    for unit in changes {
        let shown = format!("{unit:?}");
        assert_eq!(bed.try_emit(unit).await.unwrap_err().kind(), Kind::Conflict, "{shown}");
    }
}

async fn a_conflict_stores_nothing_and_harms_no_other_unit(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit(paid("i")).await;
    queue.drain().await;
    let units =
        vec![vec![plain_event()], vec![paid("i").key("elsewhere"), plain_event()], vec![plain_event()]];
    let receipts = bed.emit_units(units).await;
    let fine: Vec<bool> = receipts.iter().map(|receipt| receipt.is_ok()).collect();
    assert_eq!(fine, [true, false, true]);
    assert_eq!(queue.counts().await.ready, 2);
    assert_eq!(bed.store.head(TOPIC, "elsewhere").await.unwrap(), None);
}

async fn a_key_is_forgotten_after_a_day(bed: Bed) {
    let first = bed.try_emit(vec![paid("i")]).await.unwrap();
    bed.pass(seconds(86_399));
    assert!(bed.try_emit(vec![paid("i")]).await.unwrap().repeated);
    bed.pass(seconds(2));
    let anew = bed.try_emit(vec![paid("i").header("another", "body")]).await.unwrap();
    assert!(!anew.repeated);
    assert_eq!(anew.events[0].prev, Some(first.events[0].id));
}

async fn a_sweep_forgets_expired_keys(bed: Bed) {
    bed.emit(paid("i")).await;
    bed.pass(seconds(86_401));
    bed.sweep(None).await;
    assert!(!bed.try_emit(vec![paid("i").header("another", "body")]).await.unwrap().repeated);
}

async fn a_key_belongs_to_its_topic(bed: Bed) {
    bed.emit(paid("i")).await;
    let elsewhere = bed.try_emit(vec![Event::new("refunds", "x").idempotency_key("i")]).await.unwrap();
    assert!(!elsewhere.repeated);
}

async fn the_key_of_the_first_event_stands_for_the_unit(bed: Bed) {
    bed.emit_together(vec![paid("first"), paid("second")]).await;
    assert!(!bed.try_emit(vec![paid("second")]).await.unwrap().repeated);
    assert!(bed.try_emit(vec![paid("first"), paid("second")]).await.unwrap().repeated);
}

/// Trap: concurrent emits share a transaction, and so may two with the same key.
async fn a_key_may_be_twice_in_a_group(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let receipts = bed.emit_units(vec![vec![paid("i")], vec![plain_event()], vec![paid("i")]]).await;
    let receipts: Vec<Emission> = receipts.into_iter().map(|receipt| receipt.unwrap()).collect();
    assert_eq!(receipts[0].events, receipts[2].events);
    assert_eq!(receipts.iter().filter(|receipt| receipt.repeated).count(), 1);
    assert_eq!(queue.counts().await.ready, 2);
}

async fn a_key_may_be_twice_in_a_group_with_different_bodies(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let receipts = bed.emit_units(vec![vec![paid("i")], vec![paid("i").header("h", "1")]]).await;
    assert!(receipts[0].is_ok());
    assert_eq!(receipts[1].as_ref().unwrap_err().kind(), Kind::Conflict);
    assert_eq!(queue.counts().await.ready, 1);
}

async fn a_first_receipt_wakes_nobody_twice(bed: Bed) {
    bed.queue(unordered()).await;
    assert_eq!(bed.try_emit(vec![paid("i")]).await.unwrap().wake.len(), 1);
    assert_eq!(bed.try_emit(vec![paid("i")]).await.unwrap().wake.len(), 0);
}

async fn parallel_emits_with_one_key_are_stored_once(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let receipts = in_parallel(8, |_| {
        let bed = bed.clone();
        async move { bed.try_emit(vec![paid("i")]).await.unwrap() }
    });
    let receipts = receipts.await;
    assert!(receipts.iter().all(|receipt| receipt.events == receipts[0].events));
    assert_eq!(receipts.iter().filter(|receipt| !receipt.repeated).count(), 1);
    assert_eq!(queue.counts().await.ready, 1);
}
