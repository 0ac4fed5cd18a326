//! Where log lines go: to standard error, for people or as JSON. And where spans go.

use crate::bench::QueryCounter;
use crate::cli::wants_colours;
use crate::config::LogFormat;
use crate::traces::Tracing;
use std::io::IsTerminal;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::prelude::*;

/// Says at its own levels what is said here once, where it is handled.
const QUIET: &str = "async_nats=off";

/// Starts logging, and tracing if there is somebody to send traces to. `RUST_LOG` comes before what is asked for.
pub(crate) fn start(level: &str, format: LogFormat, queries: &QueryCounter, tracing: Option<&Tracing>) {
    let filter = EnvFilter::try_from_default_env()
        .or_else(|_| EnvFilter::try_new(format!("{QUIET},{level}")))
        .unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal() && wants_colours())
        .with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    // A layer that is not there, and has no filter, would have every span made for nobody.
    let spans = if tracing.is_some() { LevelFilter::DEBUG } else { LevelFilter::OFF };
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(queries.clone().with_filter(queries.clone()))
        .with(tracing.map(Tracing::layer).with_filter(spans))
        .init();
}
