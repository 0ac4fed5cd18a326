//! Settle, extend and release: everything that a lease allows.

use super::RedisStore;
use super::order::{leased, load_keys, load_marks};
use super::parts::{Patience, lane_of, parts};
use super::rows::{apply, delete_slice, lanes_key, one_lane, one_slice, slices_key, write_lane, write_slice};
use super::session::{Session, hget};
use crate::error::Result;
use crate::model::id::{ChunkId, LaneId, SliceId, SubscriptionId};
use crate::model::lane::Lane;
use crate::model::lease::Lease;
use crate::model::outcome::Outcome;
use crate::model::slice::Slice;
use crate::model::subscription::Policy;
use crate::plan::release::{release as plan_release, release_lane};
use crate::plan::settle::{Leased, settle as plan_settle, settle_lane};
use crate::plan::{Changes, LaneView};
use crate::store::claimed::RawClaim;
use crate::store::verbs::{Extend, Extended, Release, Settle, SettleSlice, Settled};
use std::collections::{BTreeMap, BTreeSet};

impl RedisStore {
    /// Settles in several steps if it is much: slices have nothing to do with each other, unless they are of one lane.
    pub(super) async fn settle_in_parts(&self, given: &Settle) -> Result<Settled> {
        let results = &given.results;
        let lane = |result: &SettleSlice| lane_of(&result.lease);
        let parts = parts(results, lane, weight);
        if parts.len() <= 1 {
            return self.settle_some(given).await;
        }
        // What is refused is refused as a whole, so that has to be known before the first part is written.
        let failing: BTreeSet<LaneId> =
            results.iter().filter(|r| !r.is_all_done()).filter_map(lane).collect();
        if !failing.is_empty() {
            let in_doubt = |at: &usize| lane(&results[*at]).is_some_and(|lane| failing.contains(&lane));
            let some = given.some((0..results.len()).filter(in_doubt));
            self.read(given.now, |session: &Session<'_>| settle(session, &some)).await?;
        }
        let mut answer = Settled { accepted: vec![Vec::new(); results.len()], ..Settled::default() };
        let mut patience = Patience::new();
        for part in parts {
            let some = given.some(part.iter().copied());
            let settled = loop {
                match self.settle_some(&some).await {
                    Ok(settled) => break settled,
                    // Also if it may be written: an old lease changes nothing.
                    Err(error) => patience.bear(error.into()).await?,
                }
            };
            patience.begin();
            for (at, accepted) in part.into_iter().zip(settled.accepted) {
                answer.accepted[at] = accepted;
            }
            answer.waiting.extend(settled.waiting);
            answer.wake |= settled.wake;
            answer.news.extend(settled.news);
        }
        Ok(answer)
    }

    /// Finds out whether a settlement would be refused. Nothing is written.
    pub(super) async fn check_settle(&self, given: &Settle) -> Result<()> {
        let is_plain = |result: &SettleSlice| result.is_all_done() || !result.lease.is_ordered();
        if given.results.iter().all(is_plain) {
            return Ok(());
        }
        self.read(given.now, |session: &Session<'_>| settle(session, given)).await.map(drop)
    }

    async fn settle_some(&self, given: &Settle) -> Result<Settled> {
        if let Some(settled) = self.settle_at_once(given).await? {
            return Ok(settled);
        }
        let settled = self.write(given.now, |session: &Session<'_>| settle(session, given)).await;
        self.at_once.forget(given.results.iter().map(|result| &result.lease));
        settled
    }

    /// Makes leases last longer, some at a time.
    pub(super) async fn extend_in_parts(&self, given: &Extend) -> Result<Vec<Extended>> {
        let mut answers = vec![Extended::Lost; given.leases.len()];
        for part in parts(&given.leases, lane_of, |_| 1) {
            let leases: Vec<Lease> = part.iter().map(|at| given.leases[*at]).collect();
            let step = |session: &Session<'_>| extend(session, given, &leases);
            let extended = self.write(given.now, step).await?;
            part.into_iter().zip(extended).for_each(|(at, extended)| answers[at] = extended);
        }
        Ok(answers)
    }

    /// Gives back, some at a time. Gives how many leases it was.
    pub(super) async fn release_in_parts(&self, given: &Release) -> Result<u64> {
        let mut count = 0;
        for part in parts(&given.leases, lane_of, |_| 1) {
            let leases: Vec<Lease> = part.into_iter().map(|at| given.leases[at]).collect();
            let step = |session: &Session<'_>| release(session, given.subscription, &leases);
            count += self.write(given.now, step).await?;
        }
        Ok(count)
    }
}

impl Settle {
    /// The same for some of its results.
    pub(super) fn some(&self, places: impl Iterator<Item = usize>) -> Settle {
        Settle {
            results: places.map(|at| self.results[at].clone()).collect(),
            subscription: self.subscription,
            worker: self.worker.clone(),
            now: self.now,
        }
    }
}

/// How many slices follow from one: failures have times and errors of their own.
fn weight(result: &SettleSlice) -> usize {
    1 + result.outcomes.iter().filter(|(_, outcome)| *outcome != Outcome::Done).count()
}

pub(super) fn settle(session: &Session<'_>, settle: &Settle) -> Result<Settled> {
    let policy = session.catalog().require_subscription(settle.subscription)?.policy.clone();
    let mut answer = Settled { accepted: vec![Vec::new(); settle.results.len()], ..Settled::default() };
    expect(session, settle.subscription, settle.results.iter().map(|result| &result.lease))?;
    let mut lanes: BTreeMap<LaneId, Vec<usize>> = BTreeMap::new();
    session.for_each(settle.results.iter().enumerate(), |(at, result)| {
        if result.lease.is_ordered() {
            lanes.entry(result.lease.lane).or_default().push(at);
        } else {
            let (accepted, wake) = settle_slice(session, settle, result, &policy)?;
            answer.accepted[at] = accepted;
            answer.wake |= wake;
        }
        Ok(())
    })?;
    session.for_each(lanes, |(lane, results)| {
        settle_in_lane(session, settle, &results, lane, &policy, &mut answer)
    })?;
    answer.wake |= answer.frees(&policy);
    answer.news = session.finish()?;
    Ok(answer)
}

/// Says that what these leases are about will be read.
fn expect<'l>(
    session: &Session<'_>,
    id: SubscriptionId,
    leases: impl Iterator<Item = &'l Lease>,
) -> Result<()> {
    let read = |lease: &Lease| {
        let slice = hget(&slices_key(session, lease.chunk), lease.slice.to_string().as_bytes());
        let lane = hget(&lanes_key(session, id), lease.lane.to_string().as_bytes());
        std::iter::once(slice).chain(Some(lane).filter(|_| lease.is_ordered()))
    };
    session.expect(leases.flat_map(read))
}

fn settle_slice(
    session: &Session<'_>,
    settle: &Settle,
    result: &SettleSlice,
    policy: &Policy,
) -> Result<(Vec<bool>, bool)> {
    let id = settle.subscription;
    if finish(session, id, result)? {
        return Ok((vec![true; result.outcomes.len()], false));
    }
    let Some(slice) = under(session, id, &result.lease)? else {
        return Ok((vec![false; result.outcomes.len()], false));
    };
    let mut changes = Changes { worker: settle.worker.clone(), ..Changes::default() };
    let accepted = plan_settle(slice, &result.outcomes, policy, session.now, &mut changes);
    apply(session, id, &changes)?;
    Ok((accepted, changes.wake))
}

/// The common case: everything that the slice holds is done, and nothing else ends with it.
fn finish(session: &Session<'_>, id: SubscriptionId, result: &SettleSlice) -> Result<bool> {
    if !result.is_all_done() {
        return Ok(false);
    }
    let lease = &result.lease;
    let Some(slice) = under(session, id, lease)? else { return Ok(false) };
    let all = slice.mask == result.mask() && !slice.tallied;
    if all {
        delete_slice(session, lease.chunk, lease.slice)?;
    }
    Ok(all)
}

/// The slice under a lease, if the lease still holds.
fn under(session: &Session<'_>, id: SubscriptionId, lease: &Lease) -> Result<Option<Slice>> {
    let found = one_slice(session, lease.chunk, lease.slice)?;
    Ok(found.filter(|slice| slice.subscription == id && slice.is_under(lease)))
}

fn settle_in_lane(
    session: &Session<'_>,
    settle: &Settle,
    results: &[usize],
    id: LaneId,
    policy: &Policy,
    answer: &mut Settled,
) -> Result<()> {
    let mut held: Vec<usize> = Vec::with_capacity(results.len());
    let mut view = None;
    let lane = one_lane(session, settle.subscription, id)?;
    for &at in results {
        let result = &settle.results[at];
        match lane.as_ref().filter(|lane| lane.is_under(&result.lease)) {
            Some(lane) => {
                view.get_or_insert_with(|| LaneView::new(lane.clone()));
                held.push(at);
            }
            None => answer.accepted[at] = vec![false; result.outcomes.len()],
        }
    }
    let Some(mut view) = view else { return Ok(()) };
    let plain = view.lane.marks == 0 && held.iter().all(|at| settle.results[*at].is_all_done());
    if plain {
        let mut partial = Vec::new();
        for at in held {
            if finish(session, settle.subscription, &settle.results[at])? {
                view.lane.leased -= 1;
                answer.accepted[at] = vec![true; settle.results[at].outcomes.len()];
            } else {
                partial.push(at);
            }
        }
        held = partial;
    }
    let wanted: Vec<&SettleSlice> = held.iter().map(|at| &settle.results[*at]).collect();
    let leased = lane_slices(session, settle.subscription, id, &wanted, plain, &mut view)?;
    let mut changes = Changes { worker: settle.worker.clone(), ..Changes::default() };
    let settled = settle_lane(&mut view, leased, &wanted, policy, session.now, &mut changes)?;
    for (at, accepted) in held.into_iter().zip(settled.accepted) {
        answer.accepted[at] = accepted;
    }
    answer.waiting.extend(settled.waiting);
    answer.wake |= changes.wake;
    apply(session, settle.subscription, &changes)?;
    write_lane(session, &view.lane);
    Ok(())
}

/// What a settlement in a lane may touch. Where nothing failed and no key is marked, that is what is settled, and no key
/// has to be known.
fn lane_slices(
    session: &Session<'_>,
    id: SubscriptionId,
    lane: LaneId,
    wanted: &[&SettleSlice],
    plain: bool,
    view: &mut LaneView,
) -> Result<Leased> {
    if plain {
        let mut found = Leased::new();
        for result in wanted {
            found.extend(under(session, id, &result.lease)?.map(by_number));
        }
        return Ok(found);
    }
    let all = leased(session, id, lane)?;
    load_keys(session, view, all.iter().map(|slice| slice.chunk), &mut RawClaim::default())?;
    load_marks(session, view, &all)?;
    Ok(all.into_iter().map(by_number).collect())
}

fn extend(session: &Session<'_>, given: &Extend, leases: &[Lease]) -> Result<Vec<Extended>> {
    let (catalog, id) = (session.catalog(), given.subscription);
    let policy = &catalog.require_subscription(id)?.policy;
    let until = session.now.after(given.lease.unwrap_or_else(|| policy.lease()));
    // A lane has one lease: its slices do not matter.
    let read = |lease: &Lease| match lease.is_ordered() {
        true => hget(&lanes_key(session, id), lease.lane.to_string().as_bytes()),
        false => hget(&slices_key(session, lease.chunk), lease.slice.to_string().as_bytes()),
    };
    session.expect(leases.iter().map(read))?;
    let mut answers = Vec::with_capacity(leases.len());
    for lease in leases {
        let held = if lease.is_ordered() {
            let lane = one_lane(session, id, lease.lane)?.filter(|lane| lane.is_under(lease));
            lane.map(|lane| write_lane(session, &Lane { until, ..lane })).is_some()
        } else {
            let slice = under(session, id, lease)?;
            slice.map(|slice| write_slice(session, &Slice { due_at: until, ..slice })).transpose()?.is_some()
        };
        answers.push(if held { Extended::Until(until) } else { Extended::Lost });
    }
    Ok(answers)
}

fn release(session: &Session<'_>, id: SubscriptionId, leases: &[Lease]) -> Result<u64> {
    let mut count = 0;
    expect(session, id, leases.iter())?;
    let mut lanes: BTreeMap<LaneId, BTreeSet<Lease>> = BTreeMap::new();
    for lease in leases {
        if lease.is_ordered() {
            lanes.entry(lease.lane).or_default().insert(*lease);
            continue;
        }
        let Some(slice) = under(session, id, lease)? else { continue };
        let mut changes = Changes::default();
        plan_release(slice, session.now, &mut changes);
        apply(session, id, &changes)?;
        count += 1;
    }
    session.for_each(lanes, |(lane, given)| {
        count += release_in_lane(session, id, lane, &given)?;
        Ok(())
    })?;
    Ok(count)
}

/// Gives how many of the leases were given back.
fn release_in_lane(
    session: &Session<'_>,
    id: SubscriptionId,
    lane: LaneId,
    given: &BTreeSet<Lease>,
) -> Result<u64> {
    let held = one_lane(session, id, lane)?.filter(|lane| given.iter().any(|lease| lane.is_under(lease)));
    let Some(lane) = held else { return Ok(0) };
    let mut view = LaneView::new(lane);
    let leased = leased(session, id, view.lane.lane)?;
    let count = leased.iter().filter(|slice| given.contains(&slice.lease())).count() as u64;
    // Keys matter only for what stays.
    if leased.iter().any(|slice| !given.contains(&slice.lease())) {
        load_keys(session, &mut view, leased.iter().map(|slice| slice.chunk), &mut RawClaim::default())?;
    }
    let mut changes = Changes::default();
    let leased = leased.into_iter().map(by_number).collect();
    release_lane(&mut view, leased, given, session.now, &mut changes);
    apply(session, id, &changes)?;
    write_lane(session, &view.lane);
    Ok(count)
}

fn by_number(slice: Slice) -> ((ChunkId, SliceId), Slice) {
    ((slice.chunk, slice.id), slice)
}
