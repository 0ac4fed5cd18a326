//! `tramline push`: subscriptions whose events are sent to a callback.

mod put;

use super::dead::{Page, list};
use super::failure::Failure;
use super::print::{Column, cell};
use super::{Cx, help, list as lists, value};
use serde_json::{Value, json};

pub(crate) const EXAMPLES: &str = "  tramline push put billing https://billing.example/events --topic orders
  tramline push list
  tramline push attempts billing
  tramline push enable billing";
const LIST: &str = "  tramline push list
  tramline push list --json | jq '.delivery.state'";
const ATTEMPTS: &str = "  tramline push attempts billing --limit 20";
const STEER: &str = "  tramline push disable billing --reason 'moves to another host'
  tramline push enable billing";
const REPLAY: &str = "  tramline push replay billing --since 2030-01-31T12:00:00Z";
const SECRET: &str = "  tramline push secret billing
  tramline push secret billing --kind ed25519
  tramline push secret billing --remove 4d58b0726b86a6ea";

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Create a push subscription, or change one
    #[command(after_help = help(put::EXAMPLES))]
    Put(Box<put::Args>),
    /// List push subscriptions and how their sending stands
    #[command(after_help = help(LIST))]
    List,
    /// List the last requests, newest first
    #[command(after_help = help(ATTEMPTS))]
    Attempts {
        /// The subscription
        name: String,
        #[command(flatten)]
        page: Page,
    },
    /// Send again, after failures or a disable
    #[command(after_help = help(STEER))]
    Enable {
        /// The subscription
        name: String,
    },
    /// Send nothing until it is enabled; events are kept
    #[command(after_help = help(STEER))]
    Disable {
        /// The subscription
        name: String,
        /// Why, for whoever finds it
        #[arg(long)]
        reason: Option<String>,
    },
    /// Send again what was emitted since a time and is still retained
    #[command(after_help = help(REPLAY))]
    Replay {
        /// The subscription
        name: String,
        /// Since when
        #[arg(long, value_parser = value::time, value_name = "TIME")]
        since: String,
    },
    /// Make a signing secret, which is shown this once, or remove one
    #[command(after_help = help(SECRET))]
    Secret {
        /// The subscription
        name: String,
        /// Which kind to make
        #[arg(long, value_parser = ["hmac", "ed25519"], conflicts_with = "remove")]
        kind: Option<String>,
        /// Remove the secret of this id instead
        #[arg(long, value_name = "ID")]
        remove: Option<String>,
    },
}

const PUSH: &[Column] = &[
    ("SUBSCRIPTION", |it| cell(&it["name"])),
    ("TOPICS", |it| cell(&it["topics"])),
    ("CALLBACK", |it| cell(&it["callback"])),
    ("STATE", |it| cell(&it["delivery"]["state"])),
    ("GATHERING", |it| cell(&it["delivery"]["gathering"])),
    ("READY", |it| cell(&it["delivery"]["ready"])),
    ("SENDING", |it| cell(&it["delivery"]["sending"])),
    ("DEAD", |it| cell(&it["counts"]["dead"])),
    ("SENT", |it| cell(&it["delivery"]["events_sent"])),
    ("FAILURES", |it| cell(&it["delivery"]["failures"])),
];

const ATTEMPT: &[Column] = &[
    ("AT", |it| cell(&it["at"])),
    ("VERDICT", |it| cell(&it["verdict"])),
    ("STATUS", |it| cell(&it["status"])),
    ("MS", |it| cell(&it["latency_ms"])),
    ("EVENTS", |it| cell(&it["events"])),
    ("TAKEN", |it| cell(&it["acknowledged"])),
    ("FIRST", |it| cell(&it["first_event"])),
    ("ANSWER", |it| cell(&it["excerpt"])),
];

/// `tramline push`.
pub(super) async fn run(cx: Cx, args: Args) -> Result<(), Failure> {
    match args.verb {
        Verb::Put(args) => {
            let (name, body) = args.read()?;
            let answer = cx.client.put(&["v1", "subscriptions", &name], &body).await?;
            cx.print.items(&[answer], PUSH)
        }
        Verb::List => {
            let mut all = lists::all(&cx, &["v1", "subscriptions"]).await?;
            all.retain(|it| it["kind"] == "push");
            cx.print.items(&all, PUSH)
        }
        Verb::Attempts { name, page } => list(&cx, &name, "attempts", page, ATTEMPT).await,
        Verb::Enable { name } => steer(&cx, &name, "enable", json!({})).await,
        Verb::Disable { name, reason } => {
            steer(&cx, &name, "disable", json!({"reason": reason.unwrap_or_default()})).await
        }
        Verb::Replay { name, since } => replay(&cx, &name, &since).await,
        Verb::Secret { name, remove: Some(id), .. } => {
            cx.client.delete(&["v1", "subscriptions", &name, "secrets", &id]).await.map(|_| ())
        }
        Verb::Secret { name, kind, .. } => {
            let body = kind.map_or_else(|| json!({}), |kind| json!({"kind": kind}));
            let answer = cx.client.post(&["v1", "subscriptions", &name, "secrets"], &body).await?;
            cx.print.item(&answer, |answer| cell(&answer["secret"]))
        }
    }
}

async fn steer(cx: &Cx, name: &str, verb: &str, body: Value) -> Result<(), Failure> {
    let answer = cx.client.post(&["v1", "subscriptions", name, verb], &body).await?;
    cx.print.items(&[answer], PUSH)
}

/// Goes on until the server has nothing more.
async fn replay(cx: &Cx, name: &str, since: &str) -> Result<(), Failure> {
    let (mut count, mut body) = (0, json!({"since": since}));
    loop {
        let answer = cx.client.post(&["v1", "subscriptions", name, "replay"], &body).await?;
        count += answer["count"].as_u64().unwrap_or_default();
        match lists::next(&answer) {
            Some(next) => body["after"] = next.into(),
            None => return cx.print.item(&json!({"count": count}), |answer| cell(&answer["count"])),
        }
    }
}
