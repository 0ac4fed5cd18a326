//! `Tramline`: the handle to a store from which everything else is reached.

use crate::engine::buffer::{Buffer, Rejected};
use crate::engine::clock::Clock;
use crate::engine::courier::Courier;
use crate::engine::emit::Emitter;
use crate::engine::follow::Follow;
use crate::engine::gate::Gate;
use crate::engine::hooks::Hooks;
use crate::engine::options::Options;
use crate::engine::presence::{Care, Identity, Membership, Presence};
use crate::engine::receipt::{IntoEvents, Receipt};
use crate::engine::returns::{Returns, Settling};
use crate::engine::sweep;
use crate::engine::takes::Takes;
use crate::engine::tally::Tallies;
use crate::engine::trace::{self, Traces};
use crate::engine::worker::Worker;
use crate::error::Result;
use crate::model::event::Event;
use crate::model::id::{EventId, Incarnation};
use crate::model::trace::put;
use crate::store::mysql::MysqlStore;
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::SqliteStore;
use crate::store::verbs::{Emission, Swept};
use crate::store::{Opened, Store};
use crate::wake::Wake;
use crate::wake::in_process::InProcess;
use std::sync::Arc;
use tokio::sync::Notify;
use tracing::Instrument;

/// A store of events, and everything that can be done with it. Cheap to clone; clones are the same.
#[derive(Clone, Debug)]
pub struct Tramline {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    /// The same store by its own type, for what only that kind can do.
    opened: Option<Opened>,
    clock: Clock,
    wake: Arc<dyn Wake>,
    hooks: Arc<dyn Hooks>,
    traces: Arc<dyn Traces>,
    emitter: Emitter,
    buffer: Buffer,
    presence: Arc<Presence>,
    gate: Gate,
    courier: Arc<Courier>,
    takes: Takes,
    returns: Returns,
    tallies: Tallies,
    /// Rings when a push subscription was changed here.
    pushes: Notify,
}

impl Tramline {
    /// Opens the store behind a URL (`sqlite://app.db`, `sqlite::memory:`, `postgres://..`, `mysql://..`, `redis://..`) with default options, and brings its
    /// tables up to date.
    ///
    /// # Errors
    /// `Invalid` for a URL that names no store, `Unavailable` when it cannot be reached.
    pub async fn open(url: &str) -> Result<Tramline> {
        Tramline::with(Options::new(url)).await
    }

    /// Opens a store with options.
    ///
    /// # Errors
    /// As [`Tramline::open`].
    pub async fn with(options: Options) -> Result<Tramline> {
        let (opened, wake) = options.open().await?;
        let store = match &options.watch {
            Some(watch) => watch.0(opened.store()),
            None => opened.store(),
        };
        Ok(Tramline::start(store, Some(opened), wake, options))
    }

    /// Uses a store that is already open. Hints stay in this process unless the options name another way. Needs a Tokio runtime
    /// once something is emitted or run.
    pub fn from_store(store: Arc<dyn Store>, options: Options) -> Tramline {
        let wake = options.wake.clone().unwrap_or_else(|| Arc::new(InProcess::new()));
        Tramline::start(store, None, wake, options)
    }

    fn start(
        store: Arc<dyn Store>,
        opened: Option<Opened>,
        wake: Arc<dyn Wake>,
        options: Options,
    ) -> Tramline {
        let incarnation = Incarnation::random();
        let (clock, hooks) = (options.clock.clone(), options.hooks.clone());
        let flushers = options.flushers();
        let emitter = Emitter::new(store.clone(), clock.clone(), wake.clone(), flushers, options.is_spread());
        let name = options.name.unwrap_or_else(|| format!("{}-{:x}", std::process::id(), incarnation.0));
        let who = Identity { incarnation, name, every: options.heartbeat };
        let courier = Courier::new(store.clone(), clock.clone(), wake.clone());
        let settling = Settling {
            store: store.clone(),
            clock: clock.clone(),
            wake: wake.clone(),
            courier: courier.clone(),
        };
        let care = Care { courier: courier.clone(), kept: options.tallies_kept, ceiling: options.ceiling };
        let inner = Inner {
            buffer: Buffer::new(emitter.clone(), clock.clone(), hooks.clone(), options.buffer),
            presence: Presence::new(store.clone(), clock.clone(), wake.clone(), who, care),
            gate: Gate::default(),
            tallies: Tallies::new(store.clone(), clock.clone(), wake.clone(), courier.clone()),
            courier,
            takes: Takes::new(store.clone(), wake.clone()),
            returns: Returns::new(settling, flushers.is_none()),
            pushes: Notify::new(),
            store,
            opened,
            clock,
            wake,
            hooks,
            traces: options.traces,
            emitter,
        };
        Tramline { inner: Arc::new(inner) }
    }

    /// Stores one event, or several that belong together: all of them in all their subscriptions, or nothing. Returns when they are
    /// stored. Emits that run at the same time share a transaction; a lone one waits for nobody.
    ///
    /// If the future is dropped before it is done, the events may be stored or not.
    ///
    /// # Errors
    /// `Invalid` or `TooLarge` for impossible events; `Conflict` when the idempotency key was used for something else;
    /// `Unavailable` when it is not known whether they were stored. Without an idempotency key a repetition may then store them
    /// twice; with one, it was repeated already and may be again.
    pub async fn emit(&self, events: impl IntoEvents) -> Result<Receipt> {
        let mut events = events.into_events();
        let span = trace::emit(self.traces(), &mut events);
        let emission = self.inner.emitter.emit(events).instrument(span.clone()).await;
        trace::emitted(&span, &emission);
        Ok(self.receipt(emission?))
    }

