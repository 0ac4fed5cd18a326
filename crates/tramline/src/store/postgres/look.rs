//! Looking: counts, events, heads, logs and lists. Nothing here writes.

use super::drops;
use super::failures;
use super::rows::{chunk, chunks, lane, slices};
use super::rules;
use super::session::Session;
use super::taken::{Start, Starts, as_taken};
use crate::error::{Error, Result};
use crate::model::event::StoredEvent;
use crate::model::id::{ChunkId, EventId, Incarnation, LaneId, SubscriptionId, TopicId};
use crate::model::lane::{Lane, hash};
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::status::{Counts, Status};
use crate::model::time::Time;
use crate::plan::mend::{find, predecessor};
use crate::store::chain::Walk;
use crate::store::letters::{Buried, rows_of};
use crate::store::proven::{Proven, ProvenOn};
use crate::store::rows::StepRows;
use crate::store::verbs::{
    DeadPage, Delivery, EventView, Head, ListDead, LogPage, Page, ParkedKey, ReadLog, Stats, Trace, Traced,
    Worker,
};
use bytes::Bytes;
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::postgres::types::Oid;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Sums of bit counts, in one walk over the subscription's slices. A row holds up to 64 events.
pub(super) async fn stats(session: &mut Session<'_>, id: SubscriptionId) -> Result<Stats> {
    session.catalog.require_subscription(id)?;
    let sql = "SELECT CASE WHEN s.state = 0 AND s.lane <> 0 AND s.pos < l.low THEN 1::smallint ELSE s.state END, s.lane <> 0, s.due_at > $2, coalesce(l.owner <> 0 AND l.until > $2, false), \
               sum(bit_count(s.mask::bit(64)))::bigint, min(s.due_at) \
               FROM tramline_slice s LEFT JOIN tramline_lane l ON l.subscription = s.subscription AND l.lane = s.lane \
               WHERE s.subscription = $1 GROUP BY 1, 2, 3, 4";
    let now = session.now;
    let query = session.query(sql).bind(id.0).bind(now.0);
    let mut counts = Counts::default();
    let (mut oldest, mut oldest_dead): (Option<Time>, Option<Time>) = (None, None);
    for row in session.all(query).await? {
        let state = State::from_i16(row.try_get(0)?).unwrap_or(State::Dead);
        let due_at = Time(row.try_get(5)?);
        let status = state.status(row.try_get(1)?, due_at, now, row.try_get(3)?);
        counts.add(status, row.try_get::<i64, _>(4)?.cast_unsigned());
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
        rules: rules::in_force(session, id).await?,
    })
}

pub(super) async fn event(session: &mut Session<'_>, id: EventId) -> Result<Option<EventView>> {
    let Some(row) = chunks(session, [id.chunk()].into_iter()).await?.remove(&id.chunk()) else {
        return Ok(None);
    };
    // Of a topic that was deleted there may still be rows.
    let Some(topic) = session.catalog.topic_by_id(row.topic).map(|topic| topic.name.clone()) else {
        return Ok(None);
    };
    let Some(event) = row.decode(&topic)?.into_iter().nth(id.index() as usize) else { return Ok(None) };
    let stored = session.slices_of(&[id.chunk().0, event.prev.unwrap_or(id).chunk().0]).await?;
    let (lanes, starts) = lanes_of(session, &stored).await?;
    let all: Vec<Slice> = stored.into_iter().map(|slice| as_taken(slice, &starts)).collect();
    let blockers = blockers(session, &all, &event).await?;
    let history = failures::read(session, [id.chunk()]).await?;
    let mut deliveries = Vec::new();
    let catalog = session.catalog.clone();
    for subscription in catalog.subscriptions().iter().filter(|s| s.topics.contains(&topic)) {
        let of = subscription.id;
        let own: Vec<Slice> = all.iter().filter(|slice| slice.subscription == of).cloned().collect();
        let mut delivery = match find(&own, id) {
            None => {
                let gone = history.gone(of, id);
                let dropped = if gone.is_none() { drops::about(session, of, id).await? } else { None };
                Delivery { gone, dropped, ..Delivery::settled(&subscription.name) }
            }
            Some(slice) => {
                let lane = lanes.get(&(of, slice.lane));
                let blocker = match slice.state {
                    State::Parked => blockers.get(&of).copied(),
                    _ => predecessor(&own, &event, slice),
                };
                Delivery::of(&subscription.name, slice, lane, blocker, session.now)
            }
        };
        if delivery.is_to_be_claimed() {
            delivery.rules = rules::in_force(session, of).await?;
        }
        delivery.failures = history.failures(of, id);
        deliveries.push(delivery);
    }
    Ok(Some(EventView { event, deliveries }))
}

