//! Lanes: ordered claims, and what every step on a lane has to load.

use super::catalog::backfill_cursor;
use super::rows::{SLICE, apply, blocked_by, gaps, lanes, one_chunk, slice, slices, write_lane};
use super::session::Session;
use crate::error::Result;
use crate::model::event::StoredEvent;
use crate::model::id::{ChunkId, LaneId, SubscriptionId};
use crate::model::lane::{Lane, Share};
use crate::model::slice::{Slice, State};
use crate::model::subscription::Policy;
use crate::model::time::Time;
use crate::plan::claim::Taker;
use crate::plan::lane::{before_suspects, take, take_over, take_suspect};
use crate::plan::{Changes, LaneView};
use crate::store::claimed::RawClaim;
use crate::store::verbs::{Claim, Suspects};
use rusqlite::Connection;
use std::collections::BTreeSet;
use std::sync::Arc;

/// How many chunks' worth of parked events one claim sets aside per lane before it looks at the next lane.
const ROUNDS: u32 = 8;

/// Takes from as many lanes as needed, the worker's own first.
pub(super) fn claim(
    session: &Session<'_>,
    claim: &Claim,
    policy: &Policy,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    raw.until = taker.until;
    for (lane, mut ready) in oldest_work(session, claim)? {
        if taker.is_full() {
            return Ok(());
        }
        let mut view = LaneView::new(lane.clone());
        let mut changes = Changes::default();
        if view.lane.is_lapsed(claim.owner, &claim.known, session.now) {
            take_over_lapsed(session, &mut view, policy, raw)?;
            // Keys may have gone on, and their events come before what was read above.
            ready = self::ready(session, claim.subscription, view.lane.lane, taker.events)?;
        }
        let done = take_from(session, claim, &mut view, ready, taker, raw, &mut changes)?;
        apply(session, claim.subscription, &changes)?;
        if view.lane != lane {
            write_lane(session.conn, &view.lane)?;
        }
        if done {
            return Ok(());
        }
    }
    if !taker.is_full() {
        let next = next_due(session, claim.subscription)?;
        raw.next_due = [raw.next_due, next].into_iter().flatten().min();
    }
    Ok(())
}

/// A lane whose lease has ended: what was taken under it becomes suspect, or interrupted.
fn take_over_lapsed(
    session: &Session<'_>,
    view: &mut LaneView,
    policy: &Policy,
    raw: &mut RawClaim,
) -> Result<()> {
    let id = view.lane.subscription;
    let leased = leased(session.conn, id, view.lane.lane)?;
    load_keys(session, view, leased.iter().map(|slice| slice.chunk), raw)?;
    load_marks(session.conn, view, &leased)?;
    let mut changes = Changes::default();
    take_over(view, leased, policy, session.now, &mut changes);
    apply(session, id, &changes)
}

/// Lanes whose lease has ended, also where nobody claims any more. Gives how many.
pub(super) fn interrupt(session: &Session<'_>, id: SubscriptionId, policy: &Policy) -> Result<usize> {
    let mut count = 0;
    let ended = |lane: &Lane| lane.owner.is_some() && lane.until <= session.now;
    for lane in lanes(session.conn, id)?.into_iter().filter(ended) {
        let mut view = LaneView::new(lane);
        take_over_lapsed(session, &mut view, policy, &mut RawClaim::default())?;
        write_lane(session.conn, &view.lane)?;
        count += 1;
    }
    Ok(count)
}

