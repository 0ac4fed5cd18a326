//! The way of an event as spans of one trace.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use opentelemetry::trace::{SpanId, SpanKind, Status, TraceId, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use std::sync::Arc;
use std::time::Duration;
use support::stores::{Fresh, Place};
use tokio::sync::Notify;
use tracing::Instrument;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::{self, Layer};
use tracing_subscriber::prelude::*;
use tramline::{Batch, Context, Event, Options, OtelTraces, Outcome, Retry, RuleKind, StoredEvent, Tramline};

const CONTEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const PLACES: [Place; 7] = [
    Place::SqliteMemory,
    Place::SqliteFile,
    Place::Postgres,
    Place::Mysql,
    Place::Redis,
    Place::RedisCluster,
    Place::RedisSpread,
];
const UNRECORDED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// A Tramline whose spans are kept, as long as the test runs on one thread.
struct Bed {
    tram: Tramline,
    provider: SdkTracerProvider,
    spans: InMemorySpanExporter,
    /// Rings when a worker says that a rule stops it.
    said: Arc<Notify>,
    _subscriber: DefaultGuard,
}

impl Bed {
    async fn new() -> Bed {
        Bed::on("sqlite::memory:").await
    }

    async fn on(url: &str) -> Bed {
        let spans = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let said = Arc::new(Notify::new());
        let subscriber = tracing_subscriber::registry().with(layer).with(Ear(said.clone())).set_default();
        let options = Options::new(url).traces(Arc::new(OtelTraces::new()));
        let tram = Tramline::with(options).await.unwrap();
        Bed { tram, provider, spans, said, _subscriber: subscriber }
    }

    /// The ended spans of a name, in the order of their beginning.
    fn spans(&self, name: &str) -> Vec<SpanData> {
        self.provider.force_flush().unwrap();
        let mut spans = self.spans.get_finished_spans().unwrap();
        spans.retain(|span| span.name == name);
        spans.sort_by_key(|span| span.start_time);
        spans
    }

    fn span(&self, name: &str) -> SpanData {
        let spans = self.spans(name);
        assert_eq!(spans.len(), 1, "{name}: {spans:?}");
        spans.into_iter().next().unwrap()
    }
}

/// Hears that a rule stops a worker.
struct Ear(Arc<Notify>);

impl<S: tracing::Subscriber> Layer<S> for Ear {
    fn on_event(&self, event: &tracing::Event<'_>, _: layer::Context<'_, S>) {
        if event.metadata().fields().field("rule").is_some() {
            self.0.notify_one();
        }
    }
}

fn id(span: &SpanData) -> (TraceId, SpanId) {
    (span.span_context.trace_id(), span.span_context.span_id())
}

fn parent(span: &SpanData) -> (TraceId, SpanId) {
    (span.span_context.trace_id(), span.parent_span_id)
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == name);
    found.map(|attribute| attribute.value.to_string())
}

#[tokio::test]
async fn an_emit_its_handler_and_its_settlement_are_one_trace_on_every_store() {
    // A thread without a subscriber would make `tracing` believe that nobody wants the spans of the other tests.
    let _bed = Bed::new().await;
    for place in PLACES {
        let fresh = Fresh::open(place).await;
        let bed = Bed::on(&fresh.url).await;
        walk(&bed).await;
        bed.tram.close().await;
        fresh.close().await;
    }
}