pub(super) async fn trace(session: &mut Session<'_>, trace: &Trace) -> Result<Traced> {
    let mut walk = Walk::begin(trace);
    while let Some(chunk) = walk.chunk() {
        let row = chunks(session, [chunk].into_iter()).await?.remove(&chunk);
        // Of a topic that was deleted there may still be rows.
        let topic = row.as_ref().and_then(|row| session.catalog.topic_by_id(row.topic));
        match (&row, topic) {
            (Some(row), Some(topic)) => walk.follow(&row.decode(&topic.name)?),
            _ => walk.follow(&[]),
        }
    }
    Ok(walk.end())
}

async fn lanes_of(
    session: &mut Session<'_>,
    slices: &[Slice],
) -> Result<(HashMap<(SubscriptionId, LaneId), Lane>, Starts)> {
    let sql = "SELECT {lane} FROM tramline_lane l JOIN unnest($1::bigint[], $2::bigint[]) AS u(subscription, lane) \
               ON l.subscription = u.subscription AND l.lane = u.lane";
    let query = session
        .query(sql)
        .bind(slices.iter().map(|slice| slice.subscription.0).collect::<Vec<i64>>())
        .bind(slices.iter().map(|slice| slice.lane.0).collect::<Vec<i64>>());
    let (mut lanes, mut starts) = (HashMap::new(), Starts::new());
    for row in session.all(query).await? {
        let found = lane(&row)?;
        let place = (found.subscription, found.lane);
        starts.insert(place, Start::of(&found, row.try_get(8)?));
        lanes.insert(place, found);
    }
    Ok((lanes, starts))
}

/// What the key of an event waits for, in every subscription.
async fn blockers(
    session: &mut Session<'_>,
    slices: &[Slice],
    event: &StoredEvent,
) -> Result<HashMap<SubscriptionId, EventId>> {
    let Some(key) = &event.key else { return Ok(HashMap::new()) };
    let sql = "SELECT DISTINCT p.subscription, p.blocked_by FROM tramline_parked p \
               JOIN unnest($1::bigint[], $2::bigint[]) AS u(subscription, lane) \
               ON p.subscription = u.subscription AND p.lane = u.lane AND p.key = $3";
    let query = session
        .query(sql)
        .bind(slices.iter().map(|slice| slice.subscription.0).collect::<Vec<i64>>())
        .bind(slices.iter().map(|slice| slice.lane.0).collect::<Vec<i64>>())
        .bind(key.to_string());
    let rows = session.all(query).await?;
    rows.iter().map(|row| Ok((SubscriptionId(row.try_get(0)?), EventId(row.try_get(1)?)))).collect()
}

pub(super) async fn head(session: &mut Session<'_>, topic: &str, key: &str) -> Result<Option<Head>> {
    let topic = session.catalog.require_topic(topic)?.id;
    let sql = "SELECT last_id, state FROM tramline_head WHERE topic = $1 AND key = $2";
    let query = session.query(sql).bind(topic.0).bind(key.to_owned());
    let Some(row) = query.fetch_optional(&mut *session.conn).await? else { return Ok(None) };
    let state = row.try_get::<Option<Vec<u8>>, _>(1)?.map(Bytes::from);
    Ok(Some(Head { last_id: EventId(row.try_get(0)?), state }))
}

/// How many chunks are read at once.
const LOG_STEP: i64 = 64;

