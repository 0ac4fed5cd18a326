//! Figures of push for the page of metrics.

use crate::http::app::App;
use crate::http::problem::Answer;
use std::collections::HashSet;
use std::fmt::Write;
use std::sync::Arc;
use tramline::Health;

/// A figure: its name, what it is, and how it is read.
type Figure = (&'static str, &'static str, &'static str, fn(&Health) -> u64);

/// What is known of each subscription, from all nodes together.
const FIGURES: &[Figure] = &[
    ("push_events_sent_total", "Pushed events that were acknowledged", "counter", |it| it.sent),
    ("push_batches_sent_total", "Batches that were acknowledged", "counter", |it| it.batches),
    ("push_requests_failed_total", "Requests that failed", "counter", |it| it.failed),
    ("push_health_points", "100 is best, 0 worst", "gauge", |it| u64::from(it.points)),
    ("push_disabled", "1 if nothing is sent until somebody enables it", "gauge", |it| {
        u64::from(it.disabled.is_some())
    }),
];

/// The figures of those push subscriptions that the caller may see.
pub(crate) async fn metrics(app: &App, visible: &HashSet<Arc<str>>) -> Answer<String> {
    let mut board = app.ask(app.tram.push_board()).await?;
    board.retain(|entry| visible.contains(&entry.subscription.name));
    let mut text = String::new();
    for (name, about, kind, read) in FIGURES {
        let _ = writeln!(text, "# HELP tramline_{name} {about}.\n# TYPE tramline_{name} {kind}");
        for entry in &board {
            let (subscription, value) = (&entry.subscription.name, read(&entry.health));
            let _ = writeln!(text, "tramline_{name}{{subscription=\"{subscription}\"}} {value}");
        }
    }
    Ok(text)
}
