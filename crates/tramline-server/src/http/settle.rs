//! What becomes of claimed events: settling, extending and giving back.

use crate::http::app::Shared;
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::claims::{CONSUME, LEASE, MAX_EVENTS, check_lease};
use crate::http::emit::delay_of;
use crate::http::json::{Id, Object, When, ok};
use crate::http::metrics::runs;
use crate::http::params::Name;
use crate::http::problem::{Answer, Problem};
use crate::http::schema;
use crate::http::subscriptions::named;
use crate::traces::settling::{Ended, Settling};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::time::Duration;
use tramline::store::verbs::Extended;
use tramline::{EventId, Lease, Outcome};
use utoipa::ToSchema;

/// What became of events.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettleIn<'a> {
    #[serde(borrow)]
    #[schema(value_type = Vec<ResultIn>, max_items = 10000)]
    results: Vec<Object<ResultIn<'a>>>,
}

/// What became of one event.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResultIn<'a> {
    id: Id,
    /// As the claim gave it
    #[serde(borrow)]
    lease: Cow<'a, str>,
    outcome: OutcomeIn,
    /// `retry`: instead of what the policy says; `snooze`: how long
    #[schema(value_type = Option<schema::Millis>)]
    delay_ms: Option<u64>,
    /// What went wrong
    #[serde(borrow, default)]
    error: Option<Cow<'a, str>>,
    /// The context in which it was run, or the one in the headers of the event: what is recorded of the settlement follows from it
    #[serde(borrow, default)]
    traceparent: Option<Cow<'a, str>>,
}

/// What a handler says of an event.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutcomeIn {
    Done,
    Retry,
    Snooze,
    Dead,
}

/// For each event, in the order of the request, whether its outcome counts.
#[derive(Serialize, ToSchema)]
pub(crate) struct SettleOut {
    results: Vec<ResultOut>,
}

/// Whether an outcome counts.
#[derive(Serialize, ToSchema)]
pub(crate) struct ResultOut {
    id: Id,
    status: SettleStatus,
}

/// What became of an outcome.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SettleStatus {
    /// It counts.
    Settled,
    /// The event is somebody else's by now.
    LeaseLost,
}

impl ResultIn<'_> {
    fn ended(&self) -> Ended<'_, EventId> {
        let traceparent = self.traceparent.as_deref();
        Ended { id: self.id.0, outcome: self.outcome.word(), traceparent }
    }

    fn outcome(&self) -> Answer<Outcome> {
        let delay = self.delay_ms.map(delay_of).transpose()?;
        let error = self.error.as_deref().unwrap_or_default().to_owned();
        Ok(match self.outcome {
            OutcomeIn::Done => Outcome::Done,
            OutcomeIn::Retry => Outcome::Retry { delay, error },
            OutcomeIn::Snooze => Outcome::Snooze { delay: delay.unwrap_or_default() },
            OutcomeIn::Dead => Outcome::Dead { error },
        })
    }
}

/// What is counted where an outcome does not.
const LOST: &str = "lease_lost";

impl OutcomeIn {
    fn word(self) -> &'static str {
        match self {
            OutcomeIn::Done => "done",
            OutcomeIn::Retry => "retry",
            OutcomeIn::Snooze => "snooze",
            OutcomeIn::Dead => "dead",
        }
    }
}

/// Writes outcomes back. May be partial; repeating it is harmless.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/settle", tag = "claims", params(("name" = schema::Name, Path)),
    request_body = SettleIn<'static>, responses((status = 200, body = SettleOut)), security(("token" = ["consume"])))]
