//! Workers beside each other, and the store that goes away.

use crate::bed::{MINUTE, SECOND, counts, event};
use crate::support::{Bench, START, start, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tramline::{Context, Counts, Event, Kind, Shutdown, Take};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspect_runs_with_nothing_else_in_flight_in_its_process() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let in_flight = Arc::new(AtomicUsize::new(0));
    let wrong = Arc::new(AtomicUsize::new(0));
    let handler = |in_flight: Arc<AtomicUsize>, wrong: Arc<AtomicUsize>| {
        move |cx: Context| {
            let (in_flight, wrong) = (in_flight.clone(), wrong.clone());
            async move {
                let now = in_flight.fetch_add(1, Ordering::SeqCst) + 1;
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
                if cx.crashes() > 0 && now.max(in_flight.load(Ordering::SeqCst)) > 1 {
                    wrong.fetch_add(1, Ordering::SeqCst);
                }
                in_flight.fetch_sub(1, Ordering::SeqCst);
            }
        }
    };
    let worker = |name: &str, topic: &str| tram.worker(name).topics([topic]).concurrency(1);
    let suspicious = worker("w", "t").on_any(handler(in_flight.clone(), wrong.clone()));
    let other = worker("other", "o").concurrency(8).on_any(handler(in_flight.clone(), wrong.clone()));
    let subscription = suspicious.subscribe().await.unwrap();
    other.subscribe().await.unwrap();
    tram.emit((0..3).map(|_| event("x")).collect::<Vec<_>>()).await.unwrap();
    // Somebody claims and dies.
    let claim = tramline::store::verbs::Claim {
        subscription: subscription.id,
        owner: tramline::Incarnation(99),
        max_events: 3,
        max_bytes: 1 << 20,
        lease: None,
        suspects: tramline::store::verbs::Suspects::Leave,
        share: tramline::model::lane::Share::ALL,
        known: tramline::model::lane::Known::All,
        single: true,
        now: Some(bench.clock.now()),
    };
    for _ in 0..3 {
        let claimed = tram.store().claim(claim.clone()).await.unwrap();
        if claimed.slices.is_empty() {
            break;
        }
    }
    bench.clock.advance(MINUTE);
    tram.emit((0..500).map(|_| event("x")).collect::<Vec<_>>()).await.unwrap();
    tram.emit((0..500).map(|_| Event::new("o", "x")).collect::<Vec<_>>()).await.unwrap();
    let (first, second) = (start(suspicious), start(other));
    until("all done", || async {
        counts(&tram).await.pending() == 0 && tram.stats("other").await.unwrap().counts.pending() == 0
    })
    .await;
    for (shutdown, running) in [first, second] {
        shutdown.start();
        running.await.unwrap().unwrap();
    }
    assert_eq!(wrong.load(Ordering::SeqCst), 0);
    assert_eq!(counts(&tram).await.dead, 0);
}

