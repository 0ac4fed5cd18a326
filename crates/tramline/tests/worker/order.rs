//! The events of a key: one after the other, whatever becomes of them.

use crate::bed::{MINUTE, Notes, SECOND, counts, event, text};
use crate::support::{Bench, start, until};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tramline::testkit::TestKit;
use tramline::{Context, Counts, Event, EventId, OnExhausted, Outcome, Retry, StoredEvent, Tramline};

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
