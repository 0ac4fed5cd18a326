//! Schedules: a tick emits and moves on in one step, so each run comes once.

use super::catalog::written;
use super::emit;
use super::pack::damaged;
use super::session::{Session, hget};
use super::tuple::{Columns as Tupled, Tuple};
use crate::error::Result;
use crate::model::id::EventId;
use crate::model::schedule::StoredSchedule;
use crate::plan::schedule::ScheduleRow;
use crate::store::schedule::{self, Columns, Run, Running, Sent, moved, unknown};
use crate::store::verbs::{DeclareSchedules, Emission, ListSchedules, PutSchedule, Tick, Ticked};
use serde::{Deserialize, Serialize};

/// A schedule as it is stored, but for its name.
#[derive(Serialize, Deserialize)]
struct Row {
    body: String,
    declared_by: Option<String>,
    paused: bool,
    anchor: i64,
    next_run: Option<i64>,
    last_tick: Option<i64>,
    last_run: Option<i64>,
    last_event: Option<i64>,
    created_at: i64,
    updated_at: i64,
}

fn table(session: &Session<'_>) -> Vec<u8> {
    session.key("schedules")
}

/// The names; and the names by the time of the next run.
fn names(session: &Session<'_>) -> Vec<u8> {
    session.key("schedule_names")
}

fn runs(session: &Session<'_>) -> Vec<u8> {
    session.key("schedule_runs")
}

pub(super) fn put(session: &Session<'_>, put: &PutSchedule) -> Result<StoredSchedule> {
    let old = find(session, &put.schedule.name)?;
    let row = schedule::put(put, old.clone(), count(session)?, session.now)?;
    write(session, &row, old.as_ref())?;
    Ok(row.stored)
}

pub(super) fn declare(session: &Session<'_>, declare: &DeclareSchedules) -> Result<Vec<StoredSchedule>> {
    let wanted = schedule::check_declared(declare)?;
    for (name, row) in session.all(&table(session))? {
        let old = read(String::from_utf8_lossy(&name).into_owned(), &row)?;
        if old.declared_by.as_deref() == Some(&declare.by) && !wanted.contains(&old.name) {
            delete(session, &old.name)?;
        }
    }
    let mut stored = Vec::with_capacity(declare.schedules.len());
    for wanted in &declare.schedules {
        let old = find(session, &wanted.name)?;
        let row = schedule::declare(&declare.by, wanted, old.clone(), count(session)?, session.now)?;
        write(session, &row, old.as_ref())?;
        stored.push(row.stored);
    }
    Ok(stored)
}

pub(super) fn list(session: &Session<'_>, list: &ListSchedules) -> Result<Vec<StoredSchedule>> {
    let from = list.after.as_deref().map_or_else(Vec::new, |after| Tuple::new().text(after).end());
    let found = session.range(&names(session), (from, Tuple::new().end()), list.limit as usize)?;
    let found: Vec<String> = found.iter().map(|member| Tupled(member).text()).collect();
    load(session, &found)?.into_iter().map(|columns| Ok(columns.read()?.stored)).collect()
}

pub(super) fn get(session: &Session<'_>, name: &str) -> Result<Option<StoredSchedule>> {
    Ok(find(session, name)?.map(|row| row.stored))
}

pub(super) fn delete(session: &Session<'_>, name: &str) -> Result<()> {
    let old = columns(session, name)?.ok_or_else(|| unknown(name))?;
    session.remove(table(session), name);
    session.withdraw(names(session), Tuple::new().text(name).bytes());
    take_out(session, &old);
    Ok(())
}

pub(super) fn pause(session: &Session<'_>, name: &str, paused: bool) -> Result<StoredSchedule> {
    let old = find(session, name)?.ok_or_else(|| unknown(name))?;
    let row = old.clone().set_paused(paused, session.now)?;
    write(session, &row, Some(&old))?;
    Ok(row.stored)
}

pub(super) fn run(session: &Session<'_>, name: &str) -> Result<Emission> {
    emit_all(session, &asked(session, name)?)?.emissions.pop().ok_or_else(|| unknown(name))
}

/// A schedule that runs because somebody asked for it.
pub(super) fn asked(session: &Session<'_>, name: &str) -> Result<Running> {
    schedule::asked(columns(session, name)?.ok_or_else(|| unknown(name))?, session.now)
}

/// When the next schedule is due.
pub(super) fn next(session: &Session<'_>) -> Result<Option<i64>> {
    let first = session.range(&runs(session), Tuple::new().all(), 1)?;
    Ok(first.first().map(|member| Tupled(member).number()))
}

