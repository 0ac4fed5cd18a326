//! Subscriptions: creating, changing, looking, deleting.

use crate::http::app::{App, Shared};
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::change::Change;
use crate::http::control::RuleOut;
use crate::http::events::READ;
use crate::http::json::{List, NO_TIME, Object, When, ok, or_null, parse_time};
use crate::http::limited::{LimitsIn, LimitsOut};
use crate::http::params::{Name, Page, Params};
use crate::http::problem::{Answer, Problem};
use crate::http::push::fields::{Fields, Sealer};
use crate::http::push::shown::{Pending, PushOut};
use crate::http::schema;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use tramline::store::verbs::Stats;
use tramline::{
    Backoff, Counts, Filter, Format, Guarantee, Health, Limits, OnExhausted, Ordering, Policy, Push, Retry,
    Scope, Start, Subscription, WhileRetrying,
};
use utoipa::ToSchema;

/// How many topics a subscription has at most.
const MAX_TOPICS: usize = 1_000;

/// What may be said of a subscription. What is left out is as it was, or the default.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubscriptionIn {
    /// All topics that it consumes; unknown ones are created
    #[schema(value_type = Vec<schema::Name>, min_items = 1, max_items = 1000)]
    topics: Vec<String>,
    /// `pull`: workers claim; `push`: events are sent to a callback. Never changes
    kind: Option<SubscriptionKind>,
    /// `none`, `key`, or for push `subscriber`: all events in the order of their arrival. Never changes
    #[serde(alias = "order")]
    ordering: Option<Ordering>,
    /// Never changes
    guarantee: Option<Guarantee>,
    while_retrying: Option<WhileRetrying>,
    on_exhausted: Option<OnExhausted>,
    /// How many settled failures make an event dead; 0: none
    #[schema(maximum = 10000)]
    max_attempts: Option<u32>,
    #[schema(value_type = Option<BackoffIn>)]
    backoff: Option<Object<BackoffIn>>,
    /// How long a claim lasts if it is not extended; null: 60 s
    #[serde(default, deserialize_with = "or_null")]
    #[schema(value_type = Option<u64>, minimum = 50, maximum = 86400000)]
    lease_ms: Option<Option<u64>>,
    /// How long a handler may run; null: as long as it likes
    #[serde(default, deserialize_with = "or_null")]
    #[schema(value_type = Option<schema::TimeLimit>)]
    time_limit_ms: Option<Option<u64>>,
    /// How many events one claim takes at most; null: 4,096, or 1 if at most once
    #[serde(default, deserialize_with = "or_null")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 10000)]
    claim_size: Option<Option<u32>>,
    /// Whether older events of a key give way to the newest, as long as nobody has claimed them
    compact: Option<bool>,
    /// How long dead events are kept; null: until somebody replays or drops them. Held ones are always kept
    #[serde(default, deserialize_with = "or_null")]
    #[schema(value_type = Option<schema::TimeLimit>)]
    dead_retention_ms: Option<Option<u64>>,
    /// Pull: what all workers together may do; all of it at once. null: no limits
    #[serde(default, deserialize_with = "or_null")]
    #[schema(value_type = Option<LimitsIn>)]
    limits: Option<Option<Object<LimitsIn>>>,
    /// Where it starts in topics that are new to it: `beginning` (the default where workers claim), `now` (for push) or a time
    #[schema(value_type = Option<schema::Start>)]
    start: Option<String>,
    /// Conditions that an event has to meet, from the next one on:
    /// `[{"field": "type", "prefix": "order."}, {"field": "payload.country", "in": ["AT"]}]`
    #[schema(value_type = Option<Vec<schema::Condition>>)]
    filter: Option<Filter>,
    /// Push: where to send; up to 2,048 bytes
    callback: Option<String>,
    /// Push: how many events a batch has at most; 100 unless set
    #[schema(minimum = 1, maximum = 10000)]
    max_events: Option<u32>,
    /// Push: how long a batch gathers from its first event on; 500 unless set
    #[schema(maximum = 3600000)]
    timeout_ms: Option<u64>,
    /// Push: how a batch is written
    format: Option<Format>,
    /// Push: headers of every request
    headers: Option<BTreeMap<String, String>>,
    /// Push: how many requests a node has under way at most; 4 unless set
    #[schema(minimum = 1, maximum = 256)]
    concurrency: Option<u32>,
    /// Push: how many events a node sends in a second at most; null: any number
    #[serde(default, deserialize_with = "or_null")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    rate: Option<Option<u32>>,
    /// Push: how long a request may take; 20,000 unless set
    #[schema(minimum = 100, maximum = 600000)]
    request_timeout_ms: Option<u64>,
    /// Push: after how long without a single success it is disabled, five days unless set; null: never
    #[serde(default, deserialize_with = "or_null")]
    #[schema(value_type = Option<u64>, minimum = 1)]
    disable_after_ms: Option<Option<u64>>,
    /// Push: ask the receiver first whether it wants events, after the specification of CloudEvents webhooks
    handshake: Option<bool>,
    /// Push: all secrets that sign, newest first: `whsec_..` or `whsk_..`; they are never shown
    #[schema(max_items = 8)]
    secrets: Option<Vec<String>>,
    /// Push: the header `Authorization` of every request, never shown; null: none
    #[serde(default, deserialize_with = "or_null")]
    #[schema(value_type = Option<String>, max_length = 4096)]
    authorization: Option<Option<String>>,
}

