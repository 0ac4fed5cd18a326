//! How a batch is written for its receiver, in each format.

use crate::model::event::{Headers, JSON, StoredEvent};
use crate::model::id::EventId;
use crate::model::push::Format;
use crate::model::time::Time;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use jiff::fmt::temporal::DateTimePrinter;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

/// One event of a batch.
#[derive(Clone, Debug)]
pub struct Sending {
    /// The event.
    pub event: StoredEvent,
    /// Which try this is, from 1.
    pub attempt: u32,
    /// Preceding events of its key that the receiver will never see.
    pub skipped: Vec<EventId>,
    /// True if somebody replayed it: it may come out of order.
    pub replayed: bool,
}

/// The body of a request, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The content type, exactly as receivers compare it.
    pub content_type: &'static str,
    /// The body.
    pub body: Bytes,
}

/// Writes a batch. `id` names it: the same events have the same id, however often they are sent.
pub fn write(format: Format, subscription: &str, id: &str, batch: &[Sending]) -> Written {
    let (content_type, body) = match format {
        Format::Tramline => (JSON, to_vec(&Envelope { subscription, batch: id, events: Events(batch) })),
        Format::CloudeventsBatch => ("application/cloudevents-batch+json", to_vec(&Seq(batch, CloudEvent))),
        Format::Cloudevents => {
            let event = batch.first().map(CloudEvent);
            ("application/cloudevents+json", to_vec(&event))
        }
        Format::Routemaster => (JSON, to_vec(&Seq(batch, RoutemasterEvent::of))),
    };
    Written { content_type, body: Bytes::from(body) }
}

/// Plain values always serialise.
fn to_vec(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

#[derive(Serialize)]
struct Envelope<'a> {
    subscription: &'a str,
    batch: &'a str,
    events: Events<'a>,
}

struct Events<'a>(&'a [Sending]);

impl Serialize for Events<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Seq(self.0, TramlineEvent::of).serialize(to)
    }
}

/// A list of which each element is written as something else.
struct Seq<'a, F>(&'a [Sending], F);

impl<'a, T: Serialize, F: Fn(&'a Sending) -> T> Serialize for Seq<'a, F> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut seq = to.serialize_seq(Some(self.0.len()))?;
        self.0.iter().try_for_each(|sending| seq.serialize_element(&(self.1)(sending)))?;
        seq.end()
    }
}

/// An event as a claim over HTTP gives it, without the lease.
#[derive(Serialize)]
struct TramlineEvent<'a> {
    #[serde(serialize_with = "in_digits")]
    id: EventId,
    topic: &'a str,
    #[serde(rename = "type")]
    kind: Option<&'a str>,
    key: Option<&'a str>,
    #[serde(serialize_with = "in_digits_or_null")]
    prev: Option<EventId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    content_type: &'a str,
    headers: &'a Headers,
    emitted_at: String,
    attempt: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    skipped: Vec<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    replayed: bool,
}

impl<'a> TramlineEvent<'a> {
    fn of(sending: &'a Sending) -> TramlineEvent<'a> {
        let event = &sending.event;
        let payload = json(event);
        TramlineEvent {
            id: event.id,
            topic: &event.topic,
            kind: kind(event),
            key: event.key.as_deref(),
            prev: event.prev,
            payload_base64: payload.is_none().then(|| BASE64_STANDARD.encode(&event.payload)),
            payload,
            content_type: &event.content_type,
            headers: &event.headers,
            emitted_at: rfc3339(event.emitted_at),
            attempt: sending.attempt,
            skipped: sending.skipped.iter().map(ToString::to_string).collect(),
            replayed: sending.replayed,
        }
    }
}

/// The payload, if it is JSON. Read once more: a program may have emitted anything under that content type.
fn json(event: &StoredEvent) -> Option<&RawValue> {
    let is_json = *event.content_type == *JSON;
    is_json.then(|| serde_json::from_slice(&event.payload).ok()).flatten()
}

fn kind(event: &StoredEvent) -> Option<&str> {
    Some(&*event.kind).filter(|kind| !kind.is_empty())
}

/// Times beyond the calendar are its last day.
fn rfc3339(time: Time) -> String {
    let time = jiff::Timestamp::from_millisecond(time.0).unwrap_or(jiff::Timestamp::MAX);
    MILLIS.timestamp_to_string(&time)
}

/// How times are written.
const MILLIS: DateTimePrinter = DateTimePrinter::new().precision(Some(3));

fn in_digits<S: Serializer>(id: &EventId, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(id)
}

fn in_digits_or_null<S: Serializer>(id: &Option<EventId>, to: S) -> Result<S::Ok, S::Error> {
    match id {
        Some(id) => to.collect_str(id),
        None => to.serialize_none(),
    }
}

/// CloudEvents 1.0, in JSON. Headers whose names can be names of attributes travel as such.
struct CloudEvent<'a>(&'a Sending);

