//! Rows of tallies, their parts and what was added to them.

use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::news::Outgoing;
use crate::model::tally::part::{PART, Part, PartId};
use crate::model::tally::{Added, TallyItem};
use crate::model::time::Time;
use crate::plan::tally::{ItemRow, TallyRow, Tells, Unfinished, unknown};
use crate::store::sqlite::rows::draw;
use crate::store::tally::{Of, state};
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

/// The columns of a tally, in the order [`row`] reads them.
const TALLY: &str = "id, state, growing, estimated, tells, user_key, parent_tally, parent_item, next_part, total, \
                     parts_left, done, failed, created_at, sealed_at, ended_at, active_at, expires_at, ended_by, \
                     topic";

fn row(row: &Row<'_>) -> Result<TallyRow> {
    let parent: Option<i64> = row.get(6)?;
    let number = row.get::<_, Option<i64>>(7)?.unwrap_or_default().cast_unsigned();
    let count = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
    let time = |at| row.get::<_, Option<i64>>(at).map(|time| time.map(Time));
    Ok(TallyRow {
        id: TallyId(row.get(0)?),
        state: state(row.get(1)?)?,
        growing: row.get(2)?,
        estimated: row.get(3)?,
        tells: Tells(row.get(4)?),
        user_key: row.get(5)?,
        parent: parent.map(|tally| TallyItem { tally: TallyId(tally), number }),
        next_part: count(8)?,
        total: count(9)?,
        parts_left: count(10)?,
        done: count(11)?,
        failed: count(12)?,
        created_at: Time(row.get(13)?),
        sealed_at: time(14)?,
        ended_at: time(15)?,
        active_at: Time(row.get(16)?),
        expires_at: time(17)?,
        ended_by: row.get(18)?,
        topic: row.get(19)?,
    })
}

/// Tallies that `filter` (an SQL condition) selects, but for those that are on their way out.
pub(super) fn find(conn: &Connection, filter: &str, values: impl Params) -> Result<Vec<TallyRow>> {
    find_some(conn, filter, values, usize::MAX, |_| true)
}

/// The same, as long as there are fewer than `limit` that are wanted.
pub(super) fn find_some(
    conn: &Connection,
    filter: &str,
    values: impl Params,
    limit: usize,
    wanted: impl Fn(&TallyRow) -> bool,
) -> Result<Vec<TallyRow>> {
    // The sign keeps the planner from thinking of an index by state here.
    let sql = format!("SELECT {TALLY} FROM tramline_tally WHERE +state < 5 AND {filter}");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query(values)?;
    let mut found = Vec::new();
    while found.len() < limit
        && let Some(next) = rows.next()?
    {
        found.extend(Some(row(next)?).filter(&wanted));
    }
    Ok(found)
}

/// One tally. The write transaction is the lock.
pub(super) fn one(conn: &Connection, id: TallyId) -> Result<Option<TallyRow>> {
    Ok(find(conn, "id = ?", [id.0])?.pop())
}

/// Writes a new tally, and gives its number.
pub(super) fn insert(conn: &Connection, tally: &TallyRow, key: Option<&str>, hash: &[u8]) -> Result<TallyId> {
    let id = draw(conn, "tally", 1)?;
    let sql = "INSERT INTO tramline_tally (id, state, growing, estimated, tells, user_key, parent_tally, parent_item, \
               next_part, total, parts_left, done, failed, created_at, active_at, expires_at, ended_by, idle_since, \
               checked_at, open_key, open_hash, topic) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, 0, 0, 0, 0, ?9, ?9, ?10, 0, ?9, ?9, ?11, ?12, ?13)";
    conn.prepare_cached(sql)?.execute(params![
        id,
        tally.state as i16,
        tally.growing,
        tally.estimated,
        tally.tells.0,
        tally.user_key,
        tally.parent.map(|parent| parent.tally.0),
        tally.parent.map(|parent| parent.number.cast_signed()),
        tally.created_at.0,
        tally.expires_at.map(|time| time.0),
        key,
        key.map(|_| hash),
        tally.topic,
    ])?;
    Ok(TallyId(id))
}

/// Writes back what can change, and what there is to tell.
pub(super) fn write(conn: &Connection, tally: &TallyRow, outbox: &[Outgoing]) -> Result<()> {
    let sql = "UPDATE tramline_tally SET state = ?, tells = ?, next_part = ?, total = ?, parts_left = ?, done = ?, \
               failed = ?, sealed_at = ?, ended_at = ?, active_at = ?, ended_by = ? WHERE id = ?";
    conn.prepare_cached(sql)?.execute(params![
        tally.state as i16,
        tally.tells.0,
        tally.next_part.cast_signed(),
        tally.total.cast_signed(),
        tally.parts_left.cast_signed(),
        tally.done.cast_signed(),
        tally.failed.cast_signed(),
        tally.sealed_at.map(|time| time.0),
        tally.ended_at.map(|time| time.0),
        tally.active_at.0,
        tally.ended_by,
        tally.id.0,
    ])?;
    put_out(conn, outbox)
}

/// Puts news into the outbox.
pub(super) fn put_out(conn: &Connection, outbox: &[Outgoing]) -> Result<()> {
    let sql = "INSERT INTO tramline_tally_outbox (tally, news, total, done, failed, item) VALUES (?, ?, ?, ?, ?, ?)";
    for out in outbox {
        conn.prepare_cached(sql)?.execute(params![
            out.tally.0,
            out.news as i16,
            out.total.cast_signed(),
            out.done.cast_signed(),
            out.failed.cast_signed(),
            out.item.map(u64::cast_signed),
        ])?;
    }
    Ok(())
}

