//! Claim where there is no order. Ordered subscriptions: see [`super::order`].

use super::RedisStore;
use super::catalog::{filling_reads, is_filling};
use super::compact::compact;
use super::lapsed;
use super::limit;
use super::link::Command;
use super::order;
use super::rows::{
    Entry, FIRST_CHUNKS, apply, chunk_key_in, entries, expect_all, expect_chunks, expect_entries, lanes_key,
    load, one_chunk, unpack_chunk,
};
use super::rules;
use super::session::{Session, hgetall};
use super::tuple::Tuple;
use super::work;
use crate::error::Result;
use crate::model::chunk::ChunkRow;
use crate::model::id::{ChunkId, SubscriptionId, TallyId};
use crate::model::slice::State;
use crate::model::subscription::{Policy, Subscription};
use crate::model::time::Time;
use crate::plan::Changes;
use crate::plan::claim::{Taker, take};
use crate::plan::expire::expire;
use crate::plan::limit::Crowd;
use crate::store::claimed::RawClaim;
use crate::store::compact::ROUNDS;
use crate::store::deleted::within;
use crate::store::verbs::{Claim, Suspects};
use redis::Value;
use std::collections::{BTreeMap, HashMap};

/// How many expired leases one claim looks after.
const EXPIRED: usize = 64;
/// How many entries of the index are read at a time.
const PAGE: usize = 64;
/// How much is read of chunks by one command, and of how many.
const MOMENT_BYTES: i64 = 1 << 20;
const MOMENT_CHUNKS: usize = 500;
/// How many slices a claim takes: a script has to end soon.
const MOST: usize = 300;

/// Takes events. Decoding them is left to the caller, after the step. `None` if there was so much to look after before that it takes
/// another step. Also gives the tallies that have news.
pub(super) fn claim(session: &Session<'_>, claim: &Claim) -> Result<(Option<RawClaim>, Vec<TallyId>)> {
    session.require_told()?;
    let catalog = session.catalog();
    let subscription = catalog.require_subscription(claim.subscription)?;
    expect(session, claim.subscription, &subscription.policy)?;
    let mut raw = RawClaim { now: session.now, ..RawClaim::default() };
    if let Some(stop) = rules::stop(session, claim.subscription)? {
        return Ok((Some(raw.stopped(stop)), Vec::new()));
    }
    raw.backfilling = is_filling(session, claim.subscription)?;
    let policy = &subscription.policy;
    let is_over = match policy.limits.is_none() {
        true => take_all(session, claim, policy, None, &mut raw)?,
        false => take_limited(session, claim, policy, &mut raw)?,
    };
    if !is_over {
        return Ok((None, session.finish()?));
    }
    let news = session.finish()?;
    raw.chunks = load_chunks(session, &raw)?;
    Ok((Some(raw), news))
}

/// Takes no more than the limits of the subscription allow. False if it is not known yet what they allow, or it takes another step.
fn take_limited(session: &Session<'_>, claim: &Claim, policy: &Policy, raw: &mut RawClaim) -> Result<bool> {
    let id = claim.subscription;
    let Some(mut limit) = limit::lay(session, claim, policy)? else { return Ok(false) };
    if !limit.is_reached() {
        let clipped = limit.clip(claim);
        if !take_all(session, &clipped, policy, limit.crowd.as_mut(), raw)? {
            return Ok(false);
        }
    }
    let starts = limit.end(raw);
    if !raw.slices.is_empty() {
        limit::keep(session, id, starts.as_deref())?;
    }
    if raw.limited && raw.next_due.is_none() {
        raw.next_due = match policy.is_ordered() {
            true => session.loosely(|| order::next_due(session, id))?,
            false => next_due(session, id, session.now)?,
        };
    }
    Ok(true)
}

/// False if nothing was taken, but another step may take something.
fn take_all(
    session: &Session<'_>,
    claim: &Claim,
    policy: &Policy,
    mut crowd: Option<&mut Crowd>,
    raw: &mut RawClaim,
) -> Result<bool> {
    for _ in 0..ROUNDS {
        let mut taker = Taker { epoch: session.least_epoch(), ..Taker::new(claim, policy, session.now) };
        if policy.is_ordered() {
            if !order::claim(session, claim, policy, &mut taker, raw)? {
                return Ok(false);
            }
        } else {
            unordered(session, claim, policy, crowd.as_deref_mut(), &mut taker, raw)?;
        }
        let gave_way = policy.compact && compact(session, claim.subscription, raw)?;
        if gave_way {
            raw.next_due = Some(session.now);
        }
        if !gave_way || !raw.slices.is_empty() {
            break;
        }
    }
    Ok(true)
}

