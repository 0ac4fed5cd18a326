//! What is too much for one script is done in parts, one step after the other.

use super::connection::PAUSE;
use super::step::Failed;
use crate::error::{Kind, Result};
use crate::model::id::LaneId;
use crate::model::lease::Lease;
use std::time::Duration;
use tokio::time::Instant;

/// How many slices one part writes, about: a script has to end soon.
pub(super) const MOST: usize = 200;
/// How long parts are insisted on after the first that failed: all in all no longer than a caller over HTTP waits. The longest pause between
/// two tries.
const LONGEST: Duration = Duration::from_secs(15);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Which of many go together: all of a lane, and not many more than weigh what one part may.
pub(super) fn parts<T>(
    all: &[T],
    lane: impl Fn(&T) -> Option<LaneId>,
    weight: impl Fn(&T) -> usize,
) -> Vec<Vec<usize>> {
    let lane = |at: &usize| lane(&all[*at]);
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(lane);
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let mut weighs = 0;
    for together in order.chunk_by(|a, b| lane(a).is_some() && lane(a) == lane(b)) {
        let more: usize = together.iter().map(|at| weight(&all[*at])).sum();
        match parts.last_mut().filter(|_| weighs + more <= MOST) {
            Some(part) => {
                part.extend(together);
                weighs += more;
            }
            None => {
                parts.push(together.to_vec());
                weighs = more;
            }
        }
    }
    parts
}

pub(super) fn lane_of(lease: &Lease) -> Option<LaneId> {
    lease.is_ordered().then_some(lease.lane)
}

/// Insists on the parts that come after a first one that is written: whoever were told that all of it failed would do it again.
#[derive(Debug)]
pub(super) struct Patience {
    begun: bool,
    ends_at: Option<Instant>,
    pause: Duration,
}

impl Patience {
    pub(super) fn new() -> Patience {
        Patience { begun: false, ends_at: None, pause: PAUSE }
    }

    /// A part is written.
    pub(super) fn begin(&mut self) {
        (self.begun, self.pause) = (true, PAUSE);
    }

    /// Waits for a while before a part is tried again, because the server is away.
    ///
    /// # Errors
    /// The one that is given, if nothing is written yet, if waiting does not help, or if the part may be written.
    pub(super) async fn bear(&mut self, failed: Failed) -> Result<()> {
        tokio::time::sleep(self.next_pause(failed, Instant::now())?).await;
        Ok(())
    }

    fn next_pause(&mut self, failed: Failed, now: Instant) -> Result<Duration> {
        let is_away = failed.error.kind() == Kind::Unavailable && !failed.perhaps_done;
        let ends_at = *self.ends_at.get_or_insert(now + LONGEST);
        let pause = self.pause;
        if !self.begun || !is_away || now + pause > ends_at {
            return Err(failed.error);
        }
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        Ok(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn a_lane_stays_together_and_a_part_weighs_no_more_than_it_may() {
        let all = [(None, 150), (Some(2), 90), (None, 60), (Some(1), 10), (Some(2), 300), (Some(1), 5)];
        let parts = parts(&all, |(lane, _)| lane.map(LaneId), |(_, weight)| *weight);
        assert_eq!(parts, [vec![0], vec![2, 3, 5], vec![1, 4]]);
    }

    fn away() -> Failed {
        Error::unavailable("away", "wait").into()
    }

    #[test]
    fn only_who_has_begun_is_patient_and_not_for_ever() {
        let mut now = Instant::now();
        let mut patience = Patience::new();
        assert!(patience.next_pause(away(), now).is_err());
        patience.begin();
        let begin = now;
        while let Ok(pause) = patience.next_pause(away(), now) {
            assert!(!pause.is_zero() && pause <= LONGEST_PAUSE, "{pause:?}");
            now += pause;
        }
        let all = now - begin;
        assert!(all > LONGEST - LONGEST_PAUSE && all <= LONGEST, "{all:?}");
    }

    #[test]
    fn what_may_have_happened_or_never_can_is_not_insisted_on() {
        let mut patience = Patience::new();
        patience.begin();
        let wrong = Error::invalid("wrong", "mend it").into();
        assert!(patience.next_pause(wrong, Instant::now()).is_err());
        let perhaps = Failed { perhaps_done: true, ..away() };
        assert!(patience.next_pause(perhaps, Instant::now()).is_err());
        assert!(patience.next_pause(away(), Instant::now()).is_ok());
    }
}