/// Writes that items were added.
pub(super) fn extend(conn: &Connection, tally: TallyId, added: Added, of: Of) -> Result<()> {
    let sql =
        "INSERT INTO tramline_tally_extent (tally, part, count, token, of_events) VALUES (?, ?, ?, ?, ?)";
    let (part, count) = ((added.first / PART).cast_signed(), added.count.cast_signed());
    let (token, of_events) = of.columns();
    conn.prepare_cached(sql)?.execute(params![tally.0, part, count, token, of_events])?;
    Ok(())
}

/// What was added under a token.
pub(super) fn added(conn: &Connection, tally: TallyId, token: i64) -> Result<Option<Added>> {
    let sql = "SELECT part, count FROM tramline_tally_extent WHERE tally = ? AND token = ?";
    let added = conn.prepare_cached(sql)?.query_row([tally.0, token], |row| {
        let (part, count): (i64, i64) = (row.get(0)?, row.get(1)?);
        Ok(Added { first: part.cast_unsigned() * PART, count: count.cast_unsigned() })
    });
    Ok(added.optional()?)
}

/// A part as it is. One that nobody has touched follows from what was added; `None` if there is none.
pub(super) fn part(conn: &Connection, id: PartId) -> Result<Option<Part>> {
    let sql =
        "SELECT items, pending, remaining, failures FROM tramline_tally_part WHERE tally = ? AND part = ?";
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query([id.tally.0, id.part.cast_signed()])?;
    if let Some(row) = rows.next()? {
        let (pending, failed) = (row.get_ref(1)?, row.get_ref(3)?);
        let pending = pending.as_blob_or_null().map_err(rusqlite::Error::from)?;
        let failed = failed.as_blob_or_null().map_err(rusqlite::Error::from)?;
        return Part::read(row.get(0)?, pending, row.get(2)?, failed).map(Some);
    }
    Ok(extent(conn, id)?.and_then(|(added, _)| Part::untouched(added.count, id.part - added.first / PART)))
}

/// The addition that a part belongs to, if it has the part, and whether it was of events. The primary key, backwards from the
/// part: the last addition before it is the only one that can reach it.
fn extent(conn: &Connection, id: PartId) -> Result<Option<(Added, bool)>> {
    let sql = "SELECT part, count, of_events FROM tramline_tally_extent WHERE tally = ? AND part <= ? \
               ORDER BY part DESC LIMIT 1";
    let extent = conn.prepare_cached(sql)?.query_row([id.tally.0, id.part.cast_signed()], |row| {
        let (part, count): (i64, i64) = (row.get(0)?, row.get(1)?);
        Ok((Added { first: part.cast_unsigned() * PART, count: count.cast_unsigned() }, row.get(2)?))
    });
    Ok(extent.optional()?)
}

/// One item as it is; `None` if it was never added.
pub(super) fn item(conn: &Connection, item: TallyItem) -> Result<Option<ItemRow>> {
    let id = PartId { tally: item.tally, part: item.number / PART };
    let (Some(part), Some((_, of_events))) = (part(conn, id)?, extent(conn, id)?) else { return Ok(None) };
    Ok(ItemRow::of(item.number, &part, of_events))
}

/// True if a tally stands for an item, by `tramline_tally_parent`. One on its way out counts: it may still have to tell.
pub(super) fn has_child(conn: &Connection, item: TallyItem) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM tramline_tally WHERE parent_tally = ? AND parent_item = ?)";
    let values = [item.tally.0, item.number.cast_signed()];
    Ok(conn.prepare_cached(sql)?.query_row(values, |row| row.get(0))?)
}

/// Writes a part back, or for the first time.
pub(super) fn write_part(conn: &Connection, id: PartId, part: &Part, now: Time) -> Result<()> {
    let sql = "INSERT INTO tramline_tally_part (tally, part, items, remaining, done, failed, active_at, pending, failures) \
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET remaining = excluded.remaining, done = excluded.done, \
               failed = excluded.failed, active_at = excluded.active_at, pending = excluded.pending, \
               failures = excluded.failures";
    conn.prepare_cached(sql)?.execute(params![
        id.tally.0,
        id.part.cast_signed(),
        part.items(),
        part.left(),
        part.done(),
        part.failed(),
        now.0,
        part.pending_bytes(),
        part.failed_bytes(),
    ])?;
    Ok(())
}

/// What happened in the parts that are under way: the index has all of it.
pub(super) fn unfinished(conn: &Connection, tally: TallyId) -> Result<Unfinished> {
    sums(conn, tally, "remaining > 0")
}

/// Sums over some parts of a tally.
pub(super) fn sums(conn: &Connection, tally: TallyId, filter: &str) -> Result<Unfinished> {
    let sql = format!(
        "SELECT coalesce(sum(done), 0), coalesce(sum(failed), 0), max(active_at) FROM tramline_tally_part \
         WHERE tally = ? AND {filter}"
    );
    Ok(conn.prepare_cached(&sql)?.query_row([tally.0], |row| {
        Ok(Unfinished {
            done: row.get::<_, i64>(0)?.cast_unsigned(),
            failed: row.get::<_, i64>(1)?.cast_unsigned(),
            active_at: row.get::<_, Option<i64>>(2)?.map(Time),
        })
    })?)
}

/// A note of a tally.
pub(super) fn note(conn: &Connection, tally: TallyId, kind: i16) -> Result<Option<String>> {
    let sql = "SELECT body FROM tramline_tally_note WHERE tally = ? AND kind = ?";
    Ok(conn.prepare_cached(sql)?.query_row(params![tally.0, kind], |row| row.get(0)).optional()?)
}

/// One that must be there.
pub(super) fn require(conn: &Connection, id: TallyId) -> Result<TallyRow> {
    one(conn, id)?.ok_or_else(|| unknown(id))
}
