//! The spans of an event's way: `emit`, `handle` or `push`, `settle`. Their attributes follow the conventions of OpenTelemetry for messaging,
//! and begin with `tramline.` where those have no word. Never payloads, keys, headers, error texts or URLs.

use super::{TARGET, Traces};
use crate::engine::context::Context;
use crate::error::Result;
use crate::model::event::{Event, Headers, StoredEvent};
use crate::model::health::{Attempt, Verdict};
use crate::model::id::EventId;
use crate::model::outcome::Outcome;
use crate::model::rule::RuleKind;
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use crate::model::trace::{TRACEPARENT, context_of, is_sampled, put, trace_id};
use crate::push::Sending;
use crate::store::verbs::Emission;
use std::collections::HashMap;
use std::time::Duration;
use tracing::Span;
use tracing::field::{Empty, display};

/// How many contexts a span of many events is linked with at most.
const MOST_LINKS: usize = 64;

/// The rule that stopped a subscription when it was last asked for work, and when that was. What was emitted before had to wait for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopped {
    pub(crate) rule: RuleKind,
    pub(crate) at: Time,
}

impl Stopped {
    fn of(stopped: Option<Stopped>, event: &StoredEvent) -> Option<&'static str> {
        stopped.filter(|stopped| event.emitted_at <= stopped.at).map(|stopped| stopped.rule.as_str())
    }
}

/// What is left of a span that has ended: its context, for what follows from it.
#[derive(Clone, Debug)]
pub(crate) struct Trail(Headers);

/// The context of the caller's span; empty if it has none.
pub(crate) fn current(traces: &dyn Traces) -> Headers {
    let mut context = Headers::new();
    traces.inject(&Span::current(), &mut context);
    context
}

/// The span of an emit. Its context, or that of the caller's span, goes into the events.
pub(crate) fn emit(traces: &dyn Traces, events: &mut [Event]) -> Span {
    let topic = events.first().map_or("", |event| &event.topic);
    let span = tracing::debug_span!(
        target: TARGET,
        "emit",
        otel.name = format!("emit {topic}"),
        otel.kind = "producer",
        otel.status_code = Empty,
        messaging.system = "tramline",
        messaging.operation.name = "emit",
        messaging.operation.type = "send",
        messaging.destination.name = topic,
        messaging.batch.message_count = events.len(),
        messaging.message.id = Empty,
    );
    let mut context = current(traces);
    if !span.is_disabled() {
        let first = events.iter().find(|event| event.headers.contains_key(TRACEPARENT));
        if let (true, Some(first)) = (context.is_empty(), first) {
            traces.adopt(&span, &first.headers);
        }
        context.clear();
        traces.inject(&span, &mut context);
    }
    if !context.is_empty() {
        events.iter_mut().for_each(|event| put(&context, event));
    }
    span
}

/// What became of an emit.
pub(crate) fn emitted(span: &Span, result: &Result<Emission>) {
    match result {
        Ok(emission) if emission.events.len() == 1 => {
            span.record("messaging.message.id", display(emission.events[0].id));
        }
        Ok(_) => {}
        Err(_) => failed(span),
    }
}

/// The span in which a handler runs.
pub(crate) fn handle(cx: &Context) -> Span {
    handle_batch(std::slice::from_ref(cx))
}

/// The span in which a handler runs that takes several events at once. It follows from the first one.
pub(crate) fn handle_batch(batch: &[Context]) -> Span {
    let Some(cx) = batch.first() else { return Span::none() };
    let (event, run) = (cx.event(), &cx.hand.run);
    let span = tracing::debug_span!(
        target: TARGET,
        parent: None,
        "handle",
        otel.name = format!("handle {}", event.topic),
        otel.kind = "consumer",
        otel.status_code = Empty,
        messaging.system = "tramline",
        messaging.operation.name = "handle",
        messaging.operation.type = "process",
        messaging.destination.name = &*event.topic,
        messaging.destination.subscription.name = cx.subscription(),
        messaging.batch.message_count = batch.len(),
        messaging.message.id = %event.id,
        tramline.attempt = cx.attempt(),
        tramline.queued_ms = millis(cx.queued()),
        tramline.stopped_by = Stopped::of(run.stopped(), event),
        tramline.outcome = Empty,
        tramline.delay_asked_ms = Empty,
    );
    if !span.is_disabled() {
        let traces = run.tram.traces();
        traces.adopt(&span, &event.headers);
        link(traces, &span, event, batch[1..].iter().map(Context::event));
    }
    span
}

/// What a handler said. Of several events, the first one's word that is not done.
pub(crate) fn handled<'a>(span: &Span, outcomes: impl IntoIterator<Item = &'a Outcome>) {
    if span.is_disabled() {
        return;
    }
    let outcome = outcomes.into_iter().find(|outcome| !outcome.is_done()).unwrap_or(&Outcome::Done);
    span.record("tramline.outcome", outcome.as_str());
    if let Some(asked) = outcome.delay() {
        span.record("tramline.delay_asked_ms", millis(asked));
    }
    if matches!(outcome, Outcome::Retry { .. } | Outcome::Dead { .. }) {
        failed(span);
    }
}

