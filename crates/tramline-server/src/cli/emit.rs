//! `tramline emit`: one event from an argument or standard input. Many are the business of [`super::bulk`].

use super::Cx;
use super::bulk;
use super::failure::Failure;
use super::print::cell;
use super::value;
use reqwest::{Method, RequestBuilder};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::time::Duration;

pub(crate) const EXAMPLES: &str = r#"  tramline emit orders '{"order": 42}' --key order:42 --type order.paid
  tramline emit reports '{"shop": 7}' --unique report:7
  tramline emit mails 'plain text, because it is not JSON' --delay 5m
  curl -s https://example.org/feed.xml | tramline emit feeds --content-type application/xml
  tramline emit orders --ndjson events.ndjson
  producer | tramline emit orders --ndjson --bare --type order.made"#;

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The topic; it is created if it does not exist
    topic: String,
    /// The payload: JSON if it is valid JSON, else text. `-` or nothing reads standard input
    #[arg(allow_negative_numbers = true)]
    payload: Option<String>,
    /// Send the payload as bytes of this type, even if it looks like JSON
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    #[command(flatten)]
    about: About,
    /// The same key gives the first receipt again, for 24 hours
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Emit many: each line of this file or of standard input is an event as in the HTTP API
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    #[arg(conflicts_with_all = ["payload", "content_type", "idempotency_key"])]
    ndjson: Option<PathBuf>,
    /// With --ndjson: each line is a payload; the other options say the rest
    #[arg(long, requires = "ndjson")]
    bare: bool,
    /// With --ndjson: begin at this line
    #[arg(long, value_name = "N", default_value_t = 1, requires = "ndjson")]
    from_line: u64,
}

/// What an event says beside its payload.
#[derive(clap::Args, Clone, Serialize)]
pub(super) struct About {
    /// The object that the event is about; events of one key are ordered
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// What happened, such as order.paid
    #[arg(long = "type", value_name = "TYPE")]
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// A header; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = value::pair)]
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_object")]
    headers: Vec<(String, String)>,
    /// Not before this has passed
    #[arg(long, value_name = "DURATION", value_parser = value::duration)]
    #[serde(rename = "delay_ms", skip_serializing_if = "Option::is_none", serialize_with = "as_millis")]
    delay: Option<Duration>,
    /// Not before this time
    #[arg(long, value_name = "TIME", value_parser = value::time, conflicts_with = "delay")]
    #[serde(rename = "due_at", skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    /// From 0 (first) to 9 (last); 5 unless set
    #[arg(long, value_name = "0..9", value_parser = clap::value_parser!(u8).range(0..=9))]
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
    #[command(flatten)]
    #[serde(skip_serializing_if = "Tally::is_none")]
    tally: Tally,
    #[command(flatten)]
    #[serde(skip_serializing_if = "Unique::is_none")]
    unique: Unique,
}

/// The tally whose item an event is.
#[derive(clap::Args, Clone, Default, Serialize)]
pub(super) struct Tally {
    /// Make it an item of this tally, which ends when the event is settled
    #[arg(long = "tally", value_name = "TALLY", value_parser = value::tally)]
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// Whose settling ends the item, if the topic has several subscriptions
    #[arg(long = "tally-subscription", value_name = "NAME", requires = "id")]
    #[serde(skip_serializing_if = "Option::is_none")]
    subscription: Option<String>,
    /// From inside this unfinished item of the tally: a growing one takes it even after it was sealed
    #[arg(long, value_name = "ITEM", requires = "id")]
    #[serde(skip_serializing_if = "Option::is_none")]
    within: Option<u64>,
}

impl Tally {
    fn is_none(&self) -> bool {
        self.id.is_none()
    }
}

/// What makes an event unique.
#[derive(clap::Args, Clone, Default, Serialize)]
pub(super) struct Unique {
    /// Make it unique: of one topic and unique key at most one event is pending
    #[arg(long = "unique", value_name = "KEY", id = "unique")]
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Unique also for this long after it is emitted, even if it is done by then
    #[arg(long = "unique-for", value_name = "DURATION", value_parser = value::duration, requires = "unique")]
    #[serde(rename = "for_ms", skip_serializing_if = "Option::is_none", serialize_with = "as_millis")]
    window: Option<Duration>,
    /// What becomes of it if another one is pending
    #[arg(long = "unique-policy", value_name = "POLICY", value_parser = ["keep", "replace"], requires = "unique")]
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
}

impl Unique {
    pub(super) fn is_none(&self) -> bool {
        self.key.is_none()
    }
}

/// An event as the server reads it.
#[derive(Serialize)]
struct Event<'a> {
    payload: &'a RawValue,
    #[serde(flatten)]
    about: &'a About,
}

/// `tramline emit`.
pub(super) async fn run(cx: Cx, args: Args) -> Result<(), Failure> {
    if let Some(file) = args.ndjson {
        let about = args.bare.then_some(args.about);
        let many = bulk::Many { topic: args.topic, file, about, from_line: args.from_line };
        return bulk::run(cx, many).await;
    }
    let payload = payload(args.payload)?;
    let url = cx.client.url(&["v1", "topics", &args.topic, "events"])?;
    let mut request = body(cx.client.request(Method::POST, url), &payload, args.content_type, &args.about)?;
    if let Some(key) = args.idempotency_key {
        request = request.header("idempotency-key", key);
    }
    let answer: Value = cx.client.answer(request).await?;
    cx.print.item(&answer["events"][0], |event| cell(&event["id"]))
}

