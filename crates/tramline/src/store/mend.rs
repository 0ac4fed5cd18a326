//! Replay, drop, cancel, resend, release of parked keys, and adoption, on servers: changes that somebody asks for.

use super::lanes::{load_keys, load_marks};
use super::letters::{Chosen, old_dead, whole_chunks};
use super::rows::StepRows;
use super::verbs::{Adopt, Cancel, REVIVE_STEP, ReleaseParked, Resend, Revive, Revived, Which};
use crate::error::Result;
use crate::model::failure::Gone;
use crate::model::id::{ChunkId, EventId, LaneId, SubscriptionId};
use crate::model::lane::{self, Lane};
use crate::model::lease::Lease;
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::time::Time;
use crate::plan::mend::{
    adopt as plan_adopt, buried, by_chunk, find, finished, hasten, remove, replay, resend as plan_resend,
    revive as plan_revive,
};
use crate::plan::{Changes, LaneView};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const BURIED: [State; 2] = [State::Held, State::Dead];

/// Slices that are about to change, under the locks of their lanes, and what changes.
pub(crate) struct Bench {
    id: SubscriptionId,
    pub(crate) views: BTreeMap<LaneId, LaneView>,
    pub(crate) slices: Vec<Slice>,
    pub(crate) changes: Changes,
}

impl Bench {
    /// Locks the lanes of what is there, then the slices of chunks that are in certain states. What was seen before a
    /// lane was locked may have moved: only what is read after counts.
    pub(crate) async fn lay(
        session: &mut impl StepRows,
        id: SubscriptionId,
        chunks: &[i64],
        states: &[State],
    ) -> Result<Bench> {
        Bench::lay_with(session, id, chunks, states, BTreeSet::new()).await
    }

    /// The same with more lanes, into which something is to be written.
    async fn lay_with(
        session: &mut impl StepRows,
        id: SubscriptionId,
        chunks: &[i64],
        states: &[State],
        mut lanes: BTreeSet<LaneId>,
    ) -> Result<Bench> {
        let seen = session.slices_of(chunks).await?;
        lanes.extend(seen.iter().filter(|s| s.subscription == id && s.is_ordered()).map(|slice| slice.lane));
        let mut views =
            if lanes.is_empty() { BTreeMap::new() } else { session.lock_lanes(id, &lanes).await? };
        let slices = session.lock_slices_of(id, chunks, states).await?;
        load_keys(session, &mut views, &slices).await?;
        load_marks(session, &mut views, &slices).await?;
        Ok(Bench { id, views, slices, changes: Changes::default() })
    }

    pub(crate) async fn done(mut self, session: &mut impl StepRows) -> Result<()> {
        session.apply(self.id, &self.changes).await?;
        let now = session.now();
        if self.views.values().any(|view| view.is_eased(now)) {
            let failed = session.failed(self.id).await?;
            for (lane, view) in self.views.iter_mut().filter(|(_, view)| view.is_eased(now)) {
                view.halt_for(failed.iter().filter(|slice| slice.lane == *lane), now);
            }
        }
        let lanes: Vec<&Lane> = self.views.values().map(|view| &view.lane).collect();
        session.write_lanes(&lanes).await
    }
}

pub(crate) async fn revive(session: &mut impl StepRows, revive: &Revive) -> Result<Revived> {
    session.catalog().require_subscription(revive.subscription)?;
    let id = revive.subscription;
    let (chunks, next) = match &revive.which {
        Which::Ids(ids) => (by_chunk(ids).into_keys().map(|chunk| chunk.0).collect(), None),
        _ => {
            let (found, until) = session.buried_chunks(id, revive.after.chunk()).await?;
            let (chunks, next) = whole_chunks(found, REVIVE_STEP as usize);
            (chunks, next.or(until.map(|until| EventId::at(until, Mask::CAPACITY - 1))))
        }
    };
    let mut bench = Bench::lay(session, id, &chunks, &BURIED).await?;
    let chosen = chosen(session, &revive.which, &chunks).await?;
    let mut revived = Revived { count: 0, next, now: session.now() };
    let mut how = revive.how;
    for slice in &bench.slices {
        let mask = chosen.of(slice);
        if !mask.is_empty() {
            revived.count += u64::from(mask.count());
            let view = bench.views.get_mut(&slice.lane);
            plan_revive(slice, mask, &mut how, session.now(), view, &mut bench.changes);
        }
    }
    bench.done(session).await?;
    Ok(revived)
}

