//! Lanes: what every step on them has to lock and load. Always many at a time.

use super::rows::{LANE, SLICE, chunks, keys, lane, slices};
use super::session::{Rows, Session};
use super::sql::{Columns, LIST, list, named, numbered};
use crate::error::Result;
use crate::model::id::{ChunkId, EventId, LaneId, SubscriptionId};
use crate::model::slice::Slice;
use crate::plan::LaneView;
use crate::store::claimed::RawClaim;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All that is taken in lanes.
pub(super) async fn leased(
    session: &mut Session<'_>,
    id: SubscriptionId,
    lanes: &[LaneId],
) -> Result<Vec<Slice>> {
    let sql = format!(
        "SELECT {SLICE} FROM tramline_slice s FORCE INDEX (tramline_slice_claim) \
         WHERE s.subscription = {} AND s.state IN (1, 7) AND s.lane IN ({}) ORDER BY s.chunk, s.id",
        id.0,
        list(lanes.iter().map(|lane| lane.0))
    );
    slices(&session.rows(sql).await?)
}

/// Locks lanes in sorted order, waiting for whoever has them.
pub(super) fn lock_sql(id: SubscriptionId, lanes: impl Iterator<Item = LaneId>, lock: &str) -> String {
    let lanes: BTreeSet<i64> = lanes.map(|lane| lane.0).collect();
    format!(
        "SELECT {LANE} FROM {} STRAIGHT_JOIN tramline_lane l FORCE INDEX (PRIMARY) \
         ON l.subscription = {} AND l.lane = n.a {lock}",
        numbered(lanes),
        id.0
    )
}

/// Lanes as they were read.
pub(super) fn views(rows: &Rows) -> Result<BTreeMap<LaneId, LaneView>> {
    rows.iter().map(|row| lane(row).map(|lane| (lane.lane, LaneView::new(lane)))).collect()
}

/// Locks lanes in sorted order, waiting for whoever has them, and gives what they hold.
pub(super) async fn lock(
    session: &mut Session<'_>,
    id: SubscriptionId,
    lanes: &BTreeSet<LaneId>,
) -> Result<BTreeMap<LaneId, LaneView>> {
    views(&session.rows(lock_sql(id, lanes.iter().copied(), "FOR UPDATE")).await?)
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
    let wanted: Vec<(LaneId, Arc<str>)> = wanted.into_iter().collect();
    let mut sql = Vec::new();
    for (table, column) in [("tramline_parked", "blocked_by"), ("tramline_gap", "id")] {
        sql.extend(wanted.chunks(LIST).map(|some| {
            format!(
                "SELECT m.lane, m.`key`, m.{column} FROM {} STRAIGHT_JOIN {table} m FORCE INDEX (PRIMARY) \
                 ON m.subscription = {} AND m.lane = n.a AND m.`key` = n.b ORDER BY m.{column}",
                named(some.iter().map(|(lane, key)| (lane.0, &**key))),
                id.0
            )
        }));
    }
    let mut parked = session.sets(sql).await?;
    let gaps = parked.split_off(parked.len() / 2);
    for row in parked.iter().flatten() {
        let Some(view) = views.get_mut(&LaneId(row.int(0)?)) else { continue };
        view.parked.entry(row.text(1)?.into()).or_insert(EventId(row.int(2)?));
    }
    let mut by_key: BTreeMap<(LaneId, Arc<str>), Vec<EventId>> = BTreeMap::new();
    for row in gaps.iter().flatten() {
        by_key.entry((LaneId(row.int(0)?), row.text(1)?.into())).or_default().push(EventId(row.int(2)?));
    }
    for ((lane, key), gaps) in by_key {
        if let Some(view) = views.get_mut(&lane) {
            view.gaps.entry(key).or_insert(gaps);
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
