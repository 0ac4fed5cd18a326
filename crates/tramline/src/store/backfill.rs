//! What a chunk means to a subscription that came after it.

use crate::error::Result;
use crate::model::chunk::ChunkRow;
use crate::model::id::{LaneId, SliceId};
use crate::model::lane;
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::subscription::Subscription;
use std::collections::BTreeMap;

/// The slices that an emit would have written, had the subscription been there: due since they were emitted, of the usual priority.
pub(crate) fn slices_of(row: &ChunkRow, lanes: u32, subscription: &Subscription) -> Result<Vec<Slice>> {
    let mut masks: BTreeMap<LaneId, Mask> = BTreeMap::new();
    let keyless = LaneId::of(row.topic, (row.chunk.0.unsigned_abs() % u64::from(lanes.max(1))) as u32);
    for (index, key) in row.keys()?.iter().enumerate() {
        let lane = match key {
            _ if !subscription.policy.is_ordered() => LaneId::UNORDERED,
            Some(key) => lane::of(row.topic, lanes, key),
            None => keyless,
        };
        let mask = masks.entry(lane).or_default();
        *mask = mask.plus(Mask::of(index as u32));
    }
    let slice = |(lane, mask): (LaneId, Mask)| Slice {
        id: SliceId(0),
        chunk: row.chunk,
        subscription: subscription.id,
        lane,
        state: State::Ready,
        mask,
        due_at: row.emitted_at,
        rank: if lane == LaneId::UNORDERED { 5 } else { 0 },
        attempts: 0,
        crashes: 0,
        alone: 0,
        epoch: 0,
        owner: Default::default(),
        replayed: false,
        bytes: row.body.len() as u32,
        error: None,
    };
    Ok(masks.into_iter().map(slice).collect())
}
