//! Replay, drop, cancel, resend, release of parked keys, and adoption: changes that somebody asks for.

use super::lanes::{load_keys, load_marks, lock};
use super::look::slices_of;
use super::rows::{apply, chunks, lock_chunks_sql, slices, slices_sql, write_lanes};
use super::session::Session;
use super::sql::{Columns, list, text};
use crate::error::Result;
use crate::model::id::{EventId, LaneId, SubscriptionId};
use crate::model::lane::{self, Lane};
use crate::model::lease::Lease;
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::plan::mend::{adopt as plan_adopt, by_chunk, find, hasten, remove, replay, resend as plan_resend};
use crate::plan::{Changes, LaneView};
use crate::store::verbs::{Adopt, Cancel, ReleaseParked, Resend, Revival, Revive, Which};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

const BURIED: [State; 2] = [State::Held, State::Dead];

/// Slices that are about to change, under the locks of their lanes, and what changes.
pub(super) struct Bench {
    id: SubscriptionId,
    pub(super) views: BTreeMap<LaneId, LaneView>,
    pub(super) slices: Vec<Slice>,
    pub(super) changes: Changes,
}

impl Bench {
    /// Locks the lanes of what is there, then the slices of chunks that are in certain states. What was seen before a
    /// lane was locked may have moved: only what is read after counts.
    pub(super) async fn lay(
        session: &mut Session<'_>,
        id: SubscriptionId,
        chunks: &[i64],
        states: &[State],
    ) -> Result<Bench> {
        let seen = slices_of(session, chunks).await?;
        let lanes: BTreeSet<LaneId> =
            seen.iter().filter(|s| s.subscription == id && s.is_ordered()).map(|slice| slice.lane).collect();
        let mut views = if lanes.is_empty() { BTreeMap::new() } else { lock(session, id, &lanes).await? };
        let states = list(states.iter().map(|state| *state as i64));
        let which = format!("s.subscription = {} AND s.state IN ({states})", id.0);
        let slices = slices(&session.rows(slices_sql(&which, chunks.iter().copied(), "FOR UPDATE")).await?)?;
        load_keys(session, &mut views, &slices).await?;
        load_marks(session, &mut views, &slices).await?;
        Ok(Bench { id, views, slices, changes: Changes::default() })
    }

    pub(super) fn done(self, session: &mut Session<'_>) {
        apply(session, self.id, &self.changes);
        let lanes: Vec<&Lane> = self.views.values().map(|view| &view.lane).collect();
        write_lanes(session, &lanes);
    }
}

pub(super) async fn revive(session: &mut Session<'_>, revive: &Revive) -> Result<u64> {
    session.catalog.require_subscription(revive.subscription)?;
    let (wanted, since) = match &revive.which {
        Which::Ids(ids) => (Some(by_chunk(ids)), i64::MIN),
        Which::All => (None, i64::MIN),
        Which::Since(time) => (None, time.0),
    };
    let chunks: Vec<i64> = match &wanted {
        Some(wanted) => wanted.keys().map(|chunk| chunk.0).collect(),
        None => buried_chunks(session, revive.subscription, since).await?,
    };
    let mut bench = Bench::lay(session, revive.subscription, &chunks, &BURIED).await?;
    let mut count = 0;
    for slice in bench.slices.iter().filter(|slice| slice.due_at.0 >= since) {
        let mask = match &wanted {
            Some(wanted) => wanted.get(&slice.chunk).map_or(Mask::EMPTY, |wanted| slice.mask.and(*wanted)),
            None => slice.mask,
        };
        if mask.is_empty() {
            continue;
        }
        count += u64::from(mask.count());
        match revive.how {
            Revival::Replay => replay(slice, mask, session.now, &mut bench.changes),
            Revival::Drop => remove(slice, mask, bench.views.get_mut(&slice.lane), &mut bench.changes),
        }
    }
    bench.done(session);
    Ok(count)
}

