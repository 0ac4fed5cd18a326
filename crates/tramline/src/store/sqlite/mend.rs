//! Replay, drop, cancel, resend, release of parked keys, and adoption: changes that somebody asks for.

use super::order::{failed, load_keys, load_marks};
use super::rows::{apply, lanes, one_chunk, one_lane, one_meta, slices, slices_of_chunk, write_lane};
use super::session::Session;
use crate::error::Result;
use crate::model::chunk::ChunkRow;
use crate::model::failure::Gone;
use crate::model::id::{ChunkId, EventId, SubscriptionId, TopicId};
use crate::model::lane::{self, Lane};
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::subscription::Subscription;
use crate::plan::mend::{
    buried, by_chunk, find, finished, hasten, hasten_all, remove, replay, resend as plan_resend,
    revive as plan_revive,
};
use crate::plan::{Changes, LaneView};
use crate::store::claimed::RawClaim;
use crate::store::letters::{Chosen, whole_chunks};
use crate::store::verbs::{Adopt, Cancel, REVIVE_STEP, ReleaseParked, Resend, Revive, Revived, Which};
use rusqlite::{Connection, params};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) fn revive(session: &Session<'_>, revive: &Revive) -> Result<Revived> {
    session.catalog.require_subscription(revive.subscription)?;
    let (found, chosen, next) = chosen(session, revive)?;
    let mut revived = Revived { count: 0, next, now: session.now };
    let mut how = revive.how;
    for slice in found {
        let mask = chosen.of(&slice);
        if mask.is_empty() {
            continue;
        }
        revived.count += u64::from(mask.count());
        change(session, &slice, |view, changes| {
            plan_revive(&slice, mask, &mut how, session.now, view, changes);
        })?;
    }
    Ok(revived)
}

/// The dead and held slices of a step, what is meant of them, and where the next step goes on. By `tramline_slice_dead`.
fn chosen(session: &Session<'_>, revive: &Revive) -> Result<(Vec<Slice>, Chosen, Option<EventId>)> {
    let (id, conn) = (revive.subscription, session.conn);
    let (letters, (chunks, next)) = match (&revive.which, revive.which.letters()) {
        (_, Some(letters)) => {
            (Some(letters), whole_chunks(buried_chunks(conn, id, revive.after)?, REVIVE_STEP as usize))
        }
        (Which::Ids(ids), _) => (None, (by_chunk(ids).into_keys().map(|chunk| chunk.0).collect(), None)),
        _ => return Ok((Vec::new(), Chosen::by_number(BTreeMap::new()), None)),
    };
    let mut found = Vec::new();
    for chunk in &chunks {
        found.extend(slices_of_chunk(conn, id, ChunkId(*chunk))?);
    }
    found.retain(|slice| matches!(slice.state, State::Dead | State::Held));
    let chosen = match (letters, &revive.which) {
        (Some(letters), _) => {
            let ask = letters.asks_for_events();
            let rows = chunks.iter().filter(|_| ask).map(|chunk| one_meta(conn, ChunkId(*chunk)));
            let rows: Vec<ChunkRow> = rows.filter_map(Result::transpose).collect::<Result<_>>()?;
            Chosen::by_letters(letters, rows.iter(), &session.catalog)?
        }
        (None, Which::Ids(ids)) => Chosen::by_number(by_chunk(ids)),
        (None, _) => Chosen::by_number(BTreeMap::new()),
    };
    Ok((found, chosen, next))
}

