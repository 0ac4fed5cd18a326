//! Looking: counts, events, heads, logs and lists. Nothing here writes.

use super::drops;
use super::failures;
use super::rows::{CHUNK, blocked_by, chunk, lanes, one_chunk, one_lane, slices};
use super::rules;
use super::session::Session;
use crate::error::Result;
use crate::model::id::{ChunkId, EventId, Incarnation, LaneId, SubscriptionId, TopicId};
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
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Sums of bit counts, in one walk over the subscription's slices. A row holds up to 64 events.
pub(super) fn stats(session: &Session<'_>, id: SubscriptionId) -> Result<Stats> {
    session.catalog.require_subscription(id)?;
    let (conn, now) = (session.conn, session.now);
    let held: HashSet<LaneId> =
        lanes(conn, id)?.iter().filter(|lane| lane.is_held(now)).map(|lane| lane.lane).collect();
    let mut counts = Counts::default();
    let (mut oldest, mut oldest_dead): (Option<Time>, Option<Time>) = (None, None);
    let sql = "SELECT state, lane, due_at, mask FROM tramline_slice WHERE subscription = ?";
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query([id.0])?;
    while let Some(row) = rows.next()? {
        let state = State::from_i16(row.get(0)?).unwrap_or(State::Dead);
        let lane = LaneId(row.get(1)?);
        let due_at = Time(row.get(2)?);
        let status = state.status(lane != LaneId::UNORDERED, due_at, now, held.contains(&lane));
        counts.add(status, u64::from(row.get::<_, i64>(3)?.count_ones()));
        match status {
            Status::Ready => oldest = oldest.into_iter().chain([due_at]).min(),
            Status::Dead => oldest_dead = oldest_dead.into_iter().chain([due_at]).min(),
            _ => {}
        }
    }
    Ok(Stats {
        counts,
        oldest_ready_at: oldest,
        oldest_dead_at: oldest_dead,
        rules: rules::in_force(conn, id, now)?,
    })
}

pub(super) fn event(session: &Session<'_>, id: EventId) -> Result<Option<EventView>> {
    let conn = session.conn;
    let Some(row) = one_chunk(conn, id.chunk())? else { return Ok(None) };
    // Of a topic that was deleted there may still be rows.
    let Some(topic) = session.catalog.topic_by_id(row.topic).map(|topic| topic.name.clone()) else {
        return Ok(None);
    };
    let Some(event) = row.decode(&topic)?.into_iter().nth(id.index() as usize) else { return Ok(None) };
    let prev = event.prev.unwrap_or(id).chunk();
    let all = slices(conn, "chunk IN (?, ?) ORDER BY chunk, subscription, id", &[id.chunk().0, prev.0])?;
    let history = failures::read(conn, [id.chunk()])?;
    let mut deliveries = Vec::new();
    for subscription in session.catalog.subscriptions().iter().filter(|s| s.topics.contains(&topic)) {
        let of = subscription.id;
        let own: Vec<Slice> = all.iter().filter(|slice| slice.subscription == of).cloned().collect();
        let mut delivery = match find(&own, id) {
            None => {
                let gone = history.gone(of, id);
                let dropped = if gone.is_none() { drops::about(conn, of, id)? } else { None };
                Delivery { gone, dropped, ..Delivery::settled(&subscription.name) }
            }
            Some(slice) => {
                let lane = one_lane(conn, of, slice.lane)?;
                let blocker = match (&event.key, slice.state) {
                    (Some(key), State::Parked) => blocked_by(conn, of, slice.lane, key)?,
                    _ => predecessor(&own, &event, slice),
                };
                Delivery::of(&subscription.name, slice, lane.as_ref(), blocker, session.now)
            }
        };
        if delivery.is_to_be_claimed() {
            delivery.rules = rules::in_force(conn, of, session.now)?;
        }
        delivery.failures = history.failures(of, id);
        deliveries.push(delivery);
    }
    Ok(Some(EventView { event, deliveries }))
}

pub(super) fn trace(session: &Session<'_>, trace: &Trace) -> Result<Traced> {
    let mut walk = Walk::begin(trace);
    while let Some(chunk) = walk.chunk() {
        let row = one_chunk(session.conn, chunk)?;
        // Of a topic that was deleted there may still be rows.
        let topic = row.as_ref().and_then(|row| session.catalog.topic_by_id(row.topic));
        match (&row, topic) {
            (Some(row), Some(topic)) => walk.follow(&row.decode(&topic.name)?),
            _ => walk.follow(&[]),
        }
    }
    Ok(walk.end())
}

pub(super) fn head(session: &Session<'_>, topic: &str, key: &str) -> Result<Option<Head>> {
    let topic = session.catalog.require_topic(topic)?;
    let sql = "SELECT last_id, state FROM tramline_head WHERE topic = ? AND key = ?";
    let head = session.conn.prepare_cached(sql)?.query_row(params![topic.id.0, key], |row| {
        Ok(Head { last_id: EventId(row.get(0)?), state: row.get::<_, Option<Vec<u8>>>(1)?.map(Bytes::from) })
    });
    Ok(head.optional()?)
}

