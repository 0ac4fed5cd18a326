//! At most once: the claim consumes, and a journal knows what was begun.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{Bench, all_wait, start, until};
use tokio::sync::mpsc;
use tramline::{Event, EventId, Kind, Shutdown, StoredEvent, Tramline, Worker};

type Runs = Arc<Mutex<Vec<String>>>;

fn events(names: &[&str]) -> Vec<Event> {
    names.iter().map(|name| Event::new("t", (*name).to_owned())).collect()
}

/// A worker that hangs on the event called `hang`.
fn worker(tram: &Tramline, runs: &Runs, hang: &'static str, begun: mpsc::UnboundedSender<()>) -> Worker {
    let runs = runs.clone();
    tram.worker("w").topics(["t"]).at_most_once().concurrency(1).claim_size(10).on_any(
        move |event: StoredEvent| {
            let (runs, begun) = (runs.clone(), begun.clone());
            async move {
                let name = String::from_utf8(event.payload.to_vec()).unwrap();
                runs.lock().unwrap().push(name.clone());
                if name == hang {
                    begun.send(()).ok();
                    std::future::pending::<()>().await;
                }
            }
        },
    )
}

/// Runs until it hangs, and ends without a goodbye.
async fn crash(worker: Worker, mut hangs: mpsc::UnboundedReceiver<()>) {
    let life = tokio::spawn(async move { worker.run(Shutdown::new()).await });
    hangs.recv().await.unwrap();
    life.abort();
    assert!(life.await.is_err());
}

async fn dead(tram: &Tramline) -> Vec<String> {
    let dead = tram.dead("w", EventId(0), 10).await.unwrap();
    dead.iter().map(|dead| String::from_utf8(dead.event.payload.to_vec()).unwrap()).collect()
}

async fn crash_and_restart(journal: Option<&Path>) -> (Vec<String>, Vec<String>) {
    let bench = Bench::new().await;
    let runs = Runs::default();
    let with_journal = |worker: Worker| match journal {
        Some(path) => worker.journal(path),
        None => worker,
    };
    let first = bench.process_with(|options| options.name("one"));
    let (begun, hangs) = mpsc::unbounded_channel();
    let life = with_journal(worker(&first, &runs, "b", begun));
    life.subscribe().await.unwrap();
    first.emit(events(&["a", "b", "c", "d"])).await.unwrap();
    crash(life, hangs).await;

    let second = bench.process_with(|options| options.name("one"));
    let (begun, _) = mpsc::unbounded_channel();
    let life = with_journal(worker(&second, &runs, "-", begun));
    life.drain().await.unwrap();
    bench.clock.advance(Duration::from_secs(3600));
    life.drain().await.unwrap();
    let runs = runs.lock().unwrap().clone();
    (runs, dead(&second).await)
}

#[tokio::test]
async fn after_a_crash_nothing_that_was_claimed_runs_again() {
    let (runs, dead) = crash_and_restart(None).await;
    assert_eq!(runs, ["a", "b"]);
    assert_eq!(dead.last().map(String::as_str), Some("d"), "{dead:?}");
    assert!(!dead.is_empty() && dead.contains(&"b".to_owned()));
}

#[tokio::test]
async fn with_a_journal_the_next_life_runs_what_was_never_begun() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let (runs, dead) = crash_and_restart(Some(&journal)).await;
    assert_eq!(runs, ["a", "b", "c", "d"]);
    assert!(dead.contains(&"b".to_owned()), "{dead:?}");
    assert!(!dead.contains(&"c".to_owned()) && !dead.contains(&"d".to_owned()), "{dead:?}");
    assert_eq!(std::fs::metadata(&journal).unwrap().len(), 0, "all is settled");
}

/// It read the journal, made what the first one held ready again, and was only then refused: the next claim brought it a second time.
#[tokio::test]
async fn a_second_run_of_a_worker_leaves_what_the_first_one_holds_alone() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let folder = tempfile::tempdir().unwrap();
    let runs = Runs::default();
    let (begun, mut hangs) = mpsc::unbounded_channel();
    let life = Arc::new(worker(&tram, &runs, "a", begun).journal(folder.path().join("journal")));
    life.subscribe().await.unwrap();
    tram.emit(events(&["a", "b", "c"])).await.unwrap();
    let first = tokio::spawn({
        let life = life.clone();
        async move { life.run(Shutdown::new()).await }
    });
    hangs.recv().await.unwrap();
    assert_eq!(life.run(Shutdown::new()).await.unwrap_err().kind(), Kind::Conflict);
    let counts = tram.stats("w").await.unwrap().counts;
    assert_eq!((counts.ready, counts.leased), (0, 3));
    first.abort();
}

