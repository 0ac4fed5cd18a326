//! Hints that are lost, repeated, reordered and late change when work starts, and nothing else.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tramline::model::id::{Incarnation, SubscriptionId};
use tramline::wake::address::open;
use tramline::wake::in_process::InProcess;
use tramline::wake::{Listener, Wake};
use tramline::{Event, EventId, Options, Shutdown, StoredEvent, Tramline};

/// How often whoever waits looks by himself.
const SLOW_POLL: Duration = Duration::from_secs(1);
/// What a busy machine may take for the rest.
const SLACK: Duration = Duration::from_secs(2);

/// What becomes of hints on their way.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// None arrives.
    Lost,
    /// Every other one arrives.
    HalfLost,
    /// Each arrives ten times.
    Repeated,
    /// They arrive in groups, the last one first, and the last group never.
    Reordered,
    /// Each arrives when the third one after it is sent; some never.
    Late,
}

/// Disturbs hints between those who give them and those who hear them.
#[derive(Debug)]
struct Disturbed {
    hints: Arc<dyn Wake>,
    trouble: Trouble,
    held: Mutex<Vec<Vec<SubscriptionId>>>,
}

impl Disturbed {
    fn new(trouble: Trouble) -> Arc<Disturbed> {
        Disturbed::over(Arc::new(InProcess::new()), trouble)
    }

    fn over(hints: Arc<dyn Wake>, trouble: Trouble) -> Arc<Disturbed> {
        Arc::new(Disturbed { hints, trouble, held: Mutex::default() })
    }
}

impl Wake for Disturbed {
    fn notify(&self, subscriptions: &[SubscriptionId]) {
        let mut held = self.held.lock().unwrap();
        held.push(subscriptions.to_vec());
        let due: Vec<Vec<SubscriptionId>> = match self.trouble {
            Trouble::Lost => held.drain(..).take(0).collect(),
            Trouble::HalfLost if held.len() < 2 => Vec::new(),
            Trouble::HalfLost => held.drain(..).take(1).collect(),
            Trouble::Repeated => held.drain(..).flat_map(|hint| vec![hint; 10]).collect(),
            Trouble::Reordered if held.len() < 4 => Vec::new(),
            Trouble::Reordered => held.drain(..).rev().collect(),
            Trouble::Late if held.len() <= 3 => Vec::new(),
            Trouble::Late => held.drain(..1).collect(),
        };
        due.iter().for_each(|hint| self.hints.notify(hint));
    }

    fn listen(&self, to: SubscriptionId) -> Listener {
        self.hints.listen(to)
    }

    fn listen_to_all(&self) -> Listener {
        self.hints.listen_to_all()
    }
}

async fn disturbed(trouble: Trouble) -> Tramline {
    Tramline::with(Options::new("sqlite::memory:").wake(Disturbed::new(trouble))).await.unwrap()
}

/// A worker that runs, and the ids of what it handles.
async fn working(tram: &Tramline, ordered: bool) -> (mpsc::UnboundedReceiver<EventId>, impl AsyncFnOnce()) {
    let (tell, told) = mpsc::unbounded_channel();
    let worker = tram.worker("w").topics(["t"]).on_any(move |event: StoredEvent| {
        let _ = tell.send(event.id);
        async {}
    });
    let worker = if ordered { worker.ordered_by_key() } else { worker };
    worker.subscribe().await.unwrap();
    let shutdown = Shutdown::new();
    let stop = shutdown.clone();
    let running = tokio::spawn(async move { worker.run(stop).await });
    let end = async move || {
        shutdown.start();
        running.await.unwrap().unwrap();
    };
    (told, end)
}

#[tokio::test]
async fn without_any_hint_work_starts_with_the_next_slow_poll() {
    let tram = disturbed(Trouble::Lost).await;
    let (mut told, end) = working(&tram, false).await;
    for _ in 0..3 {
        let start = Instant::now();
        let id = tram.emit(Event::new("t", "x")).await.unwrap().id();
        assert_eq!(told.recv().await, Some(id));
        assert!(start.elapsed() < SLOW_POLL + SLACK, "{:?}", start.elapsed());
    }
    end().await;
}