/// How events get to their consumer.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SubscriptionKind {
    Pull,
    Push,
}

/// A backoff, of which everything but the kind may be left out.
#[derive(Deserialize, ToSchema)]
#[schema(as = Backoff)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum BackoffIn {
    /// The same wait after every failure
    Constant {
        #[schema(value_type = Option<schema::Millis>)]
        delay_ms: Option<u64>,
    },
    /// Doubling waits
    Exponential {
        #[schema(value_type = Option<schema::Millis>)]
        first_ms: Option<u64>,
        #[schema(value_type = Option<schema::Millis>)]
        most_ms: Option<u64>,
    },
    /// A wait for each failure; the last one repeats
    List {
        #[schema(value_type = Vec<schema::Millis>, max_items = 1000)]
        delays_ms: Vec<u64>,
    },
}

impl BackoffIn {
    fn resolve(self) -> Backoff {
        let millis = |millis: Option<u64>, default| Duration::from_millis(millis.unwrap_or(default));
        match self {
            BackoffIn::Constant { delay_ms } => Backoff::Constant { delay: millis(delay_ms, 300_000) },
            BackoffIn::Exponential { first_ms, most_ms } => {
                Backoff::Exponential { first: millis(first_ms, 15_000), most: millis(most_ms, 3_600_000) }
            }
            BackoffIn::List { delays_ms } => Backoff::List { delays_ms },
        }
    }

    /// How many attempts belong to it unless somebody says otherwise.
    fn attempts(&self) -> u32 {
        match self {
            BackoffIn::Constant { .. } => Retry::default().max_attempts,
            BackoffIn::Exponential { .. } => Retry::exponential().max_attempts,
            BackoffIn::List { delays_ms } => {
                u32::try_from(delays_ms.len()).unwrap_or(u32::MAX).saturating_add(1)
            }
        }
    }
}

