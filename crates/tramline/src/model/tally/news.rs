//! The events that a tally emits by itself: when it is complete, when the first item fails, when it expires.

use crate::error::{Error, Kind, Result};
use crate::model::event::{Due, Event, Headers};
use crate::model::id::TallyId;
use crate::model::tally::Ending;
use crate::model::time::{Time, millis};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The header that names the tally.
pub const TALLY_HEADER: &str = "tramline-tally";
/// The headers of a completion: how many items there were, are done, have failed.
pub const COUNT_HEADERS: [&str; 3] = ["tramline-tally-total", "tramline-tally-done", "tramline-tally-failed"];
/// The header of a failure: the first item that failed.
pub const ITEM_HEADER: &str = "tramline-tally-item";

/// The largest payload of an event that a tally keeps until it is time.
pub const MAX_PAYLOAD: usize = 64 << 10;

/// What a tally has to tell. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i16)]
pub enum News {
    /// It is complete: emits an event.
    Complete = 0,
    /// The first item failed: emits an event.
    Failure = 1,
    /// It has expired: emits an event.
    Expiry = 2,
    /// The item of another tally that it stands for is done.
    ParentDone = 3,
    /// The item of another tally that it stands for has failed.
    ParentFailed = 4,
}

impl News {
    /// Those that emit an event.
    pub const EVENTS: [News; 3] = [News::Complete, News::Failure, News::Expiry];

    /// The news behind a stored number.
    pub fn from_i16(number: i16) -> Option<News> {
        let all = [News::Complete, News::Failure, News::Expiry, News::ParentDone, News::ParentFailed];
        all.get(usize::try_from(number).ok()?).copied()
    }

    /// How it makes the item end that its tally stands for.
    pub(crate) fn for_parent(self) -> Option<Ending> {
        match self {
            News::ParentDone => Some(Ending::Done),
            News::ParentFailed => Some(Ending::Failed),
            News::Complete | News::Failure | News::Expiry => None,
        }
    }

    fn idempotency_key(self, tally: TallyId) -> String {
        match self {
            News::Failure => format!("tally:{tally}:failure"),
            News::Expiry => format!("tally:{tally}:expiry"),
            _ => format!("tally:{tally}"),
        }
    }
}

/// News as they wait in the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) tally: TallyId,
    pub(crate) news: News,
    pub(crate) total: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    /// The item that failed first.
    pub(crate) item: Option<u64>,
}

impl Outgoing {
    /// The event to emit, made of the one that was kept for the occasion.
    pub(crate) fn event(&self, kept: &str) -> Result<Event> {
        let mut event = read(kept)?.idempotency_key(self.news.idempotency_key(self.tally));
        event = event.header(TALLY_HEADER, self.tally.to_string());
        if self.news == News::Complete {
            for (name, count) in COUNT_HEADERS.into_iter().zip([self.total, self.done, self.failed]) {
                event = event.header(name, count.to_string());
            }
        }
        Ok(match self.item {
            Some(item) => event.header(ITEM_HEADER, item.to_string()),
            None => event,
        })
    }
}

/// Checks an event that a tally shall emit.
pub(crate) fn check(event: &Event) -> Result<()> {
    event.check()?;
    if event.payload.len() > MAX_PAYLOAD {
        return Err(Error::new(
            Kind::TooLarge,
            format!("a tally keeps no event of more than {MAX_PAYLOAD} bytes"),
            "store it elsewhere and emit a reference",
        ));
    }
    if event.idempotency_key.is_some() || event.tally.is_some() || event.is_sub {
        return Err(Error::invalid(
            "an event that a tally emits has a key of its own and is no item of a tally",
            "leave out its idempotency key, its tally and its main event",
        ));
    }
    Ok(())
}

/// An event as a tally keeps it.
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
    };
    serde_json::to_string(&kept).unwrap_or_default() // plain values always serialise
}

/// Reads what [`write`] wrote.
pub(crate) fn read(text: &str) -> Result<Event> {
    let kept: Kept = serde_json::from_str(text).map_err(|error| {
        Error::invalid(
            "a stored event of a tally cannot be read",
            "upgrade: it was written by a newer version",
        )
        .because(error)
    })?;
    let mut event = Event::new(kept.topic, kept.payload.into_bytes())
        .kind(kept.kind)
        .content_type(kept.content_type)
        .priority(kept.priority);
    event.key = kept.key;
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
