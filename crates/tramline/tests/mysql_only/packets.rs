//! Statements are cut before they are longer than the server takes.

use crate::bed::{Private, claim, ids};
use tramline::Event;
use tramline::model::id::EventId;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::verbs::{Claim, Emit, ReadLog};

/// 16 MB is what a packet may have by default, and payloads are written as digits: these are 48.
#[tokio::test]
async fn one_emit_of_many_large_events_arrives_whole() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await;
    let payload = |n: u8| vec![n; 1 << 20];
    let unit: Vec<Event> = (0..24).map(|n| Event::new("t", payload(n)).key("k")).collect();
    let emitted = store.store.emit(Emit { units: vec![unit], now: None }).await.unwrap().remove(0).unwrap();
    assert!(emitted.events.windows(2).all(|pair| pair[1].prev == Some(pair[0].id)));
    let read = ReadLog { topic: "t".into(), after: EventId(0), limit: 100 };
    let events = store.read_log(read).await.unwrap().events;
    assert!(events.iter().zip(0..).all(|(event, n)| event.payload == payload(n)));
    assert_eq!(events.len(), 24);
    let claim = Claim { max_bytes: 1 << 30, ..claim(queue.id, 100) };
    let claimed = store.store.claim(claim).await.unwrap();
    assert_eq!(ids(&claimed).len(), 24);
    assert!(store.settle_done(queue.id, &claimed).await.accepted.iter().flatten().all(|taken| *taken));
    store.close().await;
}

#[tokio::test]
async fn many_keys_and_many_leases_are_asked_for_in_several_statements() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    let units = (0..3000).map(|n| vec![Event::new("t", "x").key(format!("key {n}"))]).collect();
    let answers = store.store.emit(Emit { units, now: None }).await.unwrap();
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().events[0].prev.is_none()));
    for n in 0..700 {
        store.emit(Event::new("t", "x").key(format!("key {n}"))).await.unwrap();
    }
    let claimed = store.claim(queue.id, 5000).await;
    assert_eq!(ids(&claimed).len(), 3700);
    assert!(claimed.slices.len() > 700);
    assert!(store.settle_done(queue.id, &claimed).await.accepted.iter().flatten().all(|taken| *taken));
    assert_eq!(store.stats(queue.id, None).await.unwrap().counts.pending(), 0);
    store.close().await;
}