/// A subscription, with what is in it.
#[derive(Serialize, ToSchema)]
pub(crate) struct SubscriptionOut {
    name: String,
    topics: Vec<String>,
    kind: SubscriptionKind,
    ordering: Ordering,
    guarantee: Guarantee,
    while_retrying: WhileRetrying,
    on_exhausted: OnExhausted,
    max_attempts: u32,
    #[schema(value_type = BackoffIn)]
    backoff: Backoff,
    lease_ms: u64,
    time_limit_ms: Option<u64>,
    claim_size: u32,
    compact: bool,
    /// How long dead events are kept; null: until somebody replays or drops them
    dead_retention_ms: Option<u64>,
    /// What all workers together may do, if that is limited
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<LimitsOut>,
    created_at: When,
    counts: Counts,
    /// Since when the oldest ready event could have run
    oldest_ready_at: Option<When>,
    /// When the oldest dead event died
    oldest_dead_at: Option<When>,
    rules: Vec<RuleOut>,
    /// Conditions that an event has to meet
    #[serde(skip_serializing_if = "Filter::is_empty")]
    #[schema(value_type = Vec<schema::Condition>)]
    filter: Filter,
    /// Of push subscriptions
    #[serde(flatten)]
    #[schema(value_type = PushOut)]
    push: Option<PushOut>,
}

/// Creates a subscription, or changes what may change of it. From the answer on, no emit misses it.
#[utoipa::path(put, path = "/v1/subscriptions/{name}", tag = "subscriptions", params(("name" = schema::Name, Path)),
    request_body = SubscriptionIn,
    responses((status = 200, body = SubscriptionOut), (status = 409, description = "Kind, ordering or guarantee would change")), security(("token" = ["manage"])))]
pub(crate) async fn put(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    caller.subscription(&[Scope::Manage], &name.0)?;
    let name = name.checked("subscription")?;
    let body = app.read(&headers, body).await?;
    let put: SubscriptionIn = body::parse(&body)?;
    caller.consumes(&put.topics)?;
    if put.topics.len() > MAX_TOPICS {
        return Err(Problem::invalid("the subscription has too many topics", "use at most 1,000"));
    }
    if put.callback.is_some() {
        // Where events are sent, they are read.
        caller.needs(&[Scope::Consume])?;
    }
    let topics: Vec<&str> = put.topics.iter().map(String::as_str).collect();
    let now = app.ask(app.tram.store().now()).await?;
    let sealer = Sealer { keyring: &app.keyring, subscription: &name, now };
    let mut change = Change::begin(&app, &name).await;
    let subscription = loop {
        let existing = change.read().await?;
        if let Some(existing) = &existing {
            caller.consumes(&existing.topics)?;
        }
        // Parsed once more, because the policy takes along what was asked for.
        let wanted: SubscriptionIn = body::parse(&body)?;
        let policy = wanted.policy(existing.map(|existing| existing.policy), &sealer)?;
        let start = self::start(put.start.as_deref(), policy.push.is_some())?;
        if let Some(subscription) = change.write(&topics, policy, start).await? {
            break subscription;
        }
    };
    drop(change);
    Ok(ok(told(&app, &subscription).await?).into_response())
}

impl SubscriptionIn {
    fn push_fields(&mut self) -> Fields {
        Fields {
            callback: self.callback.take(),
            max_events: self.max_events,
            timeout_ms: self.timeout_ms,
            format: self.format,
            headers: self.headers.take(),
            concurrency: self.concurrency,
            rate: self.rate,
            request_timeout_ms: self.request_timeout_ms,
            disable_after_ms: self.disable_after_ms,
            handshake: self.handshake,
            secrets: self.secrets.take(),
            authorization: self.authorization.take(),
        }
    }

