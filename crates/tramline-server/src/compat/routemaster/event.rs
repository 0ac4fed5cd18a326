//! An event as Routemaster's clients publish it.

use super::{packed, url};
use crate::http::body;
use crate::http::problem::{Answer, Problem};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use tramline::{Event, Time};

/// Times are written in eleven hexadecimal digits, in Routemaster's own store.
const LATEST: u64 = (1 << 44) - 1;
/// The longest key of an event, in bytes.
const LONGEST_KEY: usize = 512;

/// What happened, to what, and when.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventIn {
    #[serde(rename = "type")]
    kind: Kind,
    url: String,
    #[serde(default, deserialize_with = "whole")]
    timestamp: Option<u64>,
    #[serde(default)]
    data: Option<Map<String, Value>>,
}

/// What happened.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Create,
    Update,
    Delete,
    Noop,
}

impl Kind {
    fn as_str(&self) -> &'static str {
        match self {
            Kind::Create => "create",
            Kind::Update => "update",
            Kind::Delete => "delete",
            Kind::Noop => "noop",
        }
    }
}

/// An event's payload, from which it is sent.
#[derive(Serialize)]
struct Payload {
    url: String,
    t: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
}

/// An event that was read, and nothing is wrong with.
pub(super) struct Read {
    kind: &'static str,
    payload: Payload,
}

/// The event in a body. `now` is its time if it names none; its data may be of `max_data` bytes.
pub(super) fn read(json: &[u8], now: Time, max_data: usize) -> Answer<Read> {
    let event: EventIn = body::parse(json).map_err(|problem| bad_event(&problem))?;
    url::check("bad event: the url", &event.url)?;
    let t = event.timestamp.unwrap_or(now.0.max(0).cast_unsigned());
    if t > LATEST {
        return Err(Problem::malformed(
            "bad event: the timestamp is too late",
            "send milliseconds since 1970",
        ));
    }
    let data = event.data.map(Value::Object);
    if data.as_ref().is_some_and(|data| packed::size(data) > max_data) {
        return Err(Problem::malformed(
            format!("bad event: the data is larger than {max_data} bytes as MessagePack"),
            "send less, or raise routemaster_max_data",
        ));
    }
    Ok(Read { kind: event.kind.as_str(), payload: Payload { url: event.url, t, data } })
}

impl Read {
    /// The event to emit.
    pub(super) fn event(&self, topic: &str) -> Answer<Event> {
        Ok(Event::json(topic, &self.payload)?.kind(self.kind).key(key(&self.payload.url)))
    }
}

/// An event is about its URL. A URL that is too long for a key is known by its hash.
fn key(url: &str) -> String {
    if url.len() <= LONGEST_KEY {
        return url.to_owned();
    }
    Sha256::digest(url).iter().fold(String::from("sha256:"), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A whole number, also one that is written with a point: Ruby's `Time.now.to_i * 1e3`.
fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let wrong = || serde::de::Error::custom("the timestamp is not a whole number of milliseconds");
    let Some(number) = Option::<serde_json::Number>::deserialize(from)? else { return Ok(None) };
    let written_with_a_point = || {
        let float =
            number.as_f64().filter(|float| float.fract() == 0.0 && (0.0..=LATEST as f64).contains(float));
        float.map(|float| float as u64)
    };
    number.as_u64().or_else(written_with_a_point).map(Some).ok_or_else(wrong)
}

fn bad_event(problem: &Problem) -> Problem {
    Problem::malformed(format!("bad event: {}", problem.detail()), "send {type, url, timestamp?, data?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(json: Value) -> Answer<Read> {
        super::read(json.to_string().as_bytes(), Time(1_500_000_000_000), 64)
    }

    const URL: &str = "https://a.example/widgets/1";

    #[test]
    fn an_event_is_about_its_url_and_has_a_time() {
        let payload = |json| serde_json::to_value(read(json).unwrap().payload).unwrap();
        let now = 1_500_000_000_000_u64;
        assert_eq!(
            payload(json!({"type": "noop", "url": URL, "timestamp": null})),
            json!({"url": URL, "t": now})
        );
        let full = json!({"type": "create", "url": URL, "timestamp": 7, "data": {"a": 1}});
        assert_eq!(payload(full), json!({"url": URL, "t": 7, "data": {"a": 1}}));
        assert_eq!(payload(json!({"type": "delete", "url": URL, "timestamp": 1.5e12}))["t"], now);
        assert_eq!(
            payload(json!({"type": "update", "url": URL, "data": null})),
            json!({"url": URL, "t": now})
        );
    }

    #[test]
    fn what_is_no_event_is_refused() {
        for bad in [
            json!({"type": "whatever", "url": URL}),
            json!({"type": "create"}),
            json!({"url": URL}),
            json!({"type": "create", "url": "http://a.example/"}),
            json!({"type": "create", "url": 5}),
            json!({"type": "create", "url": URL, "timestamp": "now"}),
            json!({"type": "create", "url": URL, "timestamp": 1.5}),
            json!({"type": "create", "url": URL, "timestamp": -1}),
            json!({"type": "create", "url": URL, "timestamp": 1_u64 << 44}),
            json!({"type": "create", "url": URL, "timestamp": 1e300}),
            json!({"type": "create", "url": URL, "data": "text"}),
            json!({"type": "create", "url": URL, "data": {"a": "x".repeat(64)}}),
            json!({"type": "create", "url": URL, "more": 1}),
            json!([]),
            json!("create"),
        ] {
            let refused = read(bad.clone()).err().unwrap_or_else(|| panic!("{bad}"));
            assert_eq!(refused.status(), 400, "{bad}");
        }
        assert!(super::read(b"{", Time(0), 64).is_err());
    }

    #[test]
    fn a_long_url_is_known_by_its_hash() {
        let long = format!("https://a.example/{}", "x".repeat(1000));
        assert_eq!(key(&long).len(), 71);
        assert_eq!(key(URL), URL);
    }
}