/// Says what every claim reads first.
fn expect(session: &Session<'_>, id: SubscriptionId, policy: &Policy) -> Result<()> {
    let mut reads: Vec<Command> = filling_reads(session, id);
    reads.push(hgetall(&rules::rules_key(session, id)));
    if policy.is_ordered() {
        let read = session.expect(reads);
        let lanes = session.loosely(|| session.expect([hgetall(&lanes_key(session, id))]));
        return session.loosely(|| work::expect_lanes(session, id)).and(lanes).and(read);
    }
    let read = session.expect(reads);
    session.loosely(|| expect_entries(session, id, STATES.map(|state| (from_rank(state, 0), 1)))).and(read)
}

/// The states that a claim without order looks at.
const STATES: [State; 4] = [State::Leased, State::Consumed, State::Suspect, State::Ready];

/// Says what of these states will be read, now that the first slice of each is known.
fn expect_due(session: &Session<'_>, id: SubscriptionId) -> Result<()> {
    let mut ranges = Vec::new();
    for state in STATES {
        let Some(first) = first_from(session, id, state, 0)? else { continue };
        ranges.push((from_rank(state, first.rank + 1), 1));
        if first.pos <= session.now.0 {
            ranges.push((due_range(state, first.rank, session.now), PAGE));
        }
    }
    expect_entries(session, id, ranges)
}

fn due_range(state: State, rank: i64, now: Time) -> (Vec<u8>, Vec<u8>) {
    let columns = [state as i64, 0, rank];
    (
        Tuple::new().with(&columns).bytes(),
        Tuple::new().with(&columns).with(&[now.0.saturating_add(1)]).bytes(),
    )
}

impl RedisStore {
    /// Reads the chunks of what was taken by plain commands, some at a time.
    pub(super) async fn read_chunks(&self, raw: &RawClaim) -> Result<HashMap<ChunkId, ChunkRow>> {
        let mut weights: BTreeMap<ChunkId, i64> = raw.missing().into_iter().map(|chunk| (chunk, 0)).collect();
        for slice in &raw.slices {
            weights.entry(slice.chunk).and_modify(|weight| *weight += i64::from(slice.bytes));
        }
        let (mut chunks, mut left) = (HashMap::with_capacity(weights.len()), Vec::from_iter(weights));
        while !left.is_empty() {
            let count = within(left.iter().map(|(_, weight)| *weight), MOMENT_BYTES).min(MOMENT_CHUNKS);
            let rest = left.split_off(count.min(left.len()));
            let keys = left.iter().map(|(chunk, _)| chunk_key_in(&self.options.name, *chunk));
            let values = self.link.values(&keys.collect::<Vec<_>>()).await?;
            for ((chunk, _), value) in left.into_iter().zip(values) {
                if let Value::BulkString(row) = value {
                    chunks.insert(chunk, unpack_chunk(chunk, &row)?);
                }
            }
            left = rest;
        }
        Ok(chunks)
    }
}

/// Reads the chunks of what was taken. They never change, and cannot go while slices refer to them.
fn load_chunks(session: &Session<'_>, raw: &RawClaim) -> Result<HashMap<ChunkId, ChunkRow>> {
    expect_chunks(session, raw.missing().into_iter())?;
    let mut chunks = HashMap::new();
    for chunk in raw.missing() {
        chunks.extend(one_chunk(session, chunk)?.map(|row| (chunk, row)));
    }
    Ok(chunks)
}

fn unordered(
    session: &Session<'_>,
    claim: &Claim,
    policy: &Policy,
    crowd: Option<&mut Crowd>,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    let (now, id) = (session.now, claim.subscription);
    raw.until = taker.until;
    session.loosely(|| expect_due(session, id))?;
    expire_leases(session, id, policy, &[State::Leased, State::Consumed])?;
    let many = if crowd.is_some() { EXPIRED as u32 } else { 1 };
    let suspects = due(session, id, State::Suspect, now, many)?;
    raw.suspects_wait |= !suspects.is_empty() && claim.suspects == Suspects::Leave;
    let mut changes = Changes::default();
    match crowd {
        Some(crowd) => {
            if claim.suspects == Suspects::TakeOne {
                limit::take_suspect(session, load(session, &suspects)?, crowd, taker, raw)?;
            }
            if !raw.slices.is_empty() {
                return Ok(());
            }
            limit::take_by_key(session, id, crowd, taker, raw)?;
        }
        None if claim.suspects == Suspects::TakeOne && !suspects.is_empty() => {
            raw.slices = take(load(session, &suspects)?, taker, &mut changes);
            return apply(session, id, &changes);
        }
        None => {
            let mut ready = due(session, id, State::Ready, now, taker.events)?;
            if ready.len() > MOST {
                ready.truncate(MOST);
                raw.next_due = Some(now);
            }
            expect_all(session, ready.iter(), FIRST_CHUNKS)?;
            raw.slices = take(load(session, &ready)?, taker, &mut changes);
            apply(session, id, &changes)?;
        }
    }
    if !taker.is_full() {
        let next = next_due(session, id, Time(0))?;
        raw.next_due = [raw.next_due, next].into_iter().flatten().min();
    }
    Ok(())
}

