//! Rules: `tramline pause`, `resume`, `block` and `unblock`.

use super::Cx;
use super::failure::Failure;
use super::print::{Column, cell};
use super::value;
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) const PAUSE: &str = "  tramline pause emails --reason 'mail server moves' --for 2h";
pub(crate) const RESUME: &str = "  tramline resume emails";
pub(crate) const BLOCK: &str = "  tramline block emails --reason 'sends to the wrong people'";
pub(crate) const UNBLOCK: &str = "  tramline unblock emails";

/// How a rule is set.
#[derive(clap::Args)]
pub(crate) struct Set {
    /// The subscription
    name: String,
    /// Why, for whoever finds it
    #[arg(long)]
    reason: Option<String>,
    /// Until this time
    #[arg(long, value_parser = value::time, value_name = "TIME")]
    until: Option<String>,
    /// For this long
    #[arg(long, value_parser = value::duration, value_name = "DURATION", conflicts_with = "until")]
    r#for: Option<Duration>,
}

/// How a rule is removed.
#[derive(clap::Args)]
pub(crate) struct Remove {
    /// The subscription
    name: String,
    /// Why, for the record
    #[arg(long)]
    reason: Option<String>,
}

const RULE: &[Column] = &[
    ("RULE", |rule| cell(&rule["kind"])),
    ("BY", |rule| cell(&rule["by"])),
    ("SINCE", |rule| cell(&rule["since"])),
    ("UNTIL", |rule| cell(&rule["until"])),
    ("REASON", |rule| cell(&rule["reason"])),
];

/// Pauses or blocks, and shows the rules that hold now.
pub(super) async fn set(cx: Cx, verb: &str, args: Set) -> Result<(), Failure> {
    let until = args.until.or_else(|| args.r#for.map(value::from_now));
    apply(cx, &args.name, verb, args.reason, until).await
}

/// Resumes or unblocks, and shows the rules that still hold.
pub(super) async fn remove(cx: Cx, verb: &str, args: Remove) -> Result<(), Failure> {
    apply(cx, &args.name, verb, args.reason, None).await
}

async fn apply(
    cx: Cx,
    name: &str,
    verb: &str,
    reason: Option<String>,
    until: Option<String>,
) -> Result<(), Failure> {
    let mut body = json!({});
    if let Some(reason) = reason {
        body["reason"] = reason.into();
    }
    if let Some(until) = until {
        body["until"] = until.into();
    }
    let answer = cx.client.post(&["v1", "subscriptions", name, verb], &body).await?;
    cx.print.items(rules(&answer), RULE)
}

/// The rules, whether they come in a field or as they are.
fn rules(answer: &Value) -> &[Value] {
    answer["rules"].as_array().or(answer.as_array()).map_or(&[], Vec::as_slice)
}
