//! The life of an event in one subscription, as it is shown.

use crate::http::app::App;
use crate::http::control::RuleOut;
use crate::http::json::{Id, When};
use crate::http::letters::FailureOut;
use crate::http::problem::Answer;
use serde::Serialize;
use std::collections::HashMap;
use tramline::store::verbs::Delivery;
use tramline::{DropReason, DropRecord, Gone, Incarnation, Status, Time};
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

/// What subscriptions make of an event.
pub(crate) async fn told(app: &App, deliveries: Vec<Delivery>) -> Answer<Vec<DeliveryOut>> {
    Ok(told_of_each(app, vec![deliveries]).await?.pop().unwrap_or_default())
}

/// The same of several events.
pub(crate) async fn told_of_each(app: &App, all: Vec<Vec<Delivery>>) -> Answer<Vec<Vec<DeliveryOut>>> {
    let owners = Owners::of(app, all.iter().flatten()).await?;
    let told = |one: Vec<Delivery>| one.into_iter().map(|one| DeliveryOut::new(&owners, one)).collect();
    Ok(all.into_iter().map(told).collect())
}

/// The names of those who have events, as far as they are known.
struct Owners(HashMap<Incarnation, String>);

impl Owners {
    /// A claim through this node is known here. All others are looked up among the workers of the store, which are asked for only then:
    /// most events are in nobody's hands.
    async fn of(app: &App, deliveries: impl Iterator<Item = &Delivery>) -> Answer<Owners> {
        let mut names = HashMap::new();
        let mut is_unknown = false;
        for owner in deliveries.filter_map(|delivery| delivery.worker) {
            match app.workers.name(owner) {
                Some(name) => drop(names.insert(owner, name.to_string())),
                None => is_unknown = true,
            }
        }
        if is_unknown {
            let workers = app.ask(app.tram.workers()).await?;
            names.extend(workers.into_iter().map(|worker| (worker.incarnation, worker.name)));
        }
        Ok(Owners(names))
    }

    fn name(&self, owner: Incarnation) -> String {
        self.0.get(&owner).cloned().unwrap_or_else(|| format!("{:x}", owner.0))
    }
}

impl DeliveryOut {
    fn new(owners: &Owners, delivery: Delivery) -> DeliveryOut {
        DeliveryOut {
            worker: delivery.worker.map(|owner| owners.name(owner)),
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
