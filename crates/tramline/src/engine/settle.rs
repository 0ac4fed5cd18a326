//! Writes outcomes back: what has gathered while one settle was under way goes into the next one.

use crate::engine::backoff::Outage;
use crate::engine::hand::{Hand, Outcomes};
use crate::engine::hooks::Settlement;
use crate::engine::run::Run;
use crate::error::{Kind, Result};
use crate::model::id::EventId;
use crate::model::lease::Lease;
use crate::model::outcome::Outcome;
use crate::store::verbs::{Settle, SettleSlice, Settled};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Outcomes of slices with slow neighbours wait no longer than this.
const PARTIAL: Duration = Duration::from_millis(100);

/// So few outcomes wait a moment for company: a commit for each of them would stand in the way of the next emit.
const FEW: usize = 64;
const LINGER: Duration = Duration::from_millis(3);

/// Settles until it is told to stop.
pub(crate) async fn settle_all(run: Arc<Run>, stop: CancellationToken) {
    let mut outage = Outage::new("outcomes are written back");
    loop {
        let partial = tokio::select! {
            () = stop.cancelled() => return,
            () = run.ledger.finish_bell.notified() => {
                let hurried = run.ledger.is_hurried();
                if !hurried && run.ledger.finished_events() < FEW {
                    linger(&stop).await;
                }
                hurried || run.ledger.is_hurried()
            }
            () = run.tram.clock().sleep(PARTIAL), if !run.ledger.is_empty() => true,
        };
        flush(&run, partial, &mut outage).await;
    }
}

/// Waits a moment, by the real clock: a test's time may stand still.
async fn linger(stop: &CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = tokio::time::sleep(LINGER) => {}
    }
}

/// Settles what is finished, and with `partial` everything that has an outcome, until nothing is left of it.
pub(crate) async fn flush(run: &Run, partial: bool, outage: &mut Outage) {
    let batch = collect(run, partial);
    if batch.is_empty() {
        return;
    }
    let failed = run.is_ordered() && batch.iter().any(|outcomes| outcomes.failures().next().is_some());
    // While a failure is being settled nothing may be claimed: nobody could tell whether what comes is already parked.
    let _no_claims = if failed { Some(run.order.write().await) } else { None };
    run.store_begin();
    settle(run, &batch, outage).await;
    if failed {
        let refused =
            batch.iter().flat_map(|outcomes| run.dispatch.confirm(&outcomes.hand, outcomes.failures()));
        take_back(run, refused.collect(), outage).await;
    }
    for outcomes in &batch {
        let hand = &outcomes.hand;
        if hand.is_finished() && !hand.has_outcomes() {
            run.ledger.remove(hand);
            run.forget(hand);
        }
    }
    run.store_end();
    run.ledger.settled.send_replace(());
}

/// Events that were refused here because an earlier one of their key failed. The store has set them aside for the same reason,
/// unless it judged the failure by a newer policy: then they are still leased, and nobody would run them.
async fn take_back(run: &Run, refused: Vec<(Lease, EventId)>, outage: &mut Outage) {
    let mut by_lease: HashMap<Lease, Vec<(u32, Outcome)>> = HashMap::new();
    for (lease, id) in refused {
        let later = Outcome::Snooze { delay: Duration::ZERO };
        by_lease.entry(lease).or_default().push((id.index(), later));
    }
    let results: Vec<SettleSlice> =
        by_lease.into_iter().map(|(lease, outcomes)| SettleSlice { lease, outcomes }).collect();
    while !results.is_empty() {
        let (subscription, now) = (run.subscription.id, run.tram.clock().now());
        let settle = Settle { subscription, results: results.clone(), now };
        match run.tram.store().settle(settle).await {
            Err(error) if error.kind() == Kind::Unavailable => outage.wait(run.tram.clock(), &error).await,
            Ok(settled) => {
                run.tram.courier().send(&settled.news);
                if settled.wake {
                    run.tram.wake().notify(&[run.subscription.id]);
                }
                return;
            }
            Err(_) => return,
        }
    }
}

/// In ordered subscriptions all outcomes go together: what ran later is never settled before what ran earlier.
fn collect(run: &Run, partial: bool) -> Vec<Outcomes> {
    run.dispatch.locked(|| {
        let finished = run.ledger.take_finished();
        let hands: Vec<Arc<Hand>> = if run.is_ordered() || partial { run.ledger.all() } else { finished };
        let mut batch = Vec::with_capacity(hands.len());
        let mut emptied = false;
        for hand in hands {
            let outcomes = if hand.has_outcomes() { Some(hand.take_outcomes()) } else { None };
            match outcomes.filter(|outcomes| !outcomes.is_empty()) {
                Some(outcomes) => batch.push(outcomes),
                None if hand.is_finished() => {
                    run.ledger.remove(&hand);
                    run.forget(&hand);
                    emptied = true;
                }
                None => {}
            }
        }
        if emptied {
            run.ledger.settled.send_replace(());
        }
        batch
    })
}

/// Writes until the store has answered. Settling twice does no harm, so an unknown fate is simply tried again.
async fn settle(run: &Run, batch: &[Outcomes], outage: &mut Outage) {
    loop {
        match try_settle(run, batch).await {
            Ok(settled) => {
                outage.over();
                return accept(run, batch, &settled);
            }
            Err(error) if error.kind() == Kind::Unavailable => outage.wait(run.tram.clock(), &error).await,
            Err(error) if batch.len() == 1 => {
                let first = batch[0].ids().first().map(|id| id.0);
                tracing::error!(error = %error, subscription = run.name(), event.id = first, "outcomes were refused");
                return run.lose(&batch[0].hand);
            }
            // One of them is refused: settle them apart, so that it does not stop the others.
            Err(_) => {
                for one in batch.chunks(1) {
                    Box::pin(settle(run, one, outage)).await;
                }
                return;
            }
        }
    }
}

async fn try_settle(run: &Run, batch: &[Outcomes]) -> Result<Settled> {
    let results = batch.iter().map(Outcomes::to_settle).collect();
    let settle = Settle { subscription: run.subscription.id, results, now: run.tram.clock().now() };
    run.tram.store().settle(settle).await
}

fn accept(run: &Run, batch: &[Outcomes], settled: &Settled) {
    run.tram.courier().send(&settled.news);
    if settled.wake {
        run.tram.wake().notify(&[run.subscription.id]);
    }
    let mut refused = 0;
    for (outcomes, accepted) in batch.iter().zip(&settled.accepted) {
        // A handler that settles in its own transaction has done so already; then there is nothing left to accept.
        if run.single || accepted.iter().all(|accepted| *accepted) {
            continue;
        }
        let ids = outcomes.ids();
        let lost: Vec<_> =
            ids.iter().zip(accepted).filter(|(_, accepted)| !**accepted).map(|(id, _)| *id).collect();
        refused += lost.len();
        run.hooks.lease_lost(run.name(), &lost);
        run.lose(&outcomes.hand);
    }
    let all: usize = batch.iter().map(Outcomes::len).sum();
    run.hooks.settled(run.name(), Settlement { accepted: all - refused, refused });
}
