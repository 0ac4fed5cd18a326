//! Schedules: a tick emits and moves on in one transaction, so each run comes once.

use super::PostgresStore;
use super::emit::{GROUP_WAIT, LONG_WAIT};
use super::session::{Begin, Query, Session};
use super::step::{Tries, lost_against_another, step, waited_too_long};
use crate::error::Result;
use crate::model::event::Event;
use crate::model::schedule::StoredSchedule;
use crate::model::time::Time;
use crate::plan::schedule::ScheduleRow;
use crate::store::driver::answered;
use crate::store::emit::{TRIES, restless};
use crate::store::schedule::{self, Columns, Running, Sent, moved, unknown};
use crate::store::verbs::{
    DeclareSchedules, Emission, ListSchedules, NameSchedule, PutSchedule, Tick, Ticked,
};
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::sync::Arc;
use std::time::Duration;

/// Which schedules run.
#[derive(Clone, Copy)]
enum Which<'a> {
    /// Those that are due, at most so many.
    Due(u32),
    /// This one, if it is due.
    DueNamed(&'a str),
    /// This one, whatever its times are.
    Asked(&'a str),
}

impl Which<'_> {
    /// How long to wait for a lock. A tick comes again soon; who asks does not want to ask again.
    fn patience(self) -> Duration {
        match self {
            Which::Due(_) | Which::DueNamed(_) => GROUP_WAIT,
            Which::Asked(_) => LONG_WAIT,
        }
    }
}

/// The columns of a schedule, in the order [`columns`] reads them; statements write `{schedule}`.
pub(super) const SCHEDULE: &str = "name, body, declared_by, paused, anchor, next_run, last_tick, last_run, last_event, \
    created_at, updated_at";

impl PostgresStore {
    /// All that is due in one transaction. If a key is locked by somebody's open transaction, each schedule for itself, so that
    /// only those of that key wait.
    pub(super) async fn tick_schedules(&self, tick: Tick) -> Result<Ticked> {
        let begin = Begin::reading(tick.now);
        let (next, now) = step!(self, Tries::few(), |tx| self.session(tx, begin), |session| async {
            Ok((next(session).await?, session.now))
        })?;
        if next.is_none_or(|next| next > now.0) {
            return Ok(Sent::default().ticked(next, now, false));
        }
        match answered(self.answer, self.run_together(Which::Due(tick.limit), tick.now)).await {
            Err(error) if waited_too_long(&error) || lost_against_another(&error) => {
                self.tick_each(tick, Sent::default().ticked(next, now, false)).await
            }
            ticked => ticked.map(|(ticked, _)| ticked),
        }
    }

