//! Replay, drop, cancel, resend, release of parked keys, and adoption: changes that somebody asks for.

use super::RedisStore;
use super::catalog::fillings_of;
use super::order::{load_keys, load_marks};
use super::parts::{MOST, Patience, parts};
use super::rows::{
    apply, dead_index, dead_slices, died_index, entries, expect_slices, is_logged, lanes, load, metas,
    one_chunk, one_lane, parked, parked_index, slices_at, slices_of_chunk, write_lane,
};
use super::session::{PAGE, Session};
use super::tuple::{Columns, Tuple};
use crate::error::Result;
use crate::model::chunk::ChunkRow;
use crate::model::failure::Gone;
use crate::model::id::{ChunkId, EventId, LaneId, SliceId, SubscriptionId, TopicId};
use crate::model::lane::{self, Lane};
use crate::model::lease::Lease;
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
use crate::store::verbs::{Adopt, Cancel, ReleaseParked, Resend, Revival, Revive, Revived, Which};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How many dead rows one step of a revival finds: more than there can be of one chunk, and few enough for a script.
const REVIVE_STEP: usize = 100;

pub(super) fn revive(session: &Session<'_>, revive: &Revive) -> Result<Revived> {
    session.catalog().require_subscription(revive.subscription)?;
    let (mut found, chosen, next) = chosen(session, revive)?;
    let next = leave_too_many(&mut found, &revive.how).or(next);
    let mut revived = Revived { count: 0, next, now: session.now };
    let (mut how, mut known) = (revive.how, RawClaim::default());
    session.for_each(found, |slice| {
        let mask = chosen.of(&slice);
        if mask.is_empty() {
            return Ok(());
        }
        revived.count += u64::from(mask.count());
        change_one(session, &slice, &mut known, |view, changes| {
            plan_revive(&slice, mask, &mut how, session.now, view, changes);
        })
        .map(drop)
    })?;
    Ok(revived)
}

/// Events that come one after the other have a slice each: a step takes as many as it may write, and says where the next one goes on.
/// `found` is in the order of chunks, of which none is divided.
fn leave_too_many(found: &mut Vec<Slice>, how: &Revival) -> Option<EventId> {
    if !matches!(how, Revival::Stagger(_)) {
        return None;
    }
    let (mut last, mut events) = (found.first()?.chunk, 0);
    for chunk in found.chunk_by(|a, b| a.chunk == b.chunk) {
        events += chunk.iter().map(|slice| slice.mask.count() as usize).sum::<usize>();
        if events > MOST && chunk[0].chunk != found[0].chunk {
            found.retain(|slice| slice.chunk <= last);
            return Some(EventId::at(last, Mask::CAPACITY - 1));
        }
        last = chunk[0].chunk;
    }
    None
}

/// The dead and held slices of a step, what is meant of them, and where the next step goes on.
fn chosen(session: &Session<'_>, revive: &Revive) -> Result<(Vec<Slice>, Chosen, Option<EventId>)> {
    let id = revive.subscription;
    let (letters, (chunks, next)) = match (&revive.which, revive.which.letters()) {
        (_, Some(letters)) => {
            (Some(letters), whole_chunks(buried_chunks(session, id, revive.after)?, REVIVE_STEP))
        }
        (Which::Ids(ids), _) => (None, some_chunks(&by_chunk(ids), revive.after)),
        _ => return Ok((Vec::new(), Chosen::by_number(BTreeMap::new()), None)),
    };
    let chunks = chunks.into_iter().map(ChunkId);
    expect_slices(session, chunks.clone())?;
    let mut found = Vec::new();
    for chunk in chunks.clone() {
        found.extend(slices_of_chunk(session, id, chunk)?);
    }
    found.retain(|slice| matches!(slice.state, State::Dead | State::Held));
    let chosen = match (letters, &revive.which) {
        (Some(letters), _) => {
            let ask = letters.asks_for_events();
            let rows: BTreeMap<ChunkId, ChunkRow> = metas(session, chunks.filter(|_| ask))?;
            Chosen::by_letters(letters, rows.values(), &session.catalog())?
        }
        (None, Which::Ids(ids)) => Chosen::by_number(by_chunk(ids)),
        (None, _) => Chosen::by_number(BTreeMap::new()),
    };
    Ok((found, chosen, next))
}

/// The next chunks of those that are named, and where the next step goes on.
fn some_chunks(wanted: &BTreeMap<ChunkId, Mask>, after: EventId) -> (Vec<i64>, Option<EventId>) {
    let mut room = REVIVE_STEP as u32;
    let left = wanted.range(ChunkId(after.chunk().0 + 1)..);
    let has_room = |(_, mask): &(&ChunkId, &Mask)| {
        let before = room;
        room = room.saturating_sub(mask.count());
        before > 0
    };
    let some: Vec<i64> = left.take_while(has_room).map(|(chunk, _)| chunk.0).collect();
    let last = some.last().map(|last| EventId::at(ChunkId(*last), Mask::CAPACITY - 1));
    let is_over = wanted.last_key_value().map(|(last, _)| last.0) == some.last().copied();
    (some, last.filter(|_| !is_over))
}

