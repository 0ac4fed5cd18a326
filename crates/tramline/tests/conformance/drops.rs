//! Records of what subscriptions will never see, and totals that outlive what they count.

use crate::bed::*;
use std::time::Duration;

conformance![
    records_that_follow_each_other_within_a_minute_are_one,
    records_are_listed_from_either_end_and_by_subscription,
    old_records_go_and_their_sums_stay,
    a_deleted_subscription_takes_its_records_along,
    the_total_of_a_topic_never_changes_by_removal,
];

const DAY: Duration = Duration::from_secs(86_400);

async fn drop_one(bed: &Bed) {
    let (surplus, after) = (Surplus::Work { include_pull: true }, EventId(0));
    let went =
        bed.store.shed(Shed { surplus, after, limit: 1, bytes: u64::MAX, now: bed.now() }).await.unwrap();
    assert!(went.dropped.is_some());
}

async fn list(
    bed: &Bed,
    subscription: Option<SubscriptionId>,
    after: Option<i64>,
    limit: u32,
) -> Vec<DropRecord> {
    bed.store.drops(ListDrops { subscription, after, limit }).await.unwrap()
}

async fn records_that_follow_each_other_within_a_minute_are_one(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let ids = bed.emit_keys(&["a"; 5]).await;
    let began = bed.time();
    for after in [0, 30, 29, 1, 59] {
        bed.pass(seconds(after));
        drop_one(&bed).await;
    }
    let records = list(&bed, None, None, 10).await;
    let facts: Vec<_> = records.iter().map(|one| (one.first, one.last, one.events, one.at)).collect();
    assert_eq!(facts, [(ids[3], ids[4], 2, began.after(seconds(60))), (ids[0], ids[2], 3, began)]);
    assert!(records.iter().all(|one| one.subscription == queue.id && one.reason == DropReason::Shed));
}

async fn records_are_listed_from_either_end_and_by_subscription(bed: Bed) {
    let one = bed.queue_named("one", &["a"], unordered()).await;
    let two = bed.queue_named("two", &["b"], unordered()).await;
    for topic in ["a", "b", "a", "b", "a"] {
        bed.emit(Event::new(topic, "x")).await;
        drop_one(&bed).await;
        bed.pass(seconds(61));
    }
    let newest = list(&bed, None, None, 2).await;
    assert_eq!(newest.iter().map(|one| one.subscription).collect::<Vec<_>>(), [one.id, two.id]);
    let all = list(&bed, None, Some(0), 10).await;
    assert_eq!(all.len(), 5);
    let mut by_time = all.clone();
    by_time.sort_by_key(|record| record.at);
    assert!(by_time == all || bed.is_spread(), "topic by topic, where each has numbers of its own");
    assert_eq!((&by_time[4], &by_time[3]), (&newest[0], &newest[1]));
    assert_eq!(list(&bed, None, Some(all[1].number), 2).await, all[2..4]);
    let of_two: Vec<_> = all.iter().filter(|record| record.subscription == two.id).cloned().collect();
    assert_eq!(list(&bed, Some(two.id), Some(0), 10).await, of_two);
    assert_eq!(list(&bed, Some(two.id), None, 1).await, of_two[1..]);
}

async fn old_records_go_and_their_sums_stay(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit_keys(&["a"; 3]).await;
    for _ in 0..3 {
        drop_one(&bed).await;
        bed.pass(DAY * 16);
        bed.sweep(None).await;
    }
    assert_eq!(list(&bed, None, None, 10).await.len(), 1, "the others are older than thirty days");
    let total = DropTotal { subscription: queue.id, reason: DropReason::Shed, events: 3 };
    assert_eq!(bed.store.drop_totals().await.unwrap(), [total]);
}

async fn a_deleted_subscription_takes_its_records_along(bed: Bed) {
    bed.queue(unordered()).await;
    bed.emit_keys(&["a"; 2]).await;
    drop_one(&bed).await;
    bed.pass(DAY * 31);
    bed.sweep(None).await;
    drop_one(&bed).await;
    bed.store.delete_subscription("queue").await.unwrap();
    assert!(list(&bed, None, None, 10).await.is_empty());
    assert!(bed.store.drop_totals().await.unwrap().is_empty());
}

async fn the_total_of_a_topic_never_changes_by_removal(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.topic("empty", 1).await;
    bed.emit_plain(130).await;
    bed.emit(Event::new("other", "x")).await;
    let totals = async || -> Vec<u64> {
        bed.store.topic_totals().await.unwrap().into_iter().map(|(_, events)| events).collect()
    };
    assert_eq!(totals().await, [130, 0, 1]);
    queue.drain().await;
    let (surplus, after) = (Surplus::Retained, EventId(0));
    let went =
        bed.store.shed(Shed { surplus, after, limit: 1, bytes: u64::MAX, now: bed.now() }).await.unwrap();
    assert_eq!((went.removed, totals().await), (64, vec![130, 0, 1]));
    bed.pass(DAY * 2);
    assert_eq!(bed.sweep(None).await.chunks, 3);
    assert_eq!(totals().await, [130, 0, 1]);
    bed.emit_plain(5).await;
    assert_eq!(totals().await, [135, 0, 1]);
    bed.store.delete_topic("other").await.unwrap();
    bed.sweep(None).await;
    bed.emit(Event::new("other", "x")).await;
    assert_eq!(totals().await, [135, 0, 1], "a topic that is created again begins anew");
}
