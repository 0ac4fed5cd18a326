//! `tramline stats`: how much there is to do, once or again and again.

use super::Cx;
use super::failure::Failure;
use super::list::rules;
use super::print::{Column, cell};
use super::value;
use std::time::Duration;

pub(crate) const EXAMPLES: &str = "  tramline stats
  tramline stats --watch
  tramline stats --watch --every 10s --json >> counts.ndjson";

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Show it again and again, until interrupted
    #[arg(long)]
    watch: bool,
    /// How often
    #[arg(long, default_value = "2s", value_parser = value::duration, value_name = "DURATION")]
    every: Duration,
}

const SUBSCRIPTION: &[Column] = &[
    ("SUBSCRIPTION", |it| cell(&it["name"])),
    ("READY", |it| cell(&it["counts"]["ready"])),
    ("DELAYED", |it| cell(&it["counts"]["delayed"])),
    ("LEASED", |it| cell(&it["counts"]["leased"])),
    ("PARKED", |it| cell(&it["counts"]["parked"])),
    ("DEAD", |it| cell(&it["counts"]["dead"])),
    ("OLDEST READY", |it| cell(&it["oldest_ready_at"])),
    ("OLDEST DEAD", |it| cell(&it["oldest_dead_at"])),
    ("STOPPED BY", rules),
];

/// Clears the screen and goes to its beginning.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// `tramline stats`.
pub(super) async fn run(cx: Cx, args: Args) -> Result<(), Failure> {
    loop {
        show(&cx, args.watch).await?;
        if !args.watch {
            return Ok(());
        }
        tokio::time::sleep(args.every).await;
    }
}

async fn show(cx: &Cx, watch: bool) -> Result<(), Failure> {
    let stats = cx.client.get(&["v1", "stats"], &[]).await?;
    if cx.print.json() {
        return cx.print.text(&stats.to_string());
    }
    if watch && cx.print.terminal() {
        cx.print.text(CLEAR)?;
    }
    cx.print.items(stats["subscriptions"].as_array().map_or(&[], Vec::as_slice), SUBSCRIPTION)
}
