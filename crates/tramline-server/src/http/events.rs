//! Reading: the events of a topic, one event, the head of a key; and taking an event back.

use crate::http::app::Shared;
use crate::http::caller::Caller;
use crate::http::follow::{self, Followed};
use crate::http::json::{EventOut, Id, json_response, ok};
use crate::http::life::{self, DeliveryOut};
use crate::http::params::{Name, Params, after_id, bounded};
use crate::http::problem::{Answer, Problem};
use crate::http::schema;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tramline::{EventId, Scope, StoredEvent};
use utoipa::{IntoParams, ToSchema};

/// What reading needs.
pub(crate) const READ: &[Scope] = &[Scope::Consume, Scope::Manage];
/// How many events are read at once, and how often, while looking for those of one key.
const SCAN: u32 = 1_024;
const SCANS: usize = 64;

/// Which events of a topic.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// Events after this one; `now`: only what comes
    #[param(pattern = "^([0-9]{0,19}|now)$")]
    after: Option<String>,
    /// Only events of this key
    pub(crate) key: Option<String>,
    /// At most this many; 100 unless set, never more than 1,000
    #[param(value_type = Option<schema::Limit>)]
    limit: Option<u32>,
}

/// Where to begin in a topic.
#[derive(Clone, Copy)]
pub(crate) enum Begin {
    /// After this event.
    Event(EventId),
    /// At the end.
    Now,
}

/// Events of a topic.
#[derive(Serialize, ToSchema)]
pub(crate) struct Events<'a> {
    items: Vec<EventOut<'a>>,
    /// What to pass as `after` for more; null at the end
    next: Option<Id>,
}

/// The retained events of a topic, oldest first. With `Accept: text/event-stream` it follows: what is stored, then what comes,
/// missing nothing; `Last-Event-ID` goes on after that event. `after=now` begins at the end; a page of that is empty, and its `next`
/// is where to go on.
#[utoipa::path(get, path = "/v1/topics/{topic}/events", tag = "events",
    params(("topic" = schema::Name, Path), Which, ("Last-Event-ID" = Option<String>, Header, description = "Follow after this event", nullable = false, pattern = "^[0-9]{0,19}$")),
    responses((status = 200, content((Events<'static> = "application/json"), (String = "text/event-stream"))),
        (status = 429, description = "Too many clients follow topics")),
    security(("token" = ["consume"]), ("token" = ["manage"])))]
pub(crate) async fn list(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    Params(which): Params<Which>,
) -> Answer<Response> {
    caller.topic(READ, &name.0)?;
    let topic = name.checked("topic")?;
    let after = match which.after.as_deref() {
        Some("now") => Begin::Now,
        after => Begin::Event(after_id(after)?),
    };
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let last = headers.get("last-event-id").filter(|id| !id.is_empty());
    let last = last.map(|id| after_id(Some(id.to_str().unwrap_or("?")))).transpose()?;
    if accept.is_some_and(|accept| accept.contains("text/event-stream")) {
        let which = Followed { topic, begin: last.map_or(after, Begin::Event), key: which.key };
        return follow::follow(app, which, &headers).await;
    }
    let (events, next) = match after {
        Begin::Now => (Vec::new(), Some(app.ask(app.tram.log_end(&topic)).await?)),
        Begin::Event(after) => read(&app, &topic, after, &which).await?,
    };
    let answer = Events { items: events.iter().map(EventOut::new).collect(), next: next.map(Id) };
    Ok(json_response(StatusCode::OK, serde_json::to_vec(&answer)?))
}

/// One page. Of one key, as many as are found in a bounded part of the topic; `next` goes on from there.
async fn read(
    app: &Shared,
    topic: &str,
    after: EventId,
    which: &Which,
) -> Answer<(Vec<StoredEvent>, Option<EventId>)> {
    let limit = bounded(which.limit) as usize;
    let step = if which.key.is_some() { SCAN } else { limit as u32 };
    let (mut found, mut after) = (Vec::new(), after);
    for _ in 0..SCANS {
        let page = app.ask(app.tram.read_log(topic, after, step)).await?;
        let more = page.events.len() == step as usize;
        for event in page.events {
            after = event.id;
            if which.key.is_none() || event.key.as_deref() == which.key.as_deref() {
                found.push(event);
            }
            if found.len() == limit {
                return Ok((found, Some(after)));
            }
        }
        if !more {
            return Ok((found, None));
        }
    }
    Ok((found, Some(after)))
}

/// An event and what every subscription makes of it.
#[derive(Serialize, ToSchema)]
pub(crate) struct EventView<'a> {
    #[serde(flatten)]
    event: EventOut<'a>,
    deliveries: Vec<DeliveryOut>,
}

