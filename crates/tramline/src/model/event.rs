//! Events: what a program hands in, and what is kept of it for ever.

use crate::error::{Error, Kind, Result};
use crate::model::id::{EventId, SubscriptionId, TallyId};
use crate::model::name;
use crate::model::tally::TallyItem;
use crate::model::time::Time;
use crate::model::trace;
use crate::model::unique::Unique;
use bytes::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Small named texts that travel with an event.
pub type Headers = BTreeMap<String, String>;

/// The content type of JSON payloads.
pub const JSON: &str = "application/json";
/// The content type of Protocol Buffers payloads.
pub const PROTOBUF: &str = "application/x-protobuf";
/// The content type of raw payloads.
pub const BYTES: &str = "application/octet-stream";

/// The largest payload of one event, in bytes.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// The largest `state` of a key, in bytes.
pub const MAX_STATE: usize = 1 << 16;
const MAX_KEY: usize = 512;
/// What the headers of one event may weigh, in bytes.
pub const MAX_HEADERS: usize = 16 << 10;
const MAX_IDEMPOTENCY_KEY: usize = 255;

/// An event to emit: "this happened".
///
/// ```
/// # use tramline::Event;
/// let event = Event::json("orders", &serde_json::json!({"total": 12}))?.kind("order.paid").key("order:42");
/// # Ok::<(), tramline::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub(crate) topic: String,
    pub(crate) kind: String,
    pub(crate) key: Option<String>,
    pub(crate) payload: Bytes,
    pub(crate) content_type: String,
    pub(crate) headers: Headers,
    pub(crate) due: Due,
    pub(crate) priority: u8,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) state: Option<Bytes>,
    pub(crate) is_sub: bool,
    pub(crate) tally: Option<InTally>,
    pub(crate) unique: Option<Unique>,
    /// The item that it is, once its tally has numbered it.
    pub(crate) item: Option<EventItem>,
}

/// The tally whose item an event is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InTally {
    pub(crate) id: TallyId,
    /// Whose settling ends the item; `None`: the only subscription of the topic.
    pub(crate) subscription: Option<String>,
    /// From inside which item of the tally it is emitted.
    pub(crate) within: Option<u64>,
}

/// An event as an item of a tally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventItem {
    pub(crate) item: TallyItem,
    /// Whose settling ends it.
    pub(crate) subscription: SubscriptionId,
}

/// The header in which a sub-event names its main event.
pub const MAIN_HEADER: &str = "tramline-main";

/// Neither urgent nor unimportant.
pub(crate) const DEFAULT_PRIORITY: u8 = 5;

/// When an event may first run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// This long after it is stored.
    After(Duration),
    /// Not before this time.
    At(Time),
}

impl Due {
    /// At once.
    pub const NOW: Due = Due::After(Duration::ZERO);

    /// The due time of an event that is stored at `now`.
    pub fn from(self, now: Time) -> Time {
        match self {
            Due::After(delay) => now.after(delay),
            Due::At(time) => time.max(now),
        }
    }
}

impl Event {
    /// An event with a raw payload.
    pub fn new(topic: impl Into<String>, payload: impl Into<Bytes>) -> Event {
        Event {
            topic: topic.into(),
            kind: String::new(),
            key: None,
            payload: payload.into(),
            content_type: BYTES.into(),
            headers: Headers::new(),
            due: Due::NOW,
            priority: DEFAULT_PRIORITY,
            idempotency_key: None,
            state: None,
            is_sub: false,
            tally: None,
            unique: None,
            item: None,
        }
    }

    /// An event with a JSON payload.
    ///
    /// # Errors
    /// `Invalid` when the value cannot be written as JSON.
    pub fn json(topic: impl Into<String>, payload: &impl Serialize) -> Result<Event> {
        let payload = serde_json::to_vec(payload).map_err(|error| {
            Error::invalid("the payload cannot be written as JSON", "emit a value that serde_json accepts")
                .because(error)
        })?;
        Ok(Event::new(topic, payload).content_type(JSON))
    }

    /// An event with a Protocol Buffers payload.
    pub fn protobuf(topic: impl Into<String>, payload: &impl prost::Message) -> Event {
        Event::new(topic, payload.encode_to_vec()).content_type(PROTOBUF)
    }