/// Leases that have ended make their slices suspect, or dead. Gives how many.
fn expire_leases(
    session: &Session<'_>,
    id: SubscriptionId,
    policy: &Policy,
    states: &[State],
) -> Result<usize> {
    let mut changes = Changes::default();
    let mut count = 0;
    for &state in states {
        let ended: Vec<Entry> =
            due(session, id, state, session.now, EXPIRED as u32 * 64)?.into_iter().take(EXPIRED).collect();
        for slice in load(session, &ended)? {
            expire(slice, policy, session.now, None, &mut changes);
            count += 1;
        }
    }
    apply(session, id, &changes)?;
    Ok(count)
}

/// Looks after leases that have ended. True if there may be more than one step looks after.
pub(super) fn end_lapsed(session: &Session<'_>, id: SubscriptionId, policy: &Policy) -> Result<bool> {
    if policy.is_ordered() {
        return Ok(lapsed::interrupt(session, id, policy)? >= lapsed::ENDED);
    }
    Ok(expire_leases(session, id, policy, &[State::Leased, State::Consumed])? >= EXPIRED)
}

/// At most once: claims that have ended are interrupted, also where nobody claims any more.
pub(super) fn interrupt(session: &Session<'_>, subscription: &Subscription) -> Result<Interrupted> {
    let (id, policy) = (subscription.id, &subscription.policy);
    let count = if policy.is_ordered() {
        lapsed::interrupt(session, id, policy)?
    } else {
        expire_leases(session, id, policy, &[State::Consumed])?
    };
    let most = if policy.is_ordered() { lapsed::ENDED } else { EXPIRED };
    Ok(Interrupted { some: count > 0, more: count >= most })
}

/// What became of claims that have ended.
#[derive(Clone, Copy)]
pub(super) struct Interrupted {
    /// There were some.
    pub(super) some: bool,
    /// There may be others.
    pub(super) more: bool,
}

/// Due slices of one state, by priority and time, until they hold `events` events. Others may take them meanwhile: whoever wants one
/// reads it.
pub(super) fn due(
    session: &Session<'_>,
    id: SubscriptionId,
    state: State,
    now: Time,
    events: u32,
) -> Result<Vec<Entry>> {
    let (mut found, mut count) = (Vec::new(), 0);
    let mut rank = 0;
    while let Some(first) = first_from(session, id, state, rank)? {
        rank = first.rank + 1;
        let columns = [state as i64, 0, first.rank];
        let (mut from, to) = due_range(state, first.rank, now);
        while count < events && first.pos <= now.0 {
            let page = session.loosely(|| entries(session, id, (from.clone(), to.clone()), PAGE))?;
            let is_last = page.len() < PAGE;
            for entry in page {
                if count >= events {
                    break;
                }
                count += entry.events;
                from = Tuple::new().with(&columns).with(&[entry.pos, entry.chunk.0, entry.id.0]).end();
                found.push(entry);
            }
            if is_last {
                break;
            }
        }
    }
    Ok(found)
}

/// The first slice of a state with this priority or a later one.
pub(super) fn first_from(
    session: &Session<'_>,
    id: SubscriptionId,
    state: State,
    rank: i64,
) -> Result<Option<Entry>> {
    session.loosely(|| Ok(entries(session, id, from_rank(state, rank), 1)?.pop()))
}

fn from_rank(state: State, rank: i64) -> (Vec<u8>, Vec<u8>) {
    let columns = [state as i64, 0];
    (Tuple::new().with(&columns).with(&[rank]).bytes(), Tuple::new().with(&columns).end())
}

/// The next time after another one at which something becomes due: a delay or a lease that ends. One look per state and priority, or
/// two.
fn next_due(session: &Session<'_>, id: SubscriptionId, after: Time) -> Result<Option<Time>> {
    let mut next: Option<i64> = None;
    for state in [State::Ready, State::Leased, State::Consumed] {
        let mut rank = 0;
        while let Some(first) = first_from(session, id, state, rank)? {
            rank = first.rank + 1;
            let first = match first.pos > after.0 {
                true => Some(first),
                false => first_after(session, id, state, first.rank, after)?,
            };
            next = next.into_iter().chain(first.map(|first| first.pos)).min();
        }
    }
    Ok(next.map(Time))
}

fn first_after(
    session: &Session<'_>,
    id: SubscriptionId,
    state: State,
    rank: i64,
    after: Time,
) -> Result<Option<Entry>> {
    let of_rank = Tuple::new().with(&[state as i64, 0, rank]);
    let range = (of_rank.clone().with(&[after.0.saturating_add(1)]).bytes(), of_rank.end());
    session.loosely(|| Ok(entries(session, id, range, 1)?.pop()))
}
