//! Filters: which events of its topics a subscription gets. They are applied when an event is emitted.

use crate::error::{Error, Result};
use crate::model::event::{Event, Headers, JSON, StoredEvent};
use crate::model::pattern::Pattern;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::OnceCell;

/// How many conditions a filter has at most, and how many values one of them names.
const MAX_CONDITIONS: usize = 32;
const MAX_VALUES: usize = 256;
/// The longest text in a filter, in bytes.
const MAX_TEXT: usize = 512;

/// Conditions that must all hold. Without any, everything passes.
///
/// Written as a list: `[{"field": "type", "prefix": "order."}, {"field": "payload.country", "in": ["AT", "DE"]}]`. A condition has one
/// of `equals`, `in`, `prefix` and `matches`, which takes patterns that match segment by segment (see [`Pattern`]).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Filter(Vec<Condition>);

/// One field of an event, and what it must be. A field that an event does not have is nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Condition {
    field: Field,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Field {
    Topic,
    Type,
    Key,
    Header(String),
    /// A path into a JSON payload: names of members, numbers of elements.
    Payload(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Equals(Value),
    In(Vec<Value>),
    Prefix(Vec<String>),
    Matches(Vec<Pattern>),
}

/// What a filter looks at. The payload is read at most once, and only if a condition asks for it.
pub(crate) struct Subject<'e> {
    topic: &'e str,
    kind: &'e str,
    key: Option<&'e str>,
    headers: &'e Headers,
    payload: Option<&'e [u8]>,
    json: OnceCell<Option<Value>>,
}

impl Filter {
    /// True if everything passes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if an event goes to the subscription.
    pub fn passes(&self, event: &Event) -> bool {
        self.0.is_empty() || self.admits(&Subject::of(event))
    }

    pub(crate) fn admits(&self, subject: &Subject<'_>) -> bool {
        self.0.iter().all(|condition| condition.holds(subject))
    }

    /// Checks the sizes.
    pub(crate) fn check(&self) -> Result<()> {
        let values = |condition: &Condition| match &condition.test {
            Test::Equals(value) => vec![value.to_string().len()],
            Test::In(values) => values.iter().map(|value| value.to_string().len()).collect(),
            Test::Prefix(prefixes) => prefixes.iter().map(String::len).collect(),
            Test::Matches(patterns) => patterns.iter().map(|pattern| pattern.as_str().len()).collect(),
        };
        let too_much = |condition: &Condition| {
            let sizes = values(condition);
            sizes.is_empty() || sizes.len() > MAX_VALUES || sizes.into_iter().any(|size| size > MAX_TEXT)
        };
        if self.0.len() > MAX_CONDITIONS || self.0.iter().any(too_much) {
            return Err(Error::invalid(
                "the filter is too large, or a list in it is empty",
                "use at most 32 conditions with 1 to 256 values of up to 512 bytes",
            ));
        }
        Ok(())
    }
}

impl Condition {
    fn holds(&self, subject: &Subject<'_>) -> bool {
        match &self.field {
            Field::Topic => self.test.takes_text(subject.topic),
            Field::Type => self.test.takes_text(subject.kind),
            Field::Key => subject.key.is_some_and(|key| self.test.takes_text(key)),
            Field::Header(name) => subject.headers.get(name).is_some_and(|text| self.test.takes_text(text)),
            Field::Payload(path) => subject.find(path).is_some_and(|value| self.test.takes(value)),
        }
    }
}

impl Test {
    fn takes_text(&self, text: &str) -> bool {
        match self {
            Test::Equals(value) => value.as_str() == Some(text),
            Test::In(values) => values.iter().any(|value| value.as_str() == Some(text)),
            Test::Prefix(prefixes) => prefixes.iter().any(|prefix| text.starts_with(prefix.as_str())),
            Test::Matches(patterns) => patterns.iter().any(|pattern| pattern.matches(text)),
        }
    }

    fn takes(&self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::String(text)) => self.takes_text(text),
            (Test::Equals(wanted), _) => is_same(wanted, value),
            (Test::In(wanted), _) => wanted.iter().any(|wanted| is_same(wanted, value)),
            (Test::Prefix(_) | Test::Matches(_), _) => false,
        }
    }
}

