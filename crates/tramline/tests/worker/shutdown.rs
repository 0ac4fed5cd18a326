//! How a run ends: what is begun may finish, the rest goes back, and outcomes are not lost as long as there is time.

use crate::bed::{LONG, MINUTE, SECOND, counts, event, waiting};
use crate::support::{Bench, Held, START, start, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tramline::{Context, Counts, Event, Outcome, Result, Shutdown, Tramline};

/// Lets time pass in steps until the run has ended.
async fn finish(bench: &Bench, running: JoinHandle<Result<()>>, step: Duration) {
    until("the end", || async {
        bench.clock.advance(step);
        running.is_finished()
    })
    .await;
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_stopped_worker_gives_back_at_once_what_it_has_not_begun_and_finishes_the_rest() {
    for ordered in [false, true] {
        let bench = Bench::new().await;
        let tram = bench.process();
        let (worker, mut begun, go_on) = waiting(&tram, ordered);
        let worker = worker.concurrency(1);
        tram.emit((0..4).map(|_| event("x")).collect::<Vec<_>>()).await.unwrap();
        tram.emit((0..6).map(|_| event("y")).collect::<Vec<_>>()).await.unwrap();
        let (shutdown, running) = start(worker);
        begun.recv().await;
        shutdown.start();
        if !ordered {
            until("giving back", || async { counts(&tram).await.ready == 9 }).await;
            assert_eq!(counts(&tram).await.leased, 1);
        }
        go_on.notify_one();
        running.await.unwrap().unwrap();
        let left = counts(&tram).await;
        assert_eq!((left.ready, left.leased), (9, 0), "ordered: {ordered}");
        assert!(begun.try_recv().is_err(), "nothing was begun after the stop");
        assert_eq!(tram.workers().await.unwrap(), []);
    }
}

#[tokio::test]
async fn what_runs_longer_than_the_grace_is_dropped_and_given_back_uncounted() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let (tell, mut begun) = mpsc::unbounded_channel();
    let dropped = Arc::new(AtomicU32::new(0));
    struct OnDrop(Arc<AtomicU32>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let count = dropped.clone();
    let worker = tram.worker("w").topics(["t"]).lease(10 * MINUTE).on_any(move || {
        let (tell, guard) = (tell.clone(), OnDrop(count.clone()));
        async move {
            let _guard = guard;
            tell.send(()).unwrap();
            std::future::pending::<()>().await;
        }
    });
    tram.emit(event("x")).await.unwrap();
    let (shutdown, running) = start(worker);
    begun.recv().await;
    shutdown.start();
    finish(&bench, running, SECOND).await;
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    assert_eq!(counts(&tram).await.ready, 1);
    let runs = tram
        .worker("w")
        .on_any(|cx: Context| async move { assert_eq!((cx.attempt(), cx.crashes()), (1, 0)) });
    assert_eq!(runs.drain().await.unwrap(), 1);
    assert_eq!(counts(&tram).await, Counts::default());
}

#[tokio::test]
async fn a_handler_that_is_told_to_stop_may_tidy_up_and_its_outcome_counts() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let (tell, mut begun) = mpsc::unbounded_channel();
    let worker = tram.worker("w").topics(["t"]).lease(10 * MINUTE).on_any(move |cx: Context| {
        let tell = tell.clone();
        async move {
            tell.send(()).unwrap();
            cx.cancelled().await;
            Outcome::Done
        }
    });
    tram.emit(event("x")).await.unwrap();
    let (shutdown, running) = start(worker);
    begun.recv().await;
    shutdown.start();
    // In small steps: the moment after the grace lasts for a hundred of them.
    finish(&bench, running, SECOND / 100).await;
    assert_eq!(counts(&tram).await, Counts::default());
}

/// A worker that has done one event, and whose settlement waits.
async fn done_but_not_settled(
    bench: &Bench,
    tram: &Tramline,
    once: bool,
) -> (Held, Shutdown, JoinHandle<Result<()>>) {
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
        finish(&bench, running, SECOND / 20).await;
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
    finish(&bench, running, SECOND / 20).await;
    assert_eq!(counts(&tram).await.leased, 1);
}
