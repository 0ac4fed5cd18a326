//! Plain counters: estimated tallies, counted up and down.

use crate::http::json::ok;
use crate::http::problem::{Answer, Problem};
use crate::http::tallies::about::About;
use crate::http::tallies::number::Number;
use crate::http::tallies::standing::Standing;
use crate::http::tallies::{COUNT, access};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tramline::model::tally::MAX_ITEMS;
use utoipa::ToSchema;

/// By how much to count.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CountIn {
    /// Positive for work that was added, negative for work that was done; not zero, and at most 2^40
    by: i64,
}

/// Counts an estimated tally up or down. Not to be repeated blindly: what is counted twice is in the counts twice.
#[utoipa::path(post, path = "/v1/tallies/{tally}/count", tag = "tallies", params(("tally" = Number, Path)), request_body = CountIn,
    responses((status = 200, body = Standing), (status = 409, description = "It is sealed, or has ended, and cannot be counted up")),
    security(("token" = ["publish"]), ("token" = ["consume"]), ("token" = ["manage"])))]
pub(crate) async fn count(mut about: About) -> Answer<Response> {
    let CountIn { by } = about.read(COUNT).await?;
    let About { app, tally, .. } = about;
    if by == 0 || by.unsigned_abs() > MAX_ITEMS {
        return Err(Problem::invalid("`by` is out of range", "count by 1 to 2^40, up or down"));
    }
    let mut counted = app.ask(app.tram.tallies().count(vec![(tally, by)])).await?;
    let counted = counted.pop().ok_or_else(access::unknown)??;
    if by < 0 {
        app.metrics.tally_items.add("done", by.unsigned_abs());
    }
    Ok(ok(Standing::of(&counted.tally, counted.completed_now)).into_response())
}
