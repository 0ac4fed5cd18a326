//! How the sending of a push subscription goes: what was tried, and what follows from it.

use crate::model::id::EventId;
use crate::model::push::Push;
use crate::model::time::{Time, as_millis};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The points of a subscriber that never failed.
const FULL: u32 = 100;
/// After the first of several failures the subscriber is left alone for this long; after each further one twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// It is never left alone for longer than this, unless it asked for more.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The longest `Retry-After` that is obeyed.
pub(crate) const LONGEST_WISH: Duration = Duration::from_secs(3600);
/// How much is kept of what a receiver answered, in bytes.
pub const MAX_EXCERPT: usize = 512;

/// One request to a receiver, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// When it began.
    pub at: Time,
    /// The first event of the batch.
    pub first: EventId,
    /// The last event of the batch.
    pub last: EventId,
    /// How many events it had.
    pub events: u32,
    /// How many of them were acknowledged.
    pub acknowledged: u32,
    /// What became of it.
    pub verdict: Verdict,
    /// The status of the answer, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How long it took.
    #[serde(rename = "latency_ms", with = "as_millis")]
    pub latency: Duration,
    /// The beginning of the answer, or why there was none.
    pub excerpt: String,
    /// For how long the receiver wants to be left alone.
    #[serde(skip)]
    pub retry_after: Option<Duration>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Verdict {
    /// The receiver took the batch, perhaps without some of its events.
    Delivered,
    /// It did not.
    Failed,
    /// It never wants another one (status 410).
    Gone,
}

impl Verdict {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Delivered => "delivered",
            Verdict::Failed => "failed",
            Verdict::Gone => "gone",
        }
    }
}

/// How the sending of a push subscription stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// 0 to 100: one more for each success, two less for each failure.
    pub points: u32,
    /// How often it failed in a row.
    pub failures: u32,
    /// Since when nothing has succeeded.
    pub failing_since: Option<Time>,
    /// When the last failure was seen.
    pub failed_at: Option<Time>,
    /// When the last batch was taken.
    pub delivered_at: Option<Time>,
    /// Nothing is sent before.
    pub put_off_until: Time,
    /// Why nothing is sent at all, and since when.
    pub disabled: Option<Disabled>,
    /// True if it was disabled by its failures, and that is still to be told.
    pub is_untold: bool,
    /// The callback that agreed to be sent events, where it was asked.
    pub agreed: Option<String>,
    /// How many events were acknowledged, and in how many batches.
    pub sent: u64,
    /// How many batches were acknowledged.
    pub batches: u64,
    /// How many requests failed.
    pub failed: u64,
}

/// Why nothing is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disabled {
    /// Since when.
    pub at: Time,
    /// Why.
    pub reason: String,
}

impl Default for Health {
    fn default() -> Health {
        Health {
            points: FULL,
            failures: 0,
            failing_since: None,
            failed_at: None,
            delivered_at: None,
            put_off_until: Time(0),
            disabled: None,
            is_untold: false,
            agreed: None,
            sent: 0,
            batches: 0,
            failed: 0,
        }
    }
}

impl Health {
    /// Takes deliveries into account of which nothing but the numbers is known. They came before what is recorded one by one.
    pub fn count(&mut self, events: u64, batches: u64) {
        self.sent += events;
        self.batches += batches;
        self.points = self.points.saturating_add(u32::try_from(batches).unwrap_or(FULL)).min(FULL);
    }

    /// Takes an attempt into account. True if nothing is sent any more because of it.
    pub fn record(&mut self, attempt: &Attempt, push: &Push, now: Time) -> bool {
        if attempt.verdict == Verdict::Delivered {
            self.succeed(attempt, now);
            return false;
        }
        self.fail(attempt, now);
        let reason = match (attempt.verdict, push.disable_after, self.failing_since) {
            _ if self.disabled.is_some() => return false,
            (Verdict::Gone, _, _) => "the receiver answered 410 Gone".to_owned(),
            (_, Some(limit), Some(since)) if now.since(since) >= limit => {
                format!("nothing has succeeded for {limit:?}")
            }
            _ => return false,
        };
        self.disabled = Some(Disabled { at: now, reason });
        self.is_untold = true;
        true
    }

    fn succeed(&mut self, attempt: &Attempt, now: Time) {
        self.points = (self.points + 1).min(FULL);
        self.failures = 0;
        self.failing_since = None;
        self.put_off_until = attempt.retry_after.map_or(Time(0), |wish| now.after(wish.min(LONGEST_WISH)));
        self.delivered_at = Some(now);
        self.sent += u64::from(attempt.acknowledged);
        self.batches += 1;
    }

    fn fail(&mut self, attempt: &Attempt, now: Time) {
        self.points = self.points.saturating_sub(2);
        self.failed += 1;
        self.failing_since.get_or_insert(attempt.at);
        // Requests that were under way together fail together: that is one failure to learn from.
        if self.failures == 0 || self.failed_at.is_none_or(|before| attempt.at > before) {
            self.failures = self.failures.saturating_add(1);
            self.failed_at = Some(now);
        }
        let wish = attempt.retry_after.unwrap_or_default().min(LONGEST_WISH);
        self.put_off_until = self.put_off_until.max(now.after(self.pause(attempt).max(wish)));
    }

