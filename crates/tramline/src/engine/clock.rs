//! Where time comes from: the store, or a test that turns the hands itself.

use crate::model::time::Time;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Whose time counts. Stores are asked with [`Clock::now`]; waiting is done on a *reading*, a clock that only goes forward:
/// the machine's monotonic one, or the manual one.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The store's clock. Readings count from the given start.
    Store(Instant),
    /// A clock that only a test moves.
    Manual(ManualClock),
}

impl Clock {
    /// The store's clock.
    pub fn store() -> Clock {
        Clock::Store(Instant::now())
    }

    /// What to pass to a store as `now`.
    pub fn now(&self) -> Option<Time> {
        match self {
            Clock::Store(_) => None,
            Clock::Manual(manual) => Some(manual.now()),
        }
    }

    /// A reading of the clock that only goes forward.
    pub(crate) fn reading(&self) -> Duration {
        match self {
            Clock::Store(start) => start.elapsed(),
            Clock::Manual(manual) => Duration::from_millis(manual.now().0.max(0).cast_unsigned()),
        }
    }

    /// The reading at which `due` comes, if the store's clock shows `now` at this moment.
    pub(crate) fn reading_of(&self, due: Time, now: Time) -> Duration {
        match self {
            Clock::Store(_) => self.reading().saturating_add(due.since(now)),
            // Exact, even if somebody has moved the clock since the store was asked.
            Clock::Manual(_) => due.since(Time(0)),
        }
    }

    /// Waits until the reading is at least `reading`. Cancel-safe.
    pub(crate) async fn sleep_until(&self, reading: Duration) {
        match self {
            // `Instant` cannot be centuries away; nobody waits for more than a day without looking again.
            Clock::Store(_) => {
                let left = reading.saturating_sub(self.reading()).min(Duration::from_secs(86_400));
                tokio::time::sleep(left).await;
            }
            Clock::Manual(manual) => manual.reaches(reading).await,
        }
    }

    /// Waits for a time. Cancel-safe.
    pub(crate) async fn sleep(&self, duration: Duration) {
        self.sleep_until(self.reading().saturating_add(duration)).await;
    }

    /// Runs a future, but not for longer than `limit`. `None`: it took too long and was dropped.
    pub(crate) async fn timeout<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            value = future => Some(value),
            () = self.sleep(limit) => None,
        }
    }
}

/// Time that stands still until somebody advances it. Clones share it.
#[derive(Clone, Debug)]
pub struct ManualClock {
    time: Arc<watch::Sender<Time>>,
}

impl ManualClock {
    /// A clock that shows `start`.
    pub fn new(start: Time) -> ManualClock {
        ManualClock { time: Arc::new(watch::Sender::new(start)) }
    }

    /// What it shows.
    pub fn now(&self) -> Time {
        *self.time.borrow()
    }

    /// Moves it forward and wakes everybody whose time has come.
    pub fn advance(&self, by: Duration) {
        self.time.send_modify(|time| *time = time.after(by));
    }

    async fn reaches(&self, reading: Duration) {
        let due = Time(0).after(reading);
        let mut time = self.time.subscribe();
        // Fails only when the sender is gone, which `self` keeps.
        let _ = time.wait_for(|now| *now >= due).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn a_waiter_on_manual_time_wakes_when_its_time_has_come() {
        let manual = ManualClock::new(Time(1_000));
        let clock = Clock::Manual(manual.clone());
        let hour = Duration::from_secs(3600);
        let mut sleep = std::pin::pin!(clock.sleep(hour));
        assert!(sleep.as_mut().now_or_never().is_none());
        manual.advance(hour - Duration::from_millis(1));
        assert!(sleep.as_mut().now_or_never().is_none());
        manual.advance(Duration::from_millis(1));
        sleep.await;
        assert_eq!(clock.now(), Some(Time(3_601_000)));
    }

    #[tokio::test]
    async fn a_time_limit_on_manual_time_drops_what_takes_too_long() {
        let manual = ManualClock::new(Time(0));
        let clock = Clock::Manual(manual.clone());
        let (slow, ()) =
            tokio::join!(clock.timeout(Duration::from_secs(5), std::future::pending::<()>()), async {
                tokio::task::yield_now().await;
                manual.advance(Duration::from_secs(5));
            });
        assert_eq!(slow, None);
        assert_eq!(clock.timeout(Duration::ZERO, async { 7 }).await, Some(7));
    }
}
