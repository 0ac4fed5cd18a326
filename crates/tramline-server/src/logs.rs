//! Where log lines go: to standard error, for people or as JSON.

use crate::bench::QueryCounter;
use crate::config::LogFormat;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::prelude::*;

/// Starts logging. `RUST_LOG` comes before what is asked for.
pub(crate) fn start(level: &str, format: LogFormat, queries: &QueryCounter) {
    let filter = EnvFilter::try_from_default_env()
        .or_else(|_| EnvFilter::try_new(level))
        .unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(queries.clone().with_filter(queries.clone()))
        .init();
}
