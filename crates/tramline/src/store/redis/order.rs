//! Lanes: ordered claims, and what every step on a lane has to load.

use super::catalog::backfill_cursor;
use super::rows::{
    Entry, FIRST_CHUNKS, apply, entries, expect_all, expect_chunks, expect_entries, expect_marks, gaps,
    lanes, lanes_key, load, one_chunk, one_lane, parked, slices_with, write_lane,
};
use super::session::{Session, hget, hgetall};
use super::tuple::Tuple;
use super::unpark;
use crate::error::Result;
use crate::model::event::StoredEvent;
use crate::model::id::{ChunkId, LaneId, SubscriptionId};
use crate::model::lane::{self, Lane, Share};
use crate::model::slice::{Slice, State};
use crate::model::subscription::{Policy, Topic};
use crate::model::time::Time;
use crate::plan::claim::Taker;
use crate::plan::lane::{before_suspects, take, take_over, take_suspect};
use crate::plan::{Changes, LaneView};
use crate::store::claimed::RawClaim;
use crate::store::verbs::{Claim, Suspects};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How many chunks' worth of parked events one claim sets aside per lane before it looks at the next lane.
const ROUNDS: u32 = 8;
/// How many entries of the index are read of a lane at a time: where lanes are many, each has to give little.
const PAGE: usize = 32;
/// From where to where in the index.
type Span = (Vec<u8>, Vec<u8>);
/// How many slices a claim takes, about: a script has to end soon.
const MOST: usize = 300;

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
    let (chosen, cut_short) = session.loosely(|| oldest_work(session, claim))?;
    expect_work(session, id, &chosen)?;
    let unparking = unpark::go_on(session, id)?;
    let mut more = !unparking.is_empty();
    for work in chosen.into_iter().filter(|work| !unparking.contains(&work.lane.lane)) {
        if taker.is_full() {
            return Ok(true);
        }
        let open = |lane: &Lane| lane.is_open_to(claim.owner, &claim.known, session.now);
        let Some(lane) = one_lane(session, id, work.lane.lane)?.filter(open) else { continue };
        if !is_still(session, id, &work)? {
            more = true;
            continue;
        }
        let mut ready = load(session, &work.ready)?;
        let mut view = LaneView::new(lane.clone());
        let mut changes = Changes::default();
        if view.lane.is_lapsed(claim.owner, &claim.known, session.now) {
            take_over_lapsed(session, &mut view, policy, raw)?;
            if unpark::is_under_way(session, id, view.lane.lane)? {
                write_lane(session, &view.lane);
                more = true;
                continue;
            }
            // Keys may have gone on, and their events come before what was read above.
            ready = self::ready(session, claim.subscription, view.lane.lane, taker.events)?;
        }
        let done = take_from(session, claim, &mut view, ready, taker, raw, &mut changes)?;
        apply(session, claim.subscription, &changes)?;
        if view.lane != lane {
            write_lane(session, &view.lane);
        }
        if done {
            return Ok(true);
        }
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

/// A lane whose lease has ended: what was taken under it becomes suspect, or interrupted.
fn take_over_lapsed(
    session: &Session<'_>,
    view: &mut LaneView,
    policy: &Policy,
    raw: &mut RawClaim,
) -> Result<()> {
    let id = view.lane.subscription;
    let leased = leased(session, id, view.lane.lane)?;
    load_keys(session, view, leased.iter().map(|slice| slice.chunk), raw)?;
    load_marks(session, view, &leased)?;
    let mut changes = Changes::default();
    take_over(view, leased, policy, session.now, &mut changes);
    apply(session, id, &changes)
}

/// How many lanes whose lease has ended one step looks after: each may hold many slices.
pub(super) const ENDED: usize = 4;

/// Lanes whose lease has ended, some of them, also where nobody claims any more. Gives how many.
pub(super) fn interrupt(session: &Session<'_>, id: SubscriptionId, policy: &Policy) -> Result<usize> {
    let mut count = 0;
    let ended = |lane: &Lane| lane.owner.is_some() && lane.until <= session.now;
    for lane in lanes(session, id)?.into_iter().filter(ended).take(ENDED) {
        let mut view = LaneView::new(lane);
        take_over_lapsed(session, &mut view, policy, &mut RawClaim::default())?;
        write_lane(session, &view.lane);
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
    let (id, lane) = (claim.subscription, view.lane.lane);
    loop {
        let suspects = first_suspects(session, id, lane)?;
        if suspects.is_empty() {
            break;
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
        let waiting = waiting(session, id, lane, session.now, taker.events)?;
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
        if took || !more {
            return Ok(false);
        }
        // Everything met was parked or not due: it is out of the way now, so look at what is behind it.
        apply(session, id, changes)?;
        *changes = Changes::default();
        if !session.takes_room(looked) || unpark::is_under_way(session, id, lane)? {
            break;
        }
        ready = self::ready(session, id, lane, taker.events)?;
    }
    raw.next_due = Some(session.now);
    Ok(false)
}

/// A lane to take from, and what of its ready slices is to be taken.
struct Work {
    lane: Lane,
    ready: Vec<Entry>,
    /// It has something else to give, or its lease has ended.
    urgent: bool,
}

/// Says what will be read of these lanes: they were looked at loosely, and what is taken has to be so.
fn expect_work(session: &Session<'_>, id: SubscriptionId, chosen: &[Work]) -> Result<()> {
    let lanes = chosen.iter().map(|work| work.lane.lane);
    let rows = lanes.clone().map(|lane| hget(&lanes_key(session, id), lane.to_string().as_bytes()));
    let mut read = session.expect(rows.chain([hgetall(&unpark::table(session, id))]));
    let mut ranges: Vec<_> = lanes
        .flat_map(|lane| {
            [State::Suspect, State::Waiting].map(|state| Tuple::new().with(&[state as i64, lane.0]))
        })
        .map(|first| (first.all(), 1))
        .collect();
    for work in chosen.iter().filter(|work| !work.ready.is_empty()) {
        ranges.push((ready_range(session, id, work.lane.lane)?, work.ready.len() + 1));
    }
    read = expect_entries(session, id, ranges).and(read);
    expect_all(session, chosen.iter().flat_map(|work| &work.ready), FIRST_CHUNKS).and(read)
}

/// True if what a loose look found in a lane are still its first ready slices, and whole chunks.
fn is_still(session: &Session<'_>, id: SubscriptionId, work: &Work) -> Result<bool> {
    let Some(last) = work.ready.last() else { return Ok(true) };
    let count = work.ready.len();
    let found = entries(session, id, ready_range(session, id, work.lane.lane)?, count + 1)?;
    let whole = found.get(count).is_none_or(|next| next.chunk != last.chunk);
    Ok(found.len() >= count && found[..count] == work.ready && whole)
}

/// The lanes to take from, the worker's own before others, each with its ready slices. True if there is more than one step takes.
fn oldest_work(session: &Session<'_>, claim: &Claim) -> Result<(Vec<Work>, bool)> {
    let mut wanted = claim.max_events;
    let mut room = MOST;
    let mut work: Vec<Work> = Vec::new();
    for lanes in candidates(session, claim)?
        .chunk_by(|a, b| claim.share.prefers(a.0.lane) == claim.share.prefers(b.0.lane))
    {
        let (found, events) = in_step(session, claim.subscription, lanes, wanted, room)?;
        room = room.saturating_sub(found.iter().map(|work| work.ready.len()).sum());
        work.extend(found);
        wanted = wanted.saturating_sub(events);
    }
    work.retain(|work| work.urgent || !work.ready.is_empty());
    Ok((work, room == 0))
}

/// The ready slices of lanes, up to the chunk at which all of them together hold what is wanted, or are as many as there is room
/// for; and how many due events that is. Lanes are served in step, oldest chunk first: then a claim reads few chunks, and no lane falls behind.
fn in_step(
    session: &Session<'_>,
    id: SubscriptionId,
    lanes: &[(Lane, bool)],
    wanted: u32,
    room: usize,
) -> Result<(Vec<Work>, u32)> {
    let quota = ((wanted as usize).div_ceil(lanes.len()).max(1) as u32).saturating_mul(2).min(wanted);
    let mut pages = Vec::with_capacity(lanes.len());
    for (lane, _) in lanes {
        pages.push((ready_range(session, id, lane.lane)?, PAGE));
    }
    expect_entries(session, id, pages)?;
    let mut work = Vec::with_capacity(lanes.len());
    for (lane, urgent) in lanes {
        let ready = ready_entries(session, id, lane.lane, quota)?;
        work.push(Work { lane: lane.clone(), ready, urgent: *urgent });
    }
    let due = |entry: &Entry| if entry.due_at <= session.now { entry.events } else { 0 };
    let ready = work.iter().flat_map(|work| &work.ready);
    let mut chunks: Vec<(ChunkId, u32)> = ready.map(|entry| (entry.chunk, due(entry))).collect();
    chunks.sort_unstable();
    let mut events = 0;
    let last = chunks.into_iter().enumerate().find(|(at, (_, count))| {
        events += count;
        events >= wanted || at + 1 >= room
    });
    let last = last.map(|(_, last)| last);
    if let Some((last, _)) = last {
        work.iter_mut().for_each(|work| work.ready.retain(|entry| entry.chunk <= last));
    }
    Ok((work, events))
}

/// All suspects of the lowest chunk of a lane that has any.
fn first_suspects(session: &Session<'_>, id: SubscriptionId, lane: LaneId) -> Result<Vec<Slice>> {
    let Some(Entry { pos, .. }) = first_of(session, id, State::Suspect, lane)? else { return Ok(Vec::new()) };
    slices_with(session, id, &[State::Suspect as i64, lane.0, 0, pos], usize::MAX)
}

/// The first slice of a state in a lane.
fn first_of(session: &Session<'_>, id: SubscriptionId, state: State, lane: LaneId) -> Result<Option<Entry>> {
    Ok(entries(session, id, Tuple::new().with(&[state as i64, lane.0]).all(), 1)?.pop())
}

/// Open lanes with something to do, preferred ones first, beginning at another one every time. Whoever takes a suspect takes
/// nothing else, so lanes that may have one come before all others. Each with whether it has more than ready slices to offer.
fn candidates(session: &Session<'_>, claim: &Claim) -> Result<Vec<(Lane, bool)>> {
    let all = lanes(session, claim.subscription)?;
    let mut probes = Vec::with_capacity(all.len() * 3);
    for lane in &all {
        let ready = ready_range(session, claim.subscription, lane.lane)?;
        probes.extend(probes_of(lane.lane, ready));
    }
    expect_entries(session, claim.subscription, probes)?;
    let mut busy = BTreeSet::new();
    for lane in &all {
        let ready = ready_range(session, claim.subscription, lane.lane)?;
        if !entries(session, claim.subscription, ready, PAGE)?.is_empty() {
            busy.insert(lane.lane);
        }
    }
    let waiting = lanes_with(session, &all, State::Waiting)?;
    busy.extend(&waiting);
    let suspect = lanes_with(session, &all, State::Suspect)?;
    busy.extend(&suspect);
    let lapsed = |lane: &Lane| lane.is_lapsed(claim.owner, &claim.known, session.now);
    let mut open: Vec<Lane> = all
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
    let urgent = |lane: &Lane| waiting.contains(&lane.lane) || suspect.contains(&lane.lane) || lapsed(lane);
    Ok(own.into_iter().map(|lane| (lane.clone(), urgent(&lane))).collect())
}

/// How many lanes are looked at before it is known how they are.
const MANY: usize = 256;

/// Says what a claim looks at first, as far as the catalogue tells: it knows which lanes there are.
pub(super) fn expect_lanes(session: &Session<'_>, id: SubscriptionId) -> Result<()> {
    let catalog = session.catalog();
    let subscription = catalog.require_subscription(id)?;
    let topics = subscription.topics.iter().filter_map(|name| catalog.topic(name));
    let of_topic = |topic: &Topic| {
        let (first, count) = lane::all(subscription.policy.ordering, topic);
        (0..i64::from(count)).map(move |number| LaneId(first.0 + number))
    };
    let lanes: BTreeSet<LaneId> = topics.flat_map(of_topic).take(MANY + 1).collect();
    if lanes.len() > MANY {
        return Ok(());
    }
    let probes = lanes.into_iter().flat_map(|lane| probes_of(lane, ready_below(lane, ChunkId(i64::MAX))));
    expect_entries(session, id, probes)
}

/// What a claim looks at in a lane: its first ready slices, and whether others wait.
fn probes_of(lane: LaneId, ready: Span) -> [(Span, usize); 3] {
    let first = |state: State| (Tuple::new().with(&[state as i64, lane.0]).all(), 1);
    [(ready, PAGE), first(State::Waiting), first(State::Suspect)]
}

fn rotate(lanes: &mut [Lane], now: Time) {
    if !lanes.is_empty() {
        let by = now.0.unsigned_abs() as usize % lanes.len();
        lanes.rotate_left(by);
    }
}

/// The lanes that have slices of one state; waiting ones only if they are due. One look per lane, all of them together.
fn lanes_with(session: &Session<'_>, lanes: &[Lane], state: State) -> Result<BTreeSet<LaneId>> {
    let mut found = BTreeSet::new();
    for lane in lanes {
        let first = first_of(session, lane.subscription, state, lane.lane)?;
        if first.is_some_and(|first| state != State::Waiting || first.pos <= session.now.0) {
            found.insert(lane.lane);
        }
    }
    Ok(found)
}

/// Slices whose event was the first of its key and had to wait, and is due now.
fn waiting(
    session: &Session<'_>,
    id: SubscriptionId,
    lane: LaneId,
    now: Time,
    events: u32,
) -> Result<Vec<Slice>> {
    if first_of(session, id, State::Waiting, lane)?.is_none_or(|first| first.pos > now.0) {
        return Ok(Vec::new());
    }
    let columns = [State::Waiting as i64, lane.0, 0];
    let to = Tuple::new().with(&columns).with(&[now.0.saturating_add(1)]).bytes();
    let most = (events as usize).min(MOST);
    load(session, &entries(session, id, (Tuple::new().with(&columns).bytes(), to), most)?)
}

/// Ready slices of a lane in chunk order, whole chunks only, until they hold `events` events, or as many as a step looks at.
fn ready(session: &Session<'_>, id: SubscriptionId, lane: LaneId, events: u32) -> Result<Vec<Slice>> {
    load(session, &ready_entries(session, id, lane, events.min(MOST as u32))?)
}

/// Where the ready slices of a lane are, below what a back-fill has still to bring.
fn ready_range(session: &Session<'_>, id: SubscriptionId, lane: LaneId) -> Result<(Vec<u8>, Vec<u8>)> {
    Ok(ready_below(lane, backfill_cursor(session, id, lane)?.unwrap_or(ChunkId(i64::MAX))))
}

fn ready_below(lane: LaneId, below: ChunkId) -> (Vec<u8>, Vec<u8>) {
    let columns = [State::Ready as i64, lane.0, 0];
    (Tuple::new().with(&columns).bytes(), Tuple::new().with(&columns).with(&[below.0]).bytes())
}

fn ready_entries(session: &Session<'_>, id: SubscriptionId, lane: LaneId, events: u32) -> Result<Vec<Entry>> {
    let (mut from, to) = ready_range(session, id, lane)?;
    let (mut found, mut count): (Vec<Entry>, u32) = (Vec::new(), 0);
    loop {
        let page = entries(session, id, (from.clone(), to.clone()), PAGE)?;
        let is_last = page.len() < PAGE;
        for entry in page {
            let enough = count >= events || found.len() >= MOST;
            if enough && found.last().is_some_and(|last| last.chunk != entry.chunk) {
                return Ok(found);
            }
            count += entry.events;
            let columns = [State::Ready as i64, lane.0, 0, entry.pos, entry.chunk.0, entry.id.0];
            from = Tuple::new().with(&columns).end();
            found.push(entry);
        }
        if is_last {
            return Ok(found);
        }
    }
}

/// All that is taken in a lane.
pub(super) fn leased(session: &Session<'_>, id: SubscriptionId, lane: LaneId) -> Result<Vec<Slice>> {
    let mut found = Vec::new();
    for state in [State::Leased, State::Consumed] {
        found.extend(slices_with(session, id, &[state as i64, lane.0], usize::MAX)?);
    }
    Ok(found)
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
    for lane in lanes(session, id)? {
        let waiting = next_waiting(session, id, lane.lane)?;
        let ends = [lane.until.0, lane.halted_until.0].into_iter().filter(|end| *end > session.now.0);
        next = ends.chain(waiting).chain(next).min();
    }
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
