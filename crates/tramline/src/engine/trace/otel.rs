//! Contexts of OpenTelemetry, for programs with the layer of `tracing-opentelemetry`.

use super::{TRACEPARENT, TRACESTATE, Traces};
use crate::model::event::Headers;
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Connects spans with contexts of OpenTelemetry, in the format of the W3C. Where the layer of `tracing-opentelemetry` is not installed it
/// does nothing.
#[derive(Debug, Default)]
pub struct OtelTraces(TraceContextPropagator);

impl OtelTraces {
    /// One without settings.
    pub fn new() -> OtelTraces {
        OtelTraces::default()
    }

    fn read(&self, headers: &Headers) -> Context {
        // On its own: what happens to be the context of this thread is nobody's parent here.
        self.0.extract_with_context(&Context::new(), &Carrier(headers))
    }
}

impl Traces for OtelTraces {
    fn inject(&self, span: &Span, headers: &mut Headers) {
        if !span.is_disabled() {
            self.0.inject_context(&span.context(), &mut CarrierMut(headers));
        }
        // The propagator writes an empty one where there is none.
        headers.retain(|name, value| name != TRACESTATE || !value.is_empty());
    }

    fn adopt(&self, span: &Span, headers: &Headers) {
        if headers.contains_key(TRACEPARENT) {
            // It fails where there is no layer, and then there is nothing to be done.
            let _ = span.set_parent(self.read(headers));
        }
    }

    fn link(&self, span: &Span, headers: &Headers) {
        span.add_link(self.read(headers).span().span_context().clone());
    }
}

struct Carrier<'a>(&'a Headers);

impl Extractor for Carrier<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

struct CarrierMut<'a>(&'a mut Headers);

impl Injector for CarrierMut<'_> {
    fn set(&mut self, key: &str, value: String) {
        self.0.insert(key.to_owned(), value);
    }
}
