//! What the library tells of its round trips, of steps that it repeats, and of troubles.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// What was told so far.
#[derive(Clone, Default)]
pub(crate) struct Told {
    trips: Arc<AtomicU64>,
    retried: Arc<Mutex<Vec<u64>>>,
    troubles: Arc<Mutex<Vec<String>>>,
}

impl Told {
    /// Of all threads, and so of all tests that run in this process: for those that run alone.
    pub(crate) fn by_this_process() -> &'static Told {
        static TOLD: OnceLock<Told> = OnceLock::new();
        TOLD.get_or_init(|| {
            let told = Told::default();
            tracing::subscriber::set_global_default(tracing_subscriber::registry().with(told.clone()))
                .unwrap();
            told
        })
    }

    pub(crate) fn forget(&self) {
        self.trips.store(0, Relaxed);
        self.retried.lock().unwrap().clear();
        self.troubles.lock().unwrap().clear();
    }

    pub(crate) fn trips(&self) -> u64 {
        self.trips.load(Relaxed)
    }

    /// The numbers of the server's errors after which a step was repeated.
    pub(crate) fn retried(&self) -> Vec<u64> {
        self.retried.lock().unwrap().clone()
    }

    /// Warnings and errors.
    pub(crate) fn troubles(&self) -> Vec<String> {
        self.troubles.lock().unwrap().clone()
    }
}

/// What is told on this thread, as long as this lives. A test that has one thread is told of nobody else.
pub(crate) struct Tracked {
    told: Told,
    _guard: DefaultGuard,
}

impl Tracked {
    pub(crate) fn on_this_thread() -> Tracked {
        let told = Told::default();
        let subscriber = tracing_subscriber::registry().with(told.clone());
        Tracked { told, _guard: tracing::subscriber::set_default(subscriber) }
    }
}

impl std::ops::Deref for Tracked {
    type Target = Told;

    fn deref(&self) -> &Told {
        &self.told
    }
}

impl<S: tracing::Subscriber> Layer<S> for Told {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let about = event.metadata();
        let mut words = Words::default();
        match about.target() {
            "tramline::query" => {
                self.trips.fetch_add(1, Relaxed);
            }
            "tramline::retry" => {
                event.record(&mut words);
                self.retried.lock().unwrap().push(words.number);
            }
            target if target.starts_with("tramline") && *about.level() <= tracing::Level::WARN => {
                event.record(&mut words);
                self.troubles.lock().unwrap().push(words.text);
            }
            _ => {}
        }
    }
}

/// The words of what is told.
#[derive(Default)]
struct Words {
    text: String,
    number: u64,
}

impl Visit for Words {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "number" {
            self.number = value;
        }
        self.record_debug(field, &value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.text.push_str(&format!("{field}: {value:?} "));
    }
}
