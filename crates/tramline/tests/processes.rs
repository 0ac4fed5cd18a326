//! Several processes on one store: hints between them, order, and what a restarted one takes over. Every test runs on a SQLite file
//! and on every server. Time is manual, so a slow poll never helps: what arrives, arrived by a hint.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::stores::{Fresh, Place};
use support::{START, until};
use tokio::sync::mpsc;
use tramline::store::Store;
use tramline::store::sqlite::SqliteStore;
use tramline::{
    Clock, Context, Counts, Event, EventId, ManualClock, NoHooks, Options, Result, Retry, Shutdown,
    StoredEvent, TopicSettings, Tramline, Worker,
};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);
const PLACES: [Place; 6] =
    [Place::SqliteFile, Place::Postgres, Place::Mysql, Place::Redis, Place::RedisCluster, Place::RedisSpread];

/// Processes that share a store and a clock.
struct World {
    fresh: Fresh,
    clock: ManualClock,
}

impl World {
    async fn new(place: Place) -> World {
        World { fresh: Fresh::open(place).await, clock: ManualClock::new(START) }
    }

    async fn process(&self) -> Tramline {
        self.named(None).await
    }

    async fn named(&self, name: Option<&str>) -> Tramline {
        self.with(|options| name.into_iter().fold(options, |options, name| options.name(name))).await
    }

    async fn with(&self, change: impl FnOnce(Options) -> Options) -> Tramline {
        let options = Options::new(self.fresh.url.clone()).clock(Clock::Manual(self.clock.clone()));
        // Time flies in these tests. Nobody shall be called dead, and no lease shall end, for that alone.
        let options = options.hooks(Arc::new(NoHooks)).heartbeat(DAY);
        Tramline::with(change(options)).await.unwrap()
    }

    async fn end(self, processes: &[&Tramline]) {
        for process in processes {
            process.close().await;
        }
        self.fresh.close().await;
    }
}

struct Running {
    shutdown: Shutdown,
    task: tokio::task::JoinHandle<Result<()>>,
}

fn start(worker: Worker) -> Running {
    let shutdown = Shutdown::new();
    let switch = shutdown.clone();
    Running { shutdown, task: tokio::spawn(async move { worker.run(switch).await }) }
}

impl Running {
    async fn stop(self) {
        self.shutdown.start();
        self.task.await.unwrap().unwrap();
    }
}

async fn counts(tram: &Tramline) -> Counts {
    tram.stats("w").await.unwrap().counts
}