    async fn tick_each(&self, tick: Tick, mut sum: Ticked) -> Result<Ticked> {
        let begin = Begin::reading(tick.now);
        let due = step!(self, Tries::few(), |tx| self.session(tx, begin), |session| {
            due_names(session, tick.limit)
        })?;
        for name in due {
            match answered(self.answer, self.run_together(Which::DueNamed(&name), tick.now)).await {
                Ok((ticked, _)) => {
                    sum.wake.extend(&ticked.wake);
                    sum = Ticked { events: sum.events + ticked.events, wake: sum.wake, ..ticked };
                }
                Err(error) if waited_too_long(&error) || lost_against_another(&error) => {
                    tracing::debug!(
                        schedule = name,
                        "the key of a schedule is locked; it runs a little later"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(sum)
    }

    pub(super) async fn run_asked(&self, run: NameSchedule) -> Result<Emission> {
        let running = self.run_together(Which::Asked(&run.name), run.now);
        let (_, mut emissions) = answered(self.answer, running).await?;
        emissions.pop().ok_or_else(|| unknown(&run.name))
    }

    /// Locks schedules, then topics and heads like every emit. Nobody who holds those waits for a schedule.
    async fn run_together(&self, which: Which<'_>, now: Option<Time>) -> Result<(Ticked, Vec<Emission>)> {
        for _ in 0..TRIES {
            let mut tx = self.begin().await?;
            let mut session = self.hasty(&mut tx, Begin::reading(now), which.patience()).await?;
            let running = lock(&mut session, which).await?;
            if running.events.iter().any(|event| session.catalog.topic(&event.topic).is_none()) {
                tx.rollback().await?;
                let topics = running.events.iter().map(Event::topic);
                self.create_topics(topics, Tries::few(), which.patience()).await?;
                continue;
            }
            let mut sent = Sent::default();
            if !running.events.is_empty() {
                let Some(answers) = self.emit_by_steps_in(&mut session, &running.units()).await? else {
                    tx.rollback().await?;
                    self.cache.set(Arc::default());
                    continue;
                };
                sent = Sent::new(answers)?;
            }
            move_on(&mut session, &running, &mut sent).await?;
            let (next, now) = (next(&mut session).await?, session.now);
            tx.commit().await?;
            let emissions = sent.emissions.clone();
            return Ok((sent.ticked(next, now, running.more), emissions));
        }
        Err(restless())
    }
}

/// The schedules that run, locked; those that another node is just running are left to it.
async fn lock(session: &mut Session<'_>, which: Which<'_>) -> Result<Running> {
    let due = "SELECT {schedule} FROM tramline_schedule WHERE next_run <= $1 ORDER BY next_run, name LIMIT $2 \
               FOR UPDATE SKIP LOCKED";
    let named =
        "SELECT {schedule} FROM tramline_schedule WHERE name = $1 AND next_run <= $2 FOR UPDATE SKIP LOCKED";
    let asked = "SELECT {schedule} FROM tramline_schedule WHERE name = $1 FOR UPDATE";
    let now = session.now;
    match which {
        Which::Due(limit) => {
            let query = session.query(due).bind(now.0).bind(i64::from(limit));
            let found = rows(session, query).await?;
            let full = found.len() as u64 >= u64::from(limit);
            let mut running = schedule::due(found, now);
            running.more |= full && !running.rows.is_empty();
            Ok(running)
        }
        Which::DueNamed(name) => {
            let query = session.query(named).bind(name.to_owned()).bind(now.0);
            Ok(schedule::due(rows(session, query).await?, now))
        }
        Which::Asked(name) => {
            let query = session.query(asked).bind(name.to_owned());
            let found = rows(session, query).await?.pop();
            schedule::asked(found.ok_or_else(|| unknown(name))?, now)
        }
    }
}

async fn move_on(session: &mut Session<'_>, running: &Running, sent: &mut Sent) -> Result<()> {
    let sql = "UPDATE tramline_schedule SET next_run = $1, last_tick = $2, last_run = coalesce($3, last_run), \
               last_event = coalesce($4, last_event) WHERE name = $5 AND coalesce(next_run, 0) = $6";
    for run in &running.rows {
        let query = session
            .query(sql)
            .bind(run.next_run.map(|time| time.0))
            .bind(run.last_tick.map(|time| time.0))
            .bind(run.runs.last().map(|time| time.0))
            .bind(sent.last_of(run).map(|id| id.0))
            .bind(run.name.clone())
            .bind(run.was);
        if session.run(query).await? != 1 {
            return Err(moved(&run.name));
        }
    }
    Ok(())
}

/// When the next schedule is due, by the index on `next_run`.
async fn next(session: &mut Session<'_>) -> Result<Option<i64>> {
    let query = session.query("SELECT min(next_run) FROM tramline_schedule");
    Ok(query.fetch_one(&mut *session.conn).await?.try_get(0)?)
}

async fn due_names(session: &mut Session<'_>, limit: u32) -> Result<Vec<String>> {
    let sql = "SELECT name FROM tramline_schedule WHERE next_run <= $1 ORDER BY next_run, name LIMIT $2";
    let query = session.query(sql).bind(session.now.0).bind(i64::from(limit));
    session.all(query).await?.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

pub(super) async fn put(session: &mut Session<'_>, put: &PutSchedule) -> Result<StoredSchedule> {
    let old = find(session, &put.schedule.name).await?;
    let row = schedule::put(put, old.clone(), count(session).await?, session.now)?;
    write(session, &row, old.as_ref()).await?;
    Ok(row.stored)
}

/// In the order of names, so that two nodes that declare at once cannot wait for each other.
pub(super) async fn declare(
    session: &mut Session<'_>,
    declare: &DeclareSchedules,
) -> Result<Vec<StoredSchedule>> {
    let names = schedule::check_declared(declare)?;
    let sql = "SELECT {schedule} FROM tramline_schedule WHERE declared_by = $1 OR name = ANY($2) ORDER BY name FOR UPDATE";
    let wanted: Vec<String> = names.iter().cloned().collect();
    let query = session.query(sql).bind(declare.by.clone()).bind(wanted);
    let mut known = Vec::new();
    for columns in rows(session, query).await? {
        if names.contains(&columns.name) {
            known.push(columns.read()?);
        } else {
            delete(session, &columns.name).await?;
        }
    }
    let mut count = count(session).await?;
    let mut stored = Vec::with_capacity(declare.schedules.len());
    let mut sorted: Vec<_> = declare.schedules.iter().collect();
    sorted.sort_by(|one, other| one.name.cmp(&other.name));
    for wanted in sorted {
        let old = known.iter().find(|row| row.stored.schedule.name == wanted.name);
        let row = schedule::declare(&declare.by, wanted, old.cloned(), count, session.now)?;
        write(session, &row, old).await?;
        count += u64::from(old.is_none());
        stored.push(row.stored);
    }
    Ok(stored)
}

pub(super) async fn list(session: &mut Session<'_>, list: &ListSchedules) -> Result<Vec<StoredSchedule>> {
    let query = session
        .query("SELECT {schedule} FROM tramline_schedule WHERE name > $1 ORDER BY name LIMIT $2")
        .bind(list.after.clone().unwrap_or_default())
        .bind(i64::from(list.limit));
    rows(session, query).await?.into_iter().map(|columns| Ok(columns.read()?.stored)).collect()
}

pub(super) async fn get(session: &mut Session<'_>, name: &str) -> Result<Option<StoredSchedule>> {
    let query =
        session.query("SELECT {schedule} FROM tramline_schedule WHERE name = $1").bind(name.to_owned());
    rows(session, query).await?.pop().map(|columns| Ok(columns.read()?.stored)).transpose()
}

pub(super) async fn delete(session: &mut Session<'_>, name: &str) -> Result<()> {
    let query = session.query("DELETE FROM tramline_schedule WHERE name = $1").bind(name.to_owned());
    if session.run(query).await? == 1 { Ok(()) } else { Err(unknown(name)) }
}

pub(super) async fn pause(session: &mut Session<'_>, name: &str, paused: bool) -> Result<StoredSchedule> {
    let old = find(session, name).await?.ok_or_else(|| unknown(name))?;
    let row = old.clone().set_paused(paused, session.now)?;
    write(session, &row, Some(&old)).await?;
    Ok(row.stored)
}

/// A schedule, locked.
async fn find(session: &mut Session<'_>, name: &str) -> Result<Option<ScheduleRow>> {
    let query = session
        .query("SELECT {schedule} FROM tramline_schedule WHERE name = $1 FOR UPDATE")
        .bind(name.to_owned());
    rows(session, query).await?.pop().map(Columns::read).transpose()
}

async fn count(session: &mut Session<'_>) -> Result<u64> {
    let query = session.query("SELECT count(*) FROM tramline_schedule");
    let count: i64 = query.fetch_one(&mut *session.conn).await?.try_get(0)?;
    Ok(count.cast_unsigned())
}

/// Two that create the same one at once collide at its name, and the second tries again.
async fn write(session: &mut Session<'_>, row: &ScheduleRow, old: Option<&ScheduleRow>) -> Result<()> {
    if old == Some(row) {
        return Ok(());
    }
    let insert = "INSERT INTO tramline_schedule (name, body, declared_by, paused, anchor, next_run, last_tick, last_run, \
                  last_event, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    let update = "UPDATE tramline_schedule SET body = $2, declared_by = $3, paused = $4, anchor = $5, next_run = $6, \
                  last_tick = $7, last_run = $8, last_event = $9, created_at = $10, updated_at = $11 WHERE name = $1";
    let row = Columns::new(row);
    let query = session
        .query(if old.is_some() { update } else { insert })
        .bind(row.name)
        .bind(row.body)
        .bind(row.declared_by)
        .bind(row.paused)
        .bind(row.anchor)
        .bind(row.next_run)
        .bind(row.last_tick)
        .bind(row.last_run)
        .bind(row.last_event)
        .bind(row.created_at)
        .bind(row.updated_at);
    session.run(query).await.map(|_| ())
}

async fn rows(session: &mut Session<'_>, query: Query) -> Result<Vec<Columns>> {
    session.all(query).await?.iter().map(columns).collect()
}

fn columns(row: &PgRow) -> Result<Columns> {
    Ok(Columns {
        name: row.try_get(0)?,
        body: row.try_get(1)?,
        declared_by: row.try_get(2)?,
        paused: row.try_get(3)?,
        anchor: row.try_get(4)?,
        next_run: row.try_get(5)?,
        last_tick: row.try_get(6)?,
        last_run: row.try_get(7)?,
        last_event: row.try_get(8)?,
        created_at: row.try_get(9)?,
        updated_at: row.try_get(10)?,
    })
}
