//! Looking: counts, events, heads, logs and lists. Nothing here writes.

use super::MysqlStore;
use super::drops;
use super::failures;
use super::rows::{CHUNK, LANE, SLICE, chunk, chunks, lane, slices};
use super::rules;
use super::session::{Rows, Session, exchange};
use super::sql::{Columns, pairs, text};
use super::step::waited_too_long;
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
use crate::store::rows::StepRows;
use crate::store::verbs::{
    DeadPage, Delivery, EventView, Head, ListDead, LogPage, Page, ParkedKey, ReadLog, Stats, Trace, Traced,
    Worker,
};
use bytes::Bytes;
use sqlx::MySqlConnection;
use sqlx::mysql::MySqlRow;
use std::collections::HashMap;
use std::time::Duration;

/// Sums of bit counts, in one walk over the subscription's slices. A row holds up to 64 events.
pub(super) async fn stats(session: &mut Session<'_>, id: SubscriptionId) -> Result<Stats> {
    session.catalog.require_subscription(id)?;
    let now = session.now;
    let sql = format!(
        "SELECT s.state, s.lane <> 0, s.due_at > {0}, COALESCE(l.owner <> 0 AND l.until > {0}, FALSE), \
         CAST(SUM(BIT_COUNT(s.mask)) AS SIGNED), MIN(s.due_at) \
         FROM tramline_slice s FORCE INDEX (tramline_slice_claim) \
         LEFT JOIN tramline_lane l ON l.subscription = s.subscription AND l.lane = s.lane \
         WHERE s.subscription = {1} GROUP BY 1, 2, 3, 4",
        now.0, id.0
    );
    let mut counts = Counts::default();
    let (mut oldest, mut oldest_dead): (Option<Time>, Option<Time>) = (None, None);
    for row in session.rows(sql).await? {
        let state = State::from_i16(row.small(0)?).unwrap_or(State::Dead);
        let due_at = row.time(5)?;
        let status = state.status(row.flag(1)?, due_at, now, row.flag(3)?);
        counts.add(status, row.count(4)?);
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
    let all = session.slices_of(&[id.chunk().0, event.prev.unwrap_or(id).chunk().0]).await?;
    let lanes = lanes_of(session, &all).await?;
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
) -> Result<HashMap<(SubscriptionId, LaneId), Lane>> {
    let which = slices.iter().map(|slice| (slice.subscription.0, slice.lane.0));
    let which = pairs(("l.subscription", "l.lane"), which);
    let rows = session.rows(format!("SELECT {LANE} FROM tramline_lane l WHERE {which}")).await?;
    rows.iter().map(|row| lane(row).map(|lane| ((lane.subscription, lane.lane), lane))).collect()
}

/// What the key of an event waits for, in every subscription.
async fn blockers(
    session: &mut Session<'_>,
    slices: &[Slice],
    event: &StoredEvent,
) -> Result<HashMap<SubscriptionId, EventId>> {
    let Some(key) = &event.key else { return Ok(HashMap::new()) };
    let which = slices.iter().map(|slice| (slice.subscription.0, slice.lane.0));
    let sql = format!(
        "SELECT subscription, blocked_by FROM tramline_parked WHERE {} AND `key` = {}",
        pairs(("subscription", "lane"), which),
        text(key)
    );
    let rows = session.rows(sql).await?;
    rows.iter().map(|row| Ok((SubscriptionId(row.int(0)?), EventId(row.int(1)?)))).collect()
}

pub(super) async fn head(session: &mut Session<'_>, topic: &str, key: &str) -> Result<Option<Head>> {
    let topic = session.catalog.require_topic(topic)?.id;
    let sql = format!(
        "SELECT last_id, state FROM tramline_head WHERE topic = {} AND `key` = {}",
        topic.0,
        text(key)
    );
    let rows = session.rows(sql).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Head { last_id: EventId(row.int(0)?), state: row.maybe_blob(1)?.map(Bytes::from) }))
}

/// How many chunks are read at once.
const LOG_STEP: i64 = 64;

