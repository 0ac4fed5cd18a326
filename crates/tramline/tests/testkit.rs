//! The test kit: deterministic runs on manual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tramline::testkit::TestKit;
use tramline::{Context, Event, EventId, Outcome, Retry, Schedule, StoredEvent};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_drained_worker_has_run_everything_that_is_due() {
    let kit = TestKit::new().await.unwrap();
    let runs = Arc::new(AtomicU32::new(0));
    let seen = runs.clone();
    let worker = kit.tram().worker("w").topics(["t"]).on_any(move || {
        let seen = seen.clone();
        async move {
            seen.fetch_add(1, Ordering::SeqCst);
        }
    });
    let events: Vec<Event> = (0..500u16).map(|n| Event::new("t", n.to_string())).collect();
    kit.tram().emit(events).await.unwrap();
    assert_eq!(kit.drain_until_idle(&[&worker]).await.unwrap(), 500);
    assert_eq!(runs.load(Ordering::SeqCst), 500);
    let stats = kit.tram().stats("w").await.unwrap();
    assert_eq!(stats.counts.pending(), 0);
}

#[tokio::test]
async fn delayed_events_run_when_the_clock_says_so() {
    let kit = TestKit::new().await.unwrap();
    let worker = kit.tram().worker("w").topics(["t"]).on_any(|| async {});
    worker.subscribe().await.unwrap();
    kit.tram().emit(Event::new("t", "x").delay(MINUTE)).await.unwrap();
    assert_eq!(kit.drain_until_idle(&[&worker]).await.unwrap(), 0);
    kit.advance(MINUTE - Duration::from_millis(1));
    assert_eq!(kit.drain_until_idle(&[&worker]).await.unwrap(), 0);
    kit.advance(Duration::from_millis(1));
    assert_eq!(kit.drain_until_idle(&[&worker]).await.unwrap(), 1);
}

#[tokio::test]
async fn failures_are_retried_on_manual_time_and_then_dead() {
    let kit = TestKit::new().await.unwrap();
    let fail = |cx: Context| async move { Err::<(), _>(format!("try {}", cx.attempt())) };
    let worker = kit.tram().worker("w").topics(["t"]).retry(Retry::constant(3, 5 * MINUTE)).on_any(fail);
    kit.tram().emit(Event::new("t", "x")).await.unwrap();
    for _ in 0..3 {
        assert_eq!(kit.drain_until_idle(&[&worker]).await.unwrap(), 1);
        assert_eq!(kit.drain_until_idle(&[&worker]).await.unwrap(), 0);
        kit.advance(5 * MINUTE);
    }
    let dead = kit.tram().dead("w", EventId(0), 10).await.unwrap();
    assert_eq!((dead.len(), dead[0].attempts, dead[0].error.as_str()), (1, 3, "try 3"));
}

#[tokio::test]
async fn what_handlers_emit_runs_in_other_workers_of_the_same_drain() {
    let kit = TestKit::new().await.unwrap();
    let first = kit.tram().worker("first").topics(["orders"]).on(
        "paid",
        |event: StoredEvent, cx: Context| async move {
            let mail = Event::new("mails", event.payload).kind("receipt");
            cx.tramline().emit(mail).await.map(|_| ())
        },
    );
    let second = kit.tram().worker("second").topics(["mails"]).on("receipt", || async { Outcome::Done });
    kit.tram()
        .emit([Event::new("orders", "1").kind("paid"), Event::new("orders", "2").kind("paid")])
        .await
        .unwrap();
    assert_eq!(kit.drain_until_idle(&[&second, &first]).await.unwrap(), 4);
    kit.assert_emitted("mails", "receipt", 2).await;
    kit.assert_emitted("mails", "other", 0).await;
    kit.assert_emitted("nothing", "x", 0).await;
}

#[tokio::test]
#[should_panic(expected = "events of type \"receipt\" in topic \"mails\"")]
async fn a_wrong_expectation_says_what_was_emitted_instead() {
    let kit = TestKit::new().await.unwrap();
    kit.tram().emit(Event::new("mails", "x").kind("reminder")).await.unwrap();
    kit.assert_emitted("mails", "receipt", 1).await;
}

#[tokio::test]
async fn schedules_run_when_the_clock_says_so() {
    let kit = TestKit::new().await.unwrap();
    let worker = kit.tram().worker("w").topics(["t"]).on_any(|| async {});
    worker.subscribe().await.unwrap();
    kit.tram().put_schedule(Schedule::every("n", MINUTE, Event::new("t", "x").kind("tick"))).await.unwrap();
    assert_eq!(kit.drain_until_idle(&[&worker]).await.unwrap(), 0);
    for _ in 0..3 {
        kit.advance(MINUTE);
        assert_eq!(kit.drain_until_idle(&[&worker]).await.unwrap(), 1);
    }
    kit.assert_emitted("t", "tick", 3).await;
}
