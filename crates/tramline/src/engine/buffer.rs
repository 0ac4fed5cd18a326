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
/// As many events, or bytes, are flushed without waiting, and are stored together at most.
const MANY: Amount = Amount { events: 1_000, bytes: 4 << 20 };
/// For how long a unit is tried, by the clock: a try may take long itself. The one that is under way then is the last.
const PATIENCE: Duration = Duration::from_secs(30);

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
    capacity: Amount,
    state: Mutex<State>,
    /// How many of the events ever taken are stored or dropped.
    through: watch::Sender<u64>,
    hurry: Notify,
    dropped: AtomicU64,
}

/// How many events, and what they weigh.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Amount {
    pub(crate) events: usize,
    pub(crate) bytes: usize,
}

impl Amount {
    fn of(event: &Event) -> Amount {
        let state = event.state.as_ref().map_or(0, |state| state.len());
        Amount { events: 1, bytes: event.weight() + state }
    }

    fn plus(self, more: Amount) -> Amount {
        Amount { events: self.events + more.events, bytes: self.bytes + more.bytes }
    }

    fn less(self, gone: Amount) -> Amount {
        Amount { events: self.events - gone.events, bytes: self.bytes - gone.bytes }
    }

    fn reaches(self, limit: Amount) -> bool {
        self.events >= limit.events || self.bytes >= limit.bytes
    }

    /// Whether both are within it. A single event always is, however large: it would never find more room.
    fn fits(self, limit: Amount) -> bool {
        self.events <= 1 || (self.events <= limit.events && self.bytes <= limit.bytes)
    }
}

#[derive(Debug, Default)]
struct State {
    events: Vec<Event>,
    /// What is in `events`.
    waiting: Amount,
    /// What left `events` but is not stored yet; it still takes room.
    leaving: Amount,
    taken: u64,
    flushing: bool,
    closed: bool,
}

impl Buffer {
    pub(crate) fn new(emitter: Emitter, clock: Clock, hooks: Arc<dyn Hooks>, capacity: Amount) -> Buffer {
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
        let amount = Amount::of(&event);
        let mut state = self.inner.state();
        if state.closed || !state.waiting.plus(state.leaving).plus(amount).fits(self.inner.capacity) {
            let error = if state.closed { closed() } else { full() };
            return Err(Box::new(Rejected { event, error }));
        }
        state.events.push(event);
        state.taken += 1;
        let before = state.waiting;
        state.waiting = before.plus(amount);
        if state.waiting.reaches(MANY) && !before.reaches(MANY) {
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

    /// How many events were dropped because they could not be stored.
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
            if !self.state().waiting.reaches(MANY) {
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
                state.leaving = std::mem::take(&mut state.waiting);
                std::mem::take(&mut state.events)
            };
            for (unit, amount) in units(events) {
                self.store(unit).await;
                let mut state = self.state();
                state.leaving = state.leaving.less(amount);
                drop(state);
                self.through.send_modify(|through| *through += amount.events as u64);
            }
        }
    }

    /// Stores one unit before the next one is tried.
    async fn store(&self, unit: Vec<Event>) {
        match self.insist(&unit).await {
            Ok(()) => {}
            // One of them spoils it for all, and nobody says which.
            Err(error) if error.kind() != Kind::Unavailable && unit.len() > 1 => self.store_each(unit).await,
            Err(error) => self.give_up(&unit, &error),
        }
    }

    /// Stores the events of a unit one by one, in order, and drops only those that cannot be stored.
    async fn store_each(&self, unit: Vec<Event>) {
        let mut rest = unit.into_iter();
        while let Some(event) = rest.next() {
            let alone = [repeatable(event)];
            let Err(error) = self.insist(&alone).await else { continue };
            self.give_up(&alone, &error);
            if error.kind() == Kind::Unavailable {
                // The store has been away for so long: the others would fare no better.
                return self.give_up(rest.as_slice(), &error);
            }
        }
    }

    /// Emits events together, for as long as is sensible.
    async fn insist(&self, unit: &[Event]) -> Result<(), Error> {
        let (start, mut failures) = (self.clock.reading(), 0);
        loop {
            let error = match self.emitter.emit(unit.to_vec()).await {
                Ok(Emission { .. }) => return Ok(()),
                Err(error) => error,
            };
            failures += 1;
            if error.kind() != Kind::Unavailable || self.clock.reading().saturating_sub(start) >= PATIENCE {
                return Err(error);
            }
            self.clock.sleep(backoff::delay(failures)).await;
        }
    }

    fn give_up(&self, events: &[Event], error: &Error) {
        if events.is_empty() {
            return;
        }
        self.dropped.fetch_add(events.len() as u64, Ordering::Relaxed);
        tracing::error!(events = events.len(), error = %error, "buffered events could not be stored and are dropped");
        self.hooks.dropped(events, error);
    }
}

/// Cuts the buffer into units, in order. A flush whose fate is unknown is repeated, so every unit needs an idempotency key:
/// events that bring their own stand alone, runs of others get a random one. Unique ones stand alone too: in one unit no unique key
/// comes twice.
fn units(events: Vec<Event>) -> Vec<(Vec<Event>, Amount)> {
    let mut units: Vec<(Vec<Event>, Amount)> = Vec::new();
    let mut open = false;
    for event in events {
        let (own_key, amount) = (event.idempotency_key.is_some(), Amount::of(&event));
        let alone = own_key || event.unique.is_some();
        match units.last_mut().filter(|(_, so_far)| open && !alone && so_far.plus(amount).fits(MANY)) {
            Some((unit, so_far)) => {
                unit.push(event);
                *so_far = so_far.plus(amount);
            }
            None if own_key => units.push((vec![event], amount)),
            None => units.push((vec![repeatable(event)], amount)),
        }
        open = !alone;
    }
    units
}

/// With an idempotency key that nobody else has.
fn repeatable(event: Event) -> Event {
    event.idempotency_key(format!("buffer:{:x}", Incarnation::random().0))
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
            units.iter().map(|(unit, _)| unit.iter().map(|event| event.payload[0]).collect()).collect();
        assert_eq!(shape, [vec![1, 2], vec![3], vec![4, 5]]);
        assert!(units.iter().all(|(unit, _)| unit[0].idempotency_key.is_some()));
        assert_eq!(units[1].0[0].idempotency_key.as_deref(), Some("mine"));
    }

    #[test]
    fn units_are_small_in_number_and_in_bytes() {
        let sizes = |events: Vec<Event>| units(events).iter().map(|(unit, _)| unit.len()).collect::<Vec<_>>();
        assert_eq!(sizes(vec![Event::new("t", "x"); 2_500]), [1_000, 1_000, 500]);
        assert_eq!(
            sizes(vec![Event::new("t", vec![0; 1 << 20]); 8]),
            [3, 3, 2],
            "what an event weighs beside its payload counts"
        );
    }
}
