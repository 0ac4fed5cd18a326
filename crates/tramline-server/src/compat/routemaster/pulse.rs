//! Whether the bus lives, and whether it keeps up.

use super::queues;
use crate::http::app::Shared;
use crate::http::health::store_fails;
use crate::http::json::{When, ok};
use crate::http::problem::{Answer, Problem};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::time::Duration;

/// How late the answer comes when there is too much to do: whoever scales by response times sees it.
const LATE: Duration = Duration::from_secs(1);

/// GET /pulse: 204, or 500 when the store does not answer or cannot be written.
pub(super) async fn pulse(State(app): State<Shared>) -> Answer<Response> {
    match store_fails(&app).await {
        None => Ok(StatusCode::NO_CONTENT.into_response()),
        Some(why) => {
            Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, why, "try again, or ask another node"))
        }
    }
}

/// GET /pulse/scaling: 204, late when more batches than a limit are due soon.
pub(super) async fn scaling(State(app): State<Shared>) -> Answer<Response> {
    let within = Duration::from_millis(app.config.routemaster_scaling_deadline_ms);
    let due: u64 = queues::all(&app, within).await?.iter().map(|queue| queue.due).sum();
    if due > app.config.routemaster_scaling_threshold {
        tokio::select! {
            () = tokio::time::sleep(LATE) => {}
            () = app.draining.cancelled() => {}
        }
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// GET /health: this process serves.
pub(super) async fn health() -> Response {
    ok(json!({})).into_response()
}

/// GET /health/ping: the time of the store, as far as this node knows.
pub(super) async fn ping(State(app): State<Shared>) -> Response {
    ok(json!({"pong": When(app.access.now())})).into_response()
}
