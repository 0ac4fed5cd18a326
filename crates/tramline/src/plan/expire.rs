//! What becomes of a lease that ended without being settled.

use crate::model::failure::Gone;
use crate::model::id::EventId;
use crate::model::lease::Lease;
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::subscription::{OnExhausted, Policy};
use crate::model::tally::Ending;
use crate::model::time::Time;
use crate::plan::release::release;
use crate::plan::{Changes, LaneView};

/// How often an event may end a worker that runs nothing else.
const CRASHES_ALONE: u32 = 3;

const INTERRUPTED: &str =
    "interrupted: the worker ended while it had this event; whether it ran is not known";

impl Slice {
    /// True for dead events that were consumed at most once under `lease` by a worker that then ended.
    pub(crate) fn was_interrupted_under(&self, lease: &Lease) -> bool {
        let held = Lease { slice: self.id, ..*lease };
        self.state == State::Dead && self.is_interrupted() && self.lease() == held
    }

    fn is_interrupted(&self) -> bool {
        self.error.as_deref() == Some(INTERRUPTED)
    }
}

/// A lease on `slice` has expired, or its owner is known to be dead. Nobody knows which of its events was at fault, so
/// all become suspects, in two halves; only one that was alone three times is taken out. Sending an event cannot end the
/// sender, so what was being pushed is simply sent again. A lane is also taken over from an owner who asks himself, under a lease that
/// lasts: an answer was lost, or he gave it up. He lives, so it was no event that ended him.
pub fn expire(
    slice: Slice,
    policy: &Policy,
    now: Time,
    mut lane: Option<&mut LaneView>,
    changes: &mut Changes,
) {
    if let Some(view) = &mut lane {
        view.lane.leased -= 1;
    }
    if slice.state == State::Consumed {
        changes.failed(&slice, slice.mask, slice.attempts + 1, INTERRUPTED);
        return bury(Slice { error: Some(INTERRUPTED.into()), ..slice }, policy, now, lane, changes);
    }
    if policy.push.is_some() {
        return release(slice, now, changes);
    }
    let owner_lives = lane.as_ref().is_some_and(|view| view.lane.until > now);
    let alone = slice.mask.count() == 1 && slice.crashes > 0 && !owner_lives;
    let slice = Slice { crashes: slice.crashes + 1, alone: slice.alone + u32::from(alone), ..slice };
    if slice.alone >= CRASHES_ALONE {
        let error =
            format!("quarantined: {CRASHES_ALONE} workers ended while they ran nothing but this event");
        changes.failed(&slice, slice.mask, slice.attempts + 1, &error);
        return bury(Slice { error: Some(error), ..slice }, policy, now, lane, changes);
    }
    changes.wake = true;
    let suspect = Slice { state: State::Suspect, due_at: now, ..slice };
    let (lower, upper) = suspect.mask.split_lowest(suspect.mask.count().div_ceil(2));
    if !upper.is_empty() {
        changes.insert.push(suspect.part(upper));
    }
    changes.update.push(Slice { mask: lower, ..suspect });
}

/// Consumed events of a lane whose worker ended. They are judged one by one in their order: where a key is to be held, it is
/// the first of its events that holds it.
pub(super) fn interrupt(
    consumed: Vec<Slice>,
    policy: &Policy,
    now: Time,
    view: &mut LaneView,
    changes: &mut Changes,
) {
    let mut parts: Vec<(EventId, Slice)> = Vec::new();
    for slice in consumed {
        changes.delete.push((slice.chunk, slice.id));
        changes.failed(&slice, slice.mask, slice.attempts + 1, INTERRUPTED);
        let slice = Slice { error: Some(INTERRUPTED.into()), ..slice };
        parts.extend(slice.events().map(|event| (event, slice.part(Mask::of(event.index())))));
    }
    parts.sort_by_key(|(event, _)| *event);
    for (_, part) in parts {
        bury_part(part, policy, now, Some(view), changes);
    }
}

/// An existing slice will not be done: dead, held or dropped, as the policy says.
fn bury(slice: Slice, policy: &Policy, now: Time, lane: Option<&mut LaneView>, changes: &mut Changes) {
    changes.delete.push((slice.chunk, slice.id));
    bury_part(slice.part(slice.mask), policy, now, lane, changes);
}

/// Events will not be done: dead, held or dropped, as the policy says. `part` is a row to be.
pub(super) fn bury_part(
    part: Slice,
    policy: &Policy,
    now: Time,
    lane: Option<&mut LaneView>,
    changes: &mut Changes,
) {
    // Of what was interrupted it is known whose it was: only that worker may say that it never began.
    let owner = if part.is_interrupted() { part.owner } else { Default::default() };
    let dead = Slice { state: State::Dead, due_at: now, owner, ..part };
    let Some(view) = lane else {
        changes.end(&dead, dead.mask, Ending::Failed);
        match policy.on_exhausted {
            OnExhausted::Drop => changes.gone(&dead, dead.mask, Gone::Exhausted),
            OnExhausted::Dead | OnExhausted::Hold => super::join(&mut changes.insert, dead),
        }
        return;
    };
    for event in dead.events().collect::<Vec<_>>() {
        let one = dead.part(Mask::of(event.index()));
        let keyed = view.key(event).is_some() && !dead.replayed;
        match policy.on_exhausted {
            OnExhausted::Hold if keyed && !view.waits(event) => {
                view.park(event, now, changes);
                super::join(&mut changes.insert, Slice { state: State::Held, ..one });
                continue;
            }
            OnExhausted::Drop => changes.gone(&dead, one.mask, Gone::Exhausted),
            OnExhausted::Dead | OnExhausted::Hold => super::join(&mut changes.insert, one),
        }
        changes.end(&dead, Mask::of(event.index()), Ending::Failed);
        if keyed {
            view.gap(event, changes);
            view.unpark(event, changes);
        }
    }
}
