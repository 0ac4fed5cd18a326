//! Rules: pause and resume for users, block and unblock for admins.

use crate::http::app::Shared;
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::json::{When, ok};
use crate::http::params::Name;
use crate::http::problem::{Answer, Problem};
use crate::http::schema;
use crate::http::subscriptions::named;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tramline::{Rule, RuleKind, Scope};
use utoipa::ToSchema;

/// The longest reason.
const MAX_REASON: usize = 1_000;

/// Why, and until when.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleIn {
    #[serde(default)]
    #[schema(max_length = 1000, pattern = "^[^\\u0000]*$")]
    reason: String,
    /// When it ends by itself
    until: Option<When>,
}

/// A rule in force.
#[derive(Serialize, ToSchema)]
pub(crate) struct RuleOut {
    kind: RuleKind,
    by: String,
    reason: String,
    since: When,
    until: Option<When>,
}

impl From<Rule> for RuleOut {
    fn from(rule: Rule) -> RuleOut {
        RuleOut {
            kind: rule.kind,
            by: rule.by,
            reason: rule.reason,
            since: When(rule.since),
            until: rule.until.map(When),
        }
    }
}

/// The rules in force.
#[derive(Serialize, ToSchema)]
pub(crate) struct Rules {
    rules: Vec<RuleOut>,
}

/// What can be done to a rule.
#[derive(Clone, Copy)]
enum Act {
    Pause,
    Resume,
    Block,
    Unblock,
}

/// Stops a subscription until it is resumed, or until a time. Events are kept; running ones go on.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/pause", tag = "rules", params(("name" = schema::Name, Path)),
    request_body = RuleIn, responses((status = 200, body = Rules)), security(("token" = ["manage"])))]
pub(crate) async fn pause(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    act(app, caller, Act::Pause, name, headers, body).await
}

/// Removes a pause. A block stays.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/resume", tag = "rules", params(("name" = schema::Name, Path)),
    request_body = RuleIn, responses((status = 200, body = Rules)), security(("token" = ["manage"])))]
pub(crate) async fn resume(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    act(app, caller, Act::Resume, name, headers, body).await
}

/// An admin stops a subscription until it is unblocked, or until a time.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/block", tag = "rules", params(("name" = schema::Name, Path)),
    request_body = RuleIn, responses((status = 200, body = Rules)), security(("token" = ["admin"])))]
pub(crate) async fn block(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    act(app, caller, Act::Block, name, headers, body).await
}

/// Removes a block. A pause stays.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/unblock", tag = "rules", params(("name" = schema::Name, Path)),
    request_body = RuleIn, responses((status = 200, body = Rules)), security(("token" = ["admin"])))]
pub(crate) async fn unblock(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    act(app, caller, Act::Unblock, name, headers, body).await
}

async fn act(
    app: Shared,
    caller: Caller,
    act: Act,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let scope = if matches!(act, Act::Pause | Act::Resume) { Scope::Manage } else { Scope::Admin };
    let subscription = named(&app, &caller, &[scope], name).await?;
    let body = app.read(&headers, body).await?;
    let rule: RuleIn = body::parse(&body)?;
    if rule.reason.len() > MAX_REASON || rule.reason.contains('\0') {
        return Err(Problem::invalid(
            "the reason is not a short text",
            "use at most 1,000 bytes without NUL",
        ));
    }
    let (tram, name, by, reason) = (&app.tram, &*subscription.name, caller.name(), &*rule.reason);
    let until = rule.until.map(|until| until.0);
    match act {
        Act::Pause => app.ask(tram.pause(name, by, reason, until)).await?,
        Act::Resume => app.ask(tram.resume(name, by, reason)).await?,
        Act::Block => app.ask(tram.block(name, by, reason, until)).await?,
        Act::Unblock => app.ask(tram.unblock(name, by, reason)).await?,
    }
    let stats = app.ask(tram.stats(name)).await?;
    Ok(ok(Rules { rules: stats.rules.into_iter().map(RuleOut::from).collect() }).into_response())
}
