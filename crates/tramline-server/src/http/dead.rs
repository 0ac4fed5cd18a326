//! Dead events and parked keys: looking, replaying, dropping, releasing, resending.

use crate::http::app::Shared;
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::json::{EventOut, Id, List, Object, When, ok};
use crate::http::letters::{FailureOut, MOST, ThoseIn, WhichIn};
use crate::http::params::{IdPage, Name, Params};
use crate::http::problem::{Answer, Problem};
use crate::http::schema;
use crate::http::subscriptions::named;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tramline::store::verbs::{DeadEvent, ParkedKey};
use tramline::{Part, Scope};
use utoipa::ToSchema;

const MANAGE: &[Scope] = &[Scope::Manage];

/// A dead or held event.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeadOut<'a> {
    #[serde(flatten)]
    event: EventOut<'a>,
    /// Settled failures
    attempt: u32,
    /// Leases that ended by expiry
    crashes: u32,
    /// Why it failed last
    error: &'a str,
    died_at: When,
    /// Why its last attempts failed, oldest first; 10 at most
    failures: Vec<FailureOut>,
}

impl<'a> From<&'a DeadEvent> for DeadOut<'a> {
    fn from(dead: &'a DeadEvent) -> DeadOut<'a> {
        DeadOut {
            event: EventOut::new(&dead.event),
            attempt: dead.attempts,
            crashes: dead.crashes,
            error: &dead.error,
            died_at: When(dead.died_at),
            failures: dead.failures.iter().map(FailureOut::from).collect(),
        }
    }
}

/// Dead and held events, by id: all, or those of which everything that is set is true. One call looks at a bounded part of them, so a
/// page may be short, or empty, and still have a `next`.
#[utoipa::path(get, path = "/v1/subscriptions/{name}/dead", tag = "dead",
    params(("name" = schema::Name, Path), IdPage, ThoseIn),
    responses((status = 200, body = List<DeadOut<'static>>)), security(("token" = ["manage"])))]
pub(crate) async fn dead(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    Params(page): Params<IdPage>,
    Params(those): Params<ThoseIn>,
) -> Answer<Response> {
    let subscription = named(&app, &caller, MANAGE, name).await?;
    let (letters, after, limit) = (those.letters()?, page.after()?, page.limit());
    let dead = app.ask(app.tram.find_dead(&subscription.name, letters, after, limit)).await?;
    let items = dead.events.iter().map(DeadOut::from).collect();
    Ok(ok(List { items, next: dead.next.map(|next| next.to_string()) }).into_response())
}

/// How many.
#[derive(Serialize, ToSchema)]
pub(crate) struct Count {
    count: u64,
}

/// How many this call took.
#[derive(Serialize, ToSchema)]
pub(crate) struct PartOut {
    count: u64,
    /// There may be more: call again with this as `after`
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

impl From<Part> for PartOut {
    fn from(part: Part) -> PartOut {
        PartOut { count: part.count, next: part.next.map(|next| next.to_string()) }
    }
}

/// Runs dead and held events again, with their attempts counted anew; with a rate, one after the other. One call takes what it can in some
/// seconds, and gives a `next` if there may be more: call again with that as `after` until there is none. A rate goes on over all of these calls.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/dead/replay", tag = "dead", params(("name" = schema::Name, Path)),
    request_body = WhichIn, responses((status = 200, body = PartOut)), security(("token" = ["manage"])))]
pub(crate) async fn replay(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let subscription = named(&app, &caller, MANAGE, name).await?;
    let body = app.read(&headers, body).await?;
    let which: WhichIn = body::parse(&body)?;
    let (rate, place, limit, which) = (which.rate()?, which.place()?, which.limit()?, which.which()?);
    let part = app.ask(app.tram.replay_part(&subscription.name, which, rate, place, limit)).await?;
    Ok(ok(PartOut::from(part)).into_response())
}

/// Drops dead and held events: what it can in some seconds, and gives a `next` if there may be more, as a replay does.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/dead/drop", tag = "dead", params(("name" = schema::Name, Path)),
    request_body = WhichIn, responses((status = 200, body = PartOut)), security(("token" = ["manage"])))]
