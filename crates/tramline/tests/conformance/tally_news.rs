//! What tallies tell: events when they are complete, fail or expire, and the ends of the items that they stand for.

use crate::bed::*;
use std::sync::Arc;

conformance![
    a_completion_emits_one_event_with_the_counts,
    the_first_failure_emits_one_event,
    an_expiry_emits_one_event,
    a_completion_event_survives_the_deletion_of_its_tally,
    news_are_delivered_once_by_many_at_once,
    a_tally_is_an_item_of_another_tally,
    a_child_that_fails_or_ends_early_fails_its_item,
    tallies_of_tallies_complete_from_the_leaves_to_the_root,
    a_child_needs_a_pending_item,
    an_item_has_one_child_and_is_no_event,
    children_that_are_opened_at_once_for_one_item_are_one,
];

const TOLD: &str = "told";

pub(crate) fn told(kind: &str) -> Event {
    Event::new(TOLD, kind.to_owned()).kind(kind).key("k")
}

/// The types of all events that tallies have emitted.
pub(crate) async fn kinds(bed: &Bed) -> Vec<Arc<str>> {
    bed.deliver().await;
    bed.emitted(TOLD).await.into_iter().map(|event| event.kind).collect()
}

async fn a_completion_emits_one_event_with_the_counts(bed: Bed) {
    let queue = bed.queue_named("listener", &[TOLD], unordered()).await;
    let tally = bed.open(NewTally::new().on_complete(told("complete").header("h", "v"))).await;
    bed.add(tally, 5000).await;
    bed.seal(tally).await;
    bed.fail(tally, 17).await;
    assert_eq!(bed.deliver().await.count, 0);
    let by = Incarnation::random().0;
    let acks = vec![Ack { tally, items: vec![(0..=4999).into()], ending: Ending::Done }];
    let acked = bed.store.ack_items(AckItems { acks, by, now: bed.now() }).await.unwrap();
    assert_eq!(acked.news, [tally]);
    let delivered = bed.deliver().await;
    assert_eq!((delivered.count, delivered.wake), (1, vec![queue.id]));
    assert_eq!(bed.deliver().await.count, 0);
    let event = bed.emitted(TOLD).await.remove(0);
    let header = |name: &str| event.headers.get(name).map(String::as_str);
    assert_eq!(
        (&*event.kind, event.key.as_deref(), &event.payload[..]),
        ("complete", Some("k"), &b"complete"[..])
    );
    assert_eq!(header("tramline-tally"), Some(tally.to_string().as_str()));
    let counts =
        ["total", "done", "failed"].map(|name| header(&format!("tramline-tally-{name}")).unwrap().to_owned());
    assert_eq!((counts, header("h")), (["5000", "4999", "1"].map(str::to_owned), Some("v")));
    assert_eq!(queue.drain().await.len(), 1);
}

async fn the_first_failure_emits_one_event(bed: Bed) {
    let tally = bed.open(NewTally::new().on_failure(told("failure")).on_complete(told("complete"))).await;
    bed.add(tally, 10_000).await;
    bed.ack(tally, 0..=99).await;
    assert!(kinds(&bed).await.is_empty());
    bed.fail(tally, 50..=150).await;
    bed.fail(tally, 5000).await;
    assert_eq!(kinds(&bed).await, [Arc::from("failure")]);
    let headers = bed.emitted(TOLD).await.remove(0).headers;
    assert_eq!(headers["tramline-tally-item"], "100");
    bed.seal(tally).await;
    bed.fail(tally, 0..=9999).await;
    assert_eq!(kinds(&bed).await, [Arc::from("failure"), Arc::from("complete")]);
}

async fn an_expiry_emits_one_event(bed: Bed) {
    let new = NewTally::new().on_expiry(told("expiry")).on_complete(told("complete"));
    let tally = bed.open(new.expires_in(seconds(60))).await;
    bed.pass(seconds(60));
    assert_eq!(bed.sweep_tallies().await.news, [tally]);
    bed.sweep_tallies().await;
    assert_eq!(kinds(&bed).await, [Arc::from("expiry")]);
}

/// The process that completed it died before it could deliver, and somebody deletes the tally.
async fn a_completion_event_survives_the_deletion_of_its_tally(bed: Bed) {
    let tally = bed.open(NewTally::new().on_complete(told("complete"))).await;
    bed.seal(tally).await;
    bed.store.delete_tally(NameTally { tally, now: bed.now() }).await.unwrap();
    bed.pass(seconds(60));
    bed.sweep_tallies().await;
    assert_eq!(kinds(&bed).await, [Arc::from("complete")]);
    bed.sweep_tallies().await;
    assert_eq!(bed.deliver().await.count, 0);
}

async fn news_are_delivered_once_by_many_at_once(bed: Bed) {
    for n in 0..40 {
        let tally = bed.open(NewTally::new().on_complete(told(&format!("n{n}")))).await;
        bed.seal(tally).await;
    }
    let bed = &bed;
    let delivered = in_parallel(6, |_| {
        let bed = bed.clone();
        async move { bed.twin().await.deliver().await.count }
    })
    .await;
    let rest = bed.deliver().await.count;
    assert_eq!(delivered.iter().sum::<u64>() + rest, 40);
    assert_eq!(bed.emitted(TOLD).await.len(), 40);
}

