//! Parts: which items of a tally are still pending. One that nobody has touched follows from what was added.

use super::extents::{Extents, covering, expect_extents, extent};
use super::rows::of;
use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::TallyItem;
use crate::model::tally::part::{PART, Part, PartId};
use crate::model::time::Time;
use crate::plan::tally::{ItemRow, Unfinished};
use crate::store::redis::pack::{Packer, Unpacker};
use crate::store::redis::session::{Session, hget, number};
use std::ops::Range;

/// A part as it is stored.
struct PartRow {
    part: Part,
    active_at: Time,
}

fn read_part(row: &[u8]) -> Result<PartRow> {
    let mut row = Unpacker::new(row);
    let (items, left, active_at) = (row.number()? as u32, row.number()? as u32, Time(row.number()?));
    let pending = row.optional()?;
    Ok(PartRow { part: Part::read(items, pending, left, row.optional()?)?, active_at })
}

/// A part as it is. One that nobody has touched follows from what was added; `None` if there is none.
pub(super) fn part(session: &Session<'_>, id: PartId, known: &Extents) -> Result<Option<Part>> {
    let row = session.get(&of(session, "tally_parts", id.tally), id.part.to_string().as_bytes())?;
    if let Some(row) = row {
        return Ok(Some(read_part(&row)?.part));
    }
    let added = match covering(known, id) {
        Some(added) => Some(added),
        None => extent(session, id)?,
    };
    Ok(added.and_then(|(added, _)| Part::untouched(added.count, id.part - added.first / PART)))
}

/// Says that these parts will be read, sorted; and the additions of those that nobody has touched. Gives additions that have many.
pub(super) fn expect_parts<'p>(
    session: &Session<'_>,
    parts: impl Iterator<Item = &'p PartId> + Clone,
) -> Result<Extents> {
    let place = |id: &PartId| (of(session, "tally_parts", id.tally), id.part.to_string().into_bytes());
    let read = |id: &PartId| {
        let (key, field) = place(id);
        hget(&key, &field)
    };
    session.expect(parts.clone().map(read))?;
    let mut untouched: Vec<PartId> = Vec::new();
    for id in parts {
        let (key, field) = place(id);
        untouched.extend(session.get(&key, &field)?.is_none().then_some(*id));
    }
    let mut known = Extents::new();
    let mut expected = Ok(());
    for of_tally in untouched.chunk_by(|a, b| a.tally == b.tally) {
        let ends = [of_tally.first(), of_tally.last()].into_iter().flatten();
        expected = expect_extents(session, ends).and(expected);
    }
    expected?;
    let mut expected = Ok(());
    for of_tally in untouched.chunk_by(|a, b| a.tally == b.tally) {
        for id in [of_tally.first(), of_tally.last()].into_iter().flatten() {
            known.extend(extent(session, *id)?.map(|(added, of_events)| (id.tally, added, of_events)));
        }
        // Mostly all are of one addition, and then nothing else has to be read, be they ever so many.
        let others = of_tally.iter().filter(|id| covering(&known, **id).is_none());
        expected = expect_extents(session, others).and(expected);
    }
    expected.map(|()| known)
}

/// One item as it is; `None` if it was never added.
pub(super) fn item(session: &Session<'_>, item: TallyItem) -> Result<Option<ItemRow>> {
    let id = PartId { tally: item.tally, part: item.number / PART };
    let (Some(part), Some((_, of_events))) = (part(session, id, &Extents::new())?, extent(session, id)?)
    else {
        return Ok(None);
    };
    Ok(ItemRow::of(item.number, &part, of_events))
}

/// Writes a part back, or for the first time. What happened in those under way is also summed, for all who look at the tally.
pub(super) fn write_part(session: &Session<'_>, id: PartId, part: &Part, now: Time) -> Result<()> {
    let row = Packer::new()
        .number(i64::from(part.items()))
        .number(i64::from(part.left()))
        .number(now.0)
        .optional(part.pending_bytes().as_deref())
        .optional(part.failed_bytes().as_deref())
        .done();
    let (parts, field) = (of(session, "tally_parts", id.tally), id.part.to_string());
    let before = session.get(&parts, field.as_bytes())?.map(|row| read_part(&row)).transpose()?;
    let under_way = |part: Option<&Part>| match part.filter(|part| part.left() > 0) {
        Some(part) => [i64::from(part.done()), i64::from(part.failed())],
        None => [0, 0],
    };
    let (was, is) = (under_way(before.as_ref().map(|before| &before.part)), under_way(Some(part)));
    let sums = of(session, UNDER_WAY, id.tally);
    session.sum(sums.clone(), "done", is[0] - was[0]);
    session.sum(sums.clone(), "failed", is[1] - was[1]);
    session.put(sums, "active_at", now.0.to_string().into_bytes());
    session.put(parts, field, row);
    Ok(())
}

/// What happened in the parts of a tally that are under way, and when something last did.
const UNDER_WAY: &str = "tally_under_way";

pub(super) fn unfinished(session: &Session<'_>, tally: TallyId) -> Result<Unfinished> {
    let sums = session.all(&of(session, UNDER_WAY, tally))?;
    let sum = |name: &str| sums.get(name.as_bytes()).map(|sum| number(Some(sum.clone())));
    let count = |name: &str| sum(name).unwrap_or(0).max(0).cast_unsigned();
    let active_at = sum("active_at").map(Time);
    Ok(Unfinished { done: count("done"), failed: count("failed"), active_at })
}

/// How many of these parts are finished, and what happened in them.
pub(super) fn finished(session: &Session<'_>, tally: TallyId, parts: &[u64]) -> Result<(u64, Unfinished)> {
    let table = of(session, "tally_parts", tally);
    session.expect(parts.iter().map(|part| hget(&table, part.to_string().as_bytes())))?;
    let (mut count, mut sums) = (0, Unfinished::default());
    for part in parts {
        let Some(row) = session.get(&table, part.to_string().as_bytes())? else { continue };
        let PartRow { part, active_at } = read_part(&row)?;
        if part.left() == 0 {
            count += 1;
            sums.done += u64::from(part.done());
            sums.failed += u64::from(part.failed());
            sums.active_at = sums.active_at.max(Some(active_at));
        }
    }
    Ok((count, sums))
}

/// True if some item of these parts has ended.
pub(super) fn are_touched(session: &Session<'_>, tally: TallyId, parts: Range<u64>) -> Result<bool> {
    let table = of(session, "tally_parts", tally);
    session.expect(parts.clone().map(|part| hget(&table, part.to_string().as_bytes())))?;
    for part in parts {
        if session.get(&table, part.to_string().as_bytes())?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Forgets all parts of a tally that is gone: the server frees them beside its work.
pub(super) fn forget_parts(session: &Session<'_>, tally: TallyId) {
    for what in ["tally_parts", UNDER_WAY] {
        session.forget(of(session, what, tally));
    }
}
