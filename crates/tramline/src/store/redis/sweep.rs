//! Housekeeping: signs of life, dead workers, claims that ended, back-fill, retention. Each part is a step of its own, and small: while a
//! script runs, everybody else waits.

use super::catalog::{Filling, fillings, fillings_in, fillings_of, is_filling, write_filling, written};
use super::claim::{self, Interrupted};
use super::erase::expire_keys;
use super::look::{workers, workers_key};
use super::rows::{
    Logged, STEP_SLICES, entries, expect_chunks, free_among, insert, lanes, load, logged, one_chunk,
    remove_chunks, write_lane, write_slice,
};
use super::session::Session;
use super::tuple::Tuple;
use super::{RedisStore, Role, drops, erase, limit, mend, remote, rules, unique};
use crate::error::Result;
use crate::model::id::{ChunkId, Incarnation, SubscriptionId, TopicId};
use crate::model::lane::Lane;
use crate::model::slice::{Slice, State};
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use crate::store::backfill::slices_of;
use crate::store::deleted::within_a_step;
use crate::store::retention::{Looked, Seen, Stretch, Walk};
use crate::store::verbs::{Beat, Buried, Bury, Sweep, Swept, Worker};
use std::collections::BTreeSet;

/// How many chunks one step of a back-fill reads, and how many slices it writes, about: with order a chunk may be in many lanes.
const BACKFILL_STEP: usize = 64;
const BACKFILL_SLICES: usize = STEP_SLICES as usize;
/// How many audit entries are kept.
const AUDIT_KEPT: i64 = 10_000;
/// How many rows one step of a sweep removes.
const STEP: u32 = 100;

/// A sign of life, after what a former self held was set free.
pub(super) fn beat(session: &Session<'_>, beat: &Beat) -> Result<Vec<Worker>> {
    let field = beat.incarnation.to_string();
    if beat.leaving {
        session.remove(workers_key(session), field);
    } else {
        let known = workers(session)?;
        let born = known.iter().find(|worker| worker.incarnation == beat.incarnation);
        let (name, born_at) = born.map_or((&beat.name, session.now), |worker| (&worker.name, worker.born_at));
        let row = written(&(name, &beat.subscriptions, born_at, session.now));
        session.put(workers_key(session), field, row);
    }
    workers(session)
}

/// The leases that a dead worker has among some slices of a subscription end now. Gives whether there were any, and where to go on.
fn bury_some(
    session: &Session<'_>,
    owner: Incarnation,
    id: SubscriptionId,
    (from, to): (Vec<u8>, Vec<u8>),
) -> Result<(bool, Option<Vec<u8>>)> {
    // What is claimed since is somebody else's; what is extended meanwhile is alive.
    let page = session.loosely(|| entries(session, id, (from, to), STEP as usize))?;
    let mut some = false;
    for slice in load(session, &page)?.into_iter().filter(|slice| slice.owner == owner) {
        write_slice(session, &Slice { due_at: session.now, ..slice })?;
        some = true;
    }
    let last = page.last().filter(|_| page.len() == STEP as usize);
    Ok((some, last.map(|last| Tuple::new().with(&last.columns()).end())))
}

/// The lanes that a dead worker holds are free now.
fn bury_lanes(session: &Session<'_>, owner: Incarnation, id: SubscriptionId) -> Result<bool> {
    let mut some = false;
    for lane in lanes(session, id)?.into_iter().filter(|lane| lane.owner == Some(owner)) {
        write_lane(session, &Lane { until: session.now, ..lane });
        some = true;
    }
    Ok(some)
}

