//! Schedules: the verbs of an operator, and the part of the housekeeping that runs what is due.

use crate::engine::backoff::Outage;
use crate::engine::presence::Presence;
use crate::engine::receipt::Receipt;
use crate::engine::tramline::Tramline;
use crate::error::Result;
use crate::model::schedule::{Schedule, StoredSchedule};
use crate::store::schedule::unknown;
use crate::store::verbs::*;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How many schedules one step runs.
const LIMIT: u32 = 100;
/// How often every process looks at least: another one may have put a schedule and gone.
const LOOK: Duration = Duration::from_secs(5);
/// How soon it looks again for what is due and in somebody else's hands.
const AGAIN: Duration = Duration::from_millis(250);

/// All errors: `NotFound` for names that do not exist, `Unavailable` when the store does not answer. Dropping a future leaves open
/// whether the step happened, but never half of it.
impl Tramline {
    /// Creates a schedule or replaces the one of that name. One that is paused stays so. If its times do not change, its next run
    /// does not either, and runs that were missed are still made up for.
    ///
    /// Schedules run in every process that has a worker or [`Tramline::housekeeping`]; each run is emitted once, however many
    /// processes there are.
    ///
    /// # Errors
    /// `Invalid` for an expression, interval or zone that cannot be; `Conflict` when there are too many.
    pub async fn put_schedule(&self, schedule: Schedule) -> Result<StoredSchedule> {
        let now = self.clock().now();
        self.replace_schedule(PutSchedule { schedule, paused: None, over: Over::Anything, now }).await
    }

    /// As [`Tramline::put_schedule`], with all that a store can be told.
    ///
    /// # Errors
    /// `Conflict` also when it may not replace what has the name.
    pub async fn replace_schedule(&self, put: PutSchedule) -> Result<StoredSchedule> {
        let stored = self.store().put_schedule(put).await?;
        self.presence().schedules.notify_one();
        Ok(stored)
    }

    /// Puts the schedules that a program declares in its code, and deletes those that it declared before under the same name
    /// `by` and no longer does; all or nothing. What others declared or put is left alone. To be called whenever the program
    /// starts; any number of processes may do so at once.
    ///
    /// # Errors
    /// `Conflict` when somebody else has a schedule of one of the names.
    pub async fn declare_schedules(
        &self,
        by: &str,
        schedules: impl IntoIterator<Item = Schedule>,
    ) -> Result<Vec<StoredSchedule>> {
        let schedules = schedules.into_iter().collect();
        let declare = DeclareSchedules { by: by.to_owned(), schedules, now: self.clock().now() };
        let stored = self.store().declare_schedules(declare).await?;
        self.presence().schedules.notify_one();
        Ok(stored)
    }

    /// Schedules by name: at most `limit` after `after`.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn schedules(&self, after: Option<&str>, limit: u32) -> Result<Vec<StoredSchedule>> {
        self.store().schedules(ListSchedules { after: after.map(str::to_owned), limit }).await
    }

    /// One schedule.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn schedule(&self, name: &str) -> Result<StoredSchedule> {
        self.store().schedule(name).await?.ok_or_else(|| unknown(name))
    }

    /// Deletes a schedule. What it has emitted stays.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn delete_schedule(&self, name: &str) -> Result<()> {
        self.store().delete_schedule(name).await
    }

    /// Lets a schedule rest. What would have run until it is resumed is not made up for.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn pause_schedule(&self, name: &str) -> Result<StoredSchedule> {
        self.set_paused(name, true).await
    }

    /// Lets a schedule run again, from its next time on.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn resume_schedule(&self, name: &str) -> Result<StoredSchedule> {
        self.set_paused(name, false).await
    }

    async fn set_paused(&self, name: &str, paused: bool) -> Result<StoredSchedule> {
        let pause = PauseSchedule { name: name.to_owned(), paused, now: self.clock().now() };
        let stored = self.store().pause_schedule(pause).await?;
        self.presence().schedules.notify_one();
        Ok(stored)
    }

    /// Emits what a schedule emits, once and now, also while it rests. Its times stay as they are.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn run_schedule_now(&self, name: &str) -> Result<Receipt> {
        let run = NameSchedule { name: name.to_owned(), now: self.clock().now() };
        let receipt = self.receipt(self.store().run_schedule(run).await?);
        receipt.wake();
        Ok(receipt)
    }
}

/// Runs what is due, and sleeps until something is.
pub(crate) async fn keep_ticking(presence: Arc<Presence>, stop: CancellationToken) {
    let mut outage = Outage::new("running schedules");
    loop {
        let wait = tokio::select! {
            () = stop.cancelled() => return,
            ticked = tick(&presence) => match ticked {
                Ok(wait) => { outage.over(); wait }
                Err(error) => {
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = outage.wait(&presence.clock, &error) => {}
                    }
                    continue;
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = presence.schedules.notified() => {}
            () = presence.clock.sleep_until(wait) => {}
        }
    }
}

/// All that is due, in bounded steps. Gives until which reading of the clock there is nothing to do.
pub(crate) async fn tick(presence: &Presence) -> Result<Duration> {
    loop {
        let ticked = presence.store.tick(Tick { limit: LIMIT, now: presence.clock.now() }).await?;
        presence.wake.notify(&ticked.wake);
        if ticked.events > 0 {
            tracing::debug!(events = ticked.events, "schedules have run");
        }
        if ticked.more {
            continue;
        }
        let look = ticked.now.after(LOOK);
        let next = match ticked.next {
            Some(next) if next <= ticked.now => ticked.now.after(AGAIN),
            Some(next) => next.min(look),
            None => look,
        };
        return Ok(presence.clock.reading_of(next, ticked.now));
    }
}
