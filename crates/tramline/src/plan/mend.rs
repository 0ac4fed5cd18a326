//! Replay, drop, cancel, resend and adoption: changes that somebody asks for.

use crate::error::Result;
use crate::model::chunk::ChunkRow;
use crate::model::dropped::DropReason;
use crate::model::event::StoredEvent;
use crate::model::failure::Gone;
use crate::model::id::{ChunkId, EventId, LaneId, SliceId, SubscriptionId};
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::tally::Ending;
use crate::model::time::Time;
use crate::plan::{Changes, LaneView, join};
use crate::store::verbs::Revival;
use std::collections::BTreeMap;

/// Events by their chunks.
pub(crate) fn by_chunk<'a>(ids: impl IntoIterator<Item = &'a EventId>) -> BTreeMap<ChunkId, Mask> {
    let mut chunks = BTreeMap::new();
    for id in ids {
        let mask: &mut Mask = chunks.entry(id.chunk()).or_default();
        *mask = mask.plus(Mask::of(id.index()));
    }
    chunks
}

/// Takes `mask` out of a slice that nobody has claimed. What is left stays as it is.
fn cut(slice: &Slice, mask: Mask, changes: &mut Changes) {
    let rest = slice.mask.minus(mask);
    if rest.is_empty() {
        changes.delete.push((slice.chunk, slice.id));
    } else {
        changes.update.push(Slice { mask: rest, ..slice.clone() });
    }
}

/// Dead events run again, out of their order. Held ones run again in order: their key still waits for them.
pub fn replay(slice: &Slice, mask: Mask, now: Time, changes: &mut Changes) {
    cut(slice, mask, changes);
    changes.wake = true;
    changes.insert.push(fresh(slice, mask, now, now));
}

/// The same, one event after the other: `due` says when the next one comes.
fn stagger(slice: &Slice, mask: Mask, now: Time, mut due: impl FnMut() -> Time, changes: &mut Changes) {
    cut(slice, mask, changes);
    changes.wake = true;
    for index in mask.iter() {
        join(&mut changes.insert, fresh(slice, Mask::of(index), due(), now));
    }
}

/// Dead or held events as they run again. What is outside the order and not due yet waits without its key.
fn fresh(slice: &Slice, mask: Mask, due_at: Time, now: Time) -> Slice {
    let fresh = Slice {
        due_at,
        attempts: 0,
        crashes: 0,
        alone: 0,
        error: None,
        epoch: Slice::epoch_of_replay(now),
        owner: Default::default(),
        ..slice.part(mask)
    };
    match slice.state {
        State::Held => Slice { state: State::Waiting, ..fresh },
        _ if slice.is_ordered() && due_at > now => Slice { state: State::Waiting, replayed: true, ..fresh },
        _ => Slice { state: State::Ready, replayed: true, ..fresh },
    }
}

/// Events that nobody has claimed are dropped because somebody says so: dead, held or cancelled ones; or dead ones because they
/// are too old.
pub fn remove(slice: &Slice, mask: Mask, gone: Gone, lane: Option<&mut LaneView>, changes: &mut Changes) {
    changes.gone(slice, mask, gone);
    if gone == Gone::Expired {
        changes.dropped.push((slice.chunk, mask, DropReason::Expired));
    }
    take_away(slice, mask, lane, changes);
}

fn take_away(slice: &Slice, mask: Mask, lane: Option<&mut LaneView>, changes: &mut Changes) {
    cut(slice, mask, changes);
    changes.end(slice, mask, Ending::Failed);
    let Some(view) = lane else { return };
    view.ease(slice, changes);
    // A dead event is a gap already; a replayed one had its place in the order before.
    if slice.state == State::Dead || slice.replayed {
        return;
    }
    for event in slice.part(mask).events() {
        view.gap(event, changes);
        view.unpark(event, changes);
    }
}

/// Dead or held events leave their state, as somebody says.
pub fn revive(
    slice: &Slice,
    mask: Mask,
    how: &mut Revival,
    now: Time,
    lane: Option<&mut LaneView>,
    changes: &mut Changes,
) {
    match how {
        Revival::Replay => replay(slice, mask, now, changes),
        Revival::Stagger(pace) => stagger(slice, mask, now, || pace.next(now), changes),
        Revival::Drop => remove(slice, mask, Gone::Dropped, lane, changes),
    }
}

