//! `tramline tally`: fan-outs that are tracked to completion.
//!
//! - [`open`], [`fill`]: opening, adding, sealing; [`ack`]: how items ended; [`look`]: one and many; [`watch`]: until the end
//! - [`items`]: numbers and ranges on the command line

mod ack;
mod fill;
mod items;
mod look;
mod open;
mod watch;

use super::Cx;
use super::failure::Failure;
use super::print::cell;
use serde_json::Value;

pub(crate) const EXAMPLES: &str = r#"  id=$(tramline tally open --user-key import-7 --on-complete imports)
  tramline tally add $id 1000                      # prints 0-999
  tramline tally seal $id --expected 1000
  tramline tally ack $id 0-499 500 501
  tramline tally fail $id 502
  tramline tally watch $id                         # its --help has more exit codes
  tramline tally list --state open,sealed
  tramline emit rows '{"row": 1}' --tally $id      # an item that ends when the event is settled"#;

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Open a tally and print its number
    Open(open::Args),
    /// Add items and print their numbers, as a range
    Add(fill::Add),
    /// Say that all items were added
    Seal(fill::Seal),
    /// Items are done
    Ack(ack::Args),
    /// Items have failed, and will never be done
    Fail(ack::Args),
    /// Count an estimated tally up, or down with a minus
    Count(fill::Count),
    /// Show a tally
    Get(look::Which),
    /// List tallies
    List(look::List),
    /// Show the progress of a tally until it ends
    #[command(after_help = watch::EXIT_CODES)]
    Watch(watch::Args),
    /// Give a tally up: it will never be complete
    Cancel(look::Which),
    /// Delete a tally, in whatever state
    Delete(look::Which),
}

/// `tramline tally`.
pub(super) async fn run(cx: Cx, args: Args) -> Result<(), Failure> {
    match args.verb {
        Verb::Open(args) => open::run(cx, args).await,
        Verb::Add(args) => fill::add(cx, args).await,
        Verb::Seal(args) => fill::seal(cx, args).await,
        Verb::Ack(args) => ack::run(cx, "ack", args).await,
        Verb::Fail(args) => ack::run(cx, "fail", args).await,
        Verb::Count(args) => fill::count(cx, args).await,
        Verb::Get(which) => look::get(cx, which).await,
        Verb::List(list) => look::list(cx, list).await,
        Verb::Watch(args) => watch::run(cx, args).await,
        Verb::Cancel(which) => look::cancel(cx, which).await,
        Verb::Delete(which) => look::delete(cx, which).await,
    }
}

/// How far a tally is, in a line.
fn standing(tally: &Value) -> String {
    let count = |name: &str| cell(&tally[name]);
    let mut line = format!("{}: {} of {} done", count("state"), count("done"), count("total"));
    if tally["failed"].as_u64().is_some_and(|failed| failed > 0) {
        line += &format!(", {} failed", count("failed"));
    }
    if tally["completed_now"] == true {
        line += ", by this call";
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_says_how_far_it_is() {
        let mut tally =
            json!({"state": "sealed", "done": 3, "total": 10, "failed": 0, "completed_now": false});
        assert_eq!(standing(&tally), "sealed: 3 of 10 done");
        tally["failed"] = json!(2);
        tally["completed_now"] = json!(true);
        assert_eq!(standing(&tally), "sealed: 3 of 10 done, 2 failed, by this call");
    }
}
