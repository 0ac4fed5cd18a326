//! PostgreSQL: any number of nodes on one database.
//!
//! - `store`: the verbs
//! - `options`, `session`, `step`: how a step gets a connection, the time and the catalogue, and how it ends
//! - `emit` (with `idempotency`, `aside` and `tell`), `call`, `claim` (with `floor` and `glance`), `order` (with `low`, `taken` and `recent`),
//!   `settle`: the walk of an event
//! - `tally`: sets of items that are tracked to completion; `schedule`: what is emitted at certain times
//! - `limit`, `unique`, `compact`, `rules`, `failures`: what is allowed, what is there already, what gives way, what is stopped, what went wrong
//! - `shared`: what the steps that are written for all servers ask
//! - `look`, `sweep`, `shed`, `drops`, `erase`, `push`, `remote`, `catalog`, `token`: everything else
//! - `examine`: how the server is
//! - `rows`, `migrate`: how rows are read and written, and the tables
//!
//! Nothing is kept in a database session: every step is one transaction, all settings are local to it, and advisory
//! locks end with it. So the store also works behind a pooler that gives out connections by the transaction.

mod aside;
mod call;
mod catalog;
mod claim;
mod compact;
mod drops;
mod emit;
mod erase;
mod examine;
mod failures;
mod floor;
mod glance;
mod idempotency;
mod limit;
mod look;
mod low;
mod migrate;
mod options;
mod order;
mod push;
mod recent;
mod remote;
mod rows;
mod rules;
mod schedule;
mod session;
mod settle;
mod shared;
mod shed;
mod step;
mod store;
mod sweep;
mod taken;
mod tally;
mod tell;
mod token;
mod unique;

pub use examine::{PostgresFigures, ReplicationSlot, Standby, TableFigures};
pub use options::PostgresOptions;

use crate::error::Result;
use crate::model::event::Event;
use crate::model::id::{SubscriptionId, TopicId};
use crate::model::time::{Time, millis};
use crate::store::catalog::Catalog;
use crate::store::deleted::{InTheWay, STEP_ROWS};
use crate::store::driver::{answered, asked, pinged};
use crate::store::proven::ProvenOn;
use crate::store::retention::Round;
use crate::store::rules::OUTLAST;
use crate::store::spare::{Hot, Spares};
use crate::store::verbs::{Emission, Settle, Settled};
use crate::wake::relay::Voice;
use floor::Floors;
use glance::Glances;
use low::Proofs;
use recent::Recent;
use session::{Begin, CatalogCache, FOR_EVER, Planner, Session, Texts};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool, Postgres};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use step::{Transaction, Tries, step};
use tell::Speech;
use tokio::sync::Semaphore;

/// How long a step waits for a free connection, or a new one; but no longer than for any other answer.
const ACQUIRE: Duration = Duration::from_secs(10);
/// A connection that was idle for longer is tried out before it is used: the server may have gone meanwhile.
const STALE: Duration = Duration::from_secs(1);
/// How long a change of topics or subscriptions waits for emits under way, at a time. New emits wait behind it.
const PATIENCE: Duration = Duration::from_secs(1);

/// A PostgreSQL database.
#[derive(Debug)]
pub struct PostgresStore {
    /// For the store itself.
    own: PgPool,
    /// For callers.
    pool: PgPool,
    spares: Spares<Postgres>,
    /// How long the server may take to answer.
    answer: Duration,
    texts: Texts,
    cache: CatalogCache,
    proven: ProvenOn,
    floors: Floors,
    proofs: Proofs,
    glances: Glances,
    recent: Recent,
    round: Round,
    speech: Speech,
    /// Spreads events without a key over the lanes.
    spread: AtomicU64,
    /// Emits that may wait for a locked key at the same time, so that connections are left for all others.
    waiting: Semaphore,
    /// The one emit that may wait until it can create topics.
    creating: Semaphore,
}

