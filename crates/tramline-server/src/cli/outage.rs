//! Patience with a server that does not answer.

use super::failure::{Again, Failure};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_secs(10);

/// One outage: waits that double from 100 ms to 10 s, and one line on standard error at each end. Clones wait each for
/// themselves, and say it together.
#[derive(Clone, Default)]
pub(crate) struct Outage {
    failures: u32,
    told: Arc<AtomicBool>,
}

impl Outage {
    /// Something failed: says so if it is the first time, and waits. Failures that time does not heal are given back at once.
    pub(crate) async fn wait(&mut self, failure: Failure) -> Result<(), Failure> {
        let Some(again) = failure.again else { return Err(failure) };
        if !self.told.swap(true, Relaxed) {
            eprintln!("tramline: {}; trying again", failure.message);
        }
        self.failures += 1;
        tokio::time::sleep(delay(self.failures, again)).await;
        Ok(())
    }

    /// It worked.
    pub(crate) fn over(&mut self) {
        self.failures = 0;
        if self.told.swap(false, Relaxed) {
            eprintln!("tramline: the server answers again");
        }
    }

    /// How often it failed in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }
}

fn delay(failures: u32, again: Again) -> Duration {
    let doubled = FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(MOST);
    match again {
        Again::Soon => doubled,
        Again::After(asked) => asked.clamp(doubled, MOST.max(doubled)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_ten_seconds_and_respect_the_server() {
        assert_eq!(delay(1, Again::Soon), FIRST);
        assert_eq!(delay(3, Again::Soon), 4 * FIRST);
        assert_eq!(delay(40, Again::Soon), MOST);
        assert_eq!(delay(1, Again::After(Duration::from_secs(2))), Duration::from_secs(2));
        assert_eq!(delay(1, Again::After(Duration::from_secs(3600))), MOST);
    }
}