/// Events that nobody has claimed go because the store is full. All of a slice: its key may go on with what is behind it.
pub fn shed(slice: &Slice, lane: Option<&mut LaneView>, changes: &mut Changes) {
    take_away(slice, slice.mask, lane, changes);
    changes.dropped.push((slice.chunk, slice.mask, DropReason::Shed));
}

/// The event that a key waits for may run now.
pub fn hasten(slice: &Slice, mask: Mask, now: Time, changes: &mut Changes) {
    if slice.state == State::Held {
        return replay(slice, mask, now, changes);
    }
    cut(slice, mask, changes);
    changes.wake = true;
    changes.insert.push(Slice { due_at: now, ..slice.part(mask) });
}

/// All that failed in a lane and is not due may run now, so the lane stands still no longer. Gives how many events that are.
pub fn hasten_all(view: &mut LaneView, failed: &[Slice], now: Time, changes: &mut Changes) -> u64 {
    view.lane.halted_until = view.lane.halted_until.min(now);
    let mut count = 0;
    for slice in failed {
        hasten(slice, slice.mask, now, changes);
        count += u64::from(slice.mask.count());
    }
    count
}

/// Consumed or interrupted events that are known never to have started become ready again, as if never claimed. What was
/// interrupted may have been overtaken by now.
pub fn adopt(slice: &Slice, mask: Mask, now: Time, changes: &mut Changes) {
    cut(slice, mask, changes);
    changes.wake = true;
    let ready = Slice {
        state: State::Ready,
        due_at: now,
        error: None,
        owner: Default::default(),
        replayed: slice.replayed || slice.state == State::Dead,
        ..slice.part(mask)
    };
    changes.insert.push(ready);
}

/// The dead and held slices among `own`, which are all that a subscription has of a chunk, with what is wanted of each.
pub(crate) fn buried<'a>(
    own: impl IntoIterator<Item = &'a Slice>,
    wanted: Mask,
) -> impl Iterator<Item = (&'a Slice, Mask)> {
    let buried = own.into_iter().filter(|slice| matches!(slice.state, State::Dead | State::Held));
    buried.map(move |slice| (slice, slice.mask.and(wanted))).filter(|(_, mask)| !mask.is_empty())
}

/// What is wanted of a chunk and the subscription has nothing of any more, by lane. `lanes` are those of its events, one after the other.
pub(crate) fn finished(
    own: &[Slice],
    wanted: Mask,
    lanes: impl Iterator<Item = LaneId>,
) -> BTreeMap<LaneId, Mask> {
    let wanted = own.iter().fold(wanted, |wanted, slice| wanted.minus(slice.mask));
    let mut finished: BTreeMap<LaneId, Mask> = BTreeMap::new();
    for (lane, index) in lanes.zip(0..).filter(|(_, index)| wanted.contains(*index)) {
        let mask = finished.entry(lane).or_default();
        *mask = mask.plus(Mask::of(index));
    }
    finished
}

/// Events of `row` that the subscription had finished with, to be done again.
pub fn resend(
    subscription: SubscriptionId,
    lane: LaneId,
    row: &ChunkRow,
    mask: Mask,
    now: Time,
    changes: &mut Changes,
) -> Result<()> {
    changes.wake = true;
    let slice = Slice {
        id: SliceId(0),
        chunk: row.chunk,
        subscription,
        lane,
        state: State::Ready,
        mask,
        due_at: now,
        rank: if lane == LaneId::UNORDERED { 5 } else { 0 },
        attempts: 0,
        crashes: 0,
        alone: 0,
        epoch: Slice::epoch_of_replay(now),
        owner: Default::default(),
        replayed: true,
        tallied: !row.items(subscription, mask)?.is_empty(),
        bytes: row.body.len() as u32,
        error: None,
    };
    changes.came_back(&slice);
    changes.insert.push(slice);
    Ok(())
}

/// The predecessor that an event of an ordered subscription has to wait for, if that one is still to be done there.
pub(crate) fn predecessor(slices: &[Slice], event: &StoredEvent, own: &Slice) -> Option<EventId> {
    let prev = event.prev.filter(|_| own.is_ordered() && own.lane != LaneId::WHOLE && !own.replayed)?;
    let before = find(slices, prev)?;
    (before.state != State::Dead && !before.replayed && own.state != State::Dead).then_some(prev)
}

/// Where an event is among the slices of its chunk in one subscription.
pub fn find(slices: &[Slice], event: EventId) -> Option<&Slice> {
    slices.iter().find(|slice| slice.chunk == event.chunk() && slice.mask.contains(event.index()))
}