pub(crate) async fn drop(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let subscription = named(&app, &caller, MANAGE, name).await?;
    let body = app.read(&headers, body).await?;
    let which: WhichIn = body::parse(&body)?;
    if which.rate()?.is_some() {
        return Err(Problem::invalid("what is dropped has no rate", "leave out `rate`"));
    }
    let (place, limit, which) = (which.place()?, which.limit()?, which.which()?);
    let part = app.ask(app.tram.drop_dead_part(&subscription.name, which, place, limit)).await?;
    Ok(ok(PartOut::from(part)).into_response())
}

/// A key that waits.
#[derive(Serialize, ToSchema)]
pub(crate) struct ParkedOut {
    topic: String,
    key: String,
    /// The event that everything of the key waits for
    blocked_by: Id,
    /// When that event may run; null if it is held
    due_at: Option<When>,
    since: When,
    /// How many events wait behind it
    waiting: u64,
}

impl From<&ParkedKey> for ParkedOut {
    fn from(parked: &ParkedKey) -> ParkedOut {
        ParkedOut {
            topic: parked.topic.to_string(),
            key: parked.key.to_string(),
            blocked_by: Id(parked.blocked_by),
            due_at: parked.due_at.map(When),
            since: When(parked.since),
            waiting: parked.waiting,
        }
    }
}

/// Parked keys, with what blocks them.
#[utoipa::path(get, path = "/v1/subscriptions/{name}/parked", tag = "dead", params(("name" = schema::Name, Path), IdPage),
    responses((status = 200, body = List<ParkedOut>)), security(("token" = ["manage"])))]
pub(crate) async fn parked(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    Params(page): Params<IdPage>,
) -> Answer<Response> {
    let subscription = named(&app, &caller, MANAGE, name).await?;
    let parked = app.ask(app.tram.parked(&subscription.name, page.after()?, page.limit())).await?;
    let next = parked.last().filter(|_| parked.len() == page.limit() as usize);
    let next = next.map(|last| last.blocked_by.to_string());
    Ok(ok(List { items: parked.iter().map(ParkedOut::from).collect(), next }).into_response())
}

/// Which keys.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(max_properties = 1)]
pub(crate) struct KeysIn {
    #[schema(value_type = Option<Vec<KeyIn>>, min_items = 1, max_items = 10000)]
    keys: Option<Vec<Object<KeyIn>>>,
    #[serde(default)]
    all: bool,
}

/// A key of a topic.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyIn {
    /// May be left out if the subscription has one topic
    #[schema(value_type = Option<schema::Name>)]
    topic: Option<String>,
    key: String,
}

/// Lets parked keys go on: a waiting event runs now, a held one is replayed.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/parked/release", tag = "dead", params(("name" = schema::Name, Path)),
    request_body = KeysIn, responses((status = 200, body = Count)), security(("token" = ["manage"])))]
pub(crate) async fn release_parked(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let subscription = named(&app, &caller, MANAGE, name).await?;
    let body = app.read(&headers, body).await?;
    let keys: KeysIn = body::parse(&body)?;
    let unclear =
        || Problem::invalid("it is not clear which keys are meant", "set keys (topic and key), or all");
    let mut named_keys = Vec::new();
    match (&keys.keys, keys.all) {
        (None, true) => {}
        (Some(keys), false) if !keys.is_empty() && keys.len() <= MOST => {
            for Object(key) in keys {
                let topic = match (&key.topic, &subscription.topics[..]) {
                    (Some(topic), _) => topic,
                    (None, [only]) => &**only,
                    _ => return Err(unclear()),
                };
                named_keys.push((topic, &*key.key));
            }
        }
        _ => return Err(unclear()),
    }
    let count = app.ask(app.tram.release_parked(&subscription.name, &named_keys)).await?;
    Ok(ok(Count { count }).into_response())
}

/// Which events.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct IdsIn {
    #[schema(max_items = 10000)]
    ids: Vec<Id>,
}

/// Makes events run again that the subscription had settled or lost. It does not emit.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/resend", tag = "dead", params(("name" = schema::Name, Path)),
    request_body = IdsIn, responses((status = 200, body = Count)), security(("token" = ["manage"])))]
pub(crate) async fn resend(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let subscription = named(&app, &caller, MANAGE, name).await?;
    let body = app.read(&headers, body).await?;
    let ids: IdsIn = body::parse(&body)?;
    if ids.ids.len() > MOST {
        return Err(Problem::invalid("there are too many ids", "name at most 10,000"));
    }
    let ids = ids.ids.into_iter().map(|id| id.0).collect();
    let count = app.ask(app.tram.resend(&subscription.name, ids)).await?;
    Ok(ok(Count { count }).into_response())
}
