//! Workers: what runs, what happens to failures, and how a run ends.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{Bench, start, until};
use tokio::sync::{Notify, Semaphore, mpsc};
use tramline::testkit::TestKit;
use tramline::{
    Batch, Context, Counts, Event, EventId, Json, Kind, OnExhausted, Outcome, Proto, Raw, Result, Retry,
    Shutdown, State, StoredEvent, Tramline,
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn event(payload: &str) -> Event {
    Event::new("t", payload.to_owned())
}

fn text(event: &StoredEvent) -> String {
    String::from_utf8(event.payload.to_vec()).unwrap()
}

async fn counts(tram: &Tramline) -> Counts {
    tram.stats("w").await.map(|stats| stats.counts).unwrap_or_default()
}

/// A handler's notes, in the order in which they were taken.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn add(&self, note: impl Into<String>) {
        self.0.lock().unwrap().push(note.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn events_of_one_key_run_one_after_the_other_whatever_the_concurrency() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let running: Arc<Mutex<HashMap<String, EventId>>> = Arc::default();
    let last: Arc<Mutex<HashMap<String, EventId>>> = Arc::default();
    let (in_run, seen) = (running.clone(), last.clone());
    let worker =
        tram.worker("w").topics(["t"]).ordered_by_key().concurrency(16).on_any(move |event: StoredEvent| {
            let (running, last) = (in_run.clone(), seen.clone());
            async move {
                let key = event.key.as_deref().unwrap().to_owned();
                assert_eq!(
                    running.lock().unwrap().insert(key.clone(), event.id),
                    None,
                    "two of {key} at once"
                );
                tokio::task::yield_now().await;
                let before = last.lock().unwrap().insert(key.clone(), event.id);
                assert_eq!(before, event.prev, "{key} out of order");
                running.lock().unwrap().remove(&key);
            }
        });
    worker.subscribe().await.unwrap();
    for _ in 0..20 {
        let events: Vec<Event> = (0..100).map(|n| event("x").key(format!("k{}", n % 37))).collect();
        tram.emit(events).await.unwrap();
    }
    assert_eq!(worker.drain().await.unwrap(), 2_000);
    assert_eq!(counts(&tram).await, Counts::default(), "an assertion in a handler makes its event fail");
    assert_eq!(last.lock().unwrap().len(), 37);
}

/// What a consumer knows of one key.
#[derive(Default)]
struct Seen {
    /// The last event that was done or died.
    last: Option<EventId>,
    /// Those that died since the last one that was done.
    dead: Vec<EventId>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_becomes_of_events_their_keys_stay_in_order_and_gaps_are_told() {
    let bench = Bench::new().await;
    let tram = bench.process_with(|options| options.heartbeat(24 * 60 * MINUTE));
    let seen: Arc<Mutex<HashMap<String, Seen>>> = Arc::default();
    let wrong = Notes::default();
    let (known, faults) = (seen.clone(), wrong.clone());
    let worker = tram.worker("w").topics(["t"]).ordered_by_key().concurrency(8).lease(24 * 60 * MINUTE);
    let worker = worker.retry(Retry::constant(3, Duration::from_millis(2))).on_any(move |cx: Context| {
        let (seen, wrong) = (known.clone(), faults.clone());
        async move {
            let (id, key) = (cx.event().id, cx.event().key.as_deref().unwrap().to_owned());
            {
                let mut all = seen.lock().unwrap();
                let seen = all.entry(key.clone()).or_default();
                let told = seen.dead.iter().all(|dead| cx.skipped().contains(dead));
                if seen.last != cx.event().prev || !told {
                    wrong.add(format!("{key}: {id} after {:?}, dead {:?}", seen.last, seen.dead));
                }
            }
            tokio::task::yield_now().await;
            // Any spread will do, as long as it does not change with the run.
            let outcome = match (id.0 * 31 + i64::from(cx.attempt()) * 17) % 11 {
                0 | 1 => Outcome::retry("again"),
                2 => Outcome::dead("never"),
                3 if id.0 % 2 == 0 && cx.attempt() == 1 => {
                    Outcome::Retry { delay: Some(Duration::ZERO), error: "now".into() }
                }
                _ => Outcome::Done,
            };
            let dies = matches!(outcome, Outcome::Dead { .. })
                || (cx.attempt() == 3 && matches!(outcome, Outcome::Retry { .. }));
            let mut all = seen.lock().unwrap();
            let seen = all.entry(key).or_default();
            if dies {
                seen.last = Some(id);
                seen.dead.push(id);
            } else if outcome.is_done() {
                seen.last = Some(id);
                seen.dead.clear();
            }
            outcome
        }
    });
    worker.subscribe().await.unwrap();
    let (shutdown, running) = start(worker);
    for part in 0..40 {
        let events = (0..50).map(|n| event("x").key(format!("k{}", (part * 13 + n * n) % 19)));
        tram.emit(events.collect::<Vec<_>>()).await.unwrap();
    }
    until("all are done", || async {
        bench.clock.advance(Duration::from_millis(1));
        counts(&tram).await.pending() == 0
    })
    .await;
    shutdown.start();
    running.await.unwrap().unwrap();
    assert_eq!(wrong.take(), Vec::<String>::new());
    let dead = counts(&tram).await.dead;
    assert!(dead > 50, "{dead} died");
}

#[tokio::test]
async fn while_an_event_is_retried_its_key_waits_and_others_go_on() {
    let kit = TestKit::new().await.unwrap();
    let notes = Notes::default();
    let taken = notes.clone();
    let retry = Retry::constant(3, MINUTE);
    let worker =
        kit.tram().worker("w").topics(["t"]).ordered_by_key().retry(retry).on_any(move |cx: Context| {
            let notes = taken.clone();
            async move {
                let what = text(cx.event());
                notes.add(what.clone());
                if what == "a1" && cx.attempt() == 1 { Err("not yet") } else { Ok(()) }
            }
        });
    let all = ["a1", "b1", "a2", "b2", "a3"];
    kit.tram().emit(all.map(|what| event(what).key(&what[..1])).to_vec()).await.unwrap();
    kit.drain_until_idle(&[&worker]).await.unwrap();
    let mut first = notes.take();
    first.sort();
    assert_eq!(first, ["a1", "b1", "b2"]);
    let parked = kit.tram().parked("w", EventId(0), 10).await.unwrap();
    assert_eq!((&*parked[0].key, parked[0].waiting), ("a", 2));
    kit.advance(MINUTE);
    kit.drain_until_idle(&[&worker]).await.unwrap();
    assert_eq!(notes.take(), ["a1", "a2", "a3"]);
}

#[tokio::test]
async fn the_next_event_of_a_key_is_told_which_ones_it_will_never_see() {
    let kit = TestKit::new().await.unwrap();
    let notes = Notes::default();
    let taken = notes.clone();
    let worker = kit.tram().worker("w").topics(["t"]).ordered_by_key().on_any(move |cx: Context| {
        let notes = taken.clone();
        async move {
            let what = text(cx.event());
            notes.add(format!("{what} skipped {}", cx.skipped().len()));
            if what.starts_with("bad") { Outcome::dead("bad") } else { Outcome::Done }
        }
    });
    let all = ["one", "bad two", "bad three", "four", "five"];
    kit.tram().emit(all.map(|what| event(what).key("k")).to_vec()).await.unwrap();
    kit.drain_until_idle(&[&worker]).await.unwrap();
    let expected =
        ["one skipped 0", "bad two skipped 0", "bad three skipped 1", "four skipped 2", "five skipped 0"];
    assert_eq!(notes.take(), expected);
}

#[tokio::test]
async fn a_held_event_keeps_its_key_waiting_until_somebody_replays_it() {
    let kit = TestKit::new().await.unwrap();
    let notes = Notes::default();
    let taken = notes.clone();
    let worker = kit
        .tram()
        .worker("w")
        .topics(["t"])
        .ordered_by_key()
        .retry(Retry::never())
        .on_exhausted(OnExhausted::Hold)
        .on_any(move |event: StoredEvent| {
            let notes = taken.clone();
            async move {
                let first = notes.0.lock().unwrap().is_empty();
                notes.add(text(&event));
                if first { Err("once") } else { Ok(()) }
            }
        });
    kit.tram().emit([event("1").key("k"), event("2").key("k")]).await.unwrap();
    kit.drain_until_idle(&[&worker]).await.unwrap();
    assert_eq!(notes.0.lock().unwrap().clone(), ["1"]);
    assert_eq!(kit.tram().replay("w", tramline::store::verbs::Which::All).await.unwrap(), 1);
    kit.drain_until_idle(&[&worker]).await.unwrap();
    assert_eq!(notes.take(), ["1", "1", "2"]);
}

#[tokio::test]
async fn a_panic_is_a_failure_with_its_text() {
    let kit = TestKit::new().await.unwrap();
    let worker =
        kit.tram().worker("w").topics(["t"]).retry(Retry::never()).on_any(|event: StoredEvent| async move {
            if text(&event) == "bad" {
                panic!("cannot do {}", event.id);
            }
        });
    let receipt = kit.tram().emit([event("good"), event("bad")]).await.unwrap();
    assert_eq!(kit.drain_until_idle(&[&worker]).await.unwrap(), 2);
    let dead = kit.tram().dead("w", EventId(0), 10).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].error, format!("the handler panicked: cannot do {}", receipt.ids()[1]));
}

