//! A full store: how much it holds, and what goes.

use super::RedisStore;
use super::mend::change_one;
use super::rows::{Logged, expect_slices, free_among, logged, remove_chunks, slices_at, within_step_slices};
use super::session::{Session, number};
use super::sweep::backfill_floor;
use crate::error::Result;
use crate::model::id::{ChunkId, EventId, SubscriptionId, TopicId};
use crate::model::slice::Slice;
use crate::plan::mend;
use crate::store::claimed::RawClaim;
use crate::store::shed::{LOOK, Seen, UNCLAIMED, choose, end_of, look_per_topic, losers};
use crate::store::verbs::{Shed, Shedded, StoreSize, Surplus};

/// How many chunks one script looks at: while it looks, everybody else waits.
const STEP: i64 = LOOK / 20;
/// How many scripts one step is, at most.
const SCRIPTS: usize = 30;

/// What the rows of a store weigh, as they are counted when they come and go. What the server needs around them is not known; it
/// may have other things in its memory.
pub(super) fn size(session: &Session<'_>) -> Result<StoreSize> {
    let bytes = number(session.get(&session.key("size"), b"bytes")?);
    Ok(StoreSize { bytes: bytes.max(0).cast_unsigned() })
}

/// What one script made room with.
struct Went {
    shedded: Shedded,
    /// What each row weighs that has gone.
    weights: Vec<i64>,
}

impl RedisStore {
    /// One step, of as many scripts as it needs. It drops work of one subscription only.
    pub(super) async fn shed_in_scripts(&self, given: Shed) -> Result<Shedded> {
        let (mut shed, mut all) = (given, Shedded::default());
        for _ in 0..SCRIPTS {
            let whose = all.dropped.map(|(id, _)| id);
            let script = |session: &Session<'_>| match shed.surplus {
                Surplus::Retained => retained(session, &shed).map(Some),
                Surplus::Work { .. } => work(session, &shed, whose),
            };
            let went = match self.write(shed.now, script).await {
                Ok(Some(went)) => went,
                Ok(None) => break,
                // What went before is told; the next step meets the error again.
                Err(_) if all != Shedded::default() => break,
                Err(error) => return Err(error),
            };
            let next = went.shedded.next;
            add(&mut all, went.shedded);
            match (next, shed.rest(went.weights)) {
                (Some(next), Some(rest)) => shed = Shed { after: next, ..rest },
                _ => break,
            }
        }
        Ok(all)
    }
}

/// The next step goes on before the first work that was dropped: nobody needs those events any more.
fn add(all: &mut Shedded, some: Shedded) {
    if all.dropped.is_none() {
        all.next = some.next;
    }
    all.removed += some.removed;
    let before = all.dropped.map_or(0, |(_, events)| events);
    all.dropped = some.dropped.map(|(id, events)| (id, before + events)).or(all.dropped);
    all.wake |= some.wake;
}

fn retained(session: &Session<'_>, shed: &Shed) -> Result<Went> {
    let catalog = session.catalog();
    let look = look_per_topic(catalog.topics().len()).min(STEP);
    let mut pages: Vec<(TopicId, Vec<Logged>)> = Vec::new();
    session.for_each(catalog.topics(), |topic| {
        pages.push((topic.id, logged(session, topic.id, shed.after.chunk().0 + 1, i64::MAX, look as usize)?));
        Ok(())
    })?;
    let free = free_among(session, pages.iter().flat_map(|(_, page)| page).map(|logged| logged.chunk))?;
    let (mut seen, mut counts) = (Vec::new(), Vec::new());
    for (topic, page) in pages {
        let floor = backfill_floor(session, topic)?;
        for logged in page {
            let chunk = logged.chunk.0;
            let free = free.contains(&logged.chunk) && chunk < floor;
            seen.push(Seen { chunk, topic, bytes: logged.bytes, free });
            counts.push((topic, logged));
        }
    }
    let (chosen, next) = choose(seen, look, shed);
    let mut removed = 0;
    for (topic, logged) in counts.into_iter().filter(|(_, l)| chosen.iter().any(|c| c.chunk == l.chunk.0)) {
        remove_chunks(session, topic, &[logged]);
        removed += logged.count.cast_unsigned();
    }
    let weights = chosen.iter().map(|chosen| chosen.bytes).collect();
    Ok(Went { shedded: Shedded { removed, next, ..Shedded::default() }, weights })
}

/// Drops the work of one subscription: of `whose`, if that is said. `None`: another one is further behind.
fn work(session: &Session<'_>, shed: &Shed, whose: Option<SubscriptionId>) -> Result<Option<Went>> {
    let (slices, next) = look(session, shed)?;
    let losers = losers(&session.catalog(), shed.include_pull());
    let may_go = |slice: &&Slice| UNCLAIMED.contains(&slice.state) && losers.contains(&slice.subscription.0);
    // The subscription that is furthest behind is the one with the first slice.
    let Some(first) = slices.iter().find(may_go) else {
        return Ok(Some(Went { shedded: Shedded { next, ..Shedded::default() }, weights: Vec::new() }));
    };
    let (chunk, id) = (first.chunk, first.subscription);
    if whose.is_some_and(|whose| whose != id) {
        return Ok(None);
    }
    let of_one = slices.iter().filter(may_go).filter(|slice| slice.subscription == id);
    let mut weights: Vec<i64> = of_one.clone().map(|slice| i64::from(slice.bytes)).collect();
    weights.truncate(shed.fitting(weights.iter().copied()));
    let found = of_one.take(weights.len());
    let events = found.clone().map(|slice| u64::from(slice.mask.count())).sum();
    let (mut wake, mut known) = (false, RawClaim::default());
    session.for_each(found, |slice| {
        wake |= change_one(session, slice, &mut known, |view, changes| mend::shed(slice, view, changes))?;
        Ok(())
    })?;
    let shedded =
        Shedded { dropped: Some((id, events)), wake, next: Some(end_of(chunk.0 - 1)), ..Shedded::default() };
    Ok(Some(Went { shedded, weights }))
}

/// Slices in the order of their chunks and numbers, and where the next look goes on.
fn look(session: &Session<'_>, shed: &Shed) -> Result<(Vec<Slice>, Option<EventId>)> {
    let mut chunks: Vec<ChunkId> = Vec::new();
    session.for_each(session.catalog().topics(), |topic| {
        let page = logged(session, topic.id, shed.after.chunk().0 + 1, i64::MAX, STEP as usize)?;
        chunks.extend(page.iter().map(|logged| logged.chunk));
        Ok(())
    })?;
    chunks.sort_unstable();
    // Of each topic so many were read: what comes first of all of them is complete.
    let is_read_to_its_end = (chunks.len() as i64) < STEP;
    chunks.truncate(STEP as usize);
    let count = within_step_slices(session, chunks.iter().copied())?;
    let more = !is_read_to_its_end || count < chunks.len();
    chunks.truncate(count);
    expect_slices(session, chunks.iter().copied())?;
    let mut slices = Vec::new();
    for chunk in &chunks {
        slices.extend(slices_at(session, *chunk)?);
    }
    slices.sort_by_key(|slice| (slice.chunk, slice.id));
    let next = chunks.last().filter(|_| more).map(|last| end_of(last.0));
    Ok((slices, next))
}
