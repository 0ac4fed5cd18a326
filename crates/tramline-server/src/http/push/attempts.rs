//! What was tried: the last requests of a push subscription.

use crate::http::app::Shared;
use crate::http::caller::Caller;
use crate::http::json::{Id, List, When, ok};
use crate::http::params::{IdPage, Name, Params};
use crate::http::problem::Answer;
use crate::http::push::secrets::sending;
use crate::http::schema;
use crate::http::subscriptions::named;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tramline::store::verbs::NumberedAttempt;
use tramline::{Scope, Verdict};
use utoipa::ToSchema;

/// One request, and what came of it.
#[derive(Serialize, ToSchema)]
pub(crate) struct AttemptOut {
    at: When,
    verdict: Verdict,
    /// The status of the answer, if there was one
    status: Option<u16>,
    latency_ms: u64,
    /// The beginning of the answer, or why there was none
    excerpt: String,
    first_event: Id,
    last_event: Id,
    events: u32,
    /// How many of them were acknowledged
    acknowledged: u32,
}

impl From<NumberedAttempt> for AttemptOut {
    fn from(one: NumberedAttempt) -> AttemptOut {
        let attempt = one.attempt;
        AttemptOut {
            at: When(attempt.at),
            verdict: attempt.verdict,
            status: attempt.status,
            latency_ms: u64::try_from(attempt.latency.as_millis()).unwrap_or(u64::MAX),
            excerpt: attempt.excerpt,
            first_event: Id(attempt.first),
            last_event: Id(attempt.last),
            events: attempt.events,
            acknowledged: attempt.acknowledged,
        }
    }
}

/// The last requests of a push subscription, newest first; up to 200 are kept.
#[utoipa::path(get, path = "/v1/subscriptions/{name}/attempts", tag = "push", params(("name" = schema::Name, Path), IdPage),
    responses((status = 200, body = List<AttemptOut>)), security(("token" = ["manage"])))]
pub(crate) async fn list(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    Params(page): Params<IdPage>,
) -> Answer<Response> {
    let subscription = named(&app, &caller, &[Scope::Manage], name).await?;
    sending(&subscription)?;
    let before = Some(page.after()?.0).filter(|after| *after > 0).unwrap_or(i64::MAX);
    let found = app.ask(app.tram.attempts(&subscription.name, before, page.limit())).await?;
    let next =
        found.last().filter(|_| found.len() == page.limit() as usize).map(|last| last.number.to_string());
    Ok(ok(List { items: found.into_iter().map(AttemptOut::from).collect(), next }).into_response())
}
