//! Replay, drop, cancel, resend, release of parked keys, and adoption: changes that somebody asks for.

use super::catalog::fillings;
use super::order::{load_keys, load_marks};
use super::rows::{
    apply, is_logged, one_chunk, one_lane, parked, parked_index, slices_at, slices_of_chunk, slices_with,
    write_lane,
};
use super::session::Session;
use super::tuple::{Columns, Tuple};
use crate::error::Result;
use crate::model::id::{ChunkId, EventId, SubscriptionId, TopicId};
use crate::model::lane;
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::plan::mend::{by_chunk, find, hasten, remove, replay, resend as plan_resend};
use crate::plan::{Changes, LaneView};
use crate::store::claimed::RawClaim;
use crate::store::verbs::{Adopt, Cancel, ReleaseParked, Resend, Revival, Revive, Which};
use std::sync::Arc;

pub(super) fn revive(session: &Session<'_>, revive: &Revive) -> Result<u64> {
    session.catalog().require_subscription(revive.subscription)?;
    let mut count = 0;
    for (slice, mask) in chosen(session, revive)? {
        count += u64::from(mask.count());
        change(session, &slice, |view, changes| match revive.how {
            Revival::Replay => replay(&slice, mask, session.now, changes),
            Revival::Drop => remove(&slice, mask, view, changes),
        })?;
    }
    Ok(count)
}

/// The dead and held slices that are meant, and which of their events.
fn chosen(session: &Session<'_>, revive: &Revive) -> Result<Vec<(Slice, Mask)>> {
    let since = match &revive.which {
        Which::Ids(ids) => return chosen_by_id(session, revive.subscription, ids),
        Which::All => i64::MIN,
        Which::Since(time) => time.0,
    };
    let mut found = Vec::new();
    for state in [State::Held, State::Dead] {
        found.extend(slices_with(session, revive.subscription, &[state as i64], usize::MAX)?);
    }
    found.retain(|slice| slice.due_at.0 >= since);
    Ok(found.into_iter().map(|slice| (slice.mask, slice)).map(|(mask, slice)| (slice, mask)).collect())
}

fn chosen_by_id(session: &Session<'_>, id: SubscriptionId, ids: &[EventId]) -> Result<Vec<(Slice, Mask)>> {
    let mut chosen = Vec::new();
    for (chunk, wanted) in by_chunk(ids) {
        for slice in slices_of_chunk(session, id, chunk)? {
            let mask = slice.mask.and(wanted);
            if matches!(slice.state, State::Dead | State::Held) && !mask.is_empty() {
                chosen.push((slice, mask));
            }
        }
    }
    Ok(chosen)
}

/// Changes one slice, under the lock of its lane if it has one. True if something may be claimed now that could not before.
pub(super) fn change(
    session: &Session<'_>,
    slice: &Slice,
    decide: impl FnOnce(Option<&mut LaneView>, &mut Changes),
) -> Result<bool> {
    let mut changes = Changes::default();
    let lane = if slice.is_ordered() { one_lane(session, slice.subscription, slice.lane)? } else { None };
    let Some(lane) = lane else {
        decide(None, &mut changes);
        apply(session, slice.subscription, &changes)?;
        return Ok(changes.wake);
    };
    let mut view = LaneView::new(lane);
    load_keys(session, &mut view, [slice.chunk].into_iter(), &mut RawClaim::default())?;
    load_marks(session, &mut view, std::slice::from_ref(slice))?;
    decide(Some(&mut view), &mut changes);
    apply(session, slice.subscription, &changes)?;
    write_lane(session, &view.lane);
    Ok(changes.wake)
}

pub(super) fn cancel(session: &Session<'_>, cancel: &Cancel) -> Result<Vec<Arc<str>>> {
    let found = slices_at(session, cancel.id.chunk())?;
    let mask = Mask::of(cancel.id.index());
    let mut cancelled = Vec::new();
    for slice in found.iter().filter(|slice| slice.mask.covers(mask)) {
        if matches!(slice.state, State::Leased | State::Consumed | State::Dead) {
            continue;
        }
        // Of a subscription that was deleted there may still be rows.
        let catalog = session.catalog();
        let Ok(subscription) = catalog.require_subscription(slice.subscription) else { continue };
        change(session, slice, |view, changes| remove(slice, mask, view, changes))?;
        cancelled.push(subscription.name.clone());
    }
    Ok(cancelled)
}