/// Reads up to the last chunk below which nothing is still being written.
pub(super) async fn read_log(
    store: &MysqlStore,
    session: &mut Session<'_>,
    read: &ReadLog,
) -> Result<LogPage> {
    let topic = session.catalog.require_topic(&read.topic)?.clone();
    let mut proven = store.proven.get(topic.id);
    let mut page = LogPage { events: Vec::new(), next: read.after };
    let mut looked = false;
    let wanted = read.limit as usize;
    while page.events.len() < wanted {
        let from = EventId(page.next.0 + 1).chunk().0;
        let sql = format!(
            "SELECT {CHUNK} FROM tramline_chunk FORCE INDEX (tramline_chunk_topic) \
             WHERE topic = {} AND chunk >= {from} AND chunk <= {} ORDER BY topic, chunk LIMIT {LOG_STEP}",
            topic.id.0, proven.0
        );
        let rows = session.rows(sql).await?;
        for row in &rows {
            let events = chunk(row)?.decode(&topic.name)?;
            let after = page.next;
            page.events.extend(events.into_iter().filter(|event| event.id > after));
            page.next = page.next.max(EventId::at(ChunkId(row.int(0)?), 63));
        }
        if (rows.len() as i64) < LOG_STEP {
            page.next = page.next.max(EventId::at(proven, 63));
            if looked {
                break;
            }
            looked = true;
            proven = prove(store, session, topic.id).await?;
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
const BETWEEN_ENDS: Duration = Duration::from_millis(15);

/// Reads nothing, so that a reader who begins at the end gets all that is still being written.
pub(super) async fn log_end(store: &MysqlStore, session: &mut Session<'_>, topic: &str) -> Result<EventId> {
    let topic = session.catalog.require_topic(topic)?.id;
    for _ in 0..ENDS {
        if let Some(last) = prove_now(store, session, topic).await? {
            return Ok(EventId::at(last, Mask::CAPACITY - 1));
        }
        tokio::time::sleep(BETWEEN_ENDS).await;
    }
    Err(Error::unavailable(
        "somebody has been writing to the topic for long, so where its log ends is not known",
        "try again when that transaction has ended",
    ))
}

/// The greatest chunk number below which every chunk of a topic is committed or will never be.
///
/// Whoever draws numbers for a topic shares a side of its gate before that, and until the transaction has ended. The last chunk that
/// can be seen was numbered after all before it. So once everybody has gone who held a side of the gate when it was seen, nothing
/// before it can still appear.
async fn prove(store: &MysqlStore, session: &mut Session<'_>, topic: TopicId) -> Result<ChunkId> {
    Ok(prove_now(store, session, topic).await?.unwrap_or_else(|| store.proven.get(topic)))
}

/// The same, up to the last chunk that can be seen; `None` if somebody is still at it.
async fn prove_now(store: &MysqlStore, session: &mut Session<'_>, topic: TopicId) -> Result<Option<ChunkId>> {
    let sql = format!("SELECT COALESCE(MAX(chunk), 0) FROM tramline_chunk WHERE topic = {}", topic.0);
    let last = ChunkId(session.rows(sql).await?.first().map_or(Ok(0), |row| row.int(0))?);
    let proven = store.proven.get(topic);
    if last <= proven {
        return Ok(Some(proven));
    }
    if !store.all_have_gone(topic).await? {
        return Ok(None);
    }
    store.proven.raise(topic, last);
    Ok(Some(last))
}

impl MysqlStore {
    /// True when everybody has gone who held a side of the gate of a topic when this began. On a quiet topic one look is enough. On a
    /// busy one somebody always holds the open side: then emits are sent to the other side, and the last ones on this side are waited
    /// for. Only one process does so at a time; others look again later.
    async fn all_have_gone(&self, TopicId(topic): TopicId) -> Result<bool> {
        let lock = |side: &str, wait: &str| {
            format!(
                "START TRANSACTION; SELECT `open` FROM tramline_gate WHERE kind = 0 AND id = {topic} AND side IN ({side}) \
                 FOR UPDATE{wait}"
            )
        };
        let mut tx = self.begin().await?;
        if is_given(tx.conn(), format!("{}; COMMIT", lock("0, 1", " NOWAIT"))).await?.is_some() {
            tx.keep();
            return Ok(true);
        }
        let gone = match is_given(tx.conn(), lock("3", " NOWAIT")).await? {
            None => false,
            Some(_) => {
                let mut other = self.begin().await?;
                let open =
                    format!("SELECT `open` FROM tramline_gate WHERE kind = 0 AND id = {topic} AND side = 2");
                let open = is_given(other.conn(), open).await?.unwrap_or(0);
                let shut = 1 - open;
                let sql = format!(
                    "{}; COMMIT; UPDATE tramline_gate SET `open` = {shut} WHERE kind = 0 AND id = {topic} AND side = 2; {}; COMMIT",
                    lock(&shut.to_string(), " NOWAIT"),
                    lock(&open.to_string(), "")
                );
                let gone = is_given(other.conn(), sql).await?.is_some();
                other.rollback().await;
                gone
            }
        };
        tx.rollback().await;
        Ok(gone)
    }
}

/// The first number that statements give, or `None` if a lock was not given.
async fn is_given(conn: &mut MySqlConnection, sql: String) -> Result<Option<i64>> {
    let mut sets: Vec<Rows> = Vec::new();
    match exchange(conn, sql, &mut sets).await {
        Ok(()) => Ok(Some(sets.iter().flatten().next().map_or(Ok(0), |row| row.int(0))?)),
        Err(error) if waited_too_long(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Uses `tramline_slice_claim`, so that only what is dead is looked at.
pub(super) async fn dead(session: &mut Session<'_>, list: &ListDead) -> Result<DeadPage> {
    let page = &list.page;
    session.catalog.require_subscription(page.subscription)?;
    let sql = format!(
        "SELECT {SLICE} FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE s.subscription = {} \
         AND s.state IN (5, 6) AND s.chunk >= {} ORDER BY s.chunk, s.id LIMIT {}",
        page.subscription.0,
        page.after.chunk().0,
        rows_of(page)
    );
    let found = slices(&session.rows(sql).await?)?;
    let chunks = &chunks(session, found.iter().map(|slice| slice.chunk)).await?;
    let history = &failures::read(session, found.iter().map(|slice| slice.chunk)).await?;
    let is_full = found.len() >= rows_of(page) as usize;
    Buried { list, found, is_full, chunks, history, catalog: &session.catalog }.page()
}

/// Events behind a key are counted by its hash: keys with the same hash in the same lane are counted together.
pub(super) async fn parked(session: &mut Session<'_>, page: &Page) -> Result<Vec<ParkedKey>> {
    session.catalog.require_subscription(page.subscription)?;
    let sql = format!(
        "SELECT lane, `key`, blocked_by, since FROM tramline_parked WHERE subscription = {} AND blocked_by > {} \
         ORDER BY blocked_by LIMIT {}",
        page.subscription.0, page.after.0, page.limit
    );
    let rows = session.rows(sql).await?;
    let blocking: Vec<i64> =
        rows.iter().map(|row| Ok(EventId(row.int(2)?).chunk().0)).collect::<Result<_>>()?;
    let mut slices = session.slices_of(&blocking).await?;
    slices.retain(|slice| slice.subscription == page.subscription && slice.state != State::Held);
    let mut parked = Vec::new();
    for row in &rows {
        let (lane, key) = (LaneId(row.int(0)?), row.text(1)?);
        let blocked_by = EventId(row.int(2)?);
        let sql = format!(
            "SELECT CAST(COALESCE(SUM(BIT_COUNT(mask)), 0) AS SIGNED) FROM tramline_slice FORCE INDEX (tramline_slice_claim) \
             WHERE subscription = {} AND state = 4 AND lane = {} AND `rank` = {}",
            page.subscription.0,
            lane.0,
            hash(&key)
        );
        let waiting = session.rows(sql).await?.first().map_or(Ok(0), |row| row.count(0))?;
        parked.push(ParkedKey {
            topic: session.catalog.topic_name(lane.topic()),
            key: key.into(),
            blocked_by,
            due_at: find(&slices, blocked_by).map(|slice| slice.due_at),
            since: row.time(3)?,
            waiting,
        });
    }
    Ok(parked)
}

/// How many events were ever emitted to each topic: those that are there, by the index `tramline_chunk_topic`, and those that
/// were removed. A counter that every emit raises would be a row that all emits wait for.
pub(super) async fn topic_totals(session: &mut Session<'_>) -> Result<Vec<(TopicId, u64)>> {
    let sql = "SELECT t.id, CAST(t.removed_events + COALESCE((SELECT SUM(c.count) FROM tramline_chunk c \
               FORCE INDEX (tramline_chunk_topic) WHERE c.topic = t.id), 0) AS SIGNED) FROM tramline_topic t ORDER BY t.id";
    session.rows(sql).await?.iter().map(|row| Ok((TopicId(row.int(0)?), row.count(1)?))).collect()
}

pub(super) async fn workers(session: &mut Session<'_>) -> Result<Vec<Worker>> {
    let sql = "SELECT incarnation, name, subscriptions, born_at, beat_at FROM tramline_worker ORDER BY born_at, incarnation";
    let worker = |row: &MySqlRow| {
        let subscriptions: Vec<i64> = serde_json::from_slice(&row.blob(2)?).unwrap_or_default();
        Ok(Worker {
            incarnation: Incarnation(row.int(0)?),
            name: row.text(1)?,
            subscriptions: subscriptions.into_iter().map(SubscriptionId).collect(),
            born_at: row.time(3)?,
            beat_at: row.time(4)?,
        })
    };
    session.rows(sql).await?.iter().map(worker).collect()
}
