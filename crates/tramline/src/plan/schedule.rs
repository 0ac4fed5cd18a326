//! What becomes of a schedule when it is put, paused or due.

use crate::error::Result;
use crate::model::schedule::{Missed, StoredSchedule, Timetable};
use crate::model::time::Time;
use std::time::Duration;

/// How many events one tick of a schedule emits at most.
pub(crate) const MOST: usize = 100;
/// A run that is late by less is not missed: somebody was just not quick enough.
const LATE: Duration = Duration::from_secs(60);

/// A schedule as stores keep it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScheduleRow {
    pub(crate) stored: StoredSchedule,
    /// From when intervals count.
    pub(crate) anchor: Time,
    /// Up to which time its runs were decided. Only goes forward, so that no run comes twice, whatever the clock does.
    pub(crate) last_tick: Option<Time>,
}

/// What a tick makes of a schedule that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// The runs to emit, oldest first.
    pub(crate) runs: Vec<Time>,
    /// The first and last run that were left out though they were to be emitted.
    pub(crate) left_out: Option<(Time, Time)>,
    pub(crate) last_tick: Time,
    pub(crate) next_run: Option<Time>,
}

impl ScheduleRow {
    /// A schedule that is new, or put over `old`. What does not change its times keeps its next run, so that a program that
    /// declares its schedules whenever it starts does not forget what it missed.
    pub(crate) fn put(
        new: StoredSchedule,
        paused: Option<bool>,
        old: Option<ScheduleRow>,
        now: Time,
    ) -> Result<ScheduleRow> {
        let Some(old) = old else {
            let new = StoredSchedule { paused: paused.unwrap_or(false), ..new };
            let mut row = ScheduleRow { stored: new, anchor: now, last_tick: None };
            row.stored.next_run = row.upcoming(now)?;
            return Ok(row);
        };
        if old.stored.schedule == new.schedule {
            let paused = paused.unwrap_or(old.stored.paused);
            return old.set_paused(paused, now);
        }
        let same_times = old.stored.schedule.timing == new.schedule.timing;
        let is_paused = paused.unwrap_or(old.stored.paused);
        let goes_on = same_times && is_paused == old.stored.paused;
        let stored =
            StoredSchedule { schedule: new.schedule, paused: is_paused, updated_at: now, ..old.stored };
        let mut row = ScheduleRow { stored, anchor: if same_times { old.anchor } else { now }, ..old };
        if !goes_on {
            row.stored.next_run = row.upcoming(now)?;
        }
        Ok(row)
    }

    /// Pauses or resumes. What would have run meanwhile is not missed: somebody did not want it.
    pub(crate) fn set_paused(mut self, paused: bool, now: Time) -> Result<ScheduleRow> {
        if self.stored.paused != paused {
            self.stored.paused = paused;
            self.stored.updated_at = now;
            self.stored.next_run = self.upcoming(now)?;
        }
        Ok(self)
    }

    /// The first run from now on, and never one before the last.
    fn upcoming(&self, now: Time) -> Result<Option<Time>> {
        if self.stored.paused {
            return Ok(None);
        }
        Ok(self.timetable()?.next(self.last_tick.map_or(now, |last| last.max(now))))
    }

    fn timetable(&self) -> Result<Timetable> {
        self.stored.schedule.timing.timetable(self.anchor)
    }

    /// What is to be emitted at `now`. `None`: nothing is due.
    pub(crate) fn due(&self, now: Time) -> Result<Option<Due>> {
        let Some(first) = self.stored.next_run.filter(|run| *run <= now) else { return Ok(None) };
        let table = self.timetable()?;
        let last = table.last(first, now);
        let mut left_out = None;
        let runs = match self.stored.schedule.missed {
            Missed::Skip if now.since(last) >= LATE => Vec::new(),
            Missed::Skip | Missed::One => vec![last],
            Missed::All => newest(&table, first, last, &mut left_out),
        };
        Ok(Some(Due { runs, left_out, last_tick: last, next_run: table.next(now.max(last)) }))
    }
}

/// The newest runs from `first` to `last`, as many as one tick may emit.
fn newest(table: &Timetable, first: Time, last: Time, left_out: &mut Option<(Time, Time)>) -> Vec<Time> {
    let following = |run: &Time| table.next(*run).filter(|next| *next <= last);
    let mut runs: Vec<Time> = std::iter::successors(Some(first), following).take(MOST + 1).collect();
    if runs.len() <= MOST {
        return runs;
    }
    runs = vec![last];
    while runs.len() < MOST {
        runs.push(before(table, first, runs[runs.len() - 1]));
    }
    runs.reverse();
    *left_out = Some((first, before(table, first, runs[0])));
    runs
}

