//! Claims: taking events, settling, extending and giving back.

use crate::http::access::Caller;
use crate::http::app::Shared;
use crate::http::body;
use crate::http::emit::delay_of;
use crate::http::given::Given;
use crate::http::json::{EventOut, Id, When, ok};
use crate::http::limits::Slot;
use crate::http::params::Name;
use crate::http::problem::{Answer, Problem};
use crate::http::subscriptions::named;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tramline::store::verbs::{Claimed, ClaimedEvent, ClaimedSlice, Extended};
use tramline::{Incarnation, Lease, Outcome, Scope, Take};
use utoipa::ToSchema;

/// How long a claim over HTTP lasts unless somebody says otherwise.
pub(crate) const LEASE: Duration = Duration::from_secs(60);
/// The shortest and the longest lease.
const LEASES: std::ops::RangeInclusive<u64> = 50..=24 * 3600 * 1000;
/// The most events of one claim or settlement, and about how much an answer weighs at most.
const MAX_EVENTS: u32 = 10_000;
const MAX_BYTES: usize = 4 << 20;
/// No claim can be meant to wait for longer.
const MAX_WAIT_MS: u64 = 24 * 3600 * 1000;
/// The longest name of a worker.
const MAX_WORKER: usize = 200;

const CONSUME: &[Scope] = &[Scope::Consume];

/// What to take.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimIn {
    /// Who takes it, for those who look
    #[serde(default)]
    worker: String,
    /// At most this many; one unless set
    max_events: Option<u32>,
    /// For how long; as the subscription says, or 60 s
    lease_ms: Option<u64>,
    /// How long to wait if there is nothing
    #[serde(default)]
    wait_ms: u64,
}

/// What was taken.
#[derive(Serialize, ToSchema)]
pub(crate) struct Claims<'a> {
    events: Vec<ClaimOut<'a>>,
}

/// A claimed event.
#[derive(Serialize, ToSchema)]
pub(crate) struct ClaimOut<'a> {
    #[serde(flatten)]
    event: EventOut<'a>,
    /// The right to settle it
    lease: &'a str,
    /// Settled failures
    attempt: u32,
    /// Leases that ended by expiry
    crashes: u32,
    lease_until: When,
    /// Preceding events of its key that this subscription will never see
    #[serde(skip_serializing_if = "Vec::is_empty")]
    skipped: Vec<Id>,
    /// True if somebody replayed it: it may come out of order
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    replayed: bool,
}

/// Takes events for a limited time. If there are none, waits for some up to `wait_ms`.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/claim", tag = "claims", params(("name" = String, Path)),
    request_body = ClaimIn, responses((status = 200, body = Claims<'static>)), security(("token" = ["consume"])))]
pub(crate) async fn claim(
    State(app): State<Shared>,
    caller: Caller,
    Extension(slot): Extension<Slot>,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let subscription = named(&app, &caller, CONSUME, name).await?;
    let body = body::read(&headers, body, app.config.max_body, app.config.body_timeout()).await?;
    let claim: ClaimIn = body::parse(&body)?;
    claim.check()?;
    let policy = &subscription.policy;
    let take = Take {
        subscription: subscription.id,
        owner: Incarnation::random(),
        max_events: claim.max_events.unwrap_or(1).min(policy.claim_size()),
        max_bytes: MAX_BYTES,
        lease: claim.lease_ms.map(Duration::from_millis).or(policy.lease).or(Some(LEASE)),
    };
    app.workers.claims(&claim.worker, &subscription.name, take.owner);
    // A claim that waits does no work; it must not take the place of one that does.
    let seat = if claim.wait_ms > 0 { app.waiting.clone().try_acquire_owned().ok() } else { None };
    if seat.is_some() {
        slot.leave();
    }
    let wait = if seat.is_some() { claim.wait_ms.min(app.config.max_wait_ms) } else { 0 };
    let given = Given::take(&app, &subscription, take, Duration::from_millis(wait)).await;
    drop(seat);
    match given {
        Ok(given) => given.answer(write),
        Err(problem) => {
            // It may have been deleted and created again, under another number.
            app.forget(&subscription.name);
            Err(problem)
        }
    }
}

/// The answer to a claim. Events ascend, so that those of a key come in their order.
fn write(claimed: &Claimed) -> Answer<Vec<u8>> {
    let leases: Vec<String> = claimed.slices.iter().map(|slice| slice.lease.to_string()).collect();
    let mut events = Vec::new();
    for (slice, lease) in claimed.slices.iter().zip(&leases) {
        events.extend(slice.events.iter().map(|event| ClaimOut::new(slice, lease, event)));
    }
    events.sort_by_key(|event| event.event.id.0);
    Ok(serde_json::to_vec(&Claims { events })?)
}

impl<'a> ClaimOut<'a> {
    fn new(slice: &'a ClaimedSlice, lease: &'a str, claimed: &'a ClaimedEvent) -> ClaimOut<'a> {
        ClaimOut {
            event: EventOut::new(&claimed.event),
            lease,
            attempt: slice.attempts,
            crashes: slice.crashes,
            lease_until: When(slice.until),
            skipped: claimed.skipped.iter().copied().map(Id).collect(),
            replayed: slice.replayed,
        }
    }
}

impl ClaimIn {
    fn check(&self) -> Answer<()> {
        if self.worker.len() > MAX_WORKER || self.worker.contains('\0') {
            return Err(Problem::invalid(
                "the worker's name is not a short text",
                "use at most 200 bytes without NUL",
            ));
        }
        if self.max_events.is_some_and(|events| events == 0 || events > MAX_EVENTS) {
            return Err(Problem::invalid("max_events is out of range", "use 1 to 10,000"));
        }
        if self.wait_ms > MAX_WAIT_MS {
            return Err(Problem::invalid(
                "wait_ms is out of range",
                "use at most a day; the server may answer earlier",
            ));
        }
        check_lease(self.lease_ms)
    }
}

fn check_lease(lease_ms: Option<u64>) -> Answer<()> {
    if lease_ms.is_none_or(|millis| LEASES.contains(&millis)) {
        return Ok(());
    }
    Err(Problem::invalid("lease_ms is out of range", "use 50 milliseconds to 24 hours"))
}

/// What became of events.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettleIn {
    results: Vec<ResultIn>,
}

/// What became of one event.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResultIn {
    id: Id,
    /// As the claim gave it
    lease: String,
    outcome: OutcomeIn,
    /// `retry`: instead of what the policy says; `snooze`: how long
    delay_ms: Option<u64>,
    /// What went wrong
    #[serde(default)]
    error: Option<String>,
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
    /// `settled` or `lease_lost`
    status: &'static str,
}

impl ResultIn {
    fn outcome(&self) -> Answer<Outcome> {
        let delay = self.delay_ms.map(delay_of).transpose()?;
        let error = self.error.clone().unwrap_or_default();
        Ok(match self.outcome {
            OutcomeIn::Done => Outcome::Done,
            OutcomeIn::Retry => Outcome::Retry { delay, error },
            OutcomeIn::Snooze => Outcome::Snooze { delay: delay.unwrap_or_default() },
            OutcomeIn::Dead => Outcome::Dead { error },
        })
    }
}

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
#[utoipa::path(post, path = "/v1/subscriptions/{name}/settle", tag = "claims", params(("name" = String, Path)),
    request_body = SettleIn, responses((status = 200, body = SettleOut)), security(("token" = ["consume"])))]
