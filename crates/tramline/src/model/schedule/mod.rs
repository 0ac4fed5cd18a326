//! Schedules: what is emitted at certain times.

mod cron;
mod timetable;
#[cfg(test)]
mod year;

pub(crate) use timetable::Timetable;

use crate::error::{Error, Result};
use crate::model::event::Event;
use crate::model::id::EventId;
use crate::model::kept;
use crate::model::name;
use crate::model::time::Time;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The header that names the schedule.
pub const SCHEDULE_HEADER: &str = "tramline-schedule";
/// The header that says for which time an event was scheduled, in RFC 3339.
pub const SCHEDULED_AT_HEADER: &str = "tramline-scheduled-at";

/// The shortest and the longest interval.
pub const SHORTEST: Duration = Duration::from_secs(1);
/// Ten years.
pub const LONGEST: Duration = Duration::from_secs(3653 * 24 * 3600);
const UTC: &str = "UTC";

/// An event that is emitted again and again, at certain times.
///
/// ```
/// # use tramline::{Event, Missed, Schedule};
/// let report = Event::json("reports", &serde_json::json!({"kind": "daily"}))?.kind("report.wanted").key("daily");
/// let nightly = Schedule::cron("nightly-report", "30 3 * * *", report).zone("Europe/Vienna").missed(Missed::One);
/// # Ok::<(), tramline::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    pub(crate) name: String,
    pub(crate) timing: Timing,
    pub(crate) missed: Missed,
    pub(crate) event: Event,
}

/// When a schedule runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timing {
    /// At the local times that a cron expression names.
    Cron {
        /// Five fields, or six with the second in front.
        expression: String,
        /// The time zone by its IANA name.
        zone: String,
    },
    /// This often. Real time: no zone, and no drift.
    Every {
        /// Milliseconds.
        millis: u64,
    },
}

/// What becomes of runs for which no process was there in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Missed {
    /// They are left out, but for one that is late by less than a minute.
    Skip,
    /// One event for all of them, with the time of the last.
    #[default]
    One,
    /// An event for each, but not more than 100 at once: then the oldest are left out.
    All,
}

impl Schedule {
    /// Emits `event` at the times that a cron expression names, in UTC unless [`Schedule::zone`] says otherwise.
    pub fn cron(name: impl Into<String>, expression: impl Into<String>, event: Event) -> Schedule {
        let timing = Timing::Cron { expression: expression.into(), zone: UTC.into() };
        Schedule { name: name.into(), timing, missed: Missed::default(), event }
    }

    /// Emits `event` this often, for the first time one interval after the schedule is put.
    pub fn every(name: impl Into<String>, interval: Duration, event: Event) -> Schedule {
        let millis = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        let timing = Timing::Every { millis };
        Schedule { name: name.into(), timing, missed: Missed::default(), event }
    }

    /// Whose clocks a cron expression means, by the IANA name of the time zone. An interval has none.
    #[must_use]
    pub fn zone(mut self, name: impl Into<String>) -> Schedule {
        if let Timing::Cron { zone, .. } = &mut self.timing {
            *zone = name.into();
        }
        self
    }

    /// What becomes of runs for which no process was there in time; [`Missed::One`] unless set.
    #[must_use]
    pub fn missed(mut self, missed: Missed) -> Schedule {
        self.missed = missed;
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// When it runs.
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    /// What becomes of missed runs.
    pub fn missed_policy(&self) -> Missed {
        self.missed
    }

    /// What it emits.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Checks everything that can be known before the store is asked.
    pub(crate) fn check(&self) -> Result<()> {
        name::check("schedule", &self.name)?;
        self.timing.timetable(Time(0))?;
        kept::check(&self.run(Time(0)))
    }

    /// The event of a run that was scheduled for `at`.
    pub(crate) fn run(&self, at: Time) -> Event {
        let time = jiff::Timestamp::from_millisecond(at.0).unwrap_or(jiff::Timestamp::MAX);
        let event = self.event.clone().header(SCHEDULE_HEADER, self.name.clone());
        event.header(SCHEDULED_AT_HEADER, time.to_string())
    }
}

impl Timing {
    /// The times. An interval counts from `anchor`.
    pub(crate) fn timetable(&self, anchor: Time) -> Result<Timetable> {
        match self {
            Timing::Cron { expression, zone } => Timetable::cron(expression, zone),
            Timing::Every { millis } => {
                let interval = Duration::from_millis(*millis);
                if !(SHORTEST..=LONGEST).contains(&interval) {
                    return Err(Error::invalid(
                        "an interval is shorter than a second or longer than ten years",
                        "use one between 1,000 and 315,619,200,000 milliseconds",
                    ));
                }
                Ok(Timetable::Every { millis: millis.cast_signed(), anchor })
            }
        }
    }
}

/// A schedule as it is kept, and how it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredSchedule {
    /// What was put.
    pub schedule: Schedule,
    /// Who declared it in code, if somebody did.
    pub declared_by: Option<String>,
    /// True while it rests.
    pub paused: bool,
    /// When it runs next; none while it rests.
    pub next_run: Option<Time>,
    /// For which time it last ran; one that was asked for ran when it was asked for.
    pub last_run: Option<Time>,
    /// What it emitted last.
    pub last_event: Option<EventId>,
    /// When it was first put.
    pub created_at: Time,
    /// When it was last changed.
    pub updated_at: Time,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        Event::new("t", "x")
    }

    #[test]
    fn impossible_schedules_are_refused_with_a_remedy() {
        let second = Duration::from_secs(1);
        assert!(Schedule::every("n", second, event()).check().is_ok());
        assert!(Schedule::cron("a/n", "@daily", event()).zone("america/new_york").check().is_ok());
        let bad = [
            Schedule::cron("no name", "@daily", event()),
            Schedule::cron("n", "daily", event()),
            Schedule::cron("n", "@daily", event()).zone("Europe/Atlantis"),
            Schedule::cron("n", "@daily", event()).zone(""),
            Schedule::every("n", Duration::ZERO, event()),
            Schedule::every("n", second - Duration::from_millis(1), event()),
            Schedule::every("n", LONGEST + second, event()),
            Schedule::every("n", second, Event::new("", "x")),
            Schedule::every("n", second, Event::new("t", vec![0; kept::MAX_PAYLOAD + 1])),
            Schedule::every("n", second, event().idempotency_key("k")),
        ];
        for schedule in bad {
            let error = schedule.check().unwrap_err();
            assert!(!error.remedy().is_empty(), "{error}");
        }
    }

    #[test]
    fn a_run_says_of_which_schedule_and_for_which_time() {
        let run = Schedule::cron("n", "@daily", event().header("a", "b")).run(Time(1_774_746_000_000));
        let headers: Vec<_> =
            run.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let time = "2026-03-29T01:00:00Z";
        assert_eq!(headers, [("a", "b"), (SCHEDULE_HEADER, "n"), (SCHEDULED_AT_HEADER, time)]);
    }
}