    /// The policy that was asked for, on top of the one that is there.
    fn policy(mut self, old: Option<Policy>, sealer: &Sealer<'_>) -> Answer<Policy> {
        let was_push = old.as_ref().is_some_and(|old| old.push.is_some());
        let is_push = self.kind.map_or(was_push, |kind| kind == SubscriptionKind::Push);
        // First, so that nobody is asked for a callback which would change nothing.
        if old.is_some() && is_push != was_push {
            return Err(Problem::new(
                StatusCode::CONFLICT,
                "kind, ordering and guarantee of a subscription never change",
                "create a subscription of another name, or delete this one first",
            ));
        }
        let retry = if is_push { Push::retry() } else { Retry::default() };
        let old = old.unwrap_or_else(|| Policy { retry, ..Policy::default() });
        let fields = self.push_fields();
        let push = match is_push {
            true => Some(fields.push(old.push, sealer)?),
            false => {
                fields.refuse()?;
                None
            }
        };
        let longest = Duration::from_millis(crate::http::emit::MAX_DELAY_MS);
        let limit = self.time_limit_ms.map(|limit| limit.map(Duration::from_millis));
        if limit.flatten().is_some_and(|limit| limit.is_zero() || limit > longest) {
            return Err(Problem::invalid(
                "the time limit is out of range",
                "use at least 1 ms, or leave it out for none",
            ));
        }
        let kept = self.dead_retention_ms.map(|kept| kept.map(Duration::from_millis));
        if kept.flatten().is_some_and(|kept| kept.is_zero() || kept > longest) {
            return Err(Problem::invalid(
                "the retention of dead events is out of range",
                "use at least 1 ms, or null to keep them",
            ));
        }
        let backoff = self.backoff.map(|backoff| backoff.0);
        let attempts = self.max_attempts.or(backoff.as_ref().map(BackoffIn::attempts));
        let backoff = backoff.map_or(old.retry.backoff, BackoffIn::resolve);
        let waits = match &backoff {
            Backoff::Constant { delay } => vec![*delay],
            Backoff::Exponential { first, most } => vec![*first, *most],
            Backoff::List { delays_ms } => delays_ms.iter().map(|ms| Duration::from_millis(*ms)).collect(),
        };
        if waits.len() > 1_000 || waits.iter().any(|wait| *wait > longest) {
            return Err(Problem::invalid(
                "the backoff is too long",
                "wait at most a hundred years, in 1,000 steps",
            ));
        }
        Ok(Policy {
            ordering: self.ordering.unwrap_or(old.ordering),
            guarantee: self.guarantee.unwrap_or(old.guarantee),
            while_retrying: self.while_retrying.unwrap_or(old.while_retrying),
            on_exhausted: self.on_exhausted.unwrap_or(old.on_exhausted),
            retry: Retry { max_attempts: attempts.unwrap_or(old.retry.max_attempts), backoff },
            lease: self.lease_ms.map_or(old.lease, |lease| lease.map(Duration::from_millis)),
            time_limit: limit.unwrap_or(old.time_limit),
            claim_size: self.claim_size.unwrap_or(old.claim_size),
            filter: self.filter.unwrap_or(old.filter),
            // Whoever puts a subscription names what it takes.
            draining: Vec::new(),
            push,
            compact: self.compact.unwrap_or(old.compact),
            dead_retention: kept.unwrap_or(old.dead_retention),
            limits: self.limits.map_or(old.limits, |limits| {
                limits.map_or_else(Limits::default, |Object(limits)| limits.into())
            }),
        })
    }
}

/// Workers get what is retained unless somebody says otherwise; who is pushed to gets what comes.
fn start(text: Option<&str>, is_push: bool) -> Answer<Start> {
    match text {
        None if is_push => Ok(Start::Now),
        None | Some("beginning") => Ok(Start::Beginning),
        Some("now") => Ok(Start::Now),
        Some(time) => parse_time(time).map(|time| Start::At(time.0)).ok_or_else(|| {
            Problem::invalid("this is not a start", format!("use beginning, now or a time; {NO_TIME}"))
        }),
    }
}

