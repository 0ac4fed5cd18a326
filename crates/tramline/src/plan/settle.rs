//! What outcomes make of slices.

use crate::error::{Error, Result};
use crate::model::id::{ChunkId, EventId, LaneId, SliceId};
use crate::model::mask::Mask;
use crate::model::outcome::{Outcome, bounded};
use crate::model::slice::{Slice, State};
use crate::model::subscription::{OnExhausted, Policy};
use crate::model::tally::Ending;
use crate::model::time::Time;
use crate::plan::expire::bury_part;
use crate::plan::{Changes, LaneView, join, parked_part};
use crate::store::verbs::SettleSlice;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What a failed event does next.
enum Next {
    /// Runs again.
    Again { due_at: Time, attempts: u32, error: Option<String> },
    /// Will not be done.
    Buried { attempts: u32, error: String },
}

/// Settles one slice of a subscription without order. `slice` is the locked row, already known to be under the lease.
/// Gives, for every outcome, whether it was taken.
pub fn settle(
    slice: Slice,
    outcomes: &[(u32, Outcome)],
    policy: &Policy,
    now: Time,
    changes: &mut Changes,
) -> Vec<bool> {
    let mut rest = slice.mask;
    let mut done = Mask::EMPTY;
    let mut accepted = Vec::with_capacity(outcomes.len());
    for (index, outcome) in outcomes {
        let known = rest.contains(*index);
        accepted.push(known);
        if !known {
            continue;
        }
        rest = rest.minus(Mask::of(*index));
        let event = EventId::at(slice.chunk, *index);
        let next = next(&slice, event, outcome, policy, now);
        note(&slice, event, &next, changes);
        match next {
            None => done = done.plus(Mask::of(*index)),
            Some(Next::Again { due_at, attempts, error }) => {
                changes.wake |= due_at <= now;
                join(&mut changes.insert, again(&slice, event, due_at, attempts, error));
            }
            Some(Next::Buried { attempts, error }) => {
                let part = slice.part(Mask::of(*index));
                bury_part(Slice { attempts, error: Some(error), ..part }, policy, now, None, changes);
            }
        }
    }
    changes.end(&slice, done, Ending::Done);
    keep_rest(slice, rest, changes);
    accepted
}

/// The leased slices of a lane: all that a failure in it may touch.
pub type Leased = BTreeMap<(ChunkId, SliceId), Slice>;

/// Leased slices by their lanes.
pub(crate) fn by_lane_of(slices: Vec<Slice>) -> BTreeMap<LaneId, Leased> {
    let mut lanes: BTreeMap<LaneId, Leased> = BTreeMap::new();
    for slice in slices {
        lanes.entry(slice.lane).or_default().insert((slice.chunk, slice.id), slice);
    }
    lanes
}

/// What a settlement in a lane came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// For every outcome whether it was taken.
    pub accepted: Vec<Vec<bool>>,
    /// The failed events for which their keys wait now.
    pub waiting: Vec<EventId>,
}

/// Settles slices of one lane. `leased` holds every slice that is taken under the lane's epoch if a failure is among the
/// outcomes, else at least those that are settled. The view knows the keys, and the parked keys and gaps, of all of them.
///
/// # Errors
/// `Invalid` when an event is settled together with an earlier one of its key that must run first.
pub fn settle_lane(
    view: &mut LaneView,
    mut leased: Leased,
    results: &[&SettleSlice],
    policy: &Policy,
    now: Time,
    changes: &mut Changes,
) -> Result<Answer> {
    check_order(view, &leased, results, policy, now)?;
    let before = leased.clone();
    let mut accepted: Vec<Vec<bool>> =
        results.iter().map(|result| vec![false; result.outcomes.len()]).collect();
    let mut waiting = Vec::new();
    for (result, place) in in_order(results) {
        let at = (results[result].lease.chunk, results[result].lease.slice);
        let (index, outcome) = &results[result].outcomes[place];
        let Some(slice) = leased.get_mut(&at).filter(|slice| slice.mask.contains(*index)) else { continue };
        accepted[result][place] = true;
        slice.mask = slice.mask.minus(Mask::of(*index));
        let part = slice.part(Mask::of(*index));
        let (event, replayed) = (EventId::at(part.chunk, *index), part.replayed);
        settle_one(view, &mut leased, part, outcome, policy, now, changes);
        if !replayed && view.is_parked_behind(event) {
            waiting.push(event);
        }
    }
    for (at, slice) in leased {
        if slice.mask.is_empty() {
            view.lane.leased -= 1;
        }
        if before.get(&at).is_some_and(|old| old.mask != slice.mask) {
            let rest = slice.mask;
            keep_rest(slice, rest, changes);
        }
    }
    view.let_go();
    Ok(Answer { accepted, waiting })
}

/// The outcomes in the order of their events, whatever order they come in: a gap before a done event is told with it. Where
/// nothing failed there is no new gap, and the order does not matter.
fn in_order(results: &[&SettleSlice]) -> Vec<(usize, usize)> {
    let places =
        |(at, result): (usize, &&SettleSlice)| (0..result.outcomes.len()).map(move |place| (at, place));
    let mut order: Vec<(usize, usize)> = results.iter().enumerate().flat_map(places).collect();
    if !results.iter().all(|result| result.is_all_done()) {
        order.sort_by_key(|(at, place)| (results[*at].lease.chunk, results[*at].outcomes[*place].0));
    }
    order
}

