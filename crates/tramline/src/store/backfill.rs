//! What a chunk means to a subscription that came after it.

use crate::error::Result;
use crate::model::chunk::ChunkRow;
use crate::model::filter::Subject;
use crate::model::id::{LaneId, SliceId};
use crate::model::lane;
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::subscription::{Ordering, Subscription, Topic};
use crate::model::time::Time;
use std::collections::BTreeMap;

/// The slices that an emit would have written, had the subscription been there.
pub(crate) fn slices_of(row: &ChunkRow, topic: &Topic, subscription: &Subscription) -> Result<Vec<Slice>> {
    let mut masks: BTreeMap<(LaneId, Time, i64), Mask> = BTreeMap::new();
    let mut tallied = false;
    let ordering = subscription.policy.ordering;
    let keyless = (row.chunk.0.unsigned_abs() % u64::from(topic.lanes.max(1))) as u32;
    let passing = passing(row, topic, subscription)?;
    let outlines = row.outlines()?;
    for (index, event) in (0..).zip(&outlines).filter(|(index, _)| passing.contains(*index)) {
        tallied |= event.item.is_some_and(|item| item.subscription == subscription.id);
        let lane = lane::within(ordering, topic, event.key.as_deref(), keyless);
        let rank = if ordering == Ordering::None { i64::from(event.priority) } else { 0 };
        let mask = masks.entry((lane, event.due_at, rank)).or_default();
        *mask = mask.plus(Mask::of(index));
    }
    let slice = |((lane, due_at, rank), mask)| Slice {
        id: SliceId(0),
        chunk: row.chunk,
        subscription: subscription.id,
        lane,
        state: State::Ready,
        mask,
        due_at,
        rank,
        attempts: 0,
        crashes: 0,
        alone: 0,
        epoch: 0,
        owner: Default::default(),
        replayed: false,
        tallied,
        bytes: row.body.len() as u32,
        error: None,
    };
    Ok(masks.into_iter().map(slice).collect())
}

/// The events that the subscription's filter lets pass. Payloads are read only if there is one.
fn passing(row: &ChunkRow, topic: &Topic, subscription: &Subscription) -> Result<Mask> {
    let filter = &subscription.policy.filter;
    if filter.is_empty() {
        return Ok(Mask::first(Mask::CAPACITY));
    }
    let events = row.decode(&topic.name)?;
    Ok(events
        .iter()
        .filter(|event| filter.admits(&Subject::of_stored(event)))
        .map(|e| e.id.index())
        .collect())
}
