//! Limits over all workers: how many events start in a period.

use crate::bed::*;
use std::collections::BTreeSet;
use std::time::Duration;

conformance![
    no_more_events_start_than_the_rate_says,
    a_rate_holds_over_two_engines,
    a_rate_says_when_the_next_event_may_start,
    a_rate_counts_every_start_of_an_event,
    a_paused_subscription_starts_nothing_and_counts_nothing,
    a_compacted_event_does_not_count,
];

async fn no_more_events_start_than_the_rate_says(bed: Bed) {
    for (name, policy) in both(rate(6, seconds(64))) {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        emit_twenty(&bed).await;
        let first = queue.claim(4).await;
        assert_eq!((ids(&first).len(), first.limited), (4, false), "{name}");
        queue.done(&first).await;
        bed.pass(seconds(30));
        let second = queue.claim(100).await;
        assert_eq!((ids(&second).len(), second.limited), (2, true), "{name}");
        queue.done(&second).await;
        bed.pass(seconds(33));
        assert!(ids(&queue.claim(100).await).is_empty(), "{name}: the first four still count");
        bed.pass(seconds(2));
        assert_eq!(ids(&queue.claim(100).await).len(), 4, "{name}: they count no longer, the next two do");
    }
}

async fn a_rate_holds_over_two_engines(bed: Bed) {
    let queue = bed.queue(limited(rate(10, seconds(60)))).await;
    bed.emit_plain(64).await;
    let twin = bed.twin().await;
    let taken = in_parallel(8, |number| {
        let queue = queue.through(if number % 2 == 0 { twin.clone() } else { bed.clone() });
        async move { ids(&queue.claim_by(Incarnation(number), 3).await).len() }
    });
    assert_eq!(taken.await.into_iter().sum::<usize>(), 10);
    bed.pass(seconds(61));
    let taken = in_parallel(8, |number| {
        let queue = queue.through(if number % 2 == 0 { twin.clone() } else { bed.clone() });
        let leave = Claim { suspects: Suspects::Leave, owner: Incarnation(number), ..queue.wish(3) };
        async move { ids(&queue.take(leave).await).len() }
    });
    assert_eq!(taken.await.into_iter().sum::<usize>(), 10);
}

async fn a_rate_says_when_the_next_event_may_start(bed: Bed) {
    let queue = bed.queue(limited(rate(2, seconds(10)))).await;
    bed.emit_plain(10).await;
    let taken = queue.claim(10).await;
    let next = taken.next_due.unwrap();
    assert!(taken.limited && next.since(bed.time()) >= seconds(10));
    queue.done(&taken).await;
    assert_eq!(queue.claim(10).await.next_due, Some(next), "it stays as it is however often it is asked");
    bed.pass(next.since(bed.time()) - Duration::from_millis(1));
    assert!(ids(&queue.claim(10).await).is_empty());
    bed.pass(Duration::from_millis(1));
    assert_eq!(ids(&queue.claim(10).await).len(), 2);
}

async fn a_rate_counts_every_start_of_an_event(bed: Bed) {
    let queue = bed.queue(limited(rate(3, seconds(60)))).await;
    bed.emit_plain(1).await;
    for _ in 0..3 {
        let claimed = queue.claim(10).await;
        assert_eq!(ids(&claimed).len(), 1);
        queue.release(&claimed).await;
    }
    assert!(ids(&queue.claim(10).await).is_empty());
}

async fn a_paused_subscription_starts_nothing_and_counts_nothing(bed: Bed) {
    let queue = bed.queue(limited(rate(2, seconds(60)))).await;
    bed.emit_plain(10).await;
    queue.set(RuleKind::Pause).await;
    for _ in 0..5 {
        assert_eq!(queue.claim(10).await.stopped_by, Some(RuleKind::Pause));
    }
    queue.unset(RuleKind::Pause).await;
    assert_eq!(ids(&queue.claim(10).await).len(), 2);
}

async fn a_compacted_event_does_not_count(bed: Bed) {
    let limits = Limits { concurrency: Some(2), ..rate(2, seconds(60)) };
    let queue = bed.queue(Policy { compact: true, limits, ..unordered() }).await;
    let emitted = bed.emit_keys(&["a", "a", "a", "b"]).await;
    let mut taken = BTreeSet::new();
    for _ in 0..5 {
        taken.extend(ids(&queue.claim(10).await));
    }
    assert_eq!(taken.into_iter().collect::<Vec<_>>(), emitted[2..]);
}
