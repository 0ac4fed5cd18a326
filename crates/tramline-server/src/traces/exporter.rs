//! An exporter that is listened to: one log line when the collector is gone, and one when it is back.

use opentelemetry_otlp::SpanExporter as Otlp;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Sends spans, and counts those that are lost. They are not sent again: what comes is more interesting than what was.
#[derive(Debug)]
pub(super) struct Watched {
    to: Otlp,
    /// Since the collector was last heard.
    lost: AtomicU64,
}

impl Watched {
    pub(super) fn new(to: Otlp) -> Watched {
        Watched { to, lost: AtomicU64::new(0) }
    }
}

impl SpanExporter for Watched {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len() as u64;
        let result = self.to.export(batch).await;
        match &result {
            Ok(()) => {
                let lost = self.lost.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    tracing::info!(lost, "the collector of traces answers again");
                }
            }
            Err(error) => {
                if self.lost.fetch_add(spans, Ordering::Relaxed) == 0 {
                    tracing::warn!(error = %error, "the collector of traces does not answer; spans are lost until it does");
                }
            }
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.to.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.to.set_resource(resource);
    }
}
