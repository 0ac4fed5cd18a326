//! Lanes: ordered claims, and what every step on a lane has to load.

use super::lapsed::take_over_some;
use super::rows::{
    apply, entries, expect_all, expect_chunks, expect_entries, expect_marks, gaps, lanes, load, one_chunk,
    one_lane, parked, slices_with, write_lane,
};
use super::session::{PAGE, Session};
use super::tuple::Tuple;
use super::unpark;
use super::work::{MOST, Open, Troubles, candidates, first_of, has, is_still, oldest_work, ready_entries};
use crate::error::Result;
use crate::model::event::StoredEvent;
use crate::model::id::{ChunkId, LaneId, SubscriptionId};
use crate::model::lane::Lane;
use crate::model::slice::{Slice, State};
use crate::model::subscription::Policy;
use crate::model::time::Time;
use crate::plan::claim::Taker;
use crate::plan::lane::{before_suspects, take, take_suspect};
use crate::plan::{Changes, LaneView};
use crate::store::claimed::RawClaim;
use crate::store::verbs::{Claim, Suspects};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How many chunks' worth of parked events one claim sets aside per lane before it looks at the next lane.
const ROUNDS: u32 = 8;

/// How many events are looked at behind those that wait for their keys: mostly more of them.
const BEHIND: u32 = 64;

