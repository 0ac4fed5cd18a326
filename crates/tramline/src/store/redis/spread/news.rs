//! What home emits to sites: completions of tallies, and schedules. It is emitted under an idempotency key that follows from what it is,
//! and noted at home after that. So whoever comes after a process that died in between emits nothing twice.

use super::SpreadStore;
use crate::error::Result;
use crate::model::event::Event;
use crate::store::Store;
use crate::store::redis::schedule;
use crate::store::redis::session::Session;
use crate::store::redis::tally::deliver::{due, take_out, wake};
use crate::store::schedule::{Run, Running, Sent, unknown};
use crate::store::verbs::{Emission, Emit, NameSchedule, Tick, Ticked};
use crate::store::verbs_tally::{Deliver, Delivered};
use sha2::{Digest, Sha256};

impl SpreadStore {
    pub(super) async fn deliver_to_all(&self, deliver: Deliver) -> Result<Delivered> {
        let due = self.home.read(deliver.now, |session| due(session, deliver)).await?;
        let units = due.units();
        let answers = self.emit_to_all(Emit { units, now: deliver.now }).await;
        let wake = wake(answers)?;
        let step = |session: &Session<'_>| take_out(session, deliver, &due);
        let delivered = self.home.write(deliver.now, step).await?;
        Ok(Delivered { wake, ..delivered })
    }

    pub(super) async fn tick_all(&self, tick: Tick) -> Result<Ticked> {
        let look = |session: &Session<'_>| {
            let next = schedule::next(session)?;
            let is_due = next.is_some_and(|next| next <= session.now.0);
            let due = if is_due { Some(schedule::due(session, tick)?) } else { None };
            Ok((due, next, session.now))
        };
        let (due, next, now) = self.home.read(tick.now, look).await?;
        let Some((running, more)) = due else { return Ok(Sent::default().ticked(next, now, false)) };
        let answers = self.emit_to_all(Emit { units: named(&running), now: tick.now }).await;
        let sent = Sent::new(answers)?;
        let moved = |session: &Session<'_>| {
            let mut sent = sent.clone();
            for run in &running.rows {
                let last = sent.last_of(run);
                schedule::move_on(session, run, last)?;
            }
            schedule::next(session)
        };
        let next = self.home.write(tick.now, moved).await?;
        Ok(sent.ticked(next, now, more))
    }

    pub(super) async fn run_now(&self, run: &NameSchedule) -> Result<Emission> {
        let step = |session: &Session<'_>| schedule::asked(session, &run.name);
        let running = self.home.read(run.now, step).await?;
        let mut sent = self.emit(Emit { units: running.units(), now: run.now }).await?;
        let emission = sent.pop().ok_or_else(|| unknown(&run.name))??;
        let last = emission.events.last().map(|event| event.id);
        let moved = |session: &Session<'_>| {
            running.rows.iter().try_for_each(|run| schedule::move_on(session, run, last).map(drop))
        };
        self.home.write(run.now, moved).await?;
        Ok(emission)
    }
}

/// The events of runs, each for itself, under a key that says which run of which schedule it is.
fn named(running: &Running) -> Vec<Vec<Event>> {
    let mut events = running.events.iter();
    let of_run = |run: &Run, event: &Event, at: i64| {
        let mut digest = Sha256::new();
        digest.update(run.name.as_bytes());
        digest.update(run.created_at.0.to_le_bytes());
        let name = digest.finalize().iter().fold(String::new(), |name, byte| format!("{name}{byte:02x}"));
        vec![event.clone().idempotency_key(format!("schedule:{name}:{at}"))]
    };
    let mut units = Vec::new();
    for run in &running.rows {
        let times = run.runs.iter().zip(events.by_ref());
        units.extend(times.map(|(at, event)| of_run(run, event, at.0)));
    }
    units
}
