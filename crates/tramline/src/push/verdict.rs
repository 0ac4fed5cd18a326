//! What the answer of a receiver says of the events of a batch.

use super::client::{Answer, Answered};
use super::format::Sending;
use crate::model::health::{MAX_EXCERPT, Verdict, excerpt};
use crate::model::id::EventId;
use crate::model::outcome::Outcome;
use serde::Deserialize;
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

/// What a receiver may say of a batch that it took: which events it did not.
#[derive(Default, Deserialize)]
struct Partial {
    #[serde(default)]
    failed: Vec<FailedEvent>,
}

#[derive(Deserialize)]
struct FailedEvent {
    id: String,
    delay_ms: Option<u64>,
    error: Option<String>,
}

/// Any 2xx acknowledges, but for the events that the body names; 410 wants nothing more; everything else has failed.
pub fn judge(answer: &Answer, batch: &[Sending]) -> Judged {
    match &answer.result {
        Err(failed) => Judged {
            verdict: Verdict::Failed,
            outcomes: all_failed(batch, &failed.text, None),
            status: None,
            retry_after: None,
            excerpt: excerpt(&failed.text),
        },
        Ok(answered) => {
            let (verdict, outcomes) = match answered.status {
                200..=299 => (Verdict::Delivered, outcomes(answered, batch)),
                410 => (Verdict::Gone, Vec::new()),
                status => {
                    let error = format!("the receiver answered {status}");
                    (Verdict::Failed, all_failed(batch, &error, answered.retry_after))
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

/// All events of a batch that could not be sent, or were not taken.
pub fn all_failed(batch: &[Sending], error: &str, delay: Option<Duration>) -> Vec<Outcome> {
    batch.iter().map(|_| Outcome::Retry { delay, error: error.to_owned() }).collect()
}

fn outcomes(answered: &Answered, batch: &[Sending]) -> Vec<Outcome> {
    // Most receivers say nothing, or something that is none of our business.
    let partial: Partial = match answered.cut {
        true => Partial::default(),
        false => serde_json::from_slice(&answered.body).unwrap_or_default(),
    };
    let failed: HashMap<EventId, &FailedEvent> =
        partial.failed.iter().filter_map(|one| Some((EventId(one.id.parse().ok()?), one))).collect();
    let outcome = |sending: &Sending| match failed.get(&sending.event.id) {
        None => Outcome::Done,
        Some(one) => Outcome::Retry {
            delay: one.delay_ms.map(|delay| Duration::from_millis(delay).min(LONGEST_DELAY)),
            error: one.error.clone().unwrap_or_else(|| "the receiver did not take it".to_owned()),
        },
    };
    batch.iter().map(outcome).collect()
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
