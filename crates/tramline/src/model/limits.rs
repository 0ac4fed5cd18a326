//! Limits of a subscription over all workers and nodes: how many events may be under way, and how many may start.

use crate::error::{Error, Result};
use crate::model::time::{Time, as_millis, millis};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The most events that a limit of concurrency allows.
pub const MAX_CONCURRENCY: u32 = 10_000;
/// How many events may be under way where only the keys are limited: a claim looks at all of them.
const WITH_KEYS: u32 = 1_000;
/// The most events that a rate allows in its period.
pub const MAX_RATE: u32 = 1_000_000;
/// The shortest period of a rate.
pub const SHORTEST_PERIOD: Duration = Duration::from_millis(100);
/// The longest period of a rate.
pub const LONGEST_PERIOD: Duration = Duration::from_secs(31 * 24 * 3600);
/// Into how many parts a period is cut to remember when events started.
const GRAINS: i64 = 64;

/// What workers of a subscription may do together, whatever their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// How many events may be under way at once: claimed, and neither settled nor given back nor out of their lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// How many events of one key may be under way at once, where there is no order. Then at most 1,000 of all keys are, unless
    /// `concurrency` says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_key_concurrency: Option<u32>,
    /// How many events may start in a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

/// At most so many events start in any period of this length, wherever it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// How many.
    pub events: u32,
    /// In how long.
    #[serde(rename = "per_ms", with = "as_millis")]
    pub per: Duration,
}

impl Limits {
    /// True if there is no limit.
    pub fn is_none(&self) -> bool {
        *self == Limits::default()
    }

    /// How many events may be under way at once; `None`: any number.
    pub fn most(&self) -> Option<u32> {
        self.concurrency.or(self.per_key_concurrency.map(|_| WITH_KEYS))
    }

    pub(crate) fn check(&self, ordered: bool, push: bool) -> Result<()> {
        if push && !self.is_none() {
            return Err(Error::invalid(
                "limits are for subscriptions that workers claim from",
                "a push subscription has concurrency and rate of its own",
            ));
        }
        if ordered && self.per_key_concurrency.is_some() {
            return Err(Error::invalid(
                "in an ordered subscription one event of a key is under way at a time",
                "leave per_key_concurrency out",
            ));
        }
        let wrong = |limit: &u32| !(1..=MAX_CONCURRENCY).contains(limit);
        if self.concurrency.iter().chain(&self.per_key_concurrency).any(wrong) {
            return Err(Error::invalid(
                "the limit of concurrency is out of range",
                "use 1 to 10,000 events, or none; to stop a subscription, pause it",
            ));
        }
        let Some(rate) = self.rate else { return Ok(()) };
        if rate.events == 0 || rate.events > MAX_RATE {
            return Err(Error::invalid(
                "the events of the rate are out of range",
                "use 1 to 1,000,000 events, or no rate; to stop a subscription, pause it",
            ));
        }
        if !(SHORTEST_PERIOD..=LONGEST_PERIOD).contains(&rate.per) {
            return Err(Error::invalid(
                "the period of the rate is out of range",
                "use 100 milliseconds to 31 days",
            ));
        }
        Ok(())
    }
}

impl Rate {
    /// So many events in so long.
    pub fn new(events: u32, per: Duration) -> Rate {
        Rate { events, per }
    }

    /// Starts are remembered by the end of the grain in which they fall: never too early, so never too many.
    fn grain_end(self, now: Time) -> Time {
        let grain = (millis(self.per) / GRAINS).max(1);
        Time(now.0.saturating_add(grain - 1).div_euclid(grain).saturating_mul(grain))
    }
}

/// How many events started when, as far back as it matters; ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Starts(Vec<(Time, u32)>);

impl Starts {
    /// What is stored. What cannot be read is as if nothing had started.
    pub(crate) fn read(text: &str) -> Starts {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// To be stored.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() // numbers always serialise
    }

