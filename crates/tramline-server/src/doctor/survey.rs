//! The figures of topics and subscriptions, read from the store.

use super::finding::Finding;
use super::queue::{self, Queue};
use std::time::Duration;
use tramline::store::verbs::{Page, REMEMBERED};
use tramline::{EventId, Result, Store, Subscription, Time};

/// A process that was alive has said so within this time, whatever its heartbeat.
const ALIVE: Duration = Duration::from_secs(30);
/// How many parked keys of a subscription are looked at.
const KEYS: u32 = 1000;

/// Everything that is consumed, and by whom.
pub(super) async fn queues(store: &dyn Store) -> Result<Vec<Queue>> {
    let now = store.now().await?;
    let topics = store.topics().await?;
    let board = store.push_board(None).await?;
    let workers = store.workers().await?;
    let remote = store.remote_workers(None).await?;
    let mut queues = Vec::new();
    for subscription in store.subscriptions().await? {
        let stats = store.stats(subscription.id, None).await?;
        let push = board.iter().find(|entry| entry.subscription.id == subscription.id);
        let own = topics.iter().filter(|topic| subscription.topics.contains(&topic.name));
        queues.push(Queue {
            name: subscription.name.to_string(),
            counts: stats.counts,
            oldest_ready: stats.oldest_ready_at.map(|at| now.since(at)),
            oldest_dead: stats.oldest_dead_at.map(|at| now.since(at)),
            rules: stats.rules,
            parked_for: parked_for(store, &subscription, now).await?,
            halts: subscription.policy.is_ordered() && subscription.policy.halts(),
            is_push: push.is_some(),
            disabled: push.and_then(|entry| entry.health.disabled.clone()),
            has_worker: workers
                .iter()
                .any(|it| it.subscriptions.contains(&subscription.id) && now.since(it.beat_at) < ALIVE)
                || remote
                    .iter()
                    .any(|it| it.subscription == subscription.id && now.since(it.seen_at) < REMEMBERED),
            retention: own.map(|topic| topic.retention).max(),
        });
    }
    Ok(queues)
}

/// For how long the key has waited that has waited longest.
async fn parked_for(store: &dyn Store, subscription: &Subscription, now: Time) -> Result<Option<Duration>> {
    let page = Page { subscription: subscription.id, after: EventId(0), limit: KEYS, now: None };
    Ok(store.parked(page).await?.iter().map(|key| now.since(key.since)).max())
}

/// How far the clock of a server is from that of this machine.
pub(super) async fn skew(store: &dyn Store) -> Result<Option<Finding>> {
    store.now().await?; // so that connecting is not measured
    let before = jiff::Timestamp::now().as_millisecond();
    let server = store.now().await?.0;
    let after = jiff::Timestamp::now().as_millisecond();
    Ok(queue::skew(before, server, after))
}
