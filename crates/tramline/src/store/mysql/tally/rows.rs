//! Rows of tallies, their parts and what was added to them. Always many at a time.

use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::news::Outgoing;
use crate::model::tally::part::{PART, Part, PartId};
use crate::model::tally::{Added, Tally, TallyItem};
use crate::model::time::Time;
use crate::plan::tally::{ItemRow, TallyRow, Tells, Unfinished, unknown};
use crate::store::mysql::session::Session;
use crate::store::mysql::sql::{
    Columns, LIST, insert, maybe, maybe_bytes, maybe_time, numbered, overwrite, paired,
};
use crate::store::tally::{Of, metadata, state};
use sqlx::mysql::MySqlRow;
use std::collections::{BTreeMap, BTreeSet};

/// The columns of a tally `t`, in the order [`row`] reads them.
pub(super) const TALLY: &str = "t.id, t.state, t.growing, t.estimated, t.tells, t.user_key, \
    t.parent_tally, t.parent_item, t.next_part, t.total, t.parts_left, t.done, t.failed, t.created_at, t.sealed_at, \
    t.ended_at, t.active_at, t.expires_at, t.ended_by, t.topic";

pub(super) fn row(row: &MySqlRow) -> Result<TallyRow> {
    let number = row.maybe_int(7)?.unwrap_or_default().cast_unsigned();
    let time = |at: usize| row.maybe_int(at).map(|time| time.map(Time));
    Ok(TallyRow {
        id: TallyId(row.int(0)?),
        state: state(row.small(1)?)?,
        growing: row.flag(2)?,
        estimated: row.flag(3)?,
        tells: Tells(row.small(4)?),
        user_key: row.maybe_text(5)?,
        parent: row.maybe_int(6)?.map(|tally| TallyItem { tally: TallyId(tally), number }),
        next_part: row.count(8)?,
        total: row.count(9)?,
        parts_left: row.count(10)?,
        done: row.count(11)?,
        failed: row.count(12)?,
        created_at: row.time(13)?,
        sealed_at: time(14)?,
        ended_at: time(15)?,
        active_at: row.time(16)?,
        expires_at: time(17)?,
        ended_by: row.int(18)?,
        topic: row.maybe_text(19)?,
    })
}

/// Tallies that a statement with [`TALLY`] finds.
pub(super) async fn find(session: &mut Session<'_>, sql: String) -> Result<Vec<TallyRow>> {
    session.rows(sql).await?.iter().map(row).collect()
}

/// Tallies as they are, without a lock.
pub(super) async fn look(
    session: &mut Session<'_>,
    ids: &BTreeSet<TallyId>,
) -> Result<BTreeMap<TallyId, TallyRow>> {
    by_id(session, ids, "").await
}

/// Locks tallies in the order of their numbers, waiting for whoever has them.
pub(super) async fn lock(
    session: &mut Session<'_>,
    ids: &BTreeSet<TallyId>,
) -> Result<BTreeMap<TallyId, TallyRow>> {
    by_id(session, ids, " FOR UPDATE").await
}

async fn by_id(
    session: &mut Session<'_>,
    ids: &BTreeSet<TallyId>,
    lock: &str,
) -> Result<BTreeMap<TallyId, TallyRow>> {
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let sql = format!(
        "SELECT {TALLY} FROM {} STRAIGHT_JOIN tramline_tally t FORCE INDEX (PRIMARY) ON t.id = n.a WHERE t.state < 5{lock}",
        numbered(ids.iter().map(|id| id.0))
    );
    Ok(find(session, sql).await?.into_iter().map(|row| (row.id, row)).collect())
}

/// One that must be there, locked.
pub(super) async fn require(session: &mut Session<'_>, id: TallyId) -> Result<TallyRow> {
    lock(session, &BTreeSet::from([id])).await?.remove(&id).ok_or_else(|| unknown(id))
}

/// Writes back what can change, and what there is to tell.
pub(super) fn write(session: &mut Session<'_>, rows: &[&TallyRow], outbox: &[Outgoing]) {
    for row in rows {
        session.write(format!(
            "UPDATE tramline_tally SET state = {}, tells = {}, next_part = {}, total = {}, parts_left = {}, done = {}, \
             failed = {}, sealed_at = {}, ended_at = {}, active_at = {}, ended_by = {} WHERE id = {}",
            row.state as i16,
            row.tells.0,
            row.next_part,
            row.total,
            row.parts_left,
            row.done,
            row.failed,
            maybe_time(row.sealed_at),
            maybe_time(row.ended_at),
            row.active_at.0,
            row.ended_by,
            row.id.0
        ));
    }
    put_out(session, outbox);
}

/// Puts news into the outbox.
pub(super) fn put_out(session: &mut Session<'_>, outbox: &[Outgoing]) {
    let values = |out: &Outgoing| {
        let item = maybe(out.item.map(u64::cast_signed));
        format!("({},{},{},{},{},{item})", out.tally.0, out.news as i16, out.total, out.done, out.failed)
    };
    let head = "INSERT INTO tramline_tally_outbox (tally, news, total, done, failed, item) VALUES ";
    session.write_all(insert(head, outbox.iter().map(values), "", session.common.packet));
}

