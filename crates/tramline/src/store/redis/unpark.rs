//! Keys that go on: what waited behind them is ready again. There may be any number of keys and slices, and while a script moves them
//! everybody else waits; so a step moves some, and notes where there are more. Claims move the rest, and leave such a lane alone until
//! then: what was emitted later must not come first.
//!
//! What a step asks must not depend on what it has moved so far: run again with a little more of what it needs, it would ask something
//! else each time, and have all of that checked.

use super::rows::{entries, load, remove_parked, write_slice};
use super::session::Session;
use super::tuple::{Columns, Tuple};
use crate::error::Result;
use crate::model::id::{LaneId, SubscriptionId};
use crate::model::lane::hash;
use crate::model::slice::{Slice, State};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How many slices one step moves, and how many keys it looks at: behind most there is nothing.
pub(super) const MOST: usize = 200;
const KEYS: usize = 500;

/// The keys whose slices are on their way, as lane and hash.
pub(super) fn table(session: &Session<'_>, id: SubscriptionId) -> Vec<u8> {
    session.key(&format!("unparking:{id}"))
}

/// Keys wait no longer. Others of the same hash come along; the next claim sets them aside again.
pub(super) fn unpark(session: &Session<'_>, id: SubscriptionId, keys: &[(LaneId, Arc<str>)]) -> Result<()> {
    let each = share(keys.len());
    session.for_each(keys, |(lane, key)| {
        let is_for_later = session.keys_moved.replace(session.keys_moved.get() + 1) >= KEYS;
        remove_parked(session, id, *lane, key)?;
        let place = [lane.0, i64::from(hash(key))];
        if is_for_later || move_some(session, id, place, each)? {
            session.put(table(session, id), Tuple::new().with(&place).bytes(), Vec::new());
        }
        Ok(())
    })
}

/// How many slices of each of so many keys are looked at.
fn share(keys: usize) -> usize {
    (MOST / keys.clamp(1, KEYS)).max(1)
}

/// Goes on with keys whose slices are on their way. Gives the lanes that nobody may take from in this step.
pub(super) fn go_on(session: &Session<'_>, id: SubscriptionId) -> Result<BTreeSet<LaneId>> {
    let mut lanes = BTreeSet::new();
    let fields = session.all(&table(session, id))?;
    let each = share(fields.len());
    session.for_each(fields.into_keys().enumerate(), |(at, field)| {
        let mut columns = Columns(&field);
        let place = [columns.number(), columns.number()];
        lanes.insert(LaneId(place[0]));
        if at < KEYS && !move_some(session, id, place, each)? {
            session.remove(table(session, id), field);
        }
        Ok(())
    })?;
    Ok(lanes)
}

/// True if slices of a lane are on their way: those that are ready may be later ones.
pub(super) fn is_under_way(session: &Session<'_>, id: SubscriptionId, lane: LaneId) -> Result<bool> {
    let fields = session.all(&table(session, id))?;
    Ok(fields.into_keys().any(|field| Columns(&field).number() == lane.0))
}

/// Moves up to `most` slices, or as many as the step has room for, the first ones first. They become ready, or suspect if they had crashes.
/// True if there are more.
fn move_some(session: &Session<'_>, id: SubscriptionId, [lane, hash]: [i64; 2], most: usize) -> Result<bool> {
    let range = Tuple::new().with(&[State::Parked as i64, lane, hash]).all();
    let found = entries(session, id, range, most + 1)?;
    let some = &found[..found.len().min(most).min(session.room.get())];
    for slice in load(session, some)? {
        let state = if slice.crashes > 0 { State::Suspect } else { State::Ready };
        write_slice(session, &Slice { state, rank: 0, ..slice })?;
    }
    session.takes_room(some.len());
    Ok(found.len() > some.len())
}
