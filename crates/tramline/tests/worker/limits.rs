//! Workers under limits: what they claim, when they wait, and what wakes them.

use crate::bed::{LONG, event, waiting};
use crate::support::{Bench, all_wait, start, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tramline::{Event, Limits, Rate, Tramline, Worker};

fn at_most(concurrency: u32) -> Limits {
    Limits { concurrency: Some(concurrency), ..Limits::default() }
}

/// How many handlers run, how many did at once, and how many were done.
#[derive(Default)]
struct Gauge {
    now: AtomicUsize,
    most: AtomicUsize,
    done: AtomicUsize,
}

/// A worker `w` whose handlers let others run before they end.
fn gauged(tram: &Tramline, gauge: &Arc<Gauge>) -> Worker {
    let gauge = gauge.clone();
    tram.worker("w").topics(["t"]).lease(LONG).concurrency(8).on_any(move || {
        let gauge = gauge.clone();
        async move {
            gauge.most.fetch_max(gauge.now.fetch_add(1, SeqCst) + 1, SeqCst);
            tokio::task::yield_now().await;
            gauge.now.fetch_sub(1, SeqCst);
            gauge.done.fetch_add(1, SeqCst);
        }
    })
}

#[tokio::test]
async fn workers_of_two_processes_share_a_limit() {
    for limits in [at_most(3), Limits { per_key_concurrency: Some(3), ..Limits::default() }] {
        let bench = Bench::new().await;
        let gauge = Arc::new(Gauge::default());
        let (anna, bert) = (bench.process(), bench.process());
        let workers = [gauged(&anna, &gauge).limits(limits), gauged(&bert, &gauge).limits(limits)];
        workers[0].subscribe().await.unwrap();
        anna.emit((0..60).map(|_| event("x").key("k")).collect::<Vec<Event>>()).await.unwrap();
        let runs = workers.map(start);
        until("all are done", || async {
            bench.clock.advance(Duration::from_millis(10));
            gauge.done.load(SeqCst) == 60
        })
        .await;
        assert!((1..=3).contains(&gauge.most.load(SeqCst)), "{} ran at once", gauge.most.load(SeqCst));
        for (shutdown, running) in runs {
            shutdown.start();
            running.await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn under_a_limit_nothing_is_claimed_that_could_not_run_at_once() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let (worker, mut begun, go_on) = waiting(&tram, false);
    let worker = worker.concurrency(2).limits(at_most(10));
    worker.subscribe().await.unwrap();
    tram.emit(vec![event("x"); 10]).await.unwrap();
    let (shutdown, running) = start(worker);
    for _ in 0..2 {
        begun.recv().await.unwrap();
    }
    assert_eq!(tram.stats("w").await.unwrap().counts.leased, 2);
    for _ in 0..10 {
        go_on.notify_one();
    }
    shutdown.start();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_settled_event_lets_the_next_one_in_at_once() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let (worker, mut begun, go_on) = waiting(&tram, false);
    let worker = worker.concurrency(4).limits(at_most(1));
    worker.subscribe().await.unwrap();
    tram.emit(vec![event("x"); 3]).await.unwrap();
    let (shutdown, running) = start(worker);
    // The clock stands still: nothing but the settlement can wake the worker.
    for _ in 0..3 {
        begun.recv().await.unwrap();
        go_on.notify_one();
    }
    shutdown.start();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_worker_waits_for_its_rate_without_asking_again() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let gauge = Arc::new(Gauge::default());
    let rate = Rate::new(5, Duration::from_secs(10));
    let worker = gauged(&tram, &gauge).limits(Limits { rate: Some(rate), ..Limits::default() });
    worker.subscribe().await.unwrap();
    tram.emit(vec![event("x"); 10]).await.unwrap();
    let (shutdown, running) = start(worker);
    until("five are done", || async { gauge.done.load(SeqCst) == 5 }).await;
    until("they are settled", || async { tram.stats("w").await.unwrap().counts.ready == 5 }).await;
    let claims = bench.store.calls("claim");
    assert!(claims <= 3, "{claims} claims");
    for _ in 0..9 {
        bench.clock.advance(Duration::from_secs(1));
        all_wait().await;
    }
    assert_eq!(gauge.done.load(SeqCst), 5);
    assert!(bench.store.calls("claim") <= claims + 10, "no more than the slow poll");
    bench.clock.advance(Duration::from_secs(2));
    until("the others are done", || async { gauge.done.load(SeqCst) == 10 }).await;
    shutdown.start();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn draining_ends_where_the_rate_does() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let gauge = Arc::new(Gauge::default());
    let rate = Some(Rate::new(4, Duration::from_secs(60)));
    let worker = gauged(&tram, &gauge).limits(Limits { rate, ..at_most(2) });
    worker.subscribe().await.unwrap();
    tram.emit(vec![event("x"); 10]).await.unwrap();
    assert_eq!(worker.drain().await.unwrap(), 4);
    bench.clock.advance(Duration::from_secs(61));
    assert_eq!(worker.drain().await.unwrap(), 4);
}
