//! Replaying and dropping dead events: all of them, or as many as a request has time for.

use crate::engine::tramline::Tramline;
use crate::error::{Error, Result};
use crate::model::id::{EventId, SubscriptionId};
use crate::model::letter::Pace;
use crate::model::time::Time;
use crate::store::verbs::{Revival, Revive, Revived, Stagger, Which};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// For how long a part begins new steps.
const PART: Duration = Duration::from_secs(10);

/// What was done of a replay or a drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// How many events.
    pub count: u64,
    /// Where it goes on; `None` when all is done.
    pub next: Option<Place>,
}

/// Where a replay or a drop goes on: behind which event, and for one with a rate since when and after how many. As text it means nothing to
/// anybody else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    after: EventId,
    start: Option<Time>,
    done: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.after.0, self.start.unwrap_or_default().0, self.done)
    }
}

impl FromStr for Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<Place> {
        let bad =
            || Error::invalid("this is no place to go on from", "pass what the call before gave as `next`");
        let number = |text: &str| text.parse::<i64>().ok().filter(|number| *number >= 0);
        let numbers: Option<Vec<i64>> = text.split('-').map(number).collect();
        let Some([after, start, done]) = numbers.as_deref().and_then(|all| <[i64; 3]>::try_from(all).ok())
        else {
            return Err(bad());
        };
        let start = Some(Time(start)).filter(|start| start.0 > 0);
        Ok(Place { after: EventId(after), start, done: done.cast_unsigned() })
    }
}

/// All errors: `NotFound` for names that do not exist, `Unavailable` when the store does not answer.
impl Tramline {
    /// Runs dead and held events again, with their attempts counted anew. Gives how many.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn replay(&self, subscription: &str, which: Which) -> Result<u64> {
        self.revive_all(subscription, which, Revival::Replay).await
    }

    /// The same, but so many in each period and no more: each gets a time of its own, and waits for it like any delayed event. That
    /// holds whatever is restarted meanwhile. Another replay has a rate of its own.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for a rate that is out of range.
    pub async fn replay_at(&self, subscription: &str, which: Which, rate: Pace) -> Result<u64> {
        self.revive_all(subscription, which, at(Some(rate))?).await
    }

    /// Drops dead and held events. Gives how many.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn drop_dead(&self, subscription: &str, which: Which) -> Result<u64> {
        self.revive_all(subscription, which, Revival::Drop).await
    }

    /// As [`Tramline::replay`] or, with a rate, [`Tramline::replay_at`], but for some seconds only, and until it has taken `most` if that is set. Call it again with the same arguments
    /// and the `next` of the call before: the rate goes on as if it were one call.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for a rate that is out of range. What was done before an error in between is not lost: it is given, and
    /// whoever goes on from there meets the error again.
    pub async fn replay_part(
        &self,
        subscription: &str,
        which: Which,
        rate: Option<Pace>,
        from: Option<Place>,
        most: Option<u64>,
    ) -> Result<Part> {
        self.revive_part(subscription, which, at(rate)?, from, most).await
    }

    /// As [`Tramline::drop_dead`], but for some seconds only; see [`Tramline::replay_part`].
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn drop_dead_part(
        &self,
        subscription: &str,
        which: Which,
        from: Option<Place>,
        most: Option<u64>,
    ) -> Result<Part> {
        self.revive_part(subscription, which, Revival::Drop, from, most).await
    }

    async fn revive_all(&self, subscription: &str, which: Which, how: Revival) -> Result<u64> {
        let id = self.subscription(subscription).await?.id;
        let (mut count, mut place) = (0, Place::default());
        loop {
            let revived = self.revive_step(id, &which, how, place).await?;
            count += revived.count;
            match place.behind(&revived) {
                Some(next) => place = next,
                None => return Ok(count),
            }
        }
    }

    async fn revive_part(
        &self,
        subscription: &str,
        which: Which,
        how: Revival,
        from: Option<Place>,
        most: Option<u64>,
    ) -> Result<Part> {
        let id = self.subscription(subscription).await?.id;
        let begun = Instant::now();
        let (mut count, mut place) = (0, from.unwrap_or_default());
        loop {
            let revived = match self.revive_step(id, &which, how, place).await {
                Ok(revived) => revived,
                Err(error) if count > 0 => {
                    tracing::debug!(error = %error, "a replay or drop stops early");
                    break;
                }
                Err(error) => return Err(error),
            };
            count += revived.count;
            match place.behind(&revived) {
                Some(next) => place = next,
                None => return Ok(Part { count, next: None }),
            }
            if begun.elapsed() >= PART || most.is_some_and(|most| count >= most) {
                break;
            }
        }
        Ok(Part { count, next: Some(place) })
    }

    /// However many dead events there are, each step is small. What comes back one after the other goes on where the step before ended.
    async fn revive_step(
        &self,
        id: SubscriptionId,
        which: &Which,
        how: Revival,
        from: Place,
    ) -> Result<Revived> {
        let how = match how {
            Revival::Stagger(pace) => {
                Revival::Stagger(Stagger { start: from.start, done: from.done, ..pace })
            }
            how => how,
        };
        let now = self.clock().now();
        let step = Revive { subscription: id, which: which.clone(), how, after: from.after, now };
        let revived = self.store().revive(step).await?;
        self.courier().look();
        self.wake().notify(&[id]);
        Ok(revived)
    }
}

impl Place {
    /// Where it goes on behind a step from here; `None` when that was the last one.
    fn behind(self, revived: &Revived) -> Option<Place> {
        let start = self.start.or(Some(revived.now));
        Some(Place { after: revived.next?, start, done: self.done + revived.count })
    }
}

fn at(rate: Option<Pace>) -> Result<Revival> {
    let Some(rate) = rate else { return Ok(Revival::Replay) };
    rate.check()?;
    Ok(Revival::Stagger(Stagger { rate, start: None, done: 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_the_same_after_a_journey_as_text() {
        for place in [Place::default(), Place { after: EventId(4_711), start: Some(Time(17)), done: 500 }] {
            assert_eq!(place.to_string().parse::<Place>().unwrap(), place);
        }
        for bad in ["", "1", "1-2", "1-2-3-4", "-1-2-3", "1--3", "a-b-c", "9999999999999999999-0-0"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }
}
