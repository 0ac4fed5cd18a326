//! URLs that events are about, and callbacks: https, without a query.

use crate::http::problem::{Answer, Problem};
use reqwest::Url;

/// The longest URL, in characters.
const LONGEST: usize = 1024;

/// Checks a URL. It is kept as it was given; `what` says whose it is.
pub(super) fn check(what: &str, text: &str) -> Answer<Url> {
    let wrong = |why: &str| -> Problem {
        Problem::malformed(
            format!("{what} {why}"),
            "write it like https://example.com/widgets/1, without a query",
        )
    };
    if text.len() > LONGEST {
        return Err(wrong("is longer than 1024 characters"));
    }
    // The parser mends what is not a URL by the book, and receivers would get what was never sent.
    if !text.bytes().all(|b| b.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&b)) {
        return Err(wrong("has characters that a URL cannot have"));
    }
    let url = Url::parse(text).map_err(|_| wrong("is not a URL"))?;
    if url.scheme() != "https" || !text.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("https://")) {
        return Err(wrong("is not https"));
    }
    if url.query().is_some() {
        return Err(wrong("has a query"));
    }
    Ok(url)
}

/// Checks a callback, which nothing may be hidden in that would be shown to others or not be sent.
pub(super) fn check_callback(text: &str) -> Answer<()> {
    let url = check("the callback", text)?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Problem::malformed(
            "the callback has a user or a password in it",
            "give the user as `uuid`",
        ));
    }
    if url.fragment().is_some() {
        return Err(Problem::malformed("the callback has a fragment", "leave out the # and what follows it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_https_and_have_no_query() {
        for good in
            ["https://a.example/widgets/1", "https://a.example", "HTTPS://a:8443/x#y", "https://[::1]/"]
        {
            assert!(check("the url", good).is_ok(), "{good}");
        }
        let long = format!("https://a.example/{}", "x".repeat(1007));
        for bad in [
            "",
            "http://a.example/",
            "https://",
            "https:a",
            "https:///",
            "a.example/x",
            "https://a.example/?",
            "https://a/?b",
            "https://a b/",
            "https://a/ü",
            "https://a/\n",
            "https://a/<b>",
            "ftp://a/",
            "https://a:99999/",
            &long,
        ] {
            assert!(check("the url", bad).is_err(), "{bad}");
        }
        assert!(check("the url", &long[..1024]).is_ok());
    }

    #[test]
    fn callbacks_hide_nothing() {
        assert!(check_callback("https://a.example/events").is_ok());
        for bad in
            ["https://u:p@a.example/", "https://u@a.example/", "https://a.example/#x", "http://a.example"]
        {
            assert!(check_callback(bad).is_err(), "{bad}");
        }
    }
}
