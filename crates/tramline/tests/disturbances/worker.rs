//! The worker process: four subscriptions, handlers that tell the recorder what they do.

use crate::process::{JOURNAL, RECORDER, open};
use crate::recorder::{Line, Note, Record, Stage};
use crate::scenario::{AT_MOST_ONCE, JOURNALED, LEASE, ORDERED, TOPIC, UNORDERED};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tramline::{Context, Retry, Shutdown, Tramline, Worker};

/// Runs until it is killed.
pub(crate) async fn main() {
    let tram = open().await;
    let unordered = worker(&tram, UNORDERED);
    let ordered = worker(&tram, ORDERED).ordered_by_key();
    let at_most_once = worker(&tram, AT_MOST_ONCE).at_most_once();
    let journaled = journaled(&tram).journal(std::env::var(JOURNAL).unwrap());
    let never = Shutdown::new;
    tokio::try_join!(
        unordered.run(never()),
        ordered.run(never()),
        at_most_once.run(never()),
        journaled.run(never())
    )
    .unwrap();
}

/// Most of what it claims waits in hand, where a kill finds it.
pub(crate) fn journaled(tram: &Tramline) -> Worker {
    worker(tram, JOURNALED).at_most_once().claim_size(8).concurrency(2)
}

/// A worker of one subscription.
pub(crate) fn worker(tram: &Tramline, subscription: &'static str) -> Worker {
    let lines = Arc::new(Lines::default());
    tram.worker(subscription)
        .topics([TOPIC])
        .concurrency(8)
        .lease(LEASE)
        .retry(Retry::constant(5, Duration::from_millis(100)))
        .on_any(move |cx: Context| handle(subscription, lines.clone(), cx))
}

/// Every tenth event fails once, where it is tried again.
pub(crate) fn fails(number: u64, attempt: u32) -> bool {
    number.is_multiple_of(10) && attempt == 1
}

async fn handle(subscription: &'static str, lines: Arc<Lines>, cx: Context) -> Result<(), &'static str> {
    let event = cx.event();
    let number: u64 = serde_json::from_slice(&event.payload).unwrap();
    let started = Record {
        subscription: subscription.to_owned(),
        process: std::process::id(),
        stage: Stage::Started,
        id: event.id.0,
        prev: event.prev.map(|prev| prev.0),
        key: event.key.as_deref().map(str::to_owned),
        skipped: cx.skipped().iter().map(|id| id.0).collect(),
        attempt: cx.attempt(),
        crashes: cx.crashes(),
        number,
    };
    let fails = fails(number, cx.attempt()) && ![AT_MOST_ONCE, JOURNALED].contains(&subscription);
    let ended = Record { stage: if fails { Stage::Failed } else { Stage::Done }, ..started.clone() };
    let mut line = lines.take().await;
    line.tell(&Note::Ran(started)).await;
    line.tell(&Note::Ran(ended)).await;
    lines.give(line).await;
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
