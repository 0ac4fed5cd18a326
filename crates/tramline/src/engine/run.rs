//! One run of a worker: what its parts share, and how it ends.

use crate::engine::backoff::Outage;
use crate::engine::claim::Claimer;
use crate::engine::context::{Context, States};
use crate::engine::dispatch::{Dispatch, Task, Verdict};
use crate::engine::hand::Hand;
use crate::engine::handler::Handlers;
use crate::engine::hooks::Hooks;
use crate::engine::journal::Journal;
use crate::engine::ledger::Ledger;
use crate::engine::pool::Seat;
use crate::engine::shutdown::Shutdown;
use crate::engine::trace::Stopped;
use crate::engine::tramline::Tramline;
use crate::engine::{keeper, runner, settle};
use crate::error::Result;
use crate::model::id::{EventId, LaneId};
use crate::model::lease::Lease;
use crate::model::outcome::Outcome;
use crate::model::subscription::Subscription;
use crate::store::verbs::Release;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long the last words to the store may take, even if the grace is over.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How long a handler may still run after it was told to stop.
const TIDY_UP: Duration = Duration::from_secs(1);

/// How many events may be claimed and not written back.
const MOST_UNSETTLED: usize = 4 * 4_096;

/// What claim loop, runners, settler and keeper of one run share.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) tram: Tramline,
    pub(crate) subscription: Subscription,
    pub(crate) handlers: Handlers,
    pub(crate) states: States,
    pub(crate) hooks: Arc<dyn Hooks>,
    pub(crate) concurrency: usize,
    /// One event per lease, for handlers that settle in their own transaction.
    pub(crate) single: bool,
    pub(crate) journal: Option<Journal>,
    /// Where handlers need a place that workers share.
    pub(crate) seat: Option<Seat>,
    pub(crate) dispatch: Dispatch,
    pub(crate) ledger: Ledger,
    /// Ordered: claims hold it shared, settling a failure alone.
    pub(crate) order: RwLock<()>,
    begun: AtomicU64,
    ended: AtomicU64,
    unhandled: Mutex<HashSet<Arc<str>>>,
    stopped: Mutex<Option<Stopped>>,
}

/// What a run is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) tram: Tramline,
    pub(crate) subscription: Subscription,
    pub(crate) handlers: Handlers,
    pub(crate) states: States,
    pub(crate) hooks: Arc<dyn Hooks>,
    pub(crate) concurrency: usize,
    pub(crate) single: bool,
    pub(crate) journal: Option<Journal>,
    pub(crate) seat: Option<Seat>,
}

/// When a run is over.
#[derive(Debug)]
pub(crate) enum Until {
    /// Somebody says so.
    Shutdown(Shutdown),
    /// Nothing is due and nothing in flight.
    Idle,
}