async fn a_tally_is_an_item_of_another_tally(bed: Bed) {
    let parent = bed.open(NewTally::new().on_complete(told("parent"))).await;
    let item = bed.add(parent, 2).await.first;
    let child = bed
        .try_open(NewTally::new().parent(Parent::Item(TallyItem { tally: parent, number: item })))
        .await
        .unwrap();
    let other = bed.try_open(NewTally::new().parent(Parent::New(parent))).await.unwrap();
    bed.seal(parent).await;
    bed.ack(parent, item + 1).await;
    assert_eq!(bed.tallied(parent).await, (3, 1, 0));
    assert_eq!(bed.tally(child.id).await.parent, child.parent);
    bed.add(child.id, 1).await;
    bed.seal(child.id).await;
    bed.seal(other.id).await;
    bed.deliver().await;
    assert_eq!(bed.tallied(parent).await, (3, 2, 0));
    bed.ack(child.id, 0).await;
    assert_eq!(bed.deliver().await.completed, [parent]);
    assert!(bed.tally(parent).await.is_complete());
    assert_eq!(kinds(&bed).await, [Arc::from("parent")]);
}

async fn a_child_that_fails_or_ends_early_fails_its_item(bed: Bed) {
    let parent = bed.open(NewTally::new()).await;
    let mut children = Vec::new();
    for _ in 0..4 {
        let new = NewTally::new().parent(Parent::New(parent)).expires_in(seconds(60));
        let child = bed.open(new).await;
        bed.add(child, 2).await;
        children.push(child);
    }
    bed.seal(parent).await;
    let name = |at: usize| NameTally { tally: children[at], now: bed.now() };
    bed.fail(children[0], 0..=1).await;
    bed.seal(children[0]).await;
    bed.store.cancel_tally(name(1)).await.unwrap();
    bed.store.delete_tally(name(2)).await.unwrap();
    bed.pass(seconds(60));
    bed.sweep_tallies().await;
    bed.deliver().await;
    assert_eq!(bed.tallied(parent).await, (4, 0, 4));
    assert!(bed.tally(parent).await.is_complete());
}

async fn tallies_of_tallies_complete_from_the_leaves_to_the_root(bed: Bed) {
    let root = bed.open(NewTally::new().on_complete(told("root"))).await;
    let mut leaf = root;
    let mut all = vec![root];
    for _ in 0..5 {
        let child = bed.open(NewTally::new().parent(Parent::New(leaf))).await;
        bed.seal(leaf).await;
        all.push(child);
        leaf = child;
    }
    assert!(bed.seal(leaf).await);
    assert_eq!(bed.deliver().await.completed.len(), 5);
    for tally in all {
        assert!(bed.tally(tally).await.is_complete());
    }
    assert_eq!(kinds(&bed).await, [Arc::from("root")]);
}

/// Two children of one item ended it when the first of them was complete, and their parent was complete too early.
async fn an_item_has_one_child_and_is_no_event(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let parent = bed.open(NewTally::new()).await;
    let number = bed.add(parent, 2).await.first;
    let child = |number| NewTally::new().parent(Parent::Item(TallyItem { tally: parent, number }));
    let refused = async |number| bed.try_open(child(number)).await.unwrap_err().kind();
    let first = bed.open(child(number).idempotency_key("first")).await;
    assert_eq!(bed.open(child(number).idempotency_key("first")).await, first);
    assert_eq!(refused(number).await, Kind::Conflict);
    bed.seal(first).await;
    assert_eq!(refused(number).await, Kind::Conflict, "complete, and not told yet");
    bed.deliver().await;
    assert_eq!(refused(number).await, Kind::Conflict, "the item is done");
    let second = bed.open(child(number + 1)).await;
    bed.store.delete_tally(NameTally { tally: second, now: bed.now() }).await.unwrap();
    assert_eq!(refused(number + 1).await, Kind::Conflict, "deleted, and not told yet");
    let added = bed.open(NewTally::new().parent(Parent::New(parent))).await;
    let number = bed.tally(added).await.parent.unwrap().number;
    assert_eq!(refused(number).await, Kind::Conflict, "added for another one");
    bed.emit(plain_event().tally(parent)).await;
    let event = queue.claim(1).await.slices[0].events[0].event.item.unwrap();
    assert_eq!(refused(event.number).await, Kind::Conflict, "an event");
}

async fn children_that_are_opened_at_once_for_one_item_are_one(bed: Bed) {
    let parent = bed.open(NewTally::new()).await;
    let number = bed.add(parent, 1).await.first;
    let child = NewTally::new().parent(Parent::Item(TallyItem { tally: parent, number }));
    let opened = in_parallel(8, |_| {
        let (bed, child) = (bed.clone(), child.clone());
        async move { bed.try_open(child).await.is_ok() }
    });
    assert_eq!(opened.await.iter().filter(|opened| **opened).count(), 1);
}

async fn a_child_needs_a_pending_item(bed: Bed) {
    let parent = bed.open(NewTally::new()).await;
    bed.add(parent, 2).await;
    bed.ack(parent, 0).await;
    let child = |tally, number| NewTally::new().parent(Parent::Item(TallyItem { tally, number }));
    for (number, kind) in [(0, Some(Kind::Conflict)), (2, Some(Kind::Conflict)), (1, None)] {
        let refused = bed.try_open(child(parent, number)).await.err().map(|error| error.kind());
        assert_eq!(refused, kind, "{number}");
    }
    assert_eq!(bed.try_open(child(TallyId(999), 0)).await.unwrap_err().kind(), Kind::NotFound);
    bed.seal(parent).await;
    let late = bed.try_open(NewTally::new().parent(Parent::New(parent))).await;
    assert_eq!(late.unwrap_err().kind(), Kind::Conflict);
}
