//! Rows of tallies, their parts and what was added to them. Always many at a time.

use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::news::Outgoing;
use crate::model::tally::part::{PART, Part, PartId};
use crate::model::tally::{Added, Tally, TallyItem};
use crate::model::time::Time;
use crate::plan::tally::{ItemRow, TallyRow, Tells, Unfinished, unknown};
use crate::store::postgres::session::{Query, Session};
use crate::store::tally::{Of, metadata, state};
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::collections::{BTreeMap, BTreeSet};

/// The columns of a tally `t`, in the order [`row`] reads them; statements write `{tally}`.
pub(in crate::store::postgres) const TALLY: &str = "t.id, t.state, t.growing, t.estimated, t.tells, t.user_key, \
    t.parent_tally, t.parent_item, t.next_part, t.total, t.parts_left, t.done, t.failed, t.created_at, t.sealed_at, \
    t.ended_at, t.active_at, t.expires_at, t.ended_by, t.topic";

pub(super) fn row(row: &PgRow) -> Result<TallyRow> {
    let parent: Option<i64> = row.try_get(6)?;
    let number = row.try_get::<Option<i64>, _>(7)?.unwrap_or_default().cast_unsigned();
    let count = |at: usize| row.try_get::<i64, _>(at).map(i64::cast_unsigned);
    let time = |at: usize| row.try_get::<Option<i64>, _>(at).map(|time| time.map(Time));
    Ok(TallyRow {
        id: TallyId(row.try_get(0)?),
        state: state(row.try_get(1)?)?,
        growing: row.try_get(2)?,
        estimated: row.try_get(3)?,
        tells: Tells(row.try_get(4)?),
        user_key: row.try_get(5)?,
        parent: parent.map(|tally| TallyItem { tally: TallyId(tally), number }),
        next_part: count(8)?,
        total: count(9)?,
        parts_left: count(10)?,
        done: count(11)?,
        failed: count(12)?,
        created_at: Time(row.try_get(13)?),
        sealed_at: time(14)?,
        ended_at: time(15)?,
        active_at: Time(row.try_get(16)?),
        expires_at: time(17)?,
        ended_by: row.try_get(18)?,
        topic: row.try_get(19)?,
    })
}

/// Tallies that a statement with `{tally}` finds.
pub(super) async fn find(session: &mut Session<'_>, query: Query) -> Result<Vec<TallyRow>> {
    session.all(query).await?.iter().map(row).collect()
}

/// Tallies as they are, without a lock.
pub(super) async fn look(
    session: &mut Session<'_>,
    ids: &BTreeSet<TallyId>,
) -> Result<BTreeMap<TallyId, TallyRow>> {
    let sql = "SELECT {tally} FROM tramline_tally t WHERE t.id = ANY($1) AND t.state + 0 < 5";
    by_id(session, sql, ids).await
}

/// Locks tallies in the order of their numbers, waiting for whoever has them.
pub(super) async fn lock(
    session: &mut Session<'_>,
    ids: &BTreeSet<TallyId>,
) -> Result<BTreeMap<TallyId, TallyRow>> {
    let sql = "SELECT {tally} FROM tramline_tally t WHERE t.id = ANY($1) AND t.state + 0 < 5 ORDER BY t.id FOR UPDATE";
    by_id(session, sql, ids).await
}

async fn by_id(
    session: &mut Session<'_>,
    sql: &'static str,
    ids: &BTreeSet<TallyId>,
) -> Result<BTreeMap<TallyId, TallyRow>> {
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let query = session.query(sql).bind(ids.iter().map(|id| id.0).collect::<Vec<i64>>());
    Ok(find(session, query).await?.into_iter().map(|row| (row.id, row)).collect())
}

/// One that must be there, locked.
pub(super) async fn require(session: &mut Session<'_>, id: TallyId) -> Result<TallyRow> {
    lock(session, &BTreeSet::from([id])).await?.remove(&id).ok_or_else(|| unknown(id))
}

/// Writes back what can change, and what there is to tell.
pub(super) async fn write(session: &mut Session<'_>, rows: &[&TallyRow], outbox: &[Outgoing]) -> Result<()> {
    if rows.is_empty() {
        return put_out(session, outbox).await;
    }
    let sql = "UPDATE tramline_tally t SET state = u.state, tells = u.tells, next_part = u.next_part, total = u.total, \
               parts_left = u.parts_left, done = u.done, failed = u.failed, sealed_at = u.sealed_at, \
               ended_at = u.ended_at, active_at = u.active_at, ended_by = u.ended_by \
               FROM unnest($1::bigint[], $2::smallint[], $3::smallint[], $4::bigint[], $5::bigint[], $6::bigint[], \
               $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[]) \
               AS u(id, state, tells, next_part, total, parts_left, done, failed, sealed_at, ended_at, active_at, ended_by) \
               WHERE t.id = u.id";
    let big =
        |value: fn(&TallyRow) -> u64| rows.iter().map(|row| value(row).cast_signed()).collect::<Vec<i64>>();
    let time = |value: fn(&TallyRow) -> Option<Time>| {
        rows.iter().map(|row| value(row).map(|time| time.0)).collect::<Vec<Option<i64>>>()
    };
    let query = session
        .query(sql)
        .bind(rows.iter().map(|row| row.id.0).collect::<Vec<i64>>())
        .bind(rows.iter().map(|row| row.state as i16).collect::<Vec<i16>>())
        .bind(rows.iter().map(|row| row.tells.0).collect::<Vec<i16>>())
        .bind(big(|row| row.next_part))
        .bind(big(|row| row.total))
        .bind(big(|row| row.parts_left))
        .bind(big(|row| row.done))
        .bind(big(|row| row.failed))
        .bind(time(|row| row.sealed_at))
        .bind(time(|row| row.ended_at))
        .bind(time(|row| Some(row.active_at)))
        .bind(rows.iter().map(|row| row.ended_by).collect::<Vec<i64>>());
    session.run(query).await?;
    put_out(session, outbox).await
}

