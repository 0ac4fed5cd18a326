//! What is too much for one script is done in parts, one step after the other.

use super::connection::PAUSE;
use crate::error::{Error, Kind, Result};
use crate::model::id::LaneId;
use crate::model::lease::Lease;
use std::time::Duration;

/// How many slices one part writes, about: a script has to end soon.
pub(super) const MOST: usize = 200;
/// How often a part is tried that comes after others, and the longest pause between two tries: a quarter of a minute in all, and what each
/// of them waits for the server by itself.
const TRIES: u32 = 20;
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

/// Bears with a server that is away once a part is written: whoever were told that it failed would do all of it again.
#[derive(Default)]
pub(super) struct Patience {
    begun: bool,
    tries: u32,
}

impl Patience {
    /// A part is written.
    pub(super) fn begin(&mut self) {
        *self = Patience { begun: true, tries: 0 };
    }

    /// Waits for a while before a part is tried again.
    ///
    /// # Errors
    /// The one that is given, if nothing is written yet, or if waiting does not help.
    pub(super) async fn bear(&mut self, error: Error) -> Result<()> {
        tokio::time::sleep(self.pause(error)?).await;
        Ok(())
    }

    fn pause(&mut self, error: Error) -> Result<Duration> {
        self.tries += 1;
        if !self.begun || error.kind() != Kind::Unavailable || self.tries == TRIES {
            return Err(error);
        }
        Ok((PAUSE.saturating_mul(2_u32.saturating_pow(self.tries - 1))).min(LONGEST_PAUSE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_stays_together_and_a_part_weighs_no_more_than_it_may() {
        let all = [(None, 150), (Some(2), 90), (None, 60), (Some(1), 10), (Some(2), 300), (Some(1), 5)];
        let parts = parts(&all, |(lane, _)| lane.map(LaneId), |(_, weight)| *weight);
        assert_eq!(parts, [vec![0], vec![2, 3, 5], vec![1, 4]]);
    }

    #[test]
    fn only_who_has_begun_is_patient_and_not_for_ever() {
        let away = || Error::unavailable("away", "wait");
        let mut patience = Patience::default();
        assert!(patience.pause(away()).is_err());
        patience.begin();
        assert!(patience.pause(Error::invalid("wrong", "mend it")).is_err());
        patience.begin();
        let pauses: Vec<Duration> = std::iter::from_fn(|| patience.pause(away()).ok()).collect();
        let all: Duration = pauses.iter().sum();
        assert_eq!(pauses.len(), TRIES as usize - 1);
        assert!(all > Duration::from_secs(10) && all < Duration::from_secs(20), "{all:?}");
    }
}