pub(super) fn tick(session: &Session<'_>, tick: Tick) -> Result<Ticked> {
    let (running, more) = due(session, tick)?;
    let sent = emit_all(session, &running)?;
    Ok(sent.ticked(next(session)?, session.now, more))
}

/// The schedules that are due, and whether there may be more.
pub(super) fn due(session: &Session<'_>, tick: Tick) -> Result<(Running, bool)> {
    let range = (Tuple::new().bytes(), Tuple::new().with(&[session.now.0.saturating_add(1)]).bytes());
    let due = session.range(&runs(session), range, tick.limit as usize)?;
    let due: Vec<String> = due
        .iter()
        .map(|member| {
            let mut columns = Tupled(member);
            columns.number();
            columns.text()
        })
        .collect();
    let found = load(session, &due)?;
    let full = found.len() as u64 >= u64::from(tick.limit);
    let running = schedule::due(found, session.now);
    let more = (full && !running.rows.is_empty()) || running.more;
    Ok((running, more))
}

/// Emits, and moves each schedule on.
fn emit_all(session: &Session<'_>, running: &Running) -> Result<Sent> {
    let mut sent = Sent::default();
    if !running.events.is_empty() {
        sent = Sent::new(emit::emit(session, &running.units())?)?;
    }
    for run in &running.rows {
        let last_event = sent.last_of(run);
        if !move_on(session, run, last_event)? {
            return Err(moved(&run.name));
        }
    }
    Ok(sent)
}

/// Moves a schedule on that has run. False if somebody else did, or it is gone.
pub(super) fn move_on(session: &Session<'_>, run: &Run, last_event: Option<EventId>) -> Result<bool> {
    let old = columns(session, &run.name)?.filter(|old| old.next_run.unwrap_or(0) == run.was);
    let Some(old) = old else { return Ok(false) };
    take_out(session, &old);
    let new = Columns {
        next_run: run.next_run.map(|time| time.0),
        last_tick: run.last_tick.map(|time| time.0),
        last_run: run.runs.last().map(|time| time.0).or(old.last_run),
        last_event: last_event.map(|id| id.0).or(old.last_event),
        ..old
    };
    put_in(session, new);
    Ok(true)
}

fn find(session: &Session<'_>, name: &str) -> Result<Option<ScheduleRow>> {
    columns(session, name)?.map(Columns::read).transpose()
}

fn count(session: &Session<'_>) -> Result<u64> {
    Ok(session.count(&table(session))?.cast_unsigned())
}

fn write(session: &Session<'_>, row: &ScheduleRow, old: Option<&ScheduleRow>) -> Result<()> {
    if old == Some(row) {
        return Ok(());
    }
    let row = Columns::new(row);
    if let Some(old) = columns(session, &row.name)? {
        take_out(session, &old);
    }
    put_in(session, row);
    Ok(())
}

/// Takes a schedule out of the times of runs.
fn take_out(session: &Session<'_>, old: &Columns) {
    if let Some(next_run) = old.next_run {
        session.withdraw(runs(session), Tuple::new().with(&[next_run]).text(&old.name).bytes());
    }
}

fn put_in(session: &Session<'_>, new: Columns) {
    if let Some(next_run) = new.next_run {
        session.enter(runs(session), Tuple::new().with(&[next_run]).text(&new.name).bytes());
    }
    session.enter(names(session), Tuple::new().text(&new.name).bytes());
    let row = Row {
        body: new.body,
        declared_by: new.declared_by,
        paused: new.paused,
        anchor: new.anchor,
        next_run: new.next_run,
        last_tick: new.last_tick,
        last_run: new.last_run,
        last_event: new.last_event,
        created_at: new.created_at,
        updated_at: new.updated_at,
    };
    session.put(table(session), new.name, written(&row));
}

fn load(session: &Session<'_>, names: &[String]) -> Result<Vec<Columns>> {
    session.expect(names.iter().map(|name| hget(&table(session), name.as_bytes())))?;
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        found.extend(columns(session, name)?);
    }
    Ok(found)
}

fn columns(session: &Session<'_>, name: &str) -> Result<Option<Columns>> {
    let row = session.get(&table(session), name.as_bytes())?;
    row.map(|row| read(name.to_owned(), &row)).transpose()
}

fn read(name: String, row: &[u8]) -> Result<Columns> {
    let row: Row = serde_json::from_slice(row).map_err(|error| damaged().because(error))?;
    Ok(Columns {
        name,
        body: row.body,
        declared_by: row.declared_by,
        paused: row.paused,
        anchor: row.anchor,
        next_run: row.next_run,
        last_tick: row.last_tick,
        last_run: row.last_run,
        last_event: row.last_event,
        created_at: row.created_at,
        updated_at: row.updated_at,
    })
}
