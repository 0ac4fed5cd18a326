//! What a claim takes from a lane, and whose keys it parks.

use crate::model::id::{EventId, LaneId};
use crate::model::lane::Lane;
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::subscription::Policy;
use crate::model::time::Time;
use crate::plan::claim::Taker;
use crate::plan::expire::{expire, interrupt};
use crate::plan::{Changes, LaneView, join, parked_part};

/// A held lane whose lease has ended: what was taken under it becomes suspect, or interrupted. `leased` is all of it.
pub fn take_over(view: &mut LaneView, leased: Vec<Slice>, policy: &Policy, now: Time, changes: &mut Changes) {
    let (consumed, leased): (Vec<_>, Vec<_>) =
        leased.into_iter().partition(|slice| slice.state == State::Consumed);
    for slice in leased {
        expire(slice, policy, now, Some(view), changes);
    }
    interrupt(consumed, policy, now, view, changes);
    view.lane.leased = 0;
    view.lane.owner = None;
    view.lane.until = Time(0);
}

/// The ready slices of a lane that come before its suspects, as far as they do; these run first. There are some when a worker
/// gave back an early slice and ended with a later one in hand. `suspects` are all of the lowest chunk that has any, `ready`
/// the first ready slices, sorted, whole chunks. What is cut off stays ready.
pub fn before_suspects(ready: &[Slice], suspects: &[Slice], changes: &mut Changes) -> Vec<Slice> {
    let Some(first) = suspects.iter().filter_map(|slice| slice.events().next()).min() else {
        return Vec::new();
    };
    let mut earlier = Vec::new();
    for slice in ready.iter().take_while(|slice| slice.chunk <= first.chunk()) {
        let limit = if slice.chunk < first.chunk() { Mask::CAPACITY } else { first.index() };
        let mask = slice.mask.and(Mask::first(limit));
        let rest = slice.mask.minus(mask);
        if mask.is_empty() {
            continue;
        }
        let cut = Slice { mask, ..slice.clone() };
        if !rest.is_empty() {
            changes.update.push(cut.clone());
            changes.insert.push(slice.part(rest));
        }
        earlier.push(cut);
    }
    earlier
}

/// Takes one part of the first suspects of a lane. `suspects` are all of the lowest chunk that has any; the view knows their
/// keys. Gives nothing when all of them wait behind their keys, or those before something that is ready do: they are set aside
/// now, and the caller looks again.
///
/// Of several slices in the chunk only one is taken, and of that one only what comes before the first event of the others,
/// be they suspect or `ready`: together they are one sequence.
pub fn take_suspect(
    view: &mut LaneView,
    suspects: Vec<Slice>,
    ready: &[Slice],
    taker: &mut Taker,
    changes: &mut Changes,
) -> Option<Slice> {
    let same_chunk = |slice: &&Slice| suspects.first().is_some_and(|suspect| suspect.chunk == slice.chunk);
    let next_ready = ready.iter().filter(same_chunk).filter_map(|slice| slice.mask.lowest()).min();
    let mut free: Vec<(Slice, Mask)> = Vec::with_capacity(suspects.len());
    for suspect in suspects {
        let mask = set_aside(view, &suspect, changes);
        if mask.is_empty() {
            changes.delete.push((suspect.chunk, suspect.id));
        } else {
            free.push((suspect, mask));
        }
    }
    free.sort_by_key(|(_, mask)| mask.lowest());
    let first = free.first().and_then(|(_, mask)| mask.lowest())?;
    let next_suspect = free.get(1).and_then(|(_, mask)| mask.lowest());
    let next = next_suspect.into_iter().chain(next_ready).min().unwrap_or(Mask::CAPACITY).max(first + 1);
    // If those before it were set aside just now, what is ready comes first.
    let taken = if next_ready.is_some_and(|ready| ready < first) { None } else { Some(free.remove(0)) };
    for (other, mask) in free.into_iter().filter(|(other, mask)| other.mask != *mask) {
        changes.update.push(Slice { mask, ..other });
    }
    let (suspect, mask) = taken?;
    let (mine, _) = mask.and(Mask::first(next)).split_lowest(taker.limit(&suspect));
    let rest = mask.minus(mine);
    if !rest.is_empty() {
        changes.insert.push(suspect.part(rest));
    }
    begin(view, taker);
    Some(take_part(view, &suspect, mine, taker, changes))
}

