//! What hooks are told of a run, and what a handler can ask and tell.

use crate::bed::{Notes, SECOND, event};
use crate::support::{Bench, start, until};
use std::sync::Arc;
use std::time::Duration;
use tramline::store::Store;
use tramline::store::verbs::Bury;
use tramline::{Context, EventId, Finished, Hooks, Progress, Settlement};

/// Takes down what it is told.
#[derive(Default)]
struct Told(Notes);

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("notes")
    }
}

impl Hooks for Told {
    fn claimed(&self, subscription: &str, events: usize) {
        self.0.add(format!("{subscription} claimed {events}"));
    }

    fn started(&self, cx: &Context) {
        self.0.add(format!("{} started {}, attempt {}", cx.subscription(), cx.event().id, cx.attempt()));
    }

    fn finished(&self, cx: &Context, finished: &Finished<'_>) {
        let queued = finished.queued.as_secs();
        self.0.add(format!("finished {} after {queued} s: {:?}", cx.event().id, finished.outcome.is_done()));
    }

    fn settled(&self, subscription: &str, settled: Settlement) {
        self.0.add(format!("{subscription} settled {}, refused {}", settled.accepted, settled.refused));
    }

    fn lease_lost(&self, subscription: &str, events: &[EventId]) {
        self.0.add(format!("{subscription} lost {events:?}"));
    }

    fn progress(&self, cx: &Context, progress: &Progress) {
        self.0.add(format!("{}: {:?} {}", cx.event().id, progress.percent, progress.text));
    }
}

#[tokio::test]
async fn hooks_are_told_every_step_of_a_run_in_order() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let told = Arc::new(Told::default());
    let worker = || {
        let worker = tram.worker("w").topics(["t"]).hooks(told.clone());
        worker.on_any(|cx: Context| async move {
            cx.progress(50.0_f32, "half");
            cx.progress(None::<f32>, "somewhere");
            if &*cx.event().payload == b"bad" { Err("no") } else { Ok(()) }
        })
    };
    worker().subscribe().await.unwrap();
    for (payload, done) in [("good", true), ("bad", false)] {
        let id = tram.emit(event(payload)).await.unwrap().id();
        bench.clock.advance(3 * SECOND);
        assert_eq!(worker().drain().await.unwrap(), 1);
        let expected = [
            "w claimed 1".to_owned(),
            format!("w started {id}, attempt 1"),
            format!("{id}: Some(50.0) half"),
            format!("{id}: None somewhere"),
            format!("finished {id} after 3 s: {done}"),
            "w settled 1, refused 0".to_owned(),
        ];
        assert_eq!(told.0.take(), expected);
    }
}

#[tokio::test]
async fn hooks_are_told_that_an_outcome_came_too_late() {
    let bench = Bench::new().await;
    let (tram, other) = (bench.process(), bench.process());
    let told = Arc::new(Told::default());
    let worker = tram.worker("w").topics(["t"]).hooks(told.clone()).on_any(|| async {});
    worker.subscribe().await.unwrap();
    let id = tram.emit(event("x")).await.unwrap().id();
    let mut held = bench.store.hold("settle");
    let (shutdown, running) = start(worker);
    held.begun().await;
    // Somebody takes the worker for dead, and another one does its work.
    let bury = Bury { dead_after: Duration::ZERO, limit: 1, now: Some(bench.clock.now()) };
    assert_eq!(bench.store.bury(bury).await.unwrap().workers, 1);
    assert_eq!(other.worker("w").on_any(|| async {}).drain().await.unwrap(), 1);
    told.0.take();
    held.release();
    until("it is told", || async { told.0.0.lock().unwrap().len() == 2 }).await;
    assert_eq!(told.0.take(), [format!("w lost [{id:?}]"), "w settled 0, refused 1".to_owned()]);
    shutdown.start();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_handler_knows_when_its_lease_ends_and_sees_it_extended() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let (tell, mut contexts) = tokio::sync::mpsc::unbounded_channel();
    let worker = tram.worker("w").topics(["t"]).lease(10 * SECOND).on_any(move |cx: Context| {
        let tell = tell.clone();
        async move {
            tell.send(cx.clone()).unwrap();
            cx.cancelled().await;
        }
    });
    worker.subscribe().await.unwrap();
    tram.emit(event("x")).await.unwrap();
    let (shutdown, running) = start(worker);
    let cx = contexts.recv().await.unwrap();
    assert_eq!(cx.lease_deadline(), bench.clock.now().after(10 * SECOND));
    bench.clock.advance(4 * SECOND);
    until("it is extended", || async { cx.lease_deadline() == bench.clock.now().after(10 * SECOND) }).await;
    running.abort();
    drop(shutdown);
}
