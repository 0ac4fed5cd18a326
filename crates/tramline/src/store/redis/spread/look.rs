//! Looking: at the site that has it, or at all that a subscription has. A topic's numbers begin with its own, so lists by number go site
//! by site.

use super::sites::{before, topic_of};
use super::{SpreadStore, warn_of};
use crate::error::{Kind, Result};
use crate::model::dropped::DropRecord;
use crate::model::id::{EventId, SubscriptionId, TopicId};
use crate::model::time::Time;
use crate::store::Store;
use crate::store::redis::{RedisStore, drops, look, shed};
use crate::store::verbs::*;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

impl SpreadStore {
    /// Looks at the site of a topic. What this process knows of the topic may no longer be so, or the site may not have heard of it yet.
    pub(super) async fn at_topic<T, F>(&self, name: &str, look: impl Fn(Arc<RedisStore>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let known = self.home.cache.get().topic(name).map(|topic| topic.id);
        if let Some(id) = known {
            match look(self.site(id)).await {
                Err(error) if error.kind() == Kind::NotFound => {}
                looked => return looked,
            }
        }
        let id = self.catalog().await?.require_topic(name)?.id;
        if known == Some(id) {
            self.bring_up(id).await?;
        }
        look(self.site(id)).await
    }

    /// What a subscription consumes now.
    pub(super) async fn topics_now(&self, id: SubscriptionId) -> Result<Vec<TopicId>> {
        let catalog = self.catalog().await?;
        Ok(self.topics_of(catalog.require_subscription(id)?))
    }

    /// The topics of a subscription in which a list by number goes on after an event, and for each the event after which it goes on.
    pub(super) async fn pages(&self, id: SubscriptionId, after: EventId) -> Result<Vec<(TopicId, EventId)>> {
        let topics = self.topics_now(id).await?.into_iter();
        let left = topics.filter(|topic| after.0 <= 0 || *topic >= topic_of(after.chunk()));
        Ok(left.map(|topic| (topic, after.max(before(topic)))).collect())
    }

    pub(super) async fn all_topics(&self) -> Result<Vec<TopicId>> {
        let mut topics: Vec<TopicId> = self.catalog().await?.topics().iter().map(|topic| topic.id).collect();
        topics.sort_unstable();
        Ok(topics)
    }

    pub(super) async fn totals_of_all(&self) -> Result<Vec<(TopicId, u64)>> {
        let total = |topic| async move { self.site(topic).topic_totals().await };
        let all = self.each(self.all_topics().await?, total).await?;
        Ok(all.concat())
    }

    pub(super) async fn stats_of_all(&self, id: SubscriptionId, now: Option<Time>) -> Result<Stats> {
        let rules = self.home.stats(id, now).await?;
        let stats = |site: Arc<RedisStore>| async move { site.stats(id, now).await };
        let all = self.each(self.topics_now(id).await?, |topic| self.at(id, topic, stats)).await?;
        let counted = all.into_iter().flatten().fold(rules.clone(), look::plus);
        Ok(Stats { rules: rules.rules, ..counted })
    }

    pub(super) async fn dead_of_all(&self, list: &ListDead) -> Result<DeadPage> {
        let mut pages = self.pages(list.page.subscription, list.page.after).await?.into_iter();
        let Some((topic, after)) = pages.next() else { return Ok(DeadPage::default()) };
        let list = &ListDead { page: Page { after, ..list.page.clone() }, ..list.clone() };
        let dead = |site: Arc<RedisStore>| async move { site.dead(list.clone()).await };
        let mut found = self.at(list.page.subscription, topic, dead).await?.unwrap_or_default();
        found.next = found.next.or(pages.next().map(|(_, after)| after));
        Ok(found)
    }

    pub(super) async fn parked_of_all(&self, page: &Page) -> Result<Vec<ParkedKey>> {
        let mut keys = Vec::new();
        for (topic, after) in self.pages(page.subscription, page.after).await? {
            let limit = page.limit - keys.len() as u32;
            if limit == 0 {
                break;
            }
            let page = &Page { after, limit, ..page.clone() };
            let parked = |site: Arc<RedisStore>| async move { site.parked(page.clone()).await };
            keys.extend(self.at(page.subscription, topic, parked).await?.unwrap_or_default());
        }
        Ok(keys)
    }

    pub(super) async fn size_of_all(&self) -> Result<StoreSize> {
        let size = |topic| async move { self.site(topic).read(None, shed::size).await };
        let all = self.side_by_side(self.all_topics().await?, size).await.into_iter().filter_map(warn_of);
        let home = self.home.read(None, shed::size).await?;
        Ok(StoreSize { bytes: all.fold(home.bytes, |sum, size| sum.saturating_add(size.bytes)) })
    }

    /// Records by number come topic by topic; the newest ones by time.
    pub(super) async fn drops_of_all(&self, list: ListDrops) -> Result<Vec<DropRecord>> {
        let topics = match list.subscription {
            Some(id) => match self.topics_now(id).await {
                Err(error) if error.kind() == Kind::NotFound => Vec::new(),
                topics => topics?,
            },
            None => self.all_topics().await?,
        };
        let some =
            |topic| async move { self.site(topic).read(None, |session| drops::list(session, &list)).await };
        let mut all = self.each(topics, some).await?.concat();
        match list.after {
            Some(_) => all.sort_by_key(|record| record.number),
            None => all.sort_by_key(|record| std::cmp::Reverse((record.at, record.number))),
        }
        all.truncate(list.limit as usize);
        Ok(all)
    }

    pub(super) async fn drop_totals_of_all(&self) -> Result<Vec<DropTotal>> {
        let some = |topic| async move { self.site(topic).read(None, drops::totals).await };
        let mut sums: BTreeMap<(SubscriptionId, &'static str), DropTotal> = BTreeMap::new();
        for total in self.each(self.all_topics().await?, some).await?.concat() {
            let sum = sums.entry((total.subscription, total.reason.as_str()));
            sum.and_modify(|sum| sum.events += total.events).or_insert(total);
        }
        Ok(sums.into_values().collect())
    }

    /// An event, and all that may be known of it.
    pub(super) async fn event_at(&self, find: FindEvent) -> Result<Option<EventView>> {
        let topic = topic_of(find.id.chunk());
        if !self.knows(topic).await? {
            return Ok(None);
        }
        self.site(topic).event(find).await
    }

    pub(super) async fn trace_at(&self, trace: Trace) -> Result<Traced> {
        let topic = topic_of(trace.from.chunk());
        if !self.knows(topic).await? {
            return Ok(Traced::default());
        }
        self.site(topic).trace(trace).await
    }

    pub(super) async fn cancel_at(&self, cancel: Cancel) -> Result<Vec<Arc<str>>> {
        let topic = topic_of(cancel.id.chunk());
        if !self.knows(topic).await? {
            return self.home.cancel(cancel).await;
        }
        let now = cancel.now;
        let cancelled = self.site(topic).cancel(cancel).await;
        self.pay(topic, now).await;
        cancelled
    }
}