/// Moves the events of parked keys out of a slice, and gives what is left.
fn set_aside(view: &LaneView, slice: &Slice, changes: &mut Changes) -> Mask {
    let mut left = slice.mask;
    for event in slice.events().filter(|_| !slice.replayed) {
        if let Some(key) = view.key(event).filter(|_| view.waits(event)) {
            left = left.minus(Mask::of(event.index()));
            join(&mut changes.insert, parked_part(slice, key, event));
        }
    }
    left
}

/// Takes from a lane: first the events that waited and are due now, then the ready ones in the order of their chunks. In a line of
/// all events those that waited have no precedence ([`line_up`]).
///
/// `waiting` are due slices of state waiting. `ready` are whole chunks, sorted: of two slices of one chunk either both
/// are here or none. The view knows the keys of all of them, and what is under way if some are not due. Events that are not
/// due park their key; events of parked keys go aside, so that the next claim does not meet them again.
pub fn take(
    view: &mut LaneView,
    waiting: Vec<Slice>,
    ready: Vec<Slice>,
    taker: &mut Taker,
    now: Time,
    changes: &mut Changes,
) -> Vec<Slice> {
    let lane = view.lane.clone();
    let is_line = lane.lane == LaneId::WHOLE;
    if is_line && stands_still(view, &ready, now) {
        return Vec::new();
    }
    let (waiting, ready) =
        if is_line { (Vec::new(), line_up(&lane, waiting, ready)) } else { (waiting, ready) };
    let mut taken = Vec::new();
    for slice in waiting {
        if taker.is_full() {
            return taken;
        }
        let (mine, rest) = slice.mask.split_lowest(taker.limit(&slice));
        if !rest.is_empty() {
            changes.insert.push(slice.part(rest));
        }
        begin(view, taker);
        taken.push(take_part(view, &slice, mine, taker, changes));
    }
    let some_late = ready.iter().any(|slice| slice.due_at > now);
    let go_together =
        |a: &Slice, b: &Slice| a.chunk == b.chunk && (!is_line || lane.has_had(a) == lane.has_had(b));
    for chunk in ready.chunk_by(go_together) {
        if taker.is_full() {
            break;
        }
        let (mine, all) = take_chunk(view, chunk, some_late, taker, now, changes);
        taken.extend(mine);
        if !all {
            break; // what follows would overtake what stays
        }
    }
    taken
}

/// True if something that failed in a line of all events is not due. The line has to wait for it, although somebody took away what
/// it stood still for before.
fn stands_still(view: &mut LaneView, ready: &[Slice], now: Time) -> bool {
    let failed = ready.iter().filter(|slice| slice.due_at > now && view.lane.has_had(slice));
    let last = failed.map(|slice| slice.due_at).max();
    view.lane.halted_until = last.unwrap_or(view.lane.halted_until);
    last.is_some()
}

/// The order of a line of all events. What was taken before comes first: nothing passes a batch that failed or was given back. Then
/// come the others by their numbers, whether they had to wait or not.
///
/// More may be ready than was read, so what waited comes only before something that is ready and was never taken.
fn line_up(lane: &Lane, waiting: Vec<Slice>, mut ready: Vec<Slice>) -> Vec<Slice> {
    let last = ready.last().map(|slice| (lane.has_had(slice), slice.chunk));
    let has_its_turn = |slice: &Slice| last.is_none_or(|(had, chunk)| !had && slice.chunk <= chunk);
    ready.extend(waiting.into_iter().filter(has_its_turn));
    ready.sort_by_key(|slice| (!lane.has_had(slice), slice.chunk, slice.id));
    ready
}

/// Where the events of one slice go.
#[derive(Default)]
struct Sorted {
    taken: Mask,
    waiting: Mask,
    left: Mask,
    parked: Vec<Slice>,
}

