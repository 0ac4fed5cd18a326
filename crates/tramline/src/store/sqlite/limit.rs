//! Limits: what a claim may take, counted where it is. The write transaction is the lock.

use super::claim::{due, end_lapsed};
use super::rows::{SLICE, apply, one_meta, slices};
use super::session::Session;
use crate::error::Result;
use crate::model::id::{ChunkId, SubscriptionId};
use crate::model::limits::Starts;
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::subscription::Policy;
use crate::plan::Changes;
use crate::plan::claim::Taker;
use crate::plan::limit::{Crowd, Keys, crowded_ranges, disperse, hash_of, take};
use crate::store::claimed::RawClaim;
use crate::store::limit::{Limit, READY, ROUNDS, UnderWay};
use crate::store::verbs::Claim;
use rusqlite::{Connection, OptionalExtension, params};

/// What a claim may take of a limited subscription. Leases that have ended are looked after first, all of them: what could still be
/// extended counts.
pub(super) fn lay(session: &Session<'_>, claim: &Claim, policy: &Policy) -> Result<Limit> {
    let (conn, id, limits) = (session.conn, claim.subscription, &policy.limits);
    let mut under_way = UnderWay::default();
    if limits.rate.is_some() {
        under_way.starts = starts(conn, id)?;
    }
    if limits.most().is_some() {
        end_lapsed(session, id, policy)?;
        under_way.leased = leased(conn, id)?;
    }
    if limits.per_key_concurrency.is_some() {
        under_way.keys = keys(conn, under_way.leased.iter().map(|(chunk, _)| *chunk))?;
    }
    Ok(Limit::new(claim, policy, under_way, session.now))
}

/// The keys of the events of chunks. Without payloads: those may be large, and most of what is looked at may have to wait.
fn keys(conn: &Connection, chunks: impl Iterator<Item = ChunkId>) -> Result<Keys> {
    let mut keys = Keys::new();
    for chunk in chunks {
        if !keys.contains_key(&chunk)
            && let Some(row) = one_meta(conn, chunk)?
        {
            keys.insert(chunk, row.keys()?.into());
        }
    }
    Ok(keys)
}

fn starts(conn: &Connection, id: SubscriptionId) -> Result<Starts> {
    let sql = "SELECT starts FROM tramline_limit WHERE subscription = ?";
    let text: Option<String> = conn.prepare_cached(sql)?.query_row([id.0], |row| row.get(0)).optional()?;
    Ok(text.map_or_else(Starts::default, |text| Starts::read(&text)))
}

/// Writes down what started.
pub(super) fn keep(conn: &Connection, id: SubscriptionId, starts: &str) -> Result<()> {
    let sql = "INSERT OR REPLACE INTO tramline_limit (subscription, starts) VALUES (?, ?)";
    conn.prepare_cached(sql)?.execute(params![id.0, starts])?;
    Ok(())
}

