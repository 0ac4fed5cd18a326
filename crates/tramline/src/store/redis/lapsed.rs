//! Lanes whose lease has ended: what was taken under it becomes suspect, or interrupted.
//!
//! That is a step of its own, before anything is taken: a lane may hold much, and a step that reads much is overtaken often.

use super::order::{leased, load_keys, load_marks};
use super::rows::{apply, lanes, one_lane, write_lane};
use super::session::Session;
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::model::lane::Lane;
use crate::model::subscription::Policy;
use crate::plan::lane::take_over;
use crate::plan::{Changes, LaneView};
use crate::store::claimed::RawClaim;

/// How many lanes one step looks after: each may hold many slices.
pub(super) const ENDED: usize = 4;

/// Lanes whose lease has ended, some of them, also where nobody claims any more. Gives how many.
pub(super) fn interrupt(session: &Session<'_>, id: SubscriptionId, policy: &Policy) -> Result<usize> {
    let ended = |lane: &Lane| lane.owner.is_some() && lane.until <= session.now;
    let lanes = session.loosely(|| lanes(session, id))?;
    take_over_some(session, policy, lanes.iter().filter(|lane| ended(lane)), ended)
}

/// Takes over the first of some lanes, if that is still right. Gives how many.
pub(super) fn take_over_some<'l>(
    session: &Session<'_>,
    policy: &Policy,
    seen: impl Iterator<Item = &'l Lane>,
    has_ended: impl Fn(&Lane) -> bool,
) -> Result<usize> {
    let mut count = 0;
    session.for_each(seen.take(ENDED), |lane| {
        if let Some(lane) = one_lane(session, lane.subscription, lane.lane)?.filter(&has_ended) {
            take_over_one(session, policy, lane)?;
            count += 1;
        }
        Ok(())
    })?;
    Ok(count)
}

fn take_over_one(session: &Session<'_>, policy: &Policy, lane: Lane) -> Result<()> {
    let id = lane.subscription;
    let mut view = LaneView::new(lane);
    let leased = leased(session, id, view.lane.lane)?;
    load_keys(session, &mut view, leased.iter().map(|slice| slice.chunk), &mut RawClaim::default())?;
    load_marks(session, &mut view, &leased)?;
    let mut changes = Changes::default();
    take_over(&mut view, leased, policy, session.now, &mut changes);
    apply(session, id, &changes)?;
    write_lane(session, &view.lane);
    Ok(())
}