/// Reads up to the last chunk below which nothing is still being written.
pub(super) async fn read_log(known: &ProvenOn, session: &mut Session<'_>, read: &ReadLog) -> Result<LogPage> {
    let known = &*known.server(session.server);
    let topic = session.catalog.require_topic(&read.topic)?.clone();
    let mut proven = known.get(topic.id);
    let mut page = LogPage { events: Vec::new(), next: read.after };
    let mut looked = false;
    let wanted = read.limit as usize;
    let sql = "SELECT chunk, topic, emitted_at, meta, prevs, mains, body FROM tramline_chunk \
               WHERE topic = $1 AND chunk >= $2 AND chunk <= $3 ORDER BY topic, chunk LIMIT $4";
    while page.events.len() < wanted {
        let from = EventId(page.next.0 + 1).chunk().0;
        let query = session.query(sql).bind(topic.id.0).bind(from).bind(proven.0).bind(LOG_STEP);
        let rows = session.all(query).await?;
        for row in &rows {
            let events = chunk(row)?.decode(&topic.name)?;
            let after = page.next;
            page.events.extend(events.into_iter().filter(|event| event.id > after));
            page.next = page.next.max(EventId::at(ChunkId(row.try_get(0)?), 63));
        }
        if (rows.len() as i64) < LOG_STEP {
            page.next = page.next.max(EventId::at(proven, 63));
            if looked {
                break;
            }
            looked = true;
            proven = prove(known, session, topic.id).await?;
        }
    }
    if page.events.len() >= wanted {
        page.events.truncate(wanted);
        page.next = page.events.last().map_or(read.after, |event| event.id);
    }
    Ok(page)
}

/// How often the end of a log is looked for: for about a second.
const ENDS: u32 = 64;

/// Reads nothing, so that a reader who begins at the end gets all that is still being written.
pub(super) async fn log_end(known: &ProvenOn, session: &mut Session<'_>, topic: &str) -> Result<EventId> {
    let known = &*known.server(session.server);
    let topic = session.catalog.require_topic(topic)?.id;
    for _ in 0..ENDS {
        if let Some(last) = prove_now(known, session, topic).await? {
            return Ok(EventId::at(last, Mask::CAPACITY - 1));
        }
    }
    Err(Error::unavailable(
        "somebody has been writing to the topic for long, so where its log ends is not known",
        "try again when that transaction has ended",
    ))
}

/// How often a proof is looked at before the last one has to do.
const LOOKS: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(3);

/// The greatest chunk number below which every chunk of a topic is committed or will never be.
///
/// Whoever draws numbers for a topic has its lock before that, and until the transaction has ended. So whatever was drawn up
/// to `last` belongs to transactions that have ended or hold the lock now; once those few are gone, nothing up to `last` can
/// still appear. (Comparing transaction ids with the oldest one that runs would do too, but then any other open
/// transaction on the server, a backup or a report, would stop every reader.)
async fn prove(known: &Proven, session: &mut Session<'_>, topic: TopicId) -> Result<ChunkId> {
    Ok(prove_now(known, session, topic).await?.unwrap_or_else(|| known.get(topic)))
}

