//! Claims: taking events for a limited time.

use crate::http::app::Shared;
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::given::Given;
use crate::http::json::{EventOut, Id, When};
use crate::http::params::Name;
use crate::http::place::Slot;
use crate::http::problem::{Answer, Problem};
use crate::http::schema;
use crate::http::subscriptions::named;
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tramline::store::verbs::{Claimed, ClaimedEvent, ClaimedSlice};
use tramline::{Incarnation, Ordering, Scope, Take};
use utoipa::ToSchema;

/// How long a claim over HTTP lasts unless somebody says otherwise.
pub(crate) const LEASE: Duration = Duration::from_secs(60);
/// The shortest and the longest lease.
const LEASES: std::ops::RangeInclusive<u64> = 50..=24 * 3600 * 1000;
/// The most events of one claim or settlement, and about how much an answer weighs at most.
pub(crate) const MAX_EVENTS: u32 = 10_000;
const MAX_BYTES: usize = 4 << 20;
/// About what an event in JSON weighs beside its payload.
const BESIDE: usize = 384;
/// No claim can be meant to wait for longer.
const MAX_WAIT_MS: u64 = 24 * 3600 * 1000;
/// The longest name of a worker.
const MAX_WORKER: usize = 200;

pub(crate) const CONSUME: &[Scope] = &[Scope::Consume];

/// What to take.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimIn {
    /// Who takes it, for those who look
    #[serde(default)]
    #[schema(max_length = 200, pattern = "^[^\\u0000]*$")]
    worker: String,
    /// At most this many; one unless set
    #[schema(minimum = 1, maximum = 10000)]
    max_events: Option<u32>,
    /// For how long; as the subscription says, or 60 s
    #[schema(minimum = 50, maximum = 86400000)]
    lease_ms: Option<u64>,
    /// How long to wait if there is nothing
    #[serde(default)]
    #[schema(maximum = 86400000)]
    wait_ms: u64,
}

/// What was taken.
#[derive(Serialize, ToSchema)]
pub(crate) struct Claims<'a> {
    events: Vec<ClaimOut<'a>>,
    /// If a limit of the subscription is why there are no more events: when to look again at the latest. There may be some earlier,
    /// when others are settled
    #[serde(skip_serializing_if = "Option::is_none")]
    limited_until: Option<When>,
}

/// A claimed event.
#[derive(Serialize, ToSchema)]
pub(crate) struct ClaimOut<'a> {
    #[serde(flatten)]
    event: EventOut<'a>,
    /// The right to settle it
    lease: &'a str,
    /// Which try this is, from 1; failures that were settled count, leases that ended do not
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
#[utoipa::path(post, path = "/v1/subscriptions/{name}/claim", tag = "claims", params(("name" = schema::Name, Path)),
    request_body = ClaimIn, responses((status = 200, body = Claims<'static>)), security(("token" = ["consume"])))]
pub(crate) async fn claim(
    State(app): State<Shared>,
    caller: Caller,
    Extension(slot): Extension<Slot>,
    name: Name,
    request: Request,
) -> Answer<Response> {
    let subscription = named(&app, &caller, CONSUME, name).await?;
    let (head, body) = request.into_parts();
    let body = app.read(&head.headers, body).await?;
    let claim: ClaimIn = body::parse(&body)?;
    claim.check()?;
    let policy = &subscription.policy;
    if policy.push.is_some() {
        return Err(Problem::invalid(
            "the events of a push subscription are sent to its callback",
            "create a subscription of kind pull to claim from",
        ));
    }
    let take = Take {
        subscription: subscription.id,
        owner: Incarnation::random(),
        max_events: claim.max_events.unwrap_or(1).min(policy.claim_size()),
        max_bytes: MAX_BYTES,
        lease: claim.lease_ms.map(Duration::from_millis).or(policy.lease).or(Some(LEASE)),
    };
    app.workers.claims(&claim.worker, subscription.id, take.owner);
    // A claim that waits does no work; it must not take the place of one that does.
    let seat = if claim.wait_ms > 0 { app.waiting.clone().try_acquire_owned().ok() } else { None };
    let may_wait = seat.is_some();
    if may_wait {
        slot.leave();
    }
    let wait = if may_wait { claim.wait_ms.min(app.config.max_wait_ms) } else { 0 };
    let given = Given::take(&app, &subscription, take, Duration::from_millis(wait)).await;
    drop(seat);
    match given {
        // Who may not wait would come again at once, and again.
        Ok(given) if claim.wait_ms > 0 && !may_wait && given.is_empty() => Err(Problem::busy()),
        Ok(given) => given.answer(|claimed| write(claimed, policy.ordering)),
        Err(problem) => {
            // It may have been deleted and created again, under another number.
            app.forget(&subscription.name);
            Err(problem)
        }
    }
}

/// The answer to a claim. Where keys are ordered, events ascend, so that those of a key come in their order. Elsewhere they come as
/// they were taken: the urgent ones first.
fn write(claimed: &Claimed, ordering: Ordering) -> Answer<Vec<u8>> {
    let leases: Vec<String> = claimed.slices.iter().map(|slice| slice.lease.to_string()).collect();
    let mut events = Vec::new();
    for (slice, lease) in claimed.slices.iter().zip(&leases) {
        events.extend(slice.events.iter().map(|event| ClaimOut::new(slice, lease, event)));
    }
    if ordering == Ordering::Key {
        events.sort_by_key(|event| event.event.id.0);
    }
    let limited_until = claimed.next_due.filter(|_| claimed.limited).map(When);
    // Room for all of it: a buffer that grows is copied again and again.
    let weights = claimed.slices.iter().flat_map(|slice| &slice.events);
    let weight: usize = weights.map(|claimed| BESIDE + claimed.event.payload.len()).sum();
    let mut written = Vec::with_capacity(weight);
    serde_json::to_writer(&mut written, &Claims { events, limited_until })?;
    Ok(written)
}

impl<'a> ClaimOut<'a> {
    fn new(slice: &'a ClaimedSlice, lease: &'a str, claimed: &'a ClaimedEvent) -> ClaimOut<'a> {
        ClaimOut {
            event: EventOut::new(&claimed.event),
            lease,
            attempt: slice.attempts + 1,
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

pub(crate) fn check_lease(lease_ms: Option<u64>) -> Answer<()> {
    if lease_ms.is_none_or(|millis| LEASES.contains(&millis)) {
        return Ok(());
    }
    Err(Problem::invalid("lease_ms is out of range", "use 50 milliseconds to 24 hours"))
}
