//! Keeps leases: one task extends all that is in hand, and tells handlers when a lease is lost.

use crate::engine::hand::Hand;
use crate::engine::run::Run;
use crate::model::id::LaneId;
use crate::model::lease::Lease;
use crate::store::verbs::{Extend, Extended};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The shortest pause between two looks.
const SOON: Duration = Duration::from_millis(5);

/// Keeps until it is told to stop.
pub(crate) async fn keep_all(run: Arc<Run>, stop: CancellationToken) {
    let mut kept = true;
    loop {
        if run.ledger.is_empty() {
            tokio::select! {
                () = stop.cancelled() => return,
                () = run.ledger.arrival.notified() => {}
            }
        }
        let wake_at = next_look(&run, kept);
        tokio::select! {
            () = stop.cancelled() => return,
            () = run.tram.clock().sleep_until(wake_at) => {}
        }
        kept = extend(&run, due(&run)).await;
        expire(&run);
    }
}

/// The first moment at which a lease is a third used; after a failure again and again, but not busily.
fn next_look(run: &Run, kept: bool) -> Duration {
    let lease = run.subscription.policy.lease();
    let now = run.tram.clock().reading();
    let first = run.ledger.all().iter().map(|hand| hand.deadline()).min();
    let Some(first) = first else { return now + lease / 3 };
    if kept { first.saturating_sub(lease * 2 / 3) } else { (now + lease / 20).min(first.max(now + SOON)) }
}

/// What is a third used.
fn due(run: &Run) -> Vec<Arc<Hand>> {
    let lease = run.subscription.policy.lease();
    let soon = run.tram.clock().reading() + lease * 2 / 3 + Duration::from_millis(1);
    run.ledger.all().into_iter().filter(|hand| hand.deadline() <= soon).collect()
}

/// Extends these. Leases of one lane are one. False if something could not be extended.
pub(crate) async fn extend(run: &Run, hands: Vec<Arc<Hand>>) -> bool {
    let lease = run.subscription.policy.lease();
    let clock = run.tram.clock();
    let before = clock.reading();
    let mut by_lane: HashMap<(LaneId, i64, Lease), Vec<Arc<Hand>>> = HashMap::new();
    for hand in hands {
        by_lane.entry(same_lease(&hand.lease)).or_default().push(hand);
    }
    if by_lane.is_empty() {
        return true;
    }
    let groups: Vec<Vec<Arc<Hand>>> = by_lane.into_values().collect();
    let leases = groups.iter().map(|hands| hands[0].lease).collect();
    run.store_begin();
    // By the policy of the start, as everything here: another length would not be noticed.
    let extend = Extend { subscription: run.subscription.id, leases, lease: Some(lease), now: clock.now() };
    let extended = run.tram.store().extend(extend).await;
    run.store_end();
    match extended {
        Ok(extended) => {
            for (hands, extended) in groups.iter().zip(&extended) {
                hands.iter().for_each(|hand| apply(run, hand, *extended, before + lease));
            }
            extended.iter().all(|extended| matches!(extended, Extended::Until(_)))
        }
        Err(error) => {
            tracing::warn!(error = %error, subscription = run.name(), "leases could not be extended");
            false
        }
    }
}

fn apply(run: &Run, hand: &Hand, extended: Extended, deadline: Duration) {
    match extended {
        Extended::Until(until) => hand.extend(until, deadline),
        // A transaction has the row: the lease is not lost, only not extended. The next look tries again.
        Extended::Locked => {}
        // What is finished may have been settled while this went on; the settler knows better.
        Extended::Lost if hand.is_finished() => {}
        Extended::Lost => run.lose(hand),
    }
}

/// Leases whose time is over, by the clock of this process: another worker may have them now.
fn expire(run: &Run) {
    let now = run.tram.clock().reading();
    for hand in run.ledger.all() {
        if hand.deadline() <= now && !hand.is_finished() {
            run.lose(&hand);
        }
    }
}

/// What is extended together: the slices of a lane under one epoch, or one slice.
fn same_lease(lease: &Lease) -> (LaneId, i64, Lease) {
    if lease.is_ordered() {
        let whole = Lease { chunk: Default::default(), slice: Default::default(), ..*lease };
        (lease.lane, lease.epoch, whole)
    } else {
        (lease.lane, lease.epoch, *lease)
    }
}
