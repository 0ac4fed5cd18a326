//! Schedules as every store writes them: what was put is a JSON text.

use crate::error::{Error, Result};
use crate::model::event::Event;
use crate::model::id::{EventId, SubscriptionId};
use crate::model::kept;
use crate::model::schedule::{Missed, Schedule, StoredSchedule, Timing};
use crate::model::time::Time;
use crate::plan::schedule::{Due, ScheduleRow};
use crate::store::verbs::{DeclareSchedules, Emission, MAX_SCHEDULES, Over, PutSchedule, Ticked};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};

/// How many events one step of a tick emits at most, but for those of its last schedule.
pub(crate) const STEP_EVENTS: usize = 200;

/// A row of schedules.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    pub(crate) name: String,
    pub(crate) body: String,
    pub(crate) declared_by: Option<String>,
    pub(crate) paused: bool,
    pub(crate) anchor: i64,
    pub(crate) next_run: Option<i64>,
    pub(crate) last_tick: Option<i64>,
    pub(crate) last_run: Option<i64>,
    pub(crate) last_event: Option<i64>,
    pub(crate) created_at: i64,
    pub(crate) updated_at: i64,
}

/// What was put, but for the name.
#[derive(Serialize, Deserialize)]
struct Body {
    timing: Timing,
    missed: Missed,
    event: String,
}

impl Columns {
    /// The columns of a row.
    pub(crate) fn new(row: &ScheduleRow) -> Columns {
        let StoredSchedule { schedule, .. } = &row.stored;
        let body = Body {
            timing: schedule.timing.clone(),
            missed: schedule.missed,
            event: kept::write(&schedule.event),
        };
        Columns {
            name: schedule.name.clone(),
            body: serde_json::to_string(&body).unwrap_or_default(), // plain values always serialise
            declared_by: row.stored.declared_by.clone(),
            paused: row.stored.paused,
            anchor: row.anchor.0,
            next_run: row.stored.next_run.map(|time| time.0),
            last_tick: row.last_tick.map(|time| time.0),
            last_run: row.stored.last_run.map(|time| time.0),
            last_event: row.stored.last_event.map(|id| id.0),
            created_at: row.stored.created_at.0,
            updated_at: row.stored.updated_at.0,
        }
    }

    /// The row behind columns.
    pub(crate) fn read(self) -> Result<ScheduleRow> {
        let body: Body = serde_json::from_str(&self.body).map_err(|error| {
            let message = format!("the schedule {:?} cannot be read", self.name);
            Error::invalid(message, "upgrade: it was written by a newer version").because(error)
        })?;
        let event = kept::read(&body.event)?;
        let schedule = Schedule { name: self.name, timing: body.timing, missed: body.missed, event };
        let stored = StoredSchedule {
            schedule,
            declared_by: self.declared_by,
            paused: self.paused,
            next_run: self.next_run.map(Time),
            last_run: self.last_run.map(Time),
            last_event: self.last_event.map(EventId),
            created_at: Time(self.created_at),
            updated_at: Time(self.updated_at),
        };
        Ok(ScheduleRow { stored, anchor: Time(self.anchor), last_tick: self.last_tick.map(Time) })
    }
}

/// What is to be written for a schedule that is put over what there is. `count` is how many schedules there are.
pub(crate) fn put(put: &PutSchedule, old: Option<ScheduleRow>, count: u64, now: Time) -> Result<ScheduleRow> {
    put.schedule.check()?;
    let fits = match (&put.over, &old) {
        (Over::Anything, _) | (_, None) => true,
        (Over::Nothing, Some(_)) => false,
        (Over::Topic(topic), Some(old)) => old.stored.schedule.event.topic == *topic,
    };
    if !fits {
        return Err(taken(&put.schedule.name));
    }
    check_room(old.is_none(), count)?;
    ScheduleRow::put(new(put.schedule.clone(), None, now), put.paused, old, now)
}

/// What is to be written for a schedule that is declared over what there is.
pub(crate) fn declare(
    by: &str,
    schedule: &Schedule,
    old: Option<ScheduleRow>,
    count: u64,
    now: Time,
) -> Result<ScheduleRow> {
    if old.as_ref().is_some_and(|old| old.stored.declared_by.as_deref() != Some(by)) {
        return Err(taken(&schedule.name));
    }
    check_room(old.is_none(), count)?;
    ScheduleRow::put(new(schedule.clone(), Some(by.to_owned()), now), None, old, now)
}

/// Checks what is declared. Gives the names, in the order in which rows are locked.
pub(crate) fn check_declared(declare: &DeclareSchedules) -> Result<BTreeSet<String>> {
    crate::model::name::check("service", &declare.by)?;
    let mut names = BTreeSet::new();
    for schedule in &declare.schedules {
        schedule.check()?;
        if !names.insert(schedule.name.clone()) {
            return Err(Error::invalid(
                format!("the schedule {:?} is declared twice", schedule.name),
                "give each a name of its own",
            ));
        }
    }
    Ok(names)
}

fn new(schedule: Schedule, declared_by: Option<String>, now: Time) -> StoredSchedule {
    StoredSchedule {
        schedule,
        declared_by,
        paused: false,
        next_run: None,
        last_run: None,
        last_event: None,
        created_at: now,
        updated_at: now,
    }
}

