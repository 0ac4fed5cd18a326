//! The worker process: three subscriptions, handlers that tell the recorder what they do.

use crate::recorder::{Line, Record};
use crate::scenario::{AT_MOST_ONCE, LEASE, ORDERED, TOPIC, UNORDERED};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tramline::{Context, Retry, Shutdown, Tramline, Worker};

pub(crate) const URL: &str = "TRAMLINE_DISTURBED_URL";
pub(crate) const RECORDER: &str = "TRAMLINE_DISTURBED_RECORDER";

/// Runs until it is killed.
pub(crate) async fn main() {
    let url = std::env::var(URL).unwrap();
    // The database may be out of reach at this very moment.
    let tram = loop {
        match Tramline::open(&url).await {
            Ok(tram) => break tram,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let unordered = worker(&tram, UNORDERED);
    let ordered = worker(&tram, ORDERED).ordered_by_key();
    let at_most_once = worker(&tram, AT_MOST_ONCE).at_most_once();
    let never = Shutdown::new;
    tokio::try_join!(unordered.run(never()), ordered.run(never()), at_most_once.run(never())).unwrap();
}

/// A worker of one subscription; every tenth event fails once.
pub(crate) fn worker(tram: &Tramline, subscription: &'static str) -> Worker {
    let lines = Arc::new(Lines::default());
    tram.worker(subscription)
        .topics([TOPIC])
        .concurrency(8)
        .lease(LEASE)
        .retry(Retry::constant(5, Duration::from_millis(100)))
        .on_any(move |cx: Context| handle(subscription, lines.clone(), cx))
}

async fn handle(subscription: &'static str, lines: Arc<Lines>, cx: Context) -> Result<(), &'static str> {
    let event = cx.event();
    let number: u64 = serde_json::from_slice(&event.payload).unwrap();
    let mut record = Record {
        subscription: subscription.to_owned(),
        process: std::process::id(),
        ended: false,
        id: event.id.0,
        prev: event.prev.map(|prev| prev.0),
        key: event.key.as_deref().map(str::to_owned),
        skipped: cx.skipped().iter().map(|id| id.0).collect(),
        replayed: cx.is_replayed(),
        crashes: cx.crashes(),
        number,
    };
    let mut line = lines.take().await;
    line.record(&record).await;
    record.ended = true;
    line.record(&record).await;
    lines.give(line).await;
    let fails = number.is_multiple_of(10) && cx.attempt() == 1 && subscription != AT_MOST_ONCE;
    if fails { Err("every tenth event fails once") } else { Ok(()) }
}

/// Connections to the recorder; one per handler that runs.
#[derive(Default)]
struct Lines(Mutex<Vec<Line>>);

impl Lines {
    async fn take(&self) -> Line {
        match self.0.lock().await.pop() {
            Some(line) => line,
            None => Line::open(&std::env::var(RECORDER).unwrap()).await,
        }
    }

    async fn give(&self, line: Line) {
        self.0.lock().await.push(line);
    }
}
