//! Traces: the way of an event as spans, joined by the trace context that travels in its headers.
//!
//! Tramline makes spans with `tracing`, and reads and writes `traceparent` and `tracestate` (W3C Trace Context). Which tracer the spans
//! end up in is for the program to say: it installs a subscriber, and gives [`Options::traces`](crate::Options::traces) what
//! connects spans with contexts. With the feature `otel` that is [`OtelTraces`].
//!
//! - `spans`: what is a span, and what it says
//! - `otel`: contexts of OpenTelemetry

#[cfg(feature = "otel")]
mod otel;
mod spans;

pub use crate::model::trace::{TRACEPARENT, TRACESTATE, context};
#[cfg(feature = "otel")]
pub use otel::OtelTraces;
pub(crate) use spans::{
    Ended, Settling, Stopped, Trail, current, emit, emitted, handle, handle_batch, handled, push, pushed,
    trail,
};

use crate::model::event::Headers;
use tracing::Span;

/// The target of all spans, by which a subscriber can choose them. Their level is `DEBUG`, so that a program which only logs does not
/// pay for them.
pub const TARGET: &str = "tramline::trace";

/// Connects spans with the trace contexts in headers.
pub trait Traces: Send + Sync + std::fmt::Debug {
    /// Writes the context of a span into headers. Leaves them alone if the span belongs to no trace.
    fn inject(&self, span: &Span, headers: &mut Headers);
    /// Makes a span follow from the context in headers, if there is one. Called before the span is entered.
    fn adopt(&self, span: &Span, headers: &Headers);
    /// Says that a span also has to do with the context in headers.
    fn link(&self, span: &Span, headers: &Headers);
}

/// Connects nothing: the contexts that events bring are carried on as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTraces;

impl Traces for NoTraces {
    fn inject(&self, _span: &Span, _headers: &mut Headers) {}
    fn adopt(&self, _span: &Span, _headers: &Headers) {}
    fn link(&self, _span: &Span, _headers: &Headers) {}
}