/// The run before one that is not the first.
fn before(table: &Timetable, first: Time, run: Time) -> Time {
    table.last(first, run.before(Duration::from_millis(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::Event;
    use crate::model::schedule::Schedule;

    const MINUTE: i64 = 60_000;
    /// A whole minute.
    const START: Time = Time(1_800_000_000_000);

    fn stored(schedule: Schedule) -> StoredSchedule {
        StoredSchedule {
            schedule,
            declared_by: None,
            paused: false,
            next_run: None,
            last_run: None,
            last_event: None,
            created_at: START,
            updated_at: START,
        }
    }

    fn every_minute(missed: Missed) -> Schedule {
        Schedule::cron("n", "* * * * *", Event::new("t", "x")).missed(missed)
    }

    fn row(missed: Missed) -> ScheduleRow {
        ScheduleRow::put(stored(every_minute(missed)), None, None, START).unwrap()
    }

    fn minute(count: i64) -> Time {
        Time(START.0 + count * MINUTE)
    }

    #[test]
    fn nothing_is_due_before_its_time_and_then_one_run_is() {
        for missed in [Missed::Skip, Missed::One, Missed::All] {
            let row = row(missed);
            assert_eq!(row.stored.next_run, Some(minute(1)));
            assert_eq!(row.due(Time(minute(1).0 - 1)).unwrap(), None);
            let due = Due {
                runs: vec![minute(1)],
                left_out: None,
                last_tick: minute(1),
                next_run: Some(minute(2)),
            };
            assert_eq!(row.due(minute(1)).unwrap(), Some(due));
        }
    }

    #[test]
    fn missed_runs_follow_the_policy() {
        let late = Time(minute(5).0 + 10_000);
        let runs = |missed, now| row(missed).due(now).unwrap().unwrap().runs;
        assert_eq!(runs(Missed::One, late), [minute(5)]);
        assert_eq!(runs(Missed::All, late), [1, 2, 3, 4, 5].map(minute));
        assert_eq!(runs(Missed::Skip, late), [minute(5)], "ten seconds late is not missed");
        let hourly = Schedule::cron("n", "0 * * * *", Event::new("t", "x")).missed(Missed::Skip);
        let row = ScheduleRow::put(stored(hourly), None, None, START).unwrap();
        let run = row.stored.next_run.unwrap();
        let due = row.due(run.after(LATE)).unwrap().unwrap();
        assert_eq!((due.runs, due.last_tick), (vec![], run));
    }

    #[test]
    fn of_more_than_a_hundred_missed_runs_the_oldest_are_left_out() {
        let due = row(Missed::All).due(minute(100)).unwrap().unwrap();
        assert_eq!((due.runs.len(), due.left_out), (100, None));
        let due = row(Missed::All).due(minute(1_000_000)).unwrap().unwrap();
        let newest: Vec<Time> = (999_901..=1_000_000).map(minute).collect();
        assert_eq!(due.runs, newest);
        assert_eq!(due.left_out, Some((minute(1), minute(999_900))));
        assert_eq!(due.next_run, Some(minute(1_000_001)));
    }

    #[test]
    fn what_is_put_again_with_the_same_times_keeps_its_next_run() {
        let later = minute(10);
        let old = row(Missed::One);
        let again = stored(every_minute(Missed::All));
        let same = ScheduleRow::put(again, None, Some(old.clone()), later).unwrap();
        assert_eq!((same.stored.next_run, same.stored.schedule.missed), (Some(minute(1)), Missed::All));
        let hourly = stored(Schedule::cron("n", "0 * * * *", Event::new("t", "x")));
        let other = ScheduleRow::put(hourly, None, Some(old), later).unwrap();
        assert!(other.stored.next_run.unwrap() > later);
    }

    #[test]
    fn a_pause_forgets_what_would_have_run() {
        let paused = row(Missed::All).set_paused(true, minute(1)).unwrap();
        assert_eq!((paused.stored.next_run, paused.due(minute(9)).unwrap()), (None, None));
        let put = ScheduleRow::put(stored(every_minute(Missed::One)), None, Some(paused.clone()), minute(5));
        assert!(put.unwrap().stored.paused, "putting it again does not wake it");
        let resumed = paused.set_paused(false, minute(9)).unwrap();
        assert_eq!(resumed.stored.next_run, Some(minute(10)));
    }

    #[test]
    fn a_clock_that_is_put_back_brings_no_run_twice() {
        let mut row = row(Missed::One);
        row.last_tick = Some(minute(60));
        for change in [true, false] {
            row = row.set_paused(change, minute(2)).unwrap();
        }
        assert_eq!(row.stored.next_run, Some(minute(61)));
    }
}
