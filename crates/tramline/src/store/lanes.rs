//! What ordered claims decide between reading and writing, whatever the database.

use crate::model::id::{ChunkId, LaneId};
use crate::model::slice::Slice;
use crate::model::time::Time;
use crate::plan::lane::before_suspects;
use crate::plan::{Changes, LaneView};
use crate::store::claimed::RawClaim;
use crate::store::verbs::{Claim, Suspects};
use std::collections::BTreeMap;

/// What one lane has to offer.
#[derive(Default)]
pub(crate) struct Work {
    pub(crate) suspects: Vec<Slice>,
    pub(crate) waiting: Vec<Slice>,
    pub(crate) ready: Vec<Slice>,
}

/// Of lanes that nobody holds, what comes before their suspects is taken before these. True if there is something of the kind.
pub(crate) fn prefer_earlier(
    work: &mut BTreeMap<LaneId, Work>,
    views: &BTreeMap<LaneId, LaneView>,
    now: Time,
    changes: &mut Changes,
) -> bool {
    let mut found = false;
    for (lane, work) in work.iter_mut().filter(|(_, work)| !work.suspects.is_empty()) {
        if views.get(lane).is_some_and(|view| view.lane.is_held(now)) {
            continue;
        }
        let earlier = before_suspects(&work.ready, &work.suspects, changes);
        if !earlier.is_empty() {
            *work = Work { ready: earlier, ..Work::default() };
            found = true;
        }
    }
    found
}

/// A lane with suspects, if the claim may take one: nobody holds the lane, and nothing else was taken.
pub(crate) fn choose_suspects(
    claim: &Claim,
    work: &mut BTreeMap<LaneId, Work>,
    views: &BTreeMap<LaneId, LaneView>,
    now: Time,
    raw: &RawClaim,
) -> Option<Work> {
    if claim.suspects == Suspects::Leave || !raw.slices.is_empty() {
        return None;
    }
    let free = |lane: &LaneId| views.get(lane).is_some_and(|view| !view.lane.is_held(now));
    let chosen = work.iter_mut().find(|(lane, work)| !work.suspects.is_empty() && free(lane))?;
    Some(std::mem::take(chosen.1))
}

/// Keeps the ready slices up to the chunk at which all lanes together hold what is wanted. So lanes are served in step,
/// oldest chunk first: a claim reads few chunks, and no lane falls behind.
pub(crate) fn cut(work: &mut BTreeMap<LaneId, Work>, wanted: u32) {
    let mut chunks: Vec<(ChunkId, u32)> = work
        .values()
        .flat_map(|work| work.ready.iter().map(|slice| (slice.chunk, slice.mask.count())))
        .collect();
    chunks.sort_unstable();
    let mut events = 0;
    let last = chunks.into_iter().find(|(_, count)| {
        events += count;
        events >= wanted
    });
    if let Some((last, _)) = last {
        work.values_mut().for_each(|work| work.ready.retain(|slice| slice.chunk <= last));
    }
}

/// Slices by their lanes.
pub(crate) fn group(slices: Vec<Slice>) -> BTreeMap<LaneId, Vec<Slice>> {
    let mut lanes: BTreeMap<LaneId, Vec<Slice>> = BTreeMap::new();
    for slice in slices {
        lanes.entry(slice.lane).or_default().push(slice);
    }
    lanes
}

/// Adds what was taken from a lane to a claim, with the ids that its events have to name.
pub(crate) fn add(view: &LaneView, taken: Vec<Slice>, raw: &mut RawClaim) {
    if !view.gaps.is_empty() {
        for event in taken.iter().filter(|slice| !slice.replayed).flat_map(Slice::events) {
            let skipped = view.skipped(event);
            if !skipped.is_empty() {
                raw.skipped.insert(event, skipped);
            }
        }
    }
    raw.slices.extend(taken);
}
