//! Workers whose claims stand in the store while they wait: what their own process emits is in hand when it is stored. By the real clock,
//! because nothing stands by one that a test moves.

use crate::bed::event;
use crate::support::{start, until};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tramline::model::id::Incarnation;
use tramline::model::lane::{Known, Share};
use tramline::store::verbs::{Claim, Suspects};
use tramline::{Context, Tramline};

#[tokio::test]
async fn a_worker_that_waits_is_given_what_its_process_emits() {
    let tram = Tramline::open("sqlite::memory:").await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = tram.worker("w").topics(["t"]).on_any(move |cx: Context| {
        let tell = tell.clone();
        async move { tell.send((cx.event().id, cx.attempt(), cx.crashes())).unwrap() }
    });
    worker.subscribe().await.unwrap();
    let (shutdown, running) = start(worker);
    for _ in 0..100 {
        let id = tram.emit(event("x")).await.unwrap().id();
        assert_eq!(told.recv().await, Some((id, 1, 0)));
    }
    shutdown.start();
    running.await.unwrap().unwrap();
    assert!(told.recv().await.is_none(), "each ran once");
    assert_eq!(tram.stats("w").await.unwrap().counts.pending(), 0);
}

/// A claim may be taken back at the very moment at which it is served. What it was given must then run here, or be given back: if it were
/// lost, its lease would have to end first, and that counts as a crash.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_that_come_and_go_while_others_emit_lose_nothing() {
    const EMITTERS: usize = 4;
    const EACH: usize = 300;
    let tram = Tramline::open("sqlite::memory:").await.unwrap();
    let ran: Arc<Mutex<HashMap<i64, u32>>> = Arc::default();
    let worker = || {
        let ran = ran.clone();
        tram.worker("w").topics(["t"]).concurrency(3).on_any(move |cx: Context| {
            *ran.lock().unwrap().entry(cx.event().id.0).or_default() += 1;
            assert_eq!((cx.attempt(), cx.crashes()), (1, 0));
            async {}
        })
    };
    worker().subscribe().await.unwrap();
    let emitters: Vec<_> = (0..EMITTERS)
        .map(|_| {
            let tram = tram.clone();
            tokio::spawn(async move {
                for _ in 0..EACH {
                    tram.emit(event("x")).await.unwrap();
                }
            })
        })
        .collect();
    let done = || ran.lock().unwrap().len();
    while emitters.iter().any(|emitter| !emitter.is_finished()) {
        let (before, (shutdown, running)) = (done(), start(worker()));
        // Long enough for a claim or two to stand.
        until("something ran", || async { done() > before || emitters.iter().all(|it| it.is_finished()) })
            .await;
        shutdown.start();
        running.await.unwrap().unwrap();
    }
    worker().drain().await.unwrap();
    assert_eq!(tram.stats("w").await.unwrap().counts.pending(), 0);
    assert_eq!(done(), EMITTERS * EACH);
    assert!(ran.lock().unwrap().values().all(|times| *times == 1));
}

/// Whoever is served all the time still has to look at everything once in a while.
#[tokio::test]
async fn what_has_lapsed_runs_although_others_come_all_the_time() {
    let tram = Tramline::open("sqlite::memory:").await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = tram.worker("w").topics(["t"]).on_any(move |cx: Context| {
        let tell = tell.clone();
        async move { tell.send(cx.event().id).unwrap() }
    });
    worker.subscribe().await.unwrap();
    let lapsing = tram.emit(event("x")).await.unwrap().id();
    taken_by_a_stranger(&tram).await;
    let (shutdown, running) = start(worker);
    let seen = async {
        let mut seen = false;
        while !seen {
            let id = tram.emit(event("x")).await.unwrap().id();
            loop {
                let next = told.recv().await.unwrap();
                seen |= next == lapsing;
                if next == id {
                    break;
                }
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), seen).await.expect("what has lapsed runs");
    shutdown.start();
    running.await.unwrap().unwrap();
}

/// For a moment, and never settled.
async fn taken_by_a_stranger(tram: &Tramline) {
    let claim = Claim {
        subscription: tram.subscription("w").await.unwrap().id,
        owner: Incarnation::random(),
        max_events: 1,
        max_bytes: 1 << 20,
        lease: Some(Duration::from_millis(100)),
        suspects: Suspects::Leave,
        share: Share::ALL,
        known: Known::All,
        single: false,
        now: None,
    };
    assert_eq!(tram.store().claim(claim).await.unwrap().slices.len(), 1);
}
