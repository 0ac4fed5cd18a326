//! POST /v1/topics/{topic}/events: one event, an array, a stream of lines, or raw bytes.

use crate::http::app::{App, Shared};
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::json::{Id, Object, When, json_response};
use crate::http::ndjson;
use crate::http::params::Name;
use crate::http::problem::{Answer, Problem};
use crate::http::schema;
use crate::http::tallies::member::MemberIn;
use crate::http::unique::UniqueIn;
use crate::traces::request;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::time::Duration;
use tramline::model::event::JSON;
use tramline::{Event, Headers, Kind, Receipt, Scope};
use utoipa::ToSchema;

/// How many events an array has at most.
pub(crate) const MAX_EVENTS: usize = 10_000;
/// The longest delay: a hundred years.
pub(crate) const MAX_DELAY_MS: u64 = 100 * 366 * 24 * 3600 * 1000;
/// What an event in JSON may weigh beside its payload.
const BESIDE: usize = 256 << 10;

/// An event to emit.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventIn<'a> {
    /// Any JSON
    #[serde(borrow)]
    #[schema(value_type = serde_json::Value)]
    payload: &'a RawValue,
    #[serde(borrow, default, rename = "type")]
    #[schema(max_length = 200, pattern = "^([A-Za-z0-9._:-]+(/[A-Za-z0-9._:-]+)*)?$")]
    kind: Option<Cow<'a, str>>,
    /// The object that the event is about; events of one topic and key are strictly ordered
    #[serde(borrow, default)]
    #[schema(min_length = 1, max_length = 512, pattern = "^[^\\u0000]*$")]
    key: Option<Cow<'a, str>>,
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    headers: Option<Headers>,
    /// Not before this long after it is stored
    #[serde(default)]
    #[schema(value_type = Option<schema::Millis>)]
    delay_ms: Option<u64>,
    /// Not before this time
    #[serde(default)]
    due_at: Option<When>,
    /// From 0 (first) to 9 (last); 5 unless set
    #[serde(default)]
    #[schema(maximum = 9)]
    priority: Option<u8>,
    /// The latest state of the key's object, readable at /v1/topics/{topic}/head
    #[serde(borrow, default)]
    #[schema(value_type = Option<serde_json::Value>)]
    state: Option<&'a RawValue>,
    /// Makes it an item of a tally, which ends when a subscription has settled the event
    #[serde(default)]
    #[schema(value_type = Option<MemberIn>)]
    tally: Option<Object<MemberIn>>,
    /// Makes it unique: of one topic and unique key at most one event is pending
    #[serde(default)]
    #[schema(value_type = Option<UniqueIn>)]
    unique: Option<Object<UniqueIn>>,
    /// Makes it a sub-event of the nearest event before it in the array that is none; it carries that one's id in the header
    /// `tramline-main`
    #[serde(default)]
    sub: bool,
}

/// What was stored.
#[derive(Serialize, ToSchema)]
pub(crate) struct EmittedOut {
    id: Id,
    prev: Option<Id>,
    key: Option<String>,
    /// True if this event was there already, because of its unique key: nothing was stored
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    duplicate: bool,
}

/// What was stored, in the order of the request.
#[derive(Serialize, ToSchema)]
pub(crate) struct Receipts {
    pub(crate) events: Vec<EmittedOut>,
}

/// Emits one event, an array (all or nothing, up to 10,000) or lines of JSON (all or nothing per 1,024 lines). Any other content
/// type is one event of raw bytes, with `tramline-key`, `tramline-type`, `tramline-delay-ms`, `tramline-priority`,
/// `tramline-tally`, `tramline-tally-subscription`, `tramline-tally-within`, `tramline-unique`, `tramline-unique-for-ms`,
/// `tramline-unique-policy` and `tramline-header-*` as headers. Unknown topics are created.
#[utoipa::path(post, path = "/v1/topics/{topic}/events", tag = "events",
    params(("topic" = schema::Name, Path, description = "The topic; / inside is written %2F"),
        ("Idempotency-Key" = Option<String>, Header, description = "Repeating it within a day stores nothing",
            nullable = false, min_length = 1, max_length = 255)),
    request_body(content((schema::EmitBody = "application/json"), (String = "application/x-ndjson"), (schema::Raw = "application/octet-stream"))),
    responses((status = 201, description = "Stored", body = Receipts),
        (status = 409, description = "The idempotency key was used for other events")),
    security(("token" = ["publish"])))]