impl RedisStore {
    /// A restarted process goes on at once with what its former self held.
    pub(super) async fn beat_once(&self, given: &Beat) -> Result<Vec<Worker>> {
        for worker in self.read(given.now, workers).await? {
            let is_former =
                |worker: &Worker| worker.name == given.name && worker.incarnation != given.incarnation;
            if is_former(&worker) {
                self.bury(given.now, worker.incarnation, |worker, _| is_former(worker)).await?;
            }
        }
        self.write(given.now, |session: &Session<'_>| beat(session, given)).await
    }

    /// A worker is known to be dead: its leases end now, some at a time. Gives the subscriptions that have work again, if it was so.
    async fn bury(
        &self,
        now: Option<Time>,
        owner: Incarnation,
        is_dead: impl Fn(&Worker, Time) -> bool,
    ) -> Result<Option<BTreeSet<SubscriptionId>>> {
        let still = |session: &Session<'_>| {
            let worker = workers(session)?.into_iter().find(|worker| worker.incarnation == owner);
            Ok(worker.is_some_and(|worker| is_dead(&worker, session.now)))
        };
        if !self.read(now, still).await? {
            return Ok(None);
        }
        let woken = self.end_leases_of(now, owner, still).await?;
        let end = |session: &Session<'_>| {
            if still(session)? {
                session.remove(workers_key(session), owner.to_string());
            }
            Ok(())
        };
        self.write(now, end).await?;
        Ok(Some(woken))
    }

    /// What a worker holds ends now, some at a time, as long as that is still right. Gives the subscriptions that have work again.
    pub(super) async fn end_leases_of(
        &self,
        now: Option<Time>,
        owner: Incarnation,
        still: impl Fn(&Session<'_>) -> Result<bool>,
    ) -> Result<BTreeSet<SubscriptionId>> {
        let mut woken = BTreeSet::new();
        for subscription in self.read(now, |session| Ok(session.catalog().subscriptions().to_vec())).await? {
            let id = subscription.id;
            for state in [State::Leased, State::Consumed] {
                let (mut next, to) = {
                    let (from, to) = Tuple::new().with(&[state as i64, 0]).all();
                    (Some(from), to)
                };
                while let Some(from) = next {
                    let step = |session: &Session<'_>| match still(session)? {
                        true => bury_some(session, owner, id, (from.clone(), to.clone())),
                        false => Ok((false, None)),
                    };
                    let (some, rest) = self.write(now, step).await?;
                    woken.extend(Some(id).filter(|_| some));
                    next = rest;
                }
            }
            let step = |session: &Session<'_>| Ok(still(session)? && bury_lanes(session, owner, id)?);
            if self.write(now, step).await? {
                woken.insert(id);
            }
        }
        Ok(woken)
    }

    /// Ends what workers held that were silent for too long.
    pub(super) async fn bury_silent(&self, given: &Bury) -> Result<Buried> {
        let is_dead = |worker: &Worker, now: Time| worker.beat_at <= now.before(given.dead_after);
        let dead = self.silent(given).await?;
        let (mut workers, mut wake) = (0, BTreeSet::new());
        for worker in dead.iter().take(given.limit as usize) {
            if let Some(woken) = self.bury(given.now, worker.incarnation, is_dead).await? {
                workers += 1;
                wake.extend(woken);
            }
        }
        let more = dead.len() > given.limit as usize;
        Ok(Buried { workers, wake: wake.into_iter().collect(), more })
    }

    /// Workers that were silent for too long.
    pub(super) async fn silent(&self, given: &Bury) -> Result<Vec<Worker>> {
        let silent = |session: &Session<'_>| {
            let mut known = workers(session)?;
            known.retain(|worker| worker.beat_at <= session.now.before(given.dead_after));
            Ok(known)
        };
        self.read(given.now, silent).await
    }

    pub(super) async fn sweep_all(&self, sweep: &Sweep) -> Result<Swept> {
        let now = sweep.now;
        let mut swept = Swept::default();
        let mut wake = BTreeSet::new();
        if let Some(burial) = sweep.burial() {
            let buried = self.bury_silent(&burial).await?;
            (swept.workers, swept.more) = (buried.workers, buried.more);
            wake.extend(buried.wake);
        }
        // At home there are no events.
        if self.role != Role::Home {
            swept.more |= self.sweep_work(sweep, &mut wake).await?;
        }
        swept.wake = wake.into_iter().collect();
        // First what was deleted: it may be all that keeps chunks past their retention.
        swept.more |= self.in_steps(now, sweep.limit, erase::erase).await?;
        if self.role != Role::Home {
            swept.more |= self.retire(now, sweep.limit, &mut swept.chunks).await?;
        }
        swept.more |= self.in_steps(now, sweep.limit, expire_keys).await?;
        swept.more |= self.in_steps(now, sweep.limit, unique::expire).await?;
        swept.more |= self.expire_entries(now, sweep.limit.min(STEP) as usize).await?;
        Ok(swept)
    }

    /// Work that ends or goes on by itself. True if there may be more.
    async fn sweep_work(&self, sweep: &Sweep, wake: &mut BTreeSet<SubscriptionId>) -> Result<bool> {
        let (now, mut more) = (sweep.now, false);
        for (id, interrupted) in self.interrupt(now).await? {
            more |= interrupted.more;
            wake.extend(Some(id).filter(|_| interrupted.some));
        }
        for subscription in self.read(now, |session| Ok(session.catalog().subscriptions().to_vec())).await? {
            more |= self.bury_and_disperse(now, &subscription, sweep.limit, wake).await?;
        }
        wake.extend(self.read(now, backfills).await?);
        Ok(more)
    }

    /// Rules that have ended, workers that were not seen for long, old records: subscription by subscription, some at a time. True if
    /// there may be more records.
    async fn expire_entries(&self, now: Option<Time>, limit: usize) -> Result<bool> {
        let all = self.read(now, |session| Ok(session.catalog().subscriptions().to_vec())).await?;
        let all: Vec<SubscriptionId> = all.iter().map(|one| one.id).chain([rules::PATTERNS]).collect();
        let mut more = false;
        for some in all.chunks(STEP as usize) {
            let step = |session: &Session<'_>| {
                rules::expire(session, some)?;
                remote::expire(session, some, limit)?;
                rules::expire_audit(session, some, AUDIT_KEPT)
            };
            more |= self.write(now, step).await?;
        }
        let step = |session: &Session<'_>| {
            rules::expire_by_pattern(session)?;
            drops::expire(session, limit)
        };
        self.write(now, step).await?;
        Ok(more)
    }

    /// At most once: claims that have ended, subscription by subscription.
    async fn interrupt(&self, now: Option<Time>) -> Result<Vec<(SubscriptionId, Interrupted)>> {
        let once = |session: &Session<'_>| Ok(session.catalog().subscriptions().to_vec());
        let mut interrupted = Vec::new();
        for subscription in self.read(now, once).await? {
            if subscription.policy.is_at_most_once() {
                let step = |session: &Session<'_>| claim::interrupt(session, &subscription);
                interrupted.push((subscription.id, self.write(now, step).await?));
            }
        }
        Ok(interrupted)
    }

    /// Dead events that were kept for long enough, and what waits for keys that are limited no longer. True if there may be more.
    async fn bury_and_disperse(
        &self,
        now: Option<Time>,
        subscription: &Subscription,
        limit: u32,
        wake: &mut BTreeSet<SubscriptionId>,
    ) -> Result<bool> {
        let mut more = false;
        if subscription.policy.dead_retention.is_some() {
            let step = |session: &Session<'_>, some| mend::expire_dead(session, subscription, some);
            more |= self.in_steps(now, limit, step).await?;
        }
        if limit::is_free(&subscription.policy) {
            let step =
                |session: &Session<'_>| limit::disperse_some(session, subscription.id, limit.min(STEP));
            if self.write(now, step).await? {
                more = true;
                wake.insert(subscription.id);
            }
        }
        Ok(more)
    }

    /// Repeats a step that removes a limited number of rows and says whether there are more.
    async fn in_steps(
        &self,
        now: Option<Time>,
        limit: u32,
        step: impl Fn(&Session<'_>, u32) -> Result<bool>,
    ) -> Result<bool> {
        let mut left = limit;
        while left > 0 {
            let some = left.min(STEP);
            if !self.write(now, |session: &Session<'_>| step(session, some)).await? {
                return Ok(false);
            }
            left -= some;
        }
        Ok(true)
    }

    /// Removes chunks past their retention, and counts them. What a slice refers to, or a back-fill has still to read, stays. True if
    /// there may be more.
    async fn retire(&self, now: Option<Time>, limit: u32, removed: &mut u64) -> Result<bool> {
        let topics = self.read(now, |session: &Session<'_>| Ok(session.catalog().topics().to_vec())).await?;
        let mut walk = Walk::new(&topics, self.round.place(), limit);
        while let Some(stretch) = walk.stretch() {
            let looked = self.write(now, |session: &Session<'_>| retire(session, &stretch)).await?;
            *removed += looked.free.len() as u64;
            walk.pass(&stretch, &looked);
        }
        self.round.go_on_at(walk.place());
        Ok(walk.is_cut_short())
    }
}

/// Removes what can go of some chunks.
fn retire(session: &Session<'_>, stretch: &Stretch) -> Result<Looked> {
    let (topic, oldest) = (stretch.topic, stretch.oldest(session.now));
    let floor = backfill_floor(session, topic)?;
    let page = logged(session, topic, stretch.from.0, floor, stretch.most as usize)?;
    let old: Vec<Logged> = page.into_iter().take_while(|logged| logged.emitted_at < oldest).collect();
    let free = free_among(session, old.iter().map(|logged| logged.chunk))?;
    let seen = old.iter().map(|&Logged { chunk, emitted_at, .. }| {
        let free = free.contains(&chunk);
        Seen { chunk, emitted_at, free }
    });
    let looked = stretch.look(session.now, seen);
    let free: Vec<Logged> = old.into_iter().filter(|one| looked.free.contains(&one.chunk)).collect();
    remove_chunks(session, topic, &free);
    Ok(looked)
}

fn backfills(session: &Session<'_>) -> Result<BTreeSet<SubscriptionId>> {
    Ok(fillings(session)?.into_iter().filter(Filling::is_open).map(|one| one.subscription).collect())
}

/// Below which chunk nothing is to be read any more.
pub(super) fn backfill_floor(session: &Session<'_>, topic: TopicId) -> Result<i64> {
    let open = fillings_in(session, topic)?.into_iter().filter(Filling::is_open);
    Ok(open.map(|one| one.next).min().unwrap_or(i64::MAX))
}

/// Writes the next retained chunks into a subscription that came after them.
pub(super) fn backfill(session: &Session<'_>, id: SubscriptionId) -> Result<bool> {
    let catalog = session.catalog();
    let subscription = catalog.require_subscription(id)?;
    let Some(filling) = fillings_of(session, id)?.into_iter().find(Filling::is_open) else {
        return Ok(false);
    };
    let Some(of) = catalog.topic_by_id(filling.topic) else { return Ok(false) };
    let end = filling.until.saturating_add(1);
    let page = logged(session, filling.topic, filling.next, end, BACKFILL_STEP)?;
    let count = within_a_step(page.iter().map(|logged| logged.bytes));
    let chunks: Vec<ChunkId> = page.iter().take(count).map(|logged| logged.chunk).collect();
    expect_chunks(session, chunks.iter().copied())?;
    let (mut slices, mut reached) = (Vec::new(), None);
    for chunk in &chunks {
        if slices.len() >= BACKFILL_SLICES {
            break;
        }
        if let Some(row) = one_chunk(session, *chunk)? {
            slices.append(&mut slices_of(&row, of, subscription)?);
        }
        reached = Some(chunk.0);
    }
    insert(session, &slices)?;
    let is_last = reached == page.last().map(|last| last.chunk.0) && page.len() < BACKFILL_STEP;
    let reached = reached.filter(|_| !is_last).unwrap_or(filling.until);
    write_filling(session, &Filling { next: reached + 1, ..filling });
    is_filling(session, id)
}
