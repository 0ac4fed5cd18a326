//! Push subscriptions: events that are sent to a callback over HTTP, in batches.

use crate::error::{Error, Result};
use crate::model::retry::{Backoff, Retry};
use crate::model::time::{Time, as_millis, as_optional_millis};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// How the events of a push subscription reach their callback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Push {
    /// Where batches are sent.
    pub callback: String,
    /// How many events a batch has at most.
    pub max_events: u32,
    /// How long a batch gathers, from its first event on. A full one goes at once.
    #[serde(rename = "timeout_ms", with = "as_millis")]
    pub timeout: Duration,
    /// How a batch is written.
    pub format: Format,
    /// Headers of every request, beside those of the format.
    pub headers: BTreeMap<String, String>,
    /// How many batches may be under way at once, from one node.
    pub concurrency: u32,
    /// How many events a node sends in a second, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    /// How long a request may take, answer included.
    #[serde(rename = "request_timeout_ms", with = "as_millis")]
    pub request_timeout: Duration,
    /// After how long without a single success it is disabled; `None`: never.
    #[serde(rename = "disable_after_ms", with = "as_optional_millis")]
    pub disable_after: Option<Duration>,
    /// Whether the receiver has to agree first, by the handshake of CloudEvents webhooks.
    pub handshake: bool,
    /// The secrets that sign, newest first; encrypted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SealedSecret>,
    /// The user name of Basic authentication at the receiver; encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The whole header `Authorization` for the receiver; encrypted. Comes before `user`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization: Option<String>,
}

/// A signing secret as it is stored: encrypted, with what may be shown of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedSecret {
    /// A short name by which it can be told apart and removed; says nothing of the secret.
    pub id: String,
    /// `hmac` or `ed25519`.
    pub kind: SecretKind,
    /// The encrypted secret.
    pub sealed: String,
    /// What receivers verify with, where that is no secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public: Option<String>,
    /// Since when it signs.
    pub since: Time,
}

/// How a secret signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum SecretKind {
    /// HMAC-SHA256 with a shared secret.
    Hmac,
    /// Ed25519 with a private key; receivers have the public one.
    Ed25519,
}

/// How a batch is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Format {
    /// A JSON object with the events as a claim gives them.
    #[default]
    Tramline,
    /// A JSON array of CloudEvents, `application/cloudevents-batch+json`.
    CloudeventsBatch,
    /// One CloudEvent, `application/cloudevents+json`. Batches have one event.
    Cloudevents,
    /// A JSON array as Routemaster sends it.
    Routemaster,
}

/// The most events in a batch.
pub const MAX_BATCH: u32 = 10_000;
/// The longest time for which a batch gathers.
pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(3600);
const LONGEST_REQUEST: Duration = Duration::from_secs(600);
/// After a request has had its time, so much is left to write its outcome down.
const MARGIN: Duration = Duration::from_secs(10);
const MAX_HEADERS: usize = 8 << 10;
const MAX_SECRETS: usize = 8;
/// Headers that a request sets itself.
const OWN_HEADERS: &[&str] = &[
    "host",
    "content-length",
    "authorization",
    "content-type",
    "transfer-encoding",
    "connection",
    "te",
    "trailer",
    "upgrade",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
];

impl Default for Push {
    fn default() -> Push {
        Push {
            callback: String::new(),
            max_events: 100,
            timeout: Duration::from_millis(500),
            format: Format::Tramline,
            headers: BTreeMap::new(),
            concurrency: 4,
            rate: None,
            request_timeout: Duration::from_secs(20),
            disable_after: Some(Duration::from_secs(5 * 24 * 3600)),
            handshake: false,
            secrets: Vec::new(),
            user: None,
            authorization: None,
        }
    }
}

impl Push {
    /// What is sent to `callback`, in the default way.
    pub fn to(callback: impl Into<String>) -> Push {
        Push { callback: callback.into(), ..Push::default() }
    }

    /// How failed batches are repeated unless somebody says otherwise: after 5 s, 5 min, 30 min, 2 h, 5 h and twice 10 h; then
    /// their events are dead.
    pub fn retry() -> Retry {
        Retry::delays([5, 300, 1_800, 7_200, 18_000, 36_000, 36_000].map(Duration::from_secs))
    }

