//! `tramline drops`: what subscriptions will never see although nobody dropped it by hand.

use super::Cx;
use super::dead::{Page, one_page};
use super::failure::Failure;
use super::print::{Column, cell};

pub(crate) const EXAMPLES: &str = "  tramline drops
  tramline drops hooks --json | jq .events
  tramline drops --after 0 --limit 1000";

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only those of this subscription
    subscription: Option<String>,
    #[command(flatten)]
    page: Page,
}

const DROP: &[Column] = &[
    ("AT", |it| cell(&it["at"])),
    ("SUBSCRIPTION", |it| cell(&it["subscription"])),
    ("REASON", |it| cell(&it["reason"])),
    ("EVENTS", |it| cell(&it["events"])),
    ("FIRST", |it| cell(&it["first"])),
    ("LAST", |it| cell(&it["last"])),
];

/// `tramline drops`: the newest first; from `--after` on, the oldest first.
pub(super) async fn run(cx: Cx, args: Args) -> Result<(), Failure> {
    let mut query = args.page.query();
    query.extend(args.subscription.map(|name| ("subscription", name)));
    one_page(&cx, &["v1", "drops"], query, DROP).await
}
