//! Times, durations, pairs and numbers on the command line.

use std::time::{Duration, SystemTime};

/// A duration such as `500ms`, `5s`, `2m` or `1h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; use something like 500ms, 5s, 2m or 1h"))
}

/// So many in a time, such as `10/s`, `100/m` or `5/30s`.
pub(crate) fn rate(text: &str) -> Result<(u32, Duration), String> {
    let wrong = || "use something like 10/s, 100/m or 5/30s".to_owned();
    let (events, per) = text.split_once('/').ok_or_else(wrong)?;
    let events = events.parse().ok().filter(|events| *events > 0).ok_or_else(wrong)?;
    let per = if per.starts_with(|first: char| first.is_ascii_digit()) {
        per.to_owned()
    } else {
        format!("1{per}")
    };
    Ok((events, humantime::parse_duration(&per).map_err(|_| wrong())?))
}

/// A time such as `2030-01-31T12:00:00Z`, as the server wants it.
pub(crate) fn time(text: &str) -> Result<String, String> {
    match humantime::parse_rfc3339_weak(text) {
        Ok(time) => Ok(rfc3339(time)),
        Err(error) => Err(format!("{error}; use UTC, like 2030-01-31T12:00:00Z")),
    }
}

/// `name=value`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("use name=value".to_owned()),
    }
}

/// The number of a tally, as the server gave it.
pub(crate) fn tally(text: &str) -> Result<String, String> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<i64>().is_ok();
    if is_number {
        Ok(text.to_owned())
    } else {
        Err("a tally is a number, as opening it printed it".to_owned())
    }
}

/// The time on this machine when `duration` has passed.
#[expect(clippy::disallowed_methods, reason = "\"for ten minutes\" means the clock of who says it")]
pub(crate) fn from_now(duration: Duration) -> String {
    rfc3339(SystemTime::now() + duration)
}

/// The time on this machine.
#[expect(clippy::disallowed_methods, reason = "a receiver of signed requests has no clock but its own")]
pub(crate) fn now() -> tramline::Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    tramline::Time(0).after(since)
}

/// Whole milliseconds, as the server wants them.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert!(duration("5").is_err() && duration("soon").is_err());
    }

    #[test]
    fn a_rate_is_a_number_in_a_time() {
        assert_eq!(rate("10/s"), Ok((10, Duration::from_secs(1))));
        assert_eq!(rate("100/m"), Ok((100, Duration::from_secs(60))));
        assert_eq!(rate("5/30s"), Ok((5, Duration::from_secs(30))));
        for bad in ["10", "0/s", "-1/s", "x/s", "10/", "10/x"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_checked_and_made_complete() {
        assert_eq!(time("2030-01-31 12:00:00").as_deref(), Ok("2030-01-31T12:00:00.000Z"));
        assert!(time("tomorrow").is_err());
    }

    #[test]
    fn a_pair_needs_a_name() {
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(pair("=b").is_err() && pair("a").is_err());
    }
}
