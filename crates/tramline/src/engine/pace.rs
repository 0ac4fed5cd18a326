//! How long groups take to be written, and from when on one takes long.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Nothing that takes less is long, and whatever takes more is: then somebody is held up, and others need not wait for it.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(5);
/// How much the last one counts: one part in so many.
const WEIGHT: u64 = 8;

/// The usual time of a group. Where the processors are busy, or the server is far away, all of them take their time; each of them would
/// look like one that is held up.
#[derive(Debug, Default)]
pub(super) struct Pace {
    micros: AtomicU64,
}

impl Pace {
    /// The same future; its time counts if it comes to its end.
    pub(super) async fn measure<T>(&self, group: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let done = group.await;
        self.took(began.elapsed());
        done
    }

    /// Twice as long as usual.
    pub(super) fn long(&self) -> Duration {
        let usual = Duration::from_micros(self.micros.load(Ordering::Relaxed));
        (usual * 2).clamp(SHORTEST, LONGEST)
    }

    fn took(&self, time: Duration) {
        // One that was held up tells little of the next.
        let micros = time.min(LONGEST).as_micros() as u64;
        let add = |usual: u64| Some(usual - usual / WEIGHT + micros / WEIGHT);
        // The closure always has an answer.
        let _ = self.micros.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_usual_is_not_long() {
        let pace = Pace::default();
        assert_eq!(pace.long(), SHORTEST);
        (0..100).for_each(|_| pace.took(Duration::from_millis(2)));
        assert!(pace.long() > Duration::from_millis(3));
        (0..100).for_each(|_| pace.took(Duration::from_secs(1)));
        assert_eq!(pace.long(), LONGEST);
        (0..100).for_each(|_| pace.took(Duration::from_micros(200)));
        assert_eq!(pace.long(), SHORTEST);
    }
}
