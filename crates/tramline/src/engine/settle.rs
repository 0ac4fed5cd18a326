//! Writes outcomes back: what has gathered while one settle was under way goes into the next one.

use crate::engine::backoff::Outage;
use crate::engine::dispatch::Verdict;
use crate::engine::hand::{Hand, Outcomes};
use crate::engine::hooks::Settlement;
use crate::engine::run::Run;
use crate::engine::trace::Settling;
use crate::error::{Kind, Result};
use crate::model::id::EventId;
use crate::model::lease::Lease;
use crate::store::verbs::{Release, Settle, Settled};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Outcomes of slices with slow neighbours wait no longer than this.
const PARTIAL: Duration = Duration::from_millis(100);

/// So few outcomes wait a moment for company: a commit for each of them would stand in the way of the next emit.
const FEW: usize = 64;
const LINGER: Duration = Duration::from_millis(5);

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

/// Settles what is finished, and with `partial` everything that has an outcome, until nothing is left of it. Cancel-safe: what the
/// store has not answered for can be settled again.
pub(crate) async fn flush(run: &Run, partial: bool, outage: &mut Outage) {
    let mut unanswered = Unanswered(collect(run, partial));
    let batch = &unanswered.0;
    if batch.is_empty() {
        return;
    }
    let failed = run.is_ordered() && batch.iter().any(|outcomes| outcomes.stops().next().is_some());
    // While a failure is being settled nothing may be claimed: nobody could tell whether what comes is already parked.
    let _no_claims = if failed { Some(run.order.write().await) } else { None };
    run.store_begin();
    let mut answer = Answer::default();
    batch.iter().for_each(|outcomes| outcomes.begin(&mut answer.spans));
    settle(run, batch, &mut answer, outage).await;
    let batch = std::mem::take(&mut unanswered.0);
    if failed {
        let in_doubt = confirm(run, &batch, &answer);
        give_back(run, in_doubt, outage).await;
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

/// Outcomes on their way to the store. If nobody waits for its answer any more, their hands have them again.
struct Unanswered(Vec<Outcomes>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Outcomes::put_back);
    }
}

/// What the store said of failures.
#[derive(Default)]
struct Answer {
    /// Their keys wait for them.
    waiting: HashSet<EventId>,
    /// Their handlers have told the store themselves, so this process does not know what became of them.
    told: HashSet<EventId>,
    spans: Settling,
}

/// Lets the keys of failed events go on, or sets aside what follows in them. Gives the leases of what may be set aside by this
/// process alone.
fn confirm(run: &Run, batch: &[Outcomes], answer: &Answer) -> Vec<Lease> {
    let mut in_doubt = Vec::new();
    for outcomes in batch {
        for at in outcomes.stops() {
            let id = outcomes.hand.id(at);
            let told = answer.told.contains(&id);
            let waits = told || answer.waiting.contains(&id);
            let verdict = if waits { Verdict::Waits } else { Verdict::GoesOn };
            let refused = run.dispatch.confirm(&outcomes.hand, at, verdict);
            in_doubt.extend(refused.iter().filter(|_| told).map(|task| task.hand.lease));
            run.set_aside(refused);
        }
    }
    in_doubt
}

/// Gives back what nobody here would run, until the store has answered. Where the store has taken it back, nothing happens.
async fn give_back(run: &Run, leases: Vec<Lease>, outage: &mut Outage) {
    while !leases.is_empty() {
        let (subscription, now) = (run.subscription.id, run.tram.clock().now());
        let release = Release { subscription, leases: leases.clone(), now };
        match run.tram.store().release(release).await {
            Err(error) if error.kind() == Kind::Unavailable => outage.wait(run.tram.clock(), &error).await,
            _ => return run.tram.wake().notify(&[subscription]),
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
async fn settle(run: &Run, batch: &[Outcomes], answer: &mut Answer, outage: &mut Outage) {
    loop {
        match try_settle(run, batch).await {
            Ok(settled) => {
                outage.over();
                return accept(run, batch, settled, answer);
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
                    Box::pin(settle(run, one, answer, outage)).await;
                }
                return;
            }
        }
    }
}

async fn try_settle(run: &Run, batch: &[Outcomes]) -> Result<Settled> {
    let results = batch.iter().map(Outcomes::to_settle).collect();
    let (subscription, worker) = (run.subscription.id, Some(run.tram.presence().name.clone()));
    let settle = Settle { subscription, results, worker, now: run.tram.clock().now() };
    run.tram.store().settle(settle).await
}

fn accept(run: &Run, batch: &[Outcomes], settled: Settled, answer: &mut Answer) {
    run.tram.courier().send(&settled.news);
    if settled.wake {
        run.tram.wake().notify(&[run.subscription.id]);
    }
    answer.waiting.extend(settled.waiting);
    let mut refused = 0;
    for (outcomes, accepted) in batch.iter().zip(&settled.accepted) {
        if accepted.iter().all(|accepted| *accepted) {
            continue;
        }
        let ids = outcomes.ids();
        let lost: Vec<_> =
            ids.iter().zip(accepted).filter(|(_, accepted)| !**accepted).map(|(id, _)| *id).collect();
        if run.single {
            // The handler has settled in its own transaction; then there is nothing left to accept.
            answer.told.extend(lost);
            continue;
        }
        refused += lost.len();
        run.hooks.lease_lost(run.name(), &lost);
        answer.spans.lost(&lost);
        run.lose(&outcomes.hand);
    }
    let all: usize = batch.iter().map(Outcomes::len).sum();
    run.hooks.settled(run.name(), Settlement { accepted: all - refused, refused });
}
