//! `tramline parked`: keys that wait for an event that failed.

use super::dead::{Page, list};
use super::failure::Failure;
use super::print::{Column, cell};
use super::{Cx, help};
use serde_json::{Value, json};

pub(crate) const EXAMPLES: &str = "  tramline parked list emails
  tramline parked release emails order:42
  tramline parked release emails --all";
const LIST: &str = "  tramline parked list emails --json";
const RELEASE: &str = "  tramline parked release emails order:42 order:43
  tramline parked release emails order:42 --topic orders
  tramline parked release emails --all";

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List parked keys and what blocks them
    #[command(after_help = help(LIST))]
    List {
        /// The subscription
        name: String,
        #[command(flatten)]
        page: Page,
    },
    /// Let keys go on
    #[command(after_help = help(RELEASE))]
    Release {
        /// The subscription
        name: String,
        #[command(flatten)]
        which: Which,
    },
}

#[derive(clap::Args)]
struct Which {
    /// The keys
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    keys: Vec<String>,
    /// All parked keys
    #[arg(long)]
    all: bool,
    /// The topic of the keys, if the subscription has several
    #[arg(long, conflicts_with = "all")]
    topic: Option<String>,
}

const PARKED: &[Column] = &[
    ("TOPIC", |it| cell(&it["topic"])),
    ("KEY", |it| cell(&it["key"])),
    ("BLOCKED BY", |it| cell(&it["blocked_by"])),
    ("SINCE", |it| cell(&it["since"])),
    ("WAITING", |it| cell(&it["waiting"])),
];

/// `tramline parked`.
pub(super) async fn run(cx: Cx, args: Args) -> Result<(), Failure> {
    match args.verb {
        Verb::List { name, page } => list(&cx, &name, "parked", page, PARKED).await,
        Verb::Release { name, which } => {
            let path = ["v1", "subscriptions", &name, "parked", "release"];
            let answer = cx.client.post(&path, &body(which)).await?;
            cx.print.item(&answer, |answer| cell(&answer["count"]))
        }
    }
}

fn body(which: Which) -> Value {
    if which.all {
        return json!({"all": true});
    }
    let key = |key: &String| json!({"topic": which.topic, "key": key});
    json!({"keys": which.keys.iter().map(key).collect::<Vec<_>>()})
}
