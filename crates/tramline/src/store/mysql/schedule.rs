//! Schedules: a tick emits and moves on in one transaction, so each run comes once.

use super::MysqlStore;
use super::emit::LONG_WAIT;
use super::session::{Begin, Session};
use super::sql::{Columns as _, join, maybe, maybe_text, maybe_time, text, texts};
use super::step::{Transaction, Tries, lost_against_another, pause, step, waited_too_long};
use crate::error::Result;
use crate::model::event::Event;
use crate::model::schedule::StoredSchedule;
use crate::model::time::Time;
use crate::plan::schedule::ScheduleRow;
use crate::store::emit::{TRIES, restless};
use crate::store::schedule::{self, Columns, Running, Sent, moved, unknown};
use crate::store::verbs::{
    DeclareSchedules, Emission, ListSchedules, NameSchedule, PutSchedule, Tick, Ticked,
};
use sqlx::mysql::MySqlRow;
use std::sync::Arc;

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
    /// How often to wait for a lock, a second each. A tick comes again soon; who asks does not want to ask again.
    fn waits(self) -> u32 {
        match self {
            Which::Due(_) | Which::DueNamed(_) => 1,
            Which::Asked(_) => LONG_WAIT,
        }
    }
}

/// What became of an attempt to run schedules.
enum Attempt {
    Ran(Ticked, Vec<Emission>),
    /// Topics have to be created first.
    UnknownTopics(Vec<Event>),
    /// The catalogue has changed meanwhile.
    OldCatalog,
}

/// The columns of a schedule, in the order in which [`columns`] reads and [`write`] writes them.
const SCHEDULE: &str = "name, body, declared_by, paused, anchor, next_run, last_tick, last_run, last_event, \
    created_at, updated_at";

impl MysqlStore {
    /// All that is due in one transaction. If a key is locked by somebody's open transaction, each schedule for itself, so that
    /// only those of that key wait.
    pub(super) async fn tick_schedules(&self, tick: Tick) -> Result<Ticked> {
        let begin = Begin::reading(tick.now);
        let (next, now) = step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| async {
            Ok((next(session).await?, session.now))
        })?;
        if next.is_none_or(|next| next > now.0) {
            return Ok(Sent::default().ticked(next, now, false));
        }
        match self.run_together(Which::Due(tick.limit), tick.now).await {
            Err(error) if waited_too_long(&error) || lost_against_another(&error) => {
                self.tick_each(tick, Sent::default().ticked(next, now, false)).await
            }
            ticked => ticked.map(|(ticked, _)| ticked),
        }
    }

    async fn tick_each(&self, tick: Tick, mut sum: Ticked) -> Result<Ticked> {
        let begin = Begin::reading(tick.now);
        let due = step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| {
            due_names(session, tick.limit)
        })?;
        for name in due {
            match self.run_together(Which::DueNamed(&name), tick.now).await {
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
        let (_, mut emissions) = self.run_together(Which::Asked(&run.name), run.now).await?;
        emissions.pop().ok_or_else(|| unknown(&run.name))
    }

    async fn run_together(&self, which: Which<'_>, now: Option<Time>) -> Result<(Ticked, Vec<Emission>)> {
        let mut waited = 0;
        for _ in 0..TRIES {
            let mut tx = self.begin().await?;
            match self.try_run(&mut tx, which, now).await {
                Ok(Attempt::Ran(ticked, emissions)) => {
                    tx.keep();
                    return Ok((ticked, emissions));
                }
                Ok(Attempt::UnknownTopics(events)) => {
                    tx.rollback().await;
                    self.create_topics(events.iter().map(Event::topic)).await?;
                }
                Ok(Attempt::OldCatalog) => {
                    tx.rollback().await;
                    self.common.cache.set(Arc::default());
                }
                Err(error) => {
                    tx.fail(&error).await;
                    waited += 1;
                    let in_the_way = waited_too_long(&error) || lost_against_another(&error);
                    if !in_the_way || waited >= which.waits() {
                        return Err(error);
                    }
                    pause(waited, &error).await;
                }
            }
        }
        Err(restless())
    }

    /// Locks schedules, then topics and heads like every emit. Nobody who holds those waits for a schedule.
    async fn try_run(
        &self,
        tx: &mut Transaction<'_>,
        which: Which<'_>,
        now: Option<Time>,
    ) -> Result<Attempt> {
        let mut session = self.session(tx.conn(), &Begin::reading(now)).await?;
        let running = lock(&mut session, which).await?;
        if running.events.iter().any(|event| session.catalog.topic(&event.topic).is_none()) {
            return Ok(Attempt::UnknownTopics(running.events));
        }
        let mut sent = Sent::default();
        if !running.events.is_empty() {
            let Some(answers) = self.emit_by_steps_in(&mut session, &running.units()).await? else {
                return Ok(Attempt::OldCatalog);
            };
            sent = Sent::new(answers)?;
        }
        move_on(&mut session, &running, &mut sent).await?;
        let (next, now) = (next(&mut session).await?, session.now);
        session.commit(Vec::new()).await?;
        let emissions = sent.emissions.clone();
        Ok(Attempt::Ran(sent.ticked(next, now, running.more), emissions))
    }
}

