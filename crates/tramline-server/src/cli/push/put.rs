//! `tramline push put`: what may be said of a push subscription on the command line.

use crate::cli::failure::Failure;
use crate::cli::value;
use serde_json::{Map, Value, json};
use std::time::Duration;

pub(super) const EXAMPLES: &str = "  tramline push put billing https://billing.example/events --topic orders
  tramline push put search https://search.example/hook --topic orders --topic users --order key \\
    --max-events 500 --timeout 2s --format cloudevents-batch
  tramline push put paid https://a.example/ --topic orders --filter '[{\"field\": \"type\", \"equals\": \"order.paid\"}]'
  tramline push put billing https://billing.example/v2/events --topic orders --rate 100";

/// What `put` takes. What is left out is as it was, or the default.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The subscription
    name: String,
    /// Where to send
    callback: String,
    /// The topics; repeat it for several
    #[arg(long = "topic", required = true, value_name = "TOPIC")]
    topics: Vec<String>,
    /// In which order: of arrival (one request at a time), of each key, or any
    #[arg(long, value_parser = ["subscriber", "key", "none"])]
    order: Option<String>,
    /// How many events a batch has at most
    #[arg(long)]
    max_events: Option<u32>,
    /// How long a batch gathers
    #[arg(long, value_parser = value::duration, value_name = "DURATION")]
    timeout: Option<Duration>,
    /// How a batch is written
    #[arg(long, value_parser = ["tramline", "cloudevents-batch", "cloudevents", "routemaster"])]
    format: Option<String>,
    /// A header of every request
    #[arg(long = "header", value_parser = value::pair, value_name = "NAME=VALUE")]
    headers: Vec<(String, String)>,
    /// How many requests are under way at once
    #[arg(long)]
    concurrency: Option<u32>,
    /// How many events are sent in a second at most, by each node
    #[arg(long)]
    rate: Option<u32>,
    /// How many failures make an event dead; 0: none
    #[arg(long)]
    max_attempts: Option<u32>,
    /// Which events, as a JSON list of conditions
    #[arg(long, value_name = "JSON")]
    filter: Option<String>,
    /// Ask the receiver first whether it wants events
    #[arg(long)]
    handshake: bool,
}

impl Args {
    /// The name, and what is said of it.
    pub(super) fn read(self) -> Result<(String, Value), Failure> {
        let filter = self.filter.as_deref().map(serde_json::from_str::<Value>).transpose();
        let filter = filter.map_err(|error| Failure::usage(format!("the filter is not JSON: {error}")))?;
        let headers: Map<String, Value> =
            self.headers.into_iter().map(|(name, value)| (name, value.into())).collect();
        let said = [
            ("order", self.order.map(Value::from)),
            ("max_events", self.max_events.map(Value::from)),
            ("timeout_ms", self.timeout.map(value::millis).map(Value::from)),
            ("format", self.format.map(|format| format.replace('-', "_").into())),
            ("headers", (!headers.is_empty()).then_some(Value::Object(headers))),
            ("concurrency", self.concurrency.map(Value::from)),
            ("rate", self.rate.map(Value::from)),
            ("max_attempts", self.max_attempts.map(Value::from)),
            ("filter", filter),
            ("handshake", self.handshake.then_some(Value::Bool(true))),
        ];
        let mut body = json!({"topics": self.topics, "kind": "push", "callback": self.callback});
        for (name, value) in said.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            body[name] = value;
        }
        Ok((self.name, body))
    }
}
