//! Looking: counts, events, heads, logs and lists. Nothing here writes.

use super::drops;
use super::emit;
use super::failures;
use super::pack::damaged;
use super::rows::{
    Entry, dead_index, dead_slices, entries, expect_chunks, expect_entries, lanes, lanes_key, logged,
    one_chunk, one_lane, parked as parked_row, parked_index, slices_at, slices_of_chunk,
};
use super::rules;
use super::session::{Session, hgetall, number};
use super::tuple::{Columns, Tuple};
use crate::error::Result;
use crate::model::id::{ChunkId, EventId, Incarnation, LaneId, SliceId, SubscriptionId, TopicId};
use crate::model::lane;
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::status::{Counts, Status};
use crate::model::time::Time;
use crate::plan::mend::{find, predecessor};
use crate::store::chain::Walk;
use crate::store::letters::{Buried, rows_of};
use crate::store::verbs::{
    DeadPage, Delivery, EventView, Head, ListDead, LogPage, Page, ParkedKey, ReadLog, Stats, Trace, Traced,
    Worker,
};
use std::collections::{BTreeSet, HashMap, HashSet};

/// How many slices are read at a time, and how many chunks.
const PAGE: usize = 1_000;
const CHUNKS: usize = 16;

/// What a part of the slices of a subscription adds to its counts, and where the next part begins.
pub(super) struct Counted {
    pub(super) stats: Stats,
    pub(super) next: Option<Vec<u8>>,
}

/// Sums of bit counts over some slices: as many as can be read without keeping others waiting.
pub(super) fn stats(session: &Session<'_>, id: SubscriptionId, from: &[u8]) -> Result<Counted> {
    session.catalog().require_subscription(id)?;
    let now = session.now;
    // All at one moment: who holds a lane says what its slices count as.
    let span = (from.to_vec(), Tuple::new().end());
    let read = session.expect([hgetall(&lanes_key(session, id)), hgetall(&rules::rules_key(session, id))]);
    expect_entries(session, id, [(span.clone(), PAGE)]).and(read)?;
    let held: HashSet<LaneId> =
        lanes(session, id)?.iter().filter(|lane| lane.is_held(now)).map(|lane| lane.lane).collect();
    let mut counts = Counts::default();
    let (mut oldest, mut oldest_dead): (Option<Time>, Option<Time>) = (None, None);
    let found = entries(session, id, span, PAGE)?;
    for entry in &found {
        let state = State::from_i16(entry.state as i16).unwrap_or(State::Dead);
        let ordered = entry.lane != LaneId::UNORDERED;
        let status = state.status(ordered, entry.due_at, now, held.contains(&entry.lane));
        counts.add(status, u64::from(entry.events));
        match status {
            Status::Ready => oldest = oldest.into_iter().chain([entry.due_at]).min(),
            Status::Dead => oldest_dead = oldest_dead.into_iter().chain([entry.due_at]).min(),
            _ => {}
        }
    }
    let end = |last: &Entry| Tuple::new().with(&last.columns()).end();
    let next = found.last().filter(|_| found.len() == PAGE).map(end);
    let stats = Stats {
        counts,
        oldest_ready_at: oldest,
        oldest_dead_at: oldest_dead,
        rules: rules::in_force(session, id)?,
    };
    Ok(Counted { stats, next })
}