impl PostgresStore {
    /// Connects and brings the database up to date. Any number of processes may do so at once.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached or is too old; `Conflict` when a newer version migrated it, or
    /// other migrations than this one has.
    pub async fn open(options: PostgresOptions) -> Result<PostgresStore> {
        // A start-up parameter that poolers refuse; it only concerns floating-point numbers, of which there are none.
        let mut connect = options.connect.extra_float_digits(None);
        if options.pooled {
            connect = connect.statement_cache_capacity(0);
        }
        // The pool tries until its time is over; this one says at once why it cannot connect.
        asked(ACQUIRE.min(options.answer), PgConnection::connect_with(&connect)).await?.close().await?;
        let pool = || {
            PgPoolOptions::new()
                .max_connections(options.max_connections)
                .acquire_timeout(ACQUIRE.min(options.answer))
        };
        // Callers give connections back as they are, also one that does not answer any more.
        let lent = pool().after_release(|conn, _| Box::pin(pinged(conn)));
        let pooled = options.pooled;
        let own = pool()
            .test_before_acquire(false)
            .before_acquire(|conn, about| {
                Box::pin(async move { if about.idle_for < STALE { Ok(true) } else { pinged(conn).await } })
            })
            .after_connect(move |conn, _| {
                Box::pin(async move {
                    if !pooled {
                        sqlx::raw_sql(FOR_EVER).execute(conn).await?;
                    }
                    Ok(())
                })
            })
            .connect_with(connect.clone())
            .await?;
        let schema = migrate::run(&mut *own.acquire().await?, options.schema.as_deref()).await?;
        Ok(PostgresStore {
            own,
            pool: lent.connect_lazy_with(connect),
            answer: options.answer,
            spares: Spares::new(
                (options.max_connections / 4) as usize,
                options.max_connections as usize,
                STALE,
            ),
            texts: Texts::new(schema, options.pooled),
            cache: CatalogCache::default(),
            proven: ProvenOn::default(),
            floors: Floors::default(),
            proofs: Proofs::default(),
            glances: Glances::default(),
            recent: Recent::default(),
            round: Round::default(),
            speech: Speech::default(),
            spread: AtomicU64::new(getrandom::u64().unwrap_or_default()),
            waiting: Semaphore::new((options.max_connections / 2).max(1) as usize),
            creating: Semaphore::new(1),
        })
    }

    /// Figures of a server for an operator to judge, read in one transaction that only reads.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached.
    pub async fn examine(options: PostgresOptions) -> Result<PostgresFigures> {
        examine::examine(options).await
    }

    /// All migrations as SQL, to be read or run by hand; for tables in `schema`, or wherever the search path leads.
    pub fn migrations(schema: Option<&str>) -> String {
        migrate::sql(schema)
    }

    /// The channel on which `tramline_emit`, the SQL function, names the subscriptions that have work: their numbers with
    /// commas between them.
    pub fn wake_channel(&self) -> String {
        format!("{}.tramline_wake", self.texts.schema)
    }

    /// Lets emits say hints over this store's own channel.
    pub(crate) fn speak_with(&self, voice: Voice) {
        self.speech.begin(voice);
    }

    /// The statement that finds due work, to be given to `EXPLAIN`: its values are the subscription, the state (0 is ready),
    /// the time in milliseconds, how many rows, and after which time.
    pub fn claim_sql(&self) -> Arc<str> {
        self.texts.text(claim::DUE)
    }

    /// A pool of connections for callers that keep their own tables in the same database. Connects when it is first used.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Emits in the caller's own transaction. Nothing is stored unless the caller commits; then it should wake the workers
    /// with what the emission names. The keys of the events stay locked until then, so keep it short. Unknown topics are
    /// created at once, whatever becomes of the transaction; unless it has created topics itself, with `tramline_emit`. How durable the
    /// commit is, the caller's `synchronous_commit` says.
    ///
    /// # Errors
    /// `Invalid` or `TooLarge` for impossible events, `Conflict` for a reused idempotency key. After `Unavailable` the
    /// transaction is lost: roll it back, and try again from its start.
    pub async fn emit_in(
        &self,
        tx: &mut PgConnection,
        events: impl IntoIterator<Item = Event> + Send,
    ) -> Result<Emission> {
        let events: Vec<Event> = events.into_iter().collect();
        answered(self.answer, self.emit_unit_in(tx, events)).await
    }

    /// Settles in the caller's own transaction: what the handler wrote and the outcome are stored together or not at all, as durably as
    /// the caller's `synchronous_commit` says.
    ///
    /// # Errors
    /// As [`crate::Store::settle`]; a lost lease is not an error but an answer.
    pub async fn settle_in(&self, tx: &mut PgConnection, settle: Settle) -> Result<Settled> {
        answered(self.answer, self.settle_unit_in(tx, settle)).await
    }

    async fn settle_unit_in(&self, tx: &mut PgConnection, settle: Settle) -> Result<Settled> {
        let cache = CatalogCache::default();
        cache.set(self.cache.get());
        let planner = Planner::save(tx, &self.texts).await?;
        let begin = Begin { foreign: true, ..Begin::writing(settle.now, settle.subscription) };
        let settled = match Session::new(tx, &self.texts, &cache, begin).await {
            Ok(mut session) => settle::settle(&mut session, &settle).await,
            Err(error) => Err(error),
        };
        planner.restore(tx, &self.texts, settled).await
    }

