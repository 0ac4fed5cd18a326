//! Removes the rows of what was deleted, in steps.

use super::emit::{forget_ended, heads_of, keys_by_expiry, keys_of};
use super::rows::{
    delete_slice, entries, expect_slices, gaps_index, load, logged, one_lane, parked_index, remove_chunks,
    remove_parked, slices_of_chunk, within_step_slices, write_gaps, write_lane,
};
use super::session::{Session, hget, number};
use super::tuple::{Columns, Tuple};
use super::{Role, drops, unique};
use crate::error::Result;
use crate::model::id::{LaneId, SubscriptionId, TopicId};
use crate::model::slice::Slice;
use crate::model::tally::Ending;
use crate::plan::LaneView;
use crate::store::deleted::{Deleted, InTheWay, free_line, given_up, lanes_of, within_a_step};
use crate::store::tally::Ended;

/// All lanes there can be.
const ALL_LANES: [i64; 2] = [0, i64::MAX];

fn table(session: &Session<'_>) -> Vec<u8> {
    session.key("deleted")
}

fn field(deleted: Deleted) -> Vec<u8> {
    Tuple::new().with(&deleted.numbers()).bytes()
}

/// Says that something is deleted. Its rows stay until a step removes them.
pub(super) fn mark(session: &Session<'_>, deleted: Deleted) -> Result<()> {
    // Of a store that is spread, all rows are where the topics are.
    if session.role != Role::Home && !is_marked(session, deleted)? {
        session.put(table(session), field(deleted), b"0".to_vec());
    }
    Ok(())
}

/// Says that something is not deleted after all.
pub(super) fn unmark(session: &Session<'_>, deleted: Deleted) {
    session.remove(table(session), field(deleted));
}

/// True while there are rows of it.
pub(super) fn is_marked(session: &Session<'_>, deleted: Deleted) -> Result<bool> {
    Ok(session.get(&table(session), &field(deleted))?.is_some())
}

/// What was deleted, and from which chunk on it has to be looked for.
fn all(session: &Session<'_>) -> Result<Vec<(Deleted, i64)>> {
    let read = |(field, next): (Vec<u8>, Vec<u8>)| {
        let mut columns = Columns(&field);
        (Deleted::from_numbers(columns.number(), columns.number()), number(Some(next)))
    };
    Ok(session.all(&table(session))?.into_iter().map(read).collect())
}

/// True if there are no rows of anything that was deleted.
pub(super) fn is_clear(session: &Session<'_>) -> Result<bool> {
    Ok(all(session)?.is_empty())
}

/// True while there are rows of what subscriptions had of a topic that they left.
pub(super) fn is_left(session: &Session<'_>, topic: TopicId) -> Result<bool> {
    Ok(all(session)?.iter().any(|(deleted, _)| matches!(deleted, Deleted::Left(_, of) if *of == topic)))
}

/// Removes up to `limit` rows of whatever was deleted. True if there may be more.
pub(super) fn erase(session: &Session<'_>, limit: u32) -> Result<bool> {
    erase_where(session, |_| true, limit)
}

/// Removes up to `limit` rows of what is in the way of a change. True if there may be more.
pub(super) fn clear(session: &Session<'_>, way: &InTheWay, limit: u32) -> Result<bool> {
    let catalog = session.catalog();
    match way {
        InTheWay::LeftBy(name) => {
            let Some(subscription) = catalog.subscription_named(name) else { return Ok(false) };
            let left = |deleted| matches!(deleted, Deleted::Left(id, _) if id == subscription.id);
            erase_where(session, left, limit)
        }
        InTheWay::LeftOf(name) => {
            let Some(topic) = catalog.topic(name) else { return Ok(false) };
            let left = |deleted| matches!(deleted, Deleted::Left(_, of) if of == topic.id);
            erase_where(session, left, limit)
        }
    }
}

fn erase_where(session: &Session<'_>, wanted: impl Fn(Deleted) -> bool, limit: u32) -> Result<bool> {
    let mut left = i64::from(limit);
    for (deleted, next) in all(session)?.into_iter().filter(|(deleted, _)| wanted(*deleted)) {
        left -= match deleted {
            // What has ended in this step may be of this topic, so its chunks stay until the next one.
            Deleted::Topic(_) if session.has_ended() => return Ok(true),
            Deleted::Topic(topic) => erase_topic(session, topic, left)?,
            Deleted::Subscription(id) => erase_subscription(session, id, left)?,
            Deleted::Left(id, topic) => erase_left(session, id, topic, next, left)?,
        };
        if left <= 0 {
            return Ok(true);
        }
        session.remove(table(session), field(deleted));
    }
    Ok(false)
}

/// Gives how many rows went: fewer than `limit` only if there are no more.
fn erase_topic(session: &Session<'_>, topic: TopicId, limit: i64) -> Result<i64> {
    let gone = erase_chunks(session, topic, limit)?;
    if gone >= limit {
        return Ok(gone);
    }
    // Nobody emits to it any more, so whole tables go at once: the server frees them beside its work. The times at which their keys would
    // have been forgotten go when they have come.
    session.forget(heads_of(session, topic));
    session.forget(keys_of(session, topic));
    session.forget(unique::keys_of(session, topic));
    Ok(gone)
}

