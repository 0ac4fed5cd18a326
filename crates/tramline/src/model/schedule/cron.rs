//! Cron expressions: which local times they name.
//!
//! Five fields (minute, hour, day of month, month, day of week), or six with the second in front. A field is a list of `*`,
//! numbers, names (`jan`, `mon`), ranges `a-b` and steps `/n`; `a/n` runs from `a` to the end of the field. `@hourly`, `@daily`
//! (`@midnight`), `@weekly`, `@monthly` and `@yearly` (`@annually`) stand for the usual ones.
//!
//! Days are meant as Vixie cron means them: when both the day of the month and the day of the week are restricted, either is
//! enough; when one of them begins with `*`, both have to fit.

use crate::error::{Error, Result};
use jiff::ToSpan;
use jiff::civil::{Date, DateTime, Time};

/// The longest expression, in bytes.
const LONGEST: usize = 200;
/// How many years ahead a day is looked for. Leap days are at most eight years apart.
const YEARS: i16 = 12;

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// A parsed expression. Each field is a set of bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cron {
    second: u64,
    minute: u64,
    hour: u64,
    day: u64,
    month: u64,
    weekday: u64,
    /// One of the two fields of days is enough.
    either_day: bool,
    /// True if minutes or hours are given by `*` or a step: it means "this often", not "at this time".
    pub(crate) is_running: bool,
}

/// What a field may hold.
struct Field {
    what: &'static str,
    low: u32,
    high: u32,
    names: &'static [&'static str],
}

const SECOND: Field = Field { what: "second", low: 0, high: 59, names: &[] };
const MINUTE: Field = Field { what: "minute", low: 0, high: 59, names: &[] };
const HOUR: Field = Field { what: "hour", low: 0, high: 23, names: &[] };
const DAY: Field = Field { what: "day of the month", low: 1, high: 31, names: &[] };
const MONTH: Field = Field { what: "month", low: 1, high: 12, names: &MONTHS };
/// 7 is Sunday too, so that ranges may end with it.
const WEEKDAY: Field = Field { what: "day of the week", low: 0, high: 7, names: &WEEKDAYS };

impl Cron {
    /// Reads an expression.
    ///
    /// # Errors
    /// `Invalid`: it cannot be read, or names a day that never comes.
    pub(crate) fn parse(text: &str) -> Result<Cron> {
        if text.len() > LONGEST {
            return Err(wrong(format!("the cron expression has more than {LONGEST} bytes")));
        }
        let text = text.trim();
        let fields: Vec<&str> = match text.strip_prefix('@') {
            Some(word) => nickname(word)?.split(' ').collect(),
            None => text.split_ascii_whitespace().collect(),
        };
        let (second, [minute, hour, day, month, weekday]) = match fields[..] {
            [minute, hour, day, month, weekday] => ("0", [minute, hour, day, month, weekday]),
            [second, minute, hour, day, month, weekday] => (second, [minute, hour, day, month, weekday]),
            _ => {
                return Err(wrong(format!("a cron expression has five or six fields, not {}", fields.len())));
            }
        };
        let weekdays = WEEKDAY.parse(weekday)?;
        let cron = Cron {
            second: SECOND.parse(second)?,
            minute: MINUTE.parse(minute)?,
            hour: HOUR.parse(hour)?,
            day: DAY.parse(day)?,
            month: MONTH.parse(month)?,
            weekday: (weekdays | weekdays >> 7) & 0x7f,
            either_day: !day.starts_with('*') && !weekday.starts_with('*'),
            is_running: [minute, hour].iter().any(|field| field.contains(['*', '/'])),
        };
        if cron.first_day(Date::constant(2000, 1, 1)).is_none() {
            return Err(wrong(format!("{text:?} names a day that never comes")));
        }
        Ok(cron)
    }

    /// The first local time, not before `from`, that it names. Whole seconds.
    pub(crate) fn first(&self, from: DateTime) -> Option<DateTime> {
        let day = self.first_day(from.date())?;
        if day == from.date() {
            if let Some(time) = self.first_time(from.time()) {
                return Some(day.to_datetime(time));
            }
            let later = self.first_day(day.tomorrow().ok()?)?;
            return Some(later.to_datetime(self.first_time(Time::midnight())?));
        }
        Some(day.to_datetime(self.first_time(Time::midnight())?))
    }

