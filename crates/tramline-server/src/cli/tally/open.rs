//! `tramline tally open`.

use crate::cli::Cx;
use crate::cli::failure::Failure;
use crate::cli::print::cell;
use crate::cli::value;
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;

/// What may be said of a tally.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Your own name for it; need not be unique
    #[arg(long, value_name = "TEXT")]
    user_key: Option<String>,
    /// Anything worth keeping with it, as JSON
    #[arg(long, value_name = "JSON", value_parser = json)]
    metadata: Option<Value>,
    /// The topic to which it belongs; tokens that are limited to topics see it by this
    #[arg(long)]
    topic: Option<String>,
    /// It may grow after it is sealed, from inside its own unfinished items
    #[arg(long)]
    growing: bool,
    /// A plain counter without items
    #[arg(long)]
    estimated: bool,
    /// Unless it is complete by then, it expires after this
    #[arg(long, value_name = "DURATION", value_parser = value::duration)]
    expires: Option<Duration>,
    /// Emit this when it is complete: a topic, or an event as in the HTTP API with its `topic`
    #[arg(long, value_name = "TOPIC|JSON", value_parser = event)]
    on_complete: Option<Value>,
    /// Emit this when the first item fails
    #[arg(long, value_name = "TOPIC|JSON", value_parser = event)]
    on_failure: Option<Value>,
    /// Emit this when it expires
    #[arg(long, value_name = "TOPIC|JSON", value_parser = event)]
    on_expiry: Option<Value>,
    /// It stands for an item of this tally: one that exists (7:3), or one that is added for it (7)
    #[arg(long, value_name = "TALLY[:ITEM]", value_parser = parent)]
    parent: Option<Value>,
    /// The same key gives the same tally, as long as it exists
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

/// Opens it and prints its number.
pub(super) async fn run(cx: Cx, args: Args) -> Result<(), Failure> {
    let url = cx.client.url(&["v1", "tallies"])?;
    let mut request = cx.client.request(Method::POST, url).header("content-type", "application/json");
    if let Some(key) = &args.idempotency_key {
        request = request.header("idempotency-key", key);
    }
    let answer: Value = cx.client.answer(request.body(body(args).to_string())).await?;
    cx.print.item(&answer, |answer| cell(&answer["tally"]))
}

fn body(args: Args) -> Value {
    let mut body = json!({"growing": args.growing, "estimated": args.estimated});
    for (field, value) in [
        ("user_key", args.user_key.map(Value::from)),
        ("metadata", args.metadata),
        ("topic", args.topic.map(Value::from)),
        ("expires_ms", args.expires.map(|expires| value::millis(expires).into())),
        ("on_complete", args.on_complete),
        ("on_failure", args.on_failure),
        ("on_expiry", args.on_expiry),
        ("parent", args.parent),
    ] {
        if let Some(value) = value {
            body[field] = value;
        }
    }
    body
}

fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))
}

/// An event in JSON, or the topic of one that says nothing more.
fn event(text: &str) -> Result<Value, String> {
    if text.starts_with('{') { json(text) } else { Ok(json!({"topic": text})) }
}

fn parent(text: &str) -> Result<Value, String> {
    match text.split_once(':') {
        None => Ok(json!({"id": value::tally(text)?})),
        Some((tally, item)) => {
            let item: u64 =
                item.parse().map_err(|_| "use the number of a tally, or tally:item".to_owned())?;
            Ok(json!({"id": value::tally(tally)?, "item": item}))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_json_or_a_topic() {
        assert_eq!(event("imports"), Ok(json!({"topic": "imports"})));
        assert_eq!(event(r#"{"topic": "t", "payload": 1}"#), Ok(json!({"topic": "t", "payload": 1})));
        assert!(event("{nonsense").is_err());
    }

    #[test]
    fn a_parent_is_a_tally_or_one_of_its_items() {
        assert_eq!(parent("7"), Ok(json!({"id": "7"})));
        assert_eq!(parent("7:3"), Ok(json!({"id": "7", "item": 3})));
        assert!(["7:x", "x", "x:3", "", "-7"].iter().all(|bad| parent(bad).is_err()));
    }
}
