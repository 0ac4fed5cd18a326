//! Estimated batches: plain counters, where what is counted twice is in the count twice.

use super::outcome::{Refused, answer};
use super::{Asked, BatchOut, CreatedOut, ESTIMATED, find, malformed, read, unknown};
use crate::http::app::{App, Shared};
use crate::http::caller::Caller;
use crate::http::json::{Object, ok};
use crate::http::params::Name;
use crate::http::problem::{Answer, Problem};
use crate::http::tallies::{ACK, FILL, MANAGE, SEE, access};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tramline::model::tally::MAX_ITEMS;
use tramline::model::tally::group::{counter_name, parse_counter};
use tramline::{Scope, Tally, TallyId};

/// How many batches one call counts down.
const MAX_ACKS: usize = 10_000;

/// POST /
pub(super) async fn create(
    State(app): State<Shared>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let batch = super::create(&app, &caller, ESTIMATED, &headers, body).await?;
    Ok(ok(CreatedOut { batch_id: counter_name(batch) }).into_response())
}

/// The batch behind a name, if the caller may see it.
async fn named(app: &App, caller: &Caller, any: &[Scope], id: &str) -> Answer<Tally> {
    caller.needs(any)?;
    if !is_uuid(id) {
        let detail = "the id of an estimated batch is a UUID";
        return Err(Problem::malformed(detail, "send it as creating the batch gave it"));
    }
    find(app, caller, any, ESTIMATED, parse_counter(id).ok_or_else(unknown)?).await
}

/// UUIDs that were not made here name nothing; everything else is malformed.
fn is_uuid(text: &str) -> bool {
    let dash = |at| [8, 13, 18, 23].contains(&at);
    let fits = |(at, byte): (usize, u8)| if dash(at) { byte == b'-' } else { byte.is_ascii_hexdigit() };
    text.len() == 36 && text.bytes().enumerate().all(fits)
}

/// GET /:id
pub(super) async fn get(State(app): State<Shared>, caller: Caller, id: Name) -> Answer<Response> {
    let batch = named(&app, &caller, SEE, &id.0).await?;
    Ok(ok(BatchOut::from(batch)).into_response())
}

/// By how much to count up.
#[derive(Deserialize)]
pub(super) struct By {
    by: Option<String>,
}

/// POST /:id/incr?by=
pub(super) async fn incr(
    State(app): State<Shared>,
    caller: Caller,
    id: Name,
    Asked(By { by }): Asked<By>,
) -> Answer<Response> {
    let batch = named(&app, &caller, FILL, &id.0).await?;
    let by = by.map_or(Some(1), |text| text.parse().ok()).filter(|by| countable(*by));
    let by = by.ok_or_else(|| Problem::malformed("`by` is not a number to count by", "send 1 to 2^40"))?;
    let mut counted = app.ask(app.tram.tallies().count(vec![(batch.id, by)])).await?;
    counted.pop().ok_or_else(unknown)?.map_err(|error| malformed(error.into()))?;
    Ok(StatusCode::OK.into_response())
}

fn countable(by: i64) -> bool {
    by > 0 && by.unsigned_abs() <= MAX_ITEMS
}

/// Batches to count down.
#[derive(Deserialize)]
pub(super) struct DecrIn {
    acks: Vec<Object<OneDecrIn>>,
}

/// A batch to count down.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OneDecrIn {
    batch_id: Value,
    #[serde(default = "once")]
    by: Value,
}

fn once() -> Value {
    1.into()
}

#[derive(Serialize)]
struct DecrOut {
    results: Vec<CountedOut>,
}

/// How far a batch is after it was counted.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CountedOut {
    batch_id: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_key: Option<String>,
    is_complete: bool,
    /// Only where it was not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

impl CountedOut {
    fn counted(batch: Tally) -> CountedOut {
        CountedOut {
            batch_id: counter_name(batch.id).into(),
            is_complete: batch.is_complete(),
            user_key: batch.user_key,
            status: None,
            detail: None,
        }
    }

    fn refused(batch_id: Value, refused: &Refused) -> CountedOut {
        let (status, detail) = (Some(refused.status.as_u16()), Some(refused.detail.clone()));
        CountedOut { batch_id, user_key: None, is_complete: false, status, detail }
    }
}

/// POST /decr
pub(super) async fn decr(
    State(app): State<Shared>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    caller.needs(ACK)?;
    let DecrIn { acks } = read(&app, &headers, body).await?;
    if acks.len() > MAX_ACKS {
        return Err(Problem::malformed("there are too many acks", "count down at most 10,000 at a time"));
    }
    let mut judged = Vec::new();
    for Object(one) in &acks {
        judged.push(one.judge(&app, &caller).await?);
    }
    let counts = judged.iter().flatten().copied().collect();
    let mut counted = app.ask(app.tram.tallies().count(counts)).await?.into_iter();
    let (mut refused, mut results) = (Vec::new(), Vec::new());
    for (Object(one), judged) in acks.into_iter().zip(judged) {
        let counted = judged.and_then(|(_, by)| match counted.next() {
            Some(Ok(counted)) => Ok((counted.tally, by)),
            _ => Err(Refused::unknown()),
        });
        match counted {
            Ok((batch, by)) => {
                app.metrics.tally_items.add("done", by.unsigned_abs());
                results.push(CountedOut::counted(batch));
                refused.push(None);
            }
            Err(why) => {
                results.push(CountedOut::refused(one.batch_id, &why));
                refused.push(Some(why));
            }
        }
    }
    Ok(answer(&refused, DecrOut { results }))
}

impl OneDecrIn {
    /// Which batch to count, and by how much; or why not, as far as that is known before.
    async fn judge(&self, app: &App, caller: &Caller) -> Answer<Result<(TallyId, i64), Refused>> {
        let Some(id) = self.batch_id.as_str().filter(|id| is_uuid(id)) else {
            return Ok(Err(Refused::no_batch(&self.batch_id)));
        };
        let Some(by) = self.by.as_i64().filter(|by| countable(*by)) else {
            return Ok(Err(Refused::no_count(&self.by, &self.batch_id)));
        };
        match parse_counter(id) {
            Some(batch) if access::sees(app, caller, batch).await? => Ok(Ok((batch, -by))),
            _ => Ok(Err(Refused::unknown())),
        }
    }
}

/// POST /:id/close
pub(super) async fn close(State(app): State<Shared>, caller: Caller, id: Name) -> Answer<Response> {
    let batch = named(&app, &caller, FILL, &id.0).await?;
    let closed = app.ask(app.tram.tallies().seal(batch.id, None)).await?;
    Ok(ok(CountedOut::counted(closed.tally)).into_response())
}

/// DELETE /:id
pub(super) async fn delete(State(app): State<Shared>, caller: Caller, id: Name) -> Answer<Response> {
    let batch = named(&app, &caller, MANAGE, &id.0).await?;
    app.ask(app.tram.tallies().delete(batch.id)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