async fn buried_chunks(session: &mut Session<'_>, id: SubscriptionId, since: i64) -> Result<Vec<i64>> {
    let sql = format!(
        "SELECT DISTINCT s.chunk FROM tramline_slice s FORCE INDEX (tramline_slice_claim) \
         WHERE s.subscription = {} AND s.state IN (5, 6) AND s.due_at >= {since}",
        id.0
    );
    session.rows(sql).await?.iter().map(|row| row.int(0)).collect()
}

pub(super) async fn cancel(session: &mut Session<'_>, cancel: &Cancel) -> Result<Vec<Arc<str>>> {
    let chunk = cancel.id.chunk().0;
    let seen = slices_of(session, &[chunk]).await?;
    let catalog = session.catalog.clone();
    let mask = Mask::of(cancel.id.index());
    let free = [State::Ready, State::Suspect, State::Waiting, State::Parked, State::Held];
    let mut cancelled = Vec::new();
    for id in seen
        .iter()
        .filter(|slice| slice.mask.covers(mask))
        .map(|slice| slice.subscription)
        .collect::<BTreeSet<_>>()
    {
        // Of a subscription that was deleted there may still be rows.
        let Ok(subscription) = catalog.require_subscription(id) else { continue };
        let mut bench = Bench::lay(session, id, &[chunk], &free).await?;
        let Some(slice) = find(&bench.slices, cancel.id).cloned() else { continue };
        remove(&slice, mask, bench.views.get_mut(&slice.lane), &mut bench.changes);
        bench.done(session);
        cancelled.push(subscription.name.clone());
    }
    Ok(cancelled)
}

/// The chunks are locked: two resends of one event, or a resend and the end of its retention, come one after the other.
pub(super) async fn resend(session: &mut Session<'_>, resend: &Resend) -> Result<u64> {
    let catalog = session.catalog.clone();
    let subscription = catalog.require_subscription(resend.subscription)?;
    let ordering = subscription.policy.ordering;
    let wanted = by_chunk(&resend.ids);
    let numbers: Vec<i64> = wanted.keys().map(|chunk| chunk.0).collect();
    session.rows(lock_chunks_sql(numbers.iter().copied(), "FOR UPDATE")).await?;
    let rows = chunks(session, wanted.keys().copied()).await?;
    let mut bench = Bench::lay(session, resend.subscription, &numbers, &BURIED).await?;
    let known = slices_of(session, &numbers).await?;
    let to_be_filled = backfills(session, resend.subscription).await?;
    let mut count = 0;
    for (chunk, wanted) in wanted {
        let Some(row) = rows.get(&chunk) else { continue };
        // What a back-fill has still to bring comes by itself.
        if to_be_filled.get(&row.topic.0).is_some_and(|range| range.contains(&chunk.0)) {
            continue;
        }
        let Some(topic) = catalog.topic_by_id(row.topic).filter(|t| subscription.topics.contains(&t.name))
        else {
            continue;
        };
        let own =
            known.iter().filter(|slice| slice.subscription == resend.subscription && slice.chunk == chunk);
        let open = own.fold(Mask::EMPTY, |mask, slice| mask.plus(slice.mask));
        for slice in bench.slices.iter().filter(|slice| slice.chunk == chunk) {
            let mask = slice.mask.and(wanted);
            if !mask.is_empty() {
                count += u64::from(mask.count());
                replay(slice, mask, session.now, &mut bench.changes);
            }
        }
        let keys = row.keys()?;
        let mut lanes: BTreeMap<LaneId, Mask> = BTreeMap::new();
        for index in wanted.minus(open).iter().filter(|index| (*index as usize) < keys.len()) {
            let lane = lane::within(ordering, topic, keys[index as usize].as_deref(), 0);
            let mask = lanes.entry(lane).or_default();
            *mask = mask.plus(Mask::of(index));
        }
        for (lane, mask) in lanes {
            count += u64::from(mask.count());
            plan_resend(resend.subscription, lane, row, mask, session.now, &mut bench.changes)?;
        }
    }
    bench.done(session);
    Ok(count)
}