pub(crate) async fn told(app: &App, subscription: &Subscription) -> Answer<SubscriptionOut> {
    let stats = app.ask(app.tram.stats(&subscription.name)).await?;
    let policy = &subscription.policy;
    let push = pushed(app, subscription, &stats).await?;
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    Ok(SubscriptionOut {
        name: subscription.name.to_string(),
        topics: subscription.topics.iter().map(ToString::to_string).collect(),
        kind: if push.is_some() { SubscriptionKind::Push } else { SubscriptionKind::Pull },
        ordering: policy.ordering,
        guarantee: policy.guarantee,
        while_retrying: policy.while_retrying,
        on_exhausted: policy.on_exhausted,
        max_attempts: policy.retry.max_attempts,
        backoff: policy.retry.backoff.clone(),
        lease_ms: millis(policy.lease.unwrap_or(crate::http::claims::LEASE)),
        time_limit_ms: policy.time_limit.map(millis),
        claim_size: policy.claim_size(),
        compact: policy.compact,
        dead_retention_ms: policy.dead_retention.map(millis),
        limits: LimitsOut::of(&policy.limits),
        created_at: When(subscription.created_at),
        filter: policy.filter.clone(),
        counts: stats.counts,
        oldest_ready_at: stats.oldest_ready_at.map(When),
        oldest_dead_at: stats.oldest_dead_at.map(When),
        rules: stats.rules.into_iter().map(RuleOut::from).collect(),
        push,
    })
}

/// What is told of how it is sent, if it is.
async fn pushed(app: &App, subscription: &Subscription, stats: &Stats) -> Answer<Option<PushOut>> {
    let Some(push) = &subscription.policy.push else { return Ok(None) };
    let board = app.ask(app.tram.push_board()).await?;
    let entry = board.into_iter().find(|entry| entry.subscription.id == subscription.id);
    let health = entry.map_or_else(Health::default, |entry| entry.health);
    let pending = Pending::look(app, subscription, push, stats).await?;
    Ok(Some(PushOut::new(push, &health, pending)))
}

/// All subscriptions that the token may see, by name.
#[utoipa::path(get, path = "/v1/subscriptions", tag = "subscriptions", params(Page),
    responses((status = 200, body = List<SubscriptionOut>)), security(("token" = ["consume"]), ("token" = ["manage"])))]
pub(crate) async fn list(
    State(app): State<Shared>,
    caller: Caller,
    Params(page): Params<Page>,
) -> Answer<Response> {
    caller.needs(READ)?;
    let mut all = app.ask(app.tram.subscriptions()).await?;
    all.retain(|subscription| caller.sees(subscription));
    let (all, next) = page.cut(all, |subscription| &subscription.name);
    let mut items = Vec::with_capacity(all.len());
    for subscription in &all {
        match told(&app, subscription).await {
            Ok(told) => items.push(told),
            // Deleted since the list was read.
            Err(problem) if problem.status() == StatusCode::NOT_FOUND => {}
            Err(problem) => return Err(problem),
        }
    }
    Ok(ok(List { items, next }).into_response())
}

/// One subscription, with exact counts and the rules in force.
#[utoipa::path(get, path = "/v1/subscriptions/{name}", tag = "subscriptions", params(("name" = schema::Name, Path)),
    responses((status = 200, body = SubscriptionOut)), security(("token" = ["consume"]), ("token" = ["manage"])))]
pub(crate) async fn get(State(app): State<Shared>, caller: Caller, name: Name) -> Answer<Response> {
    let subscription = named(&app, &caller, READ, name).await?;
    Ok(ok(told(&app, &subscription).await?).into_response())
}

/// Deletes a subscription with all that it still had to do.
#[utoipa::path(delete, path = "/v1/subscriptions/{name}", tag = "subscriptions", params(("name" = schema::Name, Path)),
    responses((status = 204, description = "Deleted")), security(("token" = ["manage"])))]
pub(crate) async fn delete(State(app): State<Shared>, caller: Caller, name: Name) -> Answer<Response> {
    let subscription = named(&app, &caller, &[Scope::Manage], name).await?;
    app.ask(app.tram.delete_subscription(&subscription.name)).await?;
    app.forget(&subscription.name);
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The subscription of a path, if the caller may do this with it and with all that it consumes.
pub(crate) async fn named(
    app: &App,
    caller: &Caller,
    any: &[Scope],
    name: Name,
) -> Answer<std::sync::Arc<Subscription>> {
    caller.subscription(any, &name.0)?;
    let subscription = app.subscription(&name.checked("subscription")?).await?;
    caller.consumes(&subscription.topics)?;
    Ok(subscription)
}