pub(crate) async fn settle(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let subscription = named(&app, &caller, CONSUME, name).await?;
    let body = body::read(&headers, body, app.config.max_body, app.config.body_timeout()).await?;
    let settle: SettleIn = body::parse(&body)?;
    if settle.results.len() > MAX_EVENTS as usize {
        return Err(Problem::invalid("there are too many results", "settle at most 10,000 events at once"));
    }
    let mut outcomes = Vec::with_capacity(settle.results.len());
    let mut asked = Vec::with_capacity(settle.results.len());
    for result in &settle.results {
        let outcome = result.outcome()?;
        // What is no lease at all is nobody's lease.
        let lease = result.lease.parse::<Lease>().ok();
        asked.push(lease.is_some());
        outcomes.extend(lease.map(|lease| (result.id.0, lease, outcome)));
    }
    let mut answers = app.ask(app.tram.settle(subscription.id, outcomes)).await?.into_iter();
    let mut results = Vec::with_capacity(settle.results.len());
    for (result, asked) in settle.results.iter().zip(asked) {
        let accepted = asked && answers.next().unwrap_or(false);
        let word = if accepted { result.outcome.word() } else { "lease_lost" };
        app.metrics.settled.add_two(&subscription.name, word, 1);
        results.push(ResultOut { id: result.id, status: if accepted { "settled" } else { "lease_lost" } });
    }
    Ok(ok(SettleOut { results }).into_response())
}

/// Which leases.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeasesIn {
    leases: Vec<String>,
    /// From now on for this long; as the subscription says, or 60 s
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
    /// `extended`, `lease_lost`, or `busy`: a transaction has it, try again
    status: &'static str,
    lease_until: Option<When>,
}

/// Makes leases last longer, from now on.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/extend", tag = "claims", params(("name" = String, Path)),
    request_body = LeasesIn, responses((status = 200, body = LeasesOut)), security(("token" = ["consume"])))]
pub(crate) async fn extend(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let subscription = named(&app, &caller, CONSUME, name).await?;
    let body = body::read(&headers, body, app.config.max_body, app.config.body_timeout()).await?;
    let extend: LeasesIn = body::parse(&body)?;
    extend.check()?;
    let known: Vec<Option<Lease>> = extend.leases.iter().map(|lease| lease.parse().ok()).collect();
    let lease = extend.lease_ms.map(Duration::from_millis).or(subscription.policy.lease).or(Some(LEASE));
    let leases: Vec<Lease> = known.iter().copied().flatten().collect();
    let mut answers = app.ask(app.tram.extend(subscription.id, leases, lease)).await?.into_iter();
    let told = |(lease, known): (String, Option<Lease>)| {
        let (status, lease_until) = match known.and_then(|_| answers.next()) {
            Some(Extended::Until(time)) => ("extended", Some(When(time))),
            Some(Extended::Locked) => ("busy", None),
            Some(Extended::Lost) | None => ("lease_lost", None),
        };
        LeaseOut { lease, status, lease_until }
    };
    let results = extend.leases.into_iter().zip(known).map(told).collect();
    Ok(ok(LeasesOut { results }).into_response())
}

/// How many leases were given back.
#[derive(Serialize, ToSchema)]
pub(crate) struct Released {
    leases: usize,
}

/// Gives events back at once, uncounted. Leases that are lost are passed over.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/release", tag = "claims", params(("name" = String, Path)),
    request_body = LeasesIn, responses((status = 200, body = Released)), security(("token" = ["consume"])))]
pub(crate) async fn release(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let subscription = named(&app, &caller, CONSUME, name).await?;
    let body = body::read(&headers, body, app.config.max_body, app.config.body_timeout()).await?;
    let release: LeasesIn = body::parse(&body)?;
    release.check()?;
    let leases: Vec<Lease> = release.leases.iter().filter_map(|lease| lease.parse().ok()).collect();
    let count = leases.len();
    app.ask(app.tram.release(subscription.id, leases)).await?;
    Ok(ok(Released { leases: count }).into_response())
}
