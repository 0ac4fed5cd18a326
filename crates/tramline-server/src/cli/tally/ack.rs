//! `tramline tally ack` and `fail`.

use super::{items, standing};
use crate::cli::Cx;
use crate::cli::failure::{Exit, Failure};
use crate::cli::value;
use serde_json::Value;

/// Items that ended.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The tally
    #[arg(value_parser = value::tally)]
    tally: String,
    /// Numbers, and ranges such as 10-19; `-` reads them from standard input
    #[arg(required = true, value_name = "ITEM")]
    items: Vec<String>,
}

/// Ends items, and prints how far the tally is then. Items that do not exist are a failure, but do not harm the others.
pub(super) async fn run(cx: Cx, verb: &str, args: Args) -> Result<(), Failure> {
    let mut unknown = 0;
    for request in items::requests(&args.items)? {
        let answer = cx.client.post(&["v1", "tallies", &args.tally, verb], &request).await?;
        cx.print.item(&answer, standing)?;
        unknown += sum(&answer, "unknown") + sum(&answer, "closed");
    }
    if unknown == 0 {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Failed,
        format!("{unknown} of the items do not exist, or their tally was given up"),
    )
    .remedy("the others count; `tramline tally get` shows the tally"))
}

fn sum(answer: &Value, field: &str) -> u64 {
    answer["results"].as_array().into_iter().flatten().filter_map(|result| result[field].as_u64()).sum()
}
