//! Filling a tally: adding items, and sealing it.

use crate::http::app::App;
use crate::http::emit::text;
use crate::http::json::ok;
use crate::http::problem::Answer;
use crate::http::tallies::FILL;
use crate::http::tallies::about::About;
use crate::http::tallies::number::Number;
use crate::http::tallies::standing::Standing;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tramline::{TallyId, TallyItem};
use utoipa::ToSchema;

/// How many items to add.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AddIn {
    /// At least one; a tally has at most 2^40
    #[schema(minimum = 1)]
    count: u64,
    /// From inside this unfinished item of the same tally: a growing one takes them even after it was sealed
    within: Option<u64>,
}

/// Items that were added: `first`, `first + 1`, and so on.
#[derive(Serialize, ToSchema)]
pub(crate) struct AddedOut {
    /// The number of the first one. Between those of two additions are gaps
    first: u64,
    count: u64,
    #[serde(flatten)]
    standing: Standing,
}

/// Adds items, any number of them in one step.
#[utoipa::path(post, path = "/v1/tallies/{tally}/add", tag = "tallies", request_body = AddIn,
    params(("tally" = Number, Path), ("Idempotency-Key" = Option<String>, Header,
        description = "The same key gives the same items", nullable = false)),
    responses((status = 200, body = AddedOut),
        (status = 409, description = "It is sealed or has ended; the item is finished, or there is none; or the key was used for another number")),
    security(("token" = ["publish"]), ("token" = ["manage"])))]
pub(crate) async fn add(mut about: About) -> Answer<Response> {
    let AddIn { count, within } = about.read(FILL).await?;
    let About { app, tally, headers, .. } = about;
    let item = within.map(|number| TallyItem { tally, number });
    let tallies = app.tram.tallies();
    let added = match (item, text(&headers, "idempotency-key")?) {
        (None, None) => app.ask(tallies.add(tally, count)).await,
        (None, Some(key)) => app.ask(tallies.add_once(tally, count, key)).await,
        (Some(item), None) => app.ask(tallies.add_within(item, count)).await,
        (Some(item), Some(key)) => app.ask(tallies.add_within_once(item, count, key)).await,
    }?;
    let standing = stand(&app, tally, false).await;
    Ok(ok(AddedOut { first: added.first, count: added.count, standing }).into_response())
}

/// How far a tally is after something was done to it. What was done counts whether or not it can be told how far that is.
pub(crate) async fn stand(app: &App, tally: TallyId, completed_now: bool) -> Standing {
    match app.ask(app.tram.tallies().get(tally)).await {
        Ok(found) => Standing::of(&found, completed_now),
        Err(_) => Standing::unread(tally, completed_now),
    }
}

/// How a tally is sealed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SealIn {
    /// How many items it must have; with another number it stays open
    expected: Option<u64>,
}

/// Says that all items were added. Sealing again changes nothing. An empty tally is complete at once.
#[utoipa::path(post, path = "/v1/tallies/{tally}/seal", tag = "tallies", params(("tally" = Number, Path)), request_body = SealIn,
    responses((status = 200, body = Standing),
        (status = 409, description = "It was cancelled or has expired, or has another number of items")),
    security(("token" = ["publish"]), ("token" = ["manage"])))]
pub(crate) async fn seal(mut about: About) -> Answer<Response> {
    let SealIn { expected } = about.read(FILL).await?;
    let sealed = about.app.ask(about.app.tram.tallies().seal(about.tally, expected)).await?;
    Ok(ok(Standing::of(&sealed.tally, sealed.completed_now)).into_response())
}
