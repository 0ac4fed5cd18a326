//! Where there is work in lanes, and how much of it a claim looks at. All of it is looked at loosely, so that claims do not get into each
//! other's way; who takes something makes sure that it is still so.

use super::catalog::backfill_cursor;
use super::rows::{Entry, FIRST_CHUNKS, entries, expect_all, expect_entries, lanes, lanes_key};
use super::session::{Session, hget, hgetall};
use super::tuple::Tuple;
use super::unpark;
use crate::error::Result;
use crate::model::id::{ChunkId, LaneId, SubscriptionId};
use crate::model::lane::{self, Lane, Share};
use crate::model::slice::State;
use crate::model::subscription::Topic;
use crate::model::time::Time;
use crate::store::verbs::{Claim, Suspects};
use std::collections::BTreeSet;

/// How many entries of the index are read of a lane at a time: where lanes are many, each has to give little.
const PAGE: usize = 32;
/// How many slices a claim takes, about: a script has to end soon.
pub(super) const MOST: usize = 300;
/// How many lanes are looked at before it is known how they are.
const MANY: usize = 256;

/// From where to where in the index.
type Span = (Vec<u8>, Vec<u8>);

/// A lane that may have something to give.
pub(super) struct Open {
    pub(super) lane: Lane,
    pub(super) suspect: bool,
    waiting: bool,
}

/// A lane to take from, and what of its ready slices is to be taken.
pub(super) struct Work {
    pub(super) lane: Lane,
    pub(super) ready: Vec<Entry>,
    /// It has something else to give.
    pub(super) urgent: bool,
}

