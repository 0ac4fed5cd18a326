//! How long to leave a store alone that does not answer.

use crate::engine::clock::Clock;
use crate::error::Error;
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_secs(5);

/// One outage: waits that double from 50 ms to 5 s with jitter, and one log line at each end.
#[derive(Debug)]
pub(crate) struct Outage {
    doing: &'static str,
    failures: u32,
}

impl Outage {
    /// No outage yet. `doing` completes the sentence "the store does not answer while ...".
    pub(crate) fn new(doing: &'static str) -> Outage {
        Outage { doing, failures: 0 }
    }

    /// Something failed: logs if it is the first time, and waits. Cancel-safe.
    pub(crate) async fn wait(&mut self, clock: &Clock, error: &Error) {
        if self.failures == 0 {
            tracing::warn!(error = %error, "the store does not answer while {}; trying again", self.doing);
        }
        self.failures += 1;
        clock.sleep(delay(self.failures)).await;
    }

    /// It worked.
    pub(crate) fn over(&mut self) {
        if self.failures > 0 {
            tracing::info!(failures = self.failures, "the store answers again while {}", self.doing);
            self.failures = 0;
        }
    }
}

/// The wait after failure number `failures`: 50 % to 100 % of `50 ms * 2^(n-1)`, at most 5 s. The jitter keeps processes that
/// lost the store together from coming back together.
pub(crate) fn delay(failures: u32) -> Duration {
    let doubled = FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(MOST);
    doubled.mul_f64(0.5 + 0.5 * random_share())
}

/// A random number from 0 to 1. Without random numbers there is no jitter, which harms nobody.
pub(crate) fn random_share() -> f64 {
    f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_five_seconds_and_no_further() {
        for failures in 1..40 {
            let most = FIRST.saturating_mul(1 << (failures - 1).min(16)).min(MOST);
            let got = delay(failures);
            assert!(got >= most / 2 && got <= most, "{failures}: {got:?}");
        }
    }
}
