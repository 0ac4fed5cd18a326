//! What a chunk means to a subscription that came after it.

use crate::error::Result;
use crate::model::chunk::ChunkRow;
use crate::model::id::{LaneId, SliceId};
use crate::model::lane;
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use std::collections::BTreeMap;

/// The slices that an emit would have written, had the subscription been there.
pub(crate) fn slices_of(row: &ChunkRow, lanes: u32, subscription: &Subscription) -> Result<Vec<Slice>> {
    let mut masks: BTreeMap<(LaneId, Time, i64), Mask> = BTreeMap::new();
    let mut tallied = false;
    let keyless = LaneId::of(row.topic, (row.chunk.0.unsigned_abs() % u64::from(lanes.max(1))) as u32);
    for (index, event) in row.outlines()?.iter().enumerate() {
        tallied |= event.item.is_some_and(|item| item.subscription == subscription.id);
        let (lane, rank) = match &event.key {
            _ if !subscription.policy.is_ordered() => (LaneId::UNORDERED, i64::from(event.priority)),
            Some(key) => (lane::of(row.topic, lanes, key), 0),
            None => (keyless, 0),
        };
        let mask = masks.entry((lane, event.due_at, rank)).or_default();
        *mask = mask.plus(Mask::of(index as u32));
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