/// Writes that items were added.
pub(super) fn extend(session: &mut Session<'_>, added: &BTreeMap<TallyId, Added>, of: Of) {
    let (token, of_events) = of.columns();
    let rows = added.iter().map(|(tally, added)| {
        format!("({},{},{},{},{of_events})", tally.0, added.first / PART, added.count, maybe(token))
    });
    let head = "INSERT INTO tramline_tally_extent (tally, part, count, token, of_events) VALUES ";
    session.write_all(insert(head, rows, "", session.common.packet));
}

/// What was added under a token.
pub(super) async fn added(session: &mut Session<'_>, tally: TallyId, token: i64) -> Result<Option<Added>> {
    let sql = format!(
        "SELECT part, count FROM tramline_tally_extent WHERE tally = {} AND token = {token}",
        tally.0
    );
    let rows = session.rows(sql).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Added { first: row.count(0)? * PART, count: row.count(1)? }))
}

/// Locks parts and gives those that exist. Those of live tallies that nobody has touched before are written: first all that are
/// missing, then the locks, both in sorted order. Inserted with ON DUPLICATE KEY, as the heads of keys are.
pub(super) async fn lock_parts(
    session: &mut Session<'_>,
    ids: &BTreeSet<PartId>,
) -> Result<BTreeMap<PartId, Part>> {
    let mut parts = BTreeMap::new();
    if ids.is_empty() {
        return Ok(parts);
    }
    let missing = missing(session, ids).await?;
    let now = session.now.0;
    let rows =
        missing.iter().map(|(id, items)| format!("({},{},{items},{items},{now})", id.tally.0, id.part));
    let head = "INSERT INTO tramline_tally_part (tally, part, items, remaining, active_at) VALUES ";
    let tail = " ON DUPLICATE KEY UPDATE items = items";
    session.write_all(insert(head, rows, tail, session.common.packet));
    let sql = parts_sql(ids, "tally, part, items, remaining, pending, failures", " FOR UPDATE");
    for row in session.sets(sql).await?.iter().flatten() {
        parts.insert(part_id(row)?, part(row, 2)?);
    }
    Ok(parts)
}

/// Statements that read parts by their keys, in sorted order.
fn parts_sql(ids: &BTreeSet<PartId>, columns: &str, lock: &str) -> Vec<String> {
    let ids: Vec<(i64, i64)> = ids.iter().map(|id| (id.tally.0, id.part.cast_signed())).collect();
    let select = |some: &[(i64, i64)]| {
        format!(
            "SELECT {columns} FROM {} STRAIGHT_JOIN tramline_tally_part p FORCE INDEX (PRIMARY) \
             ON p.tally = n.a AND p.part = n.b{lock}",
            paired(some.iter().copied())
        )
    };
    ids.chunks(LIST).map(select).collect()
}

fn part_id(row: &MySqlRow) -> Result<PartId> {
    Ok(PartId { tally: TallyId(row.int(0)?), part: row.count(1)? })
}

/// Parts that have no row yet, though their tallies live and have items there; and how many items.
async fn missing(session: &mut Session<'_>, ids: &BTreeSet<PartId>) -> Result<BTreeMap<PartId, u64>> {
    let mut sets = session.sets(parts_sql(ids, "tally, part", "")).await?;
    let known: BTreeSet<PartId> = sets.drain(..).flatten().map(|row| part_id(&row)).collect::<Result<_>>()?;
    let unknown: BTreeSet<PartId> = ids.difference(&known).copied().collect();
    let mut missing = BTreeMap::new();
    for (id, extent) in extents(session, &unknown, true).await? {
        let items = extent.count.saturating_sub((id.part - extent.part) * PART).min(PART);
        if items > 0 {
            missing.insert(id, items);
        }
    }
    Ok(missing)
}

/// Items that were added together.
#[derive(Clone, Copy)]
struct Extent {
    part: u64,
    count: u64,
    of_events: bool,
}

/// The extent in which each part is, if any.
async fn extents(
    session: &mut Session<'_>,
    parts: &BTreeSet<PartId>,
    live: bool,
) -> Result<BTreeMap<PartId, Extent>> {
    if parts.is_empty() {
        return Ok(BTreeMap::new());
    }
    let alive = if live {
        " AND EXISTS (SELECT 1 FROM tramline_tally t WHERE t.id = e.tally AND t.state < 2)"
    } else {
        ""
    };
    let one = |id: &PartId| {
        format!(
            "SELECT e.part, e.count, e.of_events FROM tramline_tally_extent e FORCE INDEX (PRIMARY) WHERE e.tally = {} \
             AND e.part <= {}{alive} ORDER BY e.tally DESC, e.part DESC LIMIT 1",
            id.tally.0, id.part
        )
    };
    let sets = session.sets(parts.iter().map(one).collect()).await?;
    let mut found = BTreeMap::new();
    for (id, rows) in parts.iter().zip(&sets) {
        if let Some(row) = rows.first() {
            found.insert(*id, Extent { part: row.count(0)?, count: row.count(1)?, of_events: row.flag(2)? });
        }
    }
    Ok(found)
}

