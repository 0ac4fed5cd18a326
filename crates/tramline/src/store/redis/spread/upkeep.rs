//! Workers and housekeeping: home knows who lives, and every site ends for itself what the dead held.

use super::placed::forget_fates;
use super::sites::{before, leaving, topic_of};
use super::{SpreadStore, warn_of};
use crate::error::Result;
use crate::model::id::{Incarnation, SubscriptionId, TopicId};
use crate::model::time::Time;
use crate::store::Store;
use crate::store::redis::look::{workers, workers_key};
use crate::store::redis::rows::logged;
use crate::store::redis::session::Session;
use crate::store::redis::sweep;
use crate::store::verbs::{Beat, Buried, Bury, Shed, Shedded, Surplus, Sweep, Swept, Worker};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How many sites one sweep looks after, and how often it goes on with one thing at one of them.
const SITES: usize = 64;
const ROUNDS: u32 = 50;

/// Where the next sweep goes on.
#[derive(Debug, Default)]
pub(super) struct Rounds(AtomicUsize);

impl SpreadStore {
    /// A sign of life; then what a former self held is set free, which may take its time.
    pub(super) async fn beat_at_home(&self, given: &Beat) -> Result<Vec<Worker>> {
        let known = self.home.write(given.now, |session: &Session<'_>| sweep::beat(session, given)).await?;
        let is_former =
            |worker: &Worker, _| worker.name == given.name && worker.incarnation != given.incarnation;
        let former: Vec<Worker> = known.iter().filter(|worker| is_former(worker, Time(0))).cloned().collect();
        if former.is_empty() {
            return Ok(known);
        }
        for worker in former {
            self.bury_one(given.now, worker.incarnation, is_former).await?;
        }
        self.home.read(given.now, workers).await
    }

    /// What a worker held is free, at every site, as long as it is known to be dead. Gives the subscriptions that have work again, if
    /// it was so. At a site that cannot be reached now, its leases end when their time is over.
    async fn bury_one(
        &self,
        now: Option<Time>,
        owner: Incarnation,
        is_dead: impl Fn(&Worker, Time) -> bool + Copy,
    ) -> Result<Option<BTreeSet<SubscriptionId>>> {
        let still = |session: &Session<'_>| {
            let worker = workers(session)?.into_iter().find(|worker| worker.incarnation == owner);
            Ok(worker.is_some_and(|worker| is_dead(&worker, session.now)))
        };
        let at_site = |topic| async move {
            // Whoever gives a sign of life meanwhile keeps what is left.
            if !self.home.read(now, still).await? {
                return Ok(BTreeSet::new());
            }
            self.site(topic).end_leases_of(now, owner, |_| Ok(true)).await
        };
        let ended = self.side_by_side(self.all_topics().await?, at_site).await;
        let woken: BTreeSet<SubscriptionId> = ended.into_iter().filter_map(warn_of).flatten().collect();
        let strike_out = |session: &Session<'_>| {
            let is_dead = still(session)?;
            if is_dead {
                session.remove(workers_key(session), owner.to_string());
            }
            Ok(is_dead)
        };
        let is_dead = self.home.write(now, strike_out).await?;
        Ok((is_dead || !woken.is_empty()).then_some(woken))
    }

    pub(super) async fn bury_at_all(&self, given: &Bury) -> Result<Buried> {
        let is_dead = |worker: &Worker, now: Time| worker.beat_at <= now.before(given.dead_after);
        let dead = self.home.silent(given).await?;
        let (mut workers, mut wake) = (0, BTreeSet::new());
        for worker in dead.iter().take(given.limit as usize) {
            if let Some(woken) = self.bury_one(given.now, worker.incarnation, is_dead).await? {
                workers += 1;
                wake.extend(woken);
            }
        }
        let more = dead.len() > given.limit as usize;
        Ok(Buried { workers, wake: wake.into_iter().collect(), more })
    }

    /// Home, what others left undone, and some of the sites. One that cannot be reached is left out.
    pub(super) async fn sweep_some(&self, given: &Sweep) -> Result<Swept> {
        let mut wake = BTreeSet::new();
        let (mut workers, mut more) = (0, false);
        if let Some(burial) = given.burial() {
            let buried = self.bury_at_all(&burial).await?;
            (workers, more) = (buried.workers, buried.more);
            wake.extend(buried.wake);
        }
        self.catch_up().await?;
        let open = self.resolve_all(given.now).await?;
        let alone = Sweep { dead_after: None, ..given.clone() };
        for topic in self.home.read(None, leaving).await?.into_keys() {
            more |= warn_of(self.clear_deleted(topic, &alone).await).unwrap_or_default();
        }
        let mut swept = self.home.sweep(alone.clone()).await?;
        let topics = self.some_topics().await?;
        let sweep = |topic| self.sweep_site(topic, &alone, open.contains(&topic));
        for one in self.side_by_side(topics, sweep).await {
            let Some(one) = warn_of(one) else { continue };
            swept.chunks += one.chunks;
            more |= one.more;
            wake.extend(one.wake);
        }
        wake.extend(swept.wake);
        Ok(Swept { workers, wake: wake.into_iter().collect(), more: more || swept.more, ..swept })
    }

    /// `is_asked`: home still has to ask what became of emits there.
    async fn sweep_site(&self, topic: TopicId, sweep: &Sweep, is_asked: bool) -> Result<Swept> {
        let site = self.site(topic);
        if site.read(None, |session| Ok(session.is_untold())).await? {
            self.bring_up(topic).await?;
        }
        let swept = site.sweep(sweep.clone()).await?;
        self.pay_all(topic, sweep.now).await?;
        let mut rounds = if is_asked { 0 } else { ROUNDS };
        while rounds > 0 && site.write(sweep.now, forget_fates).await? {
            rounds -= 1;
        }
        Ok(swept)
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

    /// The site of a topic that was deleted, until nothing is left in it. True if something is.
    async fn clear_deleted(&self, topic: TopicId, sweep: &Sweep) -> Result<bool> {
        self.bring_up(topic).await?;
        if self.catalog().await?.topic_by_id(topic).is_none() {
            let site = self.site(topic);
            site.sweep(sweep.clone()).await?;
            self.pay_all(topic, sweep.now).await?;
            if !self.leave(topic).await? {
                return Ok(true);
            }
        }
        let forget = |session: &Session<'_>| {
            session.remove(session.key("leaving"), topic.to_string());
            Ok(())
        };
        self.home.write(None, forget).await?;
        Ok(false)
    }

    /// One step, at one site: of what is retained site by site, of work where it is oldest.
    pub(super) async fn shed_some(&self, given: Shed) -> Result<Shedded> {
        let mut topics = self.all_topics().await?;
        if matches!(given.surplus, Surplus::Work { .. }) {
            topics = self.by_age(topics).await;
        }
        let at = if given.after.0 > 0 { Some(topic_of(given.after.chunk())) } else { None };
        let first = topics.iter().position(|topic| Some(*topic) == at).unwrap_or(0);
        let mut topics = topics.into_iter().skip(first).peekable();
        while let Some(topic) = topics.next() {
            let after = if Some(topic) == at { given.after } else { before(topic) };
            let shed = self.site(topic).shed(Shed { after, ..given }).await;
            self.pay(topic, given.now).await;
            let Some(shed) = warn_of(shed) else { continue };
            // The next step goes on here, or at the site that follows.
            if shed.next.is_some() || shed.removed > 0 || shed.dropped.is_some() {
                let next = shed.next.or(topics.peek().map(|next| before(*next)));
                return Ok(Shedded { next, ..shed });
            }
        }
        Ok(Shedded::default())
    }

    /// Topics by the time of their oldest event.
    async fn by_age(&self, topics: Vec<TopicId>) -> Vec<TopicId> {
        let oldest = |topic| async move {
            let first = |session: &Session<'_>| logged(session, topic, 0, i64::MAX, 1);
            let first = self.site(topic).read(None, first).await?.pop();
            Ok((first.map_or(Time(i64::MAX), |first| first.emitted_at), topic))
        };
        let mut aged: Vec<(Time, TopicId)> =
            self.side_by_side(topics, oldest).await.into_iter().filter_map(warn_of).collect();
        aged.sort_unstable();
        aged.into_iter().map(|(_, topic)| topic).collect()
    }
}
