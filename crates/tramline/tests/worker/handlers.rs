//! Handlers: what they take, and what happens when they fail.

use crate::bed::{MINUTE, SECOND, counts, event, text};
use crate::support::{Bench, start, until};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tramline::testkit::TestKit;
use tramline::{
    Batch, Context, Counts, Event, EventId, Finished, Hooks, Json, Outcome, Proto, Raw, Result, Retry, State,
    StoredEvent,
};

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

#[derive(Debug)]
struct Panicking;

impl Hooks for Panicking {
    fn claimed(&self, _: &str, _: usize) {
        panic!("on purpose");
    }

    fn started(&self, _: &Context) {
        panic!("on purpose");
    }

    fn finished(&self, _: &Context, _: &Finished<'_>) {
        panic!("on purpose");
    }
}

/// A runner that ended in a hook left events in hand, and their leases were extended for ever.
#[tokio::test]
async fn hooks_that_panic_change_nothing() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let worker = tram.worker("w").topics(["t"]).concurrency(1).hooks(Arc::new(Panicking));
    let worker = worker
        .on_any(|| async {})
        .on_batch("b", 10, |batch: Batch| async move { vec![Outcome::Done; batch.items.len()] });
    worker.subscribe().await.unwrap();
    tram.emit([event("x"), event("x"), event("x").kind("b"), event("x").kind("b")]).await.unwrap();
    let (shutdown, running) = start(worker);
    until("all is done", || async { counts(&tram).await == Counts::default() }).await;
    shutdown.start();
    running.await.unwrap().unwrap();
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