fn check_room(is_new: bool, count: u64) -> Result<()> {
    if is_new && count >= u64::from(MAX_SCHEDULES) {
        return Err(Error::conflict(
            format!("there are already {MAX_SCHEDULES} schedules"),
            "delete those that nobody needs",
        ));
    }
    Ok(())
}

/// Schedules that run now, and the events that are to be emitted for them, one after the other.
#[derive(Default)]
pub(crate) struct Running {
    pub(crate) rows: Vec<Run>,
    pub(crate) events: Vec<Event>,
    /// True if not all rows were taken.
    pub(crate) more: bool,
}

/// A schedule that runs: what becomes of it, if its next run is still what it was.
pub(crate) struct Run {
    pub(crate) name: String,
    /// One that is put anew after it was deleted is another one.
    pub(crate) created_at: Time,
    /// The next run when it was read; 0 for none.
    pub(crate) was: i64,
    pub(crate) runs: Vec<Time>,
    pub(crate) last_tick: Option<Time>,
    pub(crate) next_run: Option<Time>,
}

/// What is due of these rows. One that cannot be read is left to a newer program, and does not stop the others.
pub(crate) fn due(rows: Vec<Columns>, now: Time) -> Running {
    let mut running = Running::default();
    for columns in rows {
        if running.events.len() >= STEP_EVENTS {
            running.more = true;
            break;
        }
        let name = columns.name.clone();
        match columns.read().and_then(|row| Ok((row.due(now)?, row))) {
            Ok((Some(due), row)) => running.take(&row, due),
            Ok((None, _)) => {}
            Err(error) => tracing::error!(schedule = name, error = %error, "a schedule does not run"),
        }
    }
    running
}

/// A schedule that runs because somebody asked for it. Its times stay as they are.
pub(crate) fn asked(columns: Columns, now: Time) -> Result<Running> {
    let row = columns.read()?;
    let mut running = Running { events: vec![row.stored.schedule.run(now)], ..Running::default() };
    running.rows.push(Run {
        created_at: row.stored.created_at,
        was: row.stored.next_run.map_or(0, |run| run.0),
        runs: vec![now],
        last_tick: row.last_tick,
        next_run: row.stored.next_run,
        name: row.stored.schedule.name,
    });
    Ok(running)
}

impl Running {
    fn take(&mut self, row: &ScheduleRow, due: Due) {
        let schedule = &row.stored.schedule;
        if let Some((first, last)) = due.left_out {
            tracing::warn!(
                schedule = schedule.name,
                first = first.0,
                last = last.0,
                "too many runs were missed; the oldest are left out"
            );
        }
        self.events.extend(due.runs.iter().map(|at| schedule.run(*at)));
        self.rows.push(Run {
            name: schedule.name.clone(),
            created_at: row.stored.created_at,
            was: row.stored.next_run.map_or(0, |run| run.0),
            runs: due.runs,
            last_tick: Some(due.last_tick),
            next_run: due.next_run,
        });
    }

    /// Each event for itself.
    pub(crate) fn units(&self) -> Vec<Vec<Event>> {
        self.events.iter().map(|event| vec![event.clone()]).collect()
    }
}

/// What the events of a step became: their ids in the same order, and who has new work.
#[derive(Default)]
pub(crate) struct Sent {
    ids: VecDeque<EventId>,
    wake: BTreeSet<SubscriptionId>,
    pub(crate) emissions: Vec<Emission>,
}

impl Sent {
    /// Nothing of what a schedule emits can be refused: it was checked when it was put.
    pub(crate) fn new(answers: Vec<Result<Emission>>) -> Result<Sent> {
        let mut sent = Sent::default();
        for answer in answers {
            let emission = answer?;
            sent.ids.extend(emission.events.iter().map(|event| event.id));
            sent.wake.extend(&emission.wake);
            sent.emissions.push(emission);
        }
        Ok(sent)
    }

    /// The last event of a schedule that has run, taken in the order in which they were emitted.
    pub(crate) fn last_of(&mut self, run: &Run) -> Option<EventId> {
        self.ids.drain(..run.runs.len().min(self.ids.len())).next_back()
    }

    /// What a tick gives back.
    pub(crate) fn ticked(self, next: Option<i64>, now: Time, more: bool) -> Ticked {
        Ticked {
            events: self.emissions.len() as u64,
            wake: self.wake.into_iter().collect(),
            next: next.map(Time),
            now,
            more,
        }
    }
}

/// Somebody else has the name.
fn taken(name: &str) -> Error {
    Error::conflict(
        format!("there is another schedule {name:?}"),
        "choose another name, or delete that one first",
    )
}

/// Nobody has the name.
pub(crate) fn unknown(name: &str) -> Error {
    Error::not_found(format!("there is no schedule {name:?}"), "check the name in the list of schedules")
}

/// Two ticks at once, which cannot be: the row is locked.
pub(crate) fn moved(name: &str) -> Error {
    Error::unavailable(format!("the schedule {name:?} was run by another node"), "try again")
}
