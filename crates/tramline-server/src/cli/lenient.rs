//! Answers with payloads that are JSON and yet nothing that a value can hold: half of a surrogate pair, a number beyond all measure, a thousand
//! brackets. Such a payload is shown as the text that it is, and the rest as always.

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::fmt;

/// Fields that hold what users wrote.
const FOREIGN: &[&str] = &["payload", "state"];

/// Reads an answer.
pub(super) fn read(json: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(json).or_else(|_| serde_json::from_slice(json).map(|Lenient(value)| value))
}

struct Lenient(Value);

impl<'de> Deserialize<'de> for Lenient {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Lenient, D::Error> {
        from.deserialize_any(Any).map(Lenient)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Lenient(value)) = seq.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = if FOREIGN.contains(&name.as_str()) {
                let raw: Box<RawValue> = map.next_value()?;
                serde_json::from_str(raw.get()).unwrap_or_else(|_| raw.get().into())
            } else {
                map.next_value::<Lenient>()?.0
            };
            fields.insert(name, value);
        }
        Ok(fields.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// One such event made `tail` wait for ever and hid a whole list of dead ones.
    #[test]
    fn what_no_value_can_hold_is_shown_as_text() {
        let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
        for strange in [r#""\ud800""#, "1e400", &deep] {
            let answer = format!(
                r#"{{"items":[{{"id":"1","payload":{strange},"n":[1,-1,0.5,true,null]}},{{"payload":{{"a":1}}}}]}}"#
            );
            let expected = json!({"items": [{"id": "1", "payload": strange, "n": [1, -1, 0.5, true, null]}, {"payload": {"a": 1}}]});
            assert_eq!(read(answer.as_bytes()).unwrap(), expected, "{strange}");
        }
        assert!(read(b"{\"items\":[}").is_err());
    }
}