/// The same, up to the last number that is committed; `None` if somebody is still at it. Not up to the last one that was drawn: after a crash
/// of the server that may be drawn again, and readers would be beyond it.
async fn prove_now(known: &Proven, session: &mut Session<'_>, topic: TopicId) -> Result<Option<ChunkId>> {
    let sql = "SELECT greatest(max(chunk), 0) FROM tramline_chunk";
    let last = ChunkId(session.query(sql).fetch_one(&mut *session.conn).await?.try_get(0)?);
    let proven = known.get(topic);
    if last <= proven {
        return Ok(Some(proven));
    }
    let mut writing = writers(session, &[topic]).await?;
    for _ in 0..LOOKS {
        if writing.is_empty() {
            known.raise(topic, last);
            return Ok(Some(last));
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
        let still = writers(session, &[topic]).await?;
        writing.retain(|writer| still.contains(writer));
    }
    Ok(None)
}

/// The transactions that hold the lock of a topic, and may have drawn numbers that nobody can see yet.
pub(super) async fn writers(session: &mut Session<'_>, topics: &[TopicId]) -> Result<HashSet<String>> {
    let sql = "SELECT k.virtualtransaction FROM pg_locks k WHERE k.locktype = 'advisory' AND k.mode = 'ShareLock' \
               AND k.granted AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) \
               AND k.classid = 'tramline_topic'::regclass::oid AND k.objid = ANY($1::oid[]) AND k.objsubid = 2";
    let topics: Vec<Oid> = topics.iter().map(|topic| Oid(topic.0 as u32)).collect();
    let query = session.query(sql).bind(topics);
    session.all(query).await?.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Uses `tramline_slice_dead`.
pub(super) async fn dead(session: &mut Session<'_>, list: &ListDead) -> Result<DeadPage> {
    let page = &list.page;
    session.catalog.require_subscription(page.subscription)?;
    let sql = "SELECT {slice} FROM tramline_slice s WHERE s.subscription = $1 AND s.state IN (5, 6) AND s.chunk >= $2 \
               ORDER BY s.chunk, s.id LIMIT $3";
    let query = session.query(sql).bind(page.subscription.0).bind(page.after.chunk().0);
    let found = slices(&session.all(query.bind(i64::from(rows_of(page)))).await?)?;
    let chunks = &chunks(session, found.iter().map(|slice| slice.chunk)).await?;
    let history = &failures::read(session, found.iter().map(|slice| slice.chunk)).await?;
    let is_full = found.len() >= rows_of(page) as usize;
    Buried { list, found, is_full, chunks, history, catalog: &session.catalog }.page()
}

/// Events behind a key are counted by its hash: keys with the same hash in the same lane are counted together.
pub(super) async fn parked(session: &mut Session<'_>, page: &Page) -> Result<Vec<ParkedKey>> {
    session.catalog.require_subscription(page.subscription)?;
    let sql = "SELECT lane, key, blocked_by, since FROM tramline_parked WHERE subscription = $1 AND blocked_by > $2 \
               ORDER BY blocked_by LIMIT $3";
    let query = session.query(sql).bind(page.subscription.0).bind(page.after.0).bind(i64::from(page.limit));
    let rows = session.all(query).await?;
    let blocking: Vec<i64> =
        rows.iter().map(|row| Ok(EventId(row.try_get(2)?).chunk().0)).collect::<Result<_>>()?;
    let mut slices = session.slices_of(&blocking).await?;
    slices.retain(|slice| slice.subscription == page.subscription && slice.state != State::Held);
    let sql = "SELECT coalesce(sum(bit_count(s.mask::bit(64))), 0)::bigint FROM tramline_slice s \
               WHERE s.subscription = $1 AND s.state = 4 AND s.lane = $2 AND s.rank = $3";
    let mut parked = Vec::new();
    for row in &rows {
        let (lane, key) = (LaneId(row.try_get(0)?), row.try_get::<String, _>(1)?);
        let blocked_by = EventId(row.try_get(2)?);
        let query = session.query(sql).bind(page.subscription.0).bind(lane.0).bind(i64::from(hash(&key)));
        let waiting: i64 = query.fetch_one(&mut *session.conn).await?.try_get(0)?;
        parked.push(ParkedKey {
            topic: session.catalog.topic_name(lane.topic()),
            key: key.into(),
            blocked_by,
            due_at: find(&slices, blocked_by).map(|slice| slice.due_at),
            since: Time(row.try_get(3)?),
            waiting: waiting.cast_unsigned(),
        });
    }
    Ok(parked)
}

pub(super) async fn workers(session: &mut Session<'_>) -> Result<Vec<Worker>> {
    let sql = "SELECT incarnation, name, subscriptions, born_at, beat_at FROM tramline_worker \
               ORDER BY born_at, incarnation";
    let query = session.query(sql);
    let rows = session.all(query).await?;
    let worker = |row: &PgRow| {
        Ok(Worker {
            incarnation: Incarnation(row.try_get(0)?),
            name: row.try_get(1)?,
            subscriptions: row.try_get::<Vec<i64>, _>(2)?.into_iter().map(SubscriptionId).collect(),
            born_at: Time(row.try_get(3)?),
            beat_at: Time(row.try_get(4)?),
        })
    };
    rows.iter().map(worker).collect()
}

/// How many events were ever emitted to each topic: those that are there, by the index `tramline_chunk_topic`, and those that
/// were removed. A counter that every emit raises would be a row that all emits wait for.
pub(super) async fn topic_totals(session: &mut Session<'_>) -> Result<Vec<(TopicId, u64)>> {
    let sql = "SELECT t.id, (t.removed_events + coalesce((SELECT sum(c.count) FROM tramline_chunk c \
               WHERE c.topic = t.id), 0))::bigint FROM tramline_topic t ORDER BY t.id";
    let query = session.query(sql);
    let rows = session.all(query).await?;
    rows.iter().map(|row| Ok((TopicId(row.try_get(0)?), row.try_get::<i64, _>(1)?.cast_unsigned()))).collect()
}
