//! Lanes: what every step on them has to lock and load. Always many at a time.

use super::rows::{chunks, keys, lane, slices};
use super::session::Session;
use crate::error::Result;
use crate::model::id::{ChunkId, EventId, LaneId, SubscriptionId};
use crate::model::slice::Slice;
use crate::plan::LaneView;
use crate::store::claimed::RawClaim;
use sqlx::Row;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All that is taken in lanes.
pub(super) async fn leased(
    session: &mut Session<'_>,
    id: SubscriptionId,
    lanes: &[LaneId],
) -> Result<Vec<Slice>> {
    let sql = "SELECT {slice} FROM tramline_slice s \
               WHERE s.subscription = $1 AND s.state IN (1, 7) AND s.lane = ANY($2) ORDER BY s.chunk, s.id";
    let query = session.query(sql).bind(id.0).bind(lanes.iter().map(|lane| lane.0).collect::<Vec<i64>>());
    slices(&session.all(query).await?)
}

/// Locks lanes in sorted order, waiting for whoever has them, and gives what they hold.
pub(super) async fn lock(
    session: &mut Session<'_>,
    id: SubscriptionId,
    lanes: &BTreeSet<LaneId>,
) -> Result<BTreeMap<LaneId, LaneView>> {
    let sql = "SELECT {lane} FROM tramline_lane l WHERE l.subscription = $1 AND l.lane = ANY($2) \
               ORDER BY l.lane FOR UPDATE";
    let query = session.query(sql).bind(id.0).bind(lanes.iter().map(|lane| lane.0).collect::<Vec<i64>>());
    let rows = session.all(query).await?;
    rows.iter().map(|row| lane(row).map(|lane| (lane.lane, LaneView::new(lane)))).collect()
}

/// Fills in the keys of the chunks of slices.
pub(super) async fn load_keys(
    session: &mut Session<'_>,
    views: &mut BTreeMap<LaneId, LaneView>,
    slices: &[Slice],
) -> Result<()> {
    let known = keys(session, slices.iter().map(|slice| slice.chunk)).await?;
    for slice in slices {
        if let (Some(view), Some(keys)) = (views.get_mut(&slice.lane), known.get(&slice.chunk)) {
            view.keys.insert(slice.chunk, keys.clone());
        }
    }
    Ok(())
}

/// The same, and keeps the decoded events, because a claim gives them out next.
pub(super) async fn load_chunks(
    session: &mut Session<'_>,
    views: &mut BTreeMap<LaneId, LaneView>,
    slices: &[Slice],
    raw: &mut RawClaim,
) -> Result<()> {
    let missing: BTreeSet<ChunkId> =
        slices.iter().map(|slice| slice.chunk).filter(|chunk| !raw.decoded.contains_key(chunk)).collect();
    for (id, row) in chunks(session, missing.into_iter()).await? {
        let events = row.decode(&session.catalog.topic_name(row.topic))?;
        raw.decoded.insert(id, events.into());
        raw.chunks.insert(id, row);
    }
    for slice in slices {
        let (Some(view), Some(events)) = (views.get_mut(&slice.lane), raw.decoded.get(&slice.chunk)) else {
            continue;
        };
        view.keys
            .entry(slice.chunk)
            .or_insert_with(|| events.iter().map(|event| event.key.clone()).collect());
    }
    Ok(())
}

/// Fills in which keys of these slices are parked or have gaps. Lanes without marks cost nothing.
pub(super) async fn load_marks(
    session: &mut Session<'_>,
    views: &mut BTreeMap<LaneId, LaneView>,
    slices: &[Slice],
) -> Result<()> {
    let mut wanted: BTreeSet<(LaneId, Arc<str>)> = BTreeSet::new();
    for slice in slices {
        let Some(view) = views.get(&slice.lane).filter(|view| view.lane.marks > 0) else { continue };
        wanted.extend(slice.events().filter_map(|event| Some((slice.lane, view.key(event)?.clone()))));
    }
    let Some(id) = slices.first().map(|slice| slice.subscription).filter(|_| !wanted.is_empty()) else {
        return Ok(());
    };
    let sql = "SELECT u.lane, u.key, p.blocked_by, ARRAY(SELECT g.id FROM tramline_gap g WHERE g.subscription = $1 \
               AND g.lane = u.lane AND g.key = u.key ORDER BY g.id) \
               FROM unnest($2::bigint[], $3::text[]) AS u(lane, key) LEFT JOIN tramline_parked p \
               ON p.subscription = $1 AND p.lane = u.lane AND p.key = u.key";
    let query = session
        .query(sql)
        .bind(id.0)
        .bind(wanted.iter().map(|(lane, _)| lane.0).collect::<Vec<i64>>())
        .bind(wanted.iter().map(|(_, key)| key.to_string()).collect::<Vec<String>>());
    for row in session.all(query).await? {
        let Some(view) = views.get_mut(&LaneId(row.try_get(0)?)) else { continue };
        let key: Arc<str> = row.try_get::<String, _>(1)?.into();
        if let Some(event) = row.try_get::<Option<i64>, _>(2)? {
            view.parked.entry(key.clone()).or_insert(EventId(event));
        }
        let gaps: Vec<i64> = row.try_get(3)?;
        if !gaps.is_empty() {
            view.gaps.entry(key).or_insert_with(|| gaps.into_iter().map(EventId).collect());
        }
    }
    Ok(())
}

/// Fills in what the holder of lanes has under way, where events are met that are not due.
pub(super) async fn load_running(
    session: &mut Session<'_>,
    views: &mut BTreeMap<LaneId, LaneView>,
    delayed: &BTreeSet<LaneId>,
) -> Result<()> {
    let busy = views.values().filter(|view| view.lane.leased > 0 && delayed.contains(&view.lane.lane));
    let (lanes, ids): (Vec<LaneId>, Vec<SubscriptionId>) =
        busy.map(|view| (view.lane.lane, view.lane.subscription)).unzip();
    let Some(id) = ids.first() else { return Ok(()) };
    let taken = leased(session, *id, &lanes).await?;
    load_keys(session, views, &taken).await?;
    for slice in taken.iter().filter(|slice| !slice.replayed) {
        if let Some(view) = views.get_mut(&slice.lane) {
            slice.events().for_each(|event| view.run(event));
        }
    }
    Ok(())
}
