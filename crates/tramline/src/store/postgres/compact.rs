//! Compaction: what was claimed gives way to newer events of the same key.

use super::lanes::{load_keys, load_marks, lock};
use super::rows::{apply, chunks, write_lanes};
use super::session::Session;
use crate::error::Result;
use crate::model::id::{EventId, LaneId, SubscriptionId};
use crate::model::lane::Lane;
use crate::model::slice::Slice;
use crate::plan::Changes;
use crate::plan::LaneView;
use crate::plan::compact::{Object, give_way, newest, superseded};
use crate::store::claimed::RawClaim;
use crate::store::compact::{STEPS, object};
use sqlx::Row;
use std::collections::{BTreeMap, BTreeSet};

/// Takes out of a claim what has a newer event of its key behind it. True if there was something.
pub(super) async fn compact(
    session: &mut Session<'_>,
    id: SubscriptionId,
    raw: &mut RawClaim,
) -> Result<bool> {
    let catalog = session.catalog.clone();
    let read = chunks(session, raw.missing().into_iter()).await?;
    raw.chunks.extend(read);
    raw.decode_chunks(&catalog)?;
    let mut newest = newest(&raw.slices, |event| object(raw, &catalog, event));
    find_pending(session, id, &mut newest).await?;
    let gone = |slice: &Slice| superseded(slice, &newest, |event| object(raw, &catalog, event));
    let masks: Vec<_> = raw.slices.iter().map(gone).collect();
    if masks.iter().all(|mask| mask.is_empty()) {
        return Ok(false);
    }
    let mut views = load_lanes(session, id, &raw.slices).await?;
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
    apply(session, id, &changes).await?;
    let lanes: Vec<&Lane> = views.values().map(|view| &view.lane).collect();
    write_lanes(session, &lanes).await?;
    raw.name_gaps(&views);
    Ok(true)
}

/// Replaces each event by the last one of its object after it that is pending in the subscription: found along the chain of its
/// key, from its head back. Mostly the head is the event itself, or pending. Filters may leave out many; where the chain is
/// longer than that, or was removed already, the event is given out.
async fn find_pending(
    session: &mut Session<'_>,
    id: SubscriptionId,
    newest: &mut BTreeMap<Object, EventId>,
) -> Result<()> {
    let sql = "SELECT k.place, n.id FROM unnest($2::bigint[], $3::text[], $4::bigint[]) WITH ORDINALITY \
                   AS k(topic, key, event, place) \
               CROSS JOIN LATERAL (WITH RECURSIVE walk (id, step) AS ( \
                   SELECT h.last_id, 1 FROM tramline_head h WHERE h.topic = k.topic AND h.key = k.key \
                   UNION ALL SELECT c.prevs[(w.id & 63) + 1], w.step + 1 FROM walk w \
                       JOIN tramline_chunk c ON c.chunk = w.id >> 6 WHERE w.id > k.event AND w.step < $5) \
               SELECT w.id FROM walk w WHERE w.id > k.event AND EXISTS (SELECT 1 FROM tramline_slice s \
                   WHERE s.chunk = w.id >> 6 AND s.subscription + 0 = $1 AND s.state + 0 IN (0, 2, 3, 4, 8) \
                   AND (s.mask >> (w.id & 63)::int) & 1 = 1) LIMIT 1) n";
    let query = session
        .query(sql)
        .bind(id.0)
        .bind(newest.keys().map(|(topic, _)| topic.0).collect::<Vec<i64>>())
        .bind(newest.keys().map(|(_, key)| key.to_string()).collect::<Vec<String>>())
        .bind(newest.values().map(|event| event.0).collect::<Vec<i64>>())
        .bind(STEPS);
    let mut later = BTreeMap::new();
    for row in session.all(query).await? {
        later.insert(row.try_get::<i64, _>(0)?, EventId(row.try_get(1)?));
    }
    for (place, event) in (1..).zip(newest.values_mut()) {
        *event = later.get(&place).copied().unwrap_or(*event);
    }
    Ok(())
}

/// The lanes of what was taken, which this step has locked already, with its keys and what they wait for and miss.
async fn load_lanes(
    session: &mut Session<'_>,
    id: SubscriptionId,
    taken: &[Slice],
) -> Result<BTreeMap<LaneId, LaneView>> {
    let taken: Vec<Slice> = taken.iter().filter(|slice| slice.is_ordered()).cloned().collect();
    if taken.is_empty() {
        return Ok(BTreeMap::new());
    }
    let lanes: BTreeSet<LaneId> = taken.iter().map(|slice| slice.lane).collect();
    let mut views = lock(session, id, &lanes).await?;
    load_keys(session, &mut views, &taken).await?;
    load_marks(session, &mut views, &taken).await?;
    Ok(views)
}
