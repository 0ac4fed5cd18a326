//! How often a failed event is tried again, and when.

use crate::model::id::EventId;
use crate::model::time::{as_millis, millis};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Retry policy of a subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// How many settled failures make an event dead; [`Retry::FOR_EVER`]: none.
    pub max_attempts: u32,
    /// How long to wait after each failure.
    pub backoff: Backoff,
}

/// How the wait grows from failure to failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Backoff {
    /// The same wait after every failure.
    Constant {
        /// The wait.
        #[serde(rename = "delay_ms", with = "as_millis")]
        delay: Duration,
    },
    /// Doubling waits with jitter: from 75 % to 125 % of `first * 2^(attempt - 1)`, never above `most`.
    Exponential {
        /// The wait after the first failure.
        #[serde(rename = "first_ms", with = "as_millis")]
        first: Duration,
        /// The longest wait.
        #[serde(rename = "most_ms", with = "as_millis")]
        most: Duration,
    },
    /// A wait for each failure; the last one repeats.
    List {
        /// The waits, in milliseconds.
        delays_ms: Vec<u64>,
    },
}

impl Default for Retry {
    /// Five minutes after a failure, at most twice.
    fn default() -> Retry {
        Retry::constant(3, Duration::from_secs(300))
    }
}

impl Retry {
    /// As `max_attempts`: however often an event fails, it is tried again.
    pub const FOR_EVER: u32 = 0;

    /// A failure makes the event dead at once.
    pub fn never() -> Retry {
        Retry::constant(1, Duration::ZERO)
    }

    /// `max_attempts` tries in all, `delay` apart.
    pub fn constant(max_attempts: u32, delay: Duration) -> Retry {
        Retry { max_attempts, backoff: Backoff::Constant { delay } }
    }

    /// 20 tries, from 15 seconds to one hour apart, with jitter.
    pub fn exponential() -> Retry {
        let backoff =
            Backoff::Exponential { first: Duration::from_secs(15), most: Duration::from_secs(3600) };
        Retry { max_attempts: 20, backoff }
    }

    /// One more try than there are delays.
    pub fn delays(delays: impl IntoIterator<Item = Duration>) -> Retry {
        let delays_ms: Vec<u64> = delays.into_iter().map(|delay| millis(delay).cast_unsigned()).collect();
        Retry { max_attempts: delays_ms.len() as u32 + 1, backoff: Backoff::List { delays_ms } }
    }

    /// How long to wait after failure number `attempt` (from 1) of `event`; `None` when that was the last one.
    pub fn delay_after(&self, attempt: u32, event: EventId) -> Option<Duration> {
        if self.max_attempts != Retry::FOR_EVER && attempt >= self.max_attempts {
            return None;
        }
        Some(match &self.backoff {
            Backoff::Constant { delay } => *delay,
            Backoff::Exponential { first, most } => {
                let doubled = first.saturating_mul(1 << attempt.saturating_sub(1).min(20));
                jitter(doubled.min(*most), attempt, event).min(*most)
            }
            Backoff::List { delays_ms } => {
                let at = (attempt.max(1) as usize - 1).min(delays_ms.len().saturating_sub(1));
                Duration::from_millis(delays_ms.get(at).copied().unwrap_or(0))
            }
        })
    }
}

/// 75 % to 125 % of the delay. The share comes from the event and the attempt, so that events which failed together
/// do not come back together, and a random history can be replayed.
fn jitter(delay: Duration, attempt: u32, event: EventId) -> Duration {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&event.0.to_le_bytes());
    hasher.update(&attempt.to_le_bytes());
    let share = 0.75 + f64::from(hasher.finalize()) / f64::from(u32::MAX) * 0.5;
    delay.mul_f64(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_tries_three_times_five_minutes_apart() {
        let retry = Retry::default();
        let delays: Vec<_> = (1..=3).map(|attempt| retry.delay_after(attempt, EventId(1))).collect();
        assert_eq!(delays, [Some(Duration::from_secs(300)), Some(Duration::from_secs(300)), None]);
        assert_eq!(Retry::never().delay_after(1, EventId(1)), None);
    }

    #[test]
    fn exponential_waits_double_up_to_an_hour_and_differ_between_events() {
        let retry = Retry::exponential();
        for attempt in 1..20 {
            let expected = (15.0 * 2f64.powi(attempt as i32 - 1)).min(3600.0);
            let got = retry.delay_after(attempt, EventId(7)).unwrap().as_secs_f64();
            assert!(got >= expected * 0.74 && got <= (expected * 1.26).min(3600.0), "{attempt}: {got}");
        }
        assert_eq!(retry.delay_after(20, EventId(7)), None);
        assert_ne!(retry.delay_after(3, EventId(1)), retry.delay_after(3, EventId(2)));
    }

    #[test]
    fn a_list_repeats_its_last_delay_and_may_be_empty() {
        let retry = Retry::delays([1, 5].map(Duration::from_secs));
        assert_eq!(retry.max_attempts, 3);
        assert_eq!(retry.delay_after(2, EventId(1)), Some(Duration::from_secs(5)));
        let longer = Retry { max_attempts: 9, ..retry.clone() };
        assert_eq!(longer.delay_after(8, EventId(1)), Some(Duration::from_secs(5)));
        let endless = Retry { max_attempts: Retry::FOR_EVER, ..longer };
        assert_eq!(endless.delay_after(u32::MAX, EventId(1)), Some(Duration::from_secs(5)));
        let empty = Retry { max_attempts: 2, backoff: Backoff::List { delays_ms: vec![] } };
        assert_eq!(empty.delay_after(1, EventId(1)), Some(Duration::ZERO));
    }
}
