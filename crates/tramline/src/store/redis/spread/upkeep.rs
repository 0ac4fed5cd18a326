//! Workers and housekeeping: home knows who lives, and every site ends for itself what the dead held.

use super::SpreadStore;
use super::placed::forget_refused;
use super::sites::{before, topic_of};
use crate::error::Result;
use crate::model::id::{Incarnation, SubscriptionId, TopicId};
use crate::model::time::Time;
use crate::store::Store;
use crate::store::redis::look::{workers, workers_key};
use crate::store::redis::rows::logged;
use crate::store::redis::session::{Session, number};
use crate::store::redis::{erase, sweep};
use crate::store::verbs::{Beat, Buried, Bury, Shed, Shedded, Surplus, Sweep, Swept, Worker};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How many sites one sweep looks after.
const SITES: usize = 64;

/// Where the next sweep goes on.
#[derive(Debug, Default)]
pub(super) struct Rounds(AtomicUsize);

impl SpreadStore {
    pub(super) async fn beat_at_home(&self, given: &Beat) -> Result<Vec<Worker>> {
        for worker in self.home.read(given.now, workers).await? {
            if worker.name == given.name && worker.incarnation != given.incarnation {
                self.end_leases_of(given.now, worker.incarnation).await?;
                self.strike_out(given.now, worker.incarnation).await?;
            }
        }
        self.home.write(given.now, |session: &Session<'_>| sweep::beat(session, given)).await
    }

    /// What a dead worker held is free, at every site. Gives the subscriptions that have work again.
    async fn end_leases_of(
        &self,
        now: Option<Time>,
        owner: Incarnation,
    ) -> Result<BTreeSet<SubscriptionId>> {
        let at_site = |topic| async move { self.site(topic).end_leases_of(now, owner, |_| Ok(true)).await };
        Ok(self.each(self.all_topics().await?, at_site).await?.into_iter().flatten().collect())
    }

    async fn strike_out(&self, now: Option<Time>, owner: Incarnation) -> Result<()> {
        let strike = |session: &Session<'_>| {
            session.remove(workers_key(session), owner.to_string());
            Ok(())
        };
        self.home.write(now, strike).await
    }

    pub(super) async fn bury_at_all(&self, given: &Bury) -> Result<Buried> {
        let dead = self.home.silent(given).await?;
        let mut wake = BTreeSet::new();
        let some: Vec<&Worker> = dead.iter().take(given.limit as usize).collect();
        for worker in &some {
            wake.extend(self.end_leases_of(given.now, worker.incarnation).await?);
            self.strike_out(given.now, worker.incarnation).await?;
        }
        let workers = some.len() as u64;
        Ok(Buried { workers, wake: wake.into_iter().collect(), more: dead.len() > some.len() })
    }

    /// Home, what others left undone, and some of the sites.
    pub(super) async fn sweep_some(&self, given: &Sweep) -> Result<Swept> {
        let mut wake = BTreeSet::new();
        let (mut workers, mut more) = (0, false);
        if let Some(burial) = given.burial() {
            let buried = self.bury_at_all(&burial).await?;
            (workers, more) = (buried.workers, buried.more);
            wake.extend(buried.wake);
        }
        self.begin_anew().await?;
        self.catch_up().await?;
        self.resolve_all(given.now).await?;
        let alone = Sweep { dead_after: None, ..given.clone() };
        more |= self.clear_deleted(&alone).await?;
        let mut swept = self.home.sweep(alone.clone()).await?;
        let topics = self.some_topics().await?;
        for one in self.each(topics, |topic| self.sweep_site(topic, &alone)).await? {
            swept.chunks += one.chunks;
            more |= one.more;
            wake.extend(one.wake);
        }
        wake.extend(swept.wake);
        Ok(Swept { workers, wake: wake.into_iter().collect(), more: more || swept.more, ..swept })
    }

    async fn sweep_site(&self, topic: TopicId, sweep: &Sweep) -> Result<Swept> {
        let site = self.site(topic);
        let swept = site.sweep(sweep.clone()).await;
        self.pay_all(topic, sweep.now).await?;
        site.write(sweep.now, forget_refused).await?;
        swept
    }

    /// The next topics in turn.
    async fn some_topics(&self) -> Result<Vec<TopicId>> {
        let mut topics = self.all_topics().await?;
        if topics.len() > SITES {
            let from = self.rounds.0.fetch_add(SITES, Relaxed) % topics.len();
            topics.rotate_left(from);
            topics.truncate(SITES);
        }
        Ok(topics)
    }

    /// Sites of topics that were deleted, until nothing is left in them. True if something is.
    async fn clear_deleted(&self, sweep: &Sweep) -> Result<bool> {
        let mut more = false;
        for topic in self.home.read(None, deleted).await? {
            self.bring_up(topic).await?;
            self.sweep_site(topic, sweep).await?;
            if !self.site(topic).read(None, erase::is_clear).await? {
                more = true;
                continue;
            }
            self.leave(topic).await?;
            let forget = |session: &Session<'_>| {
                session.remove(session.key("leaving"), topic.to_string());
                Ok(())
            };
            self.home.write(None, forget).await?;
        }
        Ok(more)
    }

    /// One step, at one site: of what is retained site by site, of work where it is oldest.
    pub(super) async fn shed_some(&self, given: Shed) -> Result<Shedded> {
        let mut topics = self.all_topics().await?;
        if matches!(given.surplus, Surplus::Work { .. }) {
            topics = self.by_age(topics).await?;
        }
        let at = if given.after.0 > 0 { Some(topic_of(given.after.chunk())) } else { None };
        let first = topics.iter().position(|topic| Some(*topic) == at).unwrap_or(0);
        let mut topics = topics.into_iter().skip(first).peekable();
        while let Some(topic) = topics.next() {
            let after = if Some(topic) == at { given.after } else { before(topic) };
            let shed = self.site(topic).shed(Shed { after, ..given }).await;
            self.pay(topic, given.now).await;
            let shed = shed?;
            // The next step goes on here, or at the site that follows.
            if shed.next.is_some() || shed.removed > 0 || shed.dropped.is_some() {
                let next = shed.next.or(topics.peek().map(|next| before(*next)));
                return Ok(Shedded { next, ..shed });
            }
        }
        Ok(Shedded::default())
    }

    /// Topics by the time of their oldest event.
    async fn by_age(&self, topics: Vec<TopicId>) -> Result<Vec<TopicId>> {
        let oldest = |topic| async move {
            let first = |session: &Session<'_>| logged(session, topic, 0, i64::MAX, 1);
            let first = self.site(topic).read(None, first).await?.pop();
            Ok((first.map_or(Time(i64::MAX), |first| first.emitted_at), topic))
        };
        let mut aged = self.each(topics, oldest).await?;
        aged.sort_unstable();
        Ok(aged.into_iter().map(|(_, topic)| topic).collect())
    }
}

/// Topics that were deleted, and have something left in their sites.
fn deleted(session: &Session<'_>) -> Result<Vec<TopicId>> {
    let left = session.all(&session.key("leaving"))?;
    Ok(left.into_keys().map(|id| TopicId(number(Some(id)))).collect())
}
