//! Compaction: older events of a key give way to the newest.
//!
//! It is decided when events are claimed, in the same step: what was taken and has a newer event of its key behind it, pending in
//! the same subscription, is taken out again. Whoever claims sees nothing of it.

use crate::model::dropped::DropReason;
use crate::model::id::{EventId, TopicId};
use crate::model::mask::Mask;
use crate::model::slice::Slice;
use crate::model::tally::Ending;
use crate::plan::{Changes, LaneView};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An object: its topic and key.
pub type Object = (TopicId, Arc<str>);

/// The newest event of every object among what was taken; `object` gives that of an event, if it has a key.
pub fn newest(taken: &[Slice], object: impl Fn(EventId) -> Option<Object>) -> BTreeMap<Object, EventId> {
    let mut newest = BTreeMap::new();
    for event in taken.iter().flat_map(Slice::events) {
        if let Some(object) = object(event) {
            let known = newest.entry(object).or_insert(event);
            *known = event.max(*known);
        }
    }
    newest
}

/// The events of a slice that give way: `newest` has the last event of every object that is pending or was taken. What somebody
/// replayed is wanted as it is.
pub fn superseded(
    slice: &Slice,
    newest: &BTreeMap<Object, EventId>,
    object: impl Fn(EventId) -> Option<Object>,
) -> Mask {
    if slice.replayed {
        return Mask::EMPTY;
    }
    let gives_way = |event: &EventId| {
        object(*event).and_then(|object| newest.get(&object)).is_some_and(|newest| newest > event)
    };
    slice.events().filter(gives_way).map(EventId::index).collect()
}

/// Takes events out of a slice that was taken just now, for good. Gives what is left of it. The newest event stands for them, so
/// as items of tallies they are done.
pub fn give_way(
    slice: Slice,
    mask: Mask,
    lane: Option<&mut LaneView>,
    changes: &mut Changes,
) -> Option<Slice> {
    changes.end(&slice, mask, Ending::Done);
    changes.dropped.push((slice.chunk, mask, DropReason::Compacted));
    let rest = Slice { mask: slice.mask.minus(mask), ..slice.clone() };
    let is_left = !rest.mask.is_empty();
    if is_left {
        changes.update.push(rest.clone());
    } else {
        changes.delete.push((slice.chunk, slice.id));
    }
    if let Some(view) = lane {
        for event in slice.part(mask).events() {
            view.gap(event, changes);
            view.unpark(event, changes);
        }
        if !is_left {
            view.lane.leased -= 1;
            view.let_go();
        }
    }
    is_left.then_some(rest)
}
