//! Giving tallies up: cancelling and deleting.

use crate::http::app::Shared;
use crate::http::caller::Caller;
use crate::http::json::ok;
use crate::http::problem::Answer;
use crate::http::tallies::number::{InPath, Number};
use crate::http::tallies::standing::Standing;
use crate::http::tallies::{MANAGE, access};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

/// Gives a tally up: nothing changes it any more, and it will never be complete. Cancelling again changes nothing.
#[utoipa::path(post, path = "/v1/tallies/{tally}/cancel", tag = "tallies", params(("tally" = Number, Path)),
    responses((status = 200, body = Standing), (status = 409, description = "It is complete or has expired")),
    security(("token" = ["manage"])))]
pub(crate) async fn cancel(
    State(app): State<Shared>,
    caller: Caller,
    InPath(tally): InPath,
) -> Answer<Response> {
    access::check(&app, &caller, MANAGE, tally).await?;
    let cancelled = app.ask(app.tram.tallies().cancel(tally)).await?;
    Ok(ok(Standing::of(&cancelled, false)).into_response())
}

/// Deletes a tally, in whatever state. Its items need no ack any more.
#[utoipa::path(delete, path = "/v1/tallies/{tally}", tag = "tallies", params(("tally" = Number, Path)),
    responses((status = 204, description = "Deleted")), security(("token" = ["manage"])))]
pub(crate) async fn delete(
    State(app): State<Shared>,
    caller: Caller,
    InPath(tally): InPath,
) -> Answer<Response> {
    access::check(&app, &caller, MANAGE, tally).await?;
    app.ask(app.tram.tallies().delete(tally)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
