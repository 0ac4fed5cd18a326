//! `tramline tally get`, `list`, `cancel` and `delete`.

use super::standing;
use crate::cli::Cx;
use crate::cli::dead::Page;
use crate::cli::failure::Failure;
use crate::cli::list::next;
use crate::cli::print::{Column, cell};
use crate::cli::value;
use serde_json::{Value, json};

/// Which tally.
#[derive(clap::Args)]
pub(super) struct Which {
    /// The tally
    #[arg(value_parser = value::tally)]
    tally: String,
}

/// Which tallies.
#[derive(clap::Args)]
pub(super) struct List {
    /// Only in these states, with commas
    #[arg(long, value_delimiter = ',', value_parser = STATES)]
    state: Vec<String>,
    /// Only with this user key
    #[arg(long, value_name = "TEXT")]
    user_key: Option<String>,
    #[command(flatten)]
    page: Page,
}

const STATES: [&str; 5] = ["open", "sealed", "complete", "cancelled", "expired"];

const TALLY: &[Column] = &[
    ("TALLY", |it| cell(&it["tally"])),
    ("STATE", |it| cell(&it["state"])),
    ("TOTAL", |it| cell(&it["total"])),
    ("DONE", |it| cell(&it["done"])),
    ("FAILED", |it| cell(&it["failed"])),
    ("PENDING", |it| cell(&it["pending"])),
    ("PROGRESS", |it| percent(&it["progress"])),
    ("USER KEY", |it| cell(&it["user_key"])),
    ("OPENED", |it| cell(&it["created_at"])),
];

/// The fields of a tally, in the order in which they are shown.
const FIELDS: [&str; 19] = [
    "tally",
    "state",
    "total",
    "done",
    "failed",
    "pending",
    "progress",
    "per_second",
    "user_key",
    "metadata",
    "topic",
    "growing",
    "estimated",
    "parent",
    "created_at",
    "sealed_at",
    "ended_at",
    "active_at",
    "expires_at",
];

/// `tramline tally get`.
pub(super) async fn get(cx: Cx, which: Which) -> Result<(), Failure> {
    let tally = cx.client.get(&["v1", "tallies", &which.tally], &[]).await?;
    let known: Vec<&str> = FIELDS.into_iter().filter(|name| !tally[*name].is_null()).collect();
    cx.print.fields(&tally, &known)
}

/// `tramline tally list`.
pub(super) async fn list(cx: Cx, list: List) -> Result<(), Failure> {
    let mut query = vec![("limit", list.page.limit.to_string())];
    if let Some(after) = list.page.after {
        query.push(("after", value::tally(&after).map_err(Failure::usage)?));
    }
    if !list.state.is_empty() {
        query.push(("state", list.state.join(",")));
    }
    query.extend(list.user_key.map(|key| ("user_key", key)));
    let answer = cx.client.get(&["v1", "tallies"], &query).await?;
    cx.print.items(answer["items"].as_array().map_or(&[], Vec::as_slice), TALLY)?;
    if let Some(next) = next(&answer) {
        eprintln!("there are more: --after {next}");
    }
    Ok(())
}

/// `tramline tally cancel`.
pub(super) async fn cancel(cx: Cx, which: Which) -> Result<(), Failure> {
    let answer = cx.client.post(&["v1", "tallies", &which.tally, "cancel"], &json!({})).await?;
    cx.print.item(&answer, standing)
}

/// `tramline tally delete`.
pub(super) async fn delete(cx: Cx, which: Which) -> Result<(), Failure> {
    cx.client.delete(&["v1", "tallies", &which.tally]).await.map(drop)
}

fn percent(progress: &Value) -> String {
    progress.as_f64().map_or_else(|| "-".to_owned(), |part| format!("{:.1} %", part * 100.0))
}
