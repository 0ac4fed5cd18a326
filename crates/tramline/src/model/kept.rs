//! Events that are kept as text until it is time to emit them: those of tallies and schedules.

use crate::error::{Error, Kind, Result};
use crate::model::event::{Due, Event, Headers};
use crate::model::time::{Time, millis};
use crate::model::unique::Unique;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The largest payload of an event that is kept until it is time.
pub(crate) const MAX_PAYLOAD: usize = 64 << 10;

/// Checks an event that something shall emit by itself, later.
pub(crate) fn check(event: &Event) -> Result<()> {
    event.check()?;
    if event.payload.len() > MAX_PAYLOAD {
        return Err(Error::new(
            Kind::TooLarge,
            format!("no event of more than {MAX_PAYLOAD} bytes is kept for later"),
            "store it elsewhere and emit a reference",
        ));
    }
    if event.idempotency_key.is_some() || event.tally.is_some() || event.is_sub {
        return Err(Error::invalid(
            "an event that is kept for later has no idempotency key of its own and is no item of a tally",
            "leave out its idempotency key, its tally and its main event",
        ));
    }
    Ok(())
}

/// An event as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    topic: String,
    #[serde(default)]
    kind: String,
    key: Option<String>,
    payload: Payload,
    content_type: String,
    #[serde(default)]
    headers: Headers,
    delay_ms: Option<i64>,
    at: Option<i64>,
    priority: u8,
    state: Option<Payload>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unique: Option<Unique>,
}

/// Text stays readable; other bytes are numbers.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Payload {
    Text(String),
    Bytes(Vec<u8>),
}

impl Payload {
    fn new(bytes: &[u8]) -> Payload {
        match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Payload::Text(text.to_owned()),
            _ => Payload::Bytes(bytes.to_vec()),
        }
    }

    fn into_bytes(self) -> Vec<u8> {
        match self {
            Payload::Text(text) => text.into_bytes(),
            Payload::Bytes(bytes) => bytes,
        }
    }
}

/// Writes an event as text.
pub(crate) fn write(event: &Event) -> String {
    let (delay_ms, at) = match event.due {
        Due::After(delay) => (Some(millis(delay)), None),
        Due::At(time) => (None, Some(time.0)),
    };
    let kept = Kept {
        topic: event.topic.clone(),
        kind: event.kind.clone(),
        key: event.key.clone(),
        payload: Payload::new(&event.payload),
        content_type: event.content_type.clone(),
        headers: event.headers.clone(),
        delay_ms,
        at,
        priority: event.priority,
        state: event.state.as_deref().map(Payload::new),
        unique: event.unique.clone(),
    };
    serde_json::to_string(&kept).unwrap_or_default() // plain values always serialise
}

/// Reads what [`write`] wrote.
pub(crate) fn read(text: &str) -> Result<Event> {
    let kept: Kept = serde_json::from_str(text).map_err(|error| {
        Error::invalid(
            "an event that was kept for later cannot be read",
            "upgrade: it was written by a newer version",
        )
        .because(error)
    })?;
    let mut event = Event::new(kept.topic, kept.payload.into_bytes())
        .kind(kept.kind)
        .content_type(kept.content_type)
        .priority(kept.priority);
    event.key = kept.key;
    event.unique = kept.unique;
    event.headers = kept.headers;
    event.state = kept.state.map(|state| state.into_bytes().into());
    event.due = match kept.at {
        Some(at) => Due::At(Time(at)),
        None => Due::After(Duration::from_millis(kept.delay_ms.unwrap_or(0).max(0).cast_unsigned())),
    };
    Ok(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_event_is_read_back_as_it_was_written() {
        let plain = Event::json("t", &serde_json::json!({"a": "ü"})).unwrap();
        let events = [
            plain.clone(),
            plain.clone().kind("k").key("x").state(vec![0, 255]).header("h", "v").priority(2),
            plain.clone().delay(Duration::from_secs(5)),
            plain.at(Time(77)),
            Event::new("t", vec![0, 159, 146, 150]),
            Event::new("t", "nul\0"),
        ];
        for event in events {
            assert_eq!(read(&write(&event)).unwrap(), event);
        }
    }
}