    fn first_day(&self, from: Date) -> Option<Date> {
        let mut day = from;
        while day.year() - from.year() <= YEARS {
            if !has(self.month, day.month()) {
                day = day.last_of_month().tomorrow().ok()?;
            } else if self.is_day(day) {
                return Some(day);
            } else {
                day = day.checked_add(1.day()).ok()?;
            }
        }
        None
    }

    fn is_day(&self, date: Date) -> bool {
        let of_month = has(self.day, date.day());
        let of_week = has(self.weekday, date.weekday().to_sunday_zero_offset());
        if self.either_day { of_month || of_week } else { of_month && of_week }
    }

    /// The first time of a day, not before `from`.
    fn first_time(&self, from: Time) -> Option<Time> {
        let (hour, minute) = (from.hour(), from.minute());
        if has(self.hour, hour) {
            if has(self.minute, minute)
                && let Some(second) = next(self.second, from.second())
            {
                return Time::new(hour, minute, second, 0).ok();
            }
            if let Some(minute) = next(self.minute, minute + 1) {
                return Time::new(hour, minute, next(self.second, 0)?, 0).ok();
            }
        }
        let hour = next(self.hour, hour + 1)?;
        Time::new(hour, next(self.minute, 0)?, next(self.second, 0)?, 0).ok()
    }
}

impl Field {
    fn parse(&self, text: &str) -> Result<u64> {
        text.split(',').try_fold(0, |bits, part| Ok(bits | self.part(part)?))
    }

    /// One entry of a list: `*`, `a`, `a-b`, each with a step or without.
    fn part(&self, text: &str) -> Result<u64> {
        let (range, step) = match text.split_once('/') {
            Some((range, step)) => (range, Some(self.step(step)?)),
            None => (text, None),
        };
        let (low, high) = match range.split_once('-') {
            _ if range == "*" => (self.low, self.high),
            Some((low, high)) => (self.number(low)?, self.end(high)?),
            None => {
                let low = self.number(range)?;
                (low, if step.is_some() { self.high } else { low })
            }
        };
        if low > high {
            let what = self.what;
            return Err(Error::invalid(
                format!("the range {range:?} of the {what} runs backwards"),
                "write it as two, such as 22-23,0-2",
            ));
        }
        Ok((low..=high).step_by(step.unwrap_or(1)).fold(0, |bits, at| bits | 1 << at))
    }

    /// The end of a range: there, Sunday is the last day of the week.
    fn end(&self, text: &str) -> Result<u32> {
        let number = self.number(text)?;
        Ok(if self.high == WEEKDAY.high && number == 0 { WEEKDAY.high } else { number })
    }

    fn number(&self, text: &str) -> Result<u32> {
        let named = self.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        // Names begin where the numbers of the field do.
        let number = match named {
            Some(at) => self.low.checked_add(at as u32),
            None => digits(text),
        };
        number.filter(|number| (self.low..=self.high).contains(number)).ok_or_else(|| {
            let names = if self.names.is_empty() { "" } else { ", or a name of three letters" };
            wrong(format!("{text:?} is no {}: it is {} to {}{names}", self.what, self.low, self.high))
        })
    }

    fn step(&self, text: &str) -> Result<usize> {
        let step = digits(text).filter(|step| (1..=self.high).contains(step));
        step.map(|step| step as usize)
            .ok_or_else(|| wrong(format!("{text:?} is no step of the {}: 1 to {}", self.what, self.high)))
    }
}

/// Digits and nothing else: `parse` would take a sign.
fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn nickname(word: &str) -> Result<&'static str> {
    match word {
        "hourly" => Ok("0 * * * *"),
        "daily" | "midnight" => Ok("0 0 * * *"),
        "weekly" => Ok("0 0 * * 0"),
        "monthly" => Ok("0 0 1 * *"),
        "yearly" | "annually" => Ok("0 0 1 1 *"),
        _ => Err(wrong("it is not one of @hourly, @daily, @weekly, @monthly and @yearly".to_owned())),
    }
}

fn has(bits: u64, at: i8) -> bool {
    bits >> at & 1 == 1
}

