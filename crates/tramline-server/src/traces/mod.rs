//! Traces over OTLP: the spans of the library go to a collector, in the background.
//!
//! - `exporter`: says once when the collector is gone, and once when it is back
//! - `request`: the span of a request that belongs to a trace; `settling`: those of outcomes over HTTP

mod exporter;
pub(crate) mod request;
pub(crate) mod settling;

use crate::bench::BoxError;
use exporter::Watched;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, SpanLimits,
};
use std::time::Duration;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;
use tramline::engine::trace::TARGET;

/// How many spans wait for the collector at most; more are dropped, and nobody waits.
const QUEUE: usize = 8_192;
/// How many go in one request.
const BATCH: usize = 1_024;
/// How long spans wait for company.
const EVERY: Duration = Duration::from_secs(1);
/// How long a request to the collector may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the last spans may take when the server stops.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Sends spans until it is stopped.
pub(crate) struct Tracing(SdkTracerProvider);

impl Tracing {
    /// Starts if there is a collector to send to; `sample` is the share of the traces that begin here which is recorded.
    pub(crate) fn start(endpoint: Option<&str>, sample: f64) -> Result<Option<Tracing>, BoxError> {
        let Some(endpoint) = endpoint else { return Ok(None) };
        let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        tramline::tls::prepare();
        let exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(url)
            .with_timeout(PATIENCE)
            .build()
            .map_err(|error| format!("otlp_endpoint is wrong: {error}"))?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(EVERY)
            .build();
        // A thread of its own: the collector cannot keep the work waiting.
        let processor =
            BatchSpanProcessor::builder(Watched::new(exporter)).with_batch_config(batches).build();
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(sample))))
            .with_span_limits(SpanLimits { max_attributes_per_span: 32, ..SpanLimits::default() })
            .with_resource(resource())
            .with_span_processor(processor)
            .build();
        Ok(Some(Tracing(provider)))
    }

    /// What takes the spans. Only those of Tramline: what the exporter does itself is not traced.
    pub(crate) fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        let layer = tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("tramline"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false);
        layer.with_filter(Targets::new().with_target(TARGET, LevelFilter::DEBUG))
    }

    /// Sends what is left, and does not wait long for it.
    pub(crate) async fn stop(self) {
        // It waits for its thread, which this one must not do.
        let _ = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(LAST_WORDS)).await;
    }
}

/// Who sends: `tramline`, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` say otherwise.
fn resource() -> Resource {
    let named = std::env::var_os("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty())
        || std::env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|all| all.contains("service.name="));
    let resource =
        Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if named { resource.build() } else { resource.with_service_name("tramline").build() }
}