fn buried_chunks(session: &Session<'_>, id: SubscriptionId, after: EventId) -> Result<Vec<i64>> {
    let range = (Tuple::new().with(&[after.chunk().0]).end(), Tuple::new().end());
    let members = session.range(&dead_index(session, id), range, REVIVE_STEP)?;
    Ok(members.iter().map(|member| Columns(member).number()).collect())
}

/// Dead events that the subscription has kept for long enough go, oldest first, `limit` rows at most. True if there may be more.
pub(super) fn expire_dead(session: &Session<'_>, subscription: &Subscription, limit: u32) -> Result<bool> {
    let Some(kept) = subscription.policy.dead_retention else { return Ok(false) };
    let edge = session.now.before(kept).0.saturating_add(1);
    let range = (Tuple::new().bytes(), Tuple::new().with(&[edge]).bytes());
    let members = session.range(&died_index(session, subscription.id), range, limit as usize)?;
    let place = |member: &Vec<u8>| {
        let mut columns = Columns(member);
        columns.number();
        (ChunkId(columns.number()), SliceId(columns.number()))
    };
    let dead = dead_slices(session, &members.iter().map(place).collect::<Vec<_>>())?;
    let mut known = RawClaim::default();
    session.for_each(dead, |slice| {
        let expire = |view: Option<&mut LaneView>, changes: &mut Changes| {
            remove(&slice, slice.mask, Gone::Expired, view, changes);
        };
        change_one(session, &slice, &mut known, expire).map(drop)
    })?;
    Ok(members.len() >= limit as usize)
}

/// Changes one slice, under the lock of its lane if it has one. True if something may be claimed now that could not before.
pub(super) fn change(
    session: &Session<'_>,
    slice: &Slice,
    decide: impl FnOnce(Option<&mut LaneView>, &mut Changes),
) -> Result<bool> {
    change_one(session, slice, &mut RawClaim::default(), decide)
}

/// The same for one of many slices: a chunk that several are of is decoded once.
pub(super) fn change_one(
    session: &Session<'_>,
    slice: &Slice,
    known: &mut RawClaim,
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
    load_keys(session, &mut view, [slice.chunk].into_iter(), known)?;
    load_marks(session, &mut view, std::slice::from_ref(slice))?;
    decide(Some(&mut view), &mut changes);
    apply(session, slice.subscription, &changes)?;
    if view.is_eased(session.now) {
        // Only a settlement makes it more, and writes the lane.
        let failed = session.loosely(|| failed(session, &view.lane, usize::MAX))?;
        view.halt_for(failed.iter(), session.now);
    }
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
        change(session, slice, |view, changes| remove(slice, mask, Gone::Cancelled, view, changes))?;
        cancelled.push(subscription.name.clone());
    }
    Ok(cancelled)
}

/// How many events one step resends.
const RESEND_STEP: usize = 100;

impl RedisStore {
    /// Resends some at a time. What was resent may have run by the time somebody asks again, so that later parts are insisted on.
    pub(super) async fn resend_in_parts(&self, given: &Resend) -> Result<u64> {
        let mut ids = given.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        let (mut count, mut patience) = (0, Patience::new());
        for some in ids.chunks(RESEND_STEP) {
            let step = |session: &Session<'_>| resend(session, given.subscription, some);
            count += loop {
                match self.try_write(given.now, step).await {
                    Ok(count) => break count,
                    Err(failed) => patience.bear(failed).await?,
                }
            };
            patience.begin();
        }
        Ok(count)
    }
}

fn resend(session: &Session<'_>, id: SubscriptionId, ids: &[EventId]) -> Result<u64> {
    let catalog = session.catalog();
    let subscription = catalog.require_subscription(id)?;
    let wanted = by_chunk(ids);
    expect_slices(session, wanted.keys().copied())?;
    let mut count = 0;
    session.for_each(wanted, |(chunk, wanted)| {
        count += resend_of_chunk(session, subscription, chunk, wanted)?;
        Ok(())
    })?;
    Ok(count)
}

