//! Who paused, resumed, blocked and unblocked a subscription, and why.

use crate::http::app::Shared;
use crate::http::caller::Caller;
use crate::http::json::{List, When, ok};
use crate::http::params::{Name, Newest, Params};
use crate::http::problem::Answer;
use crate::http::schema;
use crate::http::subscriptions::named;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tramline::{AuditEntry, Scope};
use utoipa::ToSchema;

/// What somebody did to the rules of a subscription.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditOut {
    at: When,
    by: String,
    /// `pause`, `resume`, `block` or `unblock`
    action: String,
    reason: String,
    /// The pattern, if it was done to all subscriptions whose names match
    #[schema(value_type = Option<schema::Pattern>)]
    pattern: Option<String>,
}

impl From<AuditEntry> for AuditOut {
    fn from(entry: AuditEntry) -> AuditOut {
        AuditOut {
            at: When(entry.at),
            by: entry.by,
            action: entry.action,
            reason: entry.reason,
            pattern: entry.pattern.map(|pattern| pattern.to_string()),
        }
    }
}

/// What was done to the rules of a subscription, by whom and why, newest first.
#[utoipa::path(get, path = "/v1/subscriptions/{name}/audit", tag = "rules", params(("name" = schema::Name, Path), Newest),
    responses((status = 200, body = List<AuditOut>)), security(("token" = ["manage"])))]
pub(crate) async fn audit(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    Params(newest): Params<Newest>,
) -> Answer<Response> {
    let subscription = named(&app, &caller, &[Scope::Manage], name).await?;
    let entries = app.ask(app.tram.audit(&subscription.name, newest.limit())).await?;
    Ok(ok(List { items: entries.into_iter().map(AuditOut::from).collect(), next: None }).into_response())
}
