//! What goes before every request: room for it, its token, and a net for panics.

use crate::http::app::Shared;
use crate::http::caller::Caller;
use crate::http::place::{Coming, Slot};
use crate::http::problem::{Answer, Problem};
use crate::traces::request;
use axum::extract::{MatchedPath, Query, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either, ready};
use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tracing::Instrument;

/// The largest head of a request, in bytes.
pub(crate) const MAX_HEAD: usize = 64 << 10;

/// What is needed to let requests in.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) app: Shared,
    /// The query parameters of each route.
    pub(crate) queries: Arc<HashMap<String, Vec<String>>>,
}

/// Lets a request in, if its token is known, there is room, and nothing about its head is wrong. Who calls comes first: a token that
/// is not known is looked up in the store, and whoever guesses tokens must not take the places of others meanwhile.
///
/// Not an `async fn`: that would have room for the request several times, and memory for so much is slow to get.
pub(crate) fn admit(
    State(door): State<Door>,
    request: Request,
    next: Next,
) -> impl Future<Output = Response> + Send {
    match door.app.access.known_caller(request.headers()) {
        Ok(Some(caller)) => door.pass(caller, request, next),
        Err(problem) => Either::Right(ready(door.unknown(problem)).boxed()),
        Ok(None) => Either::Right(
            async move {
                match door.app.access.caller(request.headers()).await {
                    Ok(caller) => door.pass(caller, request, next).await,
                    Err(problem) => door.unknown(problem),
                }
            }
            .boxed(),
        ),
    }
}

/// A request that is let in, or an answer that is there at once or rare.
type Passing<F> = Either<F, BoxFuture<'static, Response>>;

impl Door {
    fn unknown(&self, problem: Problem) -> Response {
        self.app.metrics.refused.add("token", 1);
        problem.into_response()
    }

    fn pass(
        self,
        caller: Caller,
        mut request: Request,
        next: Next,
    ) -> Passing<impl Future<Output = Response> + Send> {
        let app = self.app;
        let Some(slot) = Slot::take(&app.requests) else {
            app.metrics.refused.add("busy", 1);
            return Either::Right(ready(Problem::busy().into_response()).boxed());
        };
        if let Err(problem) = head_fits(&request).and_then(|()| query_fits(&self.queries, &request)) {
            app.metrics.answered(problem.status());
            return Either::Right(ready(problem.into_response()).boxed());
        }
        let (method, who) = (request.method().clone(), caller.clone());
        let path = request.extensions().get::<MatchedPath>().cloned();
        let started = tokio::time::Instant::now();
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(slot.clone());
        let request = request.map(|body| Coming::wrap(body, &slot));
        let route = path.as_ref().map_or("", MatchedPath::as_str);
        let span = request::span(&app.tram, method.as_str(), route, request.headers());
        let running = AssertUnwindSafe(next.run(request)).catch_unwind().instrument(span.clone());
        Either::Left(running.map(move |response| {
            slot.leave();
            let response = response.unwrap_or_else(|_| panicked());
            app.metrics.answered(response.status());
            request::answered(&span, response.status().as_u16());
            // The path as it is routed, not as it came: names and keys may tell too much.
            tracing::debug!(
                %method,
                path = path.as_ref().map_or("", MatchedPath::as_str),
                by = who.name(),
                status = response.status().as_u16(),
                took_us = started.elapsed().as_micros() as u64,
                "request answered"
            );
            response
        }))
    }
}

fn panicked() -> Response {
    tracing::error!("a request handler panicked");
    let detail = "the server made a mistake; it goes on";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail, "report it, with what you sent").into_response()
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
