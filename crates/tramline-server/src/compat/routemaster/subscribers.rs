//! Subscribers: each client has at most one, named after it.

use super::access::Client;
use super::{losing, topics, url};
use crate::http::app::{App, Shared};
use crate::http::body;
use crate::http::change::Change;
use crate::http::json::ok;
use crate::http::params::Name;
use crate::http::problem::{Answer, Problem};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;
use tramline::model::push::MAX_BATCH;
use tramline::store::verbs::{PushEntry, Steer, SteerPush};
use tramline::{Format, Ordering, Policy, Push, Subscription};

/// How many topics a subscriber has at most.
const MAX_TOPICS: usize = 1_000;
/// The longest time for which a batch gathers, in milliseconds.
const LONGEST_TIMEOUT: u64 = 3_600_000;
/// The longest uuid, in bytes.
const LONGEST_UUID: usize = 255;

/// What a client wants to be sent, and how.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubscriberIn {
    topics: Vec<String>,
    callback: String,
    uuid: Option<String>,
    timeout: Option<u64>,
    max: Option<u64>,
}

impl SubscriberIn {
    fn check(&self) -> Answer<()> {
        self.topics.iter().try_for_each(|topic| topics::check(topic))?;
        if self.topics.len() > MAX_TOPICS {
            return Err(Problem::malformed("there are too many topics", "use at most 1,000"));
        }
        url::check_callback(&self.callback)?;
        if self.uuid.as_ref().is_some_and(|uuid| uuid.len() > LONGEST_UUID || uuid.contains(char::is_control))
        {
            return Err(Problem::malformed("the uuid is not a short text", "use at most 255 bytes"));
        }
        if self.timeout.is_some_and(|millis| millis > LONGEST_TIMEOUT) {
            return Err(Problem::malformed("the timeout is out of range", "use 0 to 3600000 ms"));
        }
        if self.max == Some(0) {
            return Err(Problem::malformed("max is out of range", "use at least 1 event"));
        }
        Ok(())
    }

    /// How it is sent to. What is left out is as it was, but for the uuid.
    fn policy(&self, user: Option<String>, old: Option<&Subscription>) -> Policy {
        let policy = old.map_or_else(fresh, |old| old.policy.clone());
        let mut push = policy.push.unwrap_or_default();
        push.callback = self.callback.clone();
        push.user = user;
        if let Some(millis) = self.timeout {
            push.timeout = Duration::from_millis(millis);
        }
        if let Some(max) = self.max {
            push.max_events = u32::try_from(max).unwrap_or(MAX_BATCH).min(MAX_BATCH);
        }
        Policy { push: Some(push), ..policy }
    }

    /// Makes it so, if the client's subscription still is `old`; false if it is not.
    async fn write(
        &self,
        app: &App,
        change: &mut Change<'_>,
        name: &str,
        old: Option<&Subscription>,
    ) -> Answer<bool> {
        if old.is_some_and(|old| !losing::is_subscriber(old)) {
            return Err(Problem::malformed(
                "a subscription of another kind has the client's name",
                "use a token of another name",
            ));
        }
        if old.is_none() && self.topics.is_empty() {
            return Err(Problem::malformed("need an array of topics", "name at least one"));
        }
        let user = self.uuid.as_deref().map(|uuid| seal(app, name, uuid, old)).transpose()?;
        let topics: BTreeSet<&str> = self.topics.iter().map(String::as_str).collect();
        losing::write(app, change, topics, self.policy(user, old), old).await
    }
}

/// How a new subscriber is sent to: in the order of arrival, one batch after the other, for ever.
fn fresh() -> Policy {
    let push = Push { format: Format::Routemaster, concurrency: 1, disable_after: None, ..Push::default() };
    Policy {
        ordering: Ordering::Subscriber,
        retry: Push::retry_for_ever(),
        push: Some(push),
        ..Policy::default()
    }
}

