//! Push: how sending stands is known at home, and what there is to send at the sites.

use super::{SpreadStore, warn_of};
use crate::error::Result;
use crate::model::id::{SubscriptionId, TopicId};
use crate::model::time::Time;
use crate::store::Store;
use crate::store::redis::{RedisStore, push};
use crate::store::verbs::{Gather, Gathered, PushEntry};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl SpreadStore {
    pub(super) async fn board(&self, now: Option<Time>) -> Result<Vec<PushEntry>> {
        let mut board = self.home.read(now, push::board).await?;
        let topics: BTreeSet<TopicId> =
            board.iter().flat_map(|entry| self.topics_of(&entry.subscription)).collect();
        let at_site = |topic| async move { self.site(topic).read(now, push::board).await };
        let mut due: BTreeMap<SubscriptionId, bool> = BTreeMap::new();
        let seen = self.side_by_side(topics, at_site).await.into_iter().filter_map(warn_of);
        for entry in seen.flatten() {
            *due.entry(entry.subscription.id).or_default() |= entry.due;
        }
        for entry in &mut board {
            let is_due = due.get(&entry.subscription.id).copied().unwrap_or_default();
            entry.due = is_due && entry.health.is_open(entry.now);
        }
        Ok(board)
    }

    pub(super) async fn gather_all(&self, gather: Gather) -> Result<Gathered> {
        let subscription = self.subscription(gather.subscription).await?;
        let ask = |site: Arc<RedisStore>| async move { site.gather(gather).await };
        let at_site = |topic| self.at(gather.subscription, topic, ask);
        let (mut sum, mut failed): (Option<Gathered>, _) = (None, None);
        for some in self.side_by_side(self.topics_of(&subscription), at_site).await {
            match some {
                Ok(some) => sum = sum.into_iter().chain(some).reduce(plus),
                Err(error) => failed = Some(error),
            }
        }
        match (sum, failed) {
            (Some(sum), failed) => {
                failed.map(|error| warn_of::<()>(Err(error)));
                Ok(Gathered { next_due: sum.next_due.filter(|_| sum.since.is_none()), ..sum })
            }
            (None, Some(error)) => Err(error),
            (None, None) => self.home.gather(gather).await,
        }
    }
}

/// Both together, by the clock of the first.
fn plus(sum: Gathered, more: Gathered) -> Gathered {
    let here = |time: Time| Time(time.0.saturating_add(sum.now.0 - more.now.0));
    Gathered {
        events: sum.events.saturating_add(more.events),
        since: sum.since.into_iter().chain(more.since.map(here)).min(),
        again: sum.again || more.again,
        next_due: sum.next_due.into_iter().chain(more.next_due.map(here)).min(),
        now: sum.now,
    }
}
