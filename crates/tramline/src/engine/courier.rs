//! Takes the news of tallies to whom they concern: emits their events, and wakes those who wait for them.

use crate::engine::backoff;
use crate::engine::clock::Clock;
use crate::error::{Kind, Result};
use crate::model::id::{SubscriptionId, TallyId};
use crate::store::Store;
use crate::store::verbs_tally::Deliver;
use crate::wake::Wake;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How many pieces of news one step delivers.
const LIMIT: u32 = 100;
/// How often a step is tried before it is left to the next sweep.
const TRIES: u32 = 6;
/// How long the last one may take when everything ends.
const LAST_ERRAND: Duration = Duration::from_secs(2);

/// Delivers in the background, one step at a time.
#[derive(Debug)]
pub(crate) struct Courier {
    store: Arc<dyn Store>,
    clock: Clock,
    wake: Arc<dyn Wake>,
    errand: Mutex<Errand>,
    stop: CancellationToken,
    errands: TaskTracker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Errand {
    None,
    Running,
    /// Running, and something new may have come since it looked.
    Again,
}

impl Courier {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Clock, wake: Arc<dyn Wake>) -> Arc<Courier> {
        let (stop, errands) = (CancellationToken::new(), TaskTracker::new());
        Arc::new(Courier { store, clock, wake, errand: Mutex::new(Errand::None), stop, errands })
    }

    /// Waits for the errand under way, but not for long: perhaps nobody drives it any more. What it leaves undone, the next sweep
    /// does, whose ever that is. No other one begins.
    pub(crate) async fn close(&self) {
        self.errands.close();
        let _ = tokio::time::timeout(LAST_ERRAND, self.errands.wait()).await;
        self.stop.cancel();
    }

    /// Some tallies may have news. Returns at once; what this process cannot deliver, a later sweep does.
    pub(crate) fn send(self: &Arc<Self>, tallies: &[TallyId]) {
        if !tallies.is_empty() {
            self.ring(tallies);
            self.look();
        }
    }

    /// There may be news, and nobody knows of whom.
    pub(crate) fn look(self: &Arc<Self>) {
        if self.stop.is_cancelled() || !self.begin() {
            return;
        }
        // Nothing is locked here: a runtime that shuts down refuses the task, and drops it at once.
        let errand = run(Running { courier: self.clone(), is_over: false });
        let stop = self.stop.clone();
        self.errands.spawn(async move { stop.run_until_cancelled(errand).await });
    }

    /// True if an errand has to begin; else the one under way looks again.
    fn begin(&self) -> bool {
        let mut errand = self.errand();
        let is_new = *errand == Errand::None;
        *errand = if is_new { Errand::Running } else { Errand::Again };
        is_new
    }

    /// Delivers all that is there.
    pub(crate) async fn deliver_all(&self) -> Result<u64> {
        let mut count = 0;
        loop {
            let delivered = self.store.deliver(Deliver { limit: LIMIT, now: self.clock.now() }).await?;
            count += delivered.count;
            self.wake.notify(&delivered.wake);
            self.ring(&delivered.completed);
            if !delivered.more {
                return Ok(count);
            }
        }
    }

    fn errand(&self) -> MutexGuard<'_, Errand> {
        self.errand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, tallies: &[TallyId]) {
        if !tallies.is_empty() {
            let bells: Vec<SubscriptionId> = tallies.iter().map(|tally| tally.bell()).collect();
            self.wake.notify(&bells);
        }
    }
}

/// The errand under way. Dropping it, even by a panic, lets another begin.
struct Running {
    courier: Arc<Courier>,
    /// It has let another begin already.
    is_over: bool,
}

impl Running {
    /// Ends the errand, unless there is more to look for.
    fn end(&mut self) {
        let mut errand = self.courier.errand();
        self.is_over = *errand == Errand::Running;
        *errand = if self.is_over { Errand::None } else { Errand::Running };
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_over {
            *self.courier.errand() = Errand::None;
        }
    }
}

async fn run(mut running: Running) {
    let mut failures = 0;
    while !running.is_over {
        match running.courier.deliver_all().await {
            Ok(_) => {
                failures = 0;
                running.end();
            }
            Err(error) if error.kind() == Kind::Unavailable && failures + 1 < TRIES => {
                failures += 1;
                running.courier.clock.sleep(backoff::delay(failures)).await;
            }
            Err(error) => {
                tracing::warn!(error = %error, "the news of a tally could not be delivered; a sweep tries again");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::SqliteStore;
    use crate::wake::in_process::InProcess;

    async fn courier() -> Arc<Courier> {
        let store = Arc::new(SqliteStore::in_memory().await.unwrap());
        Courier::new(store, Clock::store(), Arc::new(InProcess::new()))
    }

    /// A handle that was dropped left its store open and its connections for hints alive until the process ended.
    #[tokio::test]
    async fn an_errand_that_is_over_keeps_nothing_alive() {
        let courier = courier().await;
        courier.look();
        courier.close().await;
        let left = Arc::downgrade(&courier);
        drop(courier);
        assert_eq!(left.strong_count(), 0);
    }

    /// It drops the errand where it is to be started, by whoever had the lock then, and waited for himself.
    #[test]
    fn a_runtime_that_is_over_refuses_an_errand_and_nobody_waits() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let courier = runtime.block_on(courier());
        let handle = runtime.handle().clone();
        drop(runtime);
        let _entered = handle.enter();
        courier.look();
        assert_eq!(*courier.errand(), Errand::None);
    }

    /// The errand was told to stop, and could not hear it.
    #[test]
    fn closing_waits_for_no_errand_that_nobody_drives() {
        let idle = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let courier = idle.block_on(async {
            let courier = courier().await;
            courier.look();
            courier
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(courier.close());
        assert!(!courier.errands.is_empty());
    }

    #[tokio::test]
    async fn nobody_is_sent_any_more_once_it_is_closed() {
        let courier = courier().await;
        courier.close().await;
        courier.look();
        assert!(courier.errands.is_empty());
    }
}
