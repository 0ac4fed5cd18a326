//! Limits: what a claim may take, counted where it is.
//!
//! A limited subscription has a row that its claims read first and change when they take something, and that nobody else touches. So of two
//! claims at once one begins anew, and what is leased can be counted loosely: claims alone add to it, and what was settled since it
//! was read only leaves more room.

use super::claim::{due, end_lapsed};
use super::pack::{Packer, Unpacker};
use super::rows::{Entry, apply, entries, expect_all, load, metas, one_slice, slices_with};
use super::session::Session;
use super::tuple::Tuple;
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

/// How many entries of the index are read at a time, at least.
const PAGE: usize = 64;

/// What a claim may take of a limited subscription. Leases that have ended are looked after first, all of them: what could still be
/// extended counts. Nothing, if they are more than one step looks after.
pub(super) fn lay(session: &Session<'_>, claim: &Claim, policy: &Policy) -> Result<Option<Limit>> {
    let (id, limits) = (claim.subscription, &policy.limits);
    let (_, starts) = row(session, id)?;
    let mut under_way = UnderWay { starts: Starts::read(&starts), ..UnderWay::default() };
    if limits.most().is_some() {
        if end_lapsed(session, id, policy)? {
            return Ok(None);
        }
        under_way.leased = session.loosely(|| leased(session, id))?;
    }
    if limits.per_key_concurrency.is_some() {
        under_way.keys = keys(session, under_way.leased.iter().map(|(chunk, _)| *chunk))?;
    }
    Ok(Some(Limit::new(claim, policy, under_way, session.now)))
}

fn table(session: &Session<'_>) -> Vec<u8> {
    session.key("limits")
}

/// How many claims took something, and when events started.
fn row(session: &Session<'_>, id: SubscriptionId) -> Result<(i64, String)> {
    let Some(row) = session.get(&table(session), id.to_string().as_bytes())? else {
        return Ok((0, String::new()));
    };
    let mut row = Unpacker::new(&row);
    Ok((row.number()?, row.text()?))
}

/// Writes down that a claim took something, and what started, if that matters.
pub(super) fn keep(session: &Session<'_>, id: SubscriptionId, starts: Option<&str>) -> Result<()> {
    let (claims, before) = row(session, id)?;
    let starts = starts.unwrap_or(&before);
    let row = Packer::new().number(claims + 1).bytes(starts.as_bytes()).done();
    session.put(table(session), id.to_string(), row);
    Ok(())
}

/// Forgets what started.
pub(super) fn forget(session: &Session<'_>, id: SubscriptionId) {
    session.remove(table(session), id.to_string());
}

/// The keys of the events of chunks.
fn keys(session: &Session<'_>, chunks: impl Iterator<Item = ChunkId>) -> Result<Keys> {
    metas(session, chunks)?.into_iter().map(|(chunk, row)| Ok((chunk, row.keys()?.into()))).collect()
}

/// All that is leased, in whatever lane: as many slices as the limit allows events, at most. One that was extended since the index was
/// read is elsewhere in it by now, and still leased.
fn leased(session: &Session<'_>, id: SubscriptionId) -> Result<Vec<(ChunkId, Mask)>> {
    let mut found: Vec<Entry> = Vec::new();
    for state in [State::Leased, State::Consumed] {
        found.extend(entries(session, id, Tuple::new().with(&[state as i64]).all(), usize::MAX)?);
    }
    expect_all(session, found.iter(), 0)?;
    let mut leased = Vec::with_capacity(found.len());
    for entry in &found {
        let slice = one_slice(session, entry.chunk, entry.id)?;
        let slice = slice.filter(|slice| matches!(slice.state, State::Leased | State::Consumed));
        leased.extend(slice.map(|slice| (slice.chunk, slice.mask)));
    }
    Ok(leased)
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
    suspects: Vec<Slice>,
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
        let ready = load(session, &due(session, id, State::Ready, session.now, READY)?)?;
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
    let found = session.loosely(|| crowded(session, id, crowd, taker.events))?;
    take_some(session, id, load(session, &found)?, crowd, taker, raw)
}

fn take_some(
    session: &Session<'_>,
    id: SubscriptionId,
    found: Vec<Slice>,
    crowd: &mut Crowd,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    let keys = keys(session, found.iter().map(|slice| slice.chunk))?;
    let mut changes = Changes::default();
    raw.slices.extend(take(found, &keys, crowd, taker, &mut changes));
    apply(session, id, &changes)
}

/// Slices of keys that had to wait and have room now, until they may hold `wanted` events. Hops from key to key in the index, many
/// at a time: no more keys are without room than events are under way.
fn crowded(session: &Session<'_>, id: SubscriptionId, crowd: &Crowd, wanted: u32) -> Result<Vec<Entry>> {
    let (full, most) = (crowd.full(), crowd.most() as usize);
    let size = PAGE.max(most);
    let at = |rank: i64| Tuple::new().with(&[State::Crowded as i64, 0, rank]).bytes();
    let mut found = Vec::new();
    for (mut from, end) in crowded_ranges(session.now) {
        while (found.len() as u32) < wanted {
            let page = entries(session, id, (at(from), at(end)), size)?;
            let Some(last) = page.last() else { break };
            // A page may end within a key; then it begins the next one. A key that fills a page has no more to give.
            let cut = (page.len() == size && page[0].rank != last.rank).then_some(last.rank);
            from = cut.unwrap_or(last.rank + 1);
            for of_key in page.chunk_by(|a, b| a.rank == b.rank) {
                if Some(of_key[0].rank) != cut && !full.contains(&hash_of(of_key[0].rank)) {
                    found.extend(of_key.iter().take(most));
                }
            }
        }
    }
    Ok(found)
}

/// What had to wait because of its keys is ready again where keys are limited no longer. True if there was something; there may be
/// more.
pub(super) fn disperse_some(session: &Session<'_>, id: SubscriptionId, limit: u32) -> Result<bool> {
    let crowded = slices_with(session, id, &[State::Crowded as i64], limit as usize)?;
    let some = !crowded.is_empty();
    let update = crowded.into_iter().map(disperse).collect();
    apply(session, id, &Changes { update, ..Changes::default() })?;
    Ok(some)
}

/// True where nothing has to wait for its key.
pub(super) fn is_free(policy: &Policy) -> bool {
    policy.limits.per_key_concurrency.is_none() && !policy.is_ordered()
}
