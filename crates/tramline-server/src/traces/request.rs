//! Requests that belong to a trace.

use axum::http::HeaderMap;
use tracing::Span;
use tracing::field::Empty;
use tramline::engine::trace::{TARGET, TRACEPARENT, TRACESTATE, context};
use tramline::{Headers, Tramline};

/// The trace context of a request; empty if it has none.
pub(crate) fn context_of(headers: &HeaderMap) -> Headers {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    text(TRACEPARENT).map(|parent| context(parent, text(TRACESTATE))).unwrap_or_default()
}

/// The span of a request, as the convention of OpenTelemetry for HTTP wants it. A request that belongs to no trace has none: its emits
/// begin their own.
pub(crate) fn span(tram: &Tramline, method: &str, route: &str, headers: &HeaderMap) -> Span {
    if !headers.contains_key(TRACEPARENT) {
        return Span::none();
    }
    let span = tracing::debug_span!(
        target: TARGET,
        parent: None,
        "request",
        otel.name = format!("{method} {route}"),
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method,
        http.route = route,
        http.response.status_code = Empty,
    );
    if !span.is_disabled() {
        tram.traces().adopt(&span, &context_of(headers));
    }
    span
}

/// How it was answered.
pub(crate) fn answered(span: &Span, status: u16) {
    span.record("http.response.status_code", status);
    if status >= 500 {
        span.record("otel.status_code", "ERROR");
    }
}