fn settle_one(
    view: &mut LaneView,
    leased: &mut Leased,
    part: Slice,
    outcome: &Outcome,
    policy: &Policy,
    now: Time,
    changes: &mut Changes,
) {
    let Some(event) = part.events().next() else { return };
    let next = next(&part, event, outcome, policy, now);
    note(&part, event, &next, changes);
    match next {
        None => {
            changes.end(&part, part.mask, Ending::Done);
            if !part.replayed {
                view.tell(event, changes);
                view.unpark(event, changes);
            }
        }
        Some(Next::Again { due_at, attempts, error }) => {
            // A line of all events stands still until the last failure is due. Then all that failed comes again where it was in
            // the line: one that waits is found by its time, and would come after others that failed later.
            let is_line = view.lane.lane == LaneId::WHOLE;
            let state = if is_line { State::Ready } else { State::Waiting };
            join(&mut changes.insert, Slice { state, ..again(&part, event, due_at, attempts, error) });
            changes.wake |= due_at <= now;
            if policy.halts() {
                view.lane.halted_until = view.lane.halted_until.max(due_at);
            }
            if !part.replayed {
                view.park(event, now, changes);
                set_aside(view, leased, event, changes);
            }
        }
        Some(Next::Buried { attempts, error }) => {
            let held = policy.on_exhausted == OnExhausted::Hold && !part.replayed;
            bury_part(Slice { attempts, error: Some(error), ..part }, policy, now, Some(view), changes);
            if held {
                set_aside(view, leased, event, changes);
            }
        }
    }
}

/// Takes the later events of the key of `event` out of the leased slices: they may not run now.
fn set_aside(view: &LaneView, leased: &mut Leased, event: EventId, changes: &mut Changes) {
    let Some(key) = view.key(event).cloned() else { return };
    for slice in leased.values_mut().filter(|slice| !slice.replayed) {
        let later: Vec<EventId> =
            slice.events().filter(|other| *other > event && view.key(*other) == Some(&key)).collect();
        for other in later {
            slice.mask = slice.mask.minus(Mask::of(other.index()));
            join(&mut changes.insert, parked_part(slice, &key, other));
        }
    }
}

/// Refuses outcomes that cannot all be true: an event of a key was run although an earlier one has to run again.
fn check_order(
    view: &LaneView,
    leased: &Leased,
    results: &[&SettleSlice],
    policy: &Policy,
    now: Time,
) -> Result<()> {
    let mut first_blocked: HashMap<Arc<str>, EventId> = HashMap::new();
    let mut settled: Vec<EventId> = Vec::new();
    for result in results {
        let slice = leased.get(&(result.lease.chunk, result.lease.slice));
        // What was replayed is outside the order.
        let Some(slice) = slice.filter(|slice| !slice.replayed) else { continue };
        for (index, outcome) in result.outcomes.iter().filter(|(index, _)| slice.mask.contains(*index)) {
            let event = EventId::at(slice.chunk, *index);
            settled.push(event);
            let blocks = match next(slice, event, outcome, policy, now) {
                Some(Next::Again { .. }) => true,
                Some(Next::Buried { .. }) => policy.on_exhausted == OnExhausted::Hold,
                None => false,
            };
            if let (true, Some(key)) = (blocks, view.key(event)) {
                let first = first_blocked.entry(key.clone()).or_insert(event);
                *first = event.min(*first);
            }
        }
    }
    for event in settled {
        let blocked_by =
            view.key(event).and_then(|key| first_blocked.get(key)).filter(|first| **first < event);
        if let Some(first) = blocked_by {
            return Err(Error::invalid(
                format!(
                    "event {event} was settled together with {first} of the same key, which has to run again first"
                ),
                "settle the events of a key up to the first one that failed, and nothing after it",
            ));
        }
    }
    Ok(())
}

/// What follows for one event: `None` when it is done.
fn next(slice: &Slice, event: EventId, outcome: &Outcome, policy: &Policy, now: Time) -> Option<Next> {
    let due_at = policy.wait_after(outcome, slice.attempts + 1, event).map(|wait| now.after(wait));
    let (attempts, error) = match outcome {
        Outcome::Done => return None,
        Outcome::Snooze { .. } => (slice.attempts, slice.error.clone()),
        Outcome::Retry { error, .. } | Outcome::Dead { error } => (slice.attempts + 1, Some(bounded(error))),
    };
    Some(match due_at {
        Some(due_at) => Next::Again { due_at, attempts, error },
        None => Next::Buried { attempts, error: error.unwrap_or_default() },
    })
}

/// Keeps why an attempt failed. What was put off did not.
fn note(slice: &Slice, event: EventId, next: &Option<Next>, changes: &mut Changes) {
    let (attempts, error) = match next {
        Some(Next::Again { attempts, error: Some(error), .. }) if *attempts > slice.attempts => {
            (*attempts, error)
        }
        Some(Next::Buried { attempts, error }) => (*attempts, error),
        _ => return,
    };
    changes.failed(slice, Mask::of(event.index()), attempts, error);
}

/// The event alone, to run again. That it could be settled shows that it does not end its worker.
fn again(slice: &Slice, event: EventId, due_at: Time, attempts: u32, error: Option<String>) -> Slice {
    let part = slice.part(Mask::of(event.index()));
    Slice {
        state: State::Ready,
        due_at,
        attempts,
        crashes: 0,
        alone: 0,
        error,
        owner: Default::default(),
        ..part
    }
}

fn keep_rest(slice: Slice, rest: Mask, changes: &mut Changes) {
    if rest.is_empty() {
        changes.delete.push((slice.chunk, slice.id));
    } else {
        changes.update.push(Slice { mask: rest, ..slice });
    }
}
