//! A full store: how much it holds, and what goes.

use super::mend::change;
use super::rows::{expect_slices, logged, remove_chunks, slices_at};
use super::session::{Session, number};
use super::sweep::backfill_floor;
use crate::error::Result;
use crate::model::id::{ChunkId, EventId, SubscriptionId};
use crate::model::slice::Slice;
use crate::plan::mend;
use crate::store::shed::{LOOK, Seen, UNCLAIMED, choose, end_of, look_per_topic, losers};
use crate::store::verbs::{Shed, Shedded, StoreSize, Surplus};

/// How many chunks one step looks at: while a script looks, everybody else waits.
const STEP: i64 = LOOK / 20;

/// What the rows of a store weigh, as they are counted when they come and go. What the server needs around them is not known; it
/// may have other things in its memory.
pub(super) fn size(session: &Session<'_>) -> Result<StoreSize> {
    let bytes = number(session.get(&session.key("size"), b"bytes")?);
    Ok(StoreSize { bytes: bytes.max(0).cast_unsigned() })
}

pub(super) fn shed(session: &Session<'_>, shed: &Shed) -> Result<Shedded> {
    match shed.surplus {
        Surplus::Retained => retained(session, shed),
        Surplus::Work { .. } => work(session, shed),
    }
}

fn retained(session: &Session<'_>, shed: &Shed) -> Result<Shedded> {
    let catalog = session.catalog();
    let look = look_per_topic(catalog.topics().len()).min(STEP);
    let (mut seen, mut counts) = (Vec::new(), Vec::new());
    for topic in catalog.topics() {
        let floor = backfill_floor(session, topic.id)?;
        let page = logged(session, topic.id, shed.after.chunk().0 + 1, i64::MAX, look as usize)?;
        expect_slices(session, page.iter().map(|logged| logged.chunk))?;
        for logged in page {
            let chunk = logged.chunk.0;
            let free = slices_at(session, logged.chunk)?.is_empty() && chunk < floor;
            seen.push(Seen { chunk, topic: topic.id, bytes: logged.bytes, free });
            counts.push((topic.id, logged));
        }
    }
    let (chosen, next) = choose(seen, look, shed);
    let mut removed = 0;
    for (topic, logged) in counts.into_iter().filter(|(_, l)| chosen.iter().any(|c| c.chunk == l.chunk.0)) {
        remove_chunks(session, topic, &[logged]);
        removed += logged.count.cast_unsigned();
    }
    Ok(Shedded { removed, next, ..Shedded::default() })
}

fn work(session: &Session<'_>, shed: &Shed) -> Result<Shedded> {
    let (slices, next) = look(session, shed)?;
    let losers = losers(&session.catalog(), shed.include_pull());
    let may_go = |slice: &&Slice| UNCLAIMED.contains(&slice.state) && losers.contains(&slice.subscription.0);
    // The subscription that is furthest behind is the one with the first slice.
    let Some(first) = slices.iter().find(may_go) else { return Ok(Shedded { next, ..Shedded::default() }) };
    let (chunk, id) = (first.chunk, first.subscription);
    let mut found: Vec<Slice> =
        slices.iter().filter(may_go).filter(|slice| slice.subscription == id).cloned().collect();
    found.truncate(shed.fitting(found.iter().map(|slice| i64::from(slice.bytes))));
    let (mut events, mut wake) = (0, false);
    for slice in found {
        events += u64::from(slice.mask.count());
        wake |= change(session, &slice, |view, changes| mend::shed(&slice, view, changes))?;
    }
    let dropped: Option<(SubscriptionId, u64)> = Some((id, events));
    Ok(Shedded { dropped, wake, next: Some(end_of(chunk.0 - 1)), ..Shedded::default() })
}

/// Slices in the order of their chunks and numbers, and where the next look goes on.
fn look(session: &Session<'_>, shed: &Shed) -> Result<(Vec<Slice>, Option<EventId>)> {
    let mut chunks: Vec<ChunkId> = Vec::new();
    for topic in session.catalog().topics() {
        let page = logged(session, topic.id, shed.after.chunk().0 + 1, i64::MAX, STEP as usize)?;
        chunks.extend(page.iter().map(|logged| logged.chunk));
    }
    chunks.sort_unstable();
    // Of each topic so many were read: what comes first of all of them is complete.
    let more = chunks.len() as i64 >= STEP;
    chunks.truncate(STEP as usize);
    expect_slices(session, chunks.iter().copied())?;
    let mut slices = Vec::new();
    for chunk in &chunks {
        slices.extend(slices_at(session, *chunk)?);
    }
    slices.sort_by_key(|slice| (slice.chunk, slice.id));
    let next = chunks.last().filter(|_| more).map(|last| end_of(last.0));
    Ok((slices, next))
}
