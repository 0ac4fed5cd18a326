//! Whether this node lives, and whether it can serve.

use crate::http::app::{App, Shared};
use crate::http::json::ok;
use crate::http::problem::{Answer, Problem};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

/// How long the store may take to show that it is there.
const PATIENCE: Duration = Duration::from_secs(2);

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

/// The node serves, and its store answers.
#[utoipa::path(get, path = "/health/ready", tag = "health", responses((status = 200, body = Health),
    (status = 503, description = "The node is about to stop, or its store does not answer")))]
pub(crate) async fn ready(State(app): State<Shared>) -> Answer<Response> {
    let not_ready =
        |detail| Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail, "try again, or ask another node");
    if app.draining.is_cancelled() {
        return Err(not_ready("this node is about to stop"));
    }
    match answers(&app).await {
        true => Ok(ok(Health { status: HealthStatus::Ok }).into_response()),
        false => Err(not_ready("the store does not answer")),
    }
}

/// True if the store answers in time.
pub(crate) async fn answers(app: &App) -> bool {
    tokio::time::timeout(PATIENCE, app.tram.store().now()).await.is_ok_and(|now| now.is_ok())
}
