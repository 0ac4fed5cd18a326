//! `tramline tally watch`: the progress of a tally, until it ends.

use crate::cli::Cx;
use crate::cli::failure::{Exit, Failure};
use crate::cli::outage::Outage;
use crate::cli::value;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::io::IsTerminal;
use std::time::Duration;

pub(super) const EXIT_CODES: &str = "\
Examples:
  tramline tally watch 7 && ./publish-import

Exit codes: 0 complete and no item failed, 5 complete but items failed, 6 cancelled, 7 expired; 1 refused or failed, 2 wrong usage, 3 the
server cannot be reached, 4 not found";

/// What to watch.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The tally
    #[arg(value_parser = value::tally)]
    tally: String,
    /// How often to look
    #[arg(long, default_value = "500ms", value_parser = value::duration, value_name = "DURATION")]
    every: Duration,
}

/// Watches until it ends; the exit code says how.
pub(super) async fn run(cx: Cx, args: Args) -> Result<(), Failure> {
    let bar = progress();
    let mut shown = Value::Null;
    let mut outage = Outage::default();
    loop {
        let tally = match look(&cx, &args).await {
            Ok(tally) => tally,
            Err(failure) => {
                outage.wait(failure).await?;
                continue;
            }
        };
        outage.over();
        draw(&bar, &tally);
        if cx.print.json() && tally != shown {
            cx.print.text(&tally.to_string())?;
            shown = tally.clone();
        }
        if !under_way(&tally) {
            bar.finish_and_clear();
            return end(&cx, &tally);
        }
    }
}

/// The server answers when it has ended, or after a moment.
async fn look(cx: &Cx, args: &Args) -> Result<Value, Failure> {
    let wait = value::millis(args.every).max(1).to_string();
    cx.client.get(&["v1", "tallies", &args.tally], &[("wait_ms", wait)]).await
}

fn under_way(tally: &Value) -> bool {
    tally["state"] == "open" || tally["state"] == "sealed"
}

/// Shown only to a person.
fn progress() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = "{bar:40} {human_pos} of {human_len}, {per_sec}, {eta} left{msg}";
    let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

fn draw(bar: &ProgressBar, tally: &Value) {
    let count = |name: &str| tally[name].as_u64().unwrap_or(0);
    bar.set_length(count("total"));
    bar.set_position(count("done") + count("failed"));
    let failed = if count("failed") > 0 { format!(", {} failed", count("failed")) } else { String::new() };
    bar.set_message(if tally["sealed"] == true { failed } else { format!("{failed}, not sealed yet") });
}

fn end(cx: &Cx, tally: &Value) -> Result<(), Failure> {
    let outcome = outcome(tally);
    if outcome.is_ok() && !cx.print.json() {
        cx.print.text(&super::standing(tally))?;
    }
    outcome
}

fn outcome(tally: &Value) -> Result<(), Failure> {
    let count = |name: &str| tally[name].as_u64().unwrap_or(0);
    match tally["state"].as_str() {
        Some("complete") if count("failed") == 0 => Ok(()),
        Some("complete") => {
            let (failed, total) = (count("failed"), count("total"));
            Err(Failure::new(Exit::ItemsFailed, format!("complete, but {failed} of {total} items failed")))
        }
        Some("cancelled") => Err(Failure::new(Exit::Cancelled, "the tally was cancelled")),
        Some("expired") => Err(Failure::new(
            Exit::Expired,
            format!("the tally has expired with {} items pending", count("pending")),
        )),
        _ => Err(Failure::new(Exit::Failed, "the server told a state that is not known")
            .remedy("use the same version of tramline as the server")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_exit_code_says_how_it_ended() {
        let exit = |state: &str, failed: u64| {
            outcome(&json!({"state": state, "failed": failed, "total": 3})).err().map(|failure| failure.exit)
        };
        assert_eq!(exit("complete", 0), None);
        assert_eq!(exit("complete", 1), Some(Exit::ItemsFailed));
        assert_eq!(exit("cancelled", 0), Some(Exit::Cancelled));
        assert_eq!(exit("expired", 0), Some(Exit::Expired));
    }
}
