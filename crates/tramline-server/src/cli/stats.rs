//! `tramline stats`: how much there is to do, once or again and again.

use super::Cx;
use super::failure::Failure;
use super::list::{SUBSCRIPTION, all};
use super::value;
use std::time::Duration;

pub(crate) const EXAMPLES: &str = "\
  tramline stats
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
    if cx.print.json() {
        return cx.print.text(&cx.client.get(&["v1", "stats"], &[]).await?.to_string());
    }
    let subscriptions = all(cx, &["v1", "subscriptions"]).await?;
    if watch && cx.print.terminal() {
        cx.print.text(CLEAR)?;
    }
    cx.print.items(&subscriptions, SUBSCRIPTION)
}
