//! Rules: pause and resume for users, block and unblock for admins.

use crate::http::app::{App, Shared};
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::json::{When, ok};
use crate::http::params::Name;
use crate::http::problem::{Answer, Problem};
use crate::http::schema;
use crate::http::subscriptions::named;
use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tramline::{Rule, RuleKind, Scope, Time};
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::SecurityRequirement;
use utoipa::{Path, ToSchema};

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
    /// The pattern, if it comes from a rule for all subscriptions whose names match
    #[schema(value_type = Option<schema::Pattern>)]
    pattern: Option<String>,
    /// The number of that rule
    rule: Option<String>,
}

impl From<Rule> for RuleOut {
    fn from(rule: Rule) -> RuleOut {
        RuleOut {
            kind: rule.kind,
            by: rule.by,
            reason: rule.reason,
            since: When(rule.since),
            until: rule.until.map(When),
            rule: rule.source.as_ref().map(|(id, _)| id.to_string()),
            pattern: rule.source.map(|(_, pattern)| pattern.to_string()),
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
pub(crate) enum Act {
    Pause,
    Resume,
    Block,
    Unblock,
}

impl Act {
    pub(crate) const ALL: [Act; 4] = [Act::Pause, Act::Resume, Act::Block, Act::Unblock];

    fn word(self) -> &'static str {
        match self {
            Act::Pause => "pause",
            Act::Resume => "resume",
            Act::Block => "block",
            Act::Unblock => "unblock",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Act::Pause => {
                "Stops a subscription until it is resumed, or until a time. Events are kept; running ones go on."
            }
            Act::Resume => "Removes a pause. A block stays, and so does a pause by pattern.",
            Act::Block => "An admin stops a subscription until it is unblocked, or until a time.",
            Act::Unblock => "Removes a block. A pause stays, and so does a block by pattern.",
        }
    }

    fn scope(self) -> (Scope, &'static str) {
        match self {
            Act::Pause | Act::Resume => (Scope::Manage, "manage"),
            Act::Block | Act::Unblock => (Scope::Admin, "admin"),
        }
    }

    /// Where it is served.
    pub(crate) fn path(self) -> String {
        format!("/v1/subscriptions/{{name}}/{}", self.word())
    }

    /// Its description.
    pub(crate) fn operation(self) -> Operation {
        let mut operation = __path_rule::operation();
        operation.operation_id = Some(self.word().to_owned());
        operation.summary = Some(self.about().to_owned());
        operation.security = Some(vec![SecurityRequirement::new("token", [self.scope().1])]);
        operation
    }
}

/// Sets or removes a rule. What all four acts have in common is described here, the rest by [`Act`].
#[utoipa::path(post, path = "/v1/subscriptions/{name}/pause", tag = "rules", params(("name" = schema::Name, Path)),
    request_body = RuleIn, responses((status = 200, body = Rules)), security(("token" = ["manage"])))]
pub(crate) async fn rule(
    act: Act,
    app: Shared,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let subscription = named(&app, &caller, &[act.scope().0], name).await?;
    let body = app.read(&headers, body).await?;
    let rule: RuleIn = body::parse(&body)?;
    let reason = &*checked_reason(rule.reason)?;
    let (tram, name, by) = (&app.tram, &*subscription.name, caller.name());
    match act {
        Act::Pause => app.ask(tram.pause(name, by, reason, to_come(&app, rule.until)?)).await?,
        Act::Resume => app.ask(tram.resume(name, by, reason)).await?,
        Act::Block => app.ask(tram.block(name, by, reason, to_come(&app, rule.until)?)).await?,
        Act::Unblock => app.ask(tram.unblock(name, by, reason)).await?,
    }
    let stats = app.ask(tram.stats(name)).await?;
    Ok(ok(Rules { rules: stats.rules.into_iter().map(RuleOut::from).collect() }).into_response())
}

/// When a rule ends, if that is still to come: one that has ended already stops nothing, and nobody means that.
pub(crate) fn to_come(app: &App, until: Option<When>) -> Answer<Option<Time>> {
    match until {
        Some(When(time)) if time <= app.access.now() => {
            Err(Problem::invalid("the rule would have ended already", "let `until` be a time to come"))
        }
        until => Ok(until.map(|When(time)| time)),
    }
}

/// A reason, if it is short.
pub(crate) fn checked_reason(reason: String) -> Answer<String> {
    if reason.len() <= MAX_REASON && !reason.contains('\0') {
        return Ok(reason);
    }
    Err(Problem::invalid("the reason is not a short text", "use at most 1,000 bytes without NUL"))
}