/// A part whose columns begin at `at`.
fn part(row: &MySqlRow, at: usize) -> Result<Part> {
    let (pending, failed) = (row.maybe_blob(at + 2)?, row.maybe_blob(at + 3)?);
    Part::read(row.int(at)? as u32, pending.as_deref(), row.int(at + 1)? as u32, failed.as_deref())
}

/// Writes parts back. They exist, and are locked.
pub(super) fn write_parts(session: &mut Session<'_>, parts: &[(PartId, &Part)]) {
    let now = session.now.0;
    let values = |(id, part): &(PartId, &Part)| {
        let (pending, failures) = (part.pending_bytes(), part.failed_bytes());
        let (left, is_open) = (part.left(), part.left() > 0);
        let (pending, failures) = (maybe_bytes(pending.as_deref()), maybe_bytes(failures.as_deref()));
        let (done, failed) = (part.done(), part.failed());
        format!("({},{},0,{left},{done},{failed},{now},{is_open},{pending},{failures})", id.tally.0, id.part)
    };
    let head = "INSERT INTO tramline_tally_part \
                (tally, part, items, remaining, done, failed, active_at, is_open, pending, failures) VALUES ";
    let tail = overwrite(&["remaining", "done", "failed", "active_at", "is_open", "pending", "failures"]);
    session.write_all(insert(head, parts.iter().map(values), &tail, session.common.packet));
}

/// Those of some items that were added, as they are without a lock.
pub(super) async fn items(
    session: &mut Session<'_>,
    items: &BTreeSet<TallyItem>,
) -> Result<BTreeMap<TallyItem, ItemRow>> {
    let part_of = |item: &TallyItem| PartId { tally: item.tally, part: item.number / PART };
    let ids: BTreeSet<PartId> = items.iter().map(part_of).collect();
    let mut found = BTreeMap::new();
    if ids.is_empty() {
        return Ok(found);
    }
    let extents = extents(session, &ids, false).await?;
    let sql = parts_sql(&ids, "tally, part, items, remaining, pending, failures", "");
    let mut known = BTreeMap::new();
    for row in session.sets(sql).await?.iter().flatten() {
        known.insert(part_id(row)?, part(row, 2)?);
    }
    for item in items {
        let id = part_of(item);
        let Some(extent) = extents.get(&id) else { continue };
        let part = match known.remove(&id) {
            Some(part) => Some(part),
            None => Part::untouched(extent.count, id.part - extent.part),
        };
        if let Some(row) = part.as_ref().and_then(|part| ItemRow::of(item.number, part, extent.of_events)) {
            found.insert(*item, row);
        }
        known.extend(part.map(|part| (id, part)));
    }
    Ok(found)
}

/// True if a tally stands for an item, by `tramline_tally_parent`. One on its way out counts: it may still have to tell.
pub(super) async fn has_child(session: &mut Session<'_>, item: TallyItem) -> Result<bool> {
    let sql = format!(
        "SELECT 1 FROM tramline_tally WHERE parent_tally = {} AND parent_item = {} LIMIT 1",
        item.tally.0, item.number
    );
    Ok(!session.rows(sql).await?.is_empty())
}

/// Tallies with all that users are shown, in one statement: a part that is finished meanwhile is counted once.
pub(super) fn view_sql(filter: &str) -> String {
    let sum = |what: &str| {
        format!(
            "(SELECT {what} FROM tramline_tally_part p FORCE INDEX (tramline_tally_part_open) \
             WHERE p.tally = t.id AND p.is_open = 1)"
        )
    };
    format!(
        "SELECT {TALLY}, (SELECT n.body FROM tramline_tally_note n WHERE n.tally = t.id AND n.kind = -1), \
         {}, {}, {} FROM tramline_tally t WHERE t.state < 5 AND {filter}",
        sum("CAST(COALESCE(SUM(p.done), 0) AS SIGNED)"),
        sum("CAST(COALESCE(SUM(p.failed), 0) AS SIGNED)"),
        sum("MAX(p.active_at)")
    )
}

/// The tallies that a statement made by [`view_sql`] finds.
pub(super) async fn views(session: &mut Session<'_>, sql: String) -> Result<Vec<Tally>> {
    let now = session.now;
    let view = |found: &MySqlRow| {
        let unfinished = Unfinished {
            done: found.count(21)?,
            failed: found.count(22)?,
            active_at: found.maybe_int(23)?.map(Time),
        };
        Ok(row(found)?.view(metadata(found.maybe_text(20)?), unfinished, now))
    };
    session.rows(sql).await?.iter().map(view).collect()
}