/// Takes from one locked lane. True when the claim is over: it took a suspect.
fn take_from(
    session: &Session<'_>,
    claim: &Claim,
    view: &mut LaneView,
    mut ready: Vec<Slice>,
    taker: &mut Taker,
    raw: &mut RawClaim,
    changes: &mut Changes,
) -> Result<bool> {
    let (conn, id, lane) = (session.conn, claim.subscription, view.lane.lane);
    loop {
        let suspects = first_suspects(conn, id, lane)?;
        if suspects.is_empty() {
            break;
        }
        ready = self::ready(session, id, lane, taker.events)?;
        if !view.lane.is_held(session.now) {
            let earlier = before_suspects(&ready, &suspects, changes);
            if !earlier.is_empty() {
                apply(session, id, changes)?;
                *changes = Changes::default();
                raw.suspects_wait = true;
                load_keys(session, view, earlier.iter().map(|slice| slice.chunk), raw)?;
                load_marks(conn, view, &earlier)?;
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
        load_marks(conn, view, &suspects)?;
        if let Some(taken) = take_suspect(view, suspects, &ready, taker, changes) {
            add(view, vec![taken], raw);
            return Ok(true);
        }
        apply(session, id, changes)?;
        *changes = Changes::default();
    }
    for _ in 0..ROUNDS {
        let waiting = waiting(conn, id, lane, session.now, taker.events)?;
        let more = !ready.is_empty();
        // Where no key is parked and nothing has to wait, keys do not matter: reading them is left to the claimer.
        if view.lane.marks > 0 || ready.iter().any(|slice| slice.due_at > session.now) {
            let all: Vec<Slice> = waiting.iter().chain(&ready).cloned().collect();
            load_keys(session, view, all.iter().map(|slice| slice.chunk), raw)?;
            load_marks(conn, view, &all)?;
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
        ready = self::ready(session, id, lane, taker.events)?;
    }
    raw.next_due = Some(session.now);
    Ok(false)
}

/// Lanes, each with its ready slices.
type Work = Vec<(Lane, Vec<Slice>)>;

/// The lanes to take from, the worker's own before others, each with its ready slices.
fn oldest_work(session: &Session<'_>, claim: &Claim) -> Result<Work> {
    let mut wanted = claim.max_events;
    let mut work = Vec::new();
    for lanes in candidates(session, claim)?
        .chunk_by(|a, b| claim.share.prefers(a.lane) == claim.share.prefers(b.lane))
    {
        let (found, events) = in_step(session, lanes, wanted)?;
        work.extend(found);
        wanted = wanted.saturating_sub(events);
    }
    Ok(work)
}

/// The ready slices of lanes, up to the chunk at which all of them together hold what is wanted, and how many due events
/// that is. Lanes are served in step, oldest chunk first: then a claim reads few chunks, and no lane falls behind.
fn in_step(session: &Session<'_>, lanes: &[Lane], wanted: u32) -> Result<(Work, u32)> {
    let quota = (wanted as usize).div_ceil(lanes.len()).max(1) as u32;
    let mut work = Vec::with_capacity(lanes.len());
    for lane in lanes {
        let ready = ready(session, lane.subscription, lane.lane, quota.saturating_mul(2).min(wanted))?;
        work.push((lane.clone(), ready));
    }
    let ready = work.iter().flat_map(|(_, ready)| ready).filter(|slice| slice.due_at <= session.now);
    let mut chunks: Vec<(ChunkId, u32)> = ready.map(|slice| (slice.chunk, slice.mask.count())).collect();
    chunks.sort_unstable();
    let mut events = 0;
    let last = chunks.into_iter().find(|(_, count)| {
        events += count;
        events >= wanted
    });
    if let Some((last, _)) = last {
        work.iter_mut().for_each(|(_, ready)| ready.retain(|slice| slice.chunk <= last));
    }
    Ok((work, events))
}

/// All suspects of the lowest chunk of a lane that has any.
fn first_suspects(conn: &Connection, id: SubscriptionId, lane: LaneId) -> Result<Vec<Slice>> {
    let filter = "subscription = ?1 AND state = 2 AND lane = ?2 AND rank = 0 AND pos = (SELECT min(pos) \
                  FROM tramline_slice WHERE subscription = ?1 AND state = 2 AND lane = ?2 AND rank = 0)";
    slices(conn, filter, &[id.0, lane.0])
}

/// Open lanes with something to do, preferred ones first, beginning at another one every time. Whoever takes a suspect takes
/// nothing else, so lanes that may have one come before all others.
fn candidates(session: &Session<'_>, claim: &Claim) -> Result<Vec<Lane>> {
    let mut busy = lanes_with(session, claim.subscription, State::Ready)?;
    busy.extend(lanes_with(session, claim.subscription, State::Waiting)?);
    let suspect = lanes_with(session, claim.subscription, State::Suspect)?;
    busy.extend(&suspect);
    let lapsed = |lane: &Lane| lane.is_lapsed(claim.owner, &claim.known, session.now);
    let mut open: Vec<Lane> = lanes(session.conn, claim.subscription)?
        .into_iter()
        .filter(|lane| lane.is_open_to(claim.owner, &claim.known, session.now))
        .filter(|lane| busy.contains(&lane.lane) || lapsed(lane))
        .collect();
    let (mut own, mut others): (Vec<Lane>, Vec<Lane>) =
        open.drain(..).partition(|lane| claim.share.prefers(lane.lane));
    rotate(&mut own, session.now);
    if own.is_empty() || claim.share == Share::ALL {
        rotate(&mut others, session.now);
    }
    if claim.share.help {
        own.append(&mut others);
    }
    if claim.suspects == Suspects::TakeOne {
        own.sort_by_key(|lane| !suspect.contains(&lane.lane) && !lapsed(lane));
    }
    Ok(own)
}

fn rotate(lanes: &mut [Lane], now: Time) {
    if !lanes.is_empty() {
        let by = now.0.unsigned_abs() as usize % lanes.len();
        lanes.rotate_left(by);
    }
}

/// The lanes that have slices of one state; waiting ones only if they are due. Hops from lane to lane in the claim index, so
/// the cost is that of the lanes with work and not of the work in them.
fn lanes_with(session: &Session<'_>, id: SubscriptionId, state: State) -> Result<BTreeSet<LaneId>> {
    let sql = "SELECT lane, pos FROM tramline_slice WHERE subscription = ? AND state = ? AND lane > ? \
               ORDER BY lane, rank, pos LIMIT 1";
    let mut statement = session.conn.prepare_cached(sql)?;
    let mut found = BTreeSet::new();
    let mut after = 0;
    loop {
        let mut rows = statement.query([id.0, state as i64, after])?;
        let Some(row) = rows.next()? else { return Ok(found) };
        after = row.get(0)?;
        let pos: i64 = row.get(1)?;
        if state != State::Waiting || pos <= session.now.0 {
            found.insert(LaneId(after));
        }
    }
}

/// Slices whose event was the first of its key and had to wait, and is due now.
fn waiting(
    conn: &Connection,
    id: SubscriptionId,
    lane: LaneId,
    now: Time,
    events: u32,
) -> Result<Vec<Slice>> {
    let filter =
        "subscription = ? AND state = 3 AND lane = ? AND rank = 0 AND pos <= ? ORDER BY pos, chunk LIMIT ?";
    slices(conn, filter, &[id.0, lane.0, now.0, i64::from(events)])
}

/// Ready slices of a lane in chunk order, whole chunks only, until they hold `events` events.
fn ready(session: &Session<'_>, id: SubscriptionId, lane: LaneId, events: u32) -> Result<Vec<Slice>> {
    let below = backfill_cursor(session.conn, id, lane)?.unwrap_or(ChunkId(i64::MAX));
    let sql = format!(
        "SELECT {SLICE} FROM tramline_slice \
         WHERE subscription = ? AND state = 0 AND lane = ? AND rank = 0 AND pos < ? ORDER BY pos, chunk, id"
    );
    let mut statement = session.conn.prepare_cached(&sql)?;
    let mut rows = statement.query([id.0, lane.0, below.0])?;
    let (mut found, mut count): (Vec<Slice>, u32) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        let slice = slice(row)?;
        if count >= events && found.last().is_some_and(|last| last.chunk != slice.chunk) {
            break;
        }
        count += slice.mask.count();
        found.push(slice);
    }
    Ok(found)
}

/// All that is taken in a lane.
pub(super) fn leased(conn: &Connection, id: SubscriptionId, lane: LaneId) -> Result<Vec<Slice>> {
    slices(conn, "subscription = ? AND state IN (1, 7) AND lane = ?", &[id.0, lane.0])
}

/// What failed in a lane and is not due: in a line of all events it is ready, in front of what nobody took; elsewhere it waits,
/// perhaps beside what was delayed.
pub(super) fn failed(session: &Session<'_>, lane: &Lane) -> Result<Vec<Slice>> {
    let (id, epoch, now) = (lane.subscription.0, lane.epoch, session.now.0);
    if lane.lane != LaneId::WHOLE {
        let filter =
            "subscription = ? AND state = 3 AND lane = ? AND rank = 0 AND pos > ? AND epoch BETWEEN 1 AND ?";
        return slices(session.conn, filter, &[id, lane.lane.0, now, epoch]);
    }
    let filter = "subscription = ?1 AND state = 0 AND lane = ?2 AND rank = 0 AND due_at > ?3 AND epoch BETWEEN 1 AND ?4 \
                  AND pos <= coalesce((SELECT f.pos FROM tramline_slice f WHERE f.subscription = ?1 AND f.state = 0 \
                  AND f.lane = ?2 AND f.rank = 0 AND f.epoch = 0 ORDER BY f.pos LIMIT 1), 9223372036854775807)";
    slices(session.conn, filter, &[id, lane.lane.0, now, epoch])
}

/// Fills in the keys of chunks. Their decoded events are kept, because a claim gives them out next.
pub(super) fn load_keys(
    session: &Session<'_>,
    view: &mut LaneView,
    chunks: impl Iterator<Item = ChunkId>,
    raw: &mut RawClaim,
) -> Result<()> {
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
    let Some(row) = one_chunk(session.conn, chunk)? else { return Ok(None) };
    let events: Arc<[StoredEvent]> = row.decode(&session.catalog.topic_name(row.topic))?.into();
    raw.decoded.insert(chunk, events.clone());
    Ok(Some(events))
}

/// Fills in which keys of these slices are parked or have gaps. Lanes without marks cost nothing.
pub(super) fn load_marks(conn: &Connection, view: &mut LaneView, slices: &[Slice]) -> Result<()> {
    if view.lane.marks == 0 {
        return Ok(());
    }
    let mut seen: BTreeSet<Arc<str>> = BTreeSet::new();
    for event in slices.iter().flat_map(Slice::events) {
        let Some(key) = view.key(event).cloned() else { continue };
        if !seen.insert(key.clone()) {
            continue;
        }
        let (id, lane) = (view.lane.subscription, view.lane.lane);
        if let Some(event) = blocked_by(conn, id, lane, &key)? {
            view.parked.entry(key.clone()).or_insert(event);
        }
        let known = gaps(conn, id, lane, &key)?;
        if !known.is_empty() {
            view.gaps.entry(key).or_insert(known);
        }
    }
    Ok(())
}

/// Fills in what the holder of a lane has under way.
fn load_running(session: &Session<'_>, view: &mut LaneView, raw: &mut RawClaim) -> Result<()> {
    let leased = leased(session.conn, view.lane.subscription, view.lane.lane)?;
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
    let sql = "SELECT min(pos) FROM tramline_slice WHERE subscription = ? AND state = 3 AND lane = ? AND rank = 0 AND pos > ?";
    let mut statement = session.conn.prepare_cached(sql)?;
    let mut next: Option<i64> = None;
    for lane in lanes(session.conn, id)? {
        let waiting: Option<i64> =
            statement.query_row([id.0, lane.lane.0, session.now.0], |row| row.get(0))?;
        let ends = [lane.until.0, lane.halted_until.0].into_iter().filter(|end| *end > session.now.0);
        next = ends.chain(waiting).chain(next).min();
    }
    Ok(next.map(Time))
}