async fn chosen(session: &mut impl StepRows, which: &Which, chunks: &[i64]) -> Result<Chosen> {
    let letters = match (which, which.letters()) {
        (Which::Ids(ids), _) => return Ok(Chosen::by_number(by_chunk(ids))),
        (_, letters) => letters.unwrap_or_default(),
    };
    let asked = chunks.iter().filter(|_| letters.asks_for_events());
    let rows = session.metas(asked.map(|chunk| ChunkId(*chunk)).collect()).await?;
    Chosen::by_letters(letters, rows.values(), &session.catalog())
}

/// The subscriptions that have dead events which they have kept for long enough.
pub(crate) async fn with_old_dead(session: &mut impl StepRows) -> Result<Vec<SubscriptionId>> {
    let edges = old_dead(&session.catalog(), session.now());
    if edges.is_empty() { Ok(Vec::new()) } else { session.with_dead_before(edges).await }
}

/// Dead events that a subscription has kept for long enough go, those of `limit` rows at most. True if there may be more.
pub(crate) async fn expire_dead(session: &mut impl StepRows, id: SubscriptionId, limit: u32) -> Result<bool> {
    let catalog = session.catalog();
    let Some(kept) = catalog.require_subscription(id)?.policy.dead_retention else { return Ok(false) };
    let edge = session.now().before(kept);
    let old = session.dead_before(id, edge, limit).await?;
    let chunks: BTreeSet<i64> = old.iter().copied().collect();
    bury_old(session, id, &chunks.into_iter().collect::<Vec<_>>(), edge).await?;
    Ok(old.len() >= limit as usize)
}

async fn bury_old(session: &mut impl StepRows, id: SubscriptionId, chunks: &[i64], edge: Time) -> Result<()> {
    let mut bench = Bench::lay(session, id, chunks, &[State::Dead]).await?;
    for slice in bench.slices.iter().filter(|slice| slice.due_at <= edge) {
        let view = bench.views.get_mut(&slice.lane);
        remove(slice, slice.mask, Gone::Expired, view, &mut bench.changes);
    }
    bench.done(session).await
}

pub(crate) async fn cancel(session: &mut impl StepRows, cancel: &Cancel) -> Result<Vec<Arc<str>>> {
    let chunk = cancel.id.chunk().0;
    let seen = session.slices_of(&[chunk]).await?;
    let catalog = session.catalog();
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
        bench.done(session).await?;
        cancelled.push(subscription.name.clone());
    }
    Ok(cancelled)
}

