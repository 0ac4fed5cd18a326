//! What the answer of a receiver says of the events of a batch.

use super::client::{Answer, Answered};
use super::format::Sending;
use crate::model::health::{MAX_EXCERPT, Verdict, excerpt};
use crate::model::id::EventId;
use crate::model::outcome::Outcome;
use crate::model::push::Format;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::time::Duration;

/// The longest delay that a receiver can ask for an event.
const LONGEST_DELAY: Duration = Duration::from_secs(30 * 24 * 3600);

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Of the batch.
    pub verdict: Verdict,
    /// Of each event, in the order of the batch. Empty if it says that nothing more is wanted: then they are given back.
    pub outcomes: Vec<Outcome>,
    /// The status, if there was an answer.
    pub status: Option<u16>,
    /// For how long the receiver wants to be left alone.
    pub retry_after: Option<Duration>,
    /// The beginning of the answer, or why there was none.
    pub excerpt: String,
}

/// What a receiver may say of an event of a batch that it took: that it did not take this one.
#[derive(Deserialize)]
#[serde(untagged)]
enum FailedEvent {
    Told { id: Id, delay_ms: Option<u64>, error: Option<String> },
    Bare(Id),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Id {
    Text(String),
    Number(i64),
}

/// Any 2xx acknowledges, but for the events that the body names; 410 wants nothing more; everything else has failed. Receivers of
/// Routemaster's format do not know the ids of events: whatever they say with a 2xx, they took them.
pub fn judge(answer: &Answer, format: Format, batch: &[Sending]) -> Judged {
    match &answer.result {
        Err(failed) => Judged {
            verdict: Verdict::Failed,
            outcomes: all_failed(batch, &failed.text),
            status: None,
            retry_after: None,
            excerpt: excerpt(&failed.text),
        },
        Ok(answered) => {
            let (verdict, outcomes) = match answered.status {
                200..=299 if format == Format::Routemaster => {
                    (Verdict::Delivered, batch.iter().map(|_| Outcome::Done).collect())
                }
                200..=299 => (Verdict::Delivered, outcomes(answered, batch)),
                410 => (Verdict::Gone, Vec::new()),
                status => {
                    let error = format!("the receiver answered {status}");
                    (Verdict::Failed, all_failed(batch, &error))
                }
            };
            let head = &answered.body[..answered.body.len().min(MAX_EXCERPT)];
            Judged {
                verdict,
                outcomes,
                status: Some(answered.status),
                retry_after: answered.retry_after,
                excerpt: excerpt(&String::from_utf8_lossy(head)),
            }
        }
    }
}

/// All events of a batch that could not be sent, or were not taken. They come again by their backoff and not by `Retry-After`, for which
/// the whole subscription is left alone: a receiver that is down and says "in a second" would use up all attempts in a minute.
pub fn all_failed(batch: &[Sending], error: &str) -> Vec<Outcome> {
    batch.iter().map(|_| Outcome::retry(error)).collect()
}

fn outcomes(answered: &Answered, batch: &[Sending]) -> Vec<Outcome> {
    let Some(failed) = named(&answered.body) else {
        return all_failed(
            batch,
            "the receiver named failed events, but its answer is too long or cannot be read",
        );
    };
    let outcome = |sending: &Sending| match failed.get(&sending.event.id) {
        None => Outcome::Done,
        Some((delay, error)) => Outcome::Retry {
            delay: delay.map(|delay| Duration::from_millis(delay).min(LONGEST_DELAY)),
            error: error.clone().unwrap_or_else(|| "the receiver did not take it".to_owned()),
        },
    };
    batch.iter().map(outcome).collect()
}

/// Failed events, each with its delay in milliseconds and its error.
type Named = HashMap<EventId, (Option<u64>, Option<String>)>;

/// The events that an answer names as failed. Most receivers say nothing, or something that is none of our business. `None`: it names
/// some, but nobody can tell which.
fn named(body: &[u8]) -> Option<Named> {
    let Ok(mut answer) = serde_json::from_slice::<Value>(body) else {
        return (!begins_a_list(&String::from_utf8_lossy(body))).then(HashMap::new);
    };
    let Some(list @ Value::Array(_)) = answer.get_mut("failed").map(Value::take) else {
        return Some(HashMap::new());
    };
    let list: Vec<FailedEvent> = serde_json::from_value(list).ok()?;
    let one = |failed| {
        let (id, delay, error) = match failed {
            FailedEvent::Told { id, delay_ms, error } => (id, delay_ms, error),
            FailedEvent::Bare(id) => (id, None, None),
        };
        let id = match id {
            Id::Text(text) => text.parse().ok()?,
            Id::Number(number) => number,
        };
        Some((EventId(id), (delay, error)))
    };
    list.into_iter().map(one).collect()
}

/// True for the beginning of an object that names failed events.
fn begins_a_list(text: &str) -> bool {
    let mut values =
        text.split("\"failed\"").skip(1).map(|rest| rest.trim_start_matches([' ', '\t', '\r', '\n', ':']));
    let list = |value: &str| value.strip_prefix('[').is_some_and(|rest| !rest.trim_start().starts_with(']'));
    text.trim_start().starts_with('{') && values.any(list)
}

/// Where events of a key follow each other, what comes after a failed one cannot have been done, whatever the receiver says. It
/// is left out: the store sets it aside with the failed one.
pub fn in_order<T>(
    outcomes: Vec<(T, Outcome)>,
    key: impl Fn(&T) -> Option<(std::sync::Arc<str>, std::sync::Arc<str>)>,
) -> Vec<(T, Outcome)> {
    let mut stopped = std::collections::HashSet::new();
    let mut kept = Vec::with_capacity(outcomes.len());
    for (event, outcome) in outcomes {
        let Some(key) = key(&event) else {
            kept.push((event, outcome));
            continue;
        };
        if !stopped.contains(&key) {
            if !outcome.is_done() {
                stopped.insert(key);
            }
            kept.push((event, outcome));
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(body: &str) -> Option<Vec<i64>> {
        let mut ids: Vec<i64> = named(body.as_bytes())?.into_keys().map(|id| id.0).collect();
        ids.sort_unstable();
        Some(ids)
    }

    #[test]
    fn failed_events_are_named_by_their_ids_as_texts_or_numbers() {
        let told = r#"{"failed": [{"id": "65", "delay_ms": 5}, {"id": 66, "error": "busy"}, "67", 68]}"#;
        assert_eq!(ids(told), Some(vec![65, 66, 67, 68]));
    }

    #[test]
    fn an_answer_that_names_nobody_takes_all() {
        for body in [
            "",
            "ok",
            "<p>\"failed\": [1]",
            "[1]",
            "{}",
            r#"{"failed": 0}"#,
            r#"{"failed": []}"#,
            r#"{"failed" : [ ], "#,
        ] {
            assert_eq!(ids(body), Some(Vec::new()), "{body}");
        }
    }

    /// Such an answer acknowledged the whole batch, also the events that it said had failed.
    #[test]
    fn nothing_is_taken_where_the_names_of_failed_events_cannot_be_read() {
        let long = format!(r#"{{"failed" : [ {{"id": "65", "error": "{}"#, "x".repeat(1_000));
        for body in [
            r#"{"failed": [{"id": "65"}, {}]}"#,
            r#"{"failed": ["all"]}"#,
            r#"{"failed": [{"id": "65", "delay_ms": -1}]}"#,
            &long,
        ] {
            assert_eq!(ids(body), None, "{body}");
        }
    }
}
