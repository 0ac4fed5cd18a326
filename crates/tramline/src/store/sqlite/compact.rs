//! Compaction: what was claimed gives way to newer events of the same key.

use super::order::{decoded, load_keys, load_marks};
use super::rows::{apply, one_lane, write_lane};
use super::session::Session;
use crate::error::Result;
use crate::model::id::{EventId, LaneId, SubscriptionId};
use crate::model::slice::Slice;
use crate::plan::compact::{Object, give_way, newest, superseded};
use crate::plan::{Changes, LaneView};
use crate::store::claimed::RawClaim;
use crate::store::compact::{STEPS, object};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::{BTreeMap, BTreeSet};

/// Takes out of a claim what has a newer event of its key behind it. True if there was something.
pub(super) fn compact(session: &Session<'_>, id: SubscriptionId, raw: &mut RawClaim) -> Result<bool> {
    for chunk in raw.slices.iter().map(|slice| slice.chunk).collect::<BTreeSet<_>>() {
        decoded(session, chunk, raw)?;
    }
    let mut newest = newest(&raw.slices, |event| object(raw, &session.catalog, event));
    for (object, event) in &mut newest {
        *event = later_pending(session.conn, id, object, *event)?.unwrap_or(*event);
    }
    let gone = |slice: &Slice| superseded(slice, &newest, |event| object(raw, &session.catalog, event));
    let masks: Vec<_> = raw.slices.iter().map(gone).collect();
    if masks.iter().all(|mask| mask.is_empty()) {
        return Ok(false);
    }
    let mut views = load_lanes(session, raw)?;
    let mut changes = Changes::default();
    let taken = std::mem::take(&mut raw.slices);
    for (slice, mask) in taken.into_iter().zip(masks) {
        match mask.is_empty() {
            true => raw.slices.push(slice),
            false => {
                raw.slices.extend(give_way(slice.clone(), mask, views.get_mut(&slice.lane), &mut changes))
            }
        }
    }
    apply(session, id, &changes)?;
    for view in views.values() {
        write_lane(session.conn, &view.lane)?;
    }
    raw.name_gaps(&views);
    Ok(true)
}

/// The last event of an object after `event` that is pending in a subscription: found along the chain of its key, from its head
/// back. Mostly the head is the event itself, or pending. Filters may leave out many; where the chain is longer than that, or
/// was removed already, `event` is given out.
fn later_pending(
    conn: &Connection,
    id: SubscriptionId,
    (topic, key): &Object,
    event: EventId,
) -> Result<Option<EventId>> {
    let sql = "WITH RECURSIVE walk (id, step) AS ( \
               SELECT last_id, 1 FROM tramline_head WHERE topic = ?1 AND key = ?2 \
               UNION ALL SELECT json_extract(c.prevs, '$[' || (w.id & 63) || ']'), w.step + 1 \
                   FROM walk w JOIN tramline_chunk c ON c.chunk = w.id >> 6 WHERE w.id > ?3 AND w.step < ?5) \
               SELECT w.id FROM walk w WHERE w.id > ?3 AND EXISTS (SELECT 1 FROM tramline_slice s \
                   WHERE s.chunk = w.id >> 6 AND s.subscription = ?4 AND s.state IN (0, 2, 3, 4, 8) \
                   AND (s.mask >> (w.id & 63)) & 1) LIMIT 1";
    let values = params![topic.0, &**key, event.0, id.0, STEPS];
    Ok(conn.prepare_cached(sql)?.query_row(values, |row| row.get(0).map(EventId)).optional()?)
}

/// The lanes of what was taken, with its keys and what they wait for and miss.
fn load_lanes(session: &Session<'_>, raw: &mut RawClaim) -> Result<BTreeMap<LaneId, LaneView>> {
    let mut views = BTreeMap::new();
    let taken: Vec<Slice> = raw.slices.iter().filter(|slice| slice.is_ordered()).cloned().collect();
    for slice in &taken {
        if views.contains_key(&slice.lane) {
            continue;
        }
        let Some(lane) = one_lane(session.conn, slice.subscription, slice.lane)? else { continue };
        let mut view = LaneView::new(lane);
        let of_lane: Vec<Slice> = taken.iter().filter(|other| other.lane == slice.lane).cloned().collect();
        load_keys(session, &mut view, of_lane.iter().map(|slice| slice.chunk), raw)?;
        load_marks(session.conn, &mut view, &of_lane)?;
        views.insert(slice.lane, view);
    }
    Ok(views)
}
