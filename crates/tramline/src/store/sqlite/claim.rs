//! Claim where there is no order. Ordered subscriptions: see [`super::order`].

use super::compact::compact;
use super::order;
use super::rows::{SLICE, apply, one_chunk, slice};
use super::rules;
use super::session::Session;
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::model::slice::{Slice, State};
use crate::model::subscription::{Policy, Subscription};
use crate::model::time::Time;
use crate::plan::Changes;
use crate::plan::claim::{Taker, take};
use crate::plan::expire::expire;
use crate::store::claimed::RawClaim;
use crate::store::compact::ROUNDS;
use crate::store::verbs::{Claim, Suspects};
use rusqlite::Connection;

/// How many expired leases one claim looks after.
const EXPIRED: usize = 64;
/// So few chunks are read at once by the writer: asking another thread would take longer.
const FEW: usize = 4;

/// Takes events. Decoding is left to the caller, outside the transaction.
pub(super) fn claim(session: &Session<'_>, claim: &Claim) -> Result<RawClaim> {
    let subscription = session.catalog.require_subscription(claim.subscription)?;
    let mut raw = RawClaim { now: session.now, ..RawClaim::default() };
    if let Some(stop) = rules::stop(session, claim.subscription)? {
        return Ok(raw.stopped(stop));
    }
    raw.backfilling = backfilling(session.conn, claim.subscription)?;
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
    if raw.missing().len() <= FEW {
        load_chunks(session.conn, &mut raw)?;
    }
    Ok(raw)
}

/// Reads the chunks of what was taken. They never change and cannot go while slices refer to them, so this may be done
/// after the claim's transaction and on another connection.
pub(super) fn load_chunks(conn: &Connection, raw: &mut RawClaim) -> Result<()> {
    for chunk in raw.missing() {
        if let Some(row) = one_chunk(conn, chunk)? {
            raw.chunks.insert(chunk, row);
        }
    }
    Ok(())
}

fn unordered(
    session: &Session<'_>,
    claim: &Claim,
    policy: &Policy,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    let (conn, now, id) = (session.conn, session.now, claim.subscription);
    raw.until = taker.until;
    expire_leases(session, id, policy, &[State::Leased, State::Consumed])?;
    let mut changes = Changes::default();
    let suspects = due(conn, id, State::Suspect, now, 1)?;
    match (claim.suspects, suspects.is_empty()) {
        (Suspects::TakeOne, false) => {
            raw.slices = take(suspects, taker, &mut changes);
            return apply(session, id, &changes);
        }
        (Suspects::Leave, false) => raw.suspects_wait = true,
        _ => {}
    }
    let ready = due(conn, id, State::Ready, now, taker.events)?;
    raw.slices = take(ready, taker, &mut changes);
    apply(session, id, &changes)?;
    if !taker.is_full() {
        raw.next_due = next_due(conn, id)?;
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
        for slice in due(session.conn, id, state, session.now, EXPIRED as u32 * 64)?.into_iter().take(EXPIRED)
        {
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
pub(super) struct Interrupted {
    /// There were some.
    pub(super) some: bool,
    /// There may be others.
    pub(super) more: bool,
}

/// Due slices of one state, by priority and time, until they hold `events` events. Walks the claim index and stops, so the
/// cost does not grow with what is not due or not wanted. (One statement with `rank IN (..)` would have to sort.)
fn due(conn: &Connection, id: SubscriptionId, state: State, now: Time, events: u32) -> Result<Vec<Slice>> {
    let sql = format!(
        "SELECT {SLICE} FROM tramline_slice \
         WHERE subscription = ? AND state = ? AND lane = 0 AND rank = ? AND pos <= ? ORDER BY pos"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let (mut found, mut count) = (Vec::new(), 0);
    for rank in ranks(conn, id, state)? {
        let mut rows = statement.query([id.0, state as i64, rank, now.0])?;
        while count < events
            && let Some(row) = rows.next()?
        {
            let slice = slice(row)?;
            count += slice.mask.count();
            found.push(slice);
        }
    }
    Ok(found)
}

/// The priorities that slices of one state have. Hops from one to the next in the claim index: mostly there is one.
fn ranks(conn: &Connection, id: SubscriptionId, state: State) -> Result<Vec<i64>> {
    let sql =
        "SELECT min(rank) FROM tramline_slice WHERE subscription = ? AND state = ? AND lane = 0 AND rank > ?";
    let mut statement = conn.prepare_cached(sql)?;
    let mut ranks = Vec::new();
    loop {
        let after = ranks.last().copied().unwrap_or(-1);
        let next: Option<i64> = statement.query_row([id.0, state as i64, after], |row| row.get(0))?;
        match next {
            Some(rank) => ranks.push(rank),
            None => return Ok(ranks),
        }
    }
}

/// The next time at which something becomes due: a delay or a lease that ends. One index look-up per state and priority.
fn next_due(conn: &Connection, id: SubscriptionId) -> Result<Option<Time>> {
    let sql =
        "SELECT min(pos) FROM tramline_slice WHERE subscription = ? AND state = ? AND lane = 0 AND rank = ?";
    let mut statement = conn.prepare_cached(sql)?;
    let mut next: Option<i64> = None;
    for state in [State::Ready, State::Leased, State::Consumed] {
        for rank in ranks(conn, id, state)? {
            let first: Option<i64> = statement.query_row([id.0, state as i64, rank], |row| row.get(0))?;
            next = [next, first].into_iter().flatten().min();
        }
    }
    Ok(next.map(Time))
}

fn backfilling(conn: &Connection, id: SubscriptionId) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM tramline_subscription_topic \
               WHERE subscription = ? AND backfill_next <= backfill_until)";
    Ok(conn.prepare_cached(sql)?.query_row([id.0], |row| row.get(0))?)
}