/// All that is leased, in whatever lane: as many rows as the limit allows events, at most.
fn leased(conn: &Connection, id: SubscriptionId) -> Result<Vec<(ChunkId, Mask)>> {
    let sql = "SELECT chunk, mask FROM tramline_slice WHERE subscription = ? AND state IN (1, 7)";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([id.0], |row| Ok((ChunkId(row.get(0)?), Mask::from_i64(row.get(1)?))))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Takes what the limit of each key allows, of those that had to wait and of those that are ready; another kind comes first every
/// time.
pub(super) fn take_by_key(
    session: &Session<'_>,
    id: SubscriptionId,
    crowd: &mut Crowd,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    let crowded_first = session.now.0 % 2 == 0;
    if crowded_first {
        take_crowded(session, id, crowd, taker, raw)?;
    }
    take_ready(session, id, crowd, taker, raw)?;
    if !crowded_first {
        take_crowded(session, id, crowd, taker, raw)?;
    }
    Ok(())
}

/// One suspect whose keys allow it.
pub(super) fn take_suspect(
    session: &Session<'_>,
    suspects: impl Iterator<Item = Slice>,
    crowd: &mut Crowd,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    for suspect in suspects {
        take_some(session, suspect.subscription, vec![suspect], crowd, taker, raw)?;
        if !raw.slices.is_empty() {
            break;
        }
    }
    Ok(())
}

fn take_ready(
    session: &Session<'_>,
    id: SubscriptionId,
    crowd: &mut Crowd,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    for _ in 0..ROUNDS {
        if taker.is_full() {
            return Ok(());
        }
        let ready = due(session.conn, id, State::Ready, session.now, READY)?;
        if ready.is_empty() {
            return Ok(());
        }
        take_some(session, id, ready, crowd, taker, raw)?;
    }
    raw.next_due = Some(session.now);
    Ok(())
}

fn take_crowded(
    session: &Session<'_>,
    id: SubscriptionId,
    crowd: &mut Crowd,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    if taker.is_full() {
        return Ok(());
    }
    let found = crowded(session, id, crowd, taker.events)?;
    take_some(session, id, found, crowd, taker, raw)
}

fn take_some(
    session: &Session<'_>,
    id: SubscriptionId,
    found: Vec<Slice>,
    crowd: &mut Crowd,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    let keys = keys(session.conn, found.iter().map(|slice| slice.chunk))?;
    let mut changes = Changes::default();
    raw.slices.extend(take(found, &keys, crowd, taker, &mut changes));
    apply(session, id, &changes)
}

/// Slices of keys that had to wait and have room now, until they may hold `wanted` events. Hops from key to key in the claim index:
/// no more keys are without room than events are under way.
fn crowded(session: &Session<'_>, id: SubscriptionId, crowd: &Crowd, wanted: u32) -> Result<Vec<Slice>> {
    let conn = session.conn;
    let sql = "SELECT rank FROM tramline_slice WHERE subscription = ? AND state = 8 AND lane = 0 AND rank >= ? AND rank < ? \
               ORDER BY rank LIMIT 1";
    let mut hop = conn.prepare_cached(sql)?;
    let full = crowd.full();
    let mut found = Vec::new();
    for (mut from, end) in crowded_ranges(session.now) {
        while (found.len() as u32) < wanted {
            let next: Option<i64> = hop.query_row([id.0, from, end], |row| row.get(0)).optional()?;
            let Some(rank) = next else { break };
            from = rank + 1;
            if !full.contains(&hash_of(rank)) {
                let filter = "subscription = ? AND state = 8 AND lane = 0 AND rank = ? ORDER BY pos LIMIT ?";
                found.extend(slices(conn, filter, &[id.0, rank, i64::from(crowd.most())])?);
            }
        }
    }
    Ok(found)
}

/// What had to wait because of its keys is ready again where keys are limited no longer. Gives the subscriptions where there was
/// something; there may be more.
pub(super) fn disperse_some(session: &Session<'_>, limit: u32) -> Result<Vec<SubscriptionId>> {
    let sql = format!("SELECT {SLICE} FROM tramline_slice WHERE subscription = ? AND state = 8 LIMIT ?");
    let mut woken = Vec::new();
    let free = |policy: &Policy| policy.limits.per_key_concurrency.is_none() && !policy.is_ordered();
    for subscription in session.catalog.subscriptions().iter().filter(|one| free(&one.policy)) {
        let mut statement = session.conn.prepare_cached(&sql)?;
        let rows = statement.query_map([subscription.id.0, i64::from(limit)], super::rows::slice)?;
        let crowded: Vec<Slice> = rows.collect::<rusqlite::Result<_>>()?;
        if crowded.is_empty() {
            continue;
        }
        woken.push(subscription.id);
        let update = crowded.into_iter().map(disperse).collect();
        apply(session, subscription.id, &Changes { update, ..Changes::default() })?;
    }
    Ok(woken)
}
