//! How a run ends when the store is slow: outcomes are not lost as long as there is time.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;
use support::{Bench, START, start, until};
use tokio::sync::mpsc;
use tramline::{Counts, Event, Shutdown, Tramline};

const SECOND: Duration = Duration::from_secs(1);
/// A lease whose end no test waits for.
const LONG: Duration = Duration::from_secs(600);

async fn counts(tram: &Tramline) -> Counts {
    tram.stats("w").await.unwrap().counts
}

/// A worker that has done one event, and whose settlement waits.
async fn done_but_not_settled(
    bench: &Bench,
    tram: &Tramline,
    once: bool,
) -> (support::Held, Shutdown, tokio::task::JoinHandle<tramline::Result<()>>) {
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = tram.worker("w").topics(["t"]).lease(LONG).on_any(move || {
        tell.send(()).unwrap();
        async {}
    });
    let worker = if once { worker.at_most_once() } else { worker };
    let mut settling = bench.store.hold("settle");
    worker.subscribe().await.unwrap();
    tram.emit(Event::new("t", "x")).await.unwrap();
    let (shutdown, running) = start(worker);
    told.recv().await.unwrap();
    settling.begun().await;
    (settling, shutdown, running)
}

/// Lets time pass in small steps until so much of it has passed since the start.
async fn pass(bench: &Bench, time: Duration) {
    until("time passes", || async {
        bench.clock.advance(SECOND / 20);
        bench.clock.now() >= START.after(time)
    })
    .await;
}

#[tokio::test]
async fn a_slow_settlement_may_use_what_is_left_of_the_grace() {
    for once in [false, true] {
        let bench = Bench::new().await;
        let tram = bench.process();
        let (settling, shutdown, running) = done_but_not_settled(&bench, &tram, once).await;
        shutdown.start();
        pass(&bench, 20 * SECOND).await;
        assert!(!running.is_finished(), "once: {once}");
        settling.release();
        running.await.unwrap().unwrap();
        assert_eq!(counts(&tram).await, Counts::default(), "once: {once}");
        assert_eq!(bench.store.calls("settle"), 1, "once: {once}");
    }
}

/// A connection is dead, and nothing ever comes back on it. Another one may do.
#[tokio::test]
async fn a_settlement_that_never_ends_is_tried_once_more() {
    for once in [false, true] {
        let bench = Bench::new().await;
        let tram = bench.process();
        let (_never, shutdown, running) = done_but_not_settled(&bench, &tram, once).await;
        shutdown.start();
        until("the end", || async {
            bench.clock.advance(SECOND / 20);
            running.is_finished()
        })
        .await;
        running.await.unwrap().unwrap();
        assert_eq!(counts(&tram).await, Counts::default(), "once: {once}");
    }
}

#[tokio::test]
async fn a_store_that_never_answers_does_not_keep_a_worker_for_ever() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let (_never, shutdown, running) = done_but_not_settled(&bench, &tram, false).await;
    let _neither = bench.store.hold("settle");
    shutdown.start();
    until("the end", || async {
        bench.clock.advance(SECOND / 20);
        running.is_finished()
    })
    .await;
    running.await.unwrap().unwrap();
    assert_eq!(counts(&tram).await.leased, 1);
}
