//! Which dead events are meant, and how fast they come back.

use crate::error::{Error, Result};
use crate::model::chunk::ChunkRow;
use crate::model::mask::Mask;
use crate::model::slice::Slice;
use crate::model::time::{Time, millis};
use std::time::Duration;

/// Which dead and held events. All of it has to hold; what is left out holds always.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Letters {
    /// Of this topic.
    pub topic: Option<String>,
    /// Of this type.
    pub kind: Option<String>,
    /// Of this key.
    pub key: Option<String>,
    /// The last error has this in it.
    pub error: Option<String>,
    /// The last error begins with this.
    pub error_prefix: Option<String>,
    /// Dead at or after this time.
    pub since: Option<Time>,
    /// Dead before this time.
    pub until: Option<Time>,
}

impl Letters {
    /// True if what a slice says of its events fits.
    pub(crate) fn fits(&self, slice: &Slice) -> bool {
        let error = slice.error.as_deref().unwrap_or_default();
        self.since.is_none_or(|since| slice.due_at >= since)
            && self.until.is_none_or(|until| slice.due_at < until)
            && self.error.as_deref().is_none_or(|part| error.contains(part))
            && self.error_prefix.as_deref().is_none_or(|start| error.starts_with(start))
    }

    /// True if the events themselves have to be known.
    pub(crate) fn asks_for_events(&self) -> bool {
        self.topic.is_some() || self.kind.is_some() || self.key.is_some()
    }

    /// Those of a chunk's events that fit.
    pub(crate) fn select(&self, row: &ChunkRow, topic: &str) -> Result<Mask> {
        if self.topic.as_deref().is_some_and(|wanted| wanted != topic) {
            return Ok(Mask::EMPTY);
        }
        let labels = row.labels()?;
        let fits = |(kind, key): &(String, Option<String>)| {
            self.kind.as_ref().is_none_or(|wanted| wanted == kind) && (self.key.is_none() || self.key == *key)
        };
        Ok((0..).zip(&labels).filter(|(_, labels)| fits(labels)).map(|(index, _)| index).collect())
    }
}

/// How fast events come back: so many in each period, evenly. The times are written with the events, so the rate holds whatever
/// process runs them and whenever one is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// So many.
    pub events: u32,
    /// In this time.
    pub per: Duration,
}

const LONGEST_PERIOD: Duration = Duration::from_secs(24 * 3600);

impl Pace {
    /// Checks the numbers.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check(&self) -> Result<()> {
        let period = Duration::from_millis(1)..=LONGEST_PERIOD;
        if self.events > 0 && self.events <= 1_000_000 && period.contains(&self.per) {
            return Ok(());
        }
        Err(Error::invalid(
            "the rate is out of range",
            "use 1 to 1,000,000 events in 1 millisecond to 24 hours",
        ))
    }

    /// When the event comes back before which `done` others do.
    pub(crate) fn due(self, start: Time, done: u64) -> Time {
        let offset = u128::from(done) * millis(self.per).max(1).cast_unsigned() as u128
            / u128::from(self.events.max(1));
        Time(start.0.saturating_add(i64::try_from(offset).unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_period_has_more_events_than_the_rate_and_none_is_left_out() {
        for (events, per) in [(1, 1_000), (3, 1_000), (7, 60_000), (1_000, 1), (999, 1_000)] {
            let rate = Pace { events, per: Duration::from_millis(per) };
            let due: Vec<i64> = (0..5_000).map(|done| rate.due(Time(100), done).0).collect();
            assert_eq!(due[0], 100);
            for (at, first) in due.iter().enumerate() {
                let within = due[at..].iter().take_while(|other| **other < first + per as i64).count();
                assert!(within as u32 <= events, "{events} in {per} ms: {within} from {first} on");
            }
        }
    }

    #[test]
    fn rates_that_mean_nothing_are_refused() {
        let rate = |events, millis| Pace { events, per: Duration::from_millis(millis) };
        assert!(rate(1, 1).check().is_ok() && rate(1_000_000, 86_400_000).check().is_ok());
        for bad in [rate(0, 1), rate(1, 0), rate(1_000_001, 1), rate(1, 86_400_001)] {
            assert!(!bad.check().unwrap_err().remedy().is_empty());
        }
    }
}
