//! `tramline tally add`, `seal` and `count`.

use super::standing;
use crate::cli::Cx;
use crate::cli::failure::Failure;
use crate::cli::value;
use reqwest::Method;
use serde_json::{Value, json};

/// Items to add.
#[derive(clap::Args)]
pub(super) struct Add {
    /// The tally
    #[arg(value_parser = value::tally)]
    tally: String,
    /// How many
    count: u64,
    /// From inside this unfinished item: a growing tally takes them even after it was sealed
    #[arg(long, value_name = "ITEM")]
    within: Option<u64>,
    /// The same key gives the same items
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

/// Adds items and prints their numbers.
pub(super) async fn add(cx: Cx, args: Add) -> Result<(), Failure> {
    let url = cx.client.url(&["v1", "tallies", &args.tally, "add"])?;
    let mut request = cx.client.request(Method::POST, url).header("content-type", "application/json");
    if let Some(key) = &args.idempotency_key {
        request = request.header("idempotency-key", key);
    }
    let body = json!({"count": args.count, "within": args.within});
    let answer: Value = cx.client.answer(request.body(body.to_string())).await?;
    cx.print.item(&answer, range)
}

/// As `ack` reads it.
fn range(added: &Value) -> String {
    let first = added["first"].as_u64().unwrap_or(0);
    match added["count"].as_u64().unwrap_or(0) {
        0 | 1 => first.to_string(),
        count => format!("{first}-{}", first + count - 1),
    }
}

/// How to seal.
#[derive(clap::Args)]
pub(super) struct Seal {
    /// The tally
    #[arg(value_parser = value::tally)]
    tally: String,
    /// How many items it must have; with another number it stays open
    #[arg(long, value_name = "COUNT")]
    expected: Option<u64>,
}

/// Says that all items were added.
pub(super) async fn seal(cx: Cx, args: Seal) -> Result<(), Failure> {
    let body = json!({"expected": args.expected});
    let answer = cx.client.post(&["v1", "tallies", &args.tally, "seal"], &body).await?;
    cx.print.item(&answer, standing)
}

/// By how much to count.
#[derive(clap::Args)]
pub(super) struct Count {
    /// The tally
    #[arg(value_parser = value::tally)]
    tally: String,
    /// Positive for work that was added, negative for work that was done
    #[arg(allow_negative_numbers = true)]
    by: i64,
}

/// Counts an estimated tally.
pub(super) async fn count(cx: Cx, args: Count) -> Result<(), Failure> {
    let answer = cx.client.post(&["v1", "tallies", &args.tally, "count"], &json!({"by": args.by})).await?;
    cx.print.item(&answer, standing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_items_are_printed_as_they_are_acked() {
        assert_eq!(range(&json!({"first": 4096, "count": 10})), "4096-4105");
        assert_eq!(range(&json!({"first": 7, "count": 1})), "7");
    }
}
