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

use super::failure::Failure;
use super::print::cell;
use super::{Cx, help};
use serde_json::Value;

pub(crate) const EXAMPLES: &str = r#"  tramline tally open --user-key import-7 --on-complete imports   # prints its number: 7
  tramline tally add 7 1000                        # prints 0-999
  tramline tally seal 7 --expected 1000
  tramline tally ack 7 0-499 500 501
  tramline tally fail 7 502
  tramline tally watch 7                           # its --help has more exit codes
  tramline tally list --state open,sealed
  tramline emit rows '{"row": 1}' --tally 7        # an item that ends when the event is settled"#;
const OPEN: &str = "  tramline tally open --user-key import-7 --on-complete imports
  tramline tally open --growing --expires 1h --idempotency-key import-7";
const ADD: &str = "  tramline tally add 7 1000\n  tramline tally add 7 10 --within 3";
const SEAL: &str = "  tramline tally seal 7\n  tramline tally seal 7 --expected 1000";
const ACK: &str = "  tramline tally ack 7 3\n  tramline tally ack 7 0-499 500 501";
const FAIL: &str = "  tramline tally fail 7 502";
const COUNT: &str = "  tramline tally count 8 1000\n  tramline tally count 8 -- -1";
const GET: &str = "  tramline tally get 7\n  tramline tally get 7 --json | jq .pending";
const LIST: &str = "  tramline tally list --state open,sealed\n  tramline tally list --user-key import-7";
const CANCEL: &str = "  tramline tally cancel 7";
const DELETE: &str = "  tramline tally delete 7";

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Open a tally and print its number
    #[command(after_help = help(OPEN))]
    Open(open::Args),
    /// Add items and print their numbers, as a range
    #[command(after_help = help(ADD))]
    Add(fill::Add),
    /// Say that all items were added
    #[command(after_help = help(SEAL))]
    Seal(fill::Seal),
    /// Items are done
    #[command(after_help = help(ACK))]
    Ack(ack::Args),
    /// Items have failed, and will never be done
    #[command(after_help = help(FAIL))]
    Fail(ack::Args),
    /// Count an estimated tally up, or down with a minus
    #[command(after_help = help(COUNT))]
    Count(fill::Count),
    /// Show a tally
    #[command(after_help = help(GET))]
    Get(look::Which),
    /// List tallies
    #[command(after_help = help(LIST))]
    List(look::List),
    /// Show the progress of a tally until it ends
    #[command(after_help = watch::EXIT_CODES)]
    Watch(watch::Args),
    /// Give a tally up: it will never be complete
    #[command(after_help = help(CANCEL))]
    Cancel(look::Which),
    /// Delete a tally, in whatever state
    #[command(after_help = help(DELETE))]
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