fn erase_chunks(session: &Session<'_>, topic: TopicId, limit: i64) -> Result<i64> {
    let found = logged(session, topic, 0, i64::MAX, limit as usize)?;
    let count = within_a_step(found.iter().map(|logged| logged.bytes));
    remove_chunks(session, topic, &found[..count]);
    // What was too heavy for this step is for the next one.
    Ok(if count < found.len() { limit } else { count as i64 })
}

fn erase_subscription(session: &Session<'_>, id: SubscriptionId, limit: i64) -> Result<i64> {
    let found = load(session, &entries(session, id, Tuple::new().all(), limit as usize)?)?;
    let mut gone = erase_slices(session, &found)?;
    gone += erase_marks(session, id, ALL_LANES, limit - gone)?;
    Ok(gone + drops::forget_some(session, id, limit - gone)?)
}

/// Hops over the chunks of the topic: the subscription may have any number of slices in others.
fn erase_left(
    session: &Session<'_>,
    id: SubscriptionId,
    topic: TopicId,
    next: i64,
    limit: i64,
) -> Result<i64> {
    let mut chunks = logged(session, topic, next, i64::MAX, limit as usize)?;
    let count = within_step_slices(session, chunks.iter().map(|logged| logged.chunk))?;
    let cut_short = count < chunks.len();
    chunks.truncate(count);
    expect_slices(session, chunks.iter().map(|logged| logged.chunk))?;
    let mut gone = Vec::new();
    for logged in &chunks {
        let found = slices_of_chunk(session, id, logged.chunk)?;
        erase_slices(session, &found)?;
        gone.extend(found);
    }
    leave_line(session, id, &gone)?;
    if let Some(last) = chunks.last() {
        let next = (last.chunk.0 + 1).to_string().into_bytes();
        session.put(table(session), field(Deleted::Left(id, topic)), next);
    }
    // What had too many slices for this step is for the next one.
    let looked = if cut_short { limit } else { chunks.len() as i64 };
    Ok(looked + erase_marks(session, id, lanes_of(topic), limit - looked)?)
}

fn leave_line(session: &Session<'_>, id: SubscriptionId, gone: &[Slice]) -> Result<()> {
    if gone.iter().all(|slice| slice.lane != LaneId::WHOLE) {
        return Ok(());
    }
    let Some(lane) = one_lane(session, id, LaneId::WHOLE)? else { return Ok(()) };
    let mut view = LaneView::new(lane);
    free_line(&mut view, gone);
    write_lane(session, &view.lane);
    Ok(())
}

/// What will never be done fails, where it is an item of a tally.
fn erase_slices(session: &Session<'_>, slices: &[Slice]) -> Result<i64> {
    session.end(given_up(slices).map(|(subscription, chunk, mask)| Ended {
        subscription,
        chunk,
        mask,
        ending: Ending::Failed,
    }));
    for slice in slices {
        delete_slice(session, slice.chunk, slice.id)?;
    }
    Ok(slices.len() as i64)
}

/// Parked keys and gaps in a range of lanes.
fn erase_marks(session: &Session<'_>, id: SubscriptionId, lanes: [i64; 2], limit: i64) -> Result<i64> {
    if limit <= 0 {
        return Ok(0);
    }
    let mut gone = 0;
    // The index is by what blocks a key: only where all lanes go are the first ones as good as any. Nobody adds what is looked for, so
    // that the rest need not stay as it is.
    let most = if lanes == ALL_LANES { limit as usize } else { usize::MAX };
    for member in session.loosely(|| session.range(&parked_index(session, id), Tuple::new().all(), most))? {
        let mut columns = Columns(&member);
        columns.number();
        let (lane, key) = (LaneId(columns.number()), columns.text());
        if gone < limit && (lanes[0]..lanes[1]).contains(&lane.0) {
            remove_parked(session, id, lane, &key)?;
            gone += 1;
        }
    }
    let range = (Tuple::new().with(&lanes[..1]).bytes(), Tuple::new().with(&lanes[1..]).bytes());
    for member in session.range(&gaps_index(session, id), range, (limit - gone).max(0) as usize)? {
        let mut columns = Columns(&member);
        let (lane, key) = (LaneId(columns.number()), columns.text());
        write_gaps(session, id, lane, &key, &[]);
        gone += 1;
    }
    Ok(gone)
}

/// Forgets idempotency keys whose time is over. True if there may be more.
pub(super) fn expire_keys(session: &Session<'_>, limit: u32) -> Result<bool> {
    let range = (Tuple::new().bytes(), Tuple::new().with(&[session.now.0.saturating_add(1)]).bytes());
    let ended = session.range(&keys_by_expiry(session), range, limit as usize)?;
    let names: Vec<(TopicId, String)> = ended
        .iter()
        .map(|member| {
            let mut columns = Columns(member);
            columns.number();
            (TopicId(columns.number()), columns.text())
        })
        .collect();
    session.expect(names.iter().map(|(topic, key)| hget(&keys_of(session, *topic), key.as_bytes())))?;
    let many = ended.len() >= limit as usize;
    for ((topic, key), member) in names.into_iter().zip(ended) {
        forget_ended(session, topic, &key)?;
        session.withdraw(keys_by_expiry(session), member);
    }
    Ok(many)
}