impl Serialize for CloudEvent<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Sending { event, attempt, skipped, replayed } = self.0;
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("specversion", "1.0")?;
        map.serialize_entry("id", &event.id.to_string())?;
        map.serialize_entry("source", &format!("/topics/{}", event.topic))?;
        map.serialize_entry("type", kind(event).unwrap_or("event"))?;
        map.serialize_entry("time", &rfc3339(event.emitted_at))?;
        if let Some(key) = event.key.as_deref() {
            map.serialize_entry("subject", key)?;
        }
        map.serialize_entry("datacontenttype", &*event.content_type)?;
        map.serialize_entry("tramlineattempt", attempt)?;
        if let Some(prev) = event.prev {
            map.serialize_entry("tramlineprev", &prev.to_string())?;
        }
        if !skipped.is_empty() {
            let ids: Vec<String> = skipped.iter().map(ToString::to_string).collect();
            map.serialize_entry("tramlineskipped", &ids.join(","))?;
        }
        if *replayed {
            map.serialize_entry("tramlinereplayed", &true)?;
        }
        for (name, value) in event.headers.iter().filter(|(name, _)| is_attribute(name)) {
            map.serialize_entry(name, value)?;
        }
        match json(event) {
            Some(payload) => map.serialize_entry("data", payload)?,
            None => map.serialize_entry("data_base64", &BASE64_STANDARD.encode(&event.payload))?,
        }
        map.end()
    }
}

/// Attributes that are written above, or that the format gives a meaning.
const ATTRIBUTES: &[&str] =
    &["specversion", "id", "source", "type", "time", "subject", "datacontenttype", "dataschema", "data"];

fn is_attribute(name: &str) -> bool {
    let letters = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    letters && !name.is_empty() && !name.starts_with("tramline") && !ATTRIBUTES.contains(&name)
}

/// What Routemaster's drains read.
#[derive(Serialize)]
struct RoutemasterEvent<'a> {
    topic: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    url: String,
    t: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
}

/// What an event that came by Routemaster's API has in its payload.
#[derive(Default, Deserialize)]
struct Published<'a> {
    url: Option<String>,
    t: Option<i64>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

