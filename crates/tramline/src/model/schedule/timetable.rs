//! When a schedule runs next: cron expressions in a time zone, and plain intervals.
//!
//! A zone's clocks are put forward and back. Between two such changes local time and real time run alike, so a run is looked for
//! in one such span after the other.
//!
//! - An entry at fixed times (`30 2 * * *`) runs once for each local time that it names. One that is left out when clocks are put
//!   forward runs at the first moment after the gap; several that are left out together are one run. One that comes twice when
//!   clocks are put back runs at the first.
//! - An entry with `*` or a step in its minutes or hours (`*/15 * * * *`) follows real time: it runs whenever the clock shows a
//!   time that it names, so not in a gap, and again in an hour that comes again.
//! - An interval knows no clocks: it runs at whole multiples of itself after its anchor, and never drifts.

use crate::error::{Error, Result};
use crate::model::schedule::cron::Cron;
use crate::model::time::Time;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, ToSpan};

/// A schedule's times, ready to be asked.
#[derive(Clone, Debug)]
pub(crate) enum Timetable {
    Cron { cron: Cron, zone: TimeZone },
    Every { millis: i64, anchor: Time },
}

impl Timetable {
    /// An expression in a zone by its IANA name.
    ///
    /// # Errors
    /// `Invalid`: the expression cannot be read, or nobody knows the zone.
    pub(crate) fn cron(expression: &str, zone: &str) -> Result<Timetable> {
        let cron = Cron::parse(expression)?;
        let zone = TimeZone::get(zone).map_err(|_| {
            let shown: String = zone.chars().take(40).collect();
            Error::invalid(
                format!("{shown:?} is not a known time zone"),
                "use an IANA name, such as Europe/Vienna or UTC",
            )
        })?;
        Ok(Timetable::Cron { cron, zone })
    }

    /// The first run after a time. `None`: there is none before the end of the calendar.
    pub(crate) fn next(&self, after: Time) -> Option<Time> {
        match self {
            Timetable::Every { millis, anchor } => {
                let passed = after.0.checked_sub(anchor.0)?.max(0) / millis;
                Some(Time(passed.checked_add(1)?.checked_mul(*millis)?.checked_add(anchor.0)?))
            }
            Timetable::Cron { cron, zone } => {
                let after = Timestamp::from_millisecond(after.0).ok()?;
                Some(Time(next_in(cron, zone, after)?.as_millisecond()))
            }
        }
    }

    /// The last run that is not after `until`, given that `first` is one. Found by halving: runs are only known forwards.
    pub(crate) fn last(&self, first: Time, until: Time) -> Time {
        let (mut last, mut end) = (first, until);
        while last < end {
            let middle = Time(last.0 + (end.0 - last.0) / 2);
            match self.next(middle).filter(|run| *run <= until) {
                Some(run) => last = run,
                None => end = middle,
            }
        }
        last
    }
}

fn next_in(cron: &Cron, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
    let mut offset = zone.to_offset(after);
    let mut from = second_after(offset.to_datetime(after))?;
    if !cron.is_running {
        from = from.max(repeated_until(zone, after));
    }
    for change in zone.following(after) {
        if let Some(run) = cron.first(from).and_then(|local| at(local, offset))
            && run < change.timestamp()
        {
            return Some(run);
        }
        let (shown, shows) =
            (offset.to_datetime(change.timestamp()), change.offset().to_datetime(change.timestamp()));
        if !cron.is_running && cron.first(shown).is_some_and(|local| local < shows) {
            return Some(change.timestamp());
        }
        from = if cron.is_running { shows } else { shown.max(shows) };
        offset = change.offset();
    }
    at(cron.first(from)?, offset)
}

