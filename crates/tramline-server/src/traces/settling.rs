//! Outcomes that belong to the traces of their events.

use std::fmt::Display;
use tracing::Span;
use tracing::field::Empty;
use tramline::Tramline;
use tramline::engine::trace::{TARGET, context};

/// An outcome that a worker writes back, and the context in which it was made.
pub(crate) struct Ended<'a, I> {
    pub(crate) id: I,
    pub(crate) outcome: &'static str,
    pub(crate) traceparent: Option<&'a str>,
}

/// The spans of outcomes that are being written back, one each, because each belongs to a trace of its own. They end when this is dropped.
/// An outcome without a context has none.
pub(crate) struct Settling(Vec<Span>);

impl Settling {
    pub(crate) fn begin<'a, I: Display>(
        tram: &Tramline,
        subscription: &str,
        all: impl Iterator<Item = Ended<'a, I>>,
    ) -> Settling {
        Settling(all.map(|ended| span(tram, subscription, &ended)).collect())
    }

    /// Which of the outcomes count.
    pub(crate) fn ended(self, accepted: &[bool]) {
        for (span, _) in self.0.iter().zip(accepted).filter(|(_, accepted)| !**accepted) {
            span.record("tramline.lease_lost", true);
            span.record("otel.status_code", "ERROR");
        }
    }
}

/// As the library names and describes the settlements of its own workers, but for the topic, which nobody has said.
fn span<I: Display>(tram: &Tramline, subscription: &str, ended: &Ended<'_, I>) -> Span {
    let context = ended.traceparent.map(|parent| context(parent, None)).unwrap_or_default();
    if context.is_empty() {
        return Span::none();
    }
    let span = tracing::debug_span!(
        target: TARGET,
        parent: None,
        "settle",
        otel.name = format!("settle {subscription}"),
        otel.kind = "server",
        otel.status_code = Empty,
        messaging.system = "tramline",
        messaging.operation.name = "settle",
        messaging.operation.type = "settle",
        messaging.destination.subscription.name = subscription,
        messaging.message.id = %ended.id,
        tramline.outcome = ended.outcome,
        tramline.lease_lost = Empty,
    );
    tram.traces().adopt(&span, &context);
    span
}
