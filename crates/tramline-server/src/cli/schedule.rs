//! `tramline schedule`: what is emitted at certain times.

use super::emit::{Unique, as_object};
use super::failure::Failure;
use super::list::all;
use super::print::{Column, cell, duration};
use super::value;
use super::{Cx, help};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) const EXAMPLES: &str = r#"  tramline schedule put nightly reports '{"kind": "daily"}' --cron '30 3 * * mon-fri' --zone Europe/Vienna
  tramline schedule list
  tramline schedule run nightly"#;
const PUT: &str = r#"  tramline schedule put nightly reports '{"kind": "daily"}' --cron '30 3 * * mon-fri' --zone Europe/Vienna
  tramline schedule put poll feeds --every 5m --type feed.poll --missed skip
  tramline schedule put bills billing --cron @monthly --key bills --missed all"#;
const LIST: &str =
    "  tramline schedule list\n  tramline schedule list --json | jq -r 'select(.paused) | .name'";
const GET: &str =
    "  tramline schedule get nightly\n  tramline schedule get nightly --json | jq -r .next_run_at";
const DELETE: &str = "  tramline schedule delete nightly";
const PAUSE: &str = "  tramline schedule pause nightly";
const RESUME: &str = "  tramline schedule resume nightly";
const RUN: &str = "  tramline schedule run nightly";

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List schedules
    #[command(after_help = help(LIST))]
    List,
    /// Show a schedule
    #[command(after_help = help(GET))]
    Get(Which),
    /// Create a schedule, or replace it
    #[command(after_help = help(PUT))]
    Put(Box<Put>),
    /// Delete a schedule; what it has emitted stays
    #[command(after_help = help(DELETE))]
    Delete(Which),
    /// Let a schedule rest; what would have run is not made up for
    #[command(after_help = help(PAUSE))]
    Pause(Which),
    /// Let a schedule run again, from its next time on
    #[command(after_help = help(RESUME))]
    Resume(Which),
    /// Emit what a schedule emits, once and now, and print the id of the event
    #[command(after_help = help(RUN))]
    Run(Which),
}

#[derive(clap::Args)]
struct Which {
    /// The schedule
    name: String,
}

#[derive(clap::Args, Serialize)]
struct Put {
    /// The schedule
    #[serde(skip)]
    name: String,
    /// The topic to which it emits
    topic: String,
    /// The payload, as JSON; null unless set
    #[arg(allow_negative_numbers = true, value_parser = json_text)]
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    /// When, as a cron expression: minute, hour, day of the month, month, day of the week; six fields begin with the second
    #[arg(
        long,
        value_name = "EXPRESSION",
        required_unless_present = "every_ms",
        conflicts_with = "every_ms"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    cron: Option<String>,
    /// How often, such as 90s, 5m or 14days
    #[arg(id = "every_ms", long = "every", value_name = "DURATION", value_parser = interval)]
    #[serde(skip_serializing_if = "Option::is_none")]
    every_ms: Option<u64>,
    /// Whose clocks the expression means, such as Europe/Vienna; UTC unless set
    #[arg(long, conflicts_with = "every_ms")]
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    /// The object that the events are about
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// The type of the events
    #[arg(long = "type", value_name = "TYPE")]
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// A header of the events; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = value::pair)]
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_object")]
    headers: Vec<(String, String)>,
    /// From 0 (first) to 9 (last); 5 unless set
    #[arg(long, value_name = "0..9", value_parser = clap::value_parser!(u8).range(0..=9))]
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
    #[command(flatten)]
    #[serde(skip_serializing_if = "Unique::is_none")]
    unique: Unique,
    /// What becomes of runs for which no node was there in time: none, one for all, or all (up to 100)
    #[arg(long, value_parser = ["skip", "one", "all"], default_value = "one")]
    missed: String,
    /// It rests until it is resumed
    #[arg(long)]
    #[serde(skip_serializing_if = "is_false")]
    paused: bool,
}

const SCHEDULE: &[Column] = &[
    ("SCHEDULE", |it| cell(&it["name"])),
    ("WHEN", when),
    ("ZONE", |it| cell(&it["zone"])),
    ("TOPIC", |it| cell(&it["topic"])),
    ("MISSED", |it| cell(&it["missed"])),
    ("NEXT RUN", |it| if it["paused"] == true { "paused".to_owned() } else { cell(&it["next_run_at"]) }),
    ("LAST RUN", |it| cell(&it["last_run_at"])),
    ("DECLARED BY", |it| cell(&it["declared_by"])),
];

/// The fields of a schedule, in the order in which they are shown.
const FIELDS: [&str; 21] = [
    "name",
    "cron",
    "zone",
    "every_ms",
    "topic",
    "type",
    "key",
    "payload",
    "payload_base64",
    "content_type",
    "headers",
    "priority",
    "unique",
    "missed",
    "paused",
    "next_run_at",
    "last_run_at",
    "last_event",
    "declared_by",
    "created_at",
    "updated_at",
];

/// `tramline schedule`.
pub(super) async fn run(cx: Cx, args: Args) -> Result<(), Failure> {
    match args.verb {
        Verb::List => cx.print.items(&all(&cx, &["v1", "schedules"]).await?, SCHEDULE),
        Verb::Get(Which { name }) => {
            let schedule = cx.client.get(&["v1", "schedules", &name], &[]).await?;
            cx.print.fields(&schedule, &FIELDS)
        }
        Verb::Put(put) => {
            let stored = cx.client.put(&["v1", "schedules", &put.name], &*put).await?;
            cx.print.items(&[stored], SCHEDULE)
        }
        Verb::Delete(Which { name }) => cx.client.delete(&["v1", "schedules", &name]).await.map(drop),
        Verb::Pause(Which { name }) => cx.print.items(&[steer(&cx, &name, "pause").await?], SCHEDULE),
        Verb::Resume(Which { name }) => cx.print.items(&[steer(&cx, &name, "resume").await?], SCHEDULE),
        Verb::Run(Which { name }) => {
            let answer = steer(&cx, &name, "run").await?;
            cx.print.item(&answer["events"][0], |event| cell(&event["id"]))
        }
    }
}

async fn steer(cx: &Cx, name: &str, verb: &str) -> Result<Value, Failure> {
    cx.client.post(&["v1", "schedules", name, verb], &json!({})).await
}

fn when(schedule: &Value) -> String {
    match &schedule["every_ms"] {
        Value::Null => cell(&schedule["cron"]),
        millis => format!("every {}", duration(millis)),
    }
}

fn interval(text: &str) -> Result<u64, String> {
    value::duration(text).map(|interval: Duration| value::millis(interval))
}

/// Kept to the letter: numbers may be larger than any type.
fn json_text(text: &str) -> Result<Box<RawValue>, String> {
    serde_json::from_str(text).map_err(|error| format!("not JSON: {error}; quote a text as '\"text\"'"))
}

fn is_false(flag: &bool) -> bool {
    !flag
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_people_write_them() {
        assert_eq!(when(&json!({"cron": "@daily"})), "@daily");
        assert_eq!(when(&json!({"every_ms": 90_000})), "every 1m 30s");
    }
}