/// One event, and where it is in every subscription.
#[utoipa::path(get, path = "/v1/events/{id}", tag = "events", params(("id" = Id, Path)),
    responses((status = 200, body = EventView<'static>)), security(("token" = ["consume"]), ("token" = ["manage"])))]
pub(crate) async fn get(State(app): State<Shared>, caller: Caller, name: Name) -> Answer<Response> {
    caller.needs(READ)?;
    let view = app.ask(app.tram.event(name.id()?)).await?;
    let view = view.filter(|view| caller.sees_topic(&view.event.topic)).ok_or_else(unknown)?;
    let visible = caller.visible(&app.ask(app.tram.subscriptions()).await?);
    let deliveries = view.deliveries.into_iter().filter(|one| visible.contains(&one.subscription));
    let deliveries = life::told(&app, deliveries.collect()).await?;
    Ok(ok(EventView { event: EventOut::new(&view.event), deliveries }).into_response())
}

/// Where an event was taken back.
#[derive(Serialize, ToSchema)]
pub(crate) struct Cancelled {
    cancelled: Vec<String>,
}

/// Cancels an event in every subscription that has not claimed it. Whoever manages the topic may do that.
#[utoipa::path(post, path = "/v1/events/{id}/cancel", tag = "events", params(("id" = Id, Path)),
    responses((status = 200, body = Cancelled)), security(("token" = ["manage"])))]
pub(crate) async fn cancel(State(app): State<Shared>, caller: Caller, name: Name) -> Answer<Response> {
    caller.needs(&[Scope::Manage])?;
    let id = name.id()?;
    let view = app.ask(app.tram.event(id)).await?;
    view.filter(|view| caller.sees_topic(&view.event.topic)).ok_or_else(unknown)?;
    let cancelled = app.ask(app.tram.cancel(id)).await?;
    let visible = caller.visible(&app.ask(app.tram.subscriptions()).await?);
    let cancelled =
        cancelled.iter().filter(|name| visible.contains(*name)).map(ToString::to_string).collect();
    Ok(ok(Cancelled { cancelled }).into_response())
}

fn unknown() -> Problem {
    Problem::not_found("there is no such event, or it is no longer kept")
}

/// Which key.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct OfKey {
    /// The key
    key: String,
}

/// The last event of a key, and the latest state of its object.
#[derive(Serialize, ToSchema)]
pub(crate) struct HeadOut<'a> {
    key: &'a str,
    last_id: Id,
    /// The state, if it is JSON
    #[schema(value_type = Option<serde_json::Value>)]
    state: Option<&'a RawValue>,
    /// The state in Base64, if it is not JSON
    #[serde(skip_serializing_if = "Option::is_none")]
    state_base64: Option<String>,
}

/// The last event of a key, and the latest state of its object.
#[utoipa::path(get, path = "/v1/topics/{topic}/head", tag = "events", params(("topic" = schema::Name, Path), OfKey),
    responses((status = 200, body = HeadOut<'static>)), security(("token" = ["consume"]), ("token" = ["manage"])))]
pub(crate) async fn head(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    Params(of): Params<OfKey>,
) -> Answer<Response> {
    caller.topic(READ, &name.0)?;
    let topic = name.checked("topic")?;
    let head = app.ask(app.tram.head(&topic, &of.key)).await?;
    let head = head.ok_or_else(|| Problem::not_found("the topic has no event of this key"))?;
    let state = head.state.as_ref().and_then(|state| serde_json::from_slice::<&RawValue>(state).ok());
    let other = head.state.as_ref().filter(|_| state.is_none());
    let state_base64 = other.map(|state| BASE64_STANDARD.encode(state));
    Ok(ok(HeadOut { key: &of.key, last_id: Id(head.last_id), state, state_base64 }).into_response())
}
