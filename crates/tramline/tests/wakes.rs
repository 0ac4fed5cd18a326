//! Hints that are lost, repeated, reordered and late change when work starts, and nothing else.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tramline::model::id::SubscriptionId;
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
    hints: InProcess,
    trouble: Trouble,
    held: Mutex<Vec<Vec<SubscriptionId>>>,
}

impl Disturbed {
    fn new(trouble: Trouble) -> Arc<Disturbed> {
        Arc::new(Disturbed { hints: InProcess::new(), trouble, held: Mutex::default() })
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

#[tokio::test]
async fn whatever_happens_to_hints_everything_runs_as_often_as_without() {
    for trouble in [Trouble::Lost, Trouble::HalfLost, Trouble::Repeated, Trouble::Reordered, Trouble::Late] {
        for ordered in [false, true] {
            let tram = disturbed(trouble).await;
            let (mut told, end) = working(&tram, ordered).await;
            let mut runs: HashMap<EventId, u32> = HashMap::new();
            for n in 0..200u32 {
                let event = Event::new("t", "x").key((n % 7).to_string());
                runs.insert(tram.emit(event).await.unwrap().id(), 0);
            }
            while runs.values().any(|runs| *runs == 0) {
                *runs.get_mut(&told.recv().await.unwrap()).unwrap() += 1;
            }
            end().await;
            while let Ok(id) = told.try_recv() {
                *runs.get_mut(&id).unwrap() += 1;
            }
            assert!(runs.values().all(|runs| *runs == 1), "{trouble:?}, ordered {ordered}: {runs:?}");
        }
    }
}
