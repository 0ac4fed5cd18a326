//! Replay, drop, cancel, resend, release of parked keys, and adoption: changes that somebody asks for.

use super::lanes::{load_keys, load_marks, lock};
use super::look::slices_of;
use super::rows::{apply, chunks, lock_chunks_sql, metas, slices, slices_sql, write_lanes};
use super::session::Session;
use super::sql::{Columns, list, text};
use crate::error::Result;
use crate::model::failure::Gone;
use crate::model::id::{ChunkId, EventId, LaneId, SubscriptionId};
use crate::model::lane::{self, Lane};
use crate::model::lease::Lease;
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::time::Time;
use crate::plan::mend::{
    adopt as plan_adopt, by_chunk, find, hasten, remove, replay, resend as plan_resend, revive as plan_revive,
};
use crate::plan::{Changes, LaneView};
use crate::store::letters::{Chosen, old_dead, whole_chunks};
use crate::store::verbs::{Adopt, Cancel, REVIVE_STEP, ReleaseParked, Resend, Revive, Revived, Which};
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

pub(super) async fn revive(session: &mut Session<'_>, revive: &Revive) -> Result<Revived> {
    session.catalog.require_subscription(revive.subscription)?;
    let id = revive.subscription;
    let (chunks, next) = match &revive.which {
        Which::Ids(ids) => (by_chunk(ids).into_keys().map(|chunk| chunk.0).collect(), None),
        _ => whole_chunks(buried_chunks(session, id, revive.after).await?, REVIVE_STEP as usize),
    };
    let mut bench = Bench::lay(session, id, &chunks, &BURIED).await?;
    let chosen = chosen(session, &revive.which, &chunks).await?;
    let mut revived = Revived { count: 0, next, now: session.now };
    let mut how = revive.how;
    for slice in &bench.slices {
        let mask = chosen.of(slice);
        if !mask.is_empty() {
            revived.count += u64::from(mask.count());
            let view = bench.views.get_mut(&slice.lane);
            plan_revive(slice, mask, &mut how, session.now, view, &mut bench.changes);
        }
    }
    bench.done(session);
    Ok(revived)
}

async fn chosen(session: &mut Session<'_>, which: &Which, chunks: &[i64]) -> Result<Chosen> {
    let letters = match (which, which.letters()) {
        (Which::Ids(ids), _) => return Ok(Chosen::by_number(by_chunk(ids))),
        (_, letters) => letters.unwrap_or_default(),
    };
    let asked = chunks.iter().filter(|_| letters.asks_for_events());
    let rows = metas(session, asked.map(|chunk| ChunkId(*chunk))).await?;
    Chosen::by_letters(letters, rows.values(), &session.catalog)
}

async fn buried_chunks(session: &mut Session<'_>, id: SubscriptionId, after: EventId) -> Result<Vec<i64>> {
    let sql = format!(
        "SELECT s.chunk FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE s.subscription = {} \
         AND s.state IN (5, 6) AND s.chunk > {} ORDER BY s.chunk LIMIT {REVIVE_STEP}",
        id.0,
        after.chunk().0
    );
    session.rows(sql).await?.iter().map(|row| row.int(0)).collect()
}

/// Those of these subscriptions that have dead events which they have kept for long enough: of dead ones the claim index has the time
/// of their death.
pub(super) async fn with_old_dead(session: &mut Session<'_>) -> Result<Vec<SubscriptionId>> {
    let catalog = session.catalog.clone();
    let (ids, edges) = old_dead(&catalog, session.now);
    let sql = |(id, edge): (&i64, &i64)| {
        format!(
            "SELECT {id} FROM DUAL WHERE EXISTS (SELECT 1 FROM tramline_slice FORCE INDEX (tramline_slice_claim) \
             WHERE subscription = {id} AND state = 6 AND pos <= {edge})"
        )
    };
    let sql: Vec<String> = ids.iter().zip(&edges).map(sql).collect();
    if sql.is_empty() {
        return Ok(Vec::new());
    }
    let sets = session.sets(sql).await?;
    sets.iter().flatten().map(|row| row.int(0).map(SubscriptionId)).collect()
}

/// Dead events that a subscription has kept for long enough go, those of `limit` rows at most. True if there may be more.
pub(super) async fn expire_dead(session: &mut Session<'_>, id: SubscriptionId, limit: u32) -> Result<bool> {
    let catalog = session.catalog.clone();
    let Some(kept) = catalog.require_subscription(id)?.policy.dead_retention else { return Ok(false) };
    let edge = session.now.before(kept);
    let sql = format!(
        "SELECT chunk FROM tramline_slice FORCE INDEX (tramline_slice_claim) WHERE subscription = {} AND state = 6 \
         AND pos <= {} LIMIT {limit}",
        id.0, edge.0
    );
    let rows = session.rows(sql).await?;
    let chunks: BTreeSet<i64> = rows.iter().map(|row| row.int(0)).collect::<Result<_>>()?;
    bury_old(session, id, &chunks.into_iter().collect::<Vec<_>>(), edge).await?;
    Ok(rows.len() >= limit as usize)
}

async fn bury_old(session: &mut Session<'_>, id: SubscriptionId, chunks: &[i64], edge: Time) -> Result<()> {
    let mut bench = Bench::lay(session, id, chunks, &[State::Dead]).await?;
    for slice in bench.slices.iter().filter(|slice| slice.due_at <= edge) {
        let view = bench.views.get_mut(&slice.lane);
        remove(slice, slice.mask, Gone::Expired, view, &mut bench.changes);
    }
    bench.done(session);
    Ok(())
}

pub(super) async fn cancel(session: &mut Session<'_>, cancel: &Cancel) -> Result<Vec<Arc<str>>> {
    let chunk = cancel.id.chunk().0;
    let seen = slices_of(session, &[chunk]).await?;
    let catalog = session.catalog.clone();
    let mask = Mask::of(cancel.id.index());
    let free = [State::Ready, State::Suspect, State::Waiting, State::Parked, State::Held, State::Crowded];
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
        let view = bench.views.get_mut(&slice.lane);
        remove(&slice, mask, Gone::Cancelled, view, &mut bench.changes);
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