/// 1 and 1.0 are the same number, however they are written.
fn is_same(a: &Value, b: &Value) -> bool {
    a == b || (a.is_number() && a.as_f64() == b.as_f64())
}

impl<'e> Subject<'e> {
    pub(crate) fn of(event: &'e Event) -> Subject<'e> {
        Subject {
            topic: &event.topic,
            kind: &event.kind,
            key: event.key.as_deref(),
            headers: &event.headers,
            payload: (event.content_type == JSON).then_some(&event.payload[..]),
            json: OnceCell::new(),
        }
    }

    pub(crate) fn of_stored(event: &'e StoredEvent) -> Subject<'e> {
        Subject {
            topic: &event.topic,
            kind: &event.kind,
            key: event.key.as_deref(),
            headers: &event.headers,
            payload: (*event.content_type == *JSON).then_some(&event.payload[..]),
            json: OnceCell::new(),
        }
    }

    fn find(&self, path: &[String]) -> Option<&Value> {
        let json = self.json.get_or_init(|| serde_json::from_slice(self.payload?).ok());
        path.iter().try_fold(json.as_ref()?, |value, step| match value {
            Value::Object(members) => members.get(step),
            Value::Array(elements) => elements.get(step.parse::<usize>().ok()?),
            _ => None,
        })
    }
}

/// A condition as it is written in JSON.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    field: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    equals: Option<Value>,
    #[serde(rename = "in", default, skip_serializing_if = "Option::is_none")]
    within: Option<Vec<Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prefix: Option<Texts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    matches: Option<Texts>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Many(Vec<String>),
}

impl From<Texts> for Vec<String> {
    fn from(texts: Texts) -> Vec<String> {
        match texts {
            Texts::One(text) => vec![text],
            Texts::Many(texts) => texts,
        }
    }
}

impl TryFrom<Written> for Condition {
    type Error = &'static str;

    fn try_from(written: Written) -> std::result::Result<Condition, &'static str> {
        let Written { field, equals, within, prefix, matches } = written;
        let test = match (equals, within, prefix, matches) {
            (Some(value), None, None, None) => Test::Equals(value),
            (None, Some(values), None, None) => Test::In(values),
            (None, None, Some(prefixes), None) => Test::Prefix(prefixes.into()),
            (None, None, None, Some(patterns)) => Test::Matches(patterns_of(patterns)?),
            _ => return Err("a condition has exactly one of equals, in, prefix and matches"),
        };
        Ok(Condition { field: Field::parse(&field)?, test })
    }
}

fn patterns_of(texts: Texts) -> std::result::Result<Vec<Pattern>, &'static str> {
    const WRONG: &str = "a pattern is a name in which a segment may be *, and the last one **";
    Vec::from(texts).into_iter().map(|text| Pattern::try_from(text).map_err(|_| WRONG)).collect()
}

impl Field {
    fn parse(text: &str) -> std::result::Result<Field, &'static str> {
        const WRONG: &str = "the field of a condition is topic, type, key, header.NAME or payload.PATH";
        match text.split_once('.') {
            None if text == "topic" => Ok(Field::Topic),
            None if text == "type" => Ok(Field::Type),
            None if text == "key" => Ok(Field::Key),
            Some(("header", name)) if !name.is_empty() => Ok(Field::Header(name.to_owned())),
            Some(("payload", path)) if path.split('.').all(|step| !step.is_empty()) => {
                Ok(Field::Payload(path.split('.').map(str::to_owned).collect()))
            }
            _ => Err(WRONG),
        }
    }
}

