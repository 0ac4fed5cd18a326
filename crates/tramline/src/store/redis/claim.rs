//! Claim where there is no order. Ordered subscriptions: see [`super::order`].

use super::catalog::{is_filling, stopped_by};
use super::compact::compact;
use super::order;
use super::rows::{Entry, apply, entries, expect_chunks, load, one_chunk};
use super::session::Session;
use super::tuple::Tuple;
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::model::slice::State;
use crate::model::subscription::{Policy, Subscription};
use crate::model::time::Time;
use crate::plan::Changes;
use crate::plan::claim::{Taker, take};
use crate::plan::expire::expire;
use crate::store::claimed::RawClaim;
use crate::store::compact::ROUNDS;
use crate::store::verbs::{Claim, Suspects};

/// How many expired leases one claim looks after.
const EXPIRED: usize = 64;
/// How many entries of the index are read at a time.
const PAGE: usize = 64;

/// Takes events. Reading and decoding them is left to the caller, after the step.
pub(super) fn claim(session: &Session<'_>, claim: &Claim) -> Result<RawClaim> {
    let catalog = session.catalog();
    let subscription = catalog.require_subscription(claim.subscription)?;
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
    Ok(raw)
}

/// Reads the chunks of what was taken. They never change and cannot go while slices refer to them, so this is done after the claim.
pub(super) fn load_chunks(session: &Session<'_>, raw: &RawClaim) -> Result<RawClaim> {
    expect_chunks(session, raw.missing().into_iter())?;
    let mut found = RawClaim::default();
    for chunk in raw.missing() {
        if let Some(row) = one_chunk(session, chunk)? {
            found.chunks.insert(chunk, row);
        }
    }
    Ok(found)
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

/// Due slices of one state, by priority and time, until they hold `events` events.
pub(super) fn due(
    session: &Session<'_>,
    id: SubscriptionId,
    state: State,
    now: Time,
    events: u32,
) -> Result<Vec<Entry>> {
    let (mut found, mut count) = (Vec::new(), 0);
    for rank in ranks(session, id, state)? {
        let columns = [state as i64, 0, rank];
        let to = Tuple::new().with(&columns).with(&[now.0.saturating_add(1)]).bytes();
        let mut from = Tuple::new().with(&columns).bytes();
        while count < events {
            let page = entries(session, id, (from.clone(), to.clone()), PAGE)?;
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

/// The priorities that slices of one state have. Hops from one to the next in the index: mostly there is one.
fn ranks(session: &Session<'_>, id: SubscriptionId, state: State) -> Result<Vec<i64>> {
    let mut ranks: Vec<i64> = Vec::new();
    loop {
        let after = ranks.last().map_or(0, |last| last + 1);
        match first_from(session, id, state, after)? {
            Some(entry) => ranks.push(entry.rank),
            None => return Ok(ranks),
        }
    }
}

/// The first slice of a state with this priority or a later one.
pub(super) fn first_from(
    session: &Session<'_>,
    id: SubscriptionId,
    state: State,
    rank: i64,
) -> Result<Option<Entry>> {
    let columns = [state as i64, 0];
    let range = (Tuple::new().with(&columns).with(&[rank]).bytes(), Tuple::new().with(&columns).end());
    Ok(entries(session, id, range, 1)?.pop())
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
