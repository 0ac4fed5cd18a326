//! Replay, drop, resend, and the release of parked keys, site by site.

use super::leases::ids_by_topic;
use super::sites::topic_of;
use super::{SpreadStore, warn_of};
use crate::error::Result;
use crate::model::id::{SubscriptionId, TopicId};
use crate::store::Store;
use crate::store::redis::RedisStore;
use crate::store::verbs::{ReleaseParked, Resend, Revive, Revived, Which};
use std::sync::Arc;

impl SpreadStore {
    /// One step, at one site; where the next one goes on tells at which.
    pub(super) async fn revive_step(&self, revive: Revive) -> Result<Revived> {
        let mut pages = self.pages(revive.subscription, revive.after).await?;
        if let Which::Ids(ids) = &revive.which {
            pages.retain(|(topic, _)| ids.iter().any(|id| topic_of(id.chunk()) == *topic));
        }
        let mut pages = pages.into_iter();
        let Some((topic, after)) = pages.next() else {
            return Ok(Revived { now: self.home.now().await?, ..Revived::default() });
        };
        let which = match &revive.which {
            Which::Ids(ids) => Which::Ids(ids_by_topic(ids).remove(&topic).unwrap_or_default()),
            all => all.clone(),
        };
        let step = &Revive { which, after, ..revive };
        let ask = |site: Arc<RedisStore>| async move { site.revive(step.clone()).await };
        let revived = self.at(step.subscription, topic, ask).await;
        self.pay(topic, step.now).await;
        let mut revived = match revived? {
            Some(revived) => revived,
            None => Revived { now: self.home.now().await?, ..Revived::default() },
        };
        revived.next = revived.next.or(pages.next().map(|(_, after)| after));
        Ok(revived)
    }

    pub(super) async fn resend_at_all(&self, resend: &Resend) -> Result<u64> {
        let topics = self.topics_now(resend.subscription).await?;
        let some = ids_by_topic(&resend.ids).into_iter().filter(|(topic, _)| topics.contains(topic));
        let mut count = 0;
        for (topic, ids) in some {
            let some = &Resend { ids, ..resend.clone() };
            let ask = |site: Arc<RedisStore>| async move { site.resend(some.clone()).await };
            count += self.at(resend.subscription, topic, ask).await?.unwrap_or_default();
        }
        Ok(count)
    }

    pub(super) async fn release_parked_at_all(&self, release: &ReleaseParked) -> Result<u64> {
        let topics = self.topics_now(release.subscription).await?;
        let catalog = self.home.cache.get();
        release.keys.iter().try_for_each(|(topic, _)| catalog.require_topic(topic).map(drop))?;
        let mut count = 0;
        for topic in topics {
            let keys = self.keys_at(topic, release);
            if keys.is_empty() && !release.keys.is_empty() {
                continue;
            }
            let some = &ReleaseParked { keys, ..release.clone() };
            let ask = |site: Arc<RedisStore>| async move { site.release_parked(some.clone()).await };
            let released = self.at(release.subscription, topic, ask).await;
            self.pay(topic, release.now).await;
            count += released?.unwrap_or_default();
        }
        Ok(count)
    }

    fn keys_at(&self, topic: TopicId, release: &ReleaseParked) -> Vec<(String, String)> {
        let name = self.home.cache.get().topic_name(topic);
        release.keys.iter().filter(|(topic, _)| **topic == *name).cloned().collect()
    }

    /// True while some site has more to write into a new subscription.
    pub(super) async fn backfill_all(&self, id: SubscriptionId) -> Result<bool> {
        let ask = |site: Arc<RedisStore>| async move { site.backfill(id).await };
        let all = self.side_by_side(self.topics_now(id).await?, |topic| self.at(id, topic, ask)).await;
        Ok(all.into_iter().filter_map(warn_of).any(|more| more == Some(true)))
    }
}
