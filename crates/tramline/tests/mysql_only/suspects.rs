//! Very many suspects at once, as after a moment in which all workers stood still for longer than their leases last.

use crate::bed::{Private, claim, event, ids};
use crate::tracked::Tracked;
use sqlx::{MySqlPool, Row};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, JoinSet};
use tramline::model::id::SubscriptionId;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::verbs::{Claim, Claimed, Emit, Suspects};
use tramline::{Shutdown, Tramline};

/// Every event has a key of its own. They are claimed by a worker that ends, and found to be lost.
async fn lose(store: &Private, events: usize) -> SubscriptionId {
    let queue = store.subscribe("q", Ordering::Key).await.id;
    for first in (0..events).step_by(100) {
        let unit = (first..events.min(first + 100)).map(|n| event(&format!("k{n}"))).collect();
        store.store.emit(Emit { units: vec![unit], now: None }).await.unwrap();
    }
    let lost = Claim { lease: Some(Duration::ZERO), ..claim(queue, events as u32) };
    assert_eq!(ids(&store.store.claim(lost).await.unwrap()).len(), events);
    let leave = Claim { suspects: Suspects::Leave, ..claim(queue, events as u32) };
    let found = store.store.claim(leave).await.unwrap();
    assert!(found.suspects_wait && ids(&found).is_empty());
    queue
}

/// Whoever took a suspect had locked all lanes to find it, read all their suspects, and left them to those who had passed over them and
/// waited for their slow poll: a thousand suspects were worked off at one in a second, the more slowly the more workers there were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_a_suspect_leaves_the_others_to_others() {
    let store = Private::open().await;
    let queue = lose(&store, 100).await;
    // A claim that takes one has to wait with what it has locked.
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    sqlx::raw_sql("SELECT chunk FROM tramline_slice FOR UPDATE").execute(&mut *tx).await.unwrap();
    let mut claims = Vec::new();
    for waiting in 1..=2 {
        let (store, claim) = (store.store.clone(), claim(queue, 64));
        claims.push(tokio::spawn(async move { store.claim(claim).await.unwrap() }));
        until_waiting(&pool, waiting, claims.last().unwrap()).await;
    }
    tx.rollback().await.unwrap();
    for claimed in claims {
        assert_eq!(claimed.await.unwrap().slices.len(), 1, "each has a suspect of a lane of its own");
    }
    store.close().await;
}

/// Waits until so many claims wait to write what they take, or this one has ended because it found nothing. Looking by locking would be
/// in its way, and the server's own list of waiting transactions is not renewed for who reads it often.
async fn until_waiting(pool: &MySqlPool, claims: i64, claim: &JoinHandle<Claimed>) {
    let sql = "SELECT COUNT(*) FROM information_schema.processlist \
               WHERE db = DATABASE() AND info LIKE 'INSERT INTO tramline_slice%'";
    while sqlx::query_scalar::<_, i64>(sql).fetch_one(pool).await.unwrap() < claims && !claim.is_finished() {}
}

/// A claim reads the first suspects of each lane and no more, however many there are.
#[tokio::test]
async fn a_claim_reads_few_of_many_suspects() {
    let store = Private::open().await;
    let queue = lose(&store, 2_000).await;
    for suspects in [Suspects::Leave, Suspects::TakeOne] {
        let sql = store.ordered_claim_sql(&Claim { suspects, ..claim(queue, 64) });
        let now = "SET @tramline_now = CAST(UNIX_TIMESTAMP() AS SIGNED) * 1000 + 1000";
        let status = "SHOW SESSION STATUS LIKE 'Handler_read_next'";
        let rows = store.rows(&format!("{now}; FLUSH STATUS; {}; {status}", sql.join("; "))).await;
        let next: String = rows.last().unwrap().try_get_unchecked(1).unwrap();
        assert!(next.parse::<u64>().unwrap() < 200, "{next} rows were read for {suspects:?}");
    }
    store.close().await;
}

/// Measures; see docs/benchmarks.md.
///
/// ```sh
/// WORKERS=48 ./test --servers cargo test -p tramline --all-features --test mysql_only many_suspects -- --ignored --nocapture
/// ```
#[expect(clippy::print_stdout, reason = "figures for whoever asked for them")]
#[tokio::test]
#[ignore = "measures"]
async fn many_suspects_are_worked_off_by_many_workers() {
    let store = Private::open_with("?max_connections=3").await;
    let events = 600;
    lose(&store, events).await;
    let workers: usize = std::env::var("WORKERS").map_or(8, |n| n.parse().unwrap());
    let (ran, shutdown) = (Arc::new(AtomicUsize::new(0)), Shutdown::new());
    let mut running = JoinSet::new();
    let mut trams = Vec::new();
    for _ in 0..workers {
        trams.push(Tramline::open(&store.url).await.unwrap());
    }
    let (told, start) = (Tracked::on_this_thread(), Instant::now());
    for tram in trams {
        let (ran, all, shutdown) = (ran.clone(), shutdown.clone(), shutdown.clone());
        running.spawn(async move {
            let worker = tram.worker("q").topics(["t"]).ordered_by_key().concurrency(64).on_any(move || {
                if ran.fetch_add(1, Relaxed) + 1 == events {
                    all.start();
                }
                std::future::ready(())
            });
            let ended = worker.run(shutdown).await;
            tram.close().await;
            ended
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap().unwrap();
    }
    let (took, trips) = (start.elapsed(), told.trips());
    println!("{events} suspects, {workers} workers: {took:?}, {trips} round trips");
    store.close().await;
}
