//! When a batch goes: when it is full, or when its first event has waited for long enough.

use super::standing::Standing;
use crate::engine::clock::Clock;
use crate::store::verbs::Gathered;
use std::time::Duration;

/// What to do about the events that have gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Go {
    /// Send this many.
    Now(u32),
    /// Look again at this reading of the clock.
    At(Duration),
    /// There is nothing.
    Nothing,
}

/// `room`: how many events may be claimed now.
pub(super) fn decide(gathered: &Gathered, standing: &Standing, room: u32, clock: &Clock) -> Go {
    let size = standing.push.batch_size();
    let Some(since) = gathered.since else {
        return gathered.next_due.map_or(Go::Nothing, |due| Go::At(clock.reading_of(due, gathered.now)));
    };
    let full = gathered.events / size * size;
    if full > 0 {
        return Go::Now(full.min(room));
    }
    let due = since.after(standing.push.timeout);
    if gathered.again || due <= gathered.now {
        return Go::Now(size.min(room));
    }
    Go::At(clock.reading_of(due, gathered.now))
}

/// How many events may be sent in a second: a bucket that fills evenly.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    events: f64,
    at: Duration,
}

impl Bucket {
    /// How many events may be sent at this reading of the clock, `wanted` at most; or when one may.
    pub(super) fn allowance(
        &mut self,
        rate: Option<u32>,
        wanted: u32,
        reading: Duration,
    ) -> Result<u32, Duration> {
        let Some(rate) = rate.map(f64::from) else { return Ok(wanted) };
        let passed = reading.saturating_sub(self.at).as_secs_f64();
        // A second's worth at most is saved up.
        self.events = (self.events + passed * rate).min(rate.max(1.0));
        self.at = reading;
        if self.events >= 1.0 {
            return Ok(wanted.min(self.events as u32));
        }
        Err(reading + Duration::from_secs_f64((1.0 - self.events) / rate))
    }

    /// Events were sent.
    pub(super) fn take(&mut self, events: u32) {
        self.events -= f64::from(events);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_lets_through_as_many_as_the_rate_and_saves_up_a_second() {
        let mut bucket = Bucket::default();
        let second = Duration::from_secs;
        assert_eq!(bucket.allowance(None, 500, second(0)), Ok(500));
        assert_eq!(bucket.allowance(Some(10), 500, second(100)), Ok(10));
        bucket.take(10);
        assert_eq!(
            bucket.allowance(Some(10), 500, second(100)),
            Err(second(100) + Duration::from_millis(100))
        );
        assert_eq!(bucket.allowance(Some(10), 3, second(101)), Ok(3));
    }
}