pub(crate) async fn settle(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    request: Request,
) -> Answer<Response> {
    let subscription = named(&app, &caller, CONSUME, name).await?;
    let (head, body) = request.into_parts();
    let body = app.read(&head.headers, body).await?;
    let settle: SettleIn<'_> = body::parse(&body)?;
    if settle.results.len() > MAX_EVENTS as usize {
        return Err(Problem::invalid("there are too many results", "settle at most 10,000 events at once"));
    }
    let mut outcomes = Vec::with_capacity(settle.results.len());
    let mut asked = Vec::with_capacity(settle.results.len());
    for Object(result) in &settle.results {
        let outcome = result.outcome()?;
        // What is no lease at all is nobody's lease.
        let lease = result.lease.parse::<Lease>().ok();
        asked.push(lease.is_some());
        outcomes.extend(lease.map(|lease| (result.id.0, lease, outcome)));
    }
    // Only what failed is kept with a name.
    let failed = outcomes.iter().find(|(_, _, outcome)| !outcome.is_done());
    let worker = failed.and_then(|(_, lease, _)| app.workers.name(lease.owner()));
    let traced = settle.results.iter().map(|Object(result)| result.ended());
    let spans = Settling::begin(&app.tram, &subscription.name, traced);
    let mut answers = app.ask(app.tram.settle(subscription.id, outcomes, worker)).await?.into_iter();
    let accepted: Vec<bool> =
        asked.into_iter().map(|asked| asked && answers.next().unwrap_or(false)).collect();
    spans.ended(&accepted);
    let words = settle.results.iter().zip(&accepted);
    let words = words.map(|(Object(result), accepted)| if *accepted { result.outcome.word() } else { LOST });
    for (word, count) in runs(words) {
        app.metrics.settled.add_two(&subscription.name, word, count);
    }
    let told = |(Object(result), accepted): (&Object<ResultIn<'_>>, bool)| ResultOut {
        id: result.id,
        status: if accepted { SettleStatus::Settled } else { SettleStatus::LeaseLost },
    };
    let results = settle.results.iter().zip(accepted).map(told).collect();
    Ok(ok(SettleOut { results }).into_response())
}

/// Which leases.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeasesIn {
    #[schema(max_items = 10000)]
    leases: Vec<String>,
    /// From now on for this long; as the subscription says, or 60 s
    #[schema(minimum = 50, maximum = 86400000)]
    lease_ms: Option<u64>,
}

impl LeasesIn {
    fn check(&self) -> Answer<()> {
        if self.leases.len() > MAX_EVENTS as usize {
            return Err(Problem::invalid("there are too many leases", "send at most 10,000 at once"));
        }
        check_lease(self.lease_ms)
    }
}

/// For each lease, in the order of the request, how long it lasts now.
#[derive(Serialize, ToSchema)]
pub(crate) struct LeasesOut {
    results: Vec<LeaseOut>,
}

/// How long a lease lasts now.
#[derive(Serialize, ToSchema)]
pub(crate) struct LeaseOut {
    lease: String,
    status: LeaseStatus,
    lease_until: Option<When>,
}

/// What became of an extension.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LeaseStatus {
    /// It lasts longer.
    Extended,
    /// It has ended.
    LeaseLost,
    /// A transaction has it; try again.
    Busy,
}

/// Makes leases last longer, from now on.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/extend", tag = "claims", params(("name" = schema::Name, Path)),
    request_body = LeasesIn, responses((status = 200, body = LeasesOut)), security(("token" = ["consume"])))]
pub(crate) async fn extend(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let subscription = named(&app, &caller, CONSUME, name).await?;
    let body = app.read(&headers, body).await?;
    let extend: LeasesIn = body::parse(&body)?;
    extend.check()?;
    let known: Vec<Option<Lease>> = extend.leases.iter().map(|lease| lease.parse().ok()).collect();
    let lease = extend.lease_ms.map(Duration::from_millis).or(subscription.policy.lease).or(Some(LEASE));
    let leases: Vec<Lease> = known.iter().copied().flatten().collect();
    let mut answers = app.ask(app.tram.extend(subscription.id, leases, lease)).await?.into_iter();
    let told = |(lease, known): (String, Option<Lease>)| {
        let (status, lease_until) = match known.and_then(|_| answers.next()) {
            Some(Extended::Until(time)) => (LeaseStatus::Extended, Some(When(time))),
            Some(Extended::Locked) => (LeaseStatus::Busy, None),
            Some(Extended::Lost) | None => (LeaseStatus::LeaseLost, None),
        };
        LeaseOut { lease, status, lease_until }
    };
    let results = extend.leases.into_iter().zip(known).map(told).collect();
    Ok(ok(LeasesOut { results }).into_response())
}

/// How many leases were given back.
#[derive(Serialize, ToSchema)]
pub(crate) struct Released {
    leases: u64,
}

/// Gives events back at once, uncounted. Leases that are lost are passed over.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/release", tag = "claims", params(("name" = schema::Name, Path)),
    request_body = LeasesIn, responses((status = 200, body = Released)), security(("token" = ["consume"])))]
pub(crate) async fn release(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let subscription = named(&app, &caller, CONSUME, name).await?;
    let body = app.read(&headers, body).await?;
    let release: LeasesIn = body::parse(&body)?;
    release.check()?;
    let leases: Vec<Lease> = release.leases.iter().filter_map(|lease| lease.parse().ok()).collect();
    let leases = app.ask(app.tram.release(subscription.id, leases)).await?;
    Ok(ok(Released { leases }).into_response())
}
