//! Push: how each subscription stands, what was tried, what has gathered.

use super::claim::{due, first_from};
use super::rows::{entries, expect_entries, lanes, load};
use super::rules;
use super::session::Session;
use super::tuple::{Columns, Tuple};
use crate::error::Result;
use crate::model::health::Health;
use crate::model::id::{LaneId, SubscriptionId};
use crate::model::lane::Lane;
use crate::model::slice::State;
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use crate::store::push::{attempt, health, sending, text};
use crate::store::verbs::{
    ATTEMPTS_KEPT, Gather, Gathered, ListAttempts, NumberedAttempt, PushEntry, RecordPush, Recorded,
    SteerPush,
};

fn attempts_key(session: &Session<'_>, id: SubscriptionId) -> Vec<u8> {
    session.key(&format!("attempts:{id}"))
}

pub(super) fn record(session: &Session<'_>, record: &RecordPush) -> Result<Recorded> {
    let (catalog, id) = (session.catalog(), record.subscription);
    let push = sending(catalog.require_subscription(id)?)?;
    let mut health = standing(session, id)?;
    let mut disabled_now = false;
    health.count(record.counted.events, record.counted.batches);
    let index = attempts_key(session, id);
    let kept = record.attempts.len().saturating_sub(ATTEMPTS_KEPT);
    for (at, attempt) in record.attempts.iter().enumerate() {
        disabled_now |= health.record(attempt, push, session.now);
        if at >= kept {
            let number = session.draw("attempt", 1)?;
            session.enter(index.clone(), Tuple::new().with(&[number]).carrying(text(attempt).as_bytes()));
        }
    }
    write(session, id, &health);
    if !record.attempts.is_empty() {
        let all = session.range_back(&index, Tuple::new().all(), 2 * ATTEMPTS_KEPT)?;
        all.into_iter().skip(ATTEMPTS_KEPT).for_each(|old| session.withdraw(index.clone(), old));
    }
    Ok(Recorded { health, disabled_now, now: session.now })
}

pub(super) fn steer(session: &Session<'_>, steer: &SteerPush) -> Result<Health> {
    sending(session.catalog().require_subscription(steer.subscription)?)?;
    let mut health = standing(session, steer.subscription)?;
    let noted = steer.steer.apply(&mut health, session.now);
    write(session, steer.subscription, &health);
    if let Some((action, reason)) = noted {
        rules::note(session, steer.subscription, action, &steer.by, &reason, None)?;
    }
    Ok(health)
}

fn standing(session: &Session<'_>, id: SubscriptionId) -> Result<Health> {
    let found = session.get(&session.key("push"), id.to_string().as_bytes())?;
    health(found.map(|text| String::from_utf8_lossy(&text).into_owned()).as_deref())
}

fn write(session: &Session<'_>, id: SubscriptionId, health: &Health) {
    session.put(session.key("push"), id.to_string(), text(health).into_bytes());
}

/// All subscriptions are looked at side by side, so that a look at many is as few trips as one at one.
pub(super) fn board(session: &Session<'_>) -> Result<Vec<PushEntry>> {
    let known = session.all(&session.key("push"))?;
    let catalog = session.catalog();
    let mut board = Vec::new();
    session.for_each(catalog.subscriptions().iter().filter(|one| one.policy.push.is_some()), |one| {
        let stored = known.get(one.id.to_string().as_bytes());
        let health = health(stored.map(|text| String::from_utf8_lossy(text)).as_deref())?;
        let due = health.is_open(session.now)
            && match one.policy.is_ordered() {
                true => lanes_due(session, one.id)?,
                false => slices_due(session, one.id)?,
            };
        board.push(PushEntry { subscription: one.clone(), health, due, now: session.now });
        Ok(())
    })?;
    Ok(board)
}

/// Ready and due, or a lease that has ended: the first of each priority tells.
fn slices_due(session: &Session<'_>, id: SubscriptionId) -> Result<bool> {
    let mut due = false;
    session.for_each([State::Ready, State::Leased, State::Suspect], |state| {
        let mut rank = 0;
        while !due && let Some(first) = first_from(session, id, state, rank)? {
            rank = first.rank + 1;
            due = first.pos <= session.now.0;
        }
        Ok(())
    })?;
    Ok(due)
}

/// Where the waiting slices of a lane are that are due.
fn waiting_range(session: &Session<'_>, lane: LaneId) -> (Vec<u8>, Vec<u8>) {
    let columns = [State::Waiting as i64, lane.0, 0];
    let to = Tuple::new().with(&columns).with(&[session.now.0.saturating_add(1)]).bytes();
    (Tuple::new().with(&columns).bytes(), to)
}

