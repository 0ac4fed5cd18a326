//! What home emits to sites: completions of tallies, and schedules. It is emitted under an idempotency key that follows from what it is,
//! and noted at home after that. So whoever comes after a process that died in between emits nothing twice. What cannot be emitted now
//! stays, and the rest goes on.

use super::SpreadStore;
use crate::error::{Error, Kind, Result};
use crate::model::event::Event;
use crate::model::id::EventId;
use crate::model::time::Time;
use crate::store::redis::schedule;
use crate::store::redis::session::Session;
use crate::store::redis::tally::deliver::{News, due, take_out, wakes};
use crate::store::schedule::{Run, Running, unknown};
use crate::store::verbs::{Emission, Emit, NameSchedule, Tick, Ticked};
use crate::store::verbs_tally::{Deliver, Delivered};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

impl SpreadStore {
    pub(super) async fn deliver_to_all(&self, deliver: Deliver) -> Result<Delivered> {
        let news = self.home.read(deliver.now, |session| due(session, deliver)).await?;
        let units: Vec<Vec<Event>> =
            news.iter().filter_map(News::event).map(|event| vec![event.clone()]).collect();
        let mut answers = self.emit_to_all(Emit { units, now: deliver.now }).await.into_iter();
        let (mut told, mut wake, mut failed) = (Vec::new(), BTreeSet::new(), None);
        for one in &news {
            let answer = one.event().and_then(|_| answers.next()).map(wakes).transpose();
            match answer {
                Ok(woken) => {
                    told.push(one);
                    wake.extend(woken.into_iter().flatten());
                }
                Err(error) => failed = Some(error),
            }
        }
        give_up_if_nothing(told.is_empty(), failed)?;
        let step = |session: &Session<'_>| take_out(session, deliver, told.iter().copied());
        let delivered = self.home.write(deliver.now, step).await?;
        Ok(Delivered { wake: wake.into_iter().collect(), ..delivered })
    }

    pub(super) async fn tick_all(&self, tick: Tick) -> Result<Ticked> {
        let look = |session: &Session<'_>| {
            let next = schedule::next(session)?;
            let is_due = next.is_some_and(|next| next <= session.now.0);
            let due = if is_due { Some(schedule::due(session, tick)?) } else { None };
            Ok((due, next, session.now))
        };
        let (due, next, now) = self.home.read(tick.now, look).await?;
        let mut ticked = Ticked { next: next.map(Time), now, ..Ticked::default() };
        let Some((running, more)) = due else { return Ok(ticked) };
        let answers = self.emit_to_all(Emit { units: named(&running), now: tick.now }).await;
        let (mut ran, mut failed, mut answers) = (Vec::new(), None, answers.into_iter());
        for run in &running.rows {
            let of_run = answers.by_ref().take(run.runs.len());
            match ended(of_run, &mut ticked) {
                Ok(last) => ran.push((run, last)),
                Err(error) => failed = Some(error),
            }
        }
        give_up_if_nothing(ran.is_empty(), failed)?;
        let move_on = |session: &Session<'_>| {
            ran.iter().try_for_each(|(run, last)| schedule::move_on(session, run, *last).map(drop))?;
            schedule::next(session)
        };
        let next = self.home.write(tick.now, move_on).await?;
        ticked.wake.sort_unstable();
        ticked.wake.dedup();
        Ok(Ticked { next: next.map(Time), more, ..ticked })
    }

    /// The event is what was asked for: that the schedule remembers it is not worth an error.
    pub(super) async fn run_now(&self, run: &NameSchedule) -> Result<Emission> {
        let step = |session: &Session<'_>| schedule::asked(session, &run.name);
        let running = self.home.read(run.now, step).await?;
        let mut answers = self.emit_to_all(Emit { units: running.units(), now: run.now }).await;
        let emission = answers.pop().ok_or_else(|| unknown(&run.name))??;
        let last = emission.events.last().map(|event| event.id);
        let move_on = |session: &Session<'_>| {
            running.rows.iter().try_for_each(|run| schedule::move_on(session, run, last).map(drop))
        };
        super::warn_of(self.home.write(run.now, move_on).await);
        Ok(emission)
    }
}

/// Where something went, what failed is tried again the next time, and told then if it fails alone.
fn give_up_if_nothing(nothing: bool, failed: Option<Error>) -> Result<()> {
    match failed {
        Some(error) if nothing => Err(error),
        Some(error) => {
            super::warn_of::<()>(Err(error));
            Ok(())
        }
        None => Ok(()),
    }
}

/// What became of the runs of one schedule: its last event, if it is known. A key that was used for something else was used for the same
/// run before the schedule was changed.
fn ended(answers: impl Iterator<Item = Result<Emission>>, ticked: &mut Ticked) -> Result<Option<EventId>> {
    let (mut last, mut failed) = (None, None);
    for answer in answers {
        match answer {
            Ok(emission) => {
                last = emission.events.last().map(|event| event.id).or(last);
                ticked.events += u64::from(!emission.repeated);
                ticked.wake.extend(emission.wake);
            }
            Err(error) if error.kind() == Kind::Conflict => {}
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(last), Err)
}

/// The events of runs, each for itself, under a key that says which run of which schedule it is.
fn named(running: &Running) -> Vec<Vec<Event>> {
    let mut events = running.events.iter();
    let mut units = Vec::with_capacity(running.events.len());
    for run in &running.rows {
        let name = name_of(run);
        let of_run = run.runs.iter().zip(events.by_ref());
        units.extend(
            of_run
                .map(|(at, event)| vec![event.clone().idempotency_key(format!("schedule:{name}:{}", at.0))]),
        );
    }
    units
}

/// Names may be longer than what a key has room for.
fn name_of(run: &Run) -> String {
    let mut digest = Sha256::new();
    digest.update(run.created_at.0.to_le_bytes());
    digest.update(run.name.as_bytes());
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