fn resend_of_chunk(
    session: &Session<'_>,
    subscription: &Subscription,
    chunk: ChunkId,
    wanted: Mask,
) -> Result<u64> {
    let (catalog, id, ordering) = (session.catalog(), subscription.id, subscription.policy.ordering);
    let Some(row) = one_chunk(session, chunk)? else { return Ok(0) };
    let Some(topic) = catalog.topic_by_id(row.topic) else { return Ok(0) };
    // It must not go while this step brings it back.
    if !is_logged(session, topic.id, chunk)? || !subscription.topics.contains(&topic.name) {
        return Ok(0);
    }
    // What a back-fill has still to bring comes by itself.
    if is_to_be_filled(session, id, topic.id, chunk)? {
        return Ok(0);
    }
    let (own, keys, mut count) = (slices_of_chunk(session, id, chunk)?, row.keys()?, 0);
    session.for_each(buried(&own, wanted), |(slice, mask)| {
        count += u64::from(mask.count());
        change(session, slice, |_, changes| replay(slice, mask, session.now, changes)).map(drop)
    })?;
    let lanes = keys.iter().map(|key| lane::within(ordering, topic, key.as_deref(), 0));
    session.for_each(finished(&own, wanted, lanes), |(lane, mask)| {
        count += u64::from(mask.count());
        let mut changes = Changes::default();
        plan_resend(id, lane, &row, mask, session.now, &mut changes)?;
        apply(session, id, &changes)
    })?;
    Ok(count)
}

/// How many parked keys one step lets go.
const KEYS: usize = 100;

impl RedisStore {
    /// Lets parked keys go, those that are named or all, some at a time. Gives how many.
    pub(super) async fn release_parked_in_parts(&self, given: &ReleaseParked) -> Result<u64> {
        let (id, mut count) = (given.subscription, 0);
        let halted = if given.keys.is_empty() { self.halted(given).await? } else { Vec::new() };
        for keys in given.keys.chunks(KEYS) {
            let step = |session: &Session<'_>| {
                // One that is wrong is refused before any key goes.
                let catalog = session.catalog();
                given.keys.iter().try_for_each(|(topic, _)| catalog.require_topic(topic).map(drop))?;
                let_go(session, id, named(session, id, keys)?)
            };
            count += self.write(given.now, step).await?;
        }
        let mut next = Some(Vec::new()).filter(|_| given.keys.is_empty());
        while let Some(from) = next {
            let step = |session: &Session<'_>| {
                let (events, next) = from_on(session, id, &from)?;
                Ok((let_go(session, id, events)?, next))
            };
            let (some, rest) = self.write(given.now, step).await?;
            count += some;
            next = rest;
        }
        for lane in halted {
            let mut more = true;
            while more {
                let some;
                (some, more) = self.write(given.now, |session| let_lane_go(session, id, lane)).await?;
                count += some;
            }
        }
        Ok(count)
    }

    /// The lanes that stand still. Keys that go on let them go on, too.
    async fn halted(&self, given: &ReleaseParked) -> Result<Vec<LaneId>> {
        let step = |session: &Session<'_>| {
            session.catalog().require_subscription(given.subscription)?;
            let lanes = session.loosely(|| lanes(session, given.subscription))?;
            Ok(lanes.iter().filter(|lane| lane.halted_until > session.now).map(|lane| lane.lane).collect())
        };
        self.write(given.now, step).await
    }
}

/// Lets a lane that stands still go on, also where no key is parked, some events at a time. Gives how many, and whether there are more.
fn let_lane_go(session: &Session<'_>, id: SubscriptionId, lane: LaneId) -> Result<(u64, bool)> {
    let Some(lane) = one_lane(session, id, lane)? else { return Ok((0, false)) };
    let failed = failed(session, &lane, KEYS)?;
    let (mut view, mut changes) = (LaneView::new(lane), Changes::default());
    let count = hasten_all(&mut view, &failed, session.now, &mut changes);
    apply(session, id, &changes)?;
    write_lane(session, &view.lane);
    Ok((count, failed.len() >= KEYS))
}

/// What failed in a lane and is not due, so many or a few more: in a line of all events it is ready, in front of what nobody took;
/// elsewhere it waits, perhaps beside what was delayed.
fn failed(session: &Session<'_>, lane: &Lane, most: usize) -> Result<Vec<Slice>> {
    let is_line = lane.lane == LaneId::WHOLE;
    let mut range = match is_line {
        true => Tuple::new().with(&[State::Ready as i64, lane.lane.0, 0]).all(),
        false => {
            let waiting = [State::Waiting as i64, lane.lane.0, 0];
            let after = session.now.0.saturating_add(1);
            (Tuple::new().with(&waiting).with(&[after]).bytes(), Tuple::new().with(&waiting).end())
        }
    };
    let mut found = Vec::new();
    loop {
        let page = entries(session, lane.subscription, range.clone(), PAGE)?;
        let slices = load(session, &page)?;
        let is_over = page.len() < PAGE || (is_line && slices.iter().any(|slice| !lane.has_had(slice)));
        found.extend(slices.into_iter().filter(|slice| slice.due_at > session.now && lane.has_had(slice)));
        let Some(last) = page.last().filter(|_| !is_over && found.len() < most) else { return Ok(found) };
        range.0 = Tuple::new().with(&last.columns()).end();
    }
}