pub(crate) async fn emit(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    request: Request,
) -> Answer<Response> {
    caller.topic(&[Scope::Publish], &name.0)?;
    let topic = name.checked("topic")?;
    let (mut head, body) = request.into_parts();
    let headers = std::mem::take(&mut head.headers);
    drop(head);
    let content_type = content_type(&headers)?;
    let started = tokio::time::Instant::now();
    if content_type == "application/x-ndjson" {
        // Boxed, like all that is rare: a request takes as much memory as its largest step.
        return Box::pin(ndjson::emit(&app, &caller, &topic, &headers, body)).await;
    }
    let body = body::read(&headers, body, &app.bodies).await?;
    let mut events = if content_type == JSON {
        read_json(&topic, &body, app.config.max_payload)?
    } else {
        check_form(content_type, &body)?;
        vec![raw(&topic, &headers, content_type, body, app.config.max_payload)?]
    };
    // All others have it before them.
    if events.first().is_some_and(|first| first.is_sub) {
        return Err(Problem::invalid(
            "there is no main event before the sub-event",
            "emit both in one array, the main event first",
        ));
    }
    for read in &events {
        read.check(&app, &caller).await?;
    }
    if let Some(key) = text(&headers, "idempotency-key")?
        && let Some(first) = events.first_mut()
    {
        first.event = first.event.clone().idempotency_key(key);
    }
    let context = request::context_of(&headers);
    // The head lies in the buffer of the connection, which would need another one while this waits.
    drop(headers);
    let mut keys = Vec::with_capacity(events.len());
    let mut stored = Vec::with_capacity(events.len());
    for read in events {
        stored.push(read.event);
        keys.push(read.key);
    }
    let receipt = store_in(&app, &topic, &context, stored).await?;
    app.metrics.emit_seconds.observe(&topic, started.elapsed());
    let answer = Receipts { events: receipts(receipt, keys) };
    Ok(json_response(StatusCode::CREATED, serde_json::to_vec(&answer)?))
}

/// Stores events of a request, and counts them. They belong to the trace that it belongs to.
pub(crate) async fn store(
    app: &App,
    topic: &str,
    headers: &HeaderMap,
    events: Vec<Event>,
) -> Answer<Receipt> {
    store_in(app, topic, &request::context_of(headers), events).await
}

async fn store_in(app: &App, topic: &str, context: &Headers, mut events: Vec<Event>) -> Answer<Receipt> {
    if !context.is_empty() {
        events = events.into_iter().map(|event| event.in_trace(context)).collect();
    }
    match app.ask(app.tram.emit(events)).await {
        Ok(receipt) => {
            if !receipt.repeated {
                let stored = receipt.events.iter().filter(|event| !event.duplicate).count();
                app.metrics.emitted.add(topic, stored as u64);
            }
            Ok(receipt)
        }
        Err(problem) => {
            app.metrics.emit_failures.add(topic, 1);
            Err(problem)
        }
    }
}

/// The receipt as it is told.
pub(crate) fn receipts(receipt: Receipt, keys: Vec<Option<String>>) -> Vec<EmittedOut> {
    let told = |(event, key): (tramline::Emitted, Option<String>)| EmittedOut {
        id: Id(event.id),
        prev: event.prev.map(Id),
        key,
        duplicate: event.duplicate,
    };
    receipt.events.into_iter().zip(keys).map(told).collect()
}

/// An event as it was read.
pub(crate) struct Read {
    pub(crate) event: Event,
    pub(crate) key: Option<String>,
    pub(crate) is_sub: bool,
    tally: Option<MemberIn>,
}

impl Read {
    /// Checks what reading it cannot: whose tally it joins.
    pub(crate) async fn check(&self, app: &App, caller: &Caller) -> Answer<()> {
        match &self.tally {
            Some(member) => Box::pin(member.check(app, caller)).await,
            None => Ok(()),
        }
    }
}

/// The events in a JSON body.
fn read_json(topic: &str, body: &Bytes, max_payload: usize) -> Answer<Vec<Read>> {
    if body.trim_ascii_start().first() != Some(&b'[') {
        return Ok(vec![event(topic, body, max_payload)?]);
    }
    let many: Vec<Object<EventIn<'_>>> = serde_json::from_slice(body)?;
    if many.len() > MAX_EVENTS {
        return Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the array has {} events; at most {MAX_EVENTS} are stored together", many.len()),
            "send several arrays, or application/x-ndjson",
        ));
    }
    many.into_iter().map(|one| one.0.event(topic, body, max_payload)).collect()
}

/// The one event in a piece of JSON.
pub(crate) fn event(topic: &str, json: &Bytes, max_payload: usize) -> Answer<Read> {
    serde_json::from_slice::<Object<EventIn<'_>>>(json)?.0.event(topic, json, max_payload)
}

/// The longest line of a stream.
pub(crate) fn longest_line(max_payload: usize) -> usize {
    max_payload + BESIDE
}