/// An event whose handler emits another one.
async fn walk(bed: &Bed) {
    let worker = bed.tram.worker("w").topics(["orders", "mails"]);
    let worker = worker.on("paid", |cx: Context| async move {
        cx.tramline().emit(Event::new("mails", "x").kind("sent")).await.map(|_| ())
    });
    let worker = worker.on("sent", || async {});
    worker.subscribe().await.unwrap();
    let event = Event::new("orders", "secret payload").kind("paid").key("secret key");
    let emitting = async { bed.tram.emit(event).await.unwrap() };
    let receipt = emitting.instrument(tracing::info_span!("request")).await;
    assert_eq!(worker.drain().await.unwrap(), 2);
    let (request, emit) = (bed.span("request"), bed.span("emit orders"));
    let (handle, settle) = (bed.span("handle orders"), bed.span("settle orders"));
    assert_eq!(parent(&emit), id(&request));
    assert_eq!(parent(&handle), id(&emit));
    assert_eq!(parent(&settle), id(&handle));
    let (next, its_handler) = (bed.span("emit mails"), bed.span("handle mails"));
    assert_eq!(parent(&next), id(&handle));
    assert_eq!(parent(&its_handler), id(&next));
    let kinds = [&emit, &handle, &settle].map(|span| span.span_kind.clone());
    assert_eq!(kinds, [SpanKind::Producer, SpanKind::Consumer, SpanKind::Client]);
    let number = receipt.id().to_string();
    for span in [&emit, &handle, &settle] {
        assert_eq!(attribute(span, "messaging.message.id"), Some(number.clone()));
        assert_eq!(attribute(span, "messaging.destination.name"), Some("orders".into()));
        assert_eq!(attribute(span, "messaging.system"), Some("tramline".into()));
        assert!(!format!("{span:?}").contains("secret"), "{span:?}");
    }
    for span in [&handle, &settle] {
        assert_eq!(attribute(span, "messaging.destination.subscription.name"), Some("w".into()));
        assert_eq!(attribute(span, "tramline.outcome"), Some("done".into()));
        assert_eq!(attribute(span, "tramline.attempt"), Some("1".into()));
    }
    assert!(attribute(&handle, "tramline.queued_ms").is_some());
}