#[tokio::test]
async fn an_outage_of_the_store_ends_no_worker_and_loses_nothing() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let runs = Arc::new(AtomicU32::new(0));
    let count = runs.clone();
    let worker = tram.worker("w").topics(["t"]).on_any(move || {
        let count = count.clone();
        async move {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    worker.subscribe().await.unwrap();
    for verb in ["claim", "settle", "beat"] {
        bench.store.fail(verb, Kind::Unavailable);
        bench.store.fail(verb, Kind::Unavailable);
    }
    bench.store.lose_answer("settle");
    tram.emit(event("x")).await.unwrap();
    let (shutdown, running) = start(worker);
    until("it is settled", || async {
        bench.clock.advance(Duration::from_millis(100));
        counts(&tram).await == Counts::default()
    })
    .await;
    shutdown.start();
    until("the end", || async {
        bench.clock.advance(Duration::from_millis(100));
        running.is_finished()
    })
    .await;
    running.await.unwrap().unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_paused_subscription_runs_nothing_and_goes_on_when_resumed() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = tram.worker("w").topics(["t"]).on_any(move || {
        let tell = tell.clone();
        async move { tell.send(()).map_err(|_| "gone") }
    });
    worker.subscribe().await.unwrap();
    tram.pause("w", "ann", "deploy", None).await.unwrap();
    tram.block("w", "root", "audit", None).await.unwrap();
    tram.emit(event("x")).await.unwrap();
    let (shutdown, running) = start(worker);
    until("two looks", || async {
        bench.clock.advance(SECOND);
        bench.store.calls("claim") >= 2
    })
    .await;
    tram.resume("w", "ann", "deployed").await.unwrap();
    let before = bench.store.calls("claim");
    until("a look after the resume", || async {
        bench.clock.advance(SECOND);
        bench.store.calls("claim") > before
    })
    .await;
    assert!(told.try_recv().is_err(), "both rules must be gone");
    tram.unblock("w", "root", "fine").await.unwrap();
    told.recv().await.unwrap();
    let audit: Vec<String> =
        tram.audit("w", 10).await.unwrap().into_iter().map(|entry| entry.action).collect();
    assert_eq!(audit, ["unblock", "resume", "block", "pause"]);
    shutdown.start();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_second_worker_of_a_subscription_in_one_process_is_refused() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let (shutdown, running) = start(tram.worker("w").topics(["t"]).on_any(|| async {}));
    until("it runs", || async { bench.store.calls("claim") > 0 }).await;
    let second = tram.worker("w").on_any(|| async {}).run(Shutdown::new()).await.unwrap_err();
    assert_eq!(second.kind(), Kind::Conflict);
    shutdown.start();
    running.await.unwrap().unwrap();
    let changed = tram.worker("w").topics(["t"]).ordered_by_key().run(Shutdown::new()).await.unwrap_err();
    assert_eq!(changed.kind(), Kind::Conflict);
    let missing = tram.worker("missing").run(Shutdown::new()).await.unwrap_err();
    assert_eq!(missing.kind(), Kind::NotFound);
}

#[tokio::test]
async fn the_living_workers_are_known_by_name_while_they_run() {
    let bench = Bench::new().await;
    let tram = bench.process_with(|options| options.name("mailer-1"));
    let (shutdown, running) = start(tram.worker("w").topics(["t"]).on_any(|| async {}));
    until("it is known", || async { !tram.workers().await.unwrap().is_empty() }).await;
    let workers = tram.workers().await.unwrap();
    assert_eq!((workers.len(), workers[0].name.as_str(), workers[0].subscriptions.len()), (1, "mailer-1", 1));
    shutdown.start();
    running.await.unwrap().unwrap();
    assert_eq!(tram.workers().await.unwrap(), []);
}

#[tokio::test]
async fn what_a_dead_worker_held_is_free_before_its_leases_end() {
    let bench = Bench::new().await;
    let (dying, living) = (bench.process(), bench.process());
    let (tell, mut begun) = mpsc::unbounded_channel();
    let hanging = dying.worker("w").topics(["t"]).lease(60 * MINUTE).on_any(move || {
        tell.send(()).unwrap();
        std::future::pending::<()>()
    });
    dying.emit(event("x")).await.unwrap();
    let (_, running) = start(hanging);
    begun.recv().await;
    running.abort(); // no goodbye
    assert!(running.await.is_err());
    let (shutdown, running) = start(living.worker("w").on_any(|| async {}));
    until("it runs elsewhere", || async {
        bench.clock.advance(SECOND);
        counts(&living).await == Counts::default()
    })
    .await;
    assert!(bench.clock.now() < START.after(10 * MINUTE));
    shutdown.start();
    running.await.unwrap().unwrap();
}

/// Two workers follow one hint: what the first has locked, only to look at it, is not there for the second. It waited for the slow
/// poll, which here never comes: time stands still.
#[tokio::test]
async fn what_another_worker_had_locked_is_looked_for_again_soon() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let worker = tram.worker("w").topics(["t"]).on_any(|| async {});
    let subscription = worker.subscribe().await.unwrap().id;
    tram.emit(event("x")).await.unwrap();
    bench.store.pass_over(2);
    let (shutdown, running) = start(worker);
    until("it is done", || async { counts(&tram).await == Counts::default() }).await;
    shutdown.start();
    running.await.unwrap().unwrap();

    tram.emit(event("x")).await.unwrap();
    bench.store.pass_over(2);
    let (owner, max_bytes) = (tramline::Incarnation(99), 1 << 20);
    let take = Take { subscription, owner, max_events: 1, max_bytes, lease: None };
    let taken = tokio::time::timeout(20 * SECOND, tram.take(&take, std::future::pending())).await;
    assert_eq!(taken.expect("in time").unwrap().slices.len(), 1);
}
