//! Giving back what was claimed, as if it had never been.

use crate::model::id::EventId;
use crate::model::lease::Lease;
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::time::Time;
use crate::plan::settle::Leased;
use crate::plan::{Changes, LaneView};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Gives back a slice of a subscription without order, or of a lane that was taken over.
pub fn release(slice: Slice, now: Time, changes: &mut Changes) {
    changes.wake = true;
    changes.update.push(free(slice, now));
}

/// Gives back slices of one lane, and with them what follows in their keys: it may not run before them, so whoever holds the
/// lane may not settle it any more. `leased` is all that is taken in the lane, `given` what is given back. The view knows the
/// keys, unless everything is given back.
///
/// At most once, a consumed event that follows goes back too. It cannot have been begun, because one before it was not.
pub fn release_lane(
    view: &mut LaneView,
    leased: Leased,
    given: &BTreeSet<Lease>,
    now: Time,
    changes: &mut Changes,
) {
    let is_given = |slice: &Slice| given.contains(&slice.lease());
    let first = first_of_keys(view, leased.values().filter(|slice| is_given(slice)));
    for slice in leased.into_values() {
        let back = if is_given(&slice) { slice.mask } else { following(view, &slice, &first) };
        if back.is_empty() {
            continue;
        }
        changes.wake = true;
        // A new row even for all of it: the holder of the lane may take it again under the same epoch, and that is another lease.
        changes.insert.push(free(slice.part(back), now));
        let rest = slice.mask.minus(back);
        if rest.is_empty() {
            view.lane.leased -= 1;
            changes.delete.push((slice.chunk, slice.id));
        } else {
            changes.update.push(Slice { mask: rest, ..slice });
        }
    }
    view.let_go();
}

/// The first event of every key. What was replayed is outside the order.
fn first_of_keys<'a>(view: &LaneView, slices: impl Iterator<Item = &'a Slice>) -> HashMap<Arc<str>, EventId> {
    let mut first: HashMap<Arc<str>, EventId> = HashMap::new();
    for event in slices.filter(|slice| !slice.replayed).flat_map(Slice::events) {
        let Some(key) = view.key(event) else { continue };
        let known = first.entry(key.clone()).or_insert(event);
        *known = event.min(*known);
    }
    first
}

/// The events of a slice that come after the first one of their key.
fn following(view: &LaneView, slice: &Slice, first: &HashMap<Arc<str>, EventId>) -> Mask {
    let follows = |event: &EventId| {
        let first = view.key(*event).and_then(|key| first.get(key));
        !slice.replayed && first.is_some_and(|first| first < event)
    };
    slice.events().filter(follows).fold(Mask::EMPTY, |mask, event| mask.plus(Mask::of(event.index())))
}

/// A suspect that is given back is still one: it has not shown yet that it is harmless.
fn free(slice: Slice, now: Time) -> Slice {
    let state = if slice.crashes > 0 { State::Suspect } else { State::Ready };
    Slice { state, due_at: now, owner: Default::default(), ..slice }
}
