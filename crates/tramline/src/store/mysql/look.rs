//! Looking: counts, events, heads and lists. Nothing here writes.

use super::drops;
use super::failures;
use super::rows::{LANE, SLICE, chunks, lane, slices};
use super::rules;
use super::session::Session;
use super::sql::{Columns, pairs, text};
use crate::error::Result;
use crate::model::event::StoredEvent;
use crate::model::id::{EventId, Incarnation, LaneId, SubscriptionId, TopicId};
use crate::model::lane::{Lane, hash};
use crate::model::slice::{Slice, State};
use crate::model::status::{Counts, Status};
use crate::model::time::Time;
use crate::plan::mend::{find, predecessor};
use crate::store::chain::Walk;
use crate::store::letters::{Buried, rows_of};
use crate::store::rows::StepRows;
use crate::store::verbs::{
    DeadPage, Delivery, EventView, Head, ListDead, Page, ParkedKey, Stats, Trace, Traced, Worker,
};
use bytes::Bytes;
use sqlx::mysql::MySqlRow;
use std::collections::HashMap;

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

/// Uses `tramline_slice_claim`, so that only what is dead is looked at; it has all that they are sorted by.
pub(super) async fn dead(session: &mut Session<'_>, list: &ListDead) -> Result<DeadPage> {
    let page = &list.page;
    session.catalog.require_subscription(page.subscription)?;
    let sql = format!(
        "SELECT {SLICE} FROM (SELECT d.chunk, d.id FROM tramline_slice d FORCE INDEX (tramline_slice_claim) \
         WHERE d.subscription = {} AND d.state IN (5, 6) AND d.chunk >= {} ORDER BY d.chunk, d.id LIMIT {}) n \
         STRAIGHT_JOIN tramline_slice s FORCE INDEX (PRIMARY) ON s.chunk = n.chunk AND s.id = n.id ORDER BY s.chunk, s.id",
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
