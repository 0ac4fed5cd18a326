//! What goes before every request: room for it, its token, and a net for panics.

use crate::http::app::Shared;
use crate::http::problem::{Answer, Problem};
use crate::traces::request;
use axum::extract::{MatchedPath, Query, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OwnedSemaphorePermit;
use tracing::Instrument;

/// The room that a request takes. One that only waits may leave it.
#[derive(Clone)]
pub(crate) struct Slot(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl Slot {
    pub(crate) fn leave(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// The largest head of a request, in bytes.
pub(crate) const MAX_HEAD: usize = 64 << 10;

/// What is needed to let requests in.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) app: Shared,
    /// The query parameters of each route.
    pub(crate) queries: Arc<HashMap<String, Vec<String>>>,
}

/// Lets a request in, if there is room, its token is known, and nothing about its head is wrong.
pub(crate) async fn admit(State(door): State<Door>, mut request: Request, next: Next) -> Response {
    let app = door.app;
    let Ok(permit) = app.requests.clone().try_acquire_owned() else {
        app.metrics.refused.add("busy", 1);
        let detail = "the server has too much to do";
        return Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail, "try again in a moment")
            .into_response();
    };
    let caller = match app.access.caller(request.headers()).await {
        Ok(caller) => caller,
        Err(problem) => {
            app.metrics.refused.add("token", 1);
            return problem.into_response();
        }
    };
    if let Err(problem) = head_fits(&request).and_then(|()| query_fits(&door.queries, &request)) {
        app.metrics.answered(problem.status());
        return problem.into_response();
    }
    let (method, who) = (request.method().clone(), caller.clone());
    let path = request.extensions().get::<MatchedPath>().cloned();
    let started = tokio::time::Instant::now();
    let slot = Slot(Arc::new(Mutex::new(Some(permit))));
    request.extensions_mut().insert(caller);
    request.extensions_mut().insert(slot.clone());
    let route = path.as_ref().map_or("", MatchedPath::as_str);
    let span = request::span(&app.tram, method.as_str(), route, request.headers());
    let response = AssertUnwindSafe(next.run(request)).catch_unwind().instrument(span.clone()).await;
    drop(slot);
    let response = response.unwrap_or_else(|_| {
        tracing::error!("a request handler panicked");
        let detail = "the server made a mistake; it goes on";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail, "report it, with what you sent")
            .into_response()
    });
    app.metrics.answered(response.status());
    request::answered(&span, response.status().as_u16());
    // The path as it is routed, not as it came: names and keys may tell too much.
    tracing::debug!(
        %method,
        path = route,
        by = who.name(),
        status = response.status().as_u16(),
        took_us = started.elapsed().as_micros() as u64,
        "request answered"
    );
    response
}

/// For what anybody may ask.
pub(crate) async fn check_head(request: Request, next: Next) -> Response {
    match head_fits(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// The limit of the connection's buffer is not exact: what comes in one piece may pass it.
fn head_fits(request: &Request) -> Answer<()> {
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    let uri = request.uri().path_and_query().map_or(0, |it| it.as_str().len());
    if uri + headers.sum::<usize>() <= MAX_HEAD {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        format!("the head of the request has more than {MAX_HEAD} bytes"),
        "send less in headers and more in the body",
    ))
}

/// A parameter that nobody knows is a mistake, and ignoring it would hide that.
fn query_fits(known: &HashMap<String, Vec<String>>, request: &Request) -> Answer<()> {
    if request.uri().query().is_none_or(str::is_empty) {
        return Ok(());
    }
    let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
    let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let Some(known) = known.get(&format!("{method} {path}")) else { return Ok(()) };
    let Query(given) = Query::<Vec<(String, String)>>::try_from_uri(request.uri())
        .map_err(|error| Problem::malformed(error.body_text(), "write it as name=value&name=value"))?;
    match given.iter().find(|(name, _)| !known.contains(name)) {
        None => Ok(()),
        Some((name, _)) => {
            let remedy = match known.is_empty() {
                true => "this call takes none".to_owned(),
                false => format!("this call takes {}", known.join(", ")),
            };
            Err(Problem::malformed(format!("there is no query parameter {name:?} here"), remedy))
        }
    }
}