fn buried_chunks(conn: &Connection, id: SubscriptionId, after: EventId) -> Result<Vec<i64>> {
    let sql = "SELECT chunk FROM tramline_slice INDEXED BY tramline_slice_dead \
               WHERE subscription = ? AND state IN (5, 6) AND chunk > ? ORDER BY chunk LIMIT ?";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([id.0, after.chunk().0, i64::from(REVIVE_STEP)], |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Dead events that the subscription has kept for long enough go, oldest first, `limit` rows at most. True if there may be more. By
/// `tramline_slice_died`.
pub(super) fn expire_dead(session: &Session<'_>, subscription: &Subscription, limit: u32) -> Result<bool> {
    let Some(kept) = subscription.policy.dead_retention else { return Ok(false) };
    let filter = "subscription = ? AND state = 6 AND due_at <= ? ORDER BY due_at LIMIT ?";
    let edge = session.now.before(kept).0;
    let old = slices(session.conn, filter, &[subscription.id.0, edge, i64::from(limit)])?;
    for slice in &old {
        change(session, slice, |view, changes| remove(slice, slice.mask, Gone::Expired, view, changes))?;
    }
    Ok(old.len() >= limit as usize)
}

/// Changes one slice, under the lock of its lane if it has one. True if something may be claimed now that could not before.
pub(super) fn change(
    session: &Session<'_>,
    slice: &Slice,
    decide: impl FnOnce(Option<&mut LaneView>, &mut Changes),
) -> Result<bool> {
    let mut changes = Changes::default();
    let lane =
        if slice.is_ordered() { one_lane(session.conn, slice.subscription, slice.lane)? } else { None };
    let Some(lane) = lane else {
        decide(None, &mut changes);
        apply(session, slice.subscription, &changes)?;
        return Ok(changes.wake);
    };
    let mut view = LaneView::new(lane);
    load_keys(session, &mut view, [slice.chunk].into_iter(), &mut RawClaim::default())?;
    load_marks(session.conn, &mut view, std::slice::from_ref(slice))?;
    decide(Some(&mut view), &mut changes);
    apply(session, slice.subscription, &changes)?;
    if view.is_eased(session.now) {
        let failed = failed(session, &view.lane)?;
        view.halt_for(failed.iter(), session.now);
    }
    write_lane(session.conn, &view.lane)?;
    Ok(changes.wake)
}

pub(super) fn cancel(session: &Session<'_>, cancel: &Cancel) -> Result<Vec<Arc<str>>> {
    let found = slices(session.conn, "chunk = ? ORDER BY subscription, id", &[cancel.id.chunk().0])?;
    let mask = Mask::of(cancel.id.index());
    let mut cancelled = Vec::new();
    for slice in found.iter().filter(|slice| slice.mask.covers(mask)) {
        if matches!(slice.state, State::Leased | State::Consumed | State::Dead) {
            continue;
        }
        // Of a subscription that was deleted there may still be rows.
        let Ok(subscription) = session.catalog.require_subscription(slice.subscription) else { continue };
        change(session, slice, |view, changes| remove(slice, mask, Gone::Cancelled, view, changes))?;
        cancelled.push(subscription.name.clone());
    }
    Ok(cancelled)
}

pub(super) fn resend(session: &Session<'_>, resend: &Resend) -> Result<u64> {
    let subscription = session.catalog.require_subscription(resend.subscription)?;
    let ordering = subscription.policy.ordering;
    let mut count = 0;
    for (chunk, wanted) in by_chunk(&resend.ids) {
        let Some(row) = one_chunk(session.conn, chunk)? else { continue };
        let Some(topic) = session.catalog.topic_by_id(row.topic) else { continue };
        if !subscription.topics.contains(&topic.name) {
            continue;
        }
        // What a back-fill has still to bring comes by itself.
        if is_to_be_filled(session.conn, resend.subscription, topic.id, chunk)? {
            continue;
        }
        let (own, keys) = (slices_of_chunk(session.conn, resend.subscription, chunk)?, row.keys()?);
        for (slice, mask) in buried(&own, wanted) {
            count += u64::from(mask.count());
            change(session, slice, |_, changes| replay(slice, mask, session.now, changes))?;
        }
        let lanes = keys.iter().map(|key| lane::within(ordering, topic, key.as_deref(), 0));
        for (lane, mask) in finished(&own, wanted, lanes) {
            count += u64::from(mask.count());
            let mut changes = Changes::default();
            plan_resend(resend.subscription, lane, &row, mask, session.now, &mut changes)?;
            apply(session, resend.subscription, &changes)?;
        }
    }
    Ok(count)
}

pub(super) fn release_parked(session: &Session<'_>, release: &ReleaseParked) -> Result<u64> {
    session.catalog.require_subscription(release.subscription)?;
    let mut halted = lanes(session.conn, release.subscription)?;
    halted.retain(|lane| release.keys.is_empty() && lane.halted_until > session.now);
    let mut count = 0;
    for event in blockers(session, release)? {
        let slices = slices_of_chunk(session.conn, release.subscription, event.chunk())?;
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
    for lane in halted {
        count += let_go(session, lane)?;
    }
    Ok(count)
}

/// Lets a lane that stands still go on, also where no key is parked.
fn let_go(session: &Session<'_>, lane: Lane) -> Result<u64> {
    let (id, failed) = (lane.subscription, failed(session, &lane)?);
    let (mut view, mut changes) = (LaneView::new(lane), Changes::default());
    let count = hasten_all(&mut view, &failed, session.now, &mut changes);
    apply(session, id, &changes)?;
    write_lane(session.conn, &view.lane)?;
    Ok(count)
}

/// The events that the keys in question wait for.
fn blockers(session: &Session<'_>, release: &ReleaseParked) -> Result<Vec<EventId>> {
    let id = release.subscription.0;
    if release.keys.is_empty() {
        let mut statement =
            session.conn.prepare_cached("SELECT blocked_by FROM tramline_parked WHERE subscription = ?")?;
        let rows = statement.query_map([id], |row| row.get(0).map(EventId))?;
        return Ok(rows.collect::<rusqlite::Result<_>>()?);
    }
    let sql = "SELECT blocked_by FROM tramline_parked WHERE subscription = ? AND lane = ? AND key = ?";
    let mut statement = session.conn.prepare_cached(sql)?;
    let mut found = Vec::new();
    for (topic, key) in &release.keys {
        let topic = session.catalog.require_topic(topic)?;
        let lane = lane::of(topic.id, topic.lanes, key);
        let rows = statement.query_map(params![id, lane.0, key], |row| row.get(0).map(EventId))?;
        found.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    Ok(found)
}

pub(super) fn adopt(session: &Session<'_>, adopt: &Adopt) -> Result<Vec<EventId>> {
    session.catalog.require_subscription(adopt.subscription)?;
    let mut adopted = Vec::new();
    for (lease, events) in &adopt.consumed {
        for event in events {
            let slices = slices_of_chunk(session.conn, adopt.subscription, event.chunk())?;
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
fn is_to_be_filled(conn: &Connection, id: SubscriptionId, topic: TopicId, chunk: ChunkId) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM tramline_subscription_topic WHERE subscription = ? AND topic = ? \
               AND ? BETWEEN backfill_next AND backfill_until)";
    Ok(conn.prepare_cached(sql)?.query_row([id.0, topic.0, chunk.0], |row| row.get(0))?)
}