/// The schedules that run, locked; those that another node is just running are left to it.
async fn lock(session: &mut Session<'_>, which: Which<'_>) -> Result<Running> {
    let now = session.now;
    match which {
        Which::Due(limit) => {
            let rest = format!(
                "FORCE INDEX (tramline_schedule_next) WHERE next_run <= {} ORDER BY next_run, name LIMIT {limit} \
                 FOR UPDATE SKIP LOCKED",
                now.0
            );
            let found = rows(session, &rest).await?;
            let full = found.len() as u64 >= u64::from(limit);
            let mut running = schedule::due(found, now);
            running.more |= full && !running.rows.is_empty();
            Ok(running)
        }
        Which::DueNamed(name) => {
            let rest = format!(
                "FORCE INDEX (PRIMARY) WHERE name = {} AND next_run <= {} FOR UPDATE SKIP LOCKED",
                text(name),
                now.0
            );
            Ok(schedule::due(rows(session, &rest).await?, now))
        }
        Which::Asked(name) => {
            let found = rows(session, &format!("WHERE name = {} FOR UPDATE", text(name))).await?.pop();
            schedule::asked(found.ok_or_else(|| unknown(name))?, now)
        }
    }
}

async fn move_on(session: &mut Session<'_>, running: &Running, sent: &mut Sent) -> Result<()> {
    let mut sql = Vec::with_capacity(running.rows.len() * 2);
    for run in &running.rows {
        sql.push(format!(
            "UPDATE tramline_schedule SET next_run = {}, last_tick = {}, last_run = COALESCE({}, last_run), \
             last_event = COALESCE({}, last_event) WHERE name = {} AND COALESCE(next_run, 0) = {}",
            maybe_time(run.next_run),
            maybe_time(run.last_tick),
            maybe_time(run.runs.last().copied()),
            maybe(sent.last_of(run).map(|id| id.0)),
            text(&run.name),
            run.was
        ));
        sql.push("SELECT ROW_COUNT()".to_owned());
    }
    if sql.is_empty() {
        return Ok(());
    }
    let sets = session.sets(sql).await?;
    for (run, pair) in running.rows.iter().zip(sets.chunks(2)) {
        if pair[1].first().map_or(Ok(0), |row| row.int(0))? != 1 {
            return Err(moved(&run.name));
        }
    }
    Ok(())
}

/// When the next schedule is due, by the index on `next_run`.
async fn next(session: &mut Session<'_>) -> Result<Option<i64>> {
    let rows = session.rows("SELECT MIN(next_run) FROM tramline_schedule").await?;
    rows.first().map_or(Ok(None), |row| row.maybe_int(0))
}

async fn due_names(session: &mut Session<'_>, limit: u32) -> Result<Vec<String>> {
    let sql = format!(
        "SELECT name FROM tramline_schedule WHERE next_run <= {} ORDER BY next_run, name LIMIT {limit}",
        session.now.0
    );
    session.rows(sql).await?.iter().map(|row| row.text(0)).collect()
}

pub(super) async fn put(session: &mut Session<'_>, put: &PutSchedule) -> Result<StoredSchedule> {
    let old = find(session, &put.schedule.name).await?;
    let row = schedule::put(put, old.clone(), count(session).await?, session.now)?;
    write(session, &row, old.as_ref());
    Ok(row.stored)
}

