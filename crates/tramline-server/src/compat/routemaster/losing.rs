//! Losing topics: a subscriber gets nothing new, but what was queued for it stays and is sent.
//!
//! A subscription that leaves a topic takes its events along. So while there are any, the topic stays with the subscription as one
//! that drains, and is not shown. It is left when the subscriber changes its topics the next time and has nothing queued.

use crate::http::app::App;
use crate::http::change::Change;
use crate::http::problem::Answer;
use std::collections::BTreeSet;
use tramline::{Format, Policy, Start, Subscription};

/// All subscribers, by name.
pub(super) async fn subscribers(app: &App) -> Answer<Vec<Subscription>> {
    let mut all = app.ask(app.tram.subscriptions()).await?;
    all.retain(is_subscriber);
    Ok(all)
}

/// True for subscriptions of this API: what they are sent is in its format.
pub(super) fn is_subscriber(subscription: &Subscription) -> bool {
    subscription.policy.push.as_ref().is_some_and(|push| push.format == Format::Routemaster)
}

/// The topics of which it gets new events.
pub(super) fn topics_of(subscriber: &Subscription) -> Vec<&str> {
    subscriber.topics.iter().map(|topic| &**topic).filter(|topic| subscriber.takes(topic)).collect()
}

/// Takes one topic away from a subscriber. False if it did not have it.
pub(super) async fn lose(app: &App, name: &str, topic: &str) -> Answer<bool> {
    let mut change = Change::begin(app, name).await;
    loop {
        let old = change.read().await?.filter(|old| is_subscriber(old) && old.takes(topic));
        let Some(old) = old else { return Ok(false) };
        let wanted = topics_of(&old).into_iter().filter(|own| *own != topic).collect();
        if write(app, &mut change, wanted, old.policy.clone(), Some(&old)).await? {
            return Ok(true);
        }
    }
}

/// Gives a subscriber these topics and no others. `old` is what it was; a new one needs a topic. False if it has changed meanwhile.
pub(super) async fn write(
    app: &App,
    change: &mut Change<'_>,
    wanted: BTreeSet<&str>,
    policy: Policy,
    old: Option<&Subscription>,
) -> Answer<bool> {
    let mut lost: BTreeSet<&str> = old.iter().flat_map(|old| &old.topics).map(|topic| &**topic).collect();
    lost.retain(|topic| !wanted.contains(topic));
    // Without a topic there is no subscription, so the last one stays even if nothing is queued.
    if !wanted.is_empty() && !lost.is_empty() && is_idle(app, old).await? {
        lost.clear();
    }
    let draining = lost.iter().map(|topic| (*topic).to_owned()).collect();
    let topics: Vec<&str> = wanted.union(&lost).copied().collect();
    let written = change.write(&topics, Policy { draining, ..policy }, Start::Now).await?;
    Ok(written.is_some())
}

/// True if nothing is queued.
async fn is_idle(app: &App, subscriber: Option<&Subscription>) -> Answer<bool> {
    let Some(subscriber) = subscriber else { return Ok(true) };
    let counts = app.ask(app.tram.store().stats(subscriber.id, None)).await?.counts;
    Ok(counts.pending() + counts.dead == 0)
}
