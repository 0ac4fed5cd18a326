//! `tramline key`: the events of a key, back and forth.

use super::Cx;
use super::dead::{Page, one_page};
use super::failure::Failure;
use super::print::{Column, cell};
use serde_json::Value;

pub(crate) const EXAMPLES: &str = "  tramline key orders order:42
  tramline key orders order:42 --oldest --limit 20
  tramline key orders order:42 --after 4711 --deliveries";

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The topic
    topic: String,
    /// The key
    key: String,
    /// From the oldest event on; else from the newest back
    #[arg(long)]
    oldest: bool,
    /// With the status of each in every subscription
    #[arg(long)]
    deliveries: bool,
    #[command(flatten)]
    page: Page,
}

const LINK: &[Column] = &[
    ("ID", |it| cell(&it["id"])),
    ("PREV", |it| cell(&it["prev"])),
    ("EMITTED", |it| cell(&it["emitted_at"])),
    ("TYPE", |it| cell(&it["type"])),
    ("DELIVERIES", deliveries),
];

/// `tramline key`.
pub(super) async fn run(cx: Cx, args: Args) -> Result<(), Failure> {
    let mut query = args.page.query();
    query.push(("key", args.key));
    query.push(("order", if args.oldest { "oldest" } else { "newest" }.to_owned()));
    if args.deliveries {
        query.push(("deliveries", "true".to_owned()));
    }
    one_page(&cx, &["v1", "topics", &args.topic, "chain"], query, LINK).await
}

/// Each subscription and the status there.
fn deliveries(event: &Value) -> String {
    let all = event["deliveries"].as_array().into_iter().flatten();
    let told: Vec<String> =
        all.map(|one| format!("{}={}", cell(&one["subscription"]), cell(&one["status"]))).collect();
    if told.is_empty() { "-".to_owned() } else { told.join(",") }
}
