//! `tramline dead`: what failed for good.

use super::failure::Failure;
use super::list::next;
use super::print::{Column, cell};
use super::value;
use super::{Cx, help};
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) const EXAMPLES: &str = "  tramline dead list emails
  tramline dead replay emails 4711 4712
  tramline dead drop emails --since 2030-01-31T12:00:00Z";
const LIST: &str = "  tramline dead list emails --limit 20
  tramline dead list emails --type order.paid --error 'HTTP 5'
  tramline dead list emails --json | jq .error";
const REPLAY: &str = "  tramline dead replay emails 4711 4712
  tramline dead replay emails --all --rate 10/s
  tramline dead replay emails --type order.paid --error-prefix 'HTTP 5'";
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
        those: Those,
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
        /// So many in a time, evenly, such as 10/s, 100/m or 5/30s; all at once unless set
        #[arg(long, value_parser = value::rate, value_name = "RATE")]
        rate: Option<(u32, Duration)>,
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

/// By number, or all, or those of which everything that is said is true.
#[derive(clap::Args)]
#[group(required = true, multiple = true, args = ["ids", "all", "topic", "type", "key", "error", "error_prefix", "since", "until"])]
struct Which {
    /// The ids of the events
    #[arg(conflicts_with_all = ["all", "topic", "type", "key", "error", "error_prefix", "since", "until"])]
    ids: Vec<String>,
    /// All dead events
    #[arg(long, conflicts_with_all = ["topic", "type", "key", "error", "error_prefix", "since", "until"])]
    all: bool,
    #[command(flatten)]
    those: Those,
}

/// Those of which everything that is said is true.
#[derive(clap::Args)]
struct Those {
    /// Those of this topic
    #[arg(long)]
    topic: Option<String>,
    /// Those of this type
    #[arg(long)]
    r#type: Option<String>,
    /// Those of this key
    #[arg(long)]
    key: Option<String>,
    /// Those whose last error has this in it
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Those whose last error begins with this
    #[arg(long, value_name = "TEXT")]
    error_prefix: Option<String>,
    /// Those that died since then
    #[arg(long, value_parser = value::time, value_name = "TIME")]
    since: Option<String>,
    /// Those that died before then
    #[arg(long, value_parser = value::time, value_name = "TIME")]
    until: Option<String>,
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
    let (name, verb, which, rate) = match args.verb {
        Verb::List { name, those, page } => {
            let query = those.said().chain(page.query()).collect();
            return one_page(&cx, &["v1", "subscriptions", &name, "dead"], query, DEAD).await;
        }
        Verb::Replay { name, which, rate } => (name, "replay", which, rate),
        Verb::Drop { name, which } => (name, "drop", which, None),
    };
    let mut body = body(which);
    if let Some((events, per)) = rate {
        body["rate"] = json!({"events": events, "per_ms": value::millis(per)});
    }
    let answer = to_the_end(&cx, &["v1", "subscriptions", &name, "dead", verb], body).await?;
    cx.print.item(&answer, |answer| cell(&answer["count"]))
}

/// One call takes a part of what may be very many: calls until there is no more, and gives the sum.
async fn to_the_end(cx: &Cx, path: &[&str], mut body: Value) -> Result<Value, Failure> {
    let mut count = 0;
    loop {
        let answer = cx.client.post(path, &body).await.inspect_err(|_| {
            if count > 0 {
                eprintln!("{count} were done before this failed");
            }
        })?;
        count += answer["count"].as_u64().unwrap_or(0);
        match next(&answer) {
            Some(next) => body["after"] = next.into(),
            None => return Ok(json!({"count": count})),
        }
    }
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

impl Those {
    /// What was said, by name.
    fn said(self) -> impl Iterator<Item = (&'static str, String)> {
        let said = [
            ("topic", self.topic),
            ("type", self.r#type),
            ("key", self.key),
            ("error", self.error),
            ("error_prefix", self.error_prefix),
            ("since", self.since),
            ("until", self.until),
        ];
        said.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

fn body(which: Which) -> Value {
    if which.all {
        return json!({"all": true});
    }
    let said: serde_json::Map<String, Value> =
        which.those.said().map(|(name, value)| (name.to_owned(), value.into())).collect();
    if said.is_empty() { json!({"ids": which.ids}) } else { Value::Object(said) }
}