/// There is one writer at a time, so chunks become visible in the order of their numbers: no gap can be passed.
pub(super) fn read_log(session: &Session<'_>, read: &ReadLog) -> Result<LogPage> {
    let topic = session.catalog.require_topic(&read.topic)?;
    let sql = format!("SELECT {CHUNK} FROM tramline_chunk WHERE topic = ? AND chunk >= ? ORDER BY chunk");
    let mut statement = session.conn.prepare_cached(&sql)?;
    let mut rows = statement.query([topic.id.0, read.after.chunk().0])?;
    let mut events = Vec::new();
    while events.len() < read.limit as usize
        && let Some(row) = rows.next()?
    {
        events.extend(chunk(row)?.decode(&topic.name)?.into_iter().filter(|event| event.id > read.after));
    }
    events.truncate(read.limit as usize);
    let next = events.last().map_or(read.after, |event| event.id);
    Ok(LogPage { events, next })
}

/// What this reader does not see yet gets greater numbers than what it sees.
pub(super) fn log_end(session: &Session<'_>, topic: &str) -> Result<EventId> {
    session.catalog.require_topic(topic)?;
    let sql = "SELECT value FROM tramline_meta WHERE name = 'chunk'";
    let last = session.conn.prepare_cached(sql)?.query_row([], |row| row.get(0).map(ChunkId))?;
    Ok(EventId::at(last, Mask::CAPACITY - 1))
}

pub(super) fn dead(session: &Session<'_>, list: &ListDead) -> Result<DeadPage> {
    let page = &list.page;
    session.catalog.require_subscription(page.subscription)?;
    let filter = "subscription = ? AND state IN (5, 6) AND chunk >= ? ORDER BY chunk, id LIMIT ?";
    let found =
        slices(session.conn, filter, &[page.subscription.0, page.after.chunk().0, i64::from(rows_of(page))])?;
    let numbers: BTreeSet<ChunkId> = found.iter().map(|slice| slice.chunk).collect();
    let mut chunks = HashMap::new();
    for number in &numbers {
        chunks.extend(one_chunk(session.conn, *number)?.map(|row| (*number, row)));
    }
    let history = &failures::read(session.conn, numbers)?;
    let is_full = found.len() >= rows_of(page) as usize;
    Buried { list, found, is_full, chunks: &chunks, history, catalog: &session.catalog }.page()
}

pub(super) fn parked(session: &Session<'_>, page: &Page) -> Result<Vec<ParkedKey>> {
    session.catalog.require_subscription(page.subscription)?;
    let sql = "SELECT lane, key, blocked_by, since FROM tramline_parked WHERE subscription = ? AND blocked_by > ? \
               ORDER BY blocked_by LIMIT ?";
    let mut statement = session.conn.prepare_cached(sql)?;
    let mut rows = statement.query([page.subscription.0, page.after.0, i64::from(page.limit)])?;
    let mut parked = Vec::new();
    while let Some(row) = rows.next()? {
        let (lane_id, key) = (LaneId(row.get(0)?), row.get::<_, String>(1)?);
        let blocked_by = EventId(row.get(2)?);
        let own = super::rows::slices_of_chunk(session.conn, page.subscription, blocked_by.chunk())?;
        let blocker = find(&own, blocked_by).filter(|slice| slice.state != State::Held);
        parked.push(ParkedKey {
            topic: session.catalog.topic_name(lane_id.topic()),
            blocked_by,
            due_at: blocker.map(|slice| slice.due_at),
            since: Time(row.get(3)?),
            waiting: waiting(session.conn, page.subscription, lane_id, &key)?,
            key: key.into(),
        });
    }
    Ok(parked)
}

/// How many events wait behind a key. Keys with the same hash in the same lane are counted together.
fn waiting(conn: &Connection, id: SubscriptionId, lane: LaneId, key: &str) -> Result<u64> {
    let filter = "subscription = ? AND state = 4 AND lane = ? AND rank = ?";
    let found = slices(conn, filter, &[id.0, lane.0, i64::from(lane::hash(key))])?;
    Ok(found.iter().map(|slice| u64::from(slice.mask.count())).sum())
}

pub(super) fn workers(conn: &Connection) -> Result<Vec<Worker>> {
    let sql = "SELECT incarnation, name, subscriptions, born_at, beat_at FROM tramline_worker ORDER BY born_at, incarnation";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        Ok(Worker {
            incarnation: Incarnation(row.get(0)?),
            name: row.get(1)?,
            subscriptions: serde_json::from_str(row.get_ref(2)?.as_str()?).unwrap_or_default(),
            born_at: Time(row.get(3)?),
            beat_at: Time(row.get(4)?),
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// How many events were ever emitted to each topic: those that are there, by the index `tramline_chunk_topic`, and those that
/// were removed. A counter that every emit raises would be a row that all emits wait for.
pub(super) fn topic_totals(conn: &Connection) -> Result<Vec<(TopicId, u64)>> {
    let sql = "SELECT t.id, t.removed_events + coalesce((SELECT sum(c.count) FROM tramline_chunk c WHERE c.topic = t.id), 0) \
               FROM tramline_topic t ORDER BY t.id";
    let mut statement = conn.prepare_cached(sql)?;
    let total = |row: &rusqlite::Row<'_>| Ok((TopicId(row.get(0)?), row.get::<_, i64>(1)?.cast_unsigned()));
    Ok(statement.query_map([], total)?.collect::<rusqlite::Result<_>>()?)
}
