//! Traces: the program's own spans, the emit, the handler and the settlement as one trace of OpenTelemetry.
//!
//! `cargo run -p tramline --features otel --example traces`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use std::sync::Arc;
use tracing::Instrument;
use tracing_subscriber::prelude::*;
use tramline::{Event, Options, OtelTraces, Tramline};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // In a real program: opentelemetry_otlp::SpanExporter, and `with_batch_exporter`.
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("shop"));
    tracing_subscriber::registry().with(layer).init();

    let tram = Tramline::with(Options::new("sqlite::memory:").traces(Arc::new(OtelTraces::new()))).await?;
    let worker = tram.worker("emails").topics(["orders"]).on("order.paid", || async {
        tracing::info!("an event on the handler's span");
    });
    worker.subscribe().await?;

    // The emit is a child of whatever span it happens in; the handler follows from it, in any process.
    let request = tracing::info_span!("POST /orders");
    tram.emit(Event::new("orders", "42").kind("order.paid")).instrument(request).await?;
    worker.drain().await?;

    provider.force_flush()?;
    for span in exporter.get_finished_spans()? {
        let context = &span.span_context;
        println!("{} {} <- {} {}", context.trace_id(), context.span_id(), span.parent_span_id, span.name);
    }
    tram.close().await;
    Ok(())
}