impl Run {
    pub(crate) fn new(parts: Parts) -> Run {
        Run {
            dispatch: Dispatch::new(parts.subscription.policy.is_ordered()),
            tram: parts.tram,
            subscription: parts.subscription,
            handlers: parts.handlers,
            states: parts.states,
            hooks: parts.hooks,
            concurrency: parts.concurrency,
            single: parts.single,
            journal: parts.journal,
            seat: parts.seat,
            ledger: Ledger::default(),
            order: RwLock::default(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            unhandled: Mutex::default(),
            stopped: Mutex::default(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.subscription.name
    }

    pub(crate) fn is_ordered(&self) -> bool {
        self.subscription.policy.is_ordered()
    }

    /// A settle or an extension begins. It locks lanes, so a claim at the same time may pass over some.
    pub(crate) fn store_begin(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    /// A settle or an extension has ended.
    pub(crate) fn store_end(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// How many settles and extensions have begun and ended.
    pub(crate) fn business(&self) -> (u64, u64) {
        (self.begun.load(Ordering::SeqCst), self.ended.load(Ordering::SeqCst))
    }

    /// True if no settle or extension was under way since `before`.
    pub(crate) fn store_was_free(&self, before: (u64, u64)) -> bool {
        before.0 == before.1 && self.business().0 == before.0
    }

    /// A rule stops the subscription.
    pub(crate) fn stop_by(&self, stopped: Stopped) {
        let before = self.stopped.lock().unwrap_or_else(PoisonError::into_inner).replace(stopped);
        if before.map(|before| before.rule) != Some(stopped.rule) {
            tracing::debug!(subscription = self.name(), rule = stopped.rule.as_str(), "stopped by a rule");
        }
    }

    /// The rule that stopped it last.
    pub(crate) fn stopped(&self) -> Option<Stopped> {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until at most `low` events are in hand, and not too many wait to be written back. Cancel-safe.
    pub(crate) async fn room(&self, low: usize) {
        self.ledger.unsettled_at_most(MOST_UNSETTLED).await;
        self.ledger.load.at_most(low).await;
    }

    /// An event has its outcome.
    pub(crate) fn record(&self, mut task: Task, outcome: Outcome) {
        // What follows a failure in its key waits until the store knows of it.
        let waited_for = self.is_ordered() && (!outcome.is_done() || task.hand.is_doubted());
        let finished = self.dispatch.record(&mut task, Some(outcome));
        if finished {
            self.ledger.finish(task.hand);
        }
        // At most once, after a crash nobody would know that it is done, and call it interrupted. Under a limit somebody may wait for
        // its slot.
        let policy = &self.subscription.policy;
        let wanted = policy.is_at_most_once() || policy.limits.most().is_some();
        if waited_for || (!finished && wanted) {
            self.ledger.hurry();
        }
        self.ledger.done_with(1);
    }

    /// Events that will not run: somebody else will, or this process under another lease.
    pub(crate) fn set_aside(&self, tasks: Vec<Task>) {
        let count = tasks.len();
        for task in tasks {
            if task.hand.set_aside(task.at) {
                self.ledger.finish(task.hand);
            }
        }
        if count > 0 {
            self.ledger.done_with(count);
        }
    }

    /// True if the lease is lost or has ended: somebody else may have the event, so it is not started here.
    pub(crate) fn pass_over_if_lost(&self, task: &mut Task) -> bool {
        if !task.hand.is_lost() {
            if task.hand.deadline() > self.tram.clock().reading() {
                return false;
            }
            self.lose(&task.hand);
        }
        if self.dispatch.record(task, None) {
            self.ledger.finish(task.hand.clone());
        }
        self.ledger.done_with(1);
        true
    }

    /// The lease of a hand has ended. All hands of a lane have the same one.
    pub(crate) fn lose(&self, hand: &Hand) {
        let others = if hand.lease.is_ordered() { self.ledger.give_up(&hand.lease) } else { Vec::new() };
        // All are marked before the first one is cleared away: that lets the next event of a key go on, to be passed over.
        let lost: Vec<&Hand> =
            others.iter().map(|other| &**other).chain([hand]).filter(|hand| hand.lose()).collect();
        lost.into_iter().for_each(|hand| self.clear_away(hand));
    }

    fn clear_away(&self, hand: &Hand) {
        self.ledger.remove(hand);
        let unsettled = self.dispatch.locked(|| hand.drop_outcomes());
        for at in &unsettled {
            // What failed here failed for nobody: whoever has the lane next decides anew, perhaps this process.
            self.dispatch.confirm(hand, *at, Verdict::GoesOn);
        }
        let ids: Vec<EventId> = hand.pending().chain(unsettled).map(|at| hand.id(at)).collect();
        if !ids.is_empty() {
            self.hooks.lease_lost(self.name(), &ids);
        }
        self.ledger.settled.send_replace(());
    }

    /// Everything of a hand is written back.
    pub(crate) fn forget(&self, hand: &Hand) {
        if let Some(journal) = &self.journal {
            journal.settled(&hand.lease);
        }
    }

    /// An event that nobody handles is kept, not lost: perhaps the next version of the program does.
    pub(crate) fn no_handler(&self, cx: &Context) -> Outcome {
        let kind = &cx.event().kind;
        let mut told = self.unhandled.lock().unwrap_or_else(PoisonError::into_inner);
        if told.insert(kind.clone()) {
            tracing::error!(
                event.id = cx.event().id.0,
                subscription = self.name(),
                attempt = cx.attempt(),
                "no handler for events of type {kind:?}; add one with .on() or .on_any()"
            );
        }
        Outcome::retry(format!("no handler for events of type {kind:?}"))
    }
}

/// Runs until it is over. Gives how many events were claimed.
pub(crate) async fn drive(run: Arc<Run>, until: Until) -> Result<u64> {
    let _broken = BreakCircle(run.clone());
    let helpers_stop = CancellationToken::new();
    let mut helpers = JoinSet::new();
    helpers.spawn(settle::settle_all(run.clone(), helpers_stop.clone()));
    helpers.spawn(keeper::keep_all(run.clone(), helpers_stop.clone()));
    let mut runners = JoinSet::new();
    for _ in 0..run.concurrency {
        runners.spawn(runner::run_events(run.clone()));
    }
    let (stop, grace) = match &until {
        Until::Idle => (CancellationToken::new(), Duration::ZERO),
        Until::Shutdown(shutdown) => (shutdown.token(), shutdown.grace()),
    };
    let mut claimer = Claimer::new(run.clone(), stop, matches!(until, Until::Idle));
    let claimed = claimer.claim_all().await;
    let end_of_grace = run.tram.clock().reading() + grace;
    let kept = give_back_unstarted(&run).await;
    finish_running(&run, &mut runners, grace).await;
    helpers_stop.cancel();
    // A settlement that is under way may be slow; what it takes is not done again elsewhere.
    let left = end_of_grace.saturating_sub(run.tram.clock().reading()).max(LAST_WORDS);
    if !all_done(&run, &mut helpers, left).await {
        helpers.shutdown().await;
    }
    give_back_rest(&run, kept).await;
    claimed.map(|()| claimer.claimed())
}

/// Gives back at once what no handler has begun. Gives leases of which a part has to be given back later.
async fn give_back_unstarted(run: &Run) -> Vec<Lease> {
    let tasks = run.dispatch.close();
    // A lane goes back as a whole: if this process ended with a later slice in hand, an earlier one that it gave back would have
    // to run after it.
    let in_hand = run.ledger.all();
    let lanes: HashSet<LaneId> =
        in_hand.iter().filter(|hand| hand.is_started()).map(|hand| hand.lease.lane).collect();
    let mut whole = HashSet::new();
    let mut later = HashSet::new();
    let mut count = 0;
    for task in tasks {
        let hand = task.hand.clone();
        let begun = hand.is_started() || (run.is_ordered() && lanes.contains(&hand.lease.lane));
        if !begun {
            run.ledger.remove(&hand);
            hand.set_aside(task.at);
            whole.insert(hand.lease);
            count += 1;
        } else if run.is_ordered() || hand.crashes > 0 {
            // Its lane stays here as long as one of its events runs, and a suspect stays a suspect: given back at the end.
            later.insert(hand.lease);
            run.set_aside(vec![task]);
        } else {
            // A neighbour of it runs, so the lease stays; only this event goes back, uncounted.
            run.record(task, Outcome::Snooze { delay: Duration::ZERO });
        }
    }
    if count > 0 {
        run.ledger.done_with(count);
    }
    run.ledger.hurry();
    release(run, whole.into_iter().collect()).await;
    later.into_iter().collect()
}

/// Waits for what runs, within the grace. What is still running then is told, has a moment to tidy up, and is dropped.
async fn finish_running(run: &Run, runners: &mut JoinSet<()>, grace: Duration) {
    if all_done(run, runners, grace).await {
        return;
    }
    for hand in run.ledger.all() {
        hand.cancel.cancel();
    }
    if !all_done(run, runners, TIDY_UP).await {
        runners.shutdown().await;
    }
}

/// False if it takes longer than that.
async fn all_done(run: &Run, tasks: &mut JoinSet<()>, within: Duration) -> bool {
    let done = async { while tasks.join_next().await.is_some() {} };
    run.tram.clock().timeout(within, done).await.is_some()
}

/// Settles what has an outcome and gives back the rest, so that others can go on at once.
async fn give_back_rest(run: &Run, mut leases: Vec<Lease>) {
    let unfinished: Vec<Arc<Hand>> =
        run.ledger.all().into_iter().filter(|hand| !hand.is_finished()).collect();
    for hand in unfinished {
        if run.subscription.policy.is_at_most_once() {
            // It was begun, so it must not run again.
            for at in hand.pending() {
                hand.record(at, Outcome::retry("interrupted: the worker was stopped while this event ran"));
            }
        } else {
            leases.push(hand.lease);
        }
    }
    let last_words = async {
        settle::flush(run, true, &mut Outage::new("the worker stops")).await;
        release(run, leases).await;
    };
    let told = run.tram.clock().timeout(LAST_WORDS, last_words).await;
    if told.is_none() {
        tracing::warn!(
            subscription = run.name(),
            "the store did not answer; what was in hand is free when its lease ends"
        );
    }
}

async fn release(run: &Run, leases: Vec<Lease>) {
    if leases.is_empty() {
        return;
    }
    let release = Release { subscription: run.subscription.id, leases, now: run.tram.clock().now() };
    match run.tram.store().release(release).await {
        Ok(_) => run.tram.wake().notify(&[run.subscription.id]),
        Err(error) => {
            tracing::warn!(error = %error, subscription = run.name(), "events could not be given back; their leases will end");
        }
    }
}

/// Hands hold their run and the run holds its hands; without this a dropped run would never be freed. Tasks of a dropped run may end
/// after it, which the next one must not wait for to open the journal.
struct BreakCircle(Arc<Run>);

impl Drop for BreakCircle {
    fn drop(&mut self) {
        self.0.dispatch.close();
        self.0.ledger.clear();
        if let Some(journal) = &self.0.journal {
            journal.close();
        }
    }
}
