//! Rules: `tramline pause`, `resume`, `block` and `unblock`, for one subscription or for all whose names match; and `rules`.

use super::Cx;
use super::failure::{Exit, Failure};
use super::list::all;
use super::print::{Column, cell};
use super::value;
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) const PAUSE: &str = "  tramline pause emails --reason 'mail server moves' --for 2h
  tramline pause 'acme/**' --reason 'acme moves'";
pub(crate) const RESUME: &str = "  tramline resume emails\n  tramline resume 'acme/**'";
pub(crate) const RULES: &str = "  tramline rules\n  tramline rules --json | jq .pattern";
pub(crate) const AUDIT: &str = "  tramline audit emails\n  tramline audit emails --limit 1 --json";
pub(crate) const BLOCK: &str = "  tramline block emails --reason 'sends to the wrong people'";
pub(crate) const UNBLOCK: &str = "  tramline unblock emails";

/// How a rule is set.
#[derive(clap::Args)]
pub(crate) struct Set {
    /// The subscription, or a pattern with * or ** for all whose names match, now and later
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
    /// The subscription, or the pattern as it was given
    name: String,
    /// Why, for the record
    #[arg(long)]
    reason: Option<String>,
}

/// Whose record is shown.
#[derive(clap::Args)]
pub(crate) struct Audit {
    /// The subscription
    name: String,
    /// At most this many entries, the newest
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

const ENTRY: &[Column] = &[
    ("AT", |entry| cell(&entry["at"])),
    ("BY", |entry| cell(&entry["by"])),
    ("ACTION", |entry| cell(&entry["action"])),
    ("PATTERN", |entry| cell(&entry["pattern"])),
    ("REASON", |entry| cell(&entry["reason"])),
];

const RULE: &[Column] = &[
    ("RULE", |rule| cell(&rule["kind"])),
    ("BY", |rule| cell(&rule["by"])),
    ("SINCE", |rule| cell(&rule["since"])),
    ("UNTIL", |rule| cell(&rule["until"])),
    ("PATTERN", |rule| cell(&rule["pattern"])),
    ("REASON", |rule| cell(&rule["reason"])),
];

const PATTERN_RULE: &[Column] = &[
    ("ID", |rule| cell(&rule["id"])),
    ("PATTERN", |rule| cell(&rule["pattern"])),
    ("RULE", |rule| cell(&rule["kind"])),
    ("STOPS", |rule| cell(&rule["subscriptions"])),
    ("BY", |rule| cell(&rule["by"])),
    ("SINCE", |rule| cell(&rule["since"])),
    ("UNTIL", |rule| cell(&rule["until"])),
    ("REASON", |rule| cell(&rule["reason"])),
];

/// `tramline rules`: the rules by pattern.
pub(super) async fn list(cx: Cx) -> Result<(), Failure> {
    let rules = all(&cx, &["v1", "rules"]).await?;
    cx.print.items(&rules, PATTERN_RULE)
}

/// `tramline audit`: what was done to the rules of a subscription, newest first.
pub(super) async fn audit(cx: Cx, args: Audit) -> Result<(), Failure> {
    let query = [("limit", args.limit.to_string())];
    let record = cx.client.get(&["v1", "subscriptions", &args.name, "audit"], &query).await?;
    cx.print.items(record["items"].as_array().map_or(&[], Vec::as_slice), ENTRY)
}

/// Pauses or blocks, and shows the rules that hold now.
pub(super) async fn set(cx: Cx, kind: &str, args: Set) -> Result<(), Failure> {
    let until = args.until.or_else(|| args.r#for.map(value::from_now));
    if !is_pattern(&args.name) {
        return apply(cx, &args.name, kind, args.reason, until).await;
    }
    let mut body = said(args.reason, until);
    body["pattern"] = args.name.into();
    body["kind"] = kind.into();
    let rule = cx.client.post(&["v1", "rules"], &body).await?;
    cx.print.items(&[rule], PATTERN_RULE)
}

/// Resumes or unblocks, and shows the rules that still hold; of a pattern, those that were removed.
pub(super) async fn remove(cx: Cx, kind: &str, args: Remove) -> Result<(), Failure> {
    let verb = if kind == "pause" { "resume" } else { "unblock" };
    if !is_pattern(&args.name) {
        return apply(cx, &args.name, verb, args.reason, None).await;
    }
    let rules = all(&cx, &["v1", "rules"]).await?;
    let is_it = |rule: &&Value| rule["pattern"] == *args.name && rule["kind"] == kind;
    let removed: Vec<Value> = rules.iter().filter(is_it).cloned().collect();
    if removed.is_empty() {
        let what = format!("there is no {kind} of {:?}", args.name);
        return Err(Failure::new(Exit::NotFound, what).remedy("see `tramline rules`"));
    }
    let why: Vec<(&str, String)> = args.reason.into_iter().map(|reason| ("reason", reason)).collect();
    for rule in &removed {
        cx.client.delete_with(&["v1", "rules", &cell(&rule["id"])], &why).await?;
    }
    cx.print.items(&removed, PATTERN_RULE)
}

fn is_pattern(name: &str) -> bool {
    name.contains('*')
}

async fn apply(
    cx: Cx,
    name: &str,
    verb: &str,
    reason: Option<String>,
    until: Option<String>,
) -> Result<(), Failure> {
    let answer = cx.client.post(&["v1", "subscriptions", name, verb], &said(reason, until)).await?;
    cx.print.items(rules(&answer), RULE)
}

/// The reason and the end, as far as they were given.
fn said(reason: Option<String>, until: Option<String>) -> Value {
    let mut body = json!({});
    if let Some(reason) = reason {
        body["reason"] = reason.into();
    }
    if let Some(until) = until {
        body["until"] = until.into();
    }
    body
}

/// The rules, whether they come in a field or as they are.
fn rules(answer: &Value) -> &[Value] {
    answer["rules"].as_array().or(answer.as_array()).map_or(&[], Vec::as_slice)
}