    /// Doubles with every failure in a row; 1.0 to 1.5 of it, so that many subscribers of one dead host do not come at once.
    fn pause(&self, attempt: &Attempt) -> Duration {
        let doubled = FIRST_PAUSE.saturating_mul(1 << self.failures.saturating_sub(1).min(20));
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&attempt.first.0.to_le_bytes());
        hasher.update(&self.failures.to_le_bytes());
        doubled.min(LONGEST_PAUSE).mul_f64(1.0 + 0.5 * f64::from(hasher.finalize()) / f64::from(u32::MAX))
    }

    /// Sends again, as if it had never failed.
    pub fn enable(&mut self) {
        self.disabled = None;
        self.is_untold = false;
        self.failures = 0;
        self.failing_since = None;
        self.put_off_until = Time(0);
    }

    /// True if events may be sent now.
    pub fn is_open(&self, now: Time) -> bool {
        self.disabled.is_none() && self.put_off_until <= now
    }
}

/// The beginning of a text, cut where a character ends.
pub(crate) fn excerpt(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control() || *c == '\n')
        .scan(0, |size, c| {
            *size += c.len_utf8();
            (*size <= MAX_EXCERPT).then_some(c)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(at: i64, verdict: Verdict) -> Attempt {
        Attempt {
            at: Time(at),
            first: EventId(64),
            last: EventId(70),
            events: 5,
            acknowledged: 5,
            verdict,
            status: None,
            latency: Duration::ZERO,
            excerpt: String::new(),
            retry_after: None,
        }
    }

    #[test]
    fn a_failing_subscriber_is_left_alone_for_longer_and_longer_and_one_success_mends_it() {
        let (mut health, push) = (Health::default(), Push::to("https://a.example/"));
        let mut now = 0;
        for failure in 1..=12u32 {
            assert!(!health.record(&attempt(now, Verdict::Failed), &push, Time(now)));
            let pause = health.put_off_until.since(Time(now)).as_millis() as f64;
            let expected = (500.0 * 2f64.powi(failure as i32 - 1)).min(60_000.0);
            assert!(pause >= expected && pause <= expected * 1.5 + 1.0, "{failure}: {pause}");
            now = health.put_off_until.0;
        }
        assert_eq!((health.points, health.failures, health.failing_since), (76, 12, Some(Time(0))));
        assert!(health.is_open(Time(now)) && !health.is_open(Time(now - 1)));
        health.record(&attempt(now, Verdict::Delivered), &push, Time(now));
        assert_eq!((health.points, health.failures, health.failing_since), (77, 0, None));
        assert_eq!((health.sent, health.batches, health.failed), (5, 1, 12));
    }

    #[test]
    fn requests_that_fail_together_are_one_failure() {
        let (mut health, push) = (Health::default(), Push::to("https://a.example/"));
        for _ in 0..8 {
            health.record(&attempt(100, Verdict::Failed), &push, Time(200));
        }
        assert_eq!((health.failures, health.failed, health.points), (1, 8, 84));
        health.record(&attempt(201, Verdict::Failed), &push, Time(300));
        assert_eq!(health.failures, 2);
    }

    #[test]
    fn it_is_disabled_by_410_and_after_a_period_without_success_and_told_once() {
        let push = Push { disable_after: Some(Duration::from_secs(10)), ..Push::to("https://a.example/") };
        let mut health = Health::default();
        assert!(health.record(&attempt(0, Verdict::Gone), &push, Time(1)) && health.is_untold);
        assert!(!health.record(&attempt(0, Verdict::Gone), &push, Time(2)));
        assert!(!health.is_open(Time::NEVER));
        health.enable();
        assert!(health.is_open(Time(2)));
        assert!(!health.record(&attempt(1_000, Verdict::Failed), &push, Time(1_000)));
        assert!(!health.record(&attempt(10_000, Verdict::Failed), &push, Time(10_999)));
        assert!(health.record(&attempt(11_000, Verdict::Failed), &push, Time(11_000)));
        let patient = Push { disable_after: None, ..push };
        let mut health = Health::default();
        assert!(!health.record(&attempt(0, Verdict::Failed), &patient, Time(i64::MAX / 2)));
    }

    #[test]
    fn what_the_receiver_asks_for_is_obeyed_within_reason() {
        let (mut health, push) = (Health::default(), Push::to("https://a.example/"));
        let wish = |seconds| Attempt {
            retry_after: Some(Duration::from_secs(seconds)),
            ..attempt(0, Verdict::Failed)
        };
        health.record(&wish(120), &push, Time(0));
        assert_eq!(health.put_off_until, Time(120_000));
        health.record(&wish(10_000_000), &push, Time(0));
        assert_eq!(health.put_off_until, Time(3_600_000));
    }

    #[test]
    fn an_excerpt_is_short_and_readable() {
        assert_eq!(excerpt("a\u{7}b\nc"), "ab\nc");
        let long = excerpt(&"ä".repeat(1000));
        assert_eq!(long.len(), MAX_EXCERPT);
    }
}
