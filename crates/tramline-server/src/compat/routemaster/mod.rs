//! Routemaster's API, under its own paths: a topic is a topic, a subscriber is a push subscription.
//!
//! - [`topics`]: publishing, listing, deleting; [`event`], [`url`], [`packed`]: what can be published
//! - [`subscribers`]: subscribing, listing, leaving; [`losing`]: what becomes of events that are queued when a topic is lost
//! - [`tokens`]: who may call; [`access`]: who calls
//! - [`pulse`]: whether it lives; [`queues`]: how much waits to be sent
//! - [`traffic`], [`statsd`]: its metrics
//! - [`words`]: answers that say no, as plain text
//!
//! Its clients are known by the names of their tokens: so the owner of a topic and the subscription of a subscriber are named.

mod access;
mod event;
mod losing;
mod packed;
mod pulse;
mod queues;
pub(crate) mod statsd;
mod subscribers;
mod tokens;
mod topics;
pub(crate) mod traffic;
mod url;
mod words;

pub(crate) use tokens::purpose as token_purpose;
pub(crate) use topics::Owners;

use crate::compat::served::Served;
use crate::http::app::Shared;
use crate::http::limits::{self, Door};
use axum::Router;
use axum::http::Method;
use axum::middleware::{from_fn, from_fn_with_state, map_response};

/// All of Routemaster's calls.
pub(crate) fn routes(app: &Shared, door: Door) -> Router<Shared> {
    let guarded = served()
        .router
        .layer(from_fn_with_state(door, limits::admit))
        .layer(from_fn_with_state(app.clone(), access::without_tokens));
    guarded.merge(open().router.layer(from_fn(limits::check_head))).layer(map_response(words::in_words))
}

/// Methods and paths of those that need a token, and of those that do not.
#[cfg(test)]
pub(crate) fn list() -> [Vec<(Method, &'static str)>; 2] {
    [served().list, open().list]
}

fn served() -> Served {
    Served::default()
        .on(Method::GET, "/pulse", pulse::pulse)
        .on(Method::GET, "/pulse/scaling", pulse::scaling)
        .on(Method::GET, "/api_tokens", tokens::list)
        .on(Method::POST, "/api_tokens", tokens::create)
        .on(Method::DELETE, "/api_tokens/{token}", tokens::delete)
        .on(Method::GET, "/topics", topics::list)
        .on(Method::POST, "/topics/{name}", topics::publish)
        .on(Method::DELETE, "/topics/{name}", topics::delete)
        .on(Method::POST, "/subscription", subscribers::subscribe)
        .on(Method::POST, "/subscriber", subscribers::subscribe)
        .on(Method::GET, "/subscriptions", subscribers::list)
        .on(Method::GET, "/subscribers", subscribers::list)
        .on(Method::DELETE, "/subscriber", subscribers::delete)
        .on(Method::DELETE, "/subscriber/topics/{name}", subscribers::leave)
}

fn open() -> Served {
    Served::default().on(Method::GET, "/health", pulse::health).on(Method::GET, "/health/ping", pulse::ping)
}
