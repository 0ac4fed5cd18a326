//! What goes before every request: room for it, its token, and a net for panics.

use crate::http::app::Shared;
use crate::http::problem::Problem;
use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OwnedSemaphorePermit;

/// The room that a request takes. One that only waits may leave it.
#[derive(Clone)]
pub(crate) struct Slot(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl Slot {
    pub(crate) fn leave(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Lets a request in, if there is room and its token is known.
pub(crate) async fn admit(State(app): State<Shared>, mut request: Request, next: Next) -> Response {
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
    let (method, who) = (request.method().clone(), caller.clone());
    let path = request.extensions().get::<MatchedPath>().cloned();
    let started = tokio::time::Instant::now();
    let slot = Slot(Arc::new(Mutex::new(Some(permit))));
    request.extensions_mut().insert(caller);
    request.extensions_mut().insert(slot.clone());
    let response = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    drop(slot);
    let response = response.unwrap_or_else(|_| {
        tracing::error!("a request handler panicked");
        let detail = "the server made a mistake; it goes on";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail, "report it, with what you sent")
            .into_response()
    });
    app.metrics.answered(response.status());
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
}
