//! Schedules: a tick emits and moves on in one transaction, so each run comes once.

use super::emit;
use super::session::{CatalogCache, Session};
use crate::error::Result;
use crate::model::schedule::StoredSchedule;
use crate::plan::schedule::ScheduleRow;
use crate::store::schedule::{self, Columns, Running, Sent, moved, unknown};
use crate::store::verbs::{DeclareSchedules, Emission, ListSchedules, PutSchedule, Tick, Ticked};
use rusqlite::{Connection, Params, Row, params};

/// The columns of a schedule, in the order [`columns`] reads them.
const SCHEDULE: &str = "name, body, declared_by, paused, anchor, next_run, last_tick, last_run, last_event, \
    created_at, updated_at";

pub(super) fn put(session: &Session<'_>, put: &PutSchedule) -> Result<StoredSchedule> {
    let old = find(session.conn, &put.schedule.name)?;
    let row = schedule::put(put, old.clone(), count(session.conn)?, session.now)?;
    write(session.conn, &row, old.as_ref())?;
    Ok(row.stored)
}

pub(super) fn declare(session: &Session<'_>, declare: &DeclareSchedules) -> Result<Vec<StoredSchedule>> {
    let names = schedule::check_declared(declare)?;
    let conn = session.conn;
    for old in rows(conn, "declared_by = ?", [&declare.by])? {
        if !names.contains(&old.name) {
            delete(conn, &old.name)?;
        }
    }
    let mut stored = Vec::with_capacity(declare.schedules.len());
    for wanted in &declare.schedules {
        let old = find(conn, &wanted.name)?;
        let row = schedule::declare(&declare.by, wanted, old.clone(), count(conn)?, session.now)?;
        write(conn, &row, old.as_ref())?;
        stored.push(row.stored);
    }
    Ok(stored)
}

pub(super) fn list(conn: &Connection, list: &ListSchedules) -> Result<Vec<StoredSchedule>> {
    let after = list.after.as_deref().unwrap_or_default();
    let found = rows(conn, "name > ? ORDER BY name LIMIT ?", params![after, list.limit])?;
    found.into_iter().map(|columns| Ok(columns.read()?.stored)).collect()
}

pub(super) fn get(conn: &Connection, name: &str) -> Result<Option<StoredSchedule>> {
    Ok(find(conn, name)?.map(|row| row.stored))
}

pub(super) fn delete(conn: &Connection, name: &str) -> Result<()> {
    let deleted = conn.prepare_cached("DELETE FROM tramline_schedule WHERE name = ?")?.execute([name])?;
    if deleted == 1 { Ok(()) } else { Err(unknown(name)) }
}

pub(super) fn pause(session: &Session<'_>, name: &str, paused: bool) -> Result<StoredSchedule> {
    let old = find(session.conn, name)?.ok_or_else(|| unknown(name))?;
    let row = old.clone().set_paused(paused, session.now)?;
    write(session.conn, &row, Some(&old))?;
    Ok(row.stored)
}

pub(super) fn run(session: &Session<'_>, name: &str, cache: &CatalogCache) -> Result<Emission> {
    let found = rows(session.conn, "name = ?", [name])?.pop();
    let running = schedule::asked(found.ok_or_else(|| unknown(name))?, session.now)?;
    emit_all(session, &running, cache)?.emissions.pop().ok_or_else(|| unknown(name))
}

/// When the next schedule is due, by the index on `next_run`.
pub(super) fn next(conn: &Connection) -> Result<Option<i64>> {
    let sql = "SELECT min(next_run) FROM tramline_schedule";
    Ok(conn.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
}

pub(super) fn tick(session: &Session<'_>, tick: Tick, cache: &CatalogCache) -> Result<Ticked> {
    let due = "next_run <= ? ORDER BY next_run, name LIMIT ?";
    let found = rows(session.conn, due, params![session.now.0, tick.limit])?;
    let full = found.len() as u64 >= u64::from(tick.limit);
    let running = schedule::due(found, session.now);
    let sent = emit_all(session, &running, cache)?;
    let more = (full && !running.rows.is_empty()) || running.more;
    Ok(sent.ticked(next(session.conn)?, session.now, more))
}

/// Emits, and moves each schedule on.
fn emit_all(session: &Session<'_>, running: &Running, cache: &CatalogCache) -> Result<Sent> {
    let mut sent = Sent::default();
    if !running.events.is_empty() {
        sent = Sent::new(emit::emit(session.conn, running.units(), Some(session.now), cache)?)?;
    }
    let sql = "UPDATE tramline_schedule SET next_run = ?, last_tick = ?, last_run = coalesce(?, last_run), \
               last_event = coalesce(?, last_event) WHERE name = ? AND coalesce(next_run, 0) = ?";
    let mut statement = session.conn.prepare_cached(sql)?;
    for run in &running.rows {
        let last_event = sent.last_of(run).map(|id| id.0);
        let (next_run, last_tick) = (run.next_run.map(|time| time.0), run.last_tick.map(|time| time.0));
        let last_run = run.runs.last().map(|time| time.0);
        let moved_on =
            statement.execute(params![next_run, last_tick, last_run, last_event, run.name, run.was])?;
        if moved_on != 1 {
            return Err(moved(&run.name));
        }
    }
    Ok(sent)
}

fn find(conn: &Connection, name: &str) -> Result<Option<ScheduleRow>> {
    rows(conn, "name = ?", [name])?.pop().map(Columns::read).transpose()
}

fn count(conn: &Connection) -> Result<u64> {
    let sql = "SELECT count(*) FROM tramline_schedule";
    Ok(conn.prepare_cached(sql)?.query_row([], |row| row.get::<_, i64>(0))?.cast_unsigned())
}

fn write(conn: &Connection, row: &ScheduleRow, old: Option<&ScheduleRow>) -> Result<()> {
    if old == Some(row) {
        return Ok(());
    }
    let sql = "INSERT OR REPLACE INTO tramline_schedule (name, body, declared_by, paused, anchor, next_run, last_tick, \
               last_run, last_event, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    let row = Columns::new(row);
    conn.prepare_cached(sql)?.execute(params![
        row.name,
        row.body,
        row.declared_by,
        row.paused,
        row.anchor,
        row.next_run,
        row.last_tick,
        row.last_run,
        row.last_event,
        row.created_at,
        row.updated_at,
    ])?;
    Ok(())
}

/// The schedules that a condition finds.
fn rows(conn: &Connection, filter: &str, values: impl Params) -> Result<Vec<Columns>> {
    let mut statement =
        conn.prepare_cached(&format!("SELECT {SCHEDULE} FROM tramline_schedule WHERE {filter}"))?;
    let rows = statement.query_map(values, columns)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn columns(row: &Row<'_>) -> rusqlite::Result<Columns> {
    Ok(Columns {
        name: row.get(0)?,
        body: row.get(1)?,
        declared_by: row.get(2)?,
        paused: row.get(3)?,
        anchor: row.get(4)?,
        next_run: row.get(5)?,
        last_tick: row.get(6)?,
        last_run: row.get(7)?,
        last_event: row.get(8)?,
        created_at: row.get(9)?,
        updated_at: row.get(10)?,
    })
}