/// A lane that is free and has something to give, or whose lease has ended.
fn lanes_due(session: &Session<'_>, id: SubscriptionId) -> Result<bool> {
    let lanes = lanes(session, id)?;
    let open = || lanes.iter().filter(|lane| lane.halted_until <= session.now);
    if open().any(|lane| lane.owner.is_some() && lane.until <= session.now) {
        return Ok(true);
    }
    let ranges = |lane: &Lane| {
        [Tuple::new().with(&[State::Ready as i64, lane.lane.0]).all(), waiting_range(session, lane.lane)]
    };
    let free = open().filter(|lane| lane.owner.is_none()).flat_map(ranges);
    let free: Vec<(Vec<u8>, Vec<u8>)> = free.collect();
    expect_entries(session, id, free.iter().map(|range| (range.clone(), 1)))?;
    for range in free {
        if !entries(session, id, range, 1)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Counts at most as many slices as there may be events in a batch: each has at least one. A lease that has ended counts as no event,
/// but somebody has to claim what was under it.
pub(super) fn gather(session: &Session<'_>, gather: &Gather) -> Result<Gathered> {
    let catalog = session.catalog();
    let subscription = catalog.require_subscription(gather.subscription)?;
    let mut gathered = Gathered { now: session.now, ..Gathered::default() };
    if subscription.policy.is_ordered() {
        gather_lanes(session, gather, &mut gathered)?;
    } else {
        for slice in
            load(session, &due(session, gather.subscription, State::Ready, session.now, gather.events)?)?
        {
            gathered.add(slice.mask.to_i64(), slice.due_at.0, slice.attempts > 0 || slice.replayed);
        }
        if let Some(ended) = due(session, gather.subscription, State::Leased, session.now, 1)?.first() {
            gathered.add(0, ended.pos, true);
        }
    }
    if gathered.since.is_none() {
        gathered.next_due = next_due(session, subscription)?;
    }
    Ok(gathered)
}

fn gather_lanes(session: &Session<'_>, gather: &Gather, gathered: &mut Gathered) -> Result<()> {
    let (id, limit) = (gather.subscription, gather.events as usize);
    let open: Vec<Lane> =
        lanes(session, id)?.into_iter().filter(|lane| lane.halted_until <= session.now).collect();
    let mut found = Vec::new();
    session.for_each(open.iter().filter(|lane| lane.owner.is_none()), |lane| {
        let ready = Tuple::new().with(&[State::Ready as i64, lane.lane.0, 0]).all();
        for range in [ready, waiting_range(session, lane.lane)] {
            found.extend(
                entries(session, id, range, limit)?.into_iter().filter(|one| one.due_at <= session.now),
            );
        }
        Ok(())
    })?;
    found.truncate(limit);
    for slice in load(session, &found)? {
        gathered.add(slice.mask.to_i64(), slice.due_at.0, slice.attempts > 0 || slice.replayed);
    }
    if let Some(ended) = open.iter().find(|lane| lane.owner.is_some() && lane.until <= session.now) {
        gathered.add(0, ended.until.0, true);
    }
    Ok(())
}

/// When the first of what waits is due, or the first lane that is halted goes on.
fn next_due(session: &Session<'_>, subscription: &Subscription) -> Result<Option<Time>> {
    let id = subscription.id;
    let mut next: Option<i64> = None;
    let mut sooner = |at: i64| next = Some(next.map_or(at, |next| next.min(at)));
    if subscription.policy.is_ordered() {
        let lanes = lanes(session, id)?;
        session.for_each(lanes.iter().filter(|lane| lane.owner.is_none()), |lane| {
            if lane.halted_until > session.now {
                sooner(lane.halted_until.0);
                return Ok(());
            }
            let waiting = Tuple::new().with(&[State::Waiting as i64, lane.lane.0, 0]).all();
            if let Some(first) = entries(session, id, waiting, 1)?.first() {
                sooner(first.pos);
            }
            Ok(())
        })?;
    } else {
        let mut rank = 0;
        while let Some(first) = first_from(session, id, State::Ready, rank)? {
            rank = first.rank + 1;
            sooner(first.pos);
        }
    }
    Ok(next.map(Time))
}

pub(super) fn attempts(session: &Session<'_>, list: &ListAttempts) -> Result<Vec<NumberedAttempt>> {
    session.catalog().require_subscription(list.subscription)?;
    let range = (Tuple::new().bytes(), Tuple::new().with(&[list.before]).bytes());
    let members =
        session.range_back(&attempts_key(session, list.subscription), range, list.limit as usize)?;
    let read = |member: &Vec<u8>| {
        let mut columns = Columns(member);
        let number = columns.number();
        Ok(NumberedAttempt { number, attempt: attempt(&String::from_utf8_lossy(columns.load()))? })
    };
    members.iter().map(read).collect()
}
