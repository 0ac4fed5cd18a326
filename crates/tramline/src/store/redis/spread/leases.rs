//! What a lease allows: each goes to the site that gave it.

use super::sites::{topic_leased, topic_of};
use super::{SpreadStore, warn_of};
use crate::error::{Kind, Result};
use crate::model::id::{EventId, TopicId};
use crate::model::lease::Lease;
use crate::store::Store;
use crate::store::redis::RedisStore;
use crate::store::redis::parts::Patience;
use crate::store::verbs::{Adopt, Extend, Extended, Release, Settle, Settled};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Which of many belong to which topic, by their places.
pub(super) fn by_topic<T>(all: &[T], topic: impl Fn(&T) -> TopicId) -> BTreeMap<TopicId, Vec<usize>> {
    let mut places: BTreeMap<TopicId, Vec<usize>> = BTreeMap::new();
    all.iter().enumerate().for_each(|(at, one)| places.entry(topic(one)).or_default().push(at));
    places
}

impl SpreadStore {
    pub(super) async fn settle_at_all(&self, given: &Settle) -> Result<Settled> {
        let places = by_topic(&given.results, |result| topic_leased(&result.lease));
        // What is refused is refused as a whole, so that has to be known before anything is written.
        if places.len() > 1 {
            let check = |(topic, places): (TopicId, Vec<usize>)| async move {
                let some = &given.some(places.into_iter());
                let check = |site: Arc<RedisStore>| async move { site.check_settle(some).await };
                self.at(given.subscription, topic, check).await
            };
            self.each(places.clone(), check).await?;
        }
        let settle = async |(topic, places): (TopicId, Vec<usize>)| {
            let settled = self.settle_at(topic, given.some(places.iter().copied())).await;
            (topic, places, settled)
        };
        let answers = join_all(places.into_iter().map(settle)).await;
        let mut patience = Patience::new();
        if answers.iter().any(|(_, _, settled)| settled.is_ok()) {
            patience.begin();
        }
        let mut all = Settled { accepted: vec![Vec::new(); given.results.len()], ..Settled::default() };
        for (topic, places, mut settled) in answers {
            // Whoever were told that all failed would do again what was written elsewhere.
            while let Err(error) = settled {
                patience.bear(error.into()).await?;
                settled = self.settle_at(topic, given.some(places.iter().copied())).await;
            }
            let settled = settled?;
            for (at, accepted) in places.into_iter().zip(settled.accepted) {
                all.accepted[at] = accepted;
            }
            all.waiting.extend(settled.waiting);
            all.wake |= settled.wake;
            all.news.extend(settled.news);
        }
        Ok(all)
    }

    /// Settles at one site. Where the subscription has nothing any more, all leases are lost.
    async fn settle_at(&self, topic: TopicId, some: Settle) -> Result<Settled> {
        let settle = |site: Arc<RedisStore>| {
            let some = some.clone();
            async move { site.settle(some).await }
        };
        let settled = self.at(some.subscription, topic, settle).await;
        let news = self.pay(topic, some.now).await;
        let lost = || some.results.iter().map(|result| vec![false; result.outcomes.len()]).collect();
        let settled = settled?.unwrap_or_else(|| Settled { accepted: lost(), ..Settled::default() });
        Ok(Settled { news, ..settled })
    }

    /// What cannot be reached at one site is told as locked: the others are extended, and this is tried again.
    pub(super) async fn extend_at_all(&self, given: &Extend) -> Result<Vec<Extended>> {
        let places = by_topic(&given.leases, topic_leased);
        let extend = |(topic, places): (TopicId, Vec<usize>)| async move {
            let leases: Vec<Lease> = places.iter().map(|at| given.leases[*at]).collect();
            let some = &Extend { leases, ..given.clone() };
            let extend = |site: Arc<RedisStore>| async move { site.extend(some.clone()).await };
            (places, self.at(given.subscription, topic, extend).await)
        };
        let alone = places.len() == 1;
        let mut all = vec![Extended::Lost; given.leases.len()];
        for (places, extended) in join_all(places.into_iter().map(extend)).await {
            let extended = match extended {
                Ok(extended) => extended.unwrap_or_else(|| vec![Extended::Lost; places.len()]),
                Err(error) if alone || error.kind() != Kind::Unavailable => return Err(error),
                Err(error) => {
                    warn_of::<()>(Err(error));
                    vec![Extended::Locked; places.len()]
                }
            };
            places.into_iter().zip(extended).for_each(|(at, extended)| all[at] = extended);
        }
        Ok(all)
    }

    pub(super) async fn release_at_all(&self, given: &Release) -> Result<u64> {
        let places = by_topic(&given.leases, topic_leased);
        let release = |(topic, places): (TopicId, Vec<usize>)| async move {
            let leases: Vec<Lease> = places.iter().map(|at| given.leases[*at]).collect();
            let some = &Release { leases, ..given.clone() };
            let release = |site: Arc<RedisStore>| async move { site.release(some.clone()).await };
            self.at(given.subscription, topic, release).await
        };
        let mut count = 0;
        for released in self.side_by_side(places, release).await {
            count += released?.unwrap_or_default();
        }
        Ok(count)
    }

    pub(super) async fn adopt_at_all(&self, given: &Adopt) -> Result<Vec<EventId>> {
        let places = by_topic(&given.consumed, |(lease, _)| topic_leased(lease));
        let adopt = |(topic, places): (TopicId, Vec<usize>)| async move {
            let consumed = places.iter().map(|at| given.consumed[*at].clone()).collect();
            let some = &Adopt { consumed, ..given.clone() };
            let adopt = |site: Arc<RedisStore>| async move { site.adopt(some.clone()).await };
            self.at(given.subscription, topic, adopt).await
        };
        Ok(self.each(places, adopt).await?.into_iter().flatten().flatten().collect())
    }
}

/// Events by topic.
pub(super) fn ids_by_topic(ids: &[EventId]) -> BTreeMap<TopicId, Vec<EventId>> {
    let places = by_topic(ids, |id| topic_of(id.chunk()));
    places.into_iter().map(|(topic, at)| (topic, at.into_iter().map(|at| ids[at]).collect())).collect()
}
