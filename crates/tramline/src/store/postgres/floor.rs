//! Where claims without order begin to look.
//!
//! While an old transaction of anybody stays open, PostgreSQL keeps the index entries of everything that was taken since, and a claim that
//! begins at the first one passes over all of them, four times: 240,000 after five minutes of 800 events a second, half a second per claim.
//! So where claims have become slow, one of them looks at everything now and then, and the others begin at what was due ten seconds before that.

use crate::model::id::SubscriptionId;
use crate::model::time::Time;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A claim that takes longer is slow, and so many of them in a row are no accident.
const SLOW: Duration = Duration::from_millis(50);
const IN_A_ROW: u32 = 3;
/// What commits this long after it was due is still found at once; later ones when everything is looked at again.
const MARGIN: Duration = Duration::from_secs(10);
/// How often everything is looked at, at most, and which part of the time that may take.
const EVERY: Duration = Duration::from_secs(1);
const SHARE: u32 = 20;

/// How a claim looks for what is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// In one call, from the beginning.
    Call,
    /// Step by step, from the beginning.
    All,
    /// Step by step, after this time.
    After(Time),
}

/// What is known of subscriptions whose claims are slow.
#[derive(Debug, Default)]
pub(super) struct Floors(Mutex<HashMap<SubscriptionId, Floor>>);

#[derive(Clone, Copy, Debug)]
struct Floor {
    slow: u32,
    /// Everything that was due at this time was taken.
    clear: Option<Time>,
    looked: Instant,
    took: Duration,
}

impl Floors {
    /// How a claim looks at this moment.
    pub(super) fn way(&self, id: SubscriptionId, now: Instant) -> Way {
        match self.floors().get(&id) {
            Some(floor) if floor.slow >= IN_A_ROW => match floor.clear {
                Some(clear) if now < floor.looked + EVERY.max(floor.took * SHARE) => {
                    Way::After(clear.before(MARGIN))
                }
                _ => Way::All,
            },
            _ => Way::Call,
        }
    }

    /// A claim has looked at everything since `began`. `clear`: at this time nothing was due but what it took.
    pub(super) fn looked(&self, id: SubscriptionId, began: Instant, now: Instant, clear: Option<Time>) {
        let took = now - began;
        let mut floors = self.floors();
        if took < SLOW {
            floors.remove(&id);
            return;
        }
        let slow = floors.get(&id).map_or(0, |floor| floor.slow).saturating_add(1);
        floors.insert(id, Floor { slow, clear, looked: now, took });
    }

    fn floors(&self) -> std::sync::MutexGuard<'_, HashMap<SubscriptionId, Floor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SubscriptionId = SubscriptionId(1);
    const CLEAR: Time = Time(1_000_000);

    #[test]
    fn only_where_claims_are_slow_again_and_again_do_they_begin_later() {
        let (floors, start) = (Floors::default(), Instant::now());
        let slow = |clear| floors.looked(ID, start, start + SLOW, clear);
        slow(Some(CLEAR));
        slow(Some(CLEAR));
        assert_eq!(floors.way(ID, start), Way::Call);
        floors.looked(ID, start, start + SLOW / 2, Some(CLEAR));
        slow(Some(CLEAR));
        assert_eq!(floors.way(ID, start), Way::Call);
        slow(Some(CLEAR));
        slow(Some(CLEAR));
        assert_eq!(floors.way(ID, start), Way::After(CLEAR.before(MARGIN)));
        assert_eq!(floors.way(SubscriptionId(2), start), Way::Call);
    }

    #[test]
    fn everything_is_looked_at_again_and_that_takes_a_twentieth_of_the_time() {
        let (floors, start) = (Floors::default(), Instant::now());
        for _ in 0..IN_A_ROW {
            floors.looked(ID, start, start + SLOW, Some(CLEAR));
        }
        assert_eq!(floors.way(ID, start + SLOW + EVERY), Way::All);
        let later = start + Duration::from_secs(10);
        floors.looked(ID, start, later, Some(CLEAR));
        assert_eq!(floors.way(ID, later + Duration::from_secs(199)), Way::After(CLEAR.before(MARGIN)));
        assert_eq!(floors.way(ID, later + Duration::from_secs(200)), Way::All);
    }

    #[test]
    fn where_something_was_left_the_next_claim_looks_at_everything() {
        let (floors, start) = (Floors::default(), Instant::now());
        for _ in 0..IN_A_ROW {
            floors.looked(ID, start, start + SLOW, None);
        }
        assert_eq!(floors.way(ID, start), Way::All);
    }
}