    async fn connection(&self) -> Result<Hot<'_, Postgres>> {
        self.spares.take(&self.own).await
    }

    async fn begin(&self) -> Result<Transaction> {
        self.spares.shed();
        Transaction::begin(self.own.acquire().await?, self.answer).await
    }

    /// The catalogue, read if none is known. Whether it is still right shows when it is used.
    async fn catalog(&self, conn: &mut PgConnection) -> Result<Arc<Catalog>> {
        let known = self.cache.get();
        if known.version != 0 {
            return Ok(known);
        }
        let load = async {
            let mut tx = conn.begin().await?;
            let catalog = catalog::load(&mut tx, &self.texts).await?;
            tx.commit().await?;
            Ok(Arc::new(catalog))
        };
        let catalog = answered(self.answer, load).await?;
        self.cache.set(catalog.clone());
        Ok(catalog)
    }

    /// Creates the topics that are not known yet. A transaction that has created one, and is still open, is waited for, but not
    /// for longer than `wait`: that is the time for which one step may wait.
    async fn create_topics<'a>(
        &self,
        names: impl Iterator<Item = &'a str> + Clone + Send,
        tries: Tries,
        wait: Duration,
    ) -> Result<()> {
        let known = self.cache.get();
        if names.clone().all(|name| known.topic(name).is_some()) {
            return Ok(());
        }
        let names: Vec<&str> = names.collect();
        step!(self, tries, |tx| self.hasty(tx, Begin::reading(None), wait), |session| {
            catalog::create_missing(session, &names)
        })?;
        // Emits look into the cache: it has to know the new topics.
        self.cache.set(Arc::default());
        let mut conn = self.connection().await?;
        self.catalog(&mut conn).await.map(|_| ())
    }

    /// Returns when every claim has ended that may have looked at the rules of these subscriptions before they changed. The rules are
    /// in force already, so that claims which begin meanwhile need not be waited for; and only some of these locks are held at a time,
    /// because the server has room for few.
    async fn outlast_claims(&self, subscriptions: &[SubscriptionId]) -> Result<()> {
        for some in subscriptions.chunks(OUTLAST) {
            step!(self, Tries::patient(), |tx| self.patient(tx, Begin::reading(None)), |session| {
                rules::keep_claims_away(session, some)
            })?;
        }
        Ok(())
    }

    /// Removes left-overs that are in the way of a change, step by step.
    async fn clear(&self, way: InTheWay) -> Result<()> {
        loop {
            let more =
                step!(self, Tries::patient(), |tx| self.patient(tx, Begin::reading(None)), |session| {
                    erase::clear(session, &way, STEP_ROWS)
                })?;
            if !more {
                return Ok(());
            }
        }
    }

    /// A session that does not wait long for a lock.
    async fn patient<'c>(&'c self, tx: &'c mut PgConnection, begin: Begin) -> Result<Session<'c>> {
        self.hasty(tx, begin, PATIENCE).await
    }

    /// A session that waits so long for a lock.
    async fn hasty<'c>(
        &'c self,
        tx: &'c mut PgConnection,
        begin: Begin,
        wait: Duration,
    ) -> Result<Session<'c>> {
        let sql = format!("SET LOCAL lock_timeout = {}", millis(wait));
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await?;
        self.session(tx, begin).await
    }

    async fn session<'c>(&'c self, tx: &'c mut PgConnection, begin: Begin) -> Result<Session<'c>> {
        Session::new(tx, &self.texts, &self.cache, begin).await
    }

    /// A session for a change of topics or subscriptions: emits to the topics it touches are kept away until it ends.
    async fn changing<'c>(
        &'c self,
        tx: &'c mut PgConnection,
        now: Option<Time>,
        topics: impl Fn(&Catalog) -> BTreeSet<TopicId>,
    ) -> Result<Session<'c>> {
        let mut session = self.patient(tx, Begin::reading(now)).await?;
        let (mut locked, mut wanted) = (BTreeSet::new(), topics(&session.catalog));
        loop {
            catalog::lock_topics(&mut session, &wanted).await?;
            locked.append(&mut wanted);
            // Read again: what was known before the topics were locked may have changed. Another change may have given the
            // subscription topics that are not locked yet; if that comes to a deadlock, the server ends one of the two.
            session.catalog = Arc::new(catalog::load(session.conn, &self.texts).await?);
            wanted = &topics(&session.catalog) - &locked;
            if wanted.is_empty() {
                return Ok(session);
            }
        }
    }
}
