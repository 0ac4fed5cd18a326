//! What a lease allows: each goes to the site that gave it.

use super::SpreadStore;
use super::sites::{topic_leased, topic_of};
use crate::error::Result;
use crate::model::id::{EventId, TopicId};
use crate::store::Store;
use crate::store::redis::parts::Patience;
use crate::store::verbs::{Adopt, Extend, Extended, Release, Settle, Settled};
use futures_util::future::join_all;
use std::collections::BTreeMap;

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
                self.site(topic).check_settle(&given.some(places.into_iter())).await
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

    async fn settle_at(&self, topic: TopicId, some: Settle) -> Result<Settled> {
        let now = some.now;
        let settled = self.site(topic).settle(some).await;
        let news = self.pay(topic, now).await;
        settled.map(|settled| Settled { news, ..settled })
    }

    pub(super) async fn extend_at_all(&self, given: &Extend) -> Result<Vec<Extended>> {
        let places = by_topic(&given.leases, topic_leased);
        let extend = |(topic, places): (TopicId, Vec<usize>)| async move {
            let leases = places.iter().map(|at| given.leases[*at]).collect();
            let extended = self.site(topic).extend(Extend { leases, ..given.clone() }).await?;
            Ok(places.into_iter().zip(extended))
        };
        let mut all = vec![Extended::Lost; given.leases.len()];
        for (at, extended) in self.each(places, extend).await?.into_iter().flatten() {
            all[at] = extended;
        }
        Ok(all)
    }

    pub(super) async fn release_at_all(&self, given: &Release) -> Result<u64> {
        let places = by_topic(&given.leases, topic_leased);
        let release = |(topic, places): (TopicId, Vec<usize>)| async move {
            let leases = places.iter().map(|at| given.leases[*at]).collect();
            self.site(topic).release(Release { leases, ..given.clone() }).await
        };
        Ok(self.each(places, release).await?.into_iter().sum())
    }

    pub(super) async fn adopt_at_all(&self, given: &Adopt) -> Result<Vec<EventId>> {
        let places = by_topic(&given.consumed, |(lease, _)| topic_leased(lease));
        let adopt = |(topic, places): (TopicId, Vec<usize>)| async move {
            let consumed = places.iter().map(|at| given.consumed[*at].clone()).collect();
            self.site(topic).adopt(Adopt { consumed, ..given.clone() }).await
        };
        Ok(self.each(places, adopt).await?.concat())
    }
}

/// Events by topic.
pub(super) fn ids_by_topic(ids: &[EventId]) -> BTreeMap<TopicId, Vec<EventId>> {
    let places = by_topic(ids, |id| topic_of(id.chunk()));
    places.into_iter().map(|(topic, at)| (topic, at.into_iter().map(|at| ids[at]).collect())).collect()
}
