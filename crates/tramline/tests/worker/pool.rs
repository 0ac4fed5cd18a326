//! Workers of one process that share the places of a pool.

use crate::bed::{LONG, event, waiting};
use crate::support::{Bench, start, until};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;
use tramline::{Event, Pool, Tramline, Worker};

/// Who started, in this order, and how many ran at once. Handlers end when they are let go.
struct Log {
    starts: Mutex<Vec<&'static str>>,
    now: AtomicUsize,
    most: AtomicUsize,
    go_on: Semaphore,
}

impl Log {
    fn new() -> Arc<Log> {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Log { starts: Mutex::default(), now, most, go_on: Semaphore::new(0) })
    }

    fn count(&self, name: &str) -> usize {
        self.starts.lock().unwrap().iter().filter(|start| **start == name).count()
    }

    fn len(&self) -> usize {
        self.starts.lock().unwrap().len()
    }
}

/// A worker that notes its starts, on a topic of its own name.
fn noting(tram: &Tramline, name: &'static str, log: &Arc<Log>) -> Worker {
    let log = log.clone();
    tram.worker(name).topics([name]).lease(LONG).concurrency(8).on_any(move || {
        let log = log.clone();
        async move {
            log.starts.lock().unwrap().push(name);
            log.most.fetch_max(log.now.fetch_add(1, SeqCst) + 1, SeqCst);
            log.go_on.acquire().await.unwrap().forget();
            log.now.fetch_sub(1, SeqCst);
        }
    })
}

async fn fill(tram: &Tramline, worker: &Worker, events: usize) {
    worker.subscribe().await.unwrap();
    let topic = worker.name().to_owned();
    tram.emit((0..events).map(|_| Event::new(&topic, "x")).collect::<Vec<Event>>()).await.unwrap();
}

/// Runs workers until so many events have started, one after the other: each of `full` always has some in hand.
async fn run(tram: &Tramline, workers: Vec<Worker>, full: &[&str], log: &Log, starts: usize) {
    let runs: Vec<_> = workers.into_iter().map(start).collect();
    while log.len() < starts {
        for name in full {
            until("it has events in hand", || async { tram.stats(name).await.unwrap().counts.leased >= 4 })
                .await;
        }
        let before = log.len();
        log.go_on.add_permits(1);
        until("the next one starts", || async { log.len() > before }).await;
    }
    log.go_on.add_permits(1_000);
    for (shutdown, running) in runs {
        shutdown.start();
        running.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn events_start_in_the_proportion_of_the_weights() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let (pool, log) = (Pool::new(2), Log::new());
    let workers =
        vec![noting(&tram, "heavy", &log).pool(&pool, 3), noting(&tram, "light", &log).pool(&pool, 1)];
    for worker in &workers {
        fill(&tram, worker, 200).await;
    }
    run(&tram, workers, &["heavy", "light"], &log, 80).await;
    let heavy = log.starts.lock().unwrap().iter().take(80).filter(|start| **start == "heavy").count();
    // Whoever was there first had the places for itself.
    assert!((57..=63).contains(&heavy), "{heavy} of 80");
    assert_eq!(log.most.load(SeqCst), 2, "no more than there are places, and all of them");
}

#[tokio::test]
async fn what_one_does_not_need_goes_to_the_others() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let (pool, log) = (Pool::new(3), Log::new());
    let workers =
        vec![noting(&tram, "idle", &log).pool(&pool, 100), noting(&tram, "busy", &log).pool(&pool, 1)];
    workers[0].subscribe().await.unwrap();
    fill(&tram, &workers[1], 60).await;
    run(&tram, workers, &["busy"], &log, 30).await;
    assert_eq!((log.count("idle"), log.most.load(SeqCst)), (0, 3));
}

#[tokio::test]
async fn the_lightest_does_not_starve() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let (pool, log) = (Pool::new(1), Log::new());
    let workers =
        vec![noting(&tram, "heavy", &log).pool(&pool, 20), noting(&tram, "light", &log).pool(&pool, 1)];
    for worker in &workers {
        fill(&tram, worker, 100).await;
    }
    run(&tram, workers, &["heavy", "light"], &log, 60).await;
    assert!(log.count("light") >= 2);
}

#[tokio::test]
async fn whoever_waits_for_a_place_is_given_back_when_its_worker_stops() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let pool = Pool::new(1);
    let (holder, mut begun, go_on) = waiting(&tram, false);
    let holder = holder.pool(&pool, 1);
    holder.subscribe().await.unwrap();
    tram.emit(event("x")).await.unwrap();
    let (holding, held) = start(holder);
    begun.recv().await.unwrap();
    let log = Log::new();
    let other = noting(&tram, "other", &log).pool(&pool, 1);
    fill(&tram, &other, 5).await;
    let (shutdown, running) = start(other);
    until("they are claimed", || async { tram.stats("other").await.unwrap().counts.leased == 5 }).await;
    shutdown.start();
    running.await.unwrap().unwrap();
    assert_eq!((tram.stats("other").await.unwrap().counts.ready, log.len()), (5, 0));
    go_on.notify_one();
    holding.start();
    held.await.unwrap().unwrap();
}