/// Puts news into the outbox.
pub(super) async fn put_out(session: &mut Session<'_>, outbox: &[Outgoing]) -> Result<()> {
    if outbox.is_empty() {
        return Ok(());
    }
    let sql = "INSERT INTO tramline_tally_outbox (tally, news, total, done, failed, item) \
               SELECT * FROM unnest($1::bigint[], $2::smallint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])";
    let big =
        |value: fn(&Outgoing) -> u64| outbox.iter().map(|out| value(out).cast_signed()).collect::<Vec<i64>>();
    let query = session
        .query(sql)
        .bind(outbox.iter().map(|out| out.tally.0).collect::<Vec<i64>>())
        .bind(outbox.iter().map(|out| out.news as i16).collect::<Vec<i16>>())
        .bind(big(|out| out.total))
        .bind(big(|out| out.done))
        .bind(big(|out| out.failed))
        .bind(outbox.iter().map(|out| out.item.map(u64::cast_signed)).collect::<Vec<Option<i64>>>());
    session.run(query).await.map(|_| ())
}

/// Writes that items were added.
pub(super) async fn extend(
    session: &mut Session<'_>,
    added: &BTreeMap<TallyId, Added>,
    of: Of,
) -> Result<()> {
    let (token, of_events) = of.columns();
    let sql = "INSERT INTO tramline_tally_extent (tally, part, count, token, of_events) \
               SELECT u.tally, u.part, u.count, $4, $5 FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) \
               AS u(tally, part, count)";
    let query = session
        .query(sql)
        .bind(added.keys().map(|tally| tally.0).collect::<Vec<i64>>())
        .bind(added.values().map(|added| (added.first / PART).cast_signed()).collect::<Vec<i64>>())
        .bind(added.values().map(|added| added.count.cast_signed()).collect::<Vec<i64>>())
        .bind(token)
        .bind(of_events);
    session.run(query).await.map(|_| ())
}

/// What was added under a token.
pub(super) async fn added(session: &mut Session<'_>, tally: TallyId, token: i64) -> Result<Option<Added>> {
    let sql = "SELECT e.part, e.count FROM tramline_tally_extent e WHERE e.tally = $1 AND e.token = $2";
    let query = session.query(sql).bind(tally.0).bind(token);
    let rows = session.all(query).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (part, count): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    Ok(Some(Added { first: part.cast_unsigned() * PART, count: count.cast_unsigned() }))
}

/// Locks parts and gives those that exist; see `migrations/0007_tally.sql`.
pub(super) async fn lock_parts(
    session: &mut Session<'_>,
    ids: &BTreeSet<PartId>,
) -> Result<BTreeMap<PartId, Part>> {
    let mut parts = BTreeMap::new();
    if ids.is_empty() {
        return Ok(parts);
    }
    let sql = "SELECT tally, part, items, remaining, pending, failures FROM tramline_tally_lock($1, $2, $3)";
    let query = session
        .query(sql)
        .bind(ids.iter().map(|id| id.tally.0).collect::<Vec<i64>>())
        .bind(ids.iter().map(|id| id.part.cast_signed()).collect::<Vec<i64>>())
        .bind(session.now.0);
    for row in session.all(query).await? {
        let id = PartId { tally: TallyId(row.try_get(0)?), part: row.try_get::<i64, _>(1)?.cast_unsigned() };
        parts.insert(id, part(&row, 2)?);
    }
    Ok(parts)
}

/// A part whose columns begin at `at`.
fn part(row: &PgRow, at: usize) -> Result<Part> {
    let (items, left): (i32, i32) = (row.try_get(at)?, row.try_get(at + 1)?);
    let (pending, failed): (Option<&[u8]>, Option<&[u8]>) = (row.try_get(at + 2)?, row.try_get(at + 3)?);
    Part::read(items.cast_unsigned(), pending, left.cast_unsigned(), failed)
}

