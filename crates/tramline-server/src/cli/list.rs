//! What there is: topics, subscriptions, workers, an event.

use super::Cx;
use super::failure::Failure;
use super::limit::shown;
use super::print::{Column, cell, duration};
use serde_json::Value;

pub(crate) const TOPICS: &str = "  tramline topics\n  tramline topics orders --json";
pub(crate) const SUBSCRIPTIONS: &str = "  tramline subscriptions\n  tramline subscriptions emails";
pub(crate) const WORKERS: &str = "  tramline workers";
pub(crate) const EVENT: &str = "  tramline event 4711\n  tramline event 4711 --json | jq .deliveries";

/// One, or all.
#[derive(clap::Args)]
pub(crate) struct Named {
    /// Only this one
    name: Option<String>,
}

/// Nothing beside the server.
#[derive(clap::Args)]
pub(crate) struct Nothing {}

/// Which event.
#[derive(clap::Args)]
pub(crate) struct Event {
    /// The id of the event
    id: String,
}

const TOPIC: &[Column] = &[
    ("TOPIC", |topic| cell(&topic["name"])),
    ("LANES", |topic| cell(&topic["lanes"])),
    ("EVENTS", |topic| cell(&topic["events"])),
    ("RETENTION", |topic| duration(&topic["retention_ms"])),
    ("OWNER", |topic| cell(&topic["owner"])),
    ("CREATED", |topic| cell(&topic["created_at"])),
];

const SUBSCRIPTION: &[Column] = &[
    ("SUBSCRIPTION", |it| cell(&it["name"])),
    ("TOPICS", |it| cell(&it["topics"])),
    ("KIND", |it| cell(&it["kind"])),
    ("READY", |it| cell(&it["counts"]["ready"])),
    ("DELAYED", |it| cell(&it["counts"]["delayed"])),
    ("LEASED", |it| cell(&it["counts"]["leased"])),
    ("PARKED", |it| cell(&it["counts"]["parked"])),
    ("DEAD", |it| cell(&it["counts"]["dead"])),
    ("OLDEST READY", |it| cell(&it["oldest_ready_at"])),
    ("OLDEST DEAD", |it| cell(&it["oldest_dead_at"])),
    ("LIMITS", |it| if it["limits"].is_object() { shown(it) } else { cell(&it["limits"]) }),
    ("RULES", rules),
];

const WORKER: &[Column] = &[
    ("WORKER", |it| cell(&it["name"])),
    ("SUBSCRIPTIONS", |it| cell(&it["subscriptions"])),
    ("KIND", |it| cell(&it["kind"])),
    ("SINCE", |it| cell(&it["born_at"])),
    ("LAST SEEN", |it| cell(&it["beat_at"])),
];

/// The fields of an event, in the order in which they are shown.
const FIELDS: [&str; 11] = [
    "id",
    "topic",
    "type",
    "key",
    "prev",
    "emitted_at",
    "content_type",
    "headers",
    "payload",
    "payload_base64",
    "tally",
];

const DELIVERY: &[Column] = &[
    ("SUBSCRIPTION", |it| cell(&it["subscription"])),
    ("STATUS", |it| cell(&it["status"])),
    ("ATTEMPT", |it| cell(&it["attempt"])),
    ("CRASHES", |it| cell(&it["crashes"])),
    ("DUE", |it| cell(&it["due_at"])),
    ("WORKER", |it| cell(&it["worker"])),
    ("BLOCKED BY", |it| cell(&it["blocked_by"])),
    ("RULES", rules),
    ("GONE", |it| cell(&it["gone"]["reason"])),
    ("ERROR", |it| cell(&it["error"])),
];

const FAILURE: &[Column] = &[
    ("SUBSCRIPTION", |it| cell(&it["subscription"])),
    ("ATTEMPT", |it| cell(&it["attempt"])),
    ("AT", |it| cell(&it["at"])),
    ("WORKER", |it| cell(&it["worker"])),
    ("ERROR", |it| cell(&it["error"])),
];

/// `tramline topics`.
pub(super) async fn topics(cx: Cx, args: Named) -> Result<(), Failure> {
    let items = named_or_all(&cx, "topics", args.name).await?;
    cx.print.items(&items, TOPIC)
}

