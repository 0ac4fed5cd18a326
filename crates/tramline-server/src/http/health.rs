//! Whether this node lives, and whether it can serve.

use crate::http::app::{App, Shared};
use crate::http::json::ok;
use crate::http::problem::{Answer, Problem};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::sync::atomic::Ordering;
use std::time::Duration;
use utoipa::ToSchema;

/// How long the store may take to show that it is there.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// All is well.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    status: HealthStatus,
}

/// How it goes.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HealthStatus {
    Ok,
}

/// The process runs.
#[utoipa::path(get, path = "/health/live", tag = "health", responses((status = 200, body = Health)))]
pub(crate) async fn live() -> Response {
    ok(Health { status: HealthStatus::Ok }).into_response()
}

/// The node serves, and its store answers. After something failed in the store, only if the store can be written: one on a full disk
/// still answers.
#[utoipa::path(get, path = "/health/ready", tag = "health", responses((status = 200, body = Health),
    (status = 503, description = "The node is about to stop, or its store does not answer or cannot be written")))]
pub(crate) async fn ready(State(app): State<Shared>) -> Answer<Response> {
    let not_ready =
        |detail| Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail, "try again, or ask another node");
    if app.draining.is_cancelled() {
        return Err(not_ready("this node is about to stop"));
    }
    match store_fails(&app).await {
        None => Ok(ok(Health { status: HealthStatus::Ok }).into_response()),
        Some(why) => Err(not_ready(why)),
    }
}

/// What is wrong with the store, if anything is.
pub(crate) async fn store_fails(app: &App) -> Option<&'static str> {
    let store = app.tram.store();
    if !matches!(tokio::time::timeout(PATIENCE, store.now()).await, Ok(Ok(_))) {
        return Some("the store does not answer");
    }
    // Only in doubt: nobody needs a token to ask, and a write has its price. Doubt that comes up meanwhile stays.
    let doubted = &app.metrics.store_doubted;
    if doubted.swap(false, Ordering::Relaxed)
        && !matches!(tokio::time::timeout(PATIENCE, store.probe()).await, Ok(Ok(())))
    {
        doubted.store(true, Ordering::Relaxed);
        return Some("the store cannot be written");
    }
    None
}
