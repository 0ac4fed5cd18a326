//! Compaction: what was claimed gives way to newer events of the same key.

use super::emit::head;
use super::order::{decoded, load_keys, load_marks};
use super::rows::{apply, one_chunk, one_lane, slices_of_chunk, write_lane};
use super::session::Session;
use crate::error::Result;
use crate::model::id::{EventId, LaneId, SubscriptionId};
use crate::model::slice::{Slice, State};
use crate::plan::compact::{Object, give_way, newest, superseded};
use crate::plan::{Changes, LaneView};
use crate::store::claimed::RawClaim;
use crate::store::compact::{STEPS, object};
use std::collections::{BTreeMap, BTreeSet};

/// Takes out of a claim what has a newer event of its key behind it. True if there was something.
pub(super) fn compact(session: &Session<'_>, id: SubscriptionId, raw: &mut RawClaim) -> Result<bool> {
    for chunk in raw.slices.iter().map(|slice| slice.chunk).collect::<BTreeSet<_>>() {
        decoded(session, chunk, raw)?;
    }
    let mut newest = newest(&raw.slices, |event| object(raw, &session.catalog(), event));
    for (object, event) in &mut newest {
        *event = later_pending(session, id, object, *event)?.unwrap_or(*event);
    }
    let gone = |slice: &Slice| superseded(slice, &newest, |event| object(raw, &session.catalog(), event));
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
        write_lane(session, &view.lane);
    }
    raw.name_gaps(&views);
    Ok(true)
}

/// The last event of an object after `event` that is pending in a subscription: found along the chain of its key, from its head
/// back. Mostly the head is the event itself, or pending. Filters may leave out many; where the chain is longer than that, or
/// was removed already, `event` is given out.
fn later_pending(
    session: &Session<'_>,
    id: SubscriptionId,
    (topic, key): &Object,
    event: EventId,
) -> Result<Option<EventId>> {
    let pending = [State::Ready, State::Suspect, State::Waiting, State::Parked, State::Crowded];
    let mut at = head(session, *topic, key)?.map_or(EventId(0), |head| head.last_id);
    for _ in 0..STEPS {
        if at <= event {
            return Ok(None);
        }
        let slices = slices_of_chunk(session, id, at.chunk())?;
        if slices.iter().any(|slice| pending.contains(&slice.state) && slice.mask.contains(at.index())) {
            return Ok(Some(at));
        }
        let Some(row) = one_chunk(session, at.chunk())? else { return Ok(None) };
        at = EventId(row.prevs.get(at.index() as usize).copied().unwrap_or(0));
    }
    Ok(None)
}

/// The lanes of what was taken, with its keys and what they wait for and miss.
fn load_lanes(session: &Session<'_>, raw: &mut RawClaim) -> Result<BTreeMap<LaneId, LaneView>> {
    let mut views = BTreeMap::new();
    let taken: Vec<Slice> = raw.slices.iter().filter(|slice| slice.is_ordered()).cloned().collect();
    for slice in &taken {
        if views.contains_key(&slice.lane) {
            continue;
        }
        let Some(lane) = one_lane(session, slice.subscription, slice.lane)? else { continue };
        let mut view = LaneView::new(lane);
        let of_lane: Vec<Slice> = taken.iter().filter(|other| other.lane == slice.lane).cloned().collect();
        load_keys(session, &mut view, of_lane.iter().map(|slice| slice.chunk), raw)?;
        load_marks(session, &mut view, &of_lane)?;
        views.insert(slice.lane, view);
    }
    Ok(views)
}
