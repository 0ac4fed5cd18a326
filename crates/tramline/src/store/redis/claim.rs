//! Claim where there is no order. Ordered subscriptions: see [`super::order`].

use super::catalog::{is_filling, rules_key, stopped_by};
use super::compact::compact;
use super::link::Command;
use super::order;
use super::rows::{
    Entry, FIRST_CHUNKS, apply, entries, expect_all, expect_chunks, expect_entries, lanes_key, load,
    one_chunk,
};
use super::session::{Session, hgetall};
use super::tuple::Tuple;
use crate::error::Result;
use crate::model::chunk::ChunkRow;
use crate::model::id::{ChunkId, SubscriptionId};
use crate::model::slice::State;
use crate::model::subscription::{Policy, Subscription};
use crate::model::time::Time;
use crate::plan::Changes;
use crate::plan::claim::{Taker, take};
use crate::plan::expire::expire;
use crate::store::claimed::RawClaim;
use crate::store::compact::ROUNDS;
use crate::store::verbs::{Claim, Suspects};
use std::collections::HashMap;

/// How many expired leases one claim looks after.
const EXPIRED: usize = 64;
/// How many entries of the index are read at a time.
const PAGE: usize = 64;

/// Takes events. Decoding them is left to the caller, after the step.
pub(super) fn claim(session: &Session<'_>, claim: &Claim) -> Result<RawClaim> {
    let catalog = session.catalog();
    let subscription = catalog.require_subscription(claim.subscription)?;
    expect(session, claim.subscription, &subscription.policy)?;
    let mut raw = RawClaim {
        now: session.now,
        stopped_by: stopped_by(session, claim.subscription)?,
        ..RawClaim::default()
    };
    if raw.stopped_by.is_some() {
        return Ok(raw);
    }
    raw.backfilling = is_filling(session, claim.subscription)?;
    let policy = &subscription.policy;
    for _ in 0..ROUNDS {
        let mut taker = Taker::new(claim, policy, session.now);
        if policy.is_ordered() {
            order::claim(session, claim, policy, &mut taker, &mut raw)?;
        } else {
            unordered(session, claim, policy, &mut taker, &mut raw)?;
        }
        let gave_way = policy.compact && compact(session, claim.subscription, &mut raw)?;
        if gave_way {
            raw.next_due = Some(session.now);
        }
        if !gave_way || !raw.slices.is_empty() {
            break;
        }
    }
    raw.news = session.finish()?;
    raw.chunks = load_chunks(session, &raw)?;
    Ok(raw)
}

/// Says what every claim reads first.
fn expect(session: &Session<'_>, id: SubscriptionId, policy: &Policy) -> Result<()> {
    let reads: Vec<Command> = vec![hgetall(&rules_key(session, id)), hgetall(&session.key("consumed"))];
    if policy.is_ordered() {
        let read = session.expect(reads);
        return session.loosely(|| session.expect([hgetall(&lanes_key(session, id))])).and(read);
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
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    let (now, id) = (session.now, claim.subscription);
    raw.until = taker.until;
    session.loosely(|| expect_due(session, id))?;
    expire_leases(session, id, policy, &[State::Leased, State::Consumed])?;
    let mut changes = Changes::default();
    let suspects = due(session, id, State::Suspect, now, 1)?;
    match (claim.suspects, suspects.is_empty()) {
        (Suspects::TakeOne, false) => {
            raw.slices = take(load(session, &suspects)?, taker, &mut changes);
            return apply(session, id, &changes);
        }
        (Suspects::Leave, false) => raw.suspects_wait = true,
        _ => {}
    }
    let ready = due(session, id, State::Ready, now, taker.events)?;
    expect_all(session, ready.iter(), FIRST_CHUNKS)?;
    raw.slices = take(load(session, &ready)?, taker, &mut changes);
    apply(session, id, &changes)?;
    if !taker.is_full() {
        raw.next_due = next_due(session, id)?;
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

/// At most once: claims that have ended are interrupted, also where nobody claims any more.
pub(super) fn interrupt(session: &Session<'_>, subscription: &Subscription) -> Result<Interrupted> {
    let (id, policy) = (subscription.id, &subscription.policy);
    let count = if policy.is_ordered() {
        order::interrupt(session, id, policy)?
    } else {
        expire_leases(session, id, policy, &[State::Consumed])?
    };
    Ok(Interrupted { some: count > 0, more: !policy.is_ordered() && count >= EXPIRED })
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

/// The next time at which something becomes due: a delay or a lease that ends. One look per state and priority.
fn next_due(session: &Session<'_>, id: SubscriptionId) -> Result<Option<Time>> {
    let mut next: Option<i64> = None;
    for state in [State::Ready, State::Leased, State::Consumed] {
        let mut rank = 0;
        while let Some(first) = first_from(session, id, state, rank)? {
            rank = first.rank + 1;
            next = Some(next.map_or(first.pos, |next| next.min(first.pos)));
        }
    }
    Ok(next.map(Time))
}
