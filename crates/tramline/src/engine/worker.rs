//! Workers: which events run, with which handlers, under which policy.

use crate::engine::backoff::Outage;
use crate::engine::context::States;
use crate::engine::handler::{Batch, Bound, Handler, Handlers, IntoOutcomes};
use crate::engine::hooks::{Guarded, Hooks};
use crate::engine::journal::{Journal, NeverStarted};
use crate::engine::plugin::Plugin;
use crate::engine::pool::Pool;
use crate::engine::run::{Parts, Run, Until, drive};
use crate::engine::shutdown::Shutdown;
use crate::engine::tramline::Tramline;
use crate::error::{Error, Kind, Result};
use crate::model::id::SubscriptionId;
use crate::model::limits::Limits;
use crate::model::retry::Retry;
use crate::model::subscription::{
    Guarantee, OnExhausted, Ordering, Policy, Start, Subscription, WhileRetrying,
};
use crate::store::verbs::{Adopt, Expected, PutSubscription};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How many handlers run at the same time unless it is set.
const CONCURRENCY: usize = 16;
/// The most handlers that run at the same time.
const MAX_CONCURRENCY: usize = 4_096;

/// Runs the events of one subscription. Made by [`Tramline::worker`], described by its methods, started with [`Worker::run`].
///
/// With [`Worker::topics`] the subscription is created, or its policy replaced by what is said here. Without, it must exist, and its
/// own policy holds.
#[derive(Debug)]
pub struct Worker {
    tram: Tramline,
    name: String,
    topics: Vec<String>,
    policy: Policy,
    start: Start,
    concurrency: usize,
    handlers: Handlers,
    states: States,
    hooks: Arc<dyn Hooks>,
    single: bool,
    journal: Option<(PathBuf, bool)>,
    pool: Option<(Pool, u32)>,
}

impl Worker {
    pub(crate) fn new(tram: Tramline, name: String) -> Worker {
        Worker {
            hooks: tram.hooks().clone(),
            tram,
            name,
            topics: Vec::new(),
            policy: Policy::default(),
            start: Start::default(),
            concurrency: CONCURRENCY,
            handlers: Handlers::default(),
            states: States::default(),
            single: false,
            journal: None,
            pool: None,
        }
    }

    /// The complete set of topics that the subscription consumes.
    #[must_use]
    pub fn topics<T: Into<String>>(mut self, topics: impl IntoIterator<Item = T>) -> Worker {
        self.topics = topics.into_iter().map(Into::into).collect();
        self
    }

    /// Events of one topic and key run strictly one after the other. Never changes once the subscription exists.
    #[must_use]
    pub fn ordered_by_key(mut self) -> Worker {
        self.policy.ordering = Ordering::Key;
        self
    }

    /// An event never runs twice; it may be lost when a worker dies. Never changes once the subscription exists.
    #[must_use]
    pub fn at_most_once(mut self) -> Worker {
        self.policy.guarantee = Guarantee::AtMostOnce;
        self
    }

    /// How many handlers run at the same time (16 unless set, at most 4,096).
    #[must_use]
    pub fn concurrency(mut self, handlers: usize) -> Worker {
        self.concurrency = handlers.clamp(1, MAX_CONCURRENCY);
        self
    }

    /// Its handlers run in the places of a pool that it shares with other workers of this process: while all of them have something to do,
    /// events start in the proportion of the weights (1 to 1,000). [`Worker::concurrency`] still holds for this worker alone.
    #[must_use]
    pub fn pool(mut self, pool: &Pool, weight: u32) -> Worker {
        self.pool = Some((pool.clone(), weight));
        self
    }

