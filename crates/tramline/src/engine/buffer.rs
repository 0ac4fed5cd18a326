//! Buffered emits, for request handlers that must not wait: flushed every 50 ms, when there are many, on request and when
//! Tramline is closed.

use crate::engine::backoff;
use crate::engine::clock::Clock;
use crate::engine::emit::Emitter;
use crate::engine::hooks::Hooks;
use crate::error::{Error, Kind};
use crate::model::event::Event;
use crate::model::id::Incarnation;
use crate::store::verbs::Emission;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// How long an event waits for company.
const EVERY: Duration = Duration::from_millis(50);
/// As many events are flushed without waiting.
const MANY: usize = 1_000;
/// How often a flush is tried: for about half a minute.
const TRIES: u32 = 12;

/// An event that was not taken, given back so that it is not lost silently.
#[derive(Debug)]
pub struct Rejected {
    /// The event.
    pub event: Event,
    /// `Unavailable`: the buffer is full or closed. Anything else: the event can never be stored.
    pub error: Error,
}

/// Holds events for a moment and stores them in order.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    emitter: Emitter,
    clock: Clock,
    hooks: Arc<dyn Hooks>,
    capacity: usize,
    state: Mutex<State>,
    /// How many of the events ever taken are stored or dropped.
    through: watch::Sender<u64>,
    hurry: Notify,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    events: Vec<Event>,
    /// Events that left `events` but are not stored yet; they still take room.
    leaving: usize,
    taken: u64,
    flushing: bool,
    closed: bool,
}

impl Buffer {
    pub(crate) fn new(emitter: Emitter, clock: Clock, hooks: Arc<dyn Hooks>, capacity: usize) -> Buffer {
        let inner = Inner {
            emitter,
            clock,
            hooks,
            capacity,
            state: Mutex::default(),
            through: watch::Sender::new(0),
            hurry: Notify::new(),
            dropped: AtomicU64::new(0),
        };
        Buffer { inner: Arc::new(inner) }
    }

    /// Takes an event, or gives it back. Never waits.
    pub(crate) fn push(&self, event: Event) -> Result<(), Box<Rejected>> {
        if let Err(error) = event.check() {
            return Err(Box::new(Rejected { event, error }));
        }
        let mut state = self.inner.state();
        if state.closed || state.events.len() + state.leaving >= self.inner.capacity {
            let error = if state.closed { closed() } else { full() };
            return Err(Box::new(Rejected { event, error }));
        }
        state.events.push(event);
        state.taken += 1;
        if state.events.len() == MANY {
            self.inner.hurry.notify_one();
        }
        if !state.flushing {
            state.flushing = true;
            tokio::spawn(self.inner.clone().flush_all());
        }
        Ok(())
    }

    /// Waits until everything taken so far is stored or was reported as dropped. Cancel-safe.
    pub(crate) async fn flush(&self) {
        let (taken, mut through) = (self.inner.state().taken, self.inner.through.subscribe());
        self.inner.hurry.notify_one();
        let _ = through.wait_for(|through| *through >= taken).await;
    }

    /// Takes nothing more, and flushes.
    pub(crate) async fn close(&self) {
        self.inner.state().closed = true;
        self.flush().await;
    }

    /// How many events were dropped because the store could not be reached for too long.
    pub(crate) fn dropped(&self) -> u64 {
        self.inner.dropped.load(Ordering::Relaxed)
    }
}

impl Inner {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs while there is something in the buffer. One flush at a time: that keeps the order.
    async fn flush_all(self: Arc<Self>) {
        loop {
            if self.state().events.len() < MANY {
                tokio::select! {
                    () = self.hurry.notified() => {}
                    () = self.clock.sleep(EVERY) => {}
                }
            }
            let events = {
                let mut state = self.state();
                if state.events.is_empty() {
                    state.flushing = false;
                    return;
                }
                state.leaving = state.events.len();
                std::mem::take(&mut state.events)
            };
            for unit in units(events) {
                let count = unit.len();
                self.store(unit).await;
                self.state().leaving -= count;
                self.through.send_modify(|through| *through += count as u64);
            }
        }
    }

    /// Stores one unit before the next one is tried, for as long as is sensible.
    async fn store(&self, unit: Vec<Event>) {
        let mut failures = 0;
        loop {
            let error = match self.emitter.emit(unit.clone()).await {
                Ok(Emission { .. }) => return,
                Err(error) => error,
            };
            failures += 1;
            if error.kind() != Kind::Unavailable || failures >= TRIES {
                self.dropped.fetch_add(unit.len() as u64, Ordering::Relaxed);
                tracing::error!(events = unit.len(), error = %error, "buffered events could not be stored and are dropped");
                self.hooks.dropped(&unit, &error);
                return;
            }
            self.clock.sleep(backoff::delay(failures)).await;
        }
    }
}

/// Cuts the buffer into units, in order. A flush whose fate is unknown is repeated, so every unit needs an idempotency key:
/// events that bring their own stand alone, runs of others get a random one. Unique ones stand alone too: in one unit no unique key
/// comes twice.
fn units(events: Vec<Event>) -> Vec<Vec<Event>> {
    let mut units: Vec<Vec<Event>> = Vec::new();
    let mut open = false;
    for event in events {
        let own_key = event.idempotency_key.is_some();
        let alone = own_key || event.unique.is_some();
        match units.last_mut().filter(|unit| open && !alone && unit.len() < MANY) {
            Some(unit) => unit.push(event),
            None if own_key => units.push(vec![event]),
            None => units.push(vec![event.idempotency_key(format!("buffer:{:x}", Incarnation::random().0))]),
        }
        open = !alone;
    }
    units
}

fn full() -> Error {
    Error::unavailable("the buffer is full", "emit and wait, shed load, or give the buffer more room")
}

fn closed() -> Error {
    Error::unavailable("this Tramline is closed", "emit before closing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_keep_the_order_and_every_one_can_be_repeated() {
        let plain = |n: u8| Event::new("t", vec![n]);
        let events = vec![plain(1), plain(2), plain(3).idempotency_key("mine"), plain(4), plain(5)];
        let units = units(events);
        let shape: Vec<Vec<u8>> =
            units.iter().map(|unit| unit.iter().map(|event| event.payload[0]).collect()).collect();
        assert_eq!(shape, [vec![1, 2], vec![3], vec![4, 5]]);
        assert!(units.iter().all(|unit| unit[0].idempotency_key.is_some()));
        assert_eq!(units[1][0].idempotency_key.as_deref(), Some("mine"));
    }
}