fn event(n: usize) -> Event {
    Event::new("t", n.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emit_in_one_process_wakes_a_worker_in_another() {
    for place in PLACES {
        let world = World::new(place).await;
        let (emitter, runner) = (world.process().await, world.process().await);
        let (tell, mut ran) = mpsc::unbounded_channel();
        let worker = runner.worker("w").topics(["t"]).on_any(move |event: StoredEvent| {
            let tell = tell.clone();
            async move { tell.send(event.id).map_err(|_| "gone") }
        });
        worker.subscribe().await.unwrap();
        let running = start(worker);
        for n in 0..20 {
            let id = emitter.emit(event(n)).await.unwrap().id();
            let got = tokio::time::timeout(Duration::from_secs(20), ran.recv()).await;
            assert_eq!(got, Ok(Some(id)), "{place:?}: event {n}");
        }
        running.stop().await;
        world.end(&[&emitter, &runner]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_in_another_process_sees_every_event_as_it_comes() {
    for place in PLACES {
        let world = World::new(place).await;
        let (emitter, reader) = (world.process().await, world.process().await);
        emitter.put_topic("t", TopicSettings::default()).await.unwrap();
        let mut follow = reader.follow("t", EventId(0));
        for n in 0..20 {
            let id = emitter.emit(event(n)).await.unwrap().id();
            let got = tokio::time::timeout(Duration::from_secs(20), follow.next()).await;
            assert_eq!(got.unwrap().unwrap().id, id, "{place:?}: event {n}");
        }
        world.end(&[&emitter, &reader]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resuming_in_one_process_wakes_a_worker_in_another() {
    for place in PLACES {
        let world = World::new(place).await;
        let (admin, runner) = (world.process().await, world.process().await);
        let (tell, mut ran) = mpsc::unbounded_channel();
        let worker = runner.worker("w").topics(["t"]).on_any(move || {
            let tell = tell.clone();
            async move { tell.send(()).map_err(|_| "gone") }
        });
        worker.subscribe().await.unwrap();
        admin.pause("w", "ann", "deploy", None).await.unwrap();
        admin.emit((0..200).map(event).collect::<Vec<_>>()).await.unwrap();
        let running = start(worker);
        until("it is known", || async { !admin.workers().await.unwrap().is_empty() }).await;
        admin.resume("w", "ann", "deployed").await.unwrap();
        for _ in 0..200 {
            let got = tokio::time::timeout(Duration::from_secs(20), ran.recv()).await;
            assert_eq!(got, Ok(Some(())), "{place:?}");
        }
        running.stop().await;
        world.end(&[&admin, &runner]).await;
    }
}

/// Once, events of a key that had been parked and freed came back in two slices of one chunk, the later one first, and ran in
/// that order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_of_a_key_holds_across_processes_that_come_and_go_and_fail() {
    for place in PLACES {
        let world = World::new(place).await;
        let emitter = world.process().await;
        let last: Arc<Mutex<HashMap<String, EventId>>> = Arc::default();
        let wrong: Arc<Mutex<Vec<String>>> = Arc::default();
        let runs = Arc::new(AtomicUsize::new(0));
        let worker = |tram: &Tramline| {
            let (last, wrong, runs) = (last.clone(), wrong.clone(), runs.clone());
            let worker = tram.worker("w").topics(["t"]).ordered_by_key().concurrency(4).lease(DAY);
            worker.retry(Retry::constant(5, Duration::from_millis(1))).on_any(move |cx: Context| {
                let (last, wrong, runs) = (last.clone(), wrong.clone(), runs.clone());
                async move {
                    let event = cx.event();
                    let key = event.key.as_deref().unwrap().to_owned();
                    let before = last.lock().unwrap().get(&key).copied();
                    if before != event.prev {
                        wrong.lock().unwrap().push(format!(
                            "{key}: {} after {before:?}, not {:?}, try {}, crashes {}",
                            event.id,
                            event.prev,
                            cx.attempt(),
                            cx.crashes()
                        ));
                    }
                    tokio::task::yield_now().await;
                    // Some events fail once, so that keys are parked and freed while others are claimed.
                    if runs.fetch_add(1, Ordering::SeqCst) % 7 == 0 && cx.attempt() == 1 {
                        return Err("once more");
                    }
                    last.lock().unwrap().insert(key, event.id);
                    Ok(())
                }
            })
        };
        worker(&emitter).subscribe().await.unwrap();
        for part in 0..10 {
            let events = (0..50).map(|n| event(n).key(format!("k{}", (part * 50 + n) % 23)));
            emitter.emit(events.collect::<Vec<_>>()).await.unwrap();
        }
        let (one, two) = (world.process().await, world.process().await);
        let first = start(worker(&one));
        until("some are done", || async { runs.load(Ordering::SeqCst) > 50 }).await;
        let second = start(worker(&two));
        until("more are done", || async {
            world.clock.advance(Duration::from_millis(1));
            runs.load(Ordering::SeqCst) > 200
        })
        .await;
        first.stop().await;
        until("all are done", || async {
            world.clock.advance(Duration::from_millis(5));
            counts(&emitter).await == Counts::default()
        })
        .await;
        second.stop().await;
        assert_eq!(*wrong.lock().unwrap(), Vec::<String>::new(), "{place:?}");
        assert_eq!(last.lock().unwrap().len(), 23);
        world.end(&[&emitter, &one, &two]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_restarted_under_its_name_goes_on_at_once_with_what_it_held() {
    for place in PLACES {
        let world = World::new(place).await;
        let first = world.named(Some("one")).await;
        let (tell, mut begun) = mpsc::unbounded_channel();
        let hanging = first.worker("w").topics(["t"]).ordered_by_key().on_any(move || {
            tell.send(()).ok();
            std::future::pending::<()>()
        });
        hanging.subscribe().await.unwrap();
        first.emit(event(1).key("k")).await.unwrap();
        let life = start(hanging);
        begun.recv().await.unwrap();
        life.task.abort(); // no goodbye
        assert!(life.task.await.is_err());
        let second = world.named(Some("one")).await;
        let ran = second.worker("w").on_any(|| async {}).drain().await.unwrap();
        assert_eq!(ran, 1, "{place:?}: without any time passing");
        assert_eq!(counts(&second).await, Counts::default());
        world.end(&[&first, &second]).await;
    }
}

/// Lets a second pass, and waits for the heartbeat that comes with it.
async fn beat(world: &World, tram: &Tramline) {
    world.clock.advance(SECOND);
    let now = world.clock.now();
    let beaten = |worker: &tramline::store::verbs::Worker| worker.name == "living" && worker.beat_at == now;
    until("the heartbeat", || async { tram.workers().await.unwrap().iter().any(beaten) }).await;
}

/// Deaths were looked for by sweeps only, which come every ten seconds or so: the leases of the dead lasted as long, and so did their
/// share of the lanes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_process_held_runs_elsewhere_after_three_missed_heartbeats() {
    for place in PLACES {
        let world = World::new(place).await;
        let living = world.with(|options| options.heartbeat(SECOND).name("living")).await;
        let dying = world.with(|options| options.heartbeat(SECOND).name("dying")).await;
        let hang = |tell: mpsc::UnboundedSender<()>| {
            move || {
                tell.send(()).ok();
                std::future::pending::<()>()
            }
        };
        let (tell, mut begun) = mpsc::unbounded_channel();
        let plain = dying.worker("plain").topics(["t"]).lease(DAY).on_any(hang(tell.clone()));
        let ordered = dying.worker("ordered").topics(["t"]).lease(DAY).ordered_by_key().on_any(hang(tell));
        plain.subscribe().await.unwrap();
        ordered.subscribe().await.unwrap();

        // Whoever has just come does not judge others.
        let other = start(living.worker("other").topics(["other"]).on_any(|| async {}));
        until("it is known", || async { !living.workers().await.unwrap().is_empty() }).await;
        for _ in 0..3 {
            beat(&world, &living).await;
        }
        living.emit(event(1).key("k")).await.unwrap();
        let lives = [start(plain), start(ordered)];
        for _ in &lives {
            begun.recv().await.unwrap();
        }
        for life in lives {
            life.task.abort(); // no goodbye
            assert!(life.task.await.is_err());
        }
        let (tell, mut ran) = mpsc::unbounded_channel();
        let heirs = ["plain", "ordered"].map(|name| {
            let tell = tell.clone();
            start(living.worker(name).on_any(move || {
                tell.send(name).ok();
                async {}
            }))
        });
        until("both run", || async {
            living.workers().await.unwrap().iter().any(|worker| worker.subscriptions.len() == 3)
        })
        .await;
        for _ in 0..3 {
            beat(&world, &living).await;
        }
        let mut taken_over = Vec::new();
        for _ in &heirs {
            let one = tokio::time::timeout(Duration::from_secs(20), ran.recv()).await;
            taken_over.extend(one.unwrap_or_else(|_| panic!("{place:?}: only {taken_over:?} ran again")));
        }
        taken_over.sort_unstable();
        assert_eq!(taken_over, ["ordered", "plain"], "{place:?}");
        for running in heirs {
            running.stop().await;
        }
        other.stop().await;
        world.end(&[&living, &dying]).await;
    }
}

/// Sets and removes both rules, beginning with one of the four.
async fn storm(tram: &Tramline, first: usize) {
    for step in first..first + 40 {
        let changed = match step % 4 {
            0 => tram.pause("w", "ann", "storm", None).await,
            1 => tram.block("w", "ann", "storm", None).await,
            2 => tram.resume("w", "ann", "storm").await,
            _ => tram.unblock("w", "ann", "storm").await,
        };
        changed.unwrap();
    }
}

/// Who was stopped in the middle of a claim, or told of a rule that is gone already, neither loses its events nor runs them again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_rules_from_three_processes_runs_every_event_once() {
    const EVENTS: usize = 600;
    for (place, ordered) in PLACES.into_iter().flat_map(|place| [(place, false), (place, true)]) {
        let world = World::new(place).await;
        let (one, other, admin) = (world.process().await, world.process().await, world.process().await);
        let runs: Arc<Mutex<HashMap<EventId, usize>>> = Arc::default();
        let worker = |tram: &Tramline| {
            let worker = tram.worker("w").topics(["t"]).lease(DAY);
            let (worker, runs) = (if ordered { worker.ordered_by_key() } else { worker }, runs.clone());
            worker.on_any(move |event: StoredEvent| {
                *runs.lock().unwrap().entry(event.id).or_default() += 1;
                async {}
            })
        };
        worker(&one).subscribe().await.unwrap();
        let running = [start(worker(&one)), start(worker(&other))];
        let emit = async {
            for n in (0..EVENTS).step_by(10) {
                let events: Vec<Event> = (n..n + 10).map(|n| event(n).key((n % 7).to_string())).collect();
                admin.emit(events).await.unwrap();
            }
        };
        tokio::join!(emit, storm(&one, 0), storm(&other, 1), storm(&admin, 2));
        admin.resume("w", "ann", "calm").await.unwrap();
        admin.unblock("w", "ann", "calm").await.unwrap();
        until("all have run", || async { counts(&admin).await == Counts::default() }).await;
        for running in running {
            running.stop().await;
        }
        let runs = runs.lock().unwrap().clone();
        let once = runs.values().filter(|runs| **runs == 1).count();
        assert_eq!((runs.len(), once), (EVENTS, EVENTS), "{place:?}, ordered: {ordered}");
        world.end(&[&one, &other, &admin]).await;
    }
}

#[tokio::test]
async fn a_closed_database_is_one_file_that_can_be_copied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tramline.db");
    let tram = Tramline::open(&format!("sqlite://{}", path.display())).await.unwrap();
    let id = tram.emit(Event::new("t", "x")).await.unwrap().ids()[0];
    tram.close().await;
    let copy = folder.path().join("copy.db");
    std::fs::copy(&path, &copy).unwrap();
    let tram = Tramline::open(&format!("sqlite://{}", copy.display())).await.unwrap();
    assert!(tram.event(id).await.unwrap().is_some());
}

/// The step that gives a new file its write-ahead log asks for a lock for which SQLite does not wait: of several programs that were
/// started together on a new file, some were refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_that_somebody_else_is_just_creating_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.db");
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE; CREATE TABLE theirs (a)").unwrap();
    let mut opening = tokio::spawn(SqliteStore::open(path));
    let early = tokio::time::timeout(Duration::from_millis(200), &mut opening).await;
    assert!(early.is_err(), "it did not wait: {early:?}");
    other.execute_batch("COMMIT").unwrap();
    let store = opening.await.unwrap().unwrap();
    assert!(store.topics().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_can_be_opened_by_ten_at_once() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..10 {
        let path = folder.path().join(format!("{round}.db"));
        let opening: Vec<_> = (0..10).map(|_| tokio::spawn(SqliteStore::open(path.clone()))).collect();
        for store in opening {
            let store = store.await.unwrap().unwrap();
            assert!(store.topics().await.unwrap().is_empty());
        }
    }
}