/// The lanes to take from, of those that have something to do, each with its ready slices. True if there is more than one step takes.
pub(super) fn oldest_work(session: &Session<'_>, claim: &Claim, open: &[Open]) -> Result<(Vec<Work>, bool)> {
    let mut wanted = claim.max_events;
    let mut room = MOST;
    let mut work: Vec<Work> = Vec::new();
    for lanes in open.chunk_by(|a, b| claim.share.prefers(a.lane.lane) == claim.share.prefers(b.lane.lane)) {
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
    lanes: &[Open],
    wanted: u32,
    room: usize,
) -> Result<(Vec<Work>, u32)> {
    let quota = ((wanted as usize).div_ceil(lanes.len()).max(1) as u32).saturating_mul(2).min(wanted);
    let mut ready = Vec::with_capacity(lanes.len());
    for open in lanes {
        ready.push(Ready::of(session, id, open.lane.lane)?);
    }
    // The next page of every lane that has one, together.
    while ready.iter().any(|ready| !ready.is_over) {
        let pages = ready.iter().filter(|ready| !ready.is_over).map(|ready| (ready.rest.clone(), PAGE));
        expect_entries(session, id, pages)?;
        for ready in ready.iter_mut().filter(|ready| !ready.is_over) {
            ready.read_on(session, id, quota)?;
        }
    }
    let of_lane = |(open, ready): (&Open, Ready)| Work {
        lane: open.lane.clone(),
        ready: ready.found,
        urgent: open.suspect || open.waiting,
    };
    let mut work: Vec<Work> = lanes.iter().zip(ready).map(of_lane).collect();
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

/// What makes a claim look twice at lanes, if some lane has it. Mostly none has, and one look instead of one for each lane says so.
#[derive(Clone, Copy)]
pub(super) struct Troubles {
    pub(super) suspects: bool,
    pub(super) waiting: bool,
}

impl Troubles {
    /// Before anything is taken, and said together with all that will be read of these lanes: they were looked at loosely, and what is
    /// taken has to be so.
    pub(super) fn of(session: &Session<'_>, id: SubscriptionId, chosen: &[Work]) -> Result<Troubles> {
        let (suspects, waiting) =
            session.loosely(|| Ok((has(session, id, State::Suspect)?, has(session, id, State::Waiting)?)))?;
        let troubles = Troubles { suspects, waiting };
        if chosen.is_empty() {
            return Ok(troubles);
        }
        expect_work(session, id, chosen, troubles)?;
        // Where there are some, whoever changes the first of them is in nobody's way.
        Ok(Troubles {
            suspects: suspects || has(session, id, State::Suspect)?,
            waiting: waiting || has(session, id, State::Waiting)?,
        })
    }
}

fn expect_work(session: &Session<'_>, id: SubscriptionId, chosen: &[Work], troubles: Troubles) -> Result<()> {
    let lanes = chosen.iter().map(|work| work.lane.lane);
    let rows = lanes.clone().map(|lane| hget(&lanes_key(session, id), lane.to_string().as_bytes()));
    let mut read = session.expect(rows.chain([hgetall(&unpark::table(session, id))]));
    let mut ranges = Vec::new();
    for (state, some) in [(State::Suspect, troubles.suspects), (State::Waiting, troubles.waiting)] {
        match some {
            true => ranges.extend(lanes.clone().map(|lane| (of_lane(state, lane), 1))),
            false => ranges.push((of_all(state), 1)),
        }
    }
    for work in chosen.iter().filter(|work| !work.ready.is_empty()) {
        ranges.push((ready_range(session, id, work.lane.lane)?, work.ready.len() + 1));
    }
    read = expect_entries(session, id, ranges).and(read);
    expect_all(session, chosen.iter().flat_map(|work| &work.ready), FIRST_CHUNKS).and(read)
}

/// True if what a loose look found in a lane are still its first ready slices, and whole chunks.
pub(super) fn is_still(session: &Session<'_>, id: SubscriptionId, work: &Work) -> Result<bool> {
    let Some(last) = work.ready.last() else { return Ok(true) };
    let count = work.ready.len();
    let found = entries(session, id, ready_range(session, id, work.lane.lane)?, count + 1)?;
    let whole = found.get(count).is_none_or(|next| next.chunk != last.chunk);
    Ok(found.len() >= count && found[..count] == work.ready && whole)
}

/// Open lanes with something to do, preferred ones first, beginning at another one every time. Whoever takes a suspect takes
/// nothing else, so lanes that may have one come before all others.
pub(super) fn candidates(session: &Session<'_>, claim: &Claim) -> Result<Vec<Open>> {
    let all = lanes(session, claim.subscription)?;
    let mut probes = [State::Waiting, State::Suspect].map(|state| (of_all(state), 1)).to_vec();
    for lane in &all {
        probes.push((ready_range(session, claim.subscription, lane.lane)?, PAGE));
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
        own.sort_by_key(|lane| !suspect.contains(&lane.lane));
    }
    let open = |lane: Lane| Open {
        suspect: suspect.contains(&lane.lane),
        waiting: waiting.contains(&lane.lane),
        lane,
    };
    Ok(own.into_iter().map(open).collect())
}

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
    let ready = lanes.into_iter().map(|lane| (ready_below(lane, ChunkId(i64::MAX)), PAGE));
    expect_entries(session, id, ready.chain([State::Waiting, State::Suspect].map(|state| (of_all(state), 1))))
}

/// Where the slices of a state are in the index: of all lanes, of one.
fn of_all(state: State) -> Span {
    Tuple::new().with(&[state as i64]).all()
}

fn of_lane(state: State, lane: LaneId) -> Span {
    Tuple::new().with(&[state as i64, lane.0]).all()
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
    let Some(id) = lanes.first().map(|lane| lane.subscription) else { return Ok(found) };
    if !has(session, id, state)? {
        return Ok(found);
    }
    expect_entries(session, id, lanes.iter().map(|lane| (of_lane(state, lane.lane), 1)))?;
    for lane in lanes {
        let first = first_of(session, id, state, lane.lane)?;
        if first.is_some_and(|first| state != State::Waiting || first.pos <= session.now.0) {
            found.insert(lane.lane);
        }
    }
    Ok(found)
}

/// True if a subscription has slices of a state in any lane.
pub(super) fn has(session: &Session<'_>, id: SubscriptionId, state: State) -> Result<bool> {
    Ok(!entries(session, id, of_all(state), 1)?.is_empty())
}

/// The first slice of a state in a lane.
pub(super) fn first_of(
    session: &Session<'_>,
    id: SubscriptionId,
    state: State,
    lane: LaneId,
) -> Result<Option<Entry>> {
    Ok(entries(session, id, of_lane(state, lane), 1)?.pop())
}

/// The first ready slices of a lane in chunk order, whole chunks only, until they hold `events` events, or as many as a step looks at.
pub(super) fn ready_entries(
    session: &Session<'_>,
    id: SubscriptionId,
    lane: LaneId,
    events: u32,
) -> Result<Vec<Entry>> {
    let mut ready = Ready::of(session, id, lane)?;
    while !ready.is_over {
        ready.read_on(session, id, events)?;
    }
    Ok(ready.found)
}

/// The ready slices of a lane, as far as they are read.
struct Ready {
    found: Vec<Entry>,
    events: u32,
    /// What is not read yet.
    rest: Span,
    is_over: bool,
}

impl Ready {
    fn of(session: &Session<'_>, id: SubscriptionId, lane: LaneId) -> Result<Ready> {
        Ok(Ready { found: Vec::new(), events: 0, rest: ready_range(session, id, lane)?, is_over: false })
    }

    /// Reads one more page, until there are enough.
    fn read_on(&mut self, session: &Session<'_>, id: SubscriptionId, enough: u32) -> Result<()> {
        let page = entries(session, id, self.rest.clone(), PAGE)?;
        self.is_over = page.len() < PAGE;
        for entry in page {
            let is_full = self.events >= enough || self.found.len() >= MOST;
            if is_full && self.found.last().is_some_and(|last| last.chunk != entry.chunk) {
                self.is_over = true;
                break;
            }
            self.events += entry.events;
            self.rest.0 = Tuple::new().with(&entry.columns()).end();
            self.found.push(entry);
        }
        Ok(())
    }
}

/// Where the ready slices of a lane are, below what a back-fill has still to bring.
fn ready_range(session: &Session<'_>, id: SubscriptionId, lane: LaneId) -> Result<(Vec<u8>, Vec<u8>)> {
    Ok(ready_below(lane, backfill_cursor(session, id, lane)?.unwrap_or(ChunkId(i64::MAX))))
}

fn ready_below(lane: LaneId, below: ChunkId) -> (Vec<u8>, Vec<u8>) {
    let columns = [State::Ready as i64, lane.0, 0];
    (Tuple::new().with(&columns).bytes(), Tuple::new().with(&columns).with(&[below.0]).bytes())
}
