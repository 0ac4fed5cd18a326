//! Topics.

use crate::http::app::{App, Shared};
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::json::{List, When, ok, or_null};
use crate::http::params::{Name, Page, Params};
use crate::http::problem::{Answer, Problem};
use crate::http::schema;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::Duration;
use tramline::{Scope, Topic, TopicId, TopicSettings};
use utoipa::ToSchema;

/// Whoever has anything to do with topics may see those of its patterns.
const SEE: &[Scope] = &[Scope::Publish, Scope::Consume, Scope::Manage];

/// What may be said of a topic.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopicIn {
    /// How many lanes; never changes. 32 unless set
    #[schema(minimum = 1, maximum = 4096)]
    lanes: Option<u32>,
    /// How long settled events are kept
    #[schema(value_type = Option<schema::Millis>)]
    retention_ms: Option<u64>,
    /// Who is in charge; null: nobody any longer
    #[serde(default, deserialize_with = "or_null")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 200, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$")]
    owner: Option<Option<String>>,
}

/// A topic.
#[derive(Serialize, ToSchema)]
pub(crate) struct TopicOut {
    name: String,
    lanes: u32,
    retention_ms: u64,
    /// Who is in charge, if somebody said so
    owner: Option<String>,
    /// How many events were ever emitted to it
    events: u64,
    created_at: When,
}

impl TopicOut {
    fn new(topic: &Topic, totals: &Totals) -> TopicOut {
        TopicOut {
            name: topic.name.to_string(),
            lanes: topic.lanes,
            retention_ms: u64::try_from(topic.retention.as_millis()).unwrap_or(u64::MAX),
            owner: topic.owner.as_deref().map(str::to_owned),
            events: totals.get(&topic.id).copied().unwrap_or(0),
            created_at: When(topic.created_at),
        }
    }
}

/// How many events each topic ever had.
type Totals = HashMap<TopicId, u64>;

async fn totals(app: &App) -> Answer<Totals> {
    Ok(app.ask(app.tram.store().topic_totals()).await?.into_iter().collect())
}

/// All topics that the token may see, by name.
#[utoipa::path(get, path = "/v1/topics", tag = "topics", params(Page), responses((status = 200, body = List<TopicOut>)),
    security(("token" = ["publish"]), ("token" = ["consume"]), ("token" = ["manage"])))]
pub(crate) async fn list(
    State(app): State<Shared>,
    caller: Caller,
    Params(page): Params<Page>,
) -> Answer<Response> {
    caller.needs(SEE)?;
    let mut topics = app.ask(app.tram.topics()).await?;
    topics.retain(|topic| caller.sees_topic(&topic.name));
    let (topics, next) = page.cut(topics, |topic| &topic.name);
    let totals = totals(&app).await?;
    let items = topics.iter().map(|topic| TopicOut::new(topic, &totals)).collect();
    Ok(ok(List { items, next }).into_response())
}

/// One topic.
#[utoipa::path(get, path = "/v1/topics/{topic}", tag = "topics", params(("topic" = schema::Name, Path)),
    responses((status = 200, body = TopicOut)),
    security(("token" = ["publish"]), ("token" = ["consume"]), ("token" = ["manage"])))]
pub(crate) async fn get(State(app): State<Shared>, caller: Caller, name: Name) -> Answer<Response> {
    caller.topic(SEE, &name.0)?;
    let topics = app.ask(app.tram.topics()).await?;
    let topic = topics.iter().find(|topic| *topic.name == *name.0);
    let topic = topic.ok_or_else(|| Problem::not_found("there is no such topic"))?;
    Ok(ok(TopicOut::new(topic, &totals(&app).await?)).into_response())
}

/// Creates a topic, or changes how long its settled events are kept and who is in charge. What is left out stays.
#[utoipa::path(put, path = "/v1/topics/{topic}", tag = "topics", params(("topic" = schema::Name, Path)), request_body = TopicIn,
    responses((status = 200, body = TopicOut), (status = 409, description = "The number of lanes would change")), security(("token" = ["manage"])))]
pub(crate) async fn put(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    caller.topic(&[Scope::Manage], &name.0)?;
    let topic = name.checked("topic")?;
    let body = app.read(&headers, body).await?;
    let put: TopicIn = body::parse(&body)?;
    if put.retention_ms.is_some_and(|millis| millis > crate::http::emit::MAX_DELAY_MS) {
        return Err(Problem::invalid("the retention is longer than a hundred years", "use a shorter one"));
    }
    let retention = put.retention_ms.map(Duration::from_millis);
    let settings = TopicSettings { lanes: put.lanes, retention, owner: put.owner, claim: None };
    let topic = app.ask(app.tram.put_topic(&topic, settings)).await?;
    Ok(ok(TopicOut::new(&topic, &totals(&app).await?)).into_response())
}

/// Deletes a topic with its events. Refused while a subscription consumes it.
#[utoipa::path(delete, path = "/v1/topics/{topic}", tag = "topics", params(("topic" = schema::Name, Path)),
    responses((status = 204, description = "Deleted"), (status = 409, description = "A subscription consumes it")),
    security(("token" = ["manage"])))]
pub(crate) async fn delete(State(app): State<Shared>, caller: Caller, name: Name) -> Answer<Response> {
    caller.topic(&[Scope::Manage], &name.0)?;
    let deleted = app.ask(app.tram.delete_topic(&name.checked("topic")?)).await;
    deleted.map_err(|problem| match problem.status() {
        // Not by name: the subscription may be somebody else's.
        StatusCode::CONFLICT => Problem::new(
            StatusCode::CONFLICT,
            "a subscription consumes the topic",
            "delete the subscription or take the topic off it first",
        ),
        _ => problem,
    })?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