    /// How Routemaster's subscribers are retried: for ever, from a second to a minute apart.
    pub fn retry_for_ever() -> Retry {
        let backoff = Backoff::Exponential { first: Duration::from_secs(1), most: Duration::from_secs(60) };
        Retry { max_attempts: Retry::FOR_EVER, backoff }
    }

    /// How many events a batch has at most.
    pub fn batch_size(&self) -> u32 {
        if self.format == Format::Cloudevents { 1 } else { self.max_events }
    }

    /// How long a batch is leased for: what a request may take, and time to write down what came of it.
    pub fn lease(&self) -> Duration {
        self.request_timeout + MARGIN
    }

    /// Checks everything but the callback, which is checked where it is dialled.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |what: &'static str, remedy: &'static str| Err(Error::invalid(what, remedy));
        if self.max_events == 0 || self.max_events > MAX_BATCH {
            return wrong("max_events is out of range", "use 1 to 10,000 events in a batch");
        }
        if self.timeout > LONGEST_TIMEOUT {
            return wrong("the timeout is out of range", "let a batch gather for 0 to 3,600,000 ms");
        }
        if self.concurrency == 0 || self.concurrency > 256 {
            return wrong("the concurrency is out of range", "use 1 to 256 requests at once");
        }
        if self.rate == Some(0) {
            return wrong("a rate of 0 sends nothing", "use at least one event in a second, or pause it");
        }
        if self.request_timeout < Duration::from_millis(100) || self.request_timeout > LONGEST_REQUEST {
            return wrong("the request timeout is out of range", "use 100 to 600,000 ms");
        }
        if self.disable_after == Some(Duration::ZERO) {
            return wrong(
                "disable_after_ms of 0 disables at the first failure",
                "use 1 or more, or null for never",
            );
        }
        if self.secrets.len() > MAX_SECRETS {
            return wrong("there are too many secrets", "keep at most 8; remove those that are rotated out");
        }
        self.check_headers()
    }

    fn check_headers(&self) -> Result<()> {
        let size: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if size > MAX_HEADERS {
            return Err(Error::invalid("the headers are too long", "use at most 8 KiB in all"));
        }
        for (name, value) in &self.headers {
            let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
            if name.is_empty() || !name.chars().all(token) || value.chars().any(|c| c.is_control()) {
                return Err(Error::invalid(
                    format!("{name:?} is not a header"),
                    "use a name of HTTP and a value without control characters",
                ));
            }
            if OWN_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
                return Err(Error::invalid(
                    format!("the header {name:?} is set by every request itself"),
                    "leave it out; credentials go into authorization, which is stored encrypted",
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_headers_out_of_range_are_refused() {
        let push = || Push::to("https://example.org/hook");
        assert!(push().check().is_ok());
        let header = |name: &str, value: &str| Push {
            headers: BTreeMap::from([(name.to_owned(), value.to_owned())]),
            ..push()
        };
        assert!(header("x-team", "orders").check().is_ok());
        for wrong in [
            Push { max_events: 0, ..push() },
            Push { max_events: 10_001, ..push() },
            Push { timeout: Duration::from_secs(3601), ..push() },
            Push { concurrency: 0, ..push() },
            Push { rate: Some(0), ..push() },
            Push { request_timeout: Duration::ZERO, ..push() },
            Push { disable_after: Some(Duration::ZERO), ..push() },
            header("Content-Type", "x"),
            header("webhook-signature", "x"),
            header("two words", "x"),
            header("x", "a\r\nb: c"),
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_policy_that_was_stored_earlier_is_read_with_defaults() {
        let push: Push = serde_json::from_str(r#"{"callback": "https://a.example/"}"#).unwrap();
        assert_eq!(push, Push::to("https://a.example/"));
        let text = serde_json::to_string(&push).unwrap();
        assert_eq!(serde_json::from_str::<Push>(&text).unwrap(), push);
    }

    /// Left out of what was stored, it came back as five days.
    #[test]
    fn one_that_is_never_disabled_is_read_as_such() {
        let push = Push { disable_after: None, ..Push::to("https://a.example/") };
        let text = serde_json::to_string(&push).unwrap();
        assert_eq!(serde_json::from_str::<Push>(&text).unwrap(), push);
    }
}