const TROUBLES: [Trouble; 5] =
    [Trouble::Lost, Trouble::HalfLost, Trouble::Repeated, Trouble::Reordered, Trouble::Late];

#[tokio::test]
async fn whatever_happens_to_hints_everything_runs_as_often_as_without() {
    for trouble in TROUBLES {
        for ordered in [false, true] {
            let tram = disturbed(trouble).await;
            let runs = runs(&tram, &tram, ordered, 200).await;
            assert!(runs.values().all(|runs| *runs == 1), "{trouble:?}, ordered {ordered}: {runs:?}");
        }
    }
}

/// How often each event runs of those that one process emits and another one works on.
async fn runs(emitter: &Tramline, worker: &Tramline, ordered: bool, count: u32) -> HashMap<EventId, u32> {
    let (mut told, end) = working(worker, ordered).await;
    let mut runs: HashMap<EventId, u32> = HashMap::new();
    for n in 0..count {
        let event = Event::new("t", "x").key((n % 7).to_string());
        runs.insert(emitter.emit(event).await.unwrap().id(), 0);
    }
    while runs.values().any(|runs| *runs == 0) {
        *runs.get_mut(&told.recv().await.unwrap()).unwrap() += 1;
    }
    end().await;
    while let Ok(id) = told.try_recv() {
        *runs.get_mut(&id).unwrap() += 1;
    }
    runs
}

fn server(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run ./test"))
}

/// Two processes on one store in Redis, whose hints go over another server and are disturbed on their way to it.
async fn whatever_happens_on_the_way_over(wakes: &str) {
    for trouble in TROUBLES {
        let name = format!("wakes_{:x}", Incarnation::random().0);
        let store = format!("{}?name={name}", server("TRAMLINE_TEST_REDIS"));
        let way = || open(&format!("{wakes}?channel={name}"), None).unwrap();
        let (here, there) = (Options::new(&store), Options::new(&store));
        let emitter = Tramline::with(here.wake(Disturbed::over(way(), trouble))).await.unwrap();
        let worker = Tramline::with(there.wake(way())).await.unwrap();
        let runs = runs(&emitter, &worker, true, 50).await;
        assert!(runs.values().all(|runs| *runs == 1), "{trouble:?}: {runs:?}");
        emitter.close().await;
        worker.close().await;
    }
}

#[tokio::test]
async fn whatever_happens_to_hints_over_redis_everything_runs_as_often_as_without() {
    whatever_happens_on_the_way_over(&server("TRAMLINE_TEST_REDIS")).await;
}

#[tokio::test]
async fn whatever_happens_to_hints_over_nats_everything_runs_as_often_as_without() {
    whatever_happens_on_the_way_over(&server("TRAMLINE_TEST_NATS")).await;
}

/// Hints that arrive start work at once, not with the next slow poll.
#[tokio::test]
async fn a_store_in_redis_is_woken_over_nats() {
    let store = format!("{}?name=wakes_{:x}", server("TRAMLINE_TEST_REDIS"), Incarnation::random().0);
    let options = || Options::new(&store).wake_url(server("TRAMLINE_TEST_NATS"));
    let (emitter, beside) =
        (Tramline::with(options()).await.unwrap(), Tramline::with(options()).await.unwrap());
    let (mut told, end) = working(&beside, false).await;
    // The first ones may be sent before somebody listens.
    let mut quickest = SLOW_POLL;
    for _ in 0..5 {
        let start = Instant::now();
        let id = emitter.emit(Event::new("t", "x")).await.unwrap().id();
        assert_eq!(told.recv().await, Some(id));
        quickest = quickest.min(start.elapsed());
    }
    assert!(quickest < SLOW_POLL / 2, "{quickest:?}");
    end().await;
}