/// In the order of names, so that two nodes that declare at once cannot wait for each other.
pub(super) async fn declare(
    session: &mut Session<'_>,
    declare: &DeclareSchedules,
) -> Result<Vec<StoredSchedule>> {
    let names = schedule::check_declared(declare)?;
    let rest = format!(
        "FORCE INDEX (PRIMARY) WHERE declared_by = {} OR name IN ({}) ORDER BY name FOR UPDATE",
        text(&declare.by),
        texts(names.iter().map(String::as_str))
    );
    let mut known = Vec::new();
    for columns in rows(session, &rest).await? {
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
        write(session, &row, old);
        count += u64::from(old.is_none());
        stored.push(row.stored);
    }
    Ok(stored)
}

pub(super) async fn list(session: &mut Session<'_>, list: &ListSchedules) -> Result<Vec<StoredSchedule>> {
    let after = list.after.as_deref().unwrap_or_default();
    let rest = format!("WHERE name > {} ORDER BY name LIMIT {}", text(after), list.limit);
    rows(session, &rest).await?.into_iter().map(|columns| Ok(columns.read()?.stored)).collect()
}

pub(super) async fn get(session: &mut Session<'_>, name: &str) -> Result<Option<StoredSchedule>> {
    let found = rows(session, &format!("WHERE name = {}", text(name))).await?.pop();
    found.map(|columns| Ok(columns.read()?.stored)).transpose()
}

pub(super) async fn delete(session: &mut Session<'_>, name: &str) -> Result<()> {
    let sql = format!("DELETE FROM tramline_schedule WHERE name = {}", text(name));
    if session.count(sql).await? == 1 { Ok(()) } else { Err(unknown(name)) }
}

pub(super) async fn pause_one(session: &mut Session<'_>, name: &str, paused: bool) -> Result<StoredSchedule> {
    let old = find(session, name).await?.ok_or_else(|| unknown(name))?;
    let row = old.clone().set_paused(paused, session.now)?;
    write(session, &row, Some(&old));
    Ok(row.stored)
}

/// A schedule, locked.
async fn find(session: &mut Session<'_>, name: &str) -> Result<Option<ScheduleRow>> {
    let found = rows(session, &format!("WHERE name = {} FOR UPDATE", text(name))).await?.pop();
    found.map(Columns::read).transpose()
}

async fn count(session: &mut Session<'_>) -> Result<u64> {
    let rows = session.rows("SELECT COUNT(*) FROM tramline_schedule").await?;
    rows.first().map_or(Ok(0), |row| row.count(0))
}

/// Two that create the same one at once collide at its name, and the second tries again.
fn write(session: &mut Session<'_>, row: &ScheduleRow, old: Option<&ScheduleRow>) {
    if old == Some(row) {
        return;
    }
    let row = Columns::new(row);
    let values = [
        text(&row.name),
        text(&row.body),
        maybe_text(row.declared_by.as_deref()),
        row.paused.to_string(),
        row.anchor.to_string(),
        maybe(row.next_run),
        maybe(row.last_tick),
        maybe(row.last_run),
        maybe(row.last_event),
        row.created_at.to_string(),
        row.updated_at.to_string(),
    ];
    session.write(if old.is_none() {
        format!("INSERT INTO tramline_schedule ({SCHEDULE}) VALUES ({})", join(values.into_iter()))
    } else {
        let set =
            SCHEDULE.split(", ").zip(values).skip(1).map(|(column, value)| format!("{column} = {value}"));
        format!("UPDATE tramline_schedule SET {} WHERE name = {}", join(set), text(&row.name))
    });
}

async fn rows(session: &mut Session<'_>, rest: &str) -> Result<Vec<Columns>> {
    session
        .rows(format!("SELECT {SCHEDULE} FROM tramline_schedule {rest}"))
        .await?
        .iter()
        .map(columns)
        .collect()
}

fn columns(row: &MySqlRow) -> Result<Columns> {
    Ok(Columns {
        name: row.text(0)?,
        body: row.text(1)?,
        declared_by: row.maybe_text(2)?,
        paused: row.flag(3)?,
        anchor: row.int(4)?,
        next_run: row.maybe_int(5)?,
        last_tick: row.maybe_int(6)?,
        last_run: row.maybe_int(7)?,
        last_event: row.maybe_int(8)?,
        created_at: row.int(9)?,
        updated_at: row.int(10)?,
    })
}