/// Writes parts back.
pub(super) async fn write_parts(session: &mut Session<'_>, parts: &[(PartId, &Part)]) -> Result<()> {
    if parts.is_empty() {
        return Ok(());
    }
    let sql = "UPDATE tramline_tally_part p SET remaining = u.remaining, done = u.done, failed = u.failed, \
               active_at = $8, is_open = u.remaining > 0, pending = u.pending, failures = u.failures \
               FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::int[], $5::int[], $6::bytea[], $7::bytea[]) \
               AS u(tally, part, remaining, done, failed, pending, failures) \
               WHERE p.tally = u.tally AND p.part = u.part";
    let int = |value: fn(&Part) -> u32| {
        parts.iter().map(|(_, part)| value(part).cast_signed()).collect::<Vec<i32>>()
    };
    let query = session
        .query(sql)
        .bind(parts.iter().map(|(id, _)| id.tally.0).collect::<Vec<i64>>())
        .bind(parts.iter().map(|(id, _)| id.part.cast_signed()).collect::<Vec<i64>>())
        .bind(int(Part::left))
        .bind(int(Part::done))
        .bind(int(Part::failed))
        .bind(parts.iter().map(|(_, part)| part.pending_bytes()).collect::<Vec<Option<Vec<u8>>>>())
        .bind(parts.iter().map(|(_, part)| part.failed_bytes()).collect::<Vec<Option<Vec<u8>>>>())
        .bind(session.now.0);
    session.run(query).await.map(|_| ())
}

/// Those of some items that were added, as they are without a lock.
pub(super) async fn items(
    session: &mut Session<'_>,
    items: &BTreeSet<TallyItem>,
) -> Result<BTreeMap<TallyItem, ItemRow>> {
    let mut found = BTreeMap::new();
    if items.is_empty() {
        return Ok(found);
    }
    let sql = "SELECT u.tally, u.number, e.part, e.count, e.of_events, p.items, p.remaining, p.pending, p.failures \
               FROM unnest($1::bigint[], $2::bigint[]) AS u(tally, number) \
               CROSS JOIN LATERAL (SELECT e.part, e.count, e.of_events FROM tramline_tally_extent e WHERE e.tally = u.tally \
                   AND e.part <= u.number / 4096 ORDER BY e.tally DESC, e.part DESC LIMIT 1) e \
               LEFT JOIN tramline_tally_part p ON p.tally = u.tally AND p.part = u.number / 4096";
    let query = session
        .query(sql)
        .bind(items.iter().map(|item| item.tally.0).collect::<Vec<i64>>())
        .bind(items.iter().map(|item| item.number.cast_signed()).collect::<Vec<i64>>());
    for row in session.all(query).await? {
        let item =
            TallyItem { tally: TallyId(row.try_get(0)?), number: row.try_get::<i64, _>(1)?.cast_unsigned() };
        let (first, count): (i64, i64) = (row.try_get(2)?, row.try_get(3)?);
        let part = match row.try_get::<Option<i32>, _>(5)? {
            Some(_) => Some(part(&row, 5)?),
            None => Part::untouched(count.cast_unsigned(), item.number / PART - first.cast_unsigned()),
        };
        let of_events = row.try_get(4)?;
        let known = part.and_then(|part| ItemRow::of(item.number, &part, of_events));
        found.extend(known.map(|known| (item, known)));
    }
    Ok(found)
}

/// True if a tally stands for an item, by `tramline_tally_parent`. One on its way out counts: it may still have to tell.
pub(super) async fn has_child(session: &mut Session<'_>, item: TallyItem) -> Result<bool> {
    let sql = "SELECT 1 FROM tramline_tally t WHERE t.parent_tally = $1 AND t.parent_item = $2 \
               AND t.parent_tally IS NOT NULL LIMIT 1";
    let query = session.query(sql).bind(item.tally.0).bind(item.number.cast_signed());
    Ok(!session.all(query).await?.is_empty())
}

/// Tallies with all that users are shown, in one statement: a part that is finished meanwhile is counted once.
macro_rules! view {
    ($filter:literal) => {
        concat!(
            "SELECT {tally}, n.body, p.done, p.failed, p.active_at FROM tramline_tally t \
             LEFT JOIN tramline_tally_note n ON n.tally = t.id AND n.kind = -1 \
             CROSS JOIN LATERAL (SELECT coalesce(sum(p.done), 0)::bigint AS done, \
                 coalesce(sum(p.failed), 0)::bigint AS failed, max(p.active_at) AS active_at \
                 FROM tramline_tally_part p WHERE p.tally = t.id AND p.is_open) p WHERE t.state + 0 < 5 AND ",
            $filter
        )
    };
}
pub(super) use view;

/// The tallies that a statement made by [`view!`] finds.
pub(super) async fn views(session: &mut Session<'_>, query: Query) -> Result<Vec<Tally>> {
    let now = session.now;
    let view = |found: &PgRow| {
        let unfinished = Unfinished {
            done: found.try_get::<i64, _>(21)?.cast_unsigned(),
            failed: found.try_get::<i64, _>(22)?.cast_unsigned(),
            active_at: found.try_get::<Option<i64>, _>(23)?.map(Time),
        };
        Ok(row(found)?.view(metadata(found.try_get(20)?), unfinished, now))
    };
    session.all(query).await?.iter().map(view).collect()
}