/// What the settlement of an event follows from: the span in which it was handled, or its own context if that is of another trace.
/// `None` if nobody records it.
pub(crate) fn trail(traces: &dyn Traces, span: &Span, event: &StoredEvent) -> Option<Trail> {
    if span.is_disabled() {
        return None;
    }
    let mut context = Headers::new();
    traces.inject(span, &mut context);
    let trace = |headers: &Headers| headers.get(TRACEPARENT).and_then(|it| trace_id(it)).map(str::to_owned);
    let own = trace(&event.headers);
    if own.is_some() && own != trace(&context) {
        context = context_of(&event.headers);
    }
    is_sampled(&context).then_some(Trail(context))
}

/// The span of a request to a receiver, and the context that the request carries: that of the span, or where there is none, the one that
/// all its events have.
pub(crate) fn push(
    traces: &dyn Traces,
    subscription: &str,
    batch: &[Sending],
    stopped: Option<Stopped>,
) -> (Span, Headers) {
    let Some(Sending { event, attempt, .. }) = batch.first() else { return (Span::none(), Headers::new()) };
    let span = tracing::debug_span!(
        target: TARGET,
        parent: None,
        "push",
        otel.name = format!("push {}", event.topic),
        otel.kind = "client",
        otel.status_code = Empty,
        messaging.system = "tramline",
        messaging.operation.name = "push",
        messaging.operation.type = "process",
        messaging.destination.name = &*event.topic,
        messaging.destination.subscription.name = subscription,
        messaging.batch.message_count = batch.len(),
        messaging.message.id = %event.id,
        http.request.method = "POST",
        http.response.status_code = Empty,
        tramline.attempt = attempt,
        tramline.stopped_by = Stopped::of(stopped, event),
        tramline.queued_ms = Empty,
        tramline.outcome = Empty,
        tramline.acknowledged = Empty,
        tramline.delay_asked_ms = Empty,
    );
    let mut context = Headers::new();
    if !span.is_disabled() {
        traces.adopt(&span, &event.headers);
        link(traces, &span, event, batch[1..].iter().map(|sending| &sending.event));
        traces.inject(&span, &mut context);
    }
    let own = event.headers.get(TRACEPARENT);
    if context.is_empty() && batch.iter().all(|sending| sending.event.headers.get(TRACEPARENT) == own) {
        context = context_of(&event.headers);
    }
    (span, context)
}

/// What became of a request.
pub(crate) fn pushed(span: &Span, batch: &[Sending], attempt: &Attempt) {
    if span.is_disabled() {
        return;
    }
    let queued = batch.first().map(|sending| attempt.at.since(sending.event.emitted_at));
    span.record("tramline.queued_ms", millis(queued.unwrap_or_default()));
    span.record("tramline.acknowledged", attempt.acknowledged);
    span.record("tramline.outcome", attempt.verdict.as_str());
    if let Some(status) = attempt.status {
        span.record("http.response.status_code", status);
    }
    if let Some(asked) = attempt.retry_after {
        span.record("tramline.delay_asked_ms", millis(asked));
    }
    if attempt.verdict != Verdict::Delivered {
        failed(span);
    }
}

/// An event with its outcome, on its way to the store.
pub(crate) struct Ended<'a> {
    pub(crate) event: &'a StoredEvent,
    /// Which try this was, from 1.
    pub(crate) attempt: u32,
    pub(crate) outcome: &'a Outcome,
}

/// The spans of events whose outcomes are being written back: one each, because each belongs to a trace of its own. They end when
/// this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Settling(HashMap<EventId, Span>);

impl Settling {
    /// Those of another batch are written back together with these.
    pub(crate) fn join(&mut self, others: Settling) {
        self.0.extend(others.0);
    }

    /// An event's outcome is on its way, as the end of its trail.
    pub(crate) fn begin(
        &mut self,
        traces: &dyn Traces,
        subscription: &Subscription,
        trail: Trail,
        Ended { event, attempt, outcome }: Ended<'_>,
    ) {
        let policy = &subscription.policy;
        let span = tracing::debug_span!(
            target: TARGET,
            parent: None,
            "settle",
            otel.name = format!("settle {}", event.topic),
            otel.kind = "client",
            otel.status_code = Empty,
            messaging.system = "tramline",
            messaging.operation.name = "settle",
            messaging.operation.type = "settle",
            messaging.destination.name = &*event.topic,
            messaging.destination.subscription.name = &*subscription.name,
            messaging.message.id = %event.id,
            tramline.attempt = attempt,
            tramline.outcome = outcome.as_str(),
            tramline.delay_asked_ms = outcome.delay().map(millis),
            tramline.delay_given_ms = policy.wait_after(outcome, attempt, event.id).map(millis),
            tramline.lease_lost = Empty,
        );
        traces.adopt(&span, &trail.0);
        self.0.insert(event.id, span);
    }

    /// The lease on these events was lost: their outcomes count for nothing.
    pub(crate) fn lost(&self, events: &[EventId]) {
        for span in events.iter().filter_map(|id| self.0.get(id)) {
            span.record("tramline.lease_lost", true);
            failed(span);
        }
    }
}

fn link<'a>(
    traces: &dyn Traces,
    span: &Span,
    first: &StoredEvent,
    others: impl Iterator<Item = &'a StoredEvent>,
) {
    let known = first.headers.get(TRACEPARENT);
    let foreign = others.filter(|event| event.headers.get(TRACEPARENT).is_some_and(|it| Some(it) != known));
    foreign.take(MOST_LINKS).for_each(|event| traces.link(span, &event.headers));
}

fn failed(span: &Span) {
    span.record("otel.status_code", "ERROR");
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
