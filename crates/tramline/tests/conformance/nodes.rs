//! Several nodes that change the same things at once, and one that does not know yet what another one did.

use crate::bed::*;
use std::collections::BTreeMap;
use tramline::{Options, Tramline};

conformance! {
    an_emit_does_not_wait_for_one_that_nobody_polls,
    many_nodes_that_emit_to_the_same_keys_make_one_chain_of_each,
    an_emit_to_a_topic_that_another_node_deleted_creates_it_again,
    a_subscription_can_be_changed_by_many_at_once,
}

/// An emit that was begun and is not polled any more had the only line that small emits would wait for; one task with two emits stood still.
async fn an_emit_does_not_wait_for_one_that_nobody_polls(bed: Bed) {
    let tram = Tramline::from_store(bed.store.clone(), Options::new(""));
    tram.emit(plain_event()).await.unwrap();
    let mut begun = Box::pin(tram.emit(plain_event()));
    let is_done = futures_util::poll!(&mut begun).is_ready();
    let second = tokio::time::timeout(seconds(30), tram.emit(plain_event())).await;
    second.expect("an answer").unwrap();
    if !is_done {
        begun.await.unwrap();
    }
    tram.close().await;
}

async fn many_nodes_that_emit_to_the_same_keys_make_one_chain_of_each(bed: Bed) {
    const NODES: usize = 4;
    const TIMES: usize = 30;
    let emitted = in_parallel(NODES as i64, |node| {
        let bed = bed.clone();
        async move {
            let twin = bed.twin().await;
            for n in 0..TIMES {
                let key = |unit: usize| format!("k{}", (unit * 7 + n + node as usize) % 5);
                let units = (0..4).map(|unit| vec![keyed(&key(unit)); 2]).collect();
                let answers = twin.emit_units(units).await;
                assert!(answers.iter().all(Result::is_ok), "{answers:?}");
            }
        }
    });
    emitted.await;
    let log = bed.read_log(EventId(0), NODES * TIMES * 4 * 2).await;
    let mut last: BTreeMap<String, EventId> = BTreeMap::new();
    for event in log.events {
        assert_eq!(event.prev, last.insert(event.key.unwrap().to_string(), event.id));
    }
    assert!(bed.log_page(log.next, 1).await.events.is_empty());
}

/// A node may know a topic that another one has deleted: the event must not be lost in a plan that has no place for it.
async fn an_emit_to_a_topic_that_another_node_deleted_creates_it_again(bed: Bed) {
    let twin = bed.twin().await;
    for event in [plain_event(), plain_event().idempotency_key("once")] {
        bed.emit(event.clone()).await;
        twin.store.delete_topic(TOPIC).await.unwrap();
        let again = bed.emit(event).await;
        let log = twin.read_log(EventId(0), 1).await;
        assert_eq!(log.events.iter().map(|event| event.id).collect::<Vec<_>>(), [again]);
        twin.store.delete_topic(TOPIC).await.unwrap();
    }
}

/// All processes of a program subscribe when they start. One that was given other topics while it waited was refused.
async fn a_subscription_can_be_changed_by_many_at_once(bed: Bed) {
    let changes = in_parallel(8, |number| {
        let bed = bed.clone();
        async move {
            let twin = bed.twin().await;
            twin.subscribe("queue", &[TOPIC, &format!("other-{number}")], unordered(), Start::Now).await
        }
    });
    for change in changes.await {
        assert_eq!(change.unwrap().topics.len(), 2);
    }
}
