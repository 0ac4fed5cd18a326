//! How much waits to be sent to each subscriber. A job of Routemaster's is a batch that waits.

use super::losing::is_subscriber;
use crate::http::app::App;
use crate::http::problem::Answer;
use crate::http::stats::MOST;
use axum::http::StatusCode;
use std::sync::Arc;
use std::time::Duration;
use tramline::store::verbs::{PushEntry, Stats};
use tramline::{SubscriptionId, Time};

/// What waits for a subscriber.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Queue {
    pub(super) id: SubscriptionId,
    pub(super) name: Arc<str>,
    /// Events that were not sent yet.
    pub(super) events: u64,
    /// How many batches they make.
    pub(super) batches: u64,
    /// How many of these are due before long.
    pub(super) due: u64,
}

/// The queues of the first 1,000 subscribers, with what is due `within` some time.
pub(super) async fn all(app: &App, within: Duration) -> Answer<Vec<Queue>> {
    let store = app.tram.store();
    let board = app.ask(store.push_board(None)).await?;
    let mut queues = Vec::new();
    for entry in board.iter().filter(|entry| is_subscriber(&entry.subscription)).take(MOST) {
        match app.ask(store.stats(entry.subscription.id, None)).await {
            // Deleted since the list was read.
            Err(problem) if problem.status() == StatusCode::NOT_FOUND => {}
            stats => queues.push(queue(entry, &stats?, entry.now.after(within))),
        }
    }
    Ok(queues)
}

fn queue(entry: &PushEntry, stats: &Stats, soon: Time) -> Queue {
    let push = entry.subscription.policy.push.clone().unwrap_or_default();
    let size = u64::from(push.max_events.max(1));
    let events = stats.counts.pending();
    let open = entry.health.is_open(soon) && stats.rules.is_empty();
    // Full batches go at once, the last one when it has gathered for long enough.
    let gathered = stats.oldest_ready_at.is_some_and(|oldest| oldest.after(push.timeout) <= soon);
    let ready = stats.counts.ready;
    let due = if gathered { ready.div_ceil(size) } else { ready / size };
    Queue {
        id: entry.subscription.id,
        name: entry.subscription.name.clone(),
        events,
        batches: events.div_ceil(size),
        due: if open { due } else { 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramline::{Counts, Disabled, Format, Health, Policy, Push, Subscription};

    fn of(events: u64, oldest: i64, health: Health) -> Queue {
        let push = Push { format: Format::Routemaster, ..Push::default() };
        let subscription = Subscription {
            id: SubscriptionId(1),
            name: "web".into(),
            topics: vec!["widgets".into()],
            policy: Policy { push: Some(push), ..Policy::default() },
            created_at: Time(0),
        };
        let stats = Stats {
            counts: Counts { ready: events, delayed: 1, ..Counts::default() },
            oldest_ready_at: Some(Time(oldest)),
            oldest_dead_at: None,
            rules: Vec::new(),
        };
        queue(&PushEntry { subscription, health, due: true, now: Time(10_000) }, &stats, Time(11_000))
    }

    #[test]
    fn full_batches_are_due_and_the_last_one_when_it_has_gathered() {
        let fresh = of(250, 10_600, Health::default());
        assert_eq!((fresh.events, fresh.batches, fresh.due), (251, 3, 2), "it gathers for 500 ms");
        assert_eq!(of(250, 10_500, Health::default()).due, 3);
        assert_eq!(of(0, 0, Health::default()).due, 0);
    }

    #[test]
    fn nothing_is_due_for_who_is_left_alone() {
        assert_eq!(of(250, 0, Health { put_off_until: Time(11_001), ..Health::default() }).due, 0);
        assert_eq!(of(250, 0, Health { put_off_until: Time(11_000), ..Health::default() }).due, 3);
        let disabled = Some(Disabled { at: Time(0), reason: "gone".into() });
        assert_eq!(of(250, 0, Health { disabled, ..Health::default() }).due, 0);
    }
}
