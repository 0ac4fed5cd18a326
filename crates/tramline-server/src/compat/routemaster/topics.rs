//! Topics: the first client to publish in one owns it.

use super::access::Client;
use super::{event, losing};
use crate::http::app::{App, Shared};
use crate::http::emit;
use crate::http::json::ok;
use crate::http::params::Name;
use crate::http::problem::{Answer, Problem};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tramline::{Subscription, Topic, TopicId, TopicSettings};

/// The longest name of a topic.
const LONGEST: usize = 64;
/// How long it is remembered who owns a topic.
const FRESH: Duration = Duration::from_secs(1);
/// Of how many topics that is remembered.
const REMEMBERED: usize = 10_000;

/// Checks the name of a topic.
pub(super) fn check(name: &str) -> Answer<()> {
    let fits = !name.is_empty() && name.len() <= LONGEST;
    match fits && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_') {
        true => Ok(()),
        false => Err(Problem::malformed("bad topic", "use 1 to 64 lower case letters and _")),
    }
}

/// Who owned topics a moment ago, so that publishing asks the store only once.
#[derive(Default)]
pub(crate) struct Owners(Mutex<HashMap<String, (String, Instant)>>);

impl Owners {
    fn is(&self, topic: &str, client: &str) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(topic).is_some_and(|(owner, at)| owner == client && at.elapsed() < FRESH)
    }

    fn remember(&self, topic: &str, client: &str) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(topic.to_owned(), (client.to_owned(), Instant::now()));
    }

    fn forget(&self, topic: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(topic);
    }
}

/// POST /topics/{name}: publishes an event.
pub(super) async fn publish(
    State(app): State<Shared>,
    client: Client,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let (topic, publisher) = (&name.0, client.publishes(&name.0)?);
    check(topic)?;
    let body = app.read(&headers, body).await?;
    let event = event::read(&body, app.access.now(), app.config.routemaster_max_data)?.event(topic)?;
    claim(&app, topic, publisher).await?;
    emit::store(&app, topic, &headers, vec![event]).await?;
    if let Some(traffic) = app.metrics.traffic.get() {
        traffic.published(topic, publisher);
    }
    Ok(StatusCode::OK.into_response())
}

/// Makes a client the owner of a topic, unless it is or somebody else is. By then nothing is wrong with its event.
async fn claim(app: &App, topic: &str, client: &str) -> Answer<()> {
    if app.owners.is(topic, client) {
        return Ok(());
    }
    let owner = find(app, topic).await?.and_then(|topic| topic.owner);
    let claimed = match owner.as_deref() {
        Some(owner) => owner == client,
        None => match app.ask(app.tram.put_topic(topic, TopicSettings::claim(client))).await {
            Err(problem) if problem.status() == StatusCode::CONFLICT => false,
            claimed => claimed.map(|_| true)?,
        },
    };
    if !claimed {
        return Err(Problem::new(StatusCode::FORBIDDEN, "topic claimed", "publish in one of your own"));
    }
    app.owners.remember(topic, client);
    Ok(())
}

async fn find(app: &App, name: &str) -> Answer<Option<Topic>> {
    Ok(app.ask(app.tram.topics()).await?.into_iter().find(|topic| *topic.name == *name))
}

/// A topic as it is listed.
#[derive(Serialize)]
struct TopicOut {
    name: String,
    publisher: Option<String>,
    /// How many events were ever published.
    events: u64,
}

/// GET /topics: all that have an owner or a subscriber.
pub(super) async fn list(State(app): State<Shared>, client: Client) -> Answer<Response> {
    let subscribers = losing::subscribers(&app).await?;
    let mut topics = app.ask(app.tram.topics()).await?;
    topics.retain(|topic| is_listed(topic, &subscribers) && client.sees_topic(&topic.name));
    let totals: HashMap<TopicId, u64> = app.ask(app.tram.store().topic_totals()).await?.into_iter().collect();
    let told = |topic: Topic| TopicOut {
        events: totals.get(&topic.id).copied().unwrap_or_default(),
        publisher: topic.owner.as_deref().map(str::to_owned),
        name: topic.name.to_string(),
    };
    Ok(ok(topics.into_iter().map(told).collect::<Vec<_>>()).into_response())
}

/// True for topics of this API: what was deleted here may still have events that are to be sent.
fn is_listed(topic: &Topic, subscribers: &[Subscription]) -> bool {
    let used = || subscribers.iter().any(|subscriber| subscriber.takes(&topic.name));
    check(&topic.name).is_ok() && (topic.owner.is_some() || used())
}

/// DELETE /topics/{name}: subscribers lose the topic, and get what was queued before.
pub(super) async fn delete(State(app): State<Shared>, client: Client, name: Name) -> Answer<Response> {
    let subscribers = losing::subscribers(&app).await?;
    let found = find(&app, &name.0).await?;
    let found = found.filter(|topic| is_listed(topic, &subscribers) && client.sees_topic(&topic.name));
    let topic = found.ok_or_else(|| Problem::not_found("topic not found"))?;
    client.deletes(&topic.name, topic.owner.as_deref())?;
    for subscriber in subscribers.iter().filter(|subscriber| subscriber.takes(&topic.name)) {
        losing::lose(&app, &subscriber.name, &topic.name).await?;
    }
    let unowned = TopicSettings { owner: Some(None), ..TopicSettings::default() };
    app.ask(app.tram.put_topic(&topic.name, unowned)).await?;
    app.owners.forget(&topic.name);
    // As long as somebody consumes it, it has to stay, where nobody sees it.
    if let Err(problem) = app.ask(app.tram.delete_topic(&topic.name)).await {
        tracing::debug!(
            topic = &*topic.name,
            status = problem.status().as_u16(),
            "a topic is kept while it drains"
        );
    }
    tracing::info!(topic = &*topic.name, "topic deleted");
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_have_names_of_letters_and_underscores() {
        for good in ["a", "widgets", "big_widgets", &"x".repeat(64)] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in ["", "Widgets", "widgets1", "a-b", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
