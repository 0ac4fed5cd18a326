//! Exact batches: every item is known by its name.

use super::{Asked, BatchOut, CreatedOut, EXACT, find, malformed, read};
use crate::http::app::{App, Shared};
use crate::http::caller::Caller;
use crate::http::json::{ok, parse_time};
use crate::http::params::Name;
use crate::http::problem::{Answer, Problem};
use crate::http::tallies::{FILL, MANAGE, SEE};
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tramline::{TallyId, Time};

/// How many items one call adds. Carlyle's own clients add 10,000; the answer to this many weighs about 9 MB.
const MAX_ITEMS: i64 = 10_000_000;

/// POST /
pub(super) async fn create(
    State(app): State<Shared>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let batch = super::create(&app, &caller, EXACT, &headers, body).await?;
    Ok(ok(CreatedOut { batch_id: batch.0 }).into_response())
}

/// GET /:id
pub(super) async fn get(State(app): State<Shared>, caller: Caller, id: Name) -> Answer<Response> {
    let batch = find(&app, &caller, SEE, EXACT, parse(&id.0)?).await?;
    Ok(ok(BatchOut::from(batch)).into_response())
}

fn parse(id: &str) -> Answer<TallyId> {
    id.parse().map(TallyId).map_err(|_| {
        Problem::malformed("the id of a batch is a whole number", "send it as creating the batch gave it")
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ClosedOut {
    is_complete: bool,
}

/// POST /close/:id
pub(super) async fn close(State(app): State<Shared>, caller: Caller, id: Name) -> Answer<Response> {
    let batch = find(&app, &caller, FILL, EXACT, parse(&id.0)?).await?;
    let closed = app.ask(app.tram.tallies().seal(batch.id, None)).await?;
    Ok(ok(ClosedOut { is_complete: closed.tally.is_complete() }).into_response())
}

/// Items to add.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ItemsIn {
    batch_id: i64,
    items: i64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ItemsOut {
    batch_item_group_ids: Vec<GroupOut>,
}

#[derive(Serialize)]
struct GroupOut {
    id: String,
    upto: u32,
}

/// POST /items
pub(super) async fn items(
    State(app): State<Shared>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    caller.needs(FILL)?;
    let add: ItemsIn = read(&app, &headers, body).await?;
    if !(1..=MAX_ITEMS).contains(&add.items) {
        let detail = format!("{} items cannot be added", add.items);
        return Err(Problem::malformed(detail, "add 1 to 10,000,000 at a time"));
    }
    let batch = find(&app, &caller, FILL, EXACT, TallyId(add.batch_id)).await?.id;
    let added = app.ask(app.tram.tallies().add(batch, add.items.unsigned_abs())).await.map_err(malformed)?;
    let group =
        |group: tramline::model::tally::group::Group| GroupOut { id: group.id.to_string(), upto: group.upto };
    Ok(ok(ItemsOut { batch_item_group_ids: added.groups(batch).map(group).collect() }).into_response())
}

/// Which batches to remove.
#[derive(Deserialize)]
pub(super) struct Since {
    since: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RemovedOut {
    batches_removed: u64,
    items_removed: u64,
}

/// DELETE /open?since=
pub(super) async fn remove_open(
    State(app): State<Shared>,
    caller: Caller,
    Asked(since): Asked<Since>,
) -> Answer<Response> {
    remove(&app, &caller, true, since).await
}

/// DELETE /closed?since=
pub(super) async fn remove_closed(
    State(app): State<Shared>,
    caller: Caller,
    Asked(since): Asked<Since>,
) -> Answer<Response> {
    remove(&app, &caller, false, since).await
}

/// Removes batches to which nothing has happened since a time.
async fn remove(app: &App, caller: &Caller, open: bool, since: Since) -> Answer<Response> {
    caller.topic(MANAGE, EXACT)?;
    let since = since.since.as_deref().and_then(time).ok_or_else(|| {
        Problem::malformed(
            "`since` is not a time",
            "send one such as 2030-01-31T12:00:00Z, or milliseconds since 1970",
        )
    })?;
    let removed = app.ask(app.tram.tallies().reap(open, since, Some(EXACT))).await?;
    let (batches_removed, items_removed) = (removed.tallies, removed.items);
    Ok(ok(RemovedOut { batches_removed, items_removed }).into_response())
}

/// A time as Carlyle's clients write it: ISO 8601, or milliseconds. A `+` in a query is a space when it is read.
fn time(text: &str) -> Option<Time> {
    if let Ok(millis) = text.parse::<i64>() {
        return Some(Time(millis));
    }
    let text = text.trim().replace(' ', "+");
    parse_time(&text).or_else(|| parse_time(&format!("{text}Z"))).map(|when| when.0)
}