#[tokio::test]
async fn a_context_that_an_event_brings_is_gone_on_with() {
    let bed = Bed::new().await;
    let worker = bed.tram.worker("w").topics(["t"]).on_any(|| async {});
    worker.subscribe().await.unwrap();
    let event = Event::new("t", "x").header("traceparent", CONTEXT).header("tracestate", "vendor=1");
    bed.tram.emit(event).await.unwrap();
    bed.tram.emit_later(Event::new("t", "x").header("traceparent", CONTEXT)).unwrap();
    bed.tram.flush().await;
    assert_eq!(worker.drain().await.unwrap(), 2);
    let emit = bed.span("emit t");
    assert_eq!(emit.span_context.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(emit.parent_span_id.to_string(), "00f067aa0ba902b7");
    let handled = bed.spans("handle t");
    assert_eq!(parent(&handled[0]), id(&emit));
    assert_eq!(handled[0].span_context.trace_state().header(), "vendor=1");
    assert_eq!(handled[1].parent_span_id.to_string(), "00f067aa0ba902b7");
}

#[tokio::test]
async fn a_buffered_event_follows_from_the_span_in_which_it_was_given() {
    let bed = Bed::new().await;
    let worker = bed.tram.worker("w").topics(["t"]).on_any(|| async {});
    worker.subscribe().await.unwrap();
    tracing::info_span!("request").in_scope(|| bed.tram.emit_later(Event::new("t", "x")).unwrap());
    bed.tram.flush().await;
    assert_eq!(worker.drain().await.unwrap(), 1);
    assert_eq!(parent(&bed.span("handle t")), id(&bed.span("request")));
}

#[tokio::test]
async fn spans_say_how_it_ended_what_delay_was_asked_for_and_which_was_given() {
    let bed = Bed::new().await;
    let hour = Duration::from_secs(3600);
    let retry = Retry::constant(3, hour);
    let worker = bed.tram.worker("w").topics(["t"]).retry(retry).on_any(|event: StoredEvent| async move {
        match &*event.kind {
            "asks" => Outcome::Retry { delay: Some(Duration::from_secs(7)), error: "secret".into() },
            "fails" => Outcome::retry("secret"),
            _ => Outcome::dead("secret"),
        }
    });
    worker.subscribe().await.unwrap();
    for kind in ["asks", "fails", "dies"] {
        bed.tram.emit(Event::new("t", "x").kind(kind)).await.unwrap();
    }
    assert_eq!(worker.drain().await.unwrap(), 3);
    let told = |span: &SpanData| {
        assert!(!format!("{span:?}").contains("secret"));
        ["outcome", "delay_asked_ms", "delay_given_ms"]
            .map(|name| attribute(span, &format!("tramline.{name}")))
    };
    let some = |text: &str| Some(text.to_owned());
    let mut settled: Vec<_> = bed.spans("settle t").iter().map(told).collect();
    settled.sort();
    let expected = [
        [some("dead"), None, None],
        [some("retry"), None, some("3600000")],
        [some("retry"), some("7000"), some("7000")],
    ];
    assert_eq!(settled, expected);
    assert!(bed.spans("handle t").iter().all(|span| matches!(span.status, Status::Error { .. })));
}

#[tokio::test]
async fn an_event_that_a_rule_stopped_says_which_one() {
    let bed = Bed::new().await;
    let worker = bed.tram.worker("w").topics(["t"]).on_any(|| async {});
    worker.subscribe().await.unwrap();
    bed.tram.emit(Event::new("t", "x")).await.unwrap();
    bed.tram.pause("w", "me", "no reason", None).await.unwrap();
    let goes_on = async {
        bed.said.notified().await;
        bed.tram.resume("w", "me", "").await.unwrap();
        while bed.spans("settle t").is_empty() {
            tokio::task::yield_now().await;
        }
    };
    worker.run_until(goes_on).await.unwrap();
    assert_eq!(
        attribute(&bed.span("handle t"), "tramline.stopped_by"),
        Some(RuleKind::Pause.as_str().into())
    );
}

#[tokio::test]
async fn a_batch_follows_from_its_first_event_and_is_linked_with_the_others() {
    let bed = Bed::new().await;
    let worker = bed.tram.worker("w").topics(["t"]).on_batch("", 10, |_: Batch| async {});
    worker.subscribe().await.unwrap();
    for _ in 0..3 {
        bed.tram.emit(Event::new("t", "x")).await.unwrap();
    }
    assert_eq!(worker.drain().await.unwrap(), 3);
    let (emits, handle) = (bed.spans("emit t"), bed.span("handle t"));
    assert_eq!(parent(&handle), id(&emits[0]));
    let linked: Vec<_> =
        handle.links.iter().map(|link| (link.span_context.trace_id(), link.span_context.span_id())).collect();
    assert_eq!(linked, [id(&emits[1]), id(&emits[2])]);
    let settled = bed.spans("settle t");
    let traces = |spans: &[SpanData]| {
        let mut traces: Vec<_> = spans.iter().map(|span| span.span_context.trace_id()).collect();
        traces.sort_by_key(|trace| trace.to_bytes());
        traces
    };
    assert_eq!(traces(&settled), traces(&emits));
}

#[tokio::test]
async fn what_nobody_records_makes_no_spans_and_is_still_carried_on() {
    let bed = Bed::new().await;
    let worker = bed.tram.worker("w").topics(["t"]).on_any(|event: StoredEvent| async move {
        assert!(event.headers["traceparent"].starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"));
        assert!(event.headers["traceparent"].ends_with("-00"));
    });
    worker.subscribe().await.unwrap();
    bed.tram.emit(Event::new("t", "x").header("traceparent", UNRECORDED)).await.unwrap();
    assert_eq!(worker.drain().await.unwrap(), 1);
    for name in ["emit t", "handle t", "settle t"] {
        assert!(bed.spans(name).is_empty());
    }
    assert!(bed.tram.dead("w", tramline::EventId(0), 1).await.unwrap().is_empty());
}

/// The header differs from span to span, and once counted as a part of the event: whoever repeated an emit was told that the key was
/// used for something else.
#[tokio::test]
async fn repeating_an_emit_in_another_span_gives_the_first_receipt() {
    let bed = Bed::new().await;
    let emit = || async { bed.tram.emit(Event::new("t", "x").idempotency_key("once")).await.unwrap() };
    let first = emit().instrument(tracing::info_span!("first")).await;
    let second = emit().instrument(tracing::info_span!("second")).await;
    assert!(second.repeated);
    assert_eq!(first.ids(), second.ids());
}

#[tokio::test]
async fn without_a_tracer_the_context_of_an_event_stays_as_it_is() {
    // A thread without a subscriber would make `tracing` believe that nobody wants the spans of the other tests.
    let _bed = Bed::new().await;
    let tram = Tramline::open("sqlite::memory:").await.unwrap();
    let worker = tram.worker("w").topics(["t"]).on_any(|event: StoredEvent| async move {
        if event.headers["traceparent"] == CONTEXT { Outcome::Done } else { Outcome::dead("changed") }
    });
    worker.subscribe().await.unwrap();
    tram.emit(Event::new("t", "x").header("traceparent", CONTEXT)).await.unwrap();
    assert_eq!(worker.drain().await.unwrap(), 1);
    assert!(tram.dead("w", tramline::EventId(0), 1).await.unwrap().is_empty());
}
