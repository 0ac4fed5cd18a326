//! `Retry-After`: when a receiver wants to be asked again.

use crate::model::health::LONGEST_WISH;
use http::HeaderMap;
use http::header::{DATE, HeaderName, RETRY_AFTER};
use std::time::{Duration, SystemTime};

/// How long to wait: as many seconds as it says, or until the date that it says. Whoever names a date has a clock, which his `Date`
/// shows; measured by that one it does not matter whether the two clocks agree. A date without it is no answer.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse().map(Duration::from_secs) {
        Ok(wait) => wait,
        // All digits, but too many of them.
        Err(_) if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) => LONGEST_WISH,
        Err(_) => date(headers, RETRY_AFTER)?.duration_since(date(headers, DATE)?).unwrap_or_default(),
    };
    Some(wait.min(LONGEST_WISH))
}

fn date(headers: &HeaderMap, name: HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(retry_after: &str, date: Option<&str>) -> Option<u64> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, retry_after.parse().unwrap());
        if let Some(date) = date {
            headers.insert(DATE, date.parse().unwrap());
        }
        super::retry_after(&headers).map(|wait| wait.as_secs())
    }

    #[test]
    fn seconds_are_obeyed_up_to_an_hour() {
        assert_eq!(wait("120", None), Some(120));
        assert_eq!(wait(" 0 ", None), Some(0));
        assert_eq!(wait("86400", None), Some(3600));
        assert_eq!(wait("99999999999999999999999", None), Some(3600));
    }

    #[test]
    fn a_date_counts_by_the_clock_of_who_names_it() {
        let date = Some("Wed, 21 Oct 2015 07:28:00 GMT");
        assert_eq!(wait("Wed, 21 Oct 2015 07:28:30 GMT", date), Some(30));
        assert_eq!(wait("Wed, 21 Oct 2015 07:27:00 GMT", date), Some(0));
        assert_eq!(wait("Thu, 22 Oct 2015 07:28:00 GMT", date), Some(3600));
        assert_eq!(wait("Wed, 21 Oct 2015 07:28:30 GMT", None), None);
    }

    #[test]
    fn nonsense_is_not_obeyed() {
        for text in ["", "soon", "-1", "1.5", "1 2"] {
            assert_eq!(wait(text, Some("Wed, 21 Oct 2015 07:28:00 GMT")), None, "{text}");
        }
        assert_eq!(super::retry_after(&HeaderMap::new()), None);
    }
}
