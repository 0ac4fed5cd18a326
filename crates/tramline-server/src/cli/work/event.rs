//! An event as it is claimed.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use tramline::engine::trace::TRACEPARENT;

/// An event and the lease on it. Several events can have the same lease.
#[derive(Debug, Deserialize)]
pub(super) struct Claimed {
    pub(super) id: String,
    pub(super) lease: String,
    topic: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    key: Option<String>,
    prev: Option<String>,
    /// Which attempt this is, from 1.
    pub(super) attempt: u32,
    #[serde(default)]
    crashes: u32,
    payload: Option<Box<RawValue>>,
    payload_base64: Option<String>,
    content_type: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    emitted_at: Option<String>,
    #[serde(default)]
    skipped: Vec<String>,
    #[serde(default)]
    replayed: bool,
    tally: Option<Item>,
}

/// An item of a tally.
#[derive(Debug, Deserialize)]
struct Item {
    id: String,
    item: u64,
}

/// What a claim answers.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Claim {
    pub(super) events: Vec<Claimed>,
}

impl Claimed {
    pub(super) fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// To which trace it belongs.
    pub(super) fn traceparent(&self) -> Option<&str> {
        self.headers.get(TRACEPARENT).map(String::as_str)
    }

    /// The payload as it was emitted.
    pub(super) fn input(&self) -> Vec<u8> {
        match (&self.payload, &self.payload_base64) {
            (Some(json), _) => json.get().as_bytes().to_vec(),
            (None, Some(base64)) => BASE64_STANDARD.decode(base64).unwrap_or_default(),
            // The JSON value null.
            (None, None) => b"null".to_vec(),
        }
    }

    /// What the command is told beside the payload: name and value.
    pub(super) fn details(&self, subscription: &str) -> Vec<(String, String)> {
        let said = |name: &str, value: &Option<String>| value.clone().map(|value| (name.to_owned(), value));
        let mut all = vec![
            ("event_id".to_owned(), self.id.clone()),
            ("topic".to_owned(), self.topic.clone()),
            ("type".to_owned(), self.kind.clone().unwrap_or_default()),
            ("subscription".to_owned(), subscription.to_owned()),
            ("attempt".to_owned(), self.attempt.to_string()),
            ("crashes".to_owned(), self.crashes.to_string()),
        ];
        all.extend(said("key", &self.key));
        all.extend(said("prev", &self.prev));
        all.extend(said("content_type", &self.content_type));
        all.extend(said("emitted_at", &self.emitted_at));
        if !self.skipped.is_empty() {
            all.push(("skipped".to_owned(), self.skipped.join(",")));
        }
        if self.replayed {
            all.push(("replayed".to_owned(), "true".to_owned()));
        }
        if let Some(tally) = &self.tally {
            all.push(("tally".to_owned(), tally.id.clone()));
            all.push(("tally_item".to_owned(), tally.item.to_string()));
        }
        all.extend(self.headers.iter().map(|(name, value)| (format!("header_{name}"), value.clone())));
        all
    }
}

/// Events in rows: those of a row run one after the other, the rows at the same time. Without order every event is its own row.
pub(super) fn rows(events: Vec<Claimed>, ordered: bool) -> Vec<Vec<Claimed>> {
    let mut rows: Vec<Vec<Claimed>> = Vec::new();
    for event in events {
        let same = |row: &&mut Vec<Claimed>| {
            ordered && event.key.is_some() && row[0].key == event.key && row[0].topic == event.topic
        };
        match rows.iter_mut().find(same) {
            Some(row) => row.push(event),
            None => rows.push(vec![event]),
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn event(fields: Value) -> Claimed {
        let mut event = json!({"id": "1", "lease": "l", "topic": "t", "attempt": 1});
        event.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_str(&event.to_string()).unwrap()
    }

    #[test]
    fn a_command_reads_the_payload_as_it_was_emitted() {
        assert_eq!(event(json!({"payload": {"a": [1]}})).input(), br#"{"a":[1]}"#);
        assert_eq!(event(json!({"payload_base64": "aGk="})).input(), b"hi");
        assert_eq!(event(json!({"payload": null})).input(), b"null");
    }

    #[test]
    fn what_an_event_lacks_is_not_told() {
        let names = |event: Claimed| -> Vec<String> {
            event.details("s").into_iter().map(|(name, _)| name).collect()
        };
        let few = names(event(json!({})));
        assert_eq!(few, ["event_id", "topic", "type", "subscription", "attempt", "crashes"]);
        let many = names(event(
            json!({"key": "k", "headers": {"a-b": "c"}, "skipped": ["3"], "replayed": true, "tally": {"id": "7", "item": 3}}),
        ));
        assert_eq!(many[6..], ["key", "skipped", "replayed", "tally", "tally_item", "header_a-b"]);
    }

    #[test]
    fn ordered_events_of_one_key_are_in_one_row() {
        let events = || {
            ["a", "b", "a"]
                .map(|key| event(json!({"key": key})))
                .into_iter()
                .chain([event(json!({}))])
                .collect()
        };
        let sizes = |rows: Vec<Vec<Claimed>>| rows.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(rows(events(), true)), [2, 1, 1]);
        assert_eq!(sizes(rows(events(), false)), [1, 1, 1, 1]);
    }
}
