//! A load that goes on while something else is measured: events that are emitted one by one and worked at once.

use super::PAYLOAD;
use super::row::BoxError;
use super::target::Target;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;
use tramline::{Event, Raw, Shutdown, Tramline};

/// Handlers that run at once.
const CONCURRENCY: usize = 64;
/// The keys of ordered events.
const KEYS: u64 = 10_000;

/// How events come.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Callers that emit at the same time, each waiting for its event to be stored.
    pub(super) callers: usize,
    /// Events per second of all of them; `None`: as many as they can.
    pub(super) rate: Option<f64>,
    pub(super) ordered: bool,
}

/// A load that runs.
pub(super) struct Load {
    count: Arc<Count>,
    tram: Tramline,
    beside: Tramline,
    name: String,
    callers: JoinSet<Result<(), tramline::Error>>,
    worker: JoinHandle<tramline::Result<()>>,
    shutdown: Shutdown,
}

struct Count {
    start: Instant,
    over: AtomicBool,
    emitted: AtomicU64,
    handled: AtomicU64,
    /// From emit to handler in milliseconds, since they were last asked for.
    delays: Mutex<Vec<f64>>,
}

impl Load {
    pub(super) async fn start(target: &Target, name: &str, shape: Shape) -> Result<Load, BoxError> {
        let tram = target.open().await?;
        let beside = target.open_beside(&tram).await?;
        Load::on(tram, beside, name, shape).await
    }

    /// Emits by one handle, and works by the other.
    pub(super) async fn on(
        tram: Tramline,
        beside: Tramline,
        name: &str,
        shape: Shape,
    ) -> Result<Load, BoxError> {
        let count = Arc::new(Count {
            start: Instant::now(),
            over: AtomicBool::new(false),
            emitted: AtomicU64::new(0),
            handled: AtomicU64::new(0),
            delays: Mutex::default(),
        });
        let handled = count.clone();
        let worker = beside.worker(name).topics([name]).concurrency(CONCURRENCY).on_any(move |event: Raw| {
            handled.handle(&event.0);
            std::future::ready(())
        });
        let worker = if shape.ordered { worker.ordered_by_key() } else { worker };
        worker.subscribe().await?;
        let shutdown = Shutdown::new();
        let stop = shutdown.clone();
        let worker = tokio::spawn(async move { worker.run(stop).await });
        let mut callers = JoinSet::new();
        for caller in 0..shape.callers {
            callers.spawn(call(tram.clone(), name.to_owned(), count.clone(), shape, caller as u64));
        }
        Ok(Load { count, tram, beside, name: name.to_owned(), callers, worker, shutdown })
    }

    pub(super) fn handled(&self) -> u64 {
        self.count.handled.load(Ordering::Relaxed)
    }

    pub(super) fn emitted(&self) -> u64 {
        self.count.emitted.load(Ordering::Relaxed)
    }

    /// What was emitted and not worked yet.
    pub(super) fn backlog(&self) -> u64 {
        let handled = self.handled();
        self.emitted().saturating_sub(handled)
    }

    /// The delay, in milliseconds, within which 99 of 100 events were worked since this was last asked.
    pub(super) fn p99_ms(&self) -> f64 {
        let mut delays =
            std::mem::take(&mut *self.count.delays.lock().unwrap_or_else(PoisonError::into_inner));
        delays.sort_by(f64::total_cmp);
        delays.get(delays.len() * 99 / 100).copied().unwrap_or(f64::NAN)
    }

    pub(super) async fn stop(mut self) -> Result<(), BoxError> {
        self.count.over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.callers.join_next().await {
            ended??;
        }
        self.shutdown.start();
        self.worker.await??;
        self.tram.delete_subscription(&self.name).await?;
        self.tram.close().await;
        self.beside.close().await;
        Ok(())
    }
}

impl Count {
    fn handle(&self, payload: &[u8]) {
        self.handled.fetch_add(1, Ordering::Relaxed);
        let Some(emitted) = payload.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else { return };
        let delay = self.start.elapsed().saturating_sub(Duration::from_nanos(emitted));
        let mut delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
        delays.push(delay.as_secs_f64() * 1e3);
    }
}

async fn call(
    tram: Tramline,
    topic: String,
    count: Arc<Count>,
    shape: Shape,
    caller: u64,
) -> Result<(), tramline::Error> {
    let pause = shape.rate.map(|rate| Duration::from_secs_f64(shape.callers as f64 / rate));
    let mut clock = pause.map(tokio::time::interval);
    if let Some(clock) = &mut clock {
        // What a slow emit held up is made up for.
        clock.set_missed_tick_behavior(MissedTickBehavior::Burst);
    }
    let mut n = caller;
    while !count.over.load(Ordering::Relaxed) {
        if let Some(clock) = &mut clock {
            clock.tick().await;
        }
        let mut payload = vec![b'x'; PAYLOAD];
        payload[..8].copy_from_slice(&(count.start.elapsed().as_nanos() as u64).to_le_bytes());
        let event = Event::new(&topic, payload).kind("bench");
        let event = if shape.ordered { event.key((n * 7_919 % KEYS).to_string()) } else { event };
        n += shape.callers as u64;
        count.emitted.fetch_add(1, Ordering::Relaxed);
        tram.emit(event).await?;
    }
    Ok(())
}
