//! Carlyle's API, under its own paths: a batch is a tally.
//!
//! - [`exact`]: batches with items; [`ack`]: their items are done
//! - [`estimated`]: batches that are plain counters
//! - [`outcome`]: what became of each of many, and the status of all of them together
//!
//! Batches belong to the topics `carlyle/exact` and `carlyle/estimated`. That is where their completion events go, and by these
//! names tokens are limited to them. Unlike Tramline's own API this one answers 400 to whatever is wrong with a request.

mod ack;
mod estimated;
mod exact;
mod outcome;

use crate::compat::served::Served;
use crate::http::app::{App, Shared};
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::params::Params;
use crate::http::problem::{Answer, Problem};
use crate::http::tallies::{FILL, access};
use axum::Router;
use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tramline::model::event::JSON;
use tramline::{Event, NewTally, Scope, Tally, TallyId, TallyState};

/// The topic of exact batches.
const EXACT: &str = "carlyle/exact";
/// The topic of estimated ones.
const ESTIMATED: &str = "carlyle/estimated";
/// The type of the event that a complete batch emits.
const COMPLETE: &str = "batch.complete";

/// All of Carlyle's calls.
pub(crate) fn routes() -> Router<Shared> {
    served().router
}

/// Methods and paths of all of them.
#[cfg(test)]
pub(crate) fn list() -> Vec<(Method, &'static str)> {
    served().list
}

fn served() -> Served {
    Served::default()
        .on(Method::POST, "/api/v1/batch/exact", exact::create)
        .on(Method::POST, "/api/v1/batch/exact/", exact::create)
        .on(Method::GET, "/api/v1/batch/exact/{id}", exact::get)
        .on(Method::POST, "/api/v1/batch/exact/close/{id}", exact::close)
        .on(Method::POST, "/api/v1/batch/exact/items", exact::items)
        .on(Method::POST, "/api/v1/batch/exact/items/ack", ack::ack)
        .on(Method::DELETE, "/api/v1/batch/exact/open", exact::remove_open)
        .on(Method::DELETE, "/api/v1/batch/exact/closed", exact::remove_closed)
        .on(Method::POST, "/api/v1/batch/estimated", estimated::create)
        .on(Method::POST, "/api/v1/batch/estimated/", estimated::create)
        .on(Method::POST, "/api/v1/batch/estimated/decr", estimated::decr)
        .on(Method::POST, "/api/v1/batch/estimated/{id}/incr", estimated::incr)
        .on(Method::POST, "/api/v1/batch/estimated/{id}/close", estimated::close)
        .on(Method::GET, "/api/v1/batch/estimated/{id}", estimated::get)
        .on(Method::DELETE, "/api/v1/batch/estimated/{id}", estimated::delete)
}

/// A batch to create.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CreateIn {
    user_key: Option<String>,
}

/// Creates a batch of a topic.
async fn create(app: &App, caller: &Caller, topic: &str, headers: &HeaderMap, body: Body) -> Answer<TallyId> {
    caller.topic(FILL, topic)?;
    let create: CreateIn = read(app, headers, body).await?;
    let batch = new_batch(topic, create.user_key);
    Ok(app.ask(app.tram.tallies().open(batch)).await.map_err(malformed)?.id)
}

/// A batch that tells when it is complete. Who completes it may die before it can tell: the event comes all the same.
fn new_batch(topic: &str, user_key: Option<String>) -> NewTally {
    let complete =
        Event::new(topic, json!({"userKey": user_key}).to_string()).content_type(JSON).kind(COMPLETE);
    let mut batch = NewTally::new().topic(topic).on_complete(complete);
    if topic == ESTIMATED {
        batch = batch.estimated();
    }
    match user_key {
        Some(key) => batch.user_key(key),
        None => batch,
    }
}

/// A batch that was created. Exact ones are numbers, estimated ones UUIDs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CreatedOut<T> {
    batch_id: T,
}

/// A batch as it is.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BatchOut {
    /// Only of exact ones
    #[serde(skip_serializing_if = "Option::is_none")]
    batch_id: Option<i64>,
    is_complete: bool,
    is_closed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_key: Option<String>,
}

impl From<Tally> for BatchOut {
    fn from(batch: Tally) -> BatchOut {
        BatchOut {
            batch_id: (!batch.estimated).then_some(batch.id.0),
            is_complete: batch.is_complete(),
            is_closed: batch.state != TallyState::Open,
            user_key: batch.user_key,
        }
    }
}

/// A batch of one kind that the caller may see.
async fn find(app: &App, caller: &Caller, any: &[Scope], kind: &str, batch: TallyId) -> Answer<Tally> {
    caller.needs(any)?;
    let fits = |found: &Tally| found.estimated == (kind == ESTIMATED) && access::sees_this(caller, found);
    match app.ask(app.tram.tallies().get(batch)).await {
        Ok(found) if fits(&found) => Ok(found),
        Err(problem) if problem.status() != StatusCode::NOT_FOUND => Err(problem),
        _ => Err(unknown()),
    }
}

/// The JSON of a request.
async fn read<T: DeserializeOwned>(app: &App, headers: &HeaderMap, body: Body) -> Answer<T> {
    let body = app.read(headers, body).await?;
    body::parse(&body)
        .map_err(|problem| malformed(problem).with_remedy("compare it with what Carlyle's clients send"))
}

/// The query of a request.
struct Asked<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Asked<T>> {
        let Params(query) = Params::from_request_parts(parts, state).await.map_err(malformed)?;
        Ok(Asked(query))
    }
}

/// Carlyle tells no difference between what is malformed, too large for a field, or can never be.
fn malformed(problem: Problem) -> Problem {
    match problem.status() {
        StatusCode::UNPROCESSABLE_ENTITY | StatusCode::PAYLOAD_TOO_LARGE => {
            problem.with_status(StatusCode::BAD_REQUEST)
        }
        _ => problem,
    }
}

fn unknown() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "there is no such batch",
        "check its id; batches are removed some time after the last thing that happened to them",
    )
}