pub(super) async fn release_parked(session: &mut Session<'_>, release: &ReleaseParked) -> Result<u64> {
    session.catalog.require_subscription(release.subscription)?;
    let events = blockers(session, release).await?;
    let chunks: Vec<i64> = events.iter().map(|event| event.chunk().0).collect();
    let mut bench =
        Bench::lay(session, release.subscription, &chunks, &[State::Waiting, State::Held]).await?;
    let mut count = 0;
    // Several keys may wait for events of one slice: they change together, because each changes the row.
    for slice in &bench.slices {
        let mask: Mask = slice.events().filter(|event| events.contains(event)).map(EventId::index).collect();
        if mask.is_empty() {
            continue;
        }
        hasten(slice, mask, session.now, &mut bench.changes);
        if let Some(view) = bench.views.get_mut(&slice.lane) {
            view.lane.halted_until = view.lane.halted_until.min(session.now);
        }
        count += u64::from(mask.count());
    }
    bench.done(session);
    Ok(count)
}

/// The events that the keys in question wait for.
async fn blockers(session: &mut Session<'_>, release: &ReleaseParked) -> Result<BTreeSet<EventId>> {
    let mut which = Vec::new();
    for (topic, key) in &release.keys {
        let topic = session.catalog.require_topic(topic)?;
        let lane = lane::of(topic.id, topic.lanes, key);
        which.push(format!("lane = {} AND `key` = {}", lane.0, text(key)));
    }
    let which = if which.is_empty() { "TRUE".to_owned() } else { which.join(" OR ") };
    let sql = format!(
        "SELECT blocked_by FROM tramline_parked WHERE subscription = {} AND ({which})",
        release.subscription.0
    );
    session.rows(sql).await?.iter().map(|row| Ok(EventId(row.int(0)?))).collect()
}

pub(super) async fn adopt(session: &mut Session<'_>, adopt: &Adopt) -> Result<Vec<EventId>> {
    session.catalog.require_subscription(adopt.subscription)?;
    let events: BTreeSet<EventId> =
        adopt.consumed.iter().flat_map(|(_, events)| events.iter().copied()).collect();
    let chunks: Vec<i64> = by_chunk(&events).into_keys().map(|chunk| chunk.0).collect();
    let mut bench = Bench::lay(session, adopt.subscription, &chunks, &[State::Consumed, State::Dead]).await?;
    let mut adopted = Vec::new();
    for slice in &bench.slices {
        let consumed = slice.state == State::Consumed;
        let mine = |lease: &Lease| consumed && slice.lease() == *lease;
        // A sweep may have been faster and called it interrupted; the journal knows that it never started.
        let interrupted = |lease: &Lease| slice.was_interrupted_under(lease);
        let mask: Mask = adopt
            .consumed
            .iter()
            .filter(|(lease, _)| interrupted(lease) || mine(lease))
            .flat_map(|(_, events)| events.iter().filter(|event| event.chunk() == slice.chunk))
            .map(|event| event.index())
            .collect();
        let mask = mask.and(slice.mask);
        if mask.is_empty() {
            continue;
        }
        if let (true, Some(view)) = (consumed && mask == slice.mask, bench.views.get_mut(&slice.lane)) {
            view.lane.leased -= 1;
            view.let_go();
        }
        plan_adopt(slice, mask, session.now, &mut bench.changes);
        adopted.extend(slice.part(mask).events());
    }
    bench.done(session);
    Ok(adopted)
}

/// The chunks that back-fills have still to bring into a subscription, by topic.
async fn backfills(
    session: &mut Session<'_>,
    id: SubscriptionId,
) -> Result<BTreeMap<i64, RangeInclusive<i64>>> {
    let sql = format!(
        "SELECT topic, backfill_next, backfill_until FROM tramline_subscription_topic \
         WHERE subscription = {} AND backfill_next <= backfill_until",
        id.0
    );
    session.rows(sql).await?.iter().map(|row| Ok((row.int(0)?, row.int(1)?..=row.int(2)?))).collect()
}
