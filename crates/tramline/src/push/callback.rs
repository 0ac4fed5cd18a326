//! URLs that may be called back.

use crate::error::{Error, Result};
use http::Uri;
use url::Url;

/// The longest callback, in bytes.
const LONGEST: usize = 2048;

/// Reads the URL of a callback: http or https, a host, no fragment, no user or password. What it gives can be sent to; whether its
/// address may be dialled is decided when it is.
///
/// # Errors
/// `Invalid` with what is wrong and how to write it instead.
pub fn check_callback(text: &str, https_only: bool) -> Result<Url> {
    let scheme = if https_only {
        "write it like https://example.org/events"
    } else {
        "use http:// or https:// and a host"
    };
    if text.len() > LONGEST {
        return Err(Error::invalid("the callback is too long", "use at most 2048 bytes"));
    }
    // The parser would take some of them away without a word, and what is stored would not be what was given.
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(Error::invalid(
            "the callback has spaces or control characters",
            "write them as %20 and the like",
        ));
    }
    let url: Url =
        text.parse().map_err(|error| Error::invalid("the callback is not a URL", scheme).because(error))?;
    if url.scheme() != "https" && (https_only || url.scheme() != "http") {
        return Err(Error::invalid(format!("callbacks to {}: are not allowed", url.scheme()), scheme));
    }
    check_parts(&url)?;
    if url.as_str().len() > LONGEST || Uri::try_from(url.as_str()).is_err() {
        return Err(Error::invalid(
            "the callback cannot be sent to as it is",
            "write unusual characters as %20 and the like",
        ));
    }
    Ok(url)
}

fn check_parts(url: &Url) -> Result<()> {
    if has_credentials(url) {
        return Err(Error::invalid(
            "the callback has a user or a password in it, which lists and logs would show",
            "leave them out of the URL; requests are signed, see docs/push.md",
        ));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(Error::invalid("the callback has no host", "write it like https://example.org/events"));
    }
    if url.port() == Some(0) {
        return Err(Error::invalid("the callback has port 0", "name the port that the receiver listens on"));
    }
    if url.fragment().is_some() {
        return Err(Error::invalid("the callback has a fragment", "leave out the # and what follows it"));
    }
    Ok(())
}

/// `user:password@` before the host.
pub(super) fn has_credentials(url: &Url) -> bool {
    !url.username().is_empty() || url.password().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_urls_are_taken() {
        for text in [
            "https://example.org",
            "http://example.org:8080/a/b?c=d",
            "http://[2001:db8::1]/",
            "https://bücher.example/ü",
        ] {
            assert!(check_callback(text, false).is_ok(), "{text}");
        }
        assert_eq!(check_callback("https://EXAMPLE.org:443", true).unwrap().as_str(), "https://example.org/");
    }

    #[test]
    fn others_are_refused_with_a_remedy() {
        for (text, why) in [
            ("", "not a URL"),
            ("example.org", "not a URL"),
            ("//example.org", "not a URL"),
            ("http://", "not a URL"),
            ("http:///", "not a URL"),
            ("https://exa mple.org", "spaces"),
            (" https://example.org", "spaces"),
            ("https://example.org/\n", "spaces"),
            ("https://example.org/a\tb", "spaces"),
            ("ftp://example.org", "ftp: are not allowed"),
            ("file:///etc/passwd", "file: are not allowed"),
            ("javascript:alert(1)", "javascript: are not allowed"),
            ("https://user@example.org", "user or a password"),
            ("https://:secret@example.org", "user or a password"),
            ("https://example.org/#top", "fragment"),
            ("https://example.org:0/", "port 0"),
            ("https://example.org:70000/", "not a URL"),
            ("https://[::1%25eth0]/", "not a URL"),
        ] {
            let error = check_callback(text, false).expect_err(text);
            assert!(error.to_string().contains(why), "{text}: {error}");
            assert!(!error.remedy().is_empty() && !error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn without_tls_only_where_that_is_allowed() {
        assert!(check_callback("http://example.org", false).is_ok());
        assert!(check_callback("http://example.org", true).unwrap_err().to_string().contains("https://"));
    }

    #[test]
    fn the_length_is_bounded_also_as_it_is_sent() {
        let of = |length: usize| format!("https://example.org/{}", "a".repeat(length - 20));
        assert!(check_callback(&of(LONGEST), true).is_ok());
        assert!(check_callback(&of(LONGEST + 1), true).is_err());
        assert!(check_callback(&format!("https://example.org/{}", "ü".repeat(600)), true).is_err());
    }
}