#[tokio::test]
async fn a_handler_that_takes_too_long_is_stopped_and_tried_again() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let (tell, mut begun) = mpsc::unbounded_channel();
    let worker =
        tram.worker("w").topics(["t"]).time_limit(5 * SECOND).retry(Retry::constant(2, MINUTE)).on_any(
            move |cx: Context| {
                let tell = tell.clone();
                async move {
                    tell.send(cx.attempt()).unwrap();
                    std::future::pending::<()>().await;
                }
            },
        );
    tram.emit(event("x")).await.unwrap();
    let (shutdown, running) = start(worker);
    assert_eq!(begun.recv().await, Some(1));
    bench.clock.advance(5 * SECOND);
    until("the first failure", || async { counts(&tram).await.delayed == 1 }).await;
    bench.clock.advance(MINUTE);
    assert_eq!(begun.recv().await, Some(2));
    bench.clock.advance(5 * SECOND);
    until("the end", || async { counts(&tram).await.dead == 1 }).await;
    let dead = tram.dead("w", EventId(0), 10).await.unwrap();
    assert!(dead[0].error.starts_with("time limit"), "{}", dead[0].error);
    shutdown.start();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_stopped_worker_gives_back_at_once_what_it_has_not_begun_and_finishes_the_rest() {
    for ordered in [false, true] {
        let bench = Bench::new().await;
        let tram = bench.process();
        let (tell, mut begun) = mpsc::unbounded_channel();
        let go_on = Arc::new(Notify::new());
        let may_end = go_on.clone();
        let worker = tram.worker("w").topics(["t"]).concurrency(1).on_any(move || {
            let (tell, go_on) = (tell.clone(), may_end.clone());
            async move {
                tell.send(()).unwrap();
                go_on.notified().await;
            }
        });
        let worker = if ordered { worker.ordered_by_key() } else { worker };
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
    until("the end of the grace", || async {
        bench.clock.advance(SECOND);
        running.is_finished()
    })
    .await;
    running.await.unwrap().unwrap();
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
    until("the end", || async {
        bench.clock.advance(SECOND / 100);
        running.is_finished()
    })
    .await;
    running.await.unwrap().unwrap();
    assert_eq!(counts(&tram).await, Counts::default());
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_the_lanes_and_keep_the_order() {
    let bench = Bench::new().await;
    let last: Arc<Mutex<HashMap<String, EventId>>> = Arc::default();
    // Nobody finishes his first event before the other one has begun his: so both surely have work.
    let both = Arc::new(tokio::sync::Barrier::new(2));
    let worker = |tram: &Tramline, runs: Arc<AtomicUsize>| {
        let (last, both) = (last.clone(), both.clone());
        tram.worker("w").topics(["t"]).ordered_by_key().concurrency(1).on_any(move |event: StoredEvent| {
            let (last, both, runs) = (last.clone(), both.clone(), runs.clone());
            async move {
                if runs.fetch_add(1, Ordering::SeqCst) == 0 {
                    both.wait().await;
                }
                let key = event.key.as_deref().unwrap().to_owned();
                assert_eq!(last.lock().unwrap().insert(key, event.id), event.prev);
            }
        })
    };
    let (one, two) = (bench.process(), bench.process());
    let runs = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
    let first = start(worker(&one, runs[0].clone()));
    let second = start(worker(&two, runs[1].clone()));
    until("both are known", || async { one.workers().await.unwrap().len() == 2 }).await;
    bench.clock.advance(2 * SECOND); // a heartbeat, by which each learns of the other
    let events: Vec<Event> = (0..640).map(|n| event("x").key(format!("k{}", n % 64))).collect();
    one.emit(events).await.unwrap();
    until("all done", || async {
        bench.clock.advance(Duration::from_millis(10));
        counts(&one).await.pending() == 0
    })
    .await;
    for (shutdown, running) in [first, second] {
        shutdown.start();
        running.await.unwrap().unwrap();
    }
    let runs = runs.map(|runs| runs.load(Ordering::SeqCst));
    assert!(runs[0] > 0 && runs[1] > 0 && runs[0] + runs[1] == 640, "{runs:?}");
    assert_eq!(counts(&one).await.dead, 0);
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

#[derive(serde::Deserialize)]
struct Order {
    total: u32,
}

async fn as_json(order: Json<Order>, sum: State<AtomicU32>) {
    sum.fetch_add(order.total, Ordering::SeqCst);
}

async fn as_proto(ping: Proto<u32>, cx: Context) -> Result<Outcome, String> {
    cx.state::<AtomicU32>().fetch_add(ping.0, Ordering::SeqCst);
    Ok(Outcome::Done)
}

async fn as_bytes(
    Raw(bytes): Raw,
    event: StoredEvent,
    cx: Context,
    sum: State<AtomicU32>,
) -> Result<(), String> {
    assert_eq!((bytes.len(), event.id), (3, cx.event().id));
    sum.fetch_add(1_000, Ordering::SeqCst);
    Ok(())
}

#[tokio::test]
async fn handlers_take_what_they_ask_for() {
    let kit = TestKit::new().await.unwrap();
    let (tell, mut sum) = mpsc::unbounded_channel();
    let worker = kit
        .tram()
        .worker("w")
        .topics(["t"])
        .concurrency(1)
        .state(AtomicU32::new(0))
        .on("json", as_json)
        .on("proto", as_proto)
        .on("bytes", as_bytes)
        .on("sum", move |sum: State<AtomicU32>| {
            let tell = tell.clone();
            async move { tell.send(sum.load(Ordering::SeqCst)).unwrap() }
        })
        .on("stateless", |_: State<String>| async {})
        .retry(Retry::never());
    let events = [
        Event::json("t", &serde_json::json!({"total": 1})).unwrap().kind("json"),
        Event::protobuf("t", &10u32).kind("proto"),
        event("abc").kind("bytes"),
        event("{").kind("json"),
        event("{").kind("proto"),
        event("x").kind("unknown"),
        event("x").kind("stateless"),
        event("x").kind("sum").priority(9),
    ];
    kit.tram().emit(events).await.unwrap();
    kit.drain_until_idle(&[&worker]).await.unwrap();
    assert_eq!(sum.recv().await, Some(1_011));
    let dead = kit.tram().dead("w", EventId(0), 10).await.unwrap();
    let errors: Vec<&str> = dead.iter().map(|dead| dead.error.as_str()).collect();
    assert_eq!(errors.len(), 4, "{errors:?}");
    assert!(errors[0].starts_with("the payload is not the JSON"));
    assert!(errors[1].starts_with("the payload is not the message"));
    assert_eq!(errors[2], "no handler for events of type \"unknown\"");
    assert!(errors[3].contains("give it one with .state(value)"));
}

#[tokio::test]
async fn a_batch_handler_answers_for_each_of_its_events() {
    let kit = TestKit::new().await.unwrap();
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let seen = sizes.clone();
    let worker = kit.tram().worker("w").topics(["t"]).concurrency(1).retry(Retry::never()).on_batch(
        "b",
        10,
        move |batch: Batch| {
            seen.lock().unwrap().push(batch.items.len());
            async move {
                let judge = |cx: &Context| {
                    if text(cx.event()) == "7" { Outcome::dead("seven") } else { Outcome::Done }
                };
                batch.items.iter().map(judge).collect::<Vec<_>>()
            }
        },
    );
    let events: Vec<Event> = (0..25).map(|n| event(&n.to_string()).kind("b")).collect();
    kit.tram().emit(events).await.unwrap();
    kit.drain_until_idle(&[&worker]).await.unwrap();
    assert_eq!(*sizes.lock().unwrap(), [10, 10, 5]);
    let stats = kit.tram().stats("w").await.unwrap();
    assert_eq!((stats.counts.dead, stats.counts.pending()), (1, 0));
}

#[tokio::test]
async fn a_snoozed_event_runs_later_and_is_not_counted() {
    let kit = TestKit::new().await.unwrap();
    let runs = Arc::new(AtomicU32::new(0));
    let count = runs.clone();
    let worker = kit.tram().worker("w").topics(["t"]).on_any(move |cx: Context| {
        let run = count.fetch_add(1, Ordering::SeqCst);
        async move {
            assert_eq!(cx.attempt(), 1);
            if run < 5 { Outcome::Snooze { delay: MINUTE } } else { Outcome::Done }
        }
    });
    kit.tram().emit(event("x")).await.unwrap();
    for _ in 0..6 {
        assert_eq!(kit.drain_until_idle(&[&worker]).await.unwrap(), 1);
        kit.advance(MINUTE);
    }
    assert_eq!(kit.drain_until_idle(&[&worker]).await.unwrap(), 0);
    assert_eq!(runs.load(Ordering::SeqCst), 6);
}

#[tokio::test]
async fn slow_neighbours_do_not_delay_what_is_done() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let slow = Arc::new(Semaphore::new(0));
    let may_end = slow.clone();
    let worker =
        tram.worker("w").topics(["t"]).concurrency(4).lease(10 * MINUTE).on_any(move |event: StoredEvent| {
            let slow = may_end.clone();
            async move {
                if text(&event) == "slow" {
                    slow.acquire().await.unwrap().forget();
                }
            }
        });
    worker.subscribe().await.unwrap();
    tram.emit([event("slow"), event("quick"), event("quick")]).await.unwrap();
    let (shutdown, running) = start(worker);
    until("the quick ones are settled", || async {
        bench.clock.advance(Duration::from_millis(100));
        counts(&tram).await.leased == 1
    })
    .await;
    slow.add_permits(1);
    shutdown.start();
    running.await.unwrap().unwrap();
    assert_eq!(counts(&tram).await, Counts::default());
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
    assert!(bench.clock.now() < support::START.after(10 * MINUTE));
    shutdown.start();
    running.await.unwrap().unwrap();
}