    /// Takes an event into a buffer that is flushed every 50 ms, when it has many, with [`Tramline::flush`] and with
    /// [`Tramline::close`]. Never waits. The order of a key is kept. Needs a Tokio runtime.
    ///
    /// # Errors
    /// The event is given back when the buffer is full, be it of events or of bytes, or the event is impossible. Once taken, it is
    /// dropped only if the store refuses it, or cannot be reached for half a minute after its turn has come: that is logged,
    /// counted in [`Tramline::dropped`] and told to [`Hooks::dropped`].
    pub fn emit_later(&self, event: Event) -> Result<(), Box<Rejected>> {
        let [event] = self.traced([event]);
        self.inner.buffer.push(event)
    }

    /// Puts the trace context of the caller's span into events, for emits in the caller's own transaction. [`Tramline::emit`] and
    /// [`Tramline::emit_later`] do so by themselves.
    #[must_use]
    pub fn traced<const N: usize>(&self, mut events: [Event; N]) -> [Event; N] {
        let context = trace::current(self.traces());
        events.iter_mut().for_each(|event| put(&context, event));
        events
    }

    /// Waits until everything that [`Tramline::emit_later`] has taken is stored, or was reported as dropped. Cancel-safe.
    pub async fn flush(&self) {
        self.inner.buffer.flush().await;
    }

    /// How many buffered events were dropped.
    pub fn dropped(&self) -> u64 {
        self.inner.buffer.dropped()
    }

    /// The receipt of an emit in a caller's own transaction. Call its `wake` after the commit.
    pub fn receipt(&self, emission: Emission) -> Receipt {
        Receipt::new(emission, self.inner.wake.clone())
    }

    /// A worker for a subscription.
    pub fn worker(&self, subscription: impl Into<String>) -> Worker {
        Worker::new(self.clone(), subscription.into())
    }

    /// Tallies: sets of items that are tracked to completion. Needs a Tokio runtime.
    pub fn tallies(&self) -> &Tallies {
        &self.inner.tallies
    }

    /// Follows a topic from after an event (`EventId(0)`: from the oldest retained one): first what is stored, then what comes.
    pub fn follow(&self, topic: impl Into<String>, after: EventId) -> Follow {
        Follow::new(self.clone(), topic.into(), after)
    }

    /// Heartbeats, sweeps and schedules also while no worker runs, until the guard is dropped. Workers need no guard. Needs a Tokio
    /// runtime.
    pub fn housekeeping(&self) -> Housekeeping {
        Housekeeping { _membership: self.inner.presence.care() }
    }

    /// One sweep now: retention, expired entries, what was deleted, dead workers (if this process has shown signs of life for long
    /// enough), back-fills, tallies.
    ///
    /// # Errors
    /// `Unavailable` when the store does not answer.
    pub async fn sweep(&self) -> Result<Swept> {
        sweep::sweep(&self.inner.presence).await
    }

    /// Flushes the buffer, ends background work and closes the store. Stop workers first. Whoever uses this Tramline afterwards gets
    /// `Unavailable`.
    pub async fn close(&self) {
        self.inner.buffer.close().await;
        self.inner.emitter.close();
        self.inner.tallies.close();
        self.inner.courier.close().await;
        self.inner.store.close().await;
    }

    /// The store as what it is, if this handle opened a PostgreSQL database: for emits and settlements in the caller's own
    /// transaction.
    pub fn postgres(&self) -> Option<&Arc<PostgresStore>> {
        match &self.inner.opened {
            Some(Opened::Postgres(store)) => Some(store),
            _ => None,
        }
    }

    /// The store as what it is, if this handle opened a MySQL or MariaDB database: for emits and settlements in the caller's own
    /// transaction.
    pub fn mysql(&self) -> Option<&Arc<MysqlStore>> {
        match &self.inner.opened {
            Some(Opened::Mysql(store)) => Some(store),
            _ => None,
        }
    }

    /// The store as what it is, if this handle opened a SQLite database: for emits and settlements in the caller's own
    /// transaction.
    pub fn sqlite(&self) -> Option<&Arc<SqliteStore>> {
        match &self.inner.opened {
            Some(Opened::Sqlite(store)) => Some(store),
            _ => None,
        }
    }

    /// The store itself, for what is not offered here.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    pub(crate) fn wake(&self) -> &Arc<dyn Wake> {
        &self.inner.wake
    }

    pub(crate) fn hooks(&self) -> &Arc<dyn Hooks> {
        &self.inner.hooks
    }

    /// What connects spans with trace contexts.
    pub fn traces(&self) -> &dyn Traces {
        &*self.inner.traces
    }

    pub(crate) fn presence(&self) -> &Arc<Presence> {
        &self.inner.presence
    }

    pub(crate) fn courier(&self) -> &Arc<Courier> {
        &self.inner.courier
    }

    pub(crate) fn takes(&self) -> &Takes {
        &self.inner.takes
    }

    pub(crate) fn returns(&self) -> &Returns {
        &self.inner.returns
    }

    pub(crate) fn pushes(&self) -> &Notify {
        &self.inner.pushes
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.inner.gate
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.inner.presence.incarnation
    }
}

/// Keeps heartbeats, sweeps and schedules going; see [`Tramline::housekeeping`].
#[derive(Debug)]
pub struct Housekeeping {
    _membership: Membership,
}