    /// How often and when failed events run again.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Worker {
        self.policy.retry = retry;
        self
    }

    /// How long a handler may run; no limit unless set. A handler that takes longer is dropped, which counts as a failure.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Worker {
        self.policy.time_limit = Some(limit);
        self
    }

    /// How long events stay with a worker that has died (30 s, ordered 10 s, unless set). Extended while handlers run.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Worker {
        self.policy.lease = Some(lease);
        self
    }

    /// What waits while an event of an ordered subscription is retried.
    #[must_use]
    pub fn while_retrying(mut self, what: WhileRetrying) -> Worker {
        self.policy.while_retrying = what;
        self
    }

    /// What becomes of an event that is out of attempts.
    #[must_use]
    pub fn on_exhausted(mut self, what: OnExhausted) -> Worker {
        self.policy.on_exhausted = what;
        self
    }

    /// How many events are claimed at once, at most.
    #[must_use]
    pub fn claim_size(mut self, events: u32) -> Worker {
        self.policy.claim_size = Some(events);
        self
    }

    /// What all workers of the subscription may do together, in whatever process: events under way, events of one key under way, events
    /// that start in a period. [`Worker::concurrency`] is about this process.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Worker {
        self.policy.limits = limits;
        self
    }

    /// Where a new subscription starts in the retained events of its topics (at the beginning unless set).
    #[must_use]
    pub fn start(mut self, start: Start) -> Worker {
        self.start = start;
        self
    }

    /// A value for all handlers: an argument `State<T>`, or `cx.state::<T>()`. One of each type.
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(mut self, value: T) -> Worker {
        self.states.put(value);
        self
    }

    /// Who is told what happens.
    #[must_use]
    pub fn hooks(mut self, hooks: Arc<dyn Hooks>) -> Worker {
        self.hooks = Guarded::around(hooks);
        self
    }

    /// Handlers settle in their own transaction, with [`crate::Context::settlement`]: every event gets a lease of its own.
    #[must_use]
    pub fn settles_in_transaction(mut self) -> Worker {
        self.single = true;
        self
    }

    /// At most once: a local file that remembers which events were begun, so that after a crash the others can still run. Each
    /// entry is on the disk before a handler runs.
    ///
    /// The file belongs to one worker of one process at a time, which holds a lock on it. A process that is stopped (`SIGSTOP`) keeps
    /// its lock, because it may go on with what it has: a replacement with the same journal is refused with `Conflict` until the
    /// stopped one has ended.
    #[must_use]
    pub fn journal(mut self, path: impl Into<PathBuf>) -> Worker {
        self.journal = Some((path.into(), true));
        self
    }

    /// As [`Worker::journal`], but entries reach the disk when the operating system likes: enough for a crash of the process, not
    /// of the machine.
    #[must_use]
    pub fn journal_unsynced(mut self, path: impl Into<PathBuf>) -> Worker {
        self.journal = Some((path.into(), false));
        self
    }

    /// The handler for events of one type.
    #[must_use]
    pub fn on<Args>(mut self, kind: impl Into<String>, handler: impl Handler<Args>) -> Worker {
        self.handlers.put(kind, Bound::one(handler));
        self
    }

    /// The handler for events of all types that have no other one.
    #[must_use]
    pub fn on_any<Args>(mut self, handler: impl Handler<Args>) -> Worker {
        self.handlers.put_any(Bound::one(handler));
        self
    }

    /// A handler that takes up to `max` events of one type at once: what is there, without waiting for more.
    #[must_use]
    pub fn on_batch<F, Fut>(mut self, kind: impl Into<String>, max: usize, handler: F) -> Worker
    where
        F: Fn(Batch) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcomes,
    {
        self.handlers.put(kind, Bound::batch(max, handler));
        self
    }

    /// A plug-in for events of one type.
    #[must_use]
    pub fn plug(mut self, kind: impl Into<String>, plugin: Arc<dyn Plugin>) -> Worker {
        self.handlers.put(kind, Bound::plugin(plugin));
        self
    }

    /// A plug-in for events of all types that have no other handler.
    #[must_use]
    pub fn plug_any(mut self, plugin: Arc<dyn Plugin>) -> Worker {
        self.handlers.put_any(Bound::plugin(plugin));
        self
    }

    /// The subscription's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Creates the subscription, or changes it to what is said here, without running anything: what is emitted from now on is kept for
    /// it, with its delays. [`Worker::run`] does this too.
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub async fn subscribe(&self) -> Result<Subscription> {
        if self.topics.is_empty() {
            return self.tram.subscription(&self.name).await;
        }
        let put = PutSubscription {
            name: self.name.clone(),
            topics: self.topics.clone(),
            policy: self.policy.clone(),
            start: self.start,
            expected: Expected::Anything,
            now: self.tram.clock().now(),
        };
        self.tram.store().put_subscription(put).await
    }

    /// Runs events until `shutdown` is started: then nothing more is claimed, what no handler has begun goes back at once, what
    /// runs may finish within the grace, and the rest goes back too. A store that does not answer is waited for.
    ///
    /// Dropping the future stops the handlers on the spot; what was in hand is free only when its leases end.
    ///
    /// # Errors
    /// `Conflict` when the subscription exists with another ordering or guarantee, when this process already runs it, or when
    /// somebody else has the journal open;
    /// `NotFound` when it does not exist or was deleted; `Invalid` for impossible settings.
    pub async fn run(&self, shutdown: Shutdown) -> Result<()> {
        self.run_for(Until::Shutdown(shutdown)).await.map(|_| ())
    }

    /// Runs events until `signal` is done, with the default grace. See [`Worker::run`].
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub async fn run_until(&self, signal: impl Future) -> Result<()> {
        let shutdown = Shutdown::new();
        let switch = shutdown.clone();
        let running = self.run(shutdown);
        tokio::pin!(running, signal);
        tokio::select! {
            ended = &mut running => return ended,
            _ = &mut signal => switch.start(),
        }
        running.await
    }

    /// Runs events until nothing is due and nothing in flight. Gives how many were claimed. For tests; see [`crate::testkit`].
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub async fn drain(&self) -> Result<u64> {
        self.run_for(Until::Idle).await
    }

    async fn run_for(&self, until: Until) -> Result<u64> {
        let subscribe = || self.subscribe();
        let subscribed = self.in_time(&until, "the subscription is created", subscribe).await?;
        let Some(subscription) = subscribed else { return Ok(0) };
        // Before the journal is read: what a worker that runs has in it is no earlier life's.
        let place = self.tram.presence().reserve(subscription.id)?;
        let journal = match self.open_journal(&subscription)? {
            None => None,
            Some((journal, left)) => {
                if !self.adopt(subscription.id, left, &until).await? {
                    return Ok(0);
                }
                journal.clear().await.map_err(|error| {
                    Error::unavailable("the journal cannot be written", "check the disk").because(error)
                })?;
                Some(journal)
            }
        };
        let membership = place.join().await?;
        let run = Run::new(Parts {
            tram: self.tram.clone(),
            subscription,
            handlers: self.handlers.clone(),
            states: self.states.clone(),
            hooks: self.hooks.clone(),
            concurrency: self.concurrency,
            single: self.single,
            journal,
            seat: self.pool.as_ref().map(|(pool, weight)| pool.join(*weight)),
        });
        let ended = drive(Arc::new(run), until).await;
        membership.leave().await;
        ended
    }

    /// Asks until the store answers. `None` if the run is over before.
    async fn in_time<T, F: Future<Output = Result<T>>>(
        &self,
        until: &Until,
        what: &'static str,
        ask: impl Fn() -> F,
    ) -> Result<Option<T>> {
        let mut outage = Outage::new(what);
        loop {
            let error = match ask().await {
                Err(error) if error.kind() == Kind::Unavailable => error,
                answer => return answer.map(Some),
            };
            match until {
                Until::Idle => return Err(error),
                Until::Shutdown(shutdown) => tokio::select! {
                    () = shutdown.started() => return Ok(None),
                    () = outage.wait(self.tram.clock(), &error) => {}
                },
            }
        }
    }

    fn open_journal(&self, subscription: &Subscription) -> Result<Option<(Journal, NeverStarted)>> {
        let Some((path, synced)) = &self.journal else { return Ok(None) };
        if !subscription.policy.is_at_most_once() {
            return Err(Error::invalid(
                "a journal is only of use for at-most-once subscriptions",
                "call .at_most_once(), or leave the journal out",
            ));
        }
        Journal::open(path, *synced).map(Some)
    }

    /// Makes ready what an earlier life had claimed and never begun. Before the first heartbeat: that one ends the earlier life. False if
    /// the run is over before.
    async fn adopt(
        &self,
        subscription: SubscriptionId,
        consumed: NeverStarted,
        until: &Until,
    ) -> Result<bool> {
        if consumed.is_empty() {
            return Ok(true);
        }
        let ask = || {
            let (consumed, now) = (consumed.clone(), self.tram.clock().now());
            self.tram.store().adopt(Adopt { subscription, consumed, now })
        };
        let Some(adopted) = self.in_time(until, "what an earlier life left is made ready", ask).await? else {
            return Ok(false);
        };
        tracing::info!(subscription = %self.name, events = adopted.len(), "events of an earlier life run now");
        Ok(true)
    }
}