pub(super) fn event(session: &Session<'_>, id: EventId) -> Result<Option<EventView>> {
    let Some(row) = one_chunk(session, id.chunk())? else { return Ok(None) };
    let catalog = session.catalog();
    // Of a topic that was deleted there may still be rows.
    let Some(topic) = catalog.topic_by_id(row.topic).map(|topic| topic.name.clone()) else {
        return Ok(None);
    };
    let Some(event) = row.decode(&topic)?.into_iter().nth(id.index() as usize) else { return Ok(None) };
    let mut all = slices_at(session, id.chunk())?;
    let prev = event.prev.unwrap_or(id).chunk();
    if prev != id.chunk() {
        all.extend(slices_at(session, prev)?);
    }
    let history = failures::read(session, std::iter::once(id.chunk()))?;
    let mut deliveries = Vec::new();
    for subscription in catalog.subscriptions().iter().filter(|s| s.topics.contains(&topic)) {
        let of = subscription.id;
        let own: Vec<Slice> = all.iter().filter(|slice| slice.subscription == of).cloned().collect();
        let mut delivery = match find(&own, id) {
            None => {
                let gone = history.gone(of, id);
                let dropped = if gone.is_none() { drops::about(session, of, id)? } else { None };
                Delivery { gone, dropped, ..Delivery::settled(&subscription.name) }
            }
            Some(slice) => {
                let lane = one_lane(session, of, slice.lane)?;
                let blocker = match (&event.key, slice.state) {
                    (Some(key), State::Parked) => {
                        parked_row(session, of, slice.lane, key)?.map(|(event, _)| event)
                    }
                    _ => predecessor(&own, &event, slice),
                };
                Delivery::of(&subscription.name, slice, lane.as_ref(), blocker, session.now)
            }
        };
        if delivery.is_to_be_claimed() {
            delivery.rules = rules::in_force(session, of)?;
        }
        delivery.failures = history.failures(of, id);
        deliveries.push(delivery);
    }
    Ok(Some(EventView { event, deliveries }))
}

pub(super) fn trace(session: &Session<'_>, trace: &Trace) -> Result<Traced> {
    let catalog = session.catalog();
    let mut walk = Walk::begin(trace);
    while let Some(chunk) = walk.chunk() {
        let row = one_chunk(session, chunk)?;
        // Of a topic that was deleted there may still be rows.
        let topic = row.as_ref().and_then(|row| catalog.topic_by_id(row.topic));
        match (&row, topic) {
            (Some(row), Some(topic)) => walk.follow(&row.decode(&topic.name)?),
            _ => walk.follow(&[]),
        }
    }
    Ok(walk.end())
}

pub(super) fn head(session: &Session<'_>, topic: &str, key: &str) -> Result<Option<Head>> {
    let topic = session.catalog().require_topic(topic)?.id;
    emit::head(session, topic, key)
}

/// Chunks become visible in the order of their numbers: no gap can be passed.
pub(super) fn read_log(session: &Session<'_>, read: &ReadLog) -> Result<LogPage> {
    let catalog = session.catalog();
    let topic = catalog.require_topic(&read.topic)?;
    let mut events = Vec::new();
    let mut from = read.after.chunk().0;
    while events.len() < read.limit as usize {
        let page = logged(session, topic.id, from, i64::MAX, CHUNKS)?;
        expect_chunks(session, page.iter().map(|logged| logged.chunk))?;
        for logged in &page {
            from = logged.chunk.0 + 1;
            if let Some(row) = one_chunk(session, logged.chunk)? {
                events.extend(row.decode(&topic.name)?.into_iter().filter(|event| event.id > read.after));
            }
        }
        if page.len() < CHUNKS {
            break;
        }
    }
    events.truncate(read.limit as usize);
    let next = events.last().map_or(read.after, |event| event.id);
    Ok(LogPage { events, next })
}

/// What this reader does not see yet gets greater numbers than what it sees.
pub(super) fn log_end(session: &Session<'_>, topic: &str) -> Result<EventId> {
    session.catalog().require_topic(topic)?;
    let last = ChunkId(session.draw("chunk", 0)? - 1);
    Ok(EventId::at(last, Mask::CAPACITY - 1))
}

pub(super) fn dead(session: &Session<'_>, list: &ListDead) -> Result<DeadPage> {
    let page = &list.page;
    let catalog = session.catalog();
    catalog.require_subscription(page.subscription)?;
    let range = (Tuple::new().with(&[page.after.chunk().0]).bytes(), Tuple::new().end());
    let members = session.range(&dead_index(session, page.subscription), range, rows_of(page) as usize)?;
    let place = |member: &Vec<u8>| {
        let mut columns = Columns(member);
        (ChunkId(columns.number()), SliceId(columns.number()))
    };
    let places: Vec<(ChunkId, SliceId)> = members.iter().map(place).collect();
    let numbers: BTreeSet<ChunkId> = places.iter().map(|(chunk, _)| *chunk).collect();
    // Some of them may be gone by now.
    let found = dead_slices(session, &places)?;
    let is_full = places.len() >= rows_of(page) as usize;
    expect_chunks(session, numbers.iter().copied())?;
    let history = &failures::read(session, numbers.iter().copied())?;
    let mut chunks = HashMap::new();
    for number in numbers {
        chunks.extend(one_chunk(session, number)?.map(|row| (number, row)));
    }
    Buried { list, found, is_full, chunks: &chunks, history, catalog: &catalog }.page()
}