    /// How many events may start now.
    pub fn room(&self, rate: Rate, now: Time) -> u32 {
        let counted = self.counted(rate, now).map(|(_, events)| u64::from(*events)).sum::<u64>();
        u64::from(rate.events).saturating_sub(counted) as u32
    }

    /// When the next event may start, if none may now.
    pub fn next(&self, rate: Rate, now: Time) -> Time {
        self.counted(rate, now).next().map_or(now, |(at, _)| at.after(rate.per))
    }

    /// Events start now. What no longer matters is forgotten.
    pub fn add(&mut self, rate: Rate, now: Time, events: u32) {
        let kept: Vec<(Time, u32)> = self.counted(rate, now).copied().collect();
        self.0 = kept;
        let at = rate.grain_end(now);
        match self.0.iter_mut().find(|(time, _)| *time == at) {
            Some((_, known)) => *known = known.saturating_add(events),
            None => self.0.push((at, events)),
        }
        // A clock may have gone back a little.
        self.0.sort_unstable();
    }

    /// Those that count now. What is later than a period from now was written by a clock that has been put right since.
    fn counted(&self, rate: Rate, now: Time) -> impl Iterator<Item = &(Time, u32)> {
        self.0.iter().filter(move |(at, _)| at.after(rate.per) > now && *at <= now.after(rate.per))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_started_counts_for_a_period_and_not_longer() {
        let rate = Rate::new(10, Duration::from_secs(64));
        let mut starts = Starts::default();
        let now = Time(1_800_000_000_000);
        assert_eq!(starts.room(rate, now), 10);
        starts.add(rate, now, 10);
        assert_eq!(starts.room(rate, now), 0);
        let next = starts.next(rate, now);
        assert!(next.since(now) <= Duration::from_secs(65), "{next:?}");
        assert_eq!(starts.room(rate, Time(next.0 - 1)), 0);
        assert_eq!(starts.room(rate, next), 10);
    }

    #[test]
    fn a_clock_that_was_far_ahead_does_not_stop_everything() {
        let rate = Rate::new(1, Duration::from_secs(1));
        let mut starts = Starts::default();
        starts.add(rate, Time(5_000_000), 1);
        assert_eq!(starts.room(rate, Time(1_000)), 1);
    }

    #[test]
    fn what_is_stored_is_read_back_and_stays_small() {
        let rate = Rate::new(MAX_RATE, LONGEST_PERIOD);
        let mut starts = Starts::default();
        for step in 0..10_000 {
            starts.add(rate, Time(1_800_000_000_000 + step * 977_777), 99_999);
        }
        assert_eq!(Starts::read(&starts.text()), starts);
        assert!(starts.text().len() < 4_000, "{}", starts.text().len());
        assert_eq!(Starts::read("nonsense"), Starts::default());
    }

    proptest! {
        #[test]
        fn in_no_period_more_start_than_the_rate_says(
            events in 1..50_u32,
            per_ms in 100..5_000_u64,
            steps in proptest::collection::vec((0..700_i64, 1..40_u32), 1..120),
        ) {
            let rate = Rate::new(events, Duration::from_millis(per_ms));
            let mut starts = Starts::default();
            let mut now = Time(1_800_000_000_000);
            let mut log: Vec<(Time, u32)> = Vec::new();
            for (pause, wanted) in steps {
                now = Time(now.0 + pause);
                let granted = wanted.min(starts.room(rate, now));
                if granted == 0 {
                    let next = starts.next(rate, now);
                    prop_assert!(next > now && starts.room(rate, next) > 0, "it says when to come again");
                    continue;
                }
                starts.add(rate, now, granted);
                log.push((now, granted));
                let since = log.iter().filter(|(at, _)| at.after(rate.per) > now);
                prop_assert!(since.map(|(_, events)| events).sum::<u32>() <= events);
            }
        }
    }
}
