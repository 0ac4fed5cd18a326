//! Schedules.

use crate::model::id::SubscriptionId;
use crate::model::schedule::Schedule;
use crate::model::time::Time;

/// How many schedules a store keeps at most.
pub const MAX_SCHEDULES: u32 = 10_000;

/// Creates a schedule or replaces it.
#[derive(Clone, Debug)]
pub struct PutSchedule {
    /// The schedule.
    pub schedule: Schedule,
    /// Whether it shall rest; `None`: as it was, and a new one does not.
    pub paused: Option<bool>,
    /// What it may replace; else `Conflict`.
    pub over: Over,
    /// Test time.
    pub now: Option<Time>,
}

/// What a schedule may replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// Whatever there is.
    Anything,
    /// Nothing: the name has to be free.
    Nothing,
    /// One that emits to this topic.
    Topic(String),
}

/// Brings the schedules that somebody declares in code in line with what is declared now.
#[derive(Clone, Debug)]
pub struct DeclareSchedules {
    /// Who declares.
    pub by: String,
    /// All that it declares.
    pub schedules: Vec<Schedule>,
    /// Test time.
    pub now: Option<Time>,
}

/// Schedules by name.
#[derive(Clone, Debug, Default)]
pub struct ListSchedules {
    /// After this name.
    pub after: Option<String>,
    /// At most this many.
    pub limit: u32,
}

/// One schedule.
#[derive(Clone, Debug)]
pub struct NameSchedule {
    /// Its name.
    pub name: String,
    /// Test time.
    pub now: Option<Time>,
}

/// Pauses or resumes a schedule.
#[derive(Clone, Debug)]
pub struct PauseSchedule {
    /// Its name.
    pub name: String,
    /// Whether it shall rest.
    pub paused: bool,
    /// Test time.
    pub now: Option<Time>,
}

/// Runs what is due.
#[derive(Clone, Copy, Debug)]
pub struct Tick {
    /// How many schedules at most.
    pub limit: u32,
    /// Test time.
    pub now: Option<Time>,
}

/// What a tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ticked {
    /// How many events were emitted.
    pub events: u64,
    /// Subscriptions that have new work.
    pub wake: Vec<SubscriptionId>,
    /// When the next schedule is due.
    pub next: Option<Time>,
    /// The store's time.
    pub now: Time,
    /// True when a limit was reached, or something was in the way, and another tick would find more.
    pub more: bool,
}