/// The lowest number of a set, not below `from`.
fn next(bits: u64, from: i8) -> Option<i8> {
    let rest = bits >> from;
    (rest != 0).then(|| from + rest.trailing_zeros() as i8)
}

fn wrong(message: String) -> Error {
    Error::invalid(message, "write it like \"30 3 * * mon-fri\": minute, hour, day, month, day of the week")
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::date;

    fn days(text: &str, from: Date, count: usize) -> Vec<String> {
        let cron = Cron::parse(text).unwrap();
        let mut at = from.at(0, 0, 0, 0);
        let mut found = Vec::new();
        for _ in 0..count {
            let next = cron.first(at).unwrap();
            found.push(next.strftime("%m-%d").to_string());
            at = next.date().tomorrow().unwrap().at(0, 0, 0, 0);
        }
        found
    }

    #[test]
    fn fields_are_lists_of_numbers_names_ranges_and_steps() {
        let same = [
            ("*/15 * * * *", "0,15,30,45 * * * *"),
            ("5/20 * * * *", "5,25,45 * * * *"),
            ("0 9-17/4 * * *", "0 9,13,17 * * *"),
            ("0 0 1 JAN-mar,dec *", "0 0 1 1,2,3,12 *"),
            ("0 0 * * mon-fri", "0 0 * * 1-5"),
            ("0 0 * * sat-sun", "0 0 * * 6,0"),
            ("0 0 * * 5-7", "0 0 * * 0,5,6"),
            ("0 1 2 3 4", "0 0 1 2 3 4"),
            ("@weekly", "0 0 * * 7"),
            (" 0  0 1 1 * ", "@yearly"),
        ];
        for (one, other) in same {
            let (one, other) = (Cron::parse(one).unwrap(), Cron::parse(other).unwrap());
            assert_eq!(Cron { is_running: other.is_running, ..one }, other);
        }
    }

    #[test]
    fn what_cannot_be_read_or_never_comes_is_refused_with_a_remedy() {
        for bad in [
            "",
            "* * * *",
            "* * * * * * *",
            "60 * * * *",
            "-1 * * * *",
            "+1 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "* * * mon *",
            "*/0 * * * *",
            "*/60 * * * *",
            "5-1 * * * *",
            "1,,2 * * * *",
            "a * * * *",
            "1-2-3 * * * *",
            "0 0 30 2 *",
            "0 0 31 4,6,9,11 *",
            "@reboot",
            "@",
            "0 0 L * *",
            "99999999999 * * * *",
            &"0,".repeat(101),
        ] {
            let error = Cron::parse(bad).unwrap_err();
            assert!(!error.remedy().is_empty(), "{bad:?}: {error}");
        }
    }

    #[test]
    fn of_two_restricted_days_either_is_enough_and_a_star_restricts_nothing() {
        let from = date(2026, 2, 1); // a Sunday
        assert_eq!(days("0 0 13 * fri", from, 4), ["02-06", "02-13", "02-20", "02-27"]);
        assert_eq!(days("0 0 10 * fri", from, 3), ["02-06", "02-10", "02-13"]);
        assert_eq!(days("0 0 10 * *", from, 2), ["02-10", "03-10"]);
        // As in Vixie cron, a step over all days is a star too: odd days that are Mondays.
        assert_eq!(days("0 0 */2 * mon", from, 3), ["02-09", "02-23", "03-09"]);
    }

    #[test]
    fn leap_days_are_found_across_a_century_without_one() {
        let cron = Cron::parse("0 12 29 2 *").unwrap();
        let first = cron.first(date(2096, 3, 1).at(0, 0, 0, 0)).unwrap();
        assert_eq!(first, date(2104, 2, 29).at(12, 0, 0, 0));
        assert_eq!(cron.first(date(9998, 1, 1).at(0, 0, 0, 0)), None, "the calendar ends");
    }

    #[test]
    fn seconds_are_the_first_of_six_fields() {
        let cron = Cron::parse("10,40 59 23 31 12 *").unwrap();
        let at = |second| date(2026, 12, 31).at(23, 59, second, 0);
        assert_eq!(cron.first(at(10)), Some(at(10)));
        assert_eq!(cron.first(at(11)), Some(at(40)));
        assert_eq!(cron.first(at(41)), Some(date(2027, 12, 31).at(23, 59, 10, 0)));
    }
}