pub(super) fn resend(session: &Session<'_>, resend: &Resend) -> Result<u64> {
    let catalog = session.catalog();
    let subscription = catalog.require_subscription(resend.subscription)?;
    let ordering = subscription.policy.ordering;
    let mut count = 0;
    for (chunk, wanted) in by_chunk(&resend.ids) {
        let Some(row) = one_chunk(session, chunk)? else { continue };
        let Some(topic) = catalog.topic_by_id(row.topic) else { continue };
        // It must not go while this step brings it back.
        if !is_logged(session, topic.id, chunk)? || !subscription.topics.contains(&topic.name) {
            continue;
        }
        // What a back-fill has still to bring comes by itself.
        if is_to_be_filled(session, resend.subscription, topic.id, chunk)? {
            continue;
        }
        let known = slices_of_chunk(session, resend.subscription, chunk)?;
        let keys = row.keys()?;
        for index in wanted.iter().filter(|index| (*index as usize) < keys.len()) {
            let (event, mask) = (EventId::at(chunk, index), Mask::of(index));
            match find(&known, event) {
                Some(slice) if matches!(slice.state, State::Dead | State::Held) => {
                    // Earlier events of this chunk may have changed the row: look again.
                    let fresh = slices_of_chunk(session, resend.subscription, chunk)?;
                    let Some(slice) = find(&fresh, event) else { continue };
                    change(session, slice, |_, changes| replay(slice, mask, session.now, changes))?;
                }
                Some(_) => continue,
                None => {
                    let lane = lane::within(ordering, topic, keys[index as usize].as_deref(), 0);
                    let mut changes = Changes::default();
                    plan_resend(resend.subscription, lane, &row, mask, session.now, &mut changes)?;
                    apply(session, resend.subscription, &changes)?;
                }
            }
            count += 1;
        }
    }
    Ok(count)
}

pub(super) fn release_parked(session: &Session<'_>, release: &ReleaseParked) -> Result<u64> {
    session.catalog().require_subscription(release.subscription)?;
    let mut count = 0;
    for event in blockers(session, release)? {
        let slices = slices_of_chunk(session, release.subscription, event.chunk())?;
        let Some(slice) = find(&slices, event).filter(|s| matches!(s.state, State::Waiting | State::Held))
        else {
            continue;
        };
        change(session, slice, |view, changes| {
            hasten(slice, Mask::of(event.index()), session.now, changes);
            if let Some(view) = view {
                view.lane.halted_until = view.lane.halted_until.min(session.now);
            }
        })?;
        count += 1;
    }
    Ok(count)
}

/// The events that the keys in question wait for.
fn blockers(session: &Session<'_>, release: &ReleaseParked) -> Result<Vec<EventId>> {
    let id = release.subscription;
    if release.keys.is_empty() {
        let all = session.range(&parked_index(session, id), Tuple::new().all(), usize::MAX)?;
        return Ok(all.iter().map(|member| EventId(Columns(member).number())).collect());
    }
    let mut found = Vec::new();
    for (topic, key) in &release.keys {
        let catalog = session.catalog();
        let topic = catalog.require_topic(topic)?;
        let lane = lane::of(topic.id, topic.lanes, key);
        found.extend(parked(session, id, lane, key)?.map(|(event, _)| event));
    }
    Ok(found)
}

pub(super) fn adopt(session: &Session<'_>, adopt: &Adopt) -> Result<Vec<EventId>> {
    session.catalog().require_subscription(adopt.subscription)?;
    let mut adopted = Vec::new();
    for (lease, events) in &adopt.consumed {
        for event in events {
            let slices = slices_of_chunk(session, adopt.subscription, event.chunk())?;
            let Some(slice) = find(&slices, *event) else { continue };
            let mine = slice.state == State::Consumed && slice.lease() == *lease;
            // A sweep may have been faster and called it interrupted; the journal knows that it never started.
            let interrupted = slice.was_interrupted_under(lease);
            if !mine && !interrupted {
                continue;
            }
            change(session, slice, |view, changes| {
                if let (true, Some(view)) = (mine && slice.mask.count() == 1, view) {
                    view.lane.leased -= 1;
                    view.let_go();
                }
                crate::plan::mend::adopt(slice, Mask::of(event.index()), session.now, changes);
            })?;
            adopted.push(*event);
        }
    }
    Ok(adopted)
}

/// True if a back-fill has still to bring a chunk into a subscription.
fn is_to_be_filled(
    session: &Session<'_>,
    id: SubscriptionId,
    topic: TopicId,
    chunk: ChunkId,
) -> Result<bool> {
    let filling = fillings(session)?.into_iter().find(|one| (one.subscription, one.topic) == (id, topic));
    Ok(filling.is_some_and(|one| (one.next..=one.until).contains(&chunk.0)))
}