    /// The event's type, by which workers choose a handler.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Event {
        self.kind = kind.into();
        self
    }

    /// The object that the event is about. Events of one topic and key are strictly ordered.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Event {
        self.key = Some(key.into());
        self
    }

    /// What the payload is; set by [`Event::json`] and [`Event::protobuf`].
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<String>) -> Event {
        self.content_type = content_type.into();
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Event {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Makes it belong to the trace of a context (see [`trace::context`]), unless it belongs to one already, or its headers have no
    /// room for that.
    #[must_use]
    pub fn in_trace(mut self, context: &Headers) -> Event {
        if trace::context_of(&self.headers).is_empty() {
            trace::put(context, &mut self);
        }
        self
    }

    /// Not before this long after it is stored.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Event {
        self.due = Due::After(delay);
        self
    }

    /// Not before this time.
    #[must_use]
    pub fn at(mut self, time: Time) -> Event {
        self.due = Due::At(time);
        self
    }

    /// From 0 (first) to 9 (last); 5 unless set. Ordered subscriptions ignore it.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Event {
        self.priority = priority;
        self
    }

    /// Emitting again with the same key within a day gives the first receipt and stores nothing.
    /// Of several events emitted together, the first one's key stands for all.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Event {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Makes it unique: at most one event of the topic with this unique key is pending. Also after an event that was replayed or
    /// resent, which is not an emit.
    #[must_use]
    pub fn unique(mut self, unique: impl Into<Unique>) -> Event {
        self.unique = Some(unique.into());
        self
    }

    /// The latest state of the event's object, stored with the event and readable by key.
    #[must_use]
    pub fn state(mut self, state: impl Into<Bytes>) -> Event {
        self.state = Some(state.into());
        self
    }

    /// Marks it as a sub-event: it belongs to the nearest event before it in the same emit that is not a sub-event, and
    /// carries that one's id in the header `tramline-main`.
    #[must_use]
    pub fn sub_event(mut self) -> Event {
        self.is_sub = true;
        self
    }

    /// Makes it an item of a tally: the item ends when the only subscription of the topic is done with the event, or fails when
    /// the event is dead, dropped or cancelled there. With several subscriptions, say which one with [`Event::tally_of`].
    #[must_use]
    pub fn tally(self, tally: TallyId) -> Event {
        self.in_tally(tally, None)
    }

    /// Makes it an item of a tally, which ends when `subscription` is done with the event.
    #[must_use]
    pub fn tally_of(self, tally: TallyId, subscription: impl Into<String>) -> Event {
        self.in_tally(tally, Some(subscription.into()))
    }

    fn in_tally(mut self, id: TallyId, subscription: Option<String>) -> Event {
        let within = self.tally.take().and_then(|tally| tally.within);
        self.tally = Some(InTally { id, subscription, within });
        self
    }

    /// Makes it an item of the same tally as `item`, from inside which it is emitted: a growing tally takes it even after it was
    /// sealed, as long as `item` is unfinished. Handlers have [`Context::grow`](crate::Context::grow).
    #[must_use]
    pub fn within(mut self, item: TallyItem) -> Event {
        let subscription = self.tally.take().and_then(|tally| tally.subscription);
        self.tally = Some(InTally { id: item.tally, subscription, within: Some(item.number) });
        self
    }

    /// The topic it goes to.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// What it says, to be shown.
    pub fn parts(&self) -> EventParts<'_> {
        EventParts {
            topic: &self.topic,
            kind: &self.kind,
            key: self.key.as_deref(),
            payload: &self.payload,
            content_type: &self.content_type,
            headers: &self.headers,
            priority: self.priority,
            unique: self.unique.as_ref(),
        }
    }

    /// Checks everything that can be known before the store is asked.
    pub(crate) fn check(&self) -> Result<()> {
        name::check("topic", &self.topic)?;
        name::check_kind(&self.kind)?;
        if let Some(subscription) = self.tally.as_ref().and_then(|tally| tally.subscription.as_deref()) {
            name::check("subscription", subscription)?;
        }
        limit("payload", self.payload.len(), MAX_PAYLOAD)?;
        limit("headers", weight(&self.headers), MAX_HEADERS)?;
        limit("state", self.state.as_ref().map_or(0, Bytes::len), MAX_STATE)?;
        if let Some(key) = &self.key {
            check_text("key", key, MAX_KEY)?;
        }
        if let Some(key) = &self.idempotency_key {
            check_text("idempotency key", key, MAX_IDEMPOTENCY_KEY)?;
        }
        if let Some(unique) = &self.unique {
            check_text("unique key", &unique.key, MAX_KEY)?;
            unique.check_window()?;
        }
        check_text("content type", &self.content_type, name::MAX_NAME)?;
        if self.headers.iter().any(|(name, value)| name.contains('\0') || value.contains('\0')) {
            return Err(Error::invalid(
                "a header holds a NUL character",
                "remove it; databases cannot store it",
            ));
        }
        if self.state.is_some() && self.key.is_none() {
            return Err(Error::invalid("state without a key", "set the key of the object whose state it is"));
        }
        if self.priority > 9 {
            return Err(Error::invalid("priority is above 9", "use 0 (first) to 9 (last)"));
        }
        Ok(())
    }

    /// Whether more headers would be too many.
    pub(crate) fn has_room_for(&self, more: &Headers) -> bool {
        weight(&self.headers) + weight(more) <= MAX_HEADERS
    }

    /// What the event weighs in a chunk.
    pub(crate) fn weight(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(k, v)| k.len() + v.len() + 6).sum();
        self.payload.len() + self.kind.len() + self.key.as_ref().map_or(0, String::len) + headers + 40
    }
}

