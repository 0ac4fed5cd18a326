//! What the tests of the engine share: a store that can be disturbed, and waiting for a condition.
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "every test file uses a part of it, and a test fails by panicking"
)]

mod disturbed;
#[path = "../stores/mod.rs"]
pub mod stores;

pub use disturbed::{Disturbed, Held};

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tramline::{Clock, ManualClock, NoHooks, Options, Result, Shutdown, SqliteStore, Store, Time, Tramline};

/// Where manual clocks start.
pub const START: Time = Time(1_893_456_000_000);

/// Waits until `condition` is true, by letting others run. Fails after 20 seconds.
pub async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let wait = async {
        while !condition().await {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), wait).await.is_ok(), "never came true: {what}");
}

/// Lets all others run until each of them waits for something: a chain of wake-ups is never that long. Exact where a test has one
/// thread, and nothing in the chain waits for time or for the store.
pub async fn all_wait() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

/// Runs a worker in the background.
pub fn start(worker: tramline::Worker) -> (Shutdown, JoinHandle<Result<()>>) {
    let shutdown = Shutdown::new();
    let running = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { worker.run(shutdown).await }
    });
    (shutdown, running)
}

/// Runs a test of the engine on every store.
#[macro_export]
macro_rules! on_every_store {
    ($($(#[$doc:meta])* async fn $name:ident($bench:ident: &Bench) $body:block)*) => {$(
        mod $name {
            use super::*;
            $(#[$doc])*
            async fn test($bench: &Bench) $body

            #[tokio::test]
            async fn sqlite() {
                test(&Bench::new().await).await;
            }

            #[tokio::test]
            async fn postgres() {
                let (bench, fresh) = Bench::on(support::stores::Place::Postgres).await;
                test(&bench).await;
                fresh.close().await;
            }

            #[tokio::test]
            async fn mysql() {
                let (bench, fresh) = Bench::on(support::stores::Place::Mysql).await;
                test(&bench).await;
                fresh.close().await;
            }

            #[tokio::test]
            async fn redis() {
                let (bench, fresh) = Bench::on(support::stores::Place::Redis).await;
                test(&bench).await;
                fresh.close().await;
            }

            #[tokio::test]
            async fn redis_cluster() {
                let (bench, fresh) = Bench::on(support::stores::Place::RedisCluster).await;
                test(&bench).await;
                fresh.close().await;
            }

            #[tokio::test]
            async fn redis_spread() {
                let (bench, fresh) = Bench::on(support::stores::Place::RedisSpread).await;
                test(&bench).await;
                fresh.close().await;
            }
        }
    )*};
}

/// A store that can be disturbed, with a clock to turn.
pub struct Bench {
    pub store: Arc<Disturbed>,
    pub clock: ManualClock,
}

impl Bench {
    /// In memory.
    pub async fn new() -> Bench {
        Bench::over(Arc::new(SqliteStore::in_memory().await.unwrap()))
    }

    /// On a fresh store, which is to be closed.
    pub async fn on(place: stores::Place) -> (Bench, stores::Fresh) {
        let fresh = stores::Fresh::open(place).await;
        (Bench::over(fresh.store.clone()), fresh)
    }

    fn over(store: Arc<dyn Store>) -> Bench {
        Bench { store: Arc::new(Disturbed::new(store)), clock: ManualClock::new(START) }
    }

    /// Lets a little time pass, but never so much that `end` has passed since the start. It stands still while the store works, which
    /// would otherwise be late for a test on a slow machine.
    pub fn tick_until(&self, end: Duration) {
        if self.clock.now().since(START) < end && !self.store.is_at_work() {
            self.clock.advance(Duration::from_millis(100));
        }
    }

    /// A process of its own on the store.
    pub fn process(&self) -> Tramline {
        self.process_with(|options| options)
    }

    pub fn process_with(&self, change: impl FnOnce(Options) -> Options) -> Tramline {
        let options = Options::new("").clock(Clock::Manual(self.clock.clone())).hooks(Arc::new(NoHooks));
        Tramline::from_store(self.store.clone(), change(options))
    }
}