/// A process that is stopped and replaced may go on: what it never began is still its own.
#[tokio::test]
async fn another_process_is_refused_the_journal_of_one_that_has_not_ended() {
    let bench = Bench::new().await;
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let (first, second) = (bench.process(), bench.process());
    let runs = Runs::default();
    let (begun, mut hangs) = mpsc::unbounded_channel();
    let life = worker(&first, &runs, "a", begun).journal(&journal);
    life.subscribe().await.unwrap();
    first.emit(events(&["a", "b", "c"])).await.unwrap();
    let running = tokio::spawn(async move { life.run(Shutdown::new()).await });
    hangs.recv().await.unwrap();
    let (begun, _) = mpsc::unbounded_channel();
    let replacement = worker(&second, &runs, "-", begun).journal(&journal);
    assert_eq!(replacement.drain().await.unwrap_err().kind(), Kind::Conflict);
    let counts = first.stats("w").await.unwrap().counts;
    assert_eq!((counts.ready, counts.leased), (0, 3));
    running.abort();
    assert!(running.await.is_err());
    replacement.drain().await.unwrap();
    assert_eq!(*runs.lock().unwrap(), ["a", "b", "c"]);
}

#[tokio::test]
async fn a_store_that_is_away_is_waited_for_before_the_journal_is_forgotten() {
    let bench = Bench::new().await;
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let runs = Runs::default();
    let (begun, hangs) = mpsc::unbounded_channel();
    let (first, second) = (bench.process(), bench.process());
    let life = worker(&first, &runs, "a", begun).journal(&journal);
    life.subscribe().await.unwrap();
    first.emit(events(&["a", "b"])).await.unwrap();
    crash(life, hangs).await;

    bench.store.fail("adopt", Kind::Unavailable);
    bench.store.lose_answer("adopt");
    let (begun, _hangs) = mpsc::unbounded_channel();
    let (_, running) = start(worker(&second, &runs, "b", begun).journal(&journal));
    for asked in 1..=2 {
        until("it has asked", || async { bench.store.answers("adopt") == asked }).await;
        all_wait().await;
        bench.clock.advance(Duration::from_millis(100));
    }
    until("what was never begun runs", || async { runs.lock().unwrap().len() == 2 }).await;
    assert_eq!(*runs.lock().unwrap(), ["a", "b"]);
    running.abort();
}

#[tokio::test]
async fn a_failure_is_dead_and_never_retried() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let worker = tram.worker("w").topics(["t"]).at_most_once().on_any(|| async { Err::<(), _>("no") });
    tram.emit(events(&["a", "b"])).await.unwrap();
    assert_eq!(worker.drain().await.unwrap(), 2);
    bench.clock.advance(Duration::from_secs(3600));
    assert_eq!(worker.drain().await.unwrap(), 0);
    assert_eq!(dead(&tram).await, ["a", "b"]);
    assert_eq!(tram.resend("w", vec![]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_graceful_stop_gives_back_what_was_not_begun_and_never_what_was() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let runs = Runs::default();
    let (begun, mut hangs) = mpsc::unbounded_channel();
    let life = worker(&tram, &runs, "a", begun);
    life.subscribe().await.unwrap();
    tram.emit(events(&["a", "b", "c"])).await.unwrap();
    let shutdown = Shutdown::new();
    let running = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { life.run(shutdown).await }
    });
    hangs.recv().await.unwrap();
    shutdown.start();
    until("the end of the grace", || async {
        bench.clock.advance(Duration::from_secs(1));
        running.is_finished()
    })
    .await;
    running.await.unwrap().unwrap();
    let counts = tram.stats("w").await.unwrap().counts;
    assert_eq!((counts.ready, counts.leased, counts.dead), (2, 0, 1));
    assert_eq!(dead(&tram).await, ["a"]);
}

#[tokio::test]
async fn a_journal_is_refused_where_it_is_of_no_use() {
    let bench = Bench::new().await;
    let worker = bench.process().worker("w").topics(["t"]).journal("/nowhere/journal").on_any(|| async {});
    assert_eq!(worker.run(Shutdown::new()).await.unwrap_err().kind(), Kind::Invalid);
}
