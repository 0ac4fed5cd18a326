//! Requests without an answer, and why.

use super::dial::DialError;
use std::error::Error;
use std::fmt;
use std::io;

/// The longest text, in characters. A receiver's certificate can have thousands of names, all of which an error would repeat.
const LONGEST: usize = 300;

/// Why there is no answer: a kind to count and to branch on, and a sentence for the subscriber. Neither has anything of the request
/// in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failed {
    /// What to branch on.
    pub kind: FailKind,
    /// What happened.
    pub text: String,
}

/// The ways to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailKind {
    /// The URL can never be sent to.
    Invalid,
    /// The address must not be dialled.
    Refused,
    /// The name was not found.
    Resolve,
    /// Nobody answers at the address, or not in time.
    Connect,
    /// The proxy does not let it through, or cannot be reached.
    Proxy,
    /// The certificate is not trusted, or there is no common way to encrypt.
    Tls,
    /// There was a connection, and it ended before the answer did. The receiver may have seen the request.
    Reset,
    /// What came was not HTTP, or its head was too long. The receiver may have seen the request.
    Malformed,
    /// The time was over. The receiver may have seen the request.
    Timeout,
}

impl FailKind {
    /// The kind as one word, for figures and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            FailKind::Invalid => "invalid",
            FailKind::Refused => "refused",
            FailKind::Resolve => "resolve",
            FailKind::Connect => "connect",
            FailKind::Proxy => "proxy",
            FailKind::Tls => "tls",
            FailKind::Reset => "reset",
            FailKind::Malformed => "malformed",
            FailKind::Timeout => "timeout",
        }
    }
}

impl fmt::Display for FailKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Failed {
    pub(super) fn new(kind: FailKind, text: impl Into<String>) -> Failed {
        let mut text = text.into();
        if let Some((end, _)) = text.char_indices().nth(LONGEST) {
            text.truncate(end);
        }
        Failed { kind, text }
    }

    /// What an error of the HTTP client means.
    pub(super) fn of(error: &(dyn Error + 'static)) -> Failed {
        if let Some(dial) = causes(error).find_map(|error| error.downcast_ref::<DialError>()) {
            return Failed::new(kind(dial), dial.to_string());
        }
        let last = causes(error).last().unwrap_or(error);
        // A server that does not trust this client, or that changed its mind, says so after the handshake.
        if causes(error).filter_map(|error| error.downcast_ref::<io::Error>()).any(is_tls) {
            return Failed::new(FailKind::Tls, format!("TLS with the receiver ended: {last}"));
        }
        match causes(error).find_map(|error| error.downcast_ref::<hyper::Error>()) {
            Some(http) if http.is_parse() => {
                Failed::new(FailKind::Malformed, format!("the receiver's answer is not HTTP/1.1: {last}"))
            }
            _ => Failed::new(FailKind::Reset, format!("the connection ended before the answer: {last}")),
        }
    }
}

/// An error and what caused it, from the outside in.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (**error).source())
}

fn kind(error: &DialError) -> FailKind {
    match error {
        DialError::Refused(_) => FailKind::Refused,
        DialError::Resolve(_) => FailKind::Resolve,
        DialError::Connect(_) | DialError::Timeout(_) => FailKind::Connect,
        DialError::Tls(_) => FailKind::Tls,
        DialError::Proxy(_) => FailKind::Proxy,
        DialError::NoHost => FailKind::Invalid,
    }
}

fn is_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_no_longer_than_people_read() {
        assert_eq!(Failed::new(FailKind::Tls, "ü".repeat(301)).text, "ü".repeat(300));
        assert_eq!(Failed::new(FailKind::Tls, "ü".repeat(300)).text, "ü".repeat(300));
    }
}