/// Takes from as many lanes as needed, the worker's own first. False if nothing was taken, but another step may take something.
pub(super) fn claim(
    session: &Session<'_>,
    claim: &Claim,
    policy: &Policy,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<bool> {
    raw.until = taker.until;
    let id = claim.subscription;
    let is_lapsed = |lane: &Lane| lane.is_lapsed(claim.owner, &claim.known, session.now);
    let open = session.loosely(|| candidates(session, claim))?;
    if open.iter().any(|open| is_lapsed(&open.lane)) {
        let lapsed = open.iter().map(|open| &open.lane).filter(|lane| is_lapsed(lane));
        take_over_some(session, policy, lapsed, is_lapsed)?;
        return Ok(false);
    }
    // Who takes a suspect takes nothing else, and should be in nobody's way in other lanes.
    let is_free = |open: &&Open| open.suspect && !open.lane.is_held(session.now);
    let suspect = open.iter().find(is_free).filter(|_| claim.suspects == Suspects::TakeOne);
    let lanes = suspect.map_or(&open[..], std::slice::from_ref);
    let (chosen, cut_short) = session.loosely(|| oldest_work(session, claim, lanes))?;
    let troubles = Troubles::of(session, id, &chosen)?;
    let unparking = unpark::go_on(session, id)?;
    let mut more = !unparking.is_empty() || suspect.is_some();
    let mut is_over = false;
    let quota = (MOST / chosen.iter().filter(|work| work.urgent).count().max(1)).max(1);
    let chosen = chosen.into_iter().filter(|work| !unparking.contains(&work.lane.lane));
    session.for_each(chosen, |work| {
        is_over |= taker.is_full();
        if is_over {
            return Ok(());
        }
        let is_open = |lane: &Lane| lane.is_open_to(claim.owner, &claim.known, session.now);
        let Some(lane) = one_lane(session, id, work.lane.lane)?.filter(is_open) else { return Ok(()) };
        if is_lapsed(&lane) || !is_still(session, id, &work)? {
            more = true;
            return Ok(());
        }
        let ready = load(session, &work.ready)?;
        let mut view = LaneView::new(lane.clone());
        let mut changes = Changes::default();
        let found = Found { ready, troubles, quota };
        is_over = take_from(session, claim, &mut view, found, taker, raw, &mut changes)?;
        apply(session, claim.subscription, &changes)?;
        if view.lane != lane {
            write_lane(session, &view.lane);
        }
        Ok(())
    })?;
    if is_over {
        return Ok(true);
    }
    // Where nothing was taken, it is not because there was too much.
    if more || (cut_short && !raw.slices.is_empty()) {
        raw.next_due = Some(session.now);
    }
    if !taker.is_full() {
        let next = session.loosely(|| next_due(session, id))?;
        raw.next_due = [raw.next_due, next].into_iter().flatten().min();
    }
    Ok(!more || !raw.slices.is_empty() || raw.suspects_wait)
}

/// What a claim has found in a lane.
struct Found {
    ready: Vec<Slice>,
    /// What there is in some lane.
    troubles: Troubles,
    /// How many of those that waited and are due it may look at: they are in many lanes at once, where much has failed together.
    quota: usize,
}

/// Takes from one locked lane. True when the claim is over: it took a suspect.
fn take_from(
    session: &Session<'_>,
    claim: &Claim,
    view: &mut LaneView,
    Found { mut ready, troubles, quota }: Found,
    taker: &mut Taker,
    raw: &mut RawClaim,
    changes: &mut Changes,
) -> Result<bool> {
    let (id, lane) = (claim.subscription, view.lane.lane);
    loop {
        let first = if troubles.suspects { first_of(session, id, State::Suspect, lane)? } else { None };
        let Some(first) = first else { break };
        // Who leaves suspects alone has to know them only if something may be ready before them.
        let is_behind = ready.first().is_none_or(|slice| slice.chunk > first.chunk);
        if claim.suspects == Suspects::Leave && is_behind {
            raw.suspects_wait = true;
            return Ok(false);
        }
        // All of the lowest chunk that has any.
        let suspects = slices_with(session, id, &[State::Suspect as i64, lane.0, 0, first.pos], usize::MAX)?;
        // The index was read a moment before the slices, and somebody took them in between. The step is refused and run again, if it
        // ends: looking again here would find the same for ever.
        if suspects.is_empty() {
            raw.next_due = Some(session.now);
            return Ok(false);
        }
        if !session.takes_room(suspects.len()) {
            raw.next_due = Some(session.now);
            return Ok(false);
        }
        if unpark::is_under_way(session, id, lane)? {
            raw.next_due = Some(session.now);
            return Ok(false);
        }
        ready = self::ready(session, id, lane, taker.events)?;
        if !view.lane.is_held(session.now) {
            let earlier = before_suspects(&ready, &suspects, changes);
            if !earlier.is_empty() {
                apply(session, id, changes)?;
                *changes = Changes::default();
                raw.suspects_wait = true;
                load_keys(session, view, earlier.iter().map(|slice| slice.chunk), raw)?;
                load_marks(session, view, &earlier)?;
                let taken = take(view, Vec::new(), earlier, taker, session.now, changes);
                if !taken.is_empty() {
                    add(view, taken, raw);
                    return Ok(false);
                }
                apply(session, id, changes)?;
                *changes = Changes::default();
                continue;
            }
        }
        if claim.suspects == Suspects::Leave || !raw.slices.is_empty() || view.lane.is_held(session.now) {
            raw.suspects_wait = true;
            return Ok(false);
        }
        load_keys(session, view, suspects.iter().map(|suspect| suspect.chunk), raw)?;
        load_marks(session, view, &suspects)?;
        if let Some(taken) = take_suspect(view, suspects, &ready, taker, changes) {
            add(view, vec![taken], raw);
            return Ok(true);
        }
        apply(session, id, changes)?;
        *changes = Changes::default();
    }
    for _ in 0..ROUNDS {
        let most = if troubles.waiting { quota.min(taker.events as usize) } else { 0 };
        let waiting = waiting(session, id, lane, most)?;
        if most > 0 && waiting.len() == most {
            raw.next_due = Some(session.now);
        }
        let (more, looked) = (!ready.is_empty(), ready.len());
        // Where no key is parked and nothing has to wait, keys do not matter: reading them is left to the claimer.
        if view.lane.marks > 0 || ready.iter().any(|slice| slice.due_at > session.now) {
            let all: Vec<Slice> = waiting.iter().chain(&ready).cloned().collect();
            load_keys(session, view, all.iter().map(|slice| slice.chunk), raw)?;
            load_marks(session, view, &all)?;
        }
        if view.lane.leased > 0 && ready.iter().any(|slice| slice.due_at > session.now) {
            load_running(session, view, raw)?;
        }
        let taken = take(view, waiting, ready, taker, session.now, changes);
        let took = !taken.is_empty();
        add(view, taken, raw);
        if took || !more || view.lane.halted_until > session.now {
            return Ok(false);
        }
        // Everything met was parked or not due: it is out of the way now, so look at what is behind it.
        apply(session, id, changes)?;
        *changes = Changes::default();
        if !session.takes_room(looked) || unpark::is_under_way(session, id, lane)? {
            break;
        }
        ready = self::ready(session, id, lane, taker.events.max(BEHIND))?;
    }
    raw.next_due = Some(session.now);
    Ok(false)
}

/// Slices whose event was the first of its key and had to wait, and is due now.
fn waiting(session: &Session<'_>, id: SubscriptionId, lane: LaneId, most: usize) -> Result<Vec<Slice>> {
    let now = session.now.0;
    if most == 0 || first_of(session, id, State::Waiting, lane)?.is_none_or(|first| first.pos > now) {
        return Ok(Vec::new());
    }
    let columns = [State::Waiting as i64, lane.0, 0];
    let to = Tuple::new().with(&columns).with(&[now.saturating_add(1)]).bytes();
    load(session, &entries(session, id, (Tuple::new().with(&columns).bytes(), to), most)?)
}

/// Ready slices of a lane in chunk order, whole chunks only, until they hold `events` events, or as many as a step looks at.
fn ready(session: &Session<'_>, id: SubscriptionId, lane: LaneId, events: u32) -> Result<Vec<Slice>> {
    load(session, &ready_entries(session, id, lane, events.min(MOST as u32))?)
}

/// All that is taken in a lane. Their chunks are read too, because of their keys.
pub(super) fn leased(session: &Session<'_>, id: SubscriptionId, lane: LaneId) -> Result<Vec<Slice>> {
    let ranges =
        [State::Leased, State::Consumed].map(|state| Tuple::new().with(&[state as i64, lane.0]).all());
    expect_entries(session, id, ranges.iter().cloned().map(|range| (range, PAGE)))?;
    let mut found = Vec::new();
    for range in ranges {
        found.extend(entries(session, id, range, usize::MAX)?);
    }
    expect_all(session, found.iter(), found.len())?;
    load(session, &found)
}

/// Fills in the keys of chunks. Their decoded events are kept, because a claim gives them out next.
pub(super) fn load_keys(
    session: &Session<'_>,
    view: &mut LaneView,
    chunks: impl Iterator<Item = ChunkId>,
    raw: &mut RawClaim,
) -> Result<()> {
    let chunks: BTreeSet<ChunkId> = chunks.collect();
    let unread = |chunk: &&ChunkId| !view.keys.contains_key(*chunk) && !raw.decoded.contains_key(*chunk);
    expect_chunks(session, chunks.iter().filter(unread).copied())?;
    for chunk in chunks {
        if view.keys.contains_key(&chunk) {
            continue;
        }
        let Some(events) = decoded(session, chunk, raw)? else { continue };
        let keys: Vec<Option<Arc<str>>> = events.iter().map(|event| event.key.clone()).collect();
        view.keys.insert(chunk, keys.into());
    }
    Ok(())
}

/// The events of a chunk; `None` if it is gone.
pub(super) fn decoded(
    session: &Session<'_>,
    chunk: ChunkId,
    raw: &mut RawClaim,
) -> Result<Option<Arc<[StoredEvent]>>> {
    if let Some(events) = raw.decoded.get(&chunk) {
        return Ok(Some(events.clone()));
    }
    let Some(row) = one_chunk(session, chunk)? else { return Ok(None) };
    let events: Arc<[StoredEvent]> = row.decode(&session.catalog().topic_name(row.topic))?.into();
    raw.decoded.insert(chunk, events.clone());
    Ok(Some(events))
}

/// Fills in which keys of these slices are parked or have gaps. Lanes without marks cost nothing.
pub(super) fn load_marks(session: &Session<'_>, view: &mut LaneView, slices: &[Slice]) -> Result<()> {
    if view.lane.marks == 0 {
        return Ok(());
    }
    let events = slices.iter().flat_map(Slice::events);
    let keys: BTreeSet<Arc<str>> = events.filter_map(|event| view.key(event).cloned()).collect();
    let (id, lane) = (view.lane.subscription, view.lane.lane);
    expect_marks(session, id, lane, keys.iter())?;
    for key in keys {
        if let Some((event, _)) = parked(session, id, lane, &key)? {
            view.parked.entry(key.clone()).or_insert(event);
        }
        let known = gaps(session, id, lane, &key)?;
        if !known.is_empty() {
            view.gaps.entry(key).or_insert(known);
        }
    }
    Ok(())
}

/// Fills in what the holder of a lane has under way.
fn load_running(session: &Session<'_>, view: &mut LaneView, raw: &mut RawClaim) -> Result<()> {
    let leased = leased(session, view.lane.subscription, view.lane.lane)?;
    load_keys(session, view, leased.iter().map(|slice| slice.chunk), raw)?;
    for event in leased.iter().filter(|slice| !slice.replayed).flat_map(Slice::events) {
        view.run(event);
    }
    Ok(())
}

fn add(view: &LaneView, taken: Vec<Slice>, raw: &mut RawClaim) {
    if !view.gaps.is_empty() {
        for event in taken.iter().filter(|slice| !slice.replayed).flat_map(Slice::events) {
            let skipped = view.skipped(event);
            if !skipped.is_empty() {
                raw.skipped.insert(event, skipped);
            }
        }
    }
    raw.slices.extend(taken);
}

/// The next time at which something becomes due: a waiting event, the end of a lane's lease, the end of a halt. What is due
/// already and was not taken belongs to somebody else's lane: it must not keep this worker busy.
pub(super) fn next_due(session: &Session<'_>, id: SubscriptionId) -> Result<Option<Time>> {
    let mut next: Option<i64> = None;
    let some_wait = has(session, id, State::Waiting)?;
    session.for_each(lanes(session, id)?, |lane| {
        let waiting = if some_wait { next_waiting(session, id, lane.lane)? } else { None };
        let ends = [lane.until.0, lane.halted_until.0].into_iter().filter(|end| *end > session.now.0);
        next = ends.chain(waiting).chain(next).min();
        Ok(())
    })?;
    Ok(next.map(Time))
}

/// When the next waiting event of a lane is due that is not yet.
fn next_waiting(session: &Session<'_>, id: SubscriptionId, lane: LaneId) -> Result<Option<i64>> {
    let first = first_of(session, id, State::Waiting, lane)?.map(|first| first.pos);
    if first.is_none_or(|first| first > session.now.0) {
        return Ok(first);
    }
    let columns = [State::Waiting as i64, lane.0, 0];
    let from = Tuple::new().with(&columns).with(&[session.now.0.saturating_add(1)]).bytes();
    Ok(entries(session, id, (from, Tuple::new().with(&columns).end()), 1)?.first().map(|entry| entry.pos))
}