/// `tramline subscriptions`.
pub(super) async fn subscriptions(cx: Cx, args: Named) -> Result<(), Failure> {
    let items = named_or_all(&cx, "subscriptions", args.name).await?;
    cx.print.items(&items, SUBSCRIPTION)
}

/// `tramline workers`.
pub(super) async fn workers(cx: Cx) -> Result<(), Failure> {
    let items = all(&cx, &["v1", "workers"]).await?;
    cx.print.items(&items, WORKER)
}

/// `tramline event`: the event as a list of its fields, then tables of its deliveries and of what failed.
pub(super) async fn event(cx: Cx, args: Event) -> Result<(), Failure> {
    let event = cx.client.get(&["v1", "events", &args.id], &[]).await?;
    cx.print.fields(&event, &FIELDS)?;
    if cx.print.json() {
        return Ok(());
    }
    cx.print.text("")?;
    let deliveries = event["deliveries"].as_array().map_or(&[][..], Vec::as_slice);
    cx.print.items(deliveries, DELIVERY)?;
    let failures: Vec<Value> = deliveries.iter().flat_map(failures).collect();
    if failures.is_empty() {
        return Ok(());
    }
    cx.print.text("")?;
    cx.print.items(&failures, FAILURE)
}

/// Why attempts failed, each with its subscription.
fn failures(delivery: &Value) -> Vec<Value> {
    let mut failures = delivery["failures"].as_array().cloned().unwrap_or_default();
    failures.iter_mut().for_each(|failure| failure["subscription"] = delivery["subscription"].clone());
    failures
}

async fn named_or_all(cx: &Cx, what: &str, name: Option<String>) -> Result<Vec<Value>, Failure> {
    match name {
        Some(name) => Ok(vec![cx.client.get(&["v1", what, &name], &[]).await?]),
        None => all(cx, &["v1", what]).await,
    }
}

/// Everything in a list, page by page.
pub(super) async fn all(cx: &Cx, path: &[&str]) -> Result<Vec<Value>, Failure> {
    let mut items = Vec::new();
    let mut query = Vec::new();
    loop {
        let mut page = cx.client.get(path, &query).await?;
        if let Value::Array(more) = page["items"].take() {
            items.extend(more);
        }
        match next(&page) {
            Some(next) => query = vec![("after", next)],
            None => return Ok(items),
        }
    }
}

/// Where the next page begins.
pub(super) fn next(page: &Value) -> Option<String> {
    Some(&page["next"]).filter(|next| !next.is_null()).map(cell)
}

/// What stops a subscription, until when, and why.
pub(super) fn rules(subscription: &Value) -> String {
    let rules = subscription["rules"].as_array().into_iter().flatten();
    let shown = |rule: &Value| {
        let mut text = cell(&rule["kind"]);
        for (before, field) in [(" ", "pattern"), (" until ", "until"), (": ", "reason")] {
            if let Some(said) = rule[field].as_str().filter(|said| !said.is_empty()) {
                text.push_str(before);
                text.push_str(said);
            }
        }
        text
    };
    let all: Vec<String> = rules.map(shown).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_rules_of_a_subscription_are_shown_with_their_end_and_reason() {
        assert_eq!(rules(&json!({"rules": [{"kind": "pause"}, {"kind": "block"}]})), "pause, block");
        let whole =
            json!({"kind": "pause", "pattern": null, "until": "2030-01-01T00:00:00Z", "reason": "lunch"});
        let bare = json!({"kind": "block", "until": null, "reason": ""});
        assert_eq!(rules(&json!({"rules": [whole, bare]})), "pause until 2030-01-01T00:00:00Z: lunch, block");
        let by_pattern = json!({"rules": [{"kind": "pause", "pattern": "acme/*"}]});
        assert_eq!(rules(&by_pattern), "pause acme/*");
        assert_eq!(rules(&json!({"rules": []})), "-");
    }

    #[test]
    fn a_page_says_where_the_next_begins() {
        assert_eq!(next(&json!({"items": [], "next": "7"})), Some("7".to_owned()));
        assert_eq!(next(&json!({"items": [], "next": null})), None);
    }
}