/// The slices of one chunk differ in due time only. Their events are judged in order, across slices: the first one of a
/// key decides about the later ones. `some_late`: there are events that are not due, in this chunk or another. Also gives
/// whether every event was judged.
fn take_chunk(
    view: &mut LaneView,
    slices: &[Slice],
    some_late: bool,
    taker: &mut Taker,
    now: Time,
    changes: &mut Changes,
) -> (Vec<Slice>, bool) {
    let mut sorted: Vec<Sorted> = slices.iter().map(|_| Sorted::default()).collect();
    let mut wanted = taker.events;
    let all = slices.iter().fold(Mask::EMPTY, |mask, slice| mask.plus(slice.mask));
    for index in all.iter() {
        for (slice, sorted) in slices.iter().zip(&mut sorted).filter(|(slice, _)| slice.mask.contains(index))
        {
            let event = EventId::at(slice.chunk, index);
            let bit = Mask::of(index);
            if wanted == 0 || (taker.single && !sorted.taken.is_empty()) {
                // Nothing behind an event that stays may be judged: it would overtake.
                wanted = 0;
                sorted.left = sorted.left.plus(bit);
                continue;
            }
            if slice.due_at > now && !slice.replayed && !view.waits(event) {
                // It may not stand in front of an event of its key that is under way and may come back.
                let first = view.key(event).and_then(|key| view.running.get(key)).copied().unwrap_or(event);
                view.park(first.min(event), now, changes);
            }
            if !slice.replayed && view.waits(event) {
                let key = view.key(event).cloned().unwrap_or_default();
                join(&mut sorted.parked, parked_part(slice, &key, event));
            } else if slice.due_at > now {
                sorted.waiting = sorted.waiting.plus(bit);
            } else {
                if some_late && !slice.replayed {
                    view.run(event);
                }
                sorted.taken = sorted.taken.plus(bit);
                wanted -= 1;
            }
        }
    }
    let all_judged = sorted.iter().all(|sorted| sorted.left.is_empty());
    let mut taken = Vec::new();
    for (slice, sorted) in slices.iter().zip(sorted) {
        taken.extend(place(view, slice, sorted, taker, changes));
    }
    (taken, all_judged)
}

/// Writes down where the events of one slice go. The row stays with what is taken, else with what is left.
fn place(
    view: &mut LaneView,
    slice: &Slice,
    sorted: Sorted,
    taker: &mut Taker,
    changes: &mut Changes,
) -> Option<Slice> {
    let Sorted { taken, waiting, left, parked } = sorted;
    if left == slice.mask {
        return None;
    }
    changes.insert.extend(parked);
    if !waiting.is_empty() {
        changes.insert.push(Slice { state: State::Waiting, ..slice.part(waiting) });
    }
    if !taken.is_empty() {
        if !left.is_empty() {
            changes.insert.push(slice.part(left));
        }
        begin(view, taker);
        return Some(take_part(view, slice, taken, taker, changes));
    }
    if left.is_empty() {
        changes.delete.push((slice.chunk, slice.id));
    } else {
        changes.update.push(Slice { mask: left, ..slice.clone() });
    }
    None
}

/// Makes who takes the holder of the lane: under a new epoch unless he holds it already.
fn begin(view: &mut LaneView, taker: &Taker) {
    if view.lane.owner != Some(taker.owner) {
        view.lane.owner = Some(taker.owner);
        view.lane.epoch = taker.after(view.lane.epoch);
        view.lane.leased = 0;
    }
    view.lane.until = view.lane.until.max(taker.until);
}

fn take_part(
    view: &mut LaneView,
    slice: &Slice,
    mine: Mask,
    taker: &mut Taker,
    changes: &mut Changes,
) -> Slice {
    taker.events -= mine.count();
    taker.bytes -= i64::from(slice.bytes);
    view.lane.leased += 1;
    let leased = Slice {
        mask: mine,
        state: taker.state(),
        owner: taker.owner,
        epoch: view.lane.epoch,
        rank: 0,
        ..slice.clone()
    };
    changes.update.push(leased.clone());
    leased
}
