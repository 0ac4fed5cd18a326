//! One request to a receiver.

use super::Shared;
use super::batch::Batch;
use super::standing::Standing;
use crate::engine::trace::{self, Ended, Settling, Stopped, Traces};
use crate::model::event::Headers;
use crate::model::health::{Attempt, Verdict, excerpt};
use crate::model::id::EventId;
use crate::model::time::Time;
use crate::push::{Answer, Judged, Request, Sending, all_failed, judge, sign, write};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;
use tracing::{Instrument, Span};

/// How a receiver is asked whether it wants events, after the specification of CloudEvents webhooks.
const ORIGIN: HeaderName = HeaderName::from_static("webhook-request-origin");
const ALLOWED: HeaderName = HeaderName::from_static("webhook-allowed-origin");
/// Who asks.
const NAME: &str = "tramline";

/// What came of a batch.
pub(super) struct Came {
    pub(super) judged: Judged,
    pub(super) attempt: Attempt,
    /// That its outcomes are being written back is seen until these are dropped.
    pub(super) spans: Settling,
}

/// Sends a batch, and says what came of it.
pub(super) async fn send(
    shared: &Shared,
    standing: &Standing,
    batch: &Batch,
    stopped: Option<Stopped>,
) -> Came {
    let at = standing.time(shared.tram.clock());
    let traces = shared.tram.traces();
    let (span, context) = trace::push(traces, &standing.subscription.name, &batch.events, stopped);
    let (judged, latency) = match request(standing, batch, at, &context) {
        Ok(request) => {
            let answer = shared.client.post(request).instrument(span.clone()).await;
            (judge(&answer, standing.push.format, &batch.events), answer.latency)
        }
        Err(error) => (impossible(&error, batch), Duration::ZERO),
    };
    let acknowledged = judged.outcomes.iter().filter(|outcome| outcome.is_done()).count() as u32;
    let attempt = Attempt {
        at,
        first: batch.first(),
        last: batch.last(),
        events: batch.events.len() as u32,
        acknowledged,
        verdict: judged.verdict,
        status: judged.status,
        latency,
        excerpt: judged.excerpt.clone(),
        retry_after: judged.retry_after,
    };
    trace::pushed(&span, &batch.events, &attempt);
    let spans = settling(traces, standing, batch, &judged, &span);
    Came { judged, attempt, spans }
}

fn settling(
    traces: &dyn Traces,
    standing: &Standing,
    batch: &Batch,
    judged: &Judged,
    span: &Span,
) -> Settling {
    let mut settling = Settling::default();
    for (Sending { event, attempt, .. }, outcome) in batch.events.iter().zip(&judged.outcomes) {
        if let Some(trail) = trace::trail(traces, span, event) {
            let ended = Ended { event, attempt: *attempt, outcome };
            settling.begin(traces, &standing.subscription, trail, ended);
        }
    }
    settling
}

/// What cannot even be sent counts like what was not taken: somebody has to see to it.
fn impossible(error: &str, batch: &Batch) -> Judged {
    Judged {
        verdict: Verdict::Failed,
        outcomes: all_failed(&batch.events, error),
        status: None,
        retry_after: None,
        excerpt: excerpt(error),
    }
}

fn request(standing: &Standing, batch: &Batch, at: Time, context: &Headers) -> Result<Request, String> {
    let (push, id) = (&standing.push, batch.id(standing.subscription.id));
    let target = standing.target.as_ref().as_ref().map_err(|error| error.text().to_owned())?;
    let written = write(push.format, &standing.subscription.name, &id, &batch.events);
    let mut headers = target.headers.clone();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(written.content_type));
    for (name, value) in context {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            headers.insert(name, value);
        }
    }
    if !target.secrets.is_empty() {
        headers.extend(sign(&target.secrets, &id, at, &written.body).map_err(|error| error.to_string())?);
    }
    Ok(Request { url: target.url.clone(), headers, body: written.body, timeout: push.request_timeout })
}

/// Asks a receiver whether it wants events. `Err`: it does not, or did not answer.
pub(super) async fn ask(shared: &Shared, standing: &Standing) -> Result<(), Box<Attempt>> {
    let at = standing.time(shared.tram.clock());
    let refused = |status: Option<u16>, latency: Duration, text: &str| {
        Box::new(Attempt {
            at,
            first: EventId(0),
            last: EventId(0),
            events: 0,
            acknowledged: 0,
            verdict: Verdict::Failed,
            status,
            latency,
            excerpt: excerpt(text),
            retry_after: None,
        })
    };
    let request = question(standing).map_err(|error| refused(None, Duration::ZERO, &error))?;
    let Answer { latency, result } = shared.client.options(request).await;
    match result {
        Ok(answered) if agrees(answered.status, &answered.headers) => Ok(()),
        Ok(answered) => {
            let text = format!("the receiver did not agree: {ALLOWED} must be {NAME} or *");
            Err(refused(Some(answered.status), latency, &text))
        }
        Err(failed) => Err(refused(None, latency, &failed.text)),
    }
}

fn question(standing: &Standing) -> Result<Request, String> {
    let target = standing.target.as_ref().as_ref().map_err(|error| error.text().to_owned())?;
    let mut headers = target.headers.clone();
    headers.insert(ORIGIN, HeaderValue::from_static(NAME));
    let timeout = standing.push.request_timeout;
    Ok(Request { url: target.url.clone(), headers, body: Bytes::new(), timeout })
}

fn agrees(status: u16, headers: &HeaderMap) -> bool {
    let origin = headers.get(ALLOWED).and_then(|value| value.to_str().ok());
    (200..300).contains(&status)
        && origin.is_some_and(|origin| origin == "*" || origin.eq_ignore_ascii_case(NAME))
}