/// Makes what keys wait for due. Gives how many there were.
fn let_go(session: &Session<'_>, id: SubscriptionId, events: Vec<EventId>) -> Result<u64> {
    session.catalog().require_subscription(id)?;
    let mut count = 0;
    expect_slices(session, events.iter().map(|event| event.chunk()))?;
    session.for_each(events, |event| {
        let slices = slices_of_chunk(session, id, event.chunk())?;
        let Some(slice) = find(&slices, event).filter(|s| matches!(s.state, State::Waiting | State::Held))
        else {
            return Ok(());
        };
        change(session, slice, |view, changes| {
            hasten(slice, Mask::of(event.index()), session.now, changes);
            if let Some(view) = view {
                view.lane.halted_until = view.lane.halted_until.min(session.now);
            }
        })?;
        count += 1;
        Ok(())
    })?;
    Ok(count)
}

/// The events that some keys wait for.
fn named(session: &Session<'_>, id: SubscriptionId, keys: &[(String, String)]) -> Result<Vec<EventId>> {
    let (catalog, mut found) = (session.catalog(), Vec::new());
    session.for_each(keys, |(topic, key)| {
        let topic = catalog.require_topic(topic)?;
        let lane = lane::of(topic.id, topic.lanes, key);
        found.extend(parked(session, id, lane, key)?.map(|(event, _)| event));
        Ok(())
    })?;
    Ok(found)
}

/// The events that keys wait for, some, from a place in their index on, and where to go on.
fn from_on(
    session: &Session<'_>,
    id: SubscriptionId,
    from: &[u8],
) -> Result<(Vec<EventId>, Option<Vec<u8>>)> {
    let some = session.range(&parked_index(session, id), (from.to_vec(), Tuple::new().end()), KEYS)?;
    let next = some.last().filter(|_| some.len() == KEYS).map(|last| [last, &[0][..]].concat());
    Ok((some.iter().map(|member| EventId(Columns(member).number())).collect(), next))
}

impl RedisStore {
    /// Adopts some at a time: what the journal knows stays there until it has the answer.
    pub(super) async fn adopt_in_parts(&self, given: &Adopt) -> Result<Vec<EventId>> {
        // The first events first: somebody may take them before the last ones are ready.
        let mut consumed = given.consumed.clone();
        consumed.sort_by_key(|(_, events)| events.iter().min().copied());
        let mut adopted = Vec::new();
        for some in parts(&consumed, |_| None, |(_, events)| events.len()) {
            let some: Vec<_> = some.into_iter().map(|at| consumed[at].clone()).collect();
            let step = |session: &Session<'_>| adopt(session, given.subscription, &some);
            adopted.extend(self.write(given.now, step).await?);
        }
        Ok(adopted)
    }
}

fn adopt(
    session: &Session<'_>,
    id: SubscriptionId,
    consumed: &[(Lease, Vec<EventId>)],
) -> Result<Vec<EventId>> {
    session.catalog().require_subscription(id)?;
    expect_slices(session, consumed.iter().map(|(lease, _)| lease.chunk))?;
    let mut adopted = Vec::new();
    let events = consumed.iter().flat_map(|(lease, events)| events.iter().map(move |event| (lease, *event)));
    session.for_each(events, |(lease, event)| {
        let slices = slices_of_chunk(session, id, event.chunk())?;
        let Some(slice) = find(&slices, event) else { return Ok(()) };
        let mine = slice.state == State::Consumed && slice.lease() == *lease;
        // A sweep may have been faster and called it interrupted; the journal knows that it never started.
        let interrupted = slice.was_interrupted_under(lease);
        if !mine && !interrupted {
            return Ok(());
        }
        change(session, slice, |view, changes| {
            if let (true, Some(view)) = (mine && slice.mask.count() == 1, view) {
                view.lane.leased -= 1;
                view.let_go();
            }
            crate::plan::mend::adopt(slice, Mask::of(event.index()), session.now, changes);
        })?;
        adopted.push(event);
        Ok(())
    })?;
    Ok(adopted)
}

/// True if a back-fill has still to bring a chunk into a subscription.
fn is_to_be_filled(
    session: &Session<'_>,
    id: SubscriptionId,
    topic: TopicId,
    chunk: ChunkId,
) -> Result<bool> {
    let filling = fillings_of(session, id)?.into_iter().find(|one| one.topic == topic);
    Ok(filling.is_some_and(|one| (one.next..=one.until).contains(&chunk.0)))
}
