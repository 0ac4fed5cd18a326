//! What can be watched: every step of a worker's run, for metrics and traces.

use crate::engine::context::Context;
use crate::error::Error;
use crate::model::event::Event;
use crate::model::id::EventId;
use crate::model::outcome::Outcome;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Is told what happens. All methods do nothing unless overridden; they run where the work runs, so they must be quick. A panic in
/// one of them is caught, and the first one logged: nothing that they watch is changed by it.
pub trait Hooks: Send + Sync + std::fmt::Debug {
    /// Events were claimed.
    fn claimed(&self, _subscription: &str, _events: usize) {}
    /// A handler starts.
    fn started(&self, _cx: &Context) {}
    /// A handler has ended.
    fn finished(&self, _cx: &Context, _finished: &Finished<'_>) {}
    /// Outcomes were written back.
    fn settled(&self, _subscription: &str, _settled: Settlement) {}
    /// The lease on these events ended before their outcomes were written: they will run again, here or elsewhere.
    fn lease_lost(&self, _subscription: &str, _events: &[EventId]) {}
    /// Buffered events could not be stored and are gone.
    fn dropped(&self, _events: &[Event], _error: &Error) {}
    /// A handler says how far it is.
    fn progress(&self, _cx: &Context, _progress: &Progress) {}
}

/// How a handler ended.
#[derive(Clone, Copy, Debug)]
pub struct Finished<'a> {
    /// What became of the event.
    pub outcome: &'a Outcome,
    /// How long the handler took.
    pub took: Duration,
    /// How long the event was stored before the handler started.
    pub queued: Duration,
}

/// How many outcomes were written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Those that count.
    pub accepted: usize,
    /// Those whose lease was lost.
    pub refused: usize,
}

/// How far a handler is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// From 0 to 100, if it can be said.
    pub percent: Option<f32>,
    /// In words.
    pub text: String,
}

/// The hooks of a program, which may panic: what they watch goes on. A runner that ended in one would leave events in hand, whose
/// leases are extended for ever.
#[derive(Debug)]
pub(crate) struct Guarded {
    hooks: Arc<dyn Hooks>,
    told: AtomicBool,
}

impl Guarded {
    pub(crate) fn around(hooks: Arc<dyn Hooks>) -> Arc<dyn Hooks> {
        Arc::new(Guarded { hooks, told: AtomicBool::new(false) })
    }

    fn tell(&self, tell: impl FnOnce(&dyn Hooks)) {
        let caught = catch_unwind(AssertUnwindSafe(|| tell(&*self.hooks)));
        if caught.is_err() && !self.told.swap(true, Ordering::Relaxed) {
            tracing::error!("hooks panicked; the work goes on, and this is not logged again");
        }
    }
}

impl Hooks for Guarded {
    fn claimed(&self, subscription: &str, events: usize) {
        self.tell(|hooks| hooks.claimed(subscription, events));
    }

    fn started(&self, cx: &Context) {
        self.tell(|hooks| hooks.started(cx));
    }

    fn finished(&self, cx: &Context, finished: &Finished<'_>) {
        self.tell(|hooks| hooks.finished(cx, finished));
    }

    fn settled(&self, subscription: &str, settled: Settlement) {
        self.tell(|hooks| hooks.settled(subscription, settled));
    }

    fn lease_lost(&self, subscription: &str, events: &[EventId]) {
        self.tell(|hooks| hooks.lease_lost(subscription, events));
    }

    fn dropped(&self, events: &[Event], error: &Error) {
        self.tell(|hooks| hooks.dropped(events, error));
    }

    fn progress(&self, cx: &Context, progress: &Progress) {
        self.tell(|hooks| hooks.progress(cx, progress));
    }
}

/// Hooks that do nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}

/// Hooks that write log lines with `tracing`: failures as warnings, the rest at debug level. Never payloads.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogHooks;

impl Hooks for LogHooks {
    fn claimed(&self, subscription: &str, events: usize) {
        tracing::debug!(subscription, events, "claimed");
    }

    fn started(&self, cx: &Context) {
        tracing::debug!(
            event.id = cx.event().id.0,
            subscription = cx.subscription(),
            attempt = cx.attempt(),
            "started"
        );
    }

    fn finished(&self, cx: &Context, finished: &Finished<'_>) {
        let (id, subscription, attempt) = (cx.event().id.0, cx.subscription(), cx.attempt());
        let (took_ms, queued_ms) = (finished.took.as_millis() as u64, finished.queued.as_millis() as u64);
        match finished.outcome {
            Outcome::Done => {
                tracing::debug!(event.id = id, subscription, attempt, took_ms, queued_ms, "done");
            }
            Outcome::Snooze { delay } => {
                let delay_ms = delay.as_millis() as u64;
                tracing::debug!(
                    event.id = id,
                    subscription,
                    attempt,
                    took_ms,
                    queued_ms,
                    delay_ms,
                    "snoozed"
                );
            }
            Outcome::Retry { error, .. } => {
                tracing::warn!(event.id = id, subscription, attempt, took_ms, queued_ms, error, "failed");
            }
            Outcome::Dead { error } => {
                tracing::warn!(event.id = id, subscription, attempt, took_ms, queued_ms, error, "dead");
            }
        }
    }

    fn settled(&self, subscription: &str, settled: Settlement) {
        tracing::debug!(subscription, accepted = settled.accepted, refused = settled.refused, "settled");
    }

    fn lease_lost(&self, subscription: &str, events: &[EventId]) {
        tracing::warn!(
            subscription,
            events = events.len(),
            first.event.id = events.first().map(|id| id.0),
            "lease lost"
        );
    }

    fn progress(&self, cx: &Context, progress: &Progress) {
        let percent = progress.percent.unwrap_or(f32::NAN);
        tracing::info!(
            event.id = cx.event().id.0,
            subscription = cx.subscription(),
            percent,
            "{}",
            progress.text
        );
    }
}
