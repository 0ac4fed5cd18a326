//! The life of an event in one subscription, as it is shown.

use crate::http::app::App;
use crate::http::control::RuleOut;
use crate::http::json::{Id, When};
use crate::http::letters::FailureOut;
use serde::Serialize;
use tramline::store::verbs::Delivery;
use tramline::{DropReason, DropRecord, Gone, Status, Time};
use utoipa::ToSchema;

/// What one subscription makes of an event.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeliveryOut {
    subscription: String,
    status: Status,
    /// Which try is under way or next, from 1; the last one if it is dead, 0 if it is settled
    attempt: u32,
    /// Leases that ended by expiry
    crashes: u32,
    /// When it may run, or when its lease ends
    due_at: Option<When>,
    /// Who has it
    worker: Option<String>,
    /// The event of its key that it waits for: the one for which the key is parked, or its predecessor
    blocked_by: Option<Id>,
    /// Why it failed last
    error: Option<String>,
    /// Why its last attempts failed, oldest first, 10 at most; also when it was done after that
    failures: Vec<FailureOut>,
    /// The rules that stop it while it is to be claimed
    rules: Vec<RuleOut>,
    /// Why it will not run although it was not done
    gone: Option<GoneOut>,
    /// A record of drops that may be about it
    dropped: Option<DroppedOut>,
}

/// Why an event will not run although it was not done.
#[derive(Serialize, ToSchema)]
pub(crate) struct GoneOut {
    reason: Gone,
    at: When,
}

/// Some events between two ids that were dropped; which of them is not recorded.
#[derive(Serialize, ToSchema)]
pub(crate) struct DroppedOut {
    reason: DropReason,
    first: Id,
    last: Id,
    events: u64,
    at: When,
}

impl DeliveryOut {
    pub(crate) fn new(app: &App, delivery: Delivery) -> DeliveryOut {
        DeliveryOut {
            worker: delivery.worker.map(|owner| {
                app.workers.name(owner).map_or_else(|| format!("{:x}", owner.0), |name| name.to_string())
            }),
            attempt: attempt(&delivery),
            subscription: delivery.subscription.to_string(),
            status: delivery.status,
            crashes: delivery.crashes,
            due_at: delivery.due_at.map(When),
            blocked_by: delivery.blocked_by.map(Id),
            error: delivery.error,
            failures: delivery.failures.iter().map(FailureOut::from).collect(),
            rules: delivery.rules.into_iter().map(RuleOut::from).collect(),
            gone: delivery.gone.map(|(reason, at): (Gone, Time)| GoneOut { reason, at: When(at) }),
            dropped: delivery.dropped.map(DroppedOut::from),
        }
    }
}

impl From<DropRecord> for DroppedOut {
    fn from(record: DropRecord) -> DroppedOut {
        DroppedOut {
            reason: record.reason,
            first: Id(record.first),
            last: Id(record.last),
            events: record.events,
            at: When(record.at),
        }
    }
}

fn attempt(delivery: &Delivery) -> u32 {
    match delivery.status {
        Status::Settled => 0,
        Status::Dead => delivery.attempts,
        _ => delivery.attempts + 1,
    }
}