impl<'a> RoutemasterEvent<'a> {
    /// Events that came another way have no URL but their key, or the URN of their id, and may have a type that a drain does not
    /// know.
    fn of(sending: &'a Sending) -> RoutemasterEvent<'a> {
        let event = &sending.event;
        let published: Published<'a> = serde_json::from_slice(&event.payload).unwrap_or_default();
        let known = ["create", "update", "delete", "noop"].into_iter().find(|kind| **kind == *event.kind);
        RoutemasterEvent {
            topic: &event.topic,
            kind: known.unwrap_or("update"),
            url: published.url.unwrap_or_else(|| stand_in(event)),
            t: published.t.unwrap_or(event.emitted_at.0),
            data: published.data.filter(|data| data.get() != "null"),
        }
    }
}

/// What stands for the URL that an event does not have. A drain needs one, or it would refuse the batch for ever.
fn stand_in(event: &StoredEvent) -> String {
    event.key.as_deref().map_or_else(|| format!("urn:tramline:event:{}", event.id), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn sending(content_type: &str, payload: &str) -> Sending {
        let event = StoredEvent {
            id: EventId(1 << 60),
            topic: Arc::from("orders"),
            kind: Arc::from("order.paid"),
            key: Some(Arc::from("order:1")),
            prev: Some(EventId(64)),
            payload: Bytes::copy_from_slice(payload.as_bytes()),
            content_type: Arc::from(content_type),
            headers: Arc::new(Headers::from([
                ("traceparent".to_owned(), "00-a-b-01".to_owned()),
                ("X-Team".to_owned(), "a".to_owned()),
                ("id".to_owned(), "forged".to_owned()),
            ])),
            emitted_at: Time(1_893_456_000_007),
            item: None,
            item_ends_with: None,
        };
        Sending { event, attempt: 2, skipped: vec![EventId(63)], replayed: false }
    }

    fn read(format: Format, batch: &[Sending]) -> (&'static str, Value) {
        let written = write(format, "emails", "b-1", batch);
        (written.content_type, serde_json::from_slice(&written.body).unwrap())
    }

    #[test]
    fn tramlines_own_format_is_what_a_claim_gives() {
        let (content_type, body) = read(Format::Tramline, &[sending(JSON, "{\"total\":1.50}")]);
        assert_eq!(content_type, "application/json");
        assert_eq!((&body["subscription"], &body["batch"]), (&json!("emails"), &json!("b-1")));
        let event = &body["events"][0];
        assert_eq!(event["id"], "1152921504606846976");
        assert_eq!((&event["prev"], &event["skipped"]), (&json!("64"), &json!(["63"])));
        assert_eq!((&event["payload"]["total"], &event["attempt"]), (&json!(1.5), &json!(2)));
        assert_eq!(event["emitted_at"], "2030-01-01T00:00:00.007Z");
        let raw = read(Format::Tramline, &[sending("text/plain", "hi")]).1;
        assert_eq!(raw["events"][0]["payload_base64"], "aGk=");
        let broken = read(Format::Tramline, &[sending(JSON, "{")]).1;
        assert_eq!(broken["events"][0]["payload_base64"], "ew==");
    }

    #[test]
    fn cloudevents_have_their_attributes_and_headers_cannot_forge_one() {
        let (content_type, body) = read(Format::CloudeventsBatch, &[sending(JSON, "[1]")]);
        assert_eq!(content_type, "application/cloudevents-batch+json");
        let event = &body[0];
        assert_eq!(event["id"], "1152921504606846976");
        assert_eq!((&event["source"], &event["type"]), (&json!("/topics/orders"), &json!("order.paid")));
        assert_eq!((&event["subject"], &event["data"]), (&json!("order:1"), &json!([1])));
        assert_eq!((&event["traceparent"], &event["X-Team"]), (&json!("00-a-b-01"), &Value::Null));
        let (content_type, one) = read(Format::Cloudevents, &[sending("text/plain", "hi")]);
        assert_eq!(content_type, "application/cloudevents+json");
        assert_eq!(one["data_base64"], "aGk=");
    }

    #[test]
    fn routemaster_gets_the_bytes_that_its_drains_expect() {
        let mut published = sending(JSON, r#"{"url":"https://a.example/1","t":7,"data":{"a":1}}"#);
        published.event.kind = Arc::from("create");
        let mut nameless = sending("text/plain", "hi");
        nameless.event.key = None;
        let batch = [published, sending("text/plain", "hi"), nameless];
        let written = write(Format::Routemaster, "s", "b", &batch);
        assert_eq!(written.content_type, "application/json");
        let expected =
            r#"[{"topic":"orders","type":"create","url":"https://a.example/1","t":7,"data":{"a":1}},"#
                .to_owned()
                + r#"{"topic":"orders","type":"update","url":"order:1","t":1893456000007},"#
                + r#"{"topic":"orders","type":"update","url":"urn:tramline:event:1152921504606846976","t":1893456000007}]"#;
        assert_eq!(written.body, expected);
    }
}