/// POST /subscription, /subscriber: subscribes the client, or changes what it wants.
pub(super) async fn subscribe(
    State(app): State<Shared>,
    client: Client,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    client.subscribes::<&str>(&[])?;
    let body = app.read(&headers, body).await?;
    let wanted: SubscriberIn = body::parse(&body).map_err(|problem| {
        Problem::malformed(
            format!("bad data in payload: {}", problem.detail()),
            "send {topics, callback, uuid?, timeout?, max?}",
        )
    })?;
    wanted.check()?;
    let name = client.subscribes(&wanted.topics)?;
    let mut change = Change::begin(&app, name).await;
    let old = loop {
        let old = change.read().await?;
        if wanted.write(&app, &mut change, name, old.as_ref()).await? {
            break old;
        }
    };
    drop(change);
    if let Some(old) = &old {
        enable(&app, old, name).await?;
    }
    tracing::info!(subscription = name, "client subscribed");
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// A subscriber that was given up and subscribes again is there again.
async fn enable(app: &App, subscriber: &Subscription, by: &str) -> Answer<()> {
    let board = app.ask(app.tram.store().push_board(None)).await?;
    let disabled =
        |entry: &PushEntry| entry.subscription.id == subscriber.id && entry.health.disabled.is_some();
    if board.iter().any(disabled) {
        let steer =
            SteerPush { subscription: subscriber.id, steer: Steer::Enable, by: by.to_owned(), now: None };
        app.ask(app.tram.store().steer_push(steer)).await?;
    }
    Ok(())
}

/// For what the uuid of a subscriber is sealed.
fn purpose(name: &str) -> String {
    format!("subscription/{name}/user")
}

/// The uuid as it is kept: as it was, if it is the same, so that subscribing again changes nothing.
fn seal(app: &App, name: &str, uuid: &str, old: Option<&Subscription>) -> Answer<String> {
    let kept = old.and_then(|old| old.policy.push.as_ref()?.user.as_ref());
    match kept {
        Some(kept) if app.keyring.is_current(kept) && open(app, name, kept).as_deref() == Some(uuid) => {
            Ok(kept.clone())
        }
        _ => Ok(app.keyring.seal(&purpose(name), uuid.as_bytes())?),
    }
}

fn open(app: &App, name: &str, sealed: &str) -> Option<String> {
    app.keyring.open(&purpose(name), sealed).ok().and_then(|uuid| String::from_utf8(uuid).ok())
}

/// A subscriber as it is listed.
#[derive(Serialize)]
struct SubscriberOut {
    subscriber: String,
    /// For the subscriber itself and for the root only.
    uuid: Option<String>,
    callback: String,
    max_events: u32,
    timeout: u64,
    topics: Vec<String>,
    events: EventsOut,
}

/// How many events of a subscriber are where.
#[derive(Serialize)]
struct EventsOut {
    sent: u64,
    queued: u64,
    /// For how long the oldest could have been sent, in milliseconds.
    oldest: Option<u64>,
}

/// GET /subscriptions, /subscribers.
pub(super) async fn list(State(app): State<Shared>, client: Client) -> Answer<Response> {
    client.looks()?;
    let mut told = Vec::new();
    for entry in app.ask(app.tram.store().push_board(None)).await? {
        let subscription = &entry.subscription;
        if losing::is_subscriber(subscription) && client.sees(subscription) {
            match tell(&app, &client, &entry).await {
                // Deleted since the list was read.
                Err(problem) if problem.status() == StatusCode::NOT_FOUND => {}
                one => told.push(one?),
            }
        }
    }
    Ok(ok(told).into_response())
}

async fn tell(app: &App, client: &Client, entry: &PushEntry) -> Answer<SubscriberOut> {
    let subscriber = &entry.subscription;
    let stats = app.ask(app.tram.store().stats(subscriber.id, None)).await?;
    let push = subscriber.policy.push.clone().unwrap_or_default();
    let may_know = client.is_root() || client.is(&subscriber.name);
    let uuid = push.user.filter(|_| may_know).and_then(|sealed| open(app, &subscriber.name, &sealed));
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    Ok(SubscriberOut {
        subscriber: subscriber.name.to_string(),
        uuid,
        callback: push.callback,
        max_events: push.max_events,
        timeout: millis(push.timeout),
        topics: losing::topics_of(subscriber).into_iter().map(str::to_owned).collect(),
        events: EventsOut {
            sent: entry.health.sent,
            queued: stats.counts.pending(),
            oldest: stats.oldest_ready_at.map(|oldest| millis(entry.now.since(oldest))),
        },
    })
}

/// DELETE /subscriber: with all that is queued for it.
pub(super) async fn delete(State(app): State<Shared>, client: Client) -> Answer<Response> {
    let name = client.subscribes::<&str>(&[])?;
    match remove(&app, name).await? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(Problem::not_found("subscriber not found")),
    }
}

/// Removes a subscriber. False if there was none.
pub(super) async fn remove(app: &App, name: &str) -> Answer<bool> {
    if find(app, name).await?.is_none() {
        return Ok(false);
    }
    let removed = app.ask(app.tram.delete_subscription(name)).await;
    app.forget(name);
    match removed {
        Err(problem) if problem.status() == StatusCode::NOT_FOUND => Ok(false),
        removed => {
            tracing::info!(subscription = name, "subscriber removed");
            removed.map(|()| true)
        }
    }
}

/// DELETE /subscriber/topics/{name}.
pub(super) async fn leave(State(app): State<Shared>, client: Client, topic: Name) -> Answer<Response> {
    let name = client.subscribes::<&str>(&[])?;
    find(&app, name).await?.ok_or_else(|| Problem::not_found("subscriber not found"))?;
    match losing::lose(&app, name, &topic.0).await? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(Problem::not_found("not subscribed")),
    }
}

async fn find(app: &App, name: &str) -> Answer<Option<Subscription>> {
    let all = app.ask(app.tram.subscriptions()).await?;
    Ok(all.into_iter().find(|one| *one.name == *name).filter(losing::is_subscriber))
}