impl EventIn<'_> {
    /// The event. Its payload shares the memory of `body`, in which it was found.
    fn event(self, topic: &str, body: &Bytes, max_payload: usize) -> Answer<Read> {
        let payload = self.payload.get().as_bytes();
        check_payload(payload.len(), max_payload)?;
        let mut event = Event::new(topic, body.slice_ref(payload)).content_type(JSON);
        if let Some(kind) = self.kind {
            event = event.kind(kind);
        }
        let key = self.key.map(Cow::into_owned);
        if let Some(key) = &key {
            event = event.key(key.as_str());
        }
        for (name, value) in self.headers.into_iter().flatten() {
            event = event.header(name, value);
        }
        event = match (self.delay_ms, self.due_at) {
            (Some(_), Some(_)) => {
                return Err(Problem::invalid("both delay_ms and due_at are set", "set one of them"));
            }
            (Some(delay), None) => event.delay(delay_of(delay)?),
            (None, Some(time)) => event.at(time.0),
            (None, None) => event,
        };
        if let Some(priority) = self.priority {
            event = event.priority(priority);
        }
        if let Some(state) = self.state {
            event = event.state(body.slice_ref(state.get().as_bytes()));
        }
        let tally = self.tally.map(|Object(member)| member);
        if let Some(member) = &tally {
            event = member.join(event);
        }
        if let Some(Object(unique)) = self.unique {
            event = event.unique(unique);
        }
        if self.sub {
            event = event.sub_event();
        }
        Ok(Read { event, key, is_sub: self.sub, tally })
    }
}

/// A delay, if it is not absurd.
pub(crate) fn delay_of(millis: u64) -> Answer<Duration> {
    if millis > MAX_DELAY_MS {
        return Err(Problem::invalid("the delay is longer than a hundred years", "use a shorter delay_ms"));
    }
    Ok(Duration::from_millis(millis))
}

fn raw(topic: &str, headers: &HeaderMap, kind: &str, body: Bytes, max_payload: usize) -> Answer<Read> {
    check_payload(body.len(), max_payload)?;
    let mut event = Event::new(topic, body).content_type(kind);
    let key = text(headers, "tramline-key")?.map(str::to_owned);
    if let Some(key) = &key {
        event = event.key(key.as_str());
    }
    if let Some(kind) = text(headers, "tramline-type")? {
        event = event.kind(kind);
    }
    if let Some(delay) = number(headers, "tramline-delay-ms")? {
        event = event.delay(delay_of(delay)?);
    }
    if let Some(priority) = number(headers, "tramline-priority")? {
        event = event.priority(u8::try_from(priority).unwrap_or(u8::MAX));
    }
    for name in headers.keys().filter(|name| name.as_str().starts_with("tramline-header-")) {
        let value = text(headers, name.as_str())?.unwrap_or_default();
        event = event.header(&name.as_str()["tramline-header-".len()..], value);
    }
    let tally = MemberIn::in_headers(headers)?;
    if let Some(member) = &tally {
        event = member.join(event);
    }
    if let Some(unique) = UniqueIn::in_headers(headers)? {
        event = event.unique(unique);
    }
    Ok(Read { event, key, is_sub: false, tally })
}

/// `curl -d` calls everything a form. JSON that comes under that name was meant as JSON, and would be stored as bytes.
fn check_form(content_type: &str, body: &[u8]) -> Answer<()> {
    let form = content_type.eq_ignore_ascii_case("application/x-www-form-urlencoded");
    if !form || serde_json::from_slice::<IgnoredAny>(body).is_err() {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "this is JSON, but its content type says that it is a form",
        "add -H 'content-type: application/json' (or use curl --json); bytes of another kind need a content type of their own",
    ))
}

fn check_payload(size: usize, most: usize) -> Answer<()> {
    if size <= most {
        return Ok(());
    }
    let remedy = "send less, or store it elsewhere and emit a reference";
    let message = format!("the payload has {size} bytes; at most {most} are allowed");
    Err(tramline::Error::new(Kind::TooLarge, message, remedy).into())
}

/// The content type without its parameters; JSON if there is none.
fn content_type(headers: &HeaderMap) -> Answer<&str> {
    let Some(value) = text(headers, header::CONTENT_TYPE.as_str())? else { return Ok(JSON) };
    let plain = value.split(';').next().unwrap_or_default().trim();
    Ok(if plain.eq_ignore_ascii_case(JSON) { JSON } else { plain })
}

pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Answer<Option<&'a str>> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = std::str::from_utf8(value.as_bytes());
    text.map(Some)
        .map_err(|_| Problem::malformed(format!("the header {name} is not UTF-8"), "send it in UTF-8"))
}

pub(crate) fn number(headers: &HeaderMap, name: &str) -> Answer<Option<u64>> {
    let Some(text) = text(headers, name)? else { return Ok(None) };
    let number = text.parse().map(Some);
    number.map_err(|_| Problem::invalid(format!("the header {name} is not a number"), "send digits only"))
}