/// What an event to emit says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EventParts<'a> {
    /// The topic it goes to.
    pub topic: &'a str,
    /// Its type; empty if none was given.
    pub kind: &'a str,
    /// The object it is about.
    pub key: Option<&'a str>,
    /// What it carries.
    pub payload: &'a Bytes,
    /// What the payload is.
    pub content_type: &'a str,
    /// Small named texts.
    pub headers: &'a Headers,
    /// From 0 (first) to 9 (last).
    pub priority: u8,
    /// What makes it unique, if something does.
    pub unique: Option<&'a Unique>,
}

/// A short text: not empty, not long, and such that databases can store it.
fn check_text(what: &str, text: &str, most: usize) -> Result<()> {
    if text.is_empty() {
        return Err(Error::invalid(
            format!("the {what} is empty"),
            "leave it out or give it at least one character",
        ));
    }
    if text.len() > most {
        return Err(Error::invalid(
            format!("the {what} has {} bytes; at most {most} are allowed", text.len()),
            "use a shorter one",
        ));
    }
    if text.contains('\0') {
        return Err(Error::invalid(
            format!("the {what} holds a NUL character"),
            "remove it; databases cannot store it",
        ));
    }
    Ok(())
}

fn weight(headers: &Headers) -> usize {
    headers.iter().map(|(name, value)| name.len() + value.len()).sum()
}

fn limit(what: &str, size: usize, most: usize) -> Result<()> {
    if size <= most {
        return Ok(());
    }
    Err(Error::new(
        Kind::TooLarge,
        format!("the {what} has {size} bytes; at most {most} are allowed"),
        "send less, or store it elsewhere and emit a reference",
    ))
}

/// An event as it is kept: it never changes.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredEvent {
    /// Its number.
    pub id: EventId,
    /// The topic it was emitted to.
    pub topic: Arc<str>,
    /// Its type; empty if none was given.
    pub kind: Arc<str>,
    /// The object it is about.
    pub key: Option<Arc<str>>,
    /// The preceding event of the same topic and key.
    pub prev: Option<EventId>,
    /// What it carries.
    pub payload: Bytes,
    /// What the payload is.
    pub content_type: Arc<str>,
    /// Small named texts.
    pub headers: Arc<Headers>,
    /// When it was stored, by the store's clock.
    pub emitted_at: Time,
    /// The item of a tally that it is. A subscription is shown only items that end with its own settling.
    pub item: Option<TallyItem>,
    pub(crate) item_ends_with: Option<SubscriptionId>,
}

impl StoredEvent {
    /// The event as a subscription is shown it. By number: one that has the name of a deleted one does not end its items.
    pub(crate) fn shown_to(&self, subscription: SubscriptionId) -> StoredEvent {
        let item = self.item.filter(|_| self.item_ends_with == Some(subscription));
        StoredEvent { item, ..self.clone() }
    }
}

/// What an emit gives back for each of its events, in the order they were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// The event's number.
    pub id: EventId,
    /// The preceding event of the same topic and key.
    pub prev: Option<EventId>,
    /// True if it is an event that was there already, because of its unique key: nothing was stored now.
    pub duplicate: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_events_are_refused_with_a_remedy() {
        let good = Event::new("t", "x").key("k");
        assert!(good.check().is_ok());
        let bad = [
            Event::new("", "x"),
            Event::new("t", vec![0; MAX_PAYLOAD + 1]),
            good.clone().kind("two words"),
            good.clone().key(""),
            good.clone().key("nul\0"),
            good.clone().header("a", "\0"),
            good.clone().priority(10),
            good.clone().unique(""),
            good.clone().unique("k".repeat(513)),
            good.clone().unique(Unique::new("k").within(Duration::MAX)),
            good.clone().state(vec![0; MAX_STATE + 1]),
            Event::new("t", "x").state("s"),
        ];
        for event in bad {
            let error = event.check().unwrap_err();
            assert!(!error.remedy().is_empty(), "{error}");
        }
    }
}
