//! Counting statements: the stores say each one to `tracing`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter, Layer};

/// Statements of PostgreSQL (said by sqlx), steps of SQLite's writer, and round trips of MySQL and Redis.
const TARGETS: [&str; 2] = ["sqlx::query", "tramline::query"];

/// Counts statements while it is switched on.
#[derive(Clone, Default)]
pub(crate) struct QueryCounter {
    on: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
}

impl QueryCounter {
    /// Counts from zero.
    pub(crate) fn start(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.on.store(true, Ordering::Relaxed);
    }

    /// Gives how many statements there were.
    pub(crate) fn stop(&self) -> u64 {
        self.on.store(false, Ordering::Relaxed);
        self.count.load(Ordering::Relaxed)
    }
}

impl<S: Subscriber> Layer<S> for QueryCounter {
    fn on_event(&self, _event: &Event<'_>, _cx: Context<'_, S>) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

impl<S> Filter<S> for QueryCounter {
    fn enabled(&self, meta: &Metadata<'_>, _cx: &Context<'_, S>) -> bool {
        TARGETS.contains(&meta.target()) && self.on.load(Ordering::Relaxed)
    }

    fn callsite_enabled(&self, meta: &'static Metadata<'static>) -> Interest {
        if TARGETS.contains(&meta.target()) { Interest::sometimes() } else { Interest::never() }
    }
}