/// One line: the event with this payload, or why it cannot be one.
pub(super) fn event_line(payload: &str, about: &About) -> Result<String, serde_json::Error> {
    serde_json::to_string(&Event { payload: serde_json::from_str(payload)?, about })
}

fn payload(argument: Option<String>) -> Result<Vec<u8>, Failure> {
    let mut input = std::io::stdin().lock();
    match argument.as_deref() {
        None if input.is_terminal() => Err(Failure::usage("there is no payload")
            .remedy("give it as an argument, or - to read it from standard input")),
        None | Some("-") => {
            let mut payload = Vec::new();
            input.read_to_end(&mut payload)?;
            Ok(payload)
        }
        Some(text) => Ok(text.as_bytes().to_vec()),
    }
}

/// JSON goes into an event as it is; everything else is sent as bytes, with the rest in headers.
fn body(
    request: RequestBuilder,
    payload: &[u8],
    content_type: Option<String>,
    about: &About,
) -> Result<RequestBuilder, Failure> {
    let json = content_type.is_none().then(|| serde_json::from_slice::<&RawValue>(payload).ok()).flatten();
    if let Some(payload) = json {
        let event = serde_json::to_string(&Event { payload, about }).map_err(std::io::Error::from)?;
        return Ok(request.header("content-type", "application/json").body(event));
    }
    if about.at.is_some() {
        return Err(Failure::usage("--at needs a payload of JSON").remedy("use --delay, or quote the text"));
    }
    let guess = if std::str::from_utf8(payload).is_ok() { TEXT } else { BYTES };
    let content_type = content_type.unwrap_or_else(|| guess.to_owned());
    let mut request = request.header("content-type", content_type).body(payload.to_vec());
    for (name, value) in in_headers(about) {
        request = request.header(format!("tramline-{name}"), value);
    }
    Ok(request)
}

const TEXT: &str = "text/plain; charset=utf-8";
const BYTES: &str = "application/octet-stream";

fn in_headers(about: &About) -> Vec<(String, String)> {
    let one = |name: &str, value: Option<String>| value.map(|value| (name.to_owned(), value));
    let mut all: Vec<_> = [
        one("key", about.key.clone()),
        one("type", about.kind.clone()),
        one("delay-ms", about.delay.map(|delay| value::millis(delay).to_string())),
        one("priority", about.priority.map(|priority| priority.to_string())),
        one("tally", about.tally.id.clone()),
        one("tally-subscription", about.tally.subscription.clone()),
        one("tally-within", about.tally.within.map(|item| item.to_string())),
        one("unique", about.unique.key.clone()),
        one("unique-for-ms", about.unique.window.map(|window| value::millis(window).to_string())),
        one("unique-policy", about.unique.policy.clone()),
    ]
    .into_iter()
    .flatten()
    .collect();
    all.extend(about.headers.iter().map(|(name, value)| (format!("header-{name}"), value.clone())));
    all
}

pub(super) fn as_object<S: serde::Serializer>(pairs: &[(String, String)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(pairs.iter().map(|(name, value)| (name, value)).collect::<BTreeMap<_, _>>())
}

fn as_millis<S: serde::Serializer>(duration: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    duration.map(value::millis).serialize(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about() -> About {
        About {
            key: Some("k".to_owned()),
            kind: None,
            headers: vec![("a".to_owned(), "b".to_owned())],
            delay: Some(Duration::from_secs(5)),
            at: None,
            priority: None,
            tally: Tally { id: Some("7".to_owned()), ..Tally::default() },
            unique: Unique { key: Some("u".to_owned()), ..Unique::default() },
        }
    }

    fn sent(payload: &str, content_type: Option<&str>) -> (String, String) {
        tramline::tls::prepare();
        let request = reqwest::Client::new().post("http://localhost");
        let content_type = content_type.map(str::to_owned);
        let request = body(request, payload.as_bytes(), content_type, &about()).unwrap().build().unwrap();
        let body = request.body().and_then(|body| body.as_bytes()).unwrap().to_vec();
        let content_type = request.headers()["content-type"].to_str().unwrap().to_owned();
        (content_type, String::from_utf8(body).unwrap())
    }

    #[test]
    fn valid_json_is_sent_as_it_is() {
        let (content_type, body) = sent(r#"{"n": 1.10}"#, None);
        assert_eq!(content_type, "application/json");
        assert_eq!(
            body,
            r#"{"payload":{"n": 1.10},"key":"k","headers":{"a":"b"},"delay_ms":5000,"tally":{"id":"7"},"unique":{"key":"u"}}"#
        );
    }

    #[test]
    fn everything_else_is_sent_as_bytes() {
        assert_eq!(sent("hello", None), (TEXT.to_owned(), "hello".to_owned()));
        assert_eq!(sent("42", Some("text/csv")), ("text/csv".to_owned(), "42".to_owned()));
        let headers = in_headers(&about());
        let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["key", "delay-ms", "tally", "unique", "header-a"]);
    }

    #[test]
    fn a_bare_line_must_be_json() {
        assert!(event_line("[1]", &about()).unwrap().starts_with(r#"{"payload":[1],"key":"k""#));
        assert!(event_line("nonsense", &about()).is_err());
    }
}