impl From<Condition> for Written {
    fn from(condition: Condition) -> Written {
        let field = match condition.field {
            Field::Topic => "topic".to_owned(),
            Field::Type => "type".to_owned(),
            Field::Key => "key".to_owned(),
            Field::Header(name) => format!("header.{name}"),
            Field::Payload(path) => format!("payload.{}", path.join(".")),
        };
        let mut written = Written { field, equals: None, within: None, prefix: None, matches: None };
        match condition.test {
            Test::Equals(value) => written.equals = Some(value),
            Test::In(values) => written.within = Some(values),
            Test::Prefix(prefixes) => written.prefix = Some(Texts::Many(prefixes)),
            Test::Matches(patterns) => {
                written.matches = Some(Texts::Many(patterns.into_iter().map(String::from).collect()));
            }
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn filter(written: Value) -> Filter {
        serde_json::from_value(written).unwrap()
    }

    fn event() -> Event {
        let payload =
            json!({"country": "AT", "total": 12, "lines": [{"sku": "b-7"}], "paid": true, "dots.in": 1});
        let event = Event::json("acme/orders", &payload).unwrap();
        event.kind("order.paid").key("order:1").header("region", "eu").header("path", "a/b/c")
    }

    #[test]
    fn all_conditions_must_hold_and_missing_fields_are_nothing() {
        for (written, passes) in [
            (json!([]), true),
            (json!([{"field": "type", "equals": "order.paid"}]), true),
            (json!([{"field": "type", "prefix": "order."}]), true),
            (json!([{"field": "type", "prefix": ["mail.", "order."]}]), true),
            (json!([{"field": "type", "in": ["a", "b"]}]), false),
            (json!([{"field": "key", "prefix": "order:"}]), true),
            (json!([{"field": "header.region", "in": ["eu", "us"]}]), true),
            (json!([{"field": "header.other", "prefix": ""}]), false),
            (json!([{"field": "payload.country", "in": ["DE", "AT"]}]), true),
            (json!([{"field": "payload.total", "equals": 12.0}]), true),
            (json!([{"field": "payload.total", "equals": "12"}]), false),
            (json!([{"field": "payload.total", "prefix": "1"}]), false),
            (json!([{"field": "payload.lines.0.sku", "prefix": "b-"}]), true),
            (json!([{"field": "payload.lines.1.sku", "prefix": ""}]), false),
            (json!([{"field": "payload.paid", "equals": true}]), true),
            (json!([{"field": "topic", "matches": "acme/*"}]), true),
            (json!([{"field": "topic", "matches": ["shop/**", "*/orders"]}]), true),
            (json!([{"field": "topic", "matches": "*"}]), false),
            (json!([{"field": "topic", "equals": "acme/orders"}]), true),
            (json!([{"field": "header.path", "matches": "a/**"}]), true),
            (json!([{"field": "header.path", "matches": "a/*"}]), false),
            (json!([{"field": "header.other", "matches": "**"}]), false),
            (json!([{"field": "payload.country", "matches": "*"}]), true),
            (json!([{"field": "payload.total", "matches": "*"}]), false),
            (
                json!([{"field": "type", "prefix": "order."}, {"field": "payload.country", "equals": "DE"}]),
                false,
            ),
        ] {
            assert_eq!(filter(written.clone()).passes(&event()), passes, "{written}");
        }
    }

    #[test]
    fn a_payload_that_is_not_json_has_no_fields() {
        let raw = Event::new("t", br#"{"a": 1}"#.to_vec());
        let broken = Event::new("t", "{").content_type(JSON);
        let filter = filter(json!([{"field": "payload.a", "equals": 1}]));
        assert!(!filter.passes(&raw) && !filter.passes(&broken));
        assert!(filter.passes(&raw.content_type(JSON)));
    }

    #[test]
    fn a_filter_is_written_as_it_was_read_and_refused_if_it_is_unclear() {
        let written = json!([{"field": "payload.a.b", "in": [1, "x"]}, {"field": "header.h", "prefix": ["p"]},
                {"field": "topic", "matches": ["a/*", "b/**"]}]);
        assert_eq!(serde_json::to_value(filter(written.clone())).unwrap(), written);
        for wrong in [
            json!([{"field": "type"}]),
            json!([{"field": "type", "equals": 1, "in": [1]}]),
            json!([{"field": "tenant", "equals": "t"}]),
            json!([{"field": "topic", "matches": "a*"}]),
            json!([{"field": "topic", "matches": ["a", "**/b"]}]),
            json!([{"field": "topic", "matches": "a", "prefix": "a"}]),
            json!([{"field": "payload.", "equals": 1}]),
            json!([{"field": "header", "equals": 1}]),
            json!([{"field": "type", "equals": "a", "more": 1}]),
        ] {
            assert!(serde_json::from_value::<Filter>(wrong.clone()).is_err(), "{wrong}");
        }
        assert!(filter(json!([{"field": "type", "in": []}])).check().is_err());
        assert!(filter(json!([{"field": "topic", "matches": []}])).check().is_err());
        assert!(filter(json!([{"field": "type", "equals": "x".repeat(600)}])).check().is_err());
    }
}
