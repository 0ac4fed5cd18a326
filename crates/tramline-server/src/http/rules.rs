//! Rules for all subscriptions whose names match: those that there are, and those that come.

use crate::http::app::Shared;
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::control::{checked_reason, to_come};
use crate::http::json::{Json, List, When, ok};
use crate::http::params::{Name, Page, Params};
use crate::http::problem::{Answer, Problem};
use crate::http::schema;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tramline::store::verbs::{RuleEnd, SetPatternRule};
use tramline::{Pattern, PatternRule, RuleKind, Scope};
use utoipa::{IntoParams, ToSchema};

const MANAGE: &[Scope] = &[Scope::Manage];

/// Which subscriptions to stop, why, and until when.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PatternRuleIn {
    /// A name in which a segment may be `*`, and the last one `**`
    #[schema(value_type = schema::Pattern)]
    pattern: String,
    /// `block` needs the scope admin
    kind: RuleKind,
    #[serde(default)]
    #[schema(max_length = 1000, pattern = "^[^\\u0000]*$")]
    reason: String,
    /// When it ends by itself
    until: Option<When>,
}

/// A rule for all subscriptions whose names match.
#[derive(Serialize, ToSchema)]
pub(crate) struct PatternRuleOut {
    /// Its number, by which it is removed
    id: String,
    pattern: String,
    kind: RuleKind,
    by: String,
    reason: String,
    since: When,
    until: Option<When>,
    /// Only subscriptions of which all topics match one of these; null: whatever they consume
    #[schema(value_type = Option<Vec<schema::Pattern>>)]
    topics: Option<Vec<Pattern>>,
    /// How many subscriptions it stops now
    subscriptions: u64,
}

impl From<PatternRule> for PatternRuleOut {
    fn from(rule: PatternRule) -> PatternRuleOut {
        PatternRuleOut {
            id: rule.id.to_string(),
            pattern: rule.pattern.to_string(),
            kind: rule.kind,
            by: rule.by,
            reason: rule.reason,
            since: When(rule.since),
            until: rule.until.map(When),
            topics: rule.topics,
            subscriptions: rule.subscriptions,
        }
    }
}

fn scope(kind: RuleKind) -> &'static [Scope] {
    match kind {
        RuleKind::Pause => MANAGE,
        RuleKind::Block => &[Scope::Admin],
    }
}

/// Pauses or blocks all subscriptions whose names match the pattern, also those that are created later. The token has to cover the
/// pattern; subscriptions that consume what it may not see are left alone. The same pattern and kind again change reason and end.
#[utoipa::path(post, path = "/v1/rules", tag = "rules", request_body = PatternRuleIn,
    responses((status = 201, body = PatternRuleOut), (status = 409, description = "There are 1,000 already")), security(("token" = ["manage"])))]
pub(crate) async fn create(
    State(app): State<Shared>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    caller.needs(MANAGE)?;
    let body = app.read(&headers, body).await?;
    let rule: PatternRuleIn = body::parse(&body)?;
    let pattern: Pattern = rule.pattern.parse()?;
    caller.covers(scope(rule.kind), &pattern)?;
    let set = SetPatternRule {
        pattern,
        topics: caller.topics().map(<[Pattern]>::to_vec),
        kind: rule.kind,
        until: to_come(&app, rule.until)?.map_or(RuleEnd::Open, RuleEnd::At),
        by: caller.name().to_owned(),
        reason: checked_reason(rule.reason)?,
        now: None,
    };
    let rule = app.ask(app.tram.set_pattern_rule(set)).await?;
    Ok(Json(StatusCode::CREATED, PatternRuleOut::from(rule)).into_response())
}

/// The rules by pattern in force that the token covers, by number.
#[utoipa::path(get, path = "/v1/rules", tag = "rules", params(Page),
    responses((status = 200, body = List<PatternRuleOut>)), security(("token" = ["manage"])))]
pub(crate) async fn list(
    State(app): State<Shared>,
    caller: Caller,
    Params(page): Params<Page>,
) -> Answer<Response> {
    caller.needs(MANAGE)?;
    let after = match page.after() {
        None | Some("") => 0,
        Some(text) => text.parse::<i64>().map_err(|_| {
            Problem::invalid("`after` is not the number of a rule", "send the `next` of the page before")
        })?,
    };
    let mut rules = app.ask(app.tram.pattern_rules()).await?;
    rules.retain(|rule| rule.id > after && owns(&caller, rule));
    let more = rules.len() > page.limit() as usize;
    rules.truncate(page.limit() as usize);
    let next = rules.last().filter(|_| more).map(|last| last.id.to_string());
    Ok(ok(List { items: rules.into_iter().map(PatternRuleOut::from).collect(), next }).into_response())
}

/// How many subscriptions a rule stopped.
#[derive(Serialize, ToSchema)]
pub(crate) struct Released {
    subscriptions: u64,
}

/// Why a rule is removed.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Why {
    /// Why, for the record
    #[serde(default)]
    #[param(max_length = 1000)]
    reason: String,
}

/// Removes a rule by pattern. All subscriptions that it stopped go on, unless another rule stops them.
#[utoipa::path(delete, path = "/v1/rules/{rule}", tag = "rules", params(("rule" = String, Path, pattern = "^[0-9]{1,19}$"), Why),
    responses((status = 200, body = Released)), security(("token" = ["manage"])))]
pub(crate) async fn delete(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    Params(why): Params<Why>,
) -> Answer<Response> {
    caller.needs(MANAGE)?;
    let reason = checked_reason(why.reason)?;
    let unknown = || Problem::not_found("there is no such rule, or it has ended");
    let rules = app.ask(app.tram.pattern_rules()).await?;
    let rule = rules.iter().find(|rule| rule.id.to_string() == name.0 && owns(&caller, rule));
    let rule = rule.ok_or_else(unknown)?;
    caller.needs(scope(rule.kind))?;
    let subscriptions = app.ask(app.tram.remove_pattern_rule(rule.id, caller.name(), &reason)).await?;
    Ok(ok(Released { subscriptions }).into_response())
}

/// True if the caller could have set the rule: both its names and its topics are the caller's.
fn owns(caller: &Caller, rule: &PatternRule) -> bool {
    caller.covers(MANAGE, &rule.pattern).is_ok() && caller.covers_topics(rule.topics.as_deref())
}
