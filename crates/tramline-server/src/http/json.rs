//! How ids, times, events and lists are written.

use crate::http::tallies::standing::ItemOut;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::fmt::temporal::DateTimePrinter;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use tramline::{EventId, Headers, StoredEvent, Time};
use utoipa::ToSchema;

/// An answer in JSON.
pub(crate) struct Json<T>(pub(crate) StatusCode, pub(crate) T);

/// A plain 200.
pub(crate) fn ok<T: Serialize>(value: T) -> Json<T> {
    Json(StatusCode::OK, value)
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.1) {
            Ok(body) => json_response(self.0, body),
            Err(error) => {
                tracing::error!(error = %error, "an answer cannot be written as JSON");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

/// A response of JSON that is already written.
pub(crate) fn json_response(status: StatusCode, body: Vec<u8>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An event's id as a decimal string: it passes 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, pattern = "^[0-9]{1,19}$", example = "8128")]
pub(crate) struct Id(pub(crate) EventId);

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Id, D::Error> {
        from.deserialize_str(Digits)
    }
}

/// Reads an id where it is: a settlement has thousands.
struct Digits;

impl Visitor<'_> for Digits {
    type Value = Id;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a string of digits")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Id, E> {
        parse_id(text).ok_or_else(|| E::custom("an id is a decimal number in a string"))
    }
}

/// The id in a text: up to 19 digits. Numbers beyond the last id are ids of nothing, like the last one.
pub(crate) fn parse_id(text: &str) -> Option<Id> {
    let digits = text.len() <= 19 && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse::<u64>().ok().filter(|_| digits)?;
    Some(Id(EventId(i64::try_from(number).unwrap_or(i64::MAX))))
}

/// A point in time, RFC 3339 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, format = DateTime)]
pub(crate) struct When(pub(crate) Time);

impl Serialize for When {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // Times beyond the calendar, such as "never", are its last day.
        let time = jiff::Timestamp::from_millisecond(self.0.0).unwrap_or(jiff::Timestamp::MAX);
        to.serialize_str(&MILLIS.timestamp_to_string(&time))
    }
}

/// How times are written.
const MILLIS: DateTimePrinter = DateTimePrinter::new().precision(Some(3));

impl<'de> Deserialize<'de> for When {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<When, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        parse_time(&text).ok_or_else(|| serde::de::Error::custom(NO_TIME))
    }
}

/// What is wrong with a text that is no time.
pub(crate) const NO_TIME: &str =
    "a time is written as 2030-01-31T12:00:00Z, and is not later than 9999-12-30T22:00:00Z";

/// The time in a text.
pub(crate) fn parse_time(text: &str) -> Option<When> {
    text.parse::<jiff::Timestamp>().ok().map(|time| When(Time(time.as_millisecond())))
}

/// A value that is written as an object. Without this, serde would also take the fields in an array, one after the other.
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Object<T>, D::Error> {
        from.deserialize_map(Fields(PhantomData)).map(Object)
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = T;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields))
    }
}

/// Reads a field that may be left out (as it was), null (no longer) or a value.
pub(crate) fn or_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// One page of a list.
#[derive(Serialize, ToSchema)]
pub(crate) struct List<T: ToSchema> {
    /// The entries
    pub(crate) items: Vec<T>,
    /// What to pass as `after` for the next page; null at the end
    pub(crate) next: Option<String>,
}

/// A stored event.
#[derive(Serialize, ToSchema)]
pub(crate) struct EventOut<'a> {
    pub(crate) id: Id,
    topic: &'a str,
    /// Its type, if it has one
    #[serde(rename = "type")]
    kind: Option<&'a str>,
    key: Option<&'a str>,
    /// The preceding event of the same topic and key
    prev: Option<Id>,
    /// The payload, if it is JSON
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<&'a RawValue>,
    /// The payload in Base64, if it is not JSON
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    content_type: &'a str,
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    headers: &'a Headers,
    emitted_at: When,
    /// The item of a tally that it is
    #[serde(skip_serializing_if = "Option::is_none")]
    tally: Option<ItemOut>,
}

impl<'a> EventOut<'a> {
    pub(crate) fn new(event: &'a StoredEvent) -> EventOut<'a> {
        let (payload, payload_base64) = payload(&event.content_type, &event.payload);
        EventOut {
            id: Id(event.id),
            topic: &event.topic,
            kind: Some(&*event.kind).filter(|kind| !kind.is_empty()),
            key: event.key.as_deref(),
            prev: event.prev.map(Id),
            payload,
            payload_base64,
            content_type: &event.content_type,
            headers: &event.headers,
            emitted_at: When(event.emitted_at),
            tally: event.item.map(ItemOut::from),
        }
    }
}

/// A payload as it is shown: JSON as it is, everything else in Base64.
pub(crate) fn payload<'a>(content_type: &str, bytes: &'a [u8]) -> (Option<&'a RawValue>, Option<String>) {
    let is_json = content_type == tramline::model::event::JSON;
    // Read once more: a program may have stored anything under that content type.
    let json = if is_json { serde_json::from_slice(bytes).ok() } else { None };
    (json, json.is_none().then(|| BASE64_STANDARD.encode(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc_and_read_in_any_zone() {
        let time = When(Time(1_893_456_000_007));
        assert_eq!(serde_json::to_string(&time).unwrap(), "\"2030-01-01T00:00:00.007Z\"");
        assert_eq!(parse_time("2030-01-01T01:00:00.007+01:00"), Some(time));
        assert_eq!(parse_time("tomorrow"), None);
        assert!(parse_time("9999-12-30T22:00:00Z").is_some() && parse_time("9999-12-31T00:00:00Z").is_none());
        let refused = serde_json::from_str::<When>("\"9999-12-31T23:59:59Z\"").unwrap_err();
        assert!(refused.to_string().contains("not later than 9999-12-30"), "{refused}");
        assert!(serde_json::to_string(&When(Time::NEVER)).unwrap().contains("9999"));
    }

    #[test]
    fn ids_are_strings() {
        assert_eq!(serde_json::to_string(&Id(EventId(1 << 60))).unwrap(), "\"1152921504606846976\"");
        assert_eq!(serde_json::from_str::<Id>("\"5\"").unwrap(), Id(EventId(5)));
        assert_eq!(parse_id("9999999999999999999"), Some(Id(EventId(i64::MAX))));
        for bad in ["5", "\"-1\"", "\"+1\"", "\"\"", "\"x\"", "\"99999999999999999999\""] {
            assert!(serde_json::from_str::<Id>(bad).is_err(), "{bad}");
        }
    }
}