/// Until which local time everything is shown for the second time, if clocks were put back last; else long ago.
fn repeated_until(zone: &TimeZone, at: Timestamp) -> DateTime {
    let Ok(later) = at.checked_add(1.millisecond()) else { return DateTime::MIN };
    let Some(change) = zone.preceding(later).next() else { return DateTime::MIN };
    let Ok(before) = change.timestamp().checked_sub(1.millisecond()) else { return DateTime::MIN };
    zone.to_offset(before).to_datetime(change.timestamp())
}

fn at(local: DateTime, offset: Offset) -> Option<Timestamp> {
    offset.to_timestamp(local).ok()
}

/// The next whole second: expressions know nothing smaller, and zones change at whole seconds.
fn second_after(local: DateTime) -> Option<DateTime> {
    local.with().subsec_nanosecond(0).build().ok()?.checked_add(1.second()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next runs after a local time, as local times with their offset.
    fn runs(cron: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
        let table = Timetable::cron(cron, zone).unwrap();
        let zone = TimeZone::get(zone).unwrap();
        let start = after.parse::<DateTime>().unwrap().to_zoned(zone.clone()).unwrap();
        let mut at = Time(start.timestamp().as_millisecond());
        let mut shown = Vec::new();
        for _ in 0..count {
            at = table.next(at).unwrap();
            let run = Timestamp::from_millisecond(at.0).unwrap().to_zoned(zone.clone());
            shown.push(run.strftime("%m-%d %H:%M%:z").to_string());
        }
        shown
    }

    #[test]
    fn a_fixed_time_in_a_gap_runs_once_at_the_first_moment_after_it() {
        let vienna = |cron| runs(cron, "Europe/Vienna", "2026-03-28T12:00", 3);
        let daily = ["03-29 03:00+02:00", "03-30 02:30+02:00", "03-31 02:30+02:00"];
        assert_eq!(vienna("30 2 * * *"), daily);
        let twice = ["03-29 03:00+02:00", "03-30 02:10+02:00", "03-30 02:40+02:00"];
        assert_eq!(vienna("10,40 2 * * *"), twice, "left out together, they are one run");
        let mixed = ["03-29 03:00+02:00", "03-29 03:30+02:00", "03-30 02:30+02:00"];
        assert_eq!(vienna("30 2,3 * * *"), mixed);
        let edge = ["03-29 03:00+02:00", "03-30 02:00+02:00", "03-30 03:00+02:00"];
        assert_eq!(vienna("0 2,3 * * *"), edge, "two of the same moment are one run");
    }

    #[test]
    fn a_fixed_time_that_comes_twice_runs_at_the_first() {
        let fall = runs("30 2 * * *", "Europe/Vienna", "2026-10-24T12:00", 2);
        assert_eq!(fall, ["10-25 02:30+02:00", "10-26 02:30+01:00"]);
        let york = runs("30 1 * * *", "America/New_York", "2026-10-31T12:00", 2);
        assert_eq!(york, ["11-01 01:30-04:00", "11-02 01:30-05:00"]);
        // Asked in the hour that comes again, when the run is over.
        let table = Timetable::cron("45 1 * * *", "America/New_York").unwrap();
        let again: Timestamp = "2026-11-01T06:30:00Z".parse().unwrap(); // 01:30 for the second time
        let next = table.next(Time(again.as_millisecond())).unwrap();
        assert_eq!(Timestamp::from_millisecond(next.0).unwrap().to_string(), "2026-11-02T06:45:00Z");
    }

    #[test]
    fn stars_and_steps_follow_real_time() {
        let spring = runs("*/30 * * * *", "America/New_York", "2026-03-08T01:00", 3);
        assert_eq!(spring, ["03-08 01:30-05:00", "03-08 03:00-04:00", "03-08 03:30-04:00"]);
        let fall = runs("*/30 * * * *", "America/New_York", "2026-11-01T00:30", 5);
        let twice = ["01:00-04:00", "01:30-04:00", "01:00-05:00", "01:30-05:00", "02:00-05:00"];
        assert_eq!(fall, twice.map(|time| format!("11-01 {time}")));
        let night = runs("*/20 2 * * *", "Europe/Vienna", "2026-03-28T12:00", 1);
        assert_eq!(night, ["03-30 02:00+02:00"], "that hour did not exist the day before");
    }

    #[test]
    fn half_an_hour_on_lord_howe_is_a_gap_and_a_fold_too() {
        let spring = runs("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", 2);
        assert_eq!(spring, ["10-04 02:30+11:00", "10-05 02:15+11:00"]);
        let fall = runs("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", 2);
        assert_eq!(fall, ["04-05 01:45+11:00", "04-06 01:45+10:30"]);
        let real = runs("*/15 * * * *", "Australia/Lord_Howe", "2026-04-05T01:15", 5);
        let twice = ["01:30+11:00", "01:45+11:00", "01:30+10:30", "01:45+10:30", "02:00+10:30"];
        assert_eq!(real, twice.map(|time| format!("04-05 {time}")));
    }

    /// Samoa crossed the date line: there was no 30 December 2011.
    #[test]
    fn a_day_that_is_missing_in_apia_is_a_gap_of_a_day() {
        let noon = runs("0 12 * * *", "Pacific/Apia", "2011-12-29T00:00", 4);
        assert_eq!(
            noon,
            ["12-29 12:00-10:00", "12-31 00:00+14:00", "12-31 12:00+14:00", "01-01 12:00+14:00"]
        );
        let midnight = runs("0 0 * * *", "Pacific/Apia", "2011-12-28T12:00", 3);
        assert_eq!(midnight, ["12-29 00:00-10:00", "12-31 00:00+14:00", "01-01 00:00+14:00"]);
        let monthly = runs("0 8 30 * *", "Pacific/Apia", "2011-12-01T00:00", 2);
        assert_eq!(monthly, ["12-31 00:00+14:00", "01-30 08:00+14:00"]);
        let hourly = runs("0 * * * *", "Pacific/Apia", "2011-12-29T22:30", 2);
        assert_eq!(hourly, ["12-29 23:00-10:00", "12-31 00:00+14:00"]);
    }

    #[test]
    fn leap_days_and_the_end_of_the_calendar() {
        let leap = runs("0 0 29 2 *", "UTC", "2096-03-01T00:00", 2);
        assert_eq!(leap, ["02-29 00:00+00:00"; 2]);
        let table = Timetable::cron("* * * * *", "Europe/Vienna").unwrap();
        assert_eq!(table.next(Time::NEVER), None);
        assert_eq!(table.next(Time(Timestamp::MAX.as_millisecond())), None);
        let yearly = Timetable::cron("0 0 1 1 *", "Europe/Vienna").unwrap();
        assert_eq!(yearly.next(Time(Timestamp::MAX.as_millisecond() - 1000)), None);
    }

    #[test]
    fn intervals_stay_on_their_anchor() {
        let every = Timetable::Every { millis: 7_000, anchor: Time(1_000) };
        let next = |after| every.next(Time(after)).map(|time| time.0);
        assert_eq!([next(0), next(1_000), next(7_999)], [Some(8_000); 3]);
        assert_eq!([next(8_000), next(70_000_500)], [Some(15_000), Some(70_001_000)]);
        assert_eq!(next(i64::MAX), None);
    }

    #[test]
    fn the_last_run_is_found_without_walking() {
        for table in [
            Timetable::cron("* * * * * *", "UTC").unwrap(),
            Timetable::cron("30 2 * * *", "Europe/Vienna").unwrap(),
            Timetable::Every { millis: 1_337, anchor: Time(5) },
        ] {
            let first = table.next(Time(1_700_000_000_000)).unwrap();
            for until in [first, first.after(std::time::Duration::from_secs(86_400 * 400))] {
                let last = table.last(first, until);
                assert!(last <= until && table.next(last).unwrap() > until);
            }
        }
    }
}
