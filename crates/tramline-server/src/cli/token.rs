//! `tramline token`: who may do what.

use super::failure::Failure;
use super::list::all;
use super::print::{Column, cell};
use super::value;
use super::{Cx, help};
use clap::ValueEnum;
use serde_json::json;

pub(crate) const EXAMPLES: &str = "  tramline token create shop --scope publish --topic 'orders'
  tramline token list
  tramline token drop shop";
const CREATE: &str = "  tramline token create shop --scope publish --topic 'orders'
  tramline token create ci --scope publish --scope consume --expires 2030-01-31T12:00:00Z
  tramline token create acme --scope manage --topic 'acme/**' --subscription 'acme/**'";
const LIST: &str = "  tramline token list --json | jq -r .name";
const DROP: &str = "  tramline token drop shop";

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Create a token and print it; it is not shown again
    #[command(after_help = help(CREATE))]
    Create(Create),
    /// List tokens, without their secrets
    #[command(after_help = help(LIST))]
    List,
    /// Drop a token: it is refused from now on
    #[command(after_help = help(DROP))]
    Drop {
        /// The token
        name: String,
    },
}

#[derive(clap::Args)]
struct Create {
    /// What to call it
    name: String,
    /// What it allows; may be repeated
    #[arg(long = "scope", required = true)]
    scopes: Vec<Scope>,
    /// Only in these topics; may be repeated
    #[arg(long = "topic", value_name = "PATTERN")]
    topics: Option<Vec<String>>,
    /// Only in these subscriptions; may be repeated
    #[arg(long = "subscription", value_name = "PATTERN")]
    subscriptions: Option<Vec<String>>,
    /// Refused from then on
    #[arg(long, value_parser = value::time, value_name = "TIME")]
    expires: Option<String>,
}

#[derive(Clone, Copy, ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
enum Scope {
    /// Emit
    Publish,
    /// Claim, settle and read
    Consume,
    /// Create, change, pause, replay and delete
    Manage,
    /// Everything, also blocks and tokens
    Admin,
}

const TOKEN: &[Column] = &[
    ("TOKEN", |it| cell(&it["name"])),
    ("SCOPES", |it| cell(&it["scopes"])),
    ("TOPICS", |it| cell(&it["topics"])),
    ("SUBSCRIPTIONS", |it| cell(&it["subscriptions"])),
    ("EXPIRES", |it| cell(&it["expires_at"])),
    ("LAST USED", |it| cell(&it["used_at"])),
];

/// `tramline token`.
pub(super) async fn run(cx: Cx, args: Args) -> Result<(), Failure> {
    match args.verb {
        Verb::Create(token) => create(cx, token).await,
        Verb::List => cx.print.items(&all(&cx, &["v1", "tokens"]).await?, TOKEN),
        Verb::Drop { name } => cx.client.delete(&["v1", "tokens", &name]).await.map(drop),
    }
}

async fn create(cx: Cx, token: Create) -> Result<(), Failure> {
    let mut body = json!({"name": token.name, "scopes": token.scopes});
    for (field, value) in [
        ("topics", token.topics.map(Into::into)),
        ("subscriptions", token.subscriptions.map(Into::into)),
        ("expires_at", token.expires.map(serde_json::Value::from)),
    ] {
        if let Some(value) = value {
            body[field] = value;
        }
    }
    let answer = cx.client.post(&["v1", "tokens"], &body).await?;
    cx.print.item(&answer, |answer| cell(&answer["token"]))
}
