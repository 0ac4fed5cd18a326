//! What users are told about events in a subscription.

use serde::{Deserialize, Serialize};

/// Where an event is, in one subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Status {
    /// Due and free.
    Ready,
    /// Not yet due.
    Delayed,
    /// Claimed by a worker.
    Leased,
    /// Behind an event of its key that must wait, or held itself.
    Parked,
    /// Out of attempts.
    Dead,
    /// Nothing is left to do.
    Settled,
}

/// How many events of a subscription have which status. Exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Counts {
    /// Due and free.
    pub ready: u64,
    /// Not yet due.
    pub delayed: u64,
    /// Claimed by a worker.
    pub leased: u64,
    /// Behind an event of their key that must wait, or held.
    pub parked: u64,
    /// Out of attempts.
    pub dead: u64,
}

impl Counts {
    /// Adds `events` of one status. Settled events are not counted.
    pub fn add(&mut self, status: Status, events: u64) {
        match status {
            Status::Ready => self.ready += events,
            Status::Delayed => self.delayed += events,
            Status::Leased => self.leased += events,
            Status::Parked => self.parked += events,
            Status::Dead => self.dead += events,
            Status::Settled => {}
        }
    }

    /// All that is still to be done: everything but dead.
    pub fn pending(&self) -> u64 {
        self.ready + self.delayed + self.leased + self.parked
    }
}