pub(super) fn parked(session: &Session<'_>, page: &Page) -> Result<Vec<ParkedKey>> {
    let (catalog, id) = (session.catalog(), page.subscription);
    catalog.require_subscription(id)?;
    let range = (Tuple::new().with(&[page.after.0]).end(), Tuple::new().end());
    let mut keys = Vec::new();
    for member in session.range(&parked_index(session, id), range, page.limit as usize)? {
        let mut columns = Columns(&member);
        let (blocked_by, lane) = (EventId(columns.number()), LaneId(columns.number()));
        let key = columns.text();
        let Some((_, since)) = parked_row(session, id, lane, &key)? else { continue };
        let own = slices_of_chunk(session, id, blocked_by.chunk())?;
        let blocker = find(&own, blocked_by).filter(|slice| slice.state != State::Held);
        keys.push(ParkedKey {
            topic: catalog.topic_name(lane.topic()),
            blocked_by,
            due_at: blocker.map(|slice| slice.due_at),
            since,
            waiting: waiting(session, id, lane, &key)?,
            key: key.into(),
        });
    }
    Ok(keys)
}

/// How many events wait behind a key. Keys with the same hash in the same lane are counted together.
fn waiting(session: &Session<'_>, id: SubscriptionId, lane: LaneId, key: &str) -> Result<u64> {
    let columns = [State::Parked as i64, lane.0, i64::from(lane::hash(key))];
    let found = entries(session, id, Tuple::new().with(&columns).all(), usize::MAX)?;
    Ok(found.iter().map(|entry| u64::from(entry.events)).sum())
}

/// All workers, by incarnation.
pub(super) fn workers_key(session: &Session<'_>) -> Vec<u8> {
    session.key("workers")
}

pub(super) fn workers(session: &Session<'_>) -> Result<Vec<Worker>> {
    let mut workers = Vec::new();
    for (incarnation, row) in session.all(&workers_key(session))? {
        let (name, subscriptions, born_at, beat_at) =
            serde_json::from_slice(&row).map_err(|error| damaged().because(error))?;
        let incarnation = Incarnation(number(Some(incarnation)));
        workers.push(Worker { incarnation, name, subscriptions, born_at, beat_at });
    }
    workers.sort_by_key(|worker| (worker.born_at, worker.incarnation));
    Ok(workers)
}

/// How many events were ever emitted to each topic.
pub(super) fn topic_totals(session: &Session<'_>) -> Result<Vec<(TopicId, u64)>> {
    let totals = session.all(&session.key("totals"))?;
    let total = |id: TopicId| number(totals.get(id.to_string().as_bytes()).cloned()).max(0).cast_unsigned();
    let mut all: Vec<(TopicId, u64)> =
        session.catalog().topics().iter().map(|topic| (topic.id, total(topic.id))).collect();
    all.sort_unstable();
    Ok(all)
}

/// The counts of two parts.
pub(super) fn plus(mut sum: Stats, more: Stats) -> Stats {
    let Counts { ready, delayed, leased, parked, dead } = more.counts;
    let all = [Status::Ready, Status::Delayed, Status::Leased, Status::Parked, Status::Dead];
    for (status, events) in all.into_iter().zip([ready, delayed, leased, parked, dead]) {
        sum.counts.add(status, events);
    }
    let oldest = [sum.oldest_ready_at, more.oldest_ready_at].into_iter().flatten().min();
    let oldest_dead = [sum.oldest_dead_at, more.oldest_dead_at].into_iter().flatten().min();
    Stats { counts: sum.counts, oldest_ready_at: oldest, oldest_dead_at: oldest_dead, rules: more.rules }
}