/// The chunks are locked: two resends of one event, or a resend and the end of its retention, come one after the other.
pub(crate) async fn resend(session: &mut impl StepRows, resend: &Resend) -> Result<u64> {
    let catalog = session.catalog();
    let subscription = catalog.require_subscription(resend.subscription)?;
    let ordering = subscription.policy.ordering;
    let wanted = by_chunk(&resend.ids);
    let numbers: Vec<i64> = wanted.keys().map(|chunk| chunk.0).collect();
    session.lock_chunks(&numbers).await?;
    let rows = session.chunks(wanted.keys().copied().collect()).await?;
    let mut places: BTreeMap<ChunkId, Vec<(LaneId, u32)>> = BTreeMap::new();
    for row in rows.values() {
        // What the subscription has left, or never had, is no business of it.
        let Some(topic) = catalog.topic_by_id(row.topic).filter(|t| subscription.topics.contains(&t.name))
        else {
            continue;
        };
        let place =
            |(key, index): (Option<Arc<str>>, u32)| (lane::within(ordering, topic, key.as_deref(), 0), index);
        places.insert(row.chunk, row.keys()?.into_iter().zip(0..).map(place).collect());
    }
    let lanes = places
        .iter()
        .flat_map(|(chunk, lanes)| lanes.iter().filter(|(_, index)| wanted[chunk].contains(*index)));
    let lanes = lanes.map(|(lane, _)| *lane).filter(|lane| *lane != LaneId::UNORDERED).collect();
    let mut bench = Bench::lay_with(session, resend.subscription, &numbers, &BURIED, lanes).await?;
    let known = session.slices_of(&numbers).await?;
    let to_be_filled = session.backfills(resend.subscription).await?;
    let mut count = 0;
    for (chunk, wanted) in wanted {
        let Some(row) = rows.get(&chunk) else { continue };
        // What a back-fill has still to bring comes by itself.
        if to_be_filled.get(&row.topic.0).is_some_and(|range| range.contains(&chunk.0)) {
            continue;
        }
        let Some(places) = places.get(&chunk) else { continue };
        let is_own = |slice: &&Slice| slice.subscription == resend.subscription && slice.chunk == chunk;
        let own: Vec<Slice> = known.iter().filter(is_own).cloned().collect();
        for (slice, mask) in buried(bench.slices.iter().filter(|slice| slice.chunk == chunk), wanted) {
            count += u64::from(mask.count());
            replay(slice, mask, session.now(), &mut bench.changes);
        }
        for (lane, mask) in finished(&own, wanted, places.iter().map(|(lane, _)| *lane)) {
            count += u64::from(mask.count());
            plan_resend(resend.subscription, lane, row, mask, session.now(), &mut bench.changes)?;
        }
    }
    bench.done(session).await?;
    Ok(count)
}

pub(crate) async fn release_parked(session: &mut impl StepRows, release: &ReleaseParked) -> Result<u64> {
    let catalog = session.catalog();
    catalog.require_subscription(release.subscription)?;
    let mut keys = Vec::new();
    for (topic, key) in &release.keys {
        let topic = catalog.require_topic(topic)?;
        keys.push((lane::of(topic.id, topic.lanes, key), &**key));
    }
    let (id, now) = (release.subscription, session.now());
    let events = session.blockers(id, &keys).await?;
    // Where all may go on, so may what stands still as a whole, and perhaps no key is parked in it.
    let (halted, failed) = match keys.is_empty() {
        true => (session.halted(id).await?, session.failed(id).await?),
        false => Default::default(),
    };
    let chunks = events.iter().map(|event| event.chunk()).chain(failed.iter().map(|slice| slice.chunk));
    let chunks: BTreeSet<i64> = chunks.map(|chunk| chunk.0).collect();
    let chunks: Vec<i64> = chunks.into_iter().collect();
    let states = match halted.contains(&LaneId::WHOLE) {
        true => &[State::Ready][..],
        false => &[State::Waiting, State::Held],
    };
    let mut bench = Bench::lay_with(session, id, &chunks, states, halted.clone()).await?;
    let mut count = 0;
    // Several keys may wait for events of one slice: they change together, because each changes the row.
    for slice in &bench.slices {
        let Some(view) = bench.views.get_mut(&slice.lane) else { continue };
        let has_failed = halted.contains(&slice.lane) && slice.due_at > now && view.lane.has_had(slice);
        let mask: Mask =
            slice.events().filter(|event| has_failed || events.contains(event)).map(EventId::index).collect();
        if mask.is_empty() {
            continue;
        }
        hasten(slice, mask, now, &mut bench.changes);
        view.lane.halted_until = view.lane.halted_until.min(now);
        count += u64::from(mask.count());
    }
    for view in bench.views.values_mut().filter(|view| halted.contains(&view.lane.lane)) {
        view.lane.halted_until = view.lane.halted_until.min(now);
    }
    bench.done(session).await?;
    Ok(count)
}

pub(crate) async fn adopt(session: &mut impl StepRows, adopt: &Adopt) -> Result<Vec<EventId>> {
    session.catalog().require_subscription(adopt.subscription)?;
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
        plan_adopt(slice, mask, session.now(), &mut bench.changes);
        adopted.extend(slice.part(mask).events());
    }
    bench.done(session).await?;
    Ok(adopted)
}
