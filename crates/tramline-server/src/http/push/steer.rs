//! Enabling and disabling push subscriptions, and sending again what was sent since a time.

use crate::http::app::Shared;
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::json::{When, ok, parse_id};
use crate::http::params::Name;
use crate::http::problem::{Answer, Problem};
use crate::http::push::secrets::sending;
use crate::http::schema;
use crate::http::subscriptions::{named, told};
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tramline::{EventId, Scope};
use utoipa::ToSchema;

const MANAGE: &[Scope] = &[Scope::Manage];
/// The longest reason.
const MAX_REASON: usize = 1_000;

/// Sends again what a disabled push subscription has, as if it had never failed.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/enable", tag = "push", params(("name" = schema::Name, Path)),
    responses((status = 200, body = crate::http::subscriptions::SubscriptionOut)), security(("token" = ["manage"])))]
pub(crate) async fn enable(State(app): State<Shared>, caller: Caller, name: Name) -> Answer<Response> {
    let subscription = named(&app, &caller, MANAGE, name).await?;
    sending(&subscription)?;
    app.ask(app.tram.enable_push(&subscription.name, caller.name())).await?;
    Ok(ok(told(&app, &subscription).await?).into_response())
}

/// Why.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DisableIn {
    #[serde(default)]
    #[schema(max_length = 1000, pattern = "^[^\\u0000]*$")]
    reason: String,
}

/// Sends nothing of a push subscription any more, until it is enabled. Its events are kept.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/disable", tag = "push", params(("name" = schema::Name, Path)),
    request_body = DisableIn, responses((status = 200, body = crate::http::subscriptions::SubscriptionOut)),
    security(("token" = ["manage"])))]
pub(crate) async fn disable(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let subscription = named(&app, &caller, MANAGE, name).await?;
    sending(&subscription)?;
    let body = app.read(&headers, body).await?;
    let DisableIn { reason } = body::parse(&body)?;
    if reason.len() > MAX_REASON || reason.contains('\0') {
        return Err(Problem::invalid(
            "the reason is not a short text",
            "use at most 1,000 bytes without NUL",
        ));
    }
    app.ask(app.tram.disable_push(&subscription.name, caller.name(), &reason)).await?;
    Ok(ok(told(&app, &subscription).await?).into_response())
}

/// Since when, and where to go on.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplayIn {
    since: When,
    /// The `next` of the answer before
    after: Option<String>,
}

/// What is sent again.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReplayOut {
    count: u64,
    /// There is more: send the same again, with this as `after`
    next: Option<String>,
}

/// Makes a subscription get again what was emitted since a time and is still retained, whatever became of it; what is pending
/// stays as it is.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/replay", tag = "push", params(("name" = schema::Name, Path)),
    request_body = ReplayIn, responses((status = 200, body = ReplayOut)), security(("token" = ["manage"])))]
pub(crate) async fn replay(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let subscription = named(&app, &caller, MANAGE, name).await?;
    let body = app.read(&headers, body).await?;
    let ReplayIn { since, after } = body::parse(&body)?;
    let from = after.as_deref().map(place).transpose()?;
    let replayed = app.ask(app.tram.replay_since(&subscription.name, since.0, from)).await?;
    let next = replayed.next.map(|(topic, id)| format!("{topic}@{id}"));
    Ok(ok(ReplayOut { count: replayed.count, next }).into_response())
}

/// Where to go on: a topic, and an event of it.
fn place(after: &str) -> Answer<(&str, EventId)> {
    let parts = after.rsplit_once('@').and_then(|(topic, id)| Some((topic, parse_id(id)?.0)));
    parts.ok_or_else(|| {
        Problem::invalid("`after` is not where an answer ended", "send `next` as the answer before gave it")
    })
}
