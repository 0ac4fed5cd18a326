//! `tramline dead`: what failed for good.

use super::failure::Failure;
use super::list::next;
use super::print::{Column, cell};
use super::value;
use super::{Cx, help};
use serde_json::{Value, json};

pub(crate) const EXAMPLES: &str = "  tramline dead list emails
  tramline dead replay emails 4711 4712
  tramline dead drop emails --since 2030-01-31T12:00:00Z";
const LIST: &str = "  tramline dead list emails --limit 20\n  tramline dead list emails --json | jq .error";
const REPLAY: &str = "  tramline dead replay emails 4711 4712\n  tramline dead replay emails --all";
const DROP: &str =
    "  tramline dead drop emails 4711\n  tramline dead drop emails --since 2030-01-31T12:00:00Z";

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List dead events with their errors
    #[command(after_help = help(LIST))]
    List {
        /// The subscription
        name: String,
        #[command(flatten)]
        page: Page,
    },
    /// Run dead events again
    #[command(after_help = help(REPLAY))]
    Replay {
        /// The subscription
        name: String,
        #[command(flatten)]
        which: Which,
    },
    /// Forget dead events
    #[command(after_help = help(DROP))]
    Drop {
        /// The subscription
        name: String,
        #[command(flatten)]
        which: Which,
    },
}

/// Which part of a list.
#[derive(clap::Args)]
pub(super) struct Page {
    /// At most this many
    #[arg(long, default_value_t = 100)]
    pub(super) limit: u32,
    /// Only what comes after this
    #[arg(long)]
    pub(super) after: Option<String>,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// The ids of the events
    ids: Vec<String>,
    /// All dead events
    #[arg(long)]
    all: bool,
    /// All that died since then
    #[arg(long, value_parser = value::time, value_name = "TIME")]
    since: Option<String>,
}

const DEAD: &[Column] = &[
    ("ID", |it| cell(&it["id"])),
    ("DIED", |it| cell(&it["died_at"])),
    ("TYPE", |it| cell(&it["type"])),
    ("KEY", |it| cell(&it["key"])),
    ("ATTEMPTS", |it| cell(&it["attempt"])),
    ("ERROR", |it| cell(&it["error"])),
];

/// `tramline dead`.
pub(super) async fn run(cx: Cx, args: Args) -> Result<(), Failure> {
    let (name, verb, which) = match args.verb {
        Verb::List { name, page } => return list(&cx, &name, "dead", page, DEAD).await,
        Verb::Replay { name, which } => (name, "replay", which),
        Verb::Drop { name, which } => (name, "drop", which),
    };
    let answer = cx.client.post(&["v1", "subscriptions", &name, "dead", verb], &body(which)).await?;
    cx.print.item(&answer, |answer| cell(&answer["count"]))
}

/// One page of a list that can be long, and how to see the next.
pub(super) async fn list(
    cx: &Cx,
    name: &str,
    what: &str,
    page: Page,
    columns: &[Column],
) -> Result<(), Failure> {
    one_page(cx, &["v1", "subscriptions", name, what], page.query(), columns).await
}

impl Page {
    pub(super) fn query(self) -> Vec<(&'static str, String)> {
        let mut query = vec![("limit", self.limit.to_string())];
        query.extend(self.after.map(|after| ("after", after)));
        query
    }
}

pub(super) async fn one_page(
    cx: &Cx,
    path: &[&str],
    query: Vec<(&'static str, String)>,
    columns: &[Column],
) -> Result<(), Failure> {
    let answer = cx.client.get(path, &query).await?;
    cx.print.items(answer["items"].as_array().map_or(&[], Vec::as_slice), columns)?;
    if let Some(next) = next(&answer) {
        eprintln!("there are more: --after {next}");
    }
    Ok(())
}

fn body(which: Which) -> Value {
    match which {
        Which { all: true, .. } => json!({"all": true}),
        Which { since: Some(since), .. } => json!({"since": since}),
        Which { ids, .. } => json!({"ids": ids}),
    }
}
