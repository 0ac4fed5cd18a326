//! What ordered claims decide between reading and writing, whatever the database; and what steps on lanes have to load, on servers:
//! always many lanes at a time.

use crate::error::Result;
use crate::model::id::{ChunkId, LaneId, SubscriptionId};
use crate::model::slice::Slice;
use crate::model::time::Time;
use crate::plan::lane::before_suspects;
use crate::plan::limit::Keys;
use crate::plan::{Changes, LaneView};
use crate::store::claimed::RawClaim;
use crate::store::rows::StepRows;
use crate::store::verbs::{Claim, Suspects};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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

/// Fills in the keys of the chunks of slices.
pub(crate) async fn load_keys(
    session: &mut impl StepRows,
    views: &mut BTreeMap<LaneId, LaneView>,
    slices: &[Slice],
) -> Result<()> {
    let known = session.keys(slices.iter().map(|slice| slice.chunk).collect()).await?;
    fill_keys(views, slices, &known);
    Ok(())
}

/// The same of keys that were read.
pub(crate) fn fill_keys(views: &mut BTreeMap<LaneId, LaneView>, slices: &[Slice], keys: &Keys) {
    for slice in slices {
        if let (Some(view), Some(keys)) = (views.get_mut(&slice.lane), keys.get(&slice.chunk)) {
            view.keys.insert(slice.chunk, keys.clone());
        }
    }
}

/// The same, and keeps the decoded events, because a claim gives them out next.
pub(crate) async fn load_chunks(
    session: &mut impl StepRows,
    views: &mut BTreeMap<LaneId, LaneView>,
    slices: &[Slice],
    raw: &mut RawClaim,
) -> Result<()> {
    let missing: BTreeSet<ChunkId> =
        slices.iter().map(|slice| slice.chunk).filter(|chunk| !raw.decoded.contains_key(chunk)).collect();
    for (id, row) in session.chunks(missing).await? {
        let events = row.decode(&session.catalog().topic_name(row.topic))?;
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
pub(crate) async fn load_marks(
    session: &mut impl StepRows,
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
    for mark in session.marks(id, wanted.into_iter().collect()).await? {
        let Some(view) = views.get_mut(&mark.lane) else { continue };
        if let Some(event) = mark.blocked_by {
            view.parked.entry(mark.key.clone()).or_insert(event);
        }
        if !mark.gaps.is_empty() {
            view.gaps.entry(mark.key).or_insert(mark.gaps);
        }
    }
    Ok(())
}

/// Fills in what the holder of lanes has under way, where events are met that are not due.
pub(crate) async fn load_running(
    session: &mut impl StepRows,
    views: &mut BTreeMap<LaneId, LaneView>,
    delayed: &BTreeSet<LaneId>,
) -> Result<()> {
    let busy = views.values().filter(|view| view.lane.leased > 0 && delayed.contains(&view.lane.lane));
    let (lanes, ids): (Vec<LaneId>, Vec<SubscriptionId>) =
        busy.map(|view| (view.lane.lane, view.lane.subscription)).unzip();
    let Some(id) = ids.first() else { return Ok(()) };
    let taken = session.leased(*id, &lanes).await?;
    load_keys(session, views, &taken).await?;
    for slice in taken.iter().filter(|slice| !slice.replayed) {
        if let Some(view) = views.get_mut(&slice.lane) {
            slice.events().for_each(|event| view.run(event));
        }
    }
    Ok(())
}
