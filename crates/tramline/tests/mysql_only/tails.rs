//! Readers of a log that others are writing to.

use crate::bed::{Private, event, open, read_log};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tramline::model::id::EventId;
use tramline::store::Store;
use tramline::store::verbs::Emit;

/// Trap 7, on a topic that is never quiet: four nodes emit without a pause, and a reader that goes by what it is told must see every event
/// in the order of its number. It has to get on, and the emits too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_a_busy_topic_gets_on_and_misses_nothing() {
    let store = Private::open().await;
    store.emit(event("first")).await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let nodes: Vec<_> = (0..4)
        .map(|node| {
            let (url, over) = (store.url.clone(), over.clone());
            tokio::spawn(async move {
                let store = open(&url).await.unwrap();
                let mut emitted = Vec::new();
                while !over.load(SeqCst) {
                    let units = (0..3).map(|n| vec![event(&format!("{node} {n}"))]).collect();
                    for answer in store.emit(Emit { units, now: None }).await.unwrap() {
                        emitted.push(answer.unwrap().events[0].id);
                    }
                }
                store.close().await;
                emitted
            })
        })
        .collect();
    let (mut seen, mut next) = (Vec::new(), EventId(0));
    let read = async {
        while seen.len() < 600 {
            let page = store.read_log(read_log(next)).await.unwrap();
            seen.extend(page.events.iter().map(|event| event.id));
            next = page.next;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), read).await.expect("the reader gets on while others write");
    over.store(true, SeqCst);
    let mut emitted = HashSet::new();
    for node in nodes {
        emitted.extend(node.await.unwrap());
    }
    loop {
        let page = store.read_log(read_log(next)).await.unwrap();
        if page.events.is_empty() {
            break;
        }
        seen.extend(page.events.iter().map(|event| event.id));
        next = page.next;
    }
    assert!(seen.is_sorted_by(|one, two| one < two));
    assert_eq!(seen.len(), emitted.len() + 1);
    store.close().await;
}

/// The story: a reader held one connection and asked for a second one, to prove that the log is complete. One emit wakes all who follow
/// a topic, and each of them waited for what the others held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_readers_than_connections_do_not_wait_for_each_other() {
    let store = Private::open_with("?max_connections=2").await;
    let emitter = open(&store.url).await.unwrap();
    for round in 1..=5 {
        emitter.emit(Emit { units: vec![vec![event("a")]], now: None }).await.unwrap();
        let emit = emitter.emit(Emit { units: vec![vec![event("b")]], now: None });
        let reads = (0..12).map(|_| store.read_log(read_log(EventId(0))));
        let (emitted, pages) = tokio::join!(emit, futures_util::future::join_all(reads));
        emitted.unwrap();
        for page in pages {
            let page = page.expect("a connection is free soon");
            assert!(page.events.len() <= 2 * round);
        }
        assert!(store.log_end("t").await.unwrap() > EventId(0));
    }
    emitter.close().await;
    store.close().await;
}

/// A reader sends emits to the other side of the gate. Those on the first side may be a caller's, and stay for long: neither emits nor
/// readers may wait for them again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_transaction_holds_up_neither_readers_nor_emits() {
    let store = Private::open().await;
    store.emit(event("a")).await.unwrap();
    let mut tx = store.store.pool().begin().await.unwrap();
    let open = store.emit_in(&mut tx, [event("b")]).await.unwrap().events[0].id;
    store.emit(event("c")).await.unwrap();
    let start = std::time::Instant::now();
    for n in 0..20 {
        store.emit(event("d")).await.unwrap();
        let page = store.read_log(read_log(EventId(0))).await.unwrap();
        assert!(page.next < open, "look {n}");
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?} for 20 looks", start.elapsed());
    tx.rollback().await.unwrap();
    assert_eq!(store.read_log(read_log(EventId(0))).await.unwrap().events.len(), 22);
    store.close().await;
}
