//! Policies that change while a worker runs: the store decides what becomes of a failure, and the worker follows.

use crate::bed::{LONG, SECOND};
use crate::support::{Bench, start, until};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tramline::{
    Context, Counts, Event, OnExhausted, Policy, Result, Retry, Shutdown, Start, TopicSettings, Tramline,
};

/// A worker `w` whose handlers wait at gates.
struct Stage {
    bench: Bench,
    tram: Tramline,
    gates: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
    told: mpsc::UnboundedReceiver<String>,
    worker: Option<tramline::Worker>,
}

impl Stage {
    /// One lane. Events tell when they begin; those whose payload begins with `fails` fail once they are let go, the first
    /// time; those that begin with `long` are done once they are let go.
    async fn new(retry: Retry) -> Stage {
        let bench = Bench::new().await;
        let tram = bench.process();
        tram.put_topic("t", TopicSettings::lanes(1)).await.unwrap();
        let gates: Arc<Mutex<HashMap<String, Arc<Semaphore>>>> = Arc::default();
        let (tell, told) = mpsc::unbounded_channel();
        let doors = gates.clone();
        let worker = tram.worker("w").topics(["t"]).ordered_by_key().concurrency(4).lease(LONG).retry(retry);
        let worker = worker.on_any(move |cx: Context| {
            let (tell, doors) = (tell.clone(), doors.clone());
            async move {
                let name = String::from_utf8(cx.event().payload.to_vec()).unwrap();
                tell.send(format!("{name} {}", cx.attempt())).unwrap();
                let waits = name.starts_with("fails") || name.starts_with("long");
                if waits && cx.attempt() == 1 {
                    gate(&doors, &name).acquire().await.unwrap().forget();
                }
                if name.starts_with("fails") && cx.attempt() == 1 { Err("no") } else { Ok(()) }
            }
        });
        worker.subscribe().await.unwrap();
        Stage { bench, tram, gates, told, worker: Some(worker) }
    }

    async fn emit(&self, events: &[(&str, &str)]) {
        let events = events.iter().map(|(name, key)| Event::new("t", (*name).to_owned()).key(*key));
        self.tram.emit(events.collect::<Vec<_>>()).await.unwrap();
    }

    fn start(&mut self) -> (Shutdown, JoinHandle<Result<()>>) {
        start(self.worker.take().unwrap())
    }

    fn let_go(&self, name: &str) {
        gate(&self.gates, name).add_permits(1);
    }

    async fn change(&self, change: impl FnOnce(Policy) -> Policy) {
        let policy = self.tram.subscription("w").await.unwrap().policy;
        self.tram.put_subscription("w", &["t"], change(policy), Start::Now).await.unwrap();
    }

    async fn next(&mut self) -> String {
        tokio::time::timeout(Duration::from_secs(20), self.told.recv()).await.unwrap().unwrap()
    }

    async fn counts(&self) -> Counts {
        self.tram.stats("w").await.unwrap().counts
    }

    async fn until(&self, what: &str, is_true: impl Fn(Counts) -> bool) {
        until(what, || async { is_true(self.counts().await) }).await;
    }
}

fn gate(gates: &Mutex<HashMap<String, Arc<Semaphore>>>, name: &str) -> Arc<Semaphore> {
    gates.lock().unwrap().entry(name.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(0))).clone()
}

/// By the policy of the start the first event is out of attempts, and the second one could go on.
#[tokio::test]
async fn attempts_that_were_raised_meanwhile_keep_the_next_event_of_the_key_waiting() {
    let mut stage = Stage::new(Retry::never()).await;
    stage.emit(&[("fails", "a"), ("behind", "a"), ("long", "b")]).await;
    let (shutdown, running) = stage.start();
    let mut begun = [stage.next().await, stage.next().await];
    begun.sort();
    assert_eq!(begun, ["fails 1", "long 1"]);
    stage.change(|policy| Policy { retry: Retry::constant(3, SECOND), ..policy }).await;
    stage.let_go("fails");
    stage.until("the key waits", |counts| (counts.delayed, counts.parked) == (1, 1)).await;
    stage.bench.clock.advance(SECOND);
    assert_eq!([stage.next().await, stage.next().await], ["fails 2", "behind 1"]);
    stage.let_go("long");
    stage.until("all are done", |counts| counts == Counts::default()).await;
    shutdown.start();
    running.await.unwrap().unwrap();
}

/// By the policy of the start the first event is tried again, and the second one has to wait for it. It runs before the third.
#[tokio::test]
async fn attempts_that_were_lowered_meanwhile_let_the_next_event_of_the_key_go_on() {
    let mut stage = Stage::new(Retry::constant(5, SECOND)).await;
    stage.emit(&[("fails", "a"), ("behind", "a"), ("long", "b")]).await;
    let (shutdown, running) = stage.start();
    let mut begun = [stage.next().await, stage.next().await];
    begun.sort();
    assert_eq!(begun, ["fails 1", "long 1"]);
    stage.change(|policy| Policy { retry: Retry::never(), ..policy }).await;
    stage.let_go("fails");
    stage.until("it is dead", |counts| counts.dead == 1).await;
    stage.emit(&[("third", "a")]).await;
    assert_eq!([stage.next().await, stage.next().await], ["behind 1", "third 1"]);
    stage.let_go("long");
    stage.until("all are done", |counts| counts.pending() == 0).await;
    shutdown.start();
    running.await.unwrap().unwrap();
}

/// The key is to be held since a moment ago: nothing may follow the event that is out of attempts.
#[tokio::test]
async fn a_key_that_is_to_be_held_since_meanwhile_gives_nothing_more() {
    let mut stage = Stage::new(Retry::never()).await;
    stage.emit(&[("fails", "a"), ("behind", "a"), ("long", "b")]).await;
    let (shutdown, running) = stage.start();
    stage.next().await;
    stage.next().await;
    stage.change(|policy| Policy { on_exhausted: OnExhausted::Hold, ..policy }).await;
    stage.let_go("fails");
    stage.until("both are parked", |counts| counts.parked == 2).await;
    stage.let_go("long");
    stage.until("nothing runs", |counts| counts.leased == 0).await;
    shutdown.start();
    running.await.unwrap().unwrap();
    assert!(stage.told.try_recv().is_err());
}

/// The worker is told to stop while the store is being told of the failure: whatever the store makes of it, what follows in
/// the key is free at once, in order and uncounted.
#[tokio::test]
async fn a_stop_while_a_failure_is_settled_gives_back_what_follows_it() {
    for (retry, left) in [
        (Retry::never(), Counts { dead: 1, ready: 2, ..Counts::default() }),
        (Retry::constant(3, SECOND), Counts { delayed: 1, parked: 2, ..Counts::default() }),
    ] {
        let mut stage = Stage::new(Retry::constant(2, SECOND)).await;
        stage.emit(&[("fails", "a"), ("second", "a")]).await;
        stage.emit(&[("third", "a")]).await;
        let (shutdown, running) = stage.start();
        assert_eq!(stage.next().await, "fails 1");
        stage.change(|policy| Policy { retry, ..policy }).await;
        let mut settling = stage.bench.store.hold("settle");
        stage.let_go("fails");
        settling.begun().await;
        shutdown.start();
        settling.release();
        running.await.unwrap().unwrap();
        assert_eq!(stage.counts().await, left);
        assert!(stage.told.try_recv().is_err(), "something began after the stop");
    }
}
