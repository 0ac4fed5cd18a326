//! MySQL and MariaDB: any number of nodes on one database.
//!
//! - `store`: the verbs
//! - `server`: which servers will do; `refusals`: those that do not any more; `examine`: how one is
//! - `options`, `session`, `step`, `sql`: how a step gets a connection, the time and the catalogue, how it ends, and how its
//!   statements are written
//! - `inbox`: what programs in other languages want to emit
//! - `emit` (with `idempotency` and `hoped`), `claim` (with `outlook`, `due`, `next_due` and `lapsed`), `order` (with `lanes`,
//!   `offer` and `suspects`), `settle`: the walk of an event
//! - `tally`: sets of items that are tracked to completion; `schedule`: what is emitted at certain times
//! - `limit`, `unique`, `compact`, `rules`, `failures`: what is allowed, what is there already, what gives way, what is
//!   stopped, what went wrong
//! - `shared`: what the steps that are written for all servers ask
//! - `log`: reading topics; `pulse`: whether something has happened; `buried`: where dead events are
//! - `look`, `sweep`, `shed`, `drops`, `erase`, `push`, `remote`, `catalog`, `token`: everything else
//! - `rows`, `migrate`: how rows are read and written, and the tables
//!
//! Every step reads and locks in one round trip, decides, and writes and commits in another. Every statement of a step reads what
//! is committed when it begins (READ COMMITTED); what a decision depends on is locked.

mod buried;
mod catalog;
mod claim;
mod compact;
mod drops;
mod due;
mod emit;
mod erase;
mod examine;
mod failures;
mod hoped;
mod idempotency;
mod inbox;
mod lanes;
mod lapsed;
mod limit;
mod log;
mod look;
mod migrate;
mod next_due;
mod offer;
mod options;
mod order;
mod outlook;
mod pulse;
mod push;
mod refusals;
mod remote;
mod rows;
mod rules;
mod schedule;
mod server;
mod session;
mod settle;
mod shared;
mod shed;
mod sql;
mod step;
mod store;
mod suspects;
mod sweep;
mod tally;
mod token;
mod unique;

pub use examine::{MysqlFigures, Refusals};
pub use options::MysqlOptions;
pub(crate) use pulse::Beat;

use crate::error::{Error, Result};
use crate::model::event::Event;
use crate::model::id::{SubscriptionId, TopicId};
use crate::model::time::Time;
use crate::store::catalog::Catalog;
use crate::store::deleted::{InTheWay, STEP_ROWS};
use crate::store::driver::{answered, asked, pinged};
use crate::store::proven::Proven;
use crate::store::retention::Round;
use crate::store::rules::OUTLAST;
use crate::store::spare::{Hot, Spares};
use crate::store::verbs::{Emission, Settle, Settled};
use log::Turns;
use refusals::Refused;
use server::Server;
use session::{Begin, Common, Rows, Session, exchange};
use sql::Columns;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::{Connection as _, MySql, MySqlConnection, MySqlPool};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use step::{Transaction, Tries, step};
use tokio::sync::Semaphore;

/// How long a step waits for a free connection, or a new one; but no longer than for any other answer.
const ACQUIRE: Duration = Duration::from_secs(10);
/// A connection that was idle for longer is tried out before it is used: the server may have gone meanwhile.
const STALE: Duration = Duration::from_secs(1);
/// How every connection is set up. A step waits for a lock for a second, which is the least that can be said, and then begins anew:
/// emits that wait for one key must not hold up others. MySQL, for which the comment is, would tell for a day how large tables were.
const SETUP: &str = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO', \
    time_zone = '+00:00', innodb_lock_wait_timeout = 1, autocommit = 1, sql_safe_updates = 0, sql_select_limit = DEFAULT, \
    group_concat_max_len = 1048576 /*!80016 , information_schema_stats_expiry = 0 */; \
    SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE";

/// A MySQL or MariaDB database.
#[derive(Debug)]
pub struct MysqlStore {
    /// For the store itself.
    own: MySqlPool,
    /// For callers.
    pool: MySqlPool,
    spares: Spares<MySql>,
    refused: Refused,
    common: Common,
    proven: Proven,
    round: Round,
    /// Spreads events without a key over the lanes.
    spread: AtomicU64,
    /// Emits that may wait for a locked key at the same time, so that connections are left for all others.
    waiting: Semaphore,
    turns: Turns,
    /// Readers of logs that may wait for emits at the same time, for the same reason.
    turning: Semaphore,
}

impl MysqlStore {
    /// Connects and brings the database up to date. Any number of processes may do so at once.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached, is too old, or cannot keep the promises of a store; `Conflict` when a newer
    /// version migrated it, or other migrations than this one has.
    pub async fn open(options: MysqlOptions) -> Result<MysqlStore> {
        // The pool tries until its time is over; this one says at once why it cannot connect.
        let connecting = MySqlConnection::connect_with(&options.connect);
        let mut conn = asked(ACQUIRE.min(options.answer), connecting).await?;
        let server = answered(options.answer, Server::read(&mut conn)).await?;
        server.check()?;
        for doubt in server.doubts() {
            tracing::warn!("{doubt}");
        }
        asked(options.answer, sqlx::raw_sql(SETUP).execute(&mut conn)).await?;
        migrate::run(&mut conn).await?;
        conn.close().await?;
        let refused = Refused::default();
        // Another server may answer by now, or the same one with other settings: a fail-over, a restart.
        let pool = || {
            let refused = refused.clone();
            MySqlPoolOptions::new()
                .max_connections(options.max_connections)
                .acquire_timeout(ACQUIRE.min(options.answer))
                .after_connect(move |conn, _| {
                    let refused = refused.clone();
                    Box::pin(async move {
                        refused.unless_it_will_do(conn).await?;
                        sqlx::raw_sql(SETUP).execute(conn).await?;
                        Ok(())
                    })
                })
        };
        let own = pool().test_before_acquire(false).before_acquire(|conn, about| {
            Box::pin(async move { if about.idle_for < STALE { Ok(true) } else { pinged(conn).await } })
        });
        // Callers give connections back as they are, also one that does not answer any more.
        let lent = pool().after_release(|conn, _| Box::pin(pinged(conn)));
        Ok(MysqlStore {
            own: own.connect_lazy_with(options.connect.clone()),
            pool: lent.connect_lazy_with(options.connect),
            spares: Spares::new(
                (options.max_connections / 2) as usize,
                options.max_connections as usize,
                STALE,
            ),
            refused,
            common: Common::new(server.packet(), options.answer),
            proven: Proven::default(),
            round: Round::default(),
            spread: AtomicU64::new(getrandom::u64().unwrap_or_default()),
            waiting: Semaphore::new((options.max_connections / 2).max(1) as usize),
            turns: Turns::default(),
            turning: Semaphore::new((options.max_connections / 4).max(1) as usize),
        })
    }

    /// The figures of a server and of the tables in a database, as an operator has to judge them. Nothing is created or changed.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached.
    pub async fn examine(options: MysqlOptions) -> Result<MysqlFigures> {
        examine::examine(options).await
    }

    /// All migrations as SQL, to be read or run by hand.
    pub fn migrations() -> String {
        migrate::sql()
    }

    /// The statement that finds due work, to be given to `EXPLAIN`.
    pub fn claim_sql(&self, subscription: crate::model::id::SubscriptionId) -> String {
        due::due_sql(subscription, crate::model::slice::State::Ready, 64, 256)
    }

    /// The statements with which an ordered claim looks at lanes, to be given to the server one after the other.
    pub fn ordered_claim_sql(&self, claim: &crate::store::verbs::Claim) -> Vec<String> {
        order::first_reads(claim)
    }

    /// A pool of connections for callers that keep their own tables in the same database; they are READ COMMITTED, as [`emit_in`]
    /// and [`settle_in`] demand. Connects when it is first used.
    ///
    /// [`emit_in`]: MysqlStore::emit_in
    /// [`settle_in`]: MysqlStore::settle_in
    pub fn pool(&self) -> &MySqlPool {
        &self.pool
    }

    /// Emits in the caller's own transaction. Nothing is stored unless the caller commits; then it should wake the workers
    /// with what the emission names. The keys of the events stay locked until then, so keep it short. Unknown topics are
    /// created at once, whatever becomes of the transaction. If the connection logs its statements, it logs payloads.
    ///
    /// # Errors
    /// `Invalid` or `TooLarge` for impossible events, and for a session that is not READ COMMITTED; `Conflict` for a reused
    /// idempotency key. After `Unavailable` the transaction is lost: roll it back, and try again from its start.
    pub async fn emit_in(
        &self,
        tx: &mut MySqlConnection,
        events: impl IntoIterator<Item = Event> + Send,
    ) -> Result<Emission> {
        let events: Vec<Event> = events.into_iter().collect();
        self.emit_unit_in(tx, events).await
    }

    /// Settles in the caller's own transaction: what the handler wrote and the outcome are stored together or not at all.
    ///
    /// # Errors
    /// As [`crate::Store::settle`], and `Invalid` for a session that is not READ COMMITTED; a lost lease is not an error but an
    /// answer.
    pub async fn settle_in(&self, tx: &mut MySqlConnection, settle: Settle) -> Result<Settled> {
        self.check_isolation(tx).await?;
        let begin = Begin { bare: true, ..Begin::writing(settle.now, settle.subscription) };
        let mut sets: Vec<Rows> = Vec::new();
        let look = settle::look_sql(&settle);
        if !look.is_empty() {
            answered(self.common.answer, exchange(tx, look.join(";"), &mut sets)).await?;
        }
        let asked = settle::Asked::knowing(&settle, &settle::held(&settle, &sets)?);
        let mut session = self.asking(tx, &begin, asked.statements()).await?;
        let settled = settle::settle(&mut session, &settle, &asked).await?;
        session.commit(Vec::new()).await?;
        Ok(settled)
    }

    async fn begin(&self) -> Result<Transaction<'_>> {
        Ok(Transaction::new(self.connection().await?))
    }

    async fn connection(&self) -> Result<Hot<'_, MySql>> {
        self.refused.or(self.spares.take(&self.own)).await
    }

    /// The catalogue, read if none is known. Whether it is still right shows when it is used.
    async fn catalog(&self) -> Result<Arc<Catalog>> {
        let known = self.common.cache.get();
        if known.version != 0 {
            return Ok(known);
        }
        step!(self, Tries::few(), |conn| self.session(conn, &Begin::default()), |session| async {
            Ok(session.catalog.clone())
        })
    }

    /// Returns when every claim has ended that may have looked at the rules of these subscriptions before they changed. The rules are
    /// in force already, so that claims which begin meanwhile need not be waited for.
    async fn outlast_claims(&self, subscriptions: &[SubscriptionId]) -> Result<()> {
        for some in subscriptions.chunks(OUTLAST) {
            step!(self, Tries::patient(), |conn| self.session(conn, &Begin::default()), |session| {
                rules::keep_claims_away(session, some)
            })?;
        }
        Ok(())
    }

    /// Creates the topics that are not known yet.
    async fn create_topics<'a>(&self, names: impl Iterator<Item = &'a str> + Clone + Send) -> Result<()> {
        let known = self.common.cache.get();
        if names.clone().all(|name| known.topic(name).is_some()) {
            return Ok(());
        }
        let names: Vec<&str> = names.collect();
        step!(self, Tries::patient(), |conn| self.session(conn, &Begin::default()), |session| {
            catalog::create_missing(session, &names)
        })?;
        // Emits look into the cache: it has to know the new topics.
        self.common.cache.set(Arc::default());
        self.catalog().await.map(|_| ())
    }

    /// Removes left-overs that are in the way of a change, step by step.
    async fn clear(&self, way: InTheWay) -> Result<()> {
        loop {
            let more =
                step!(self, Tries::patient(), |conn| self.session(conn, &Begin::default()), |session| {
                    erase::clear(session, &way, STEP_ROWS)
                })?;
            if !more {
                return Ok(());
            }
        }
    }

    async fn session<'c>(&'c self, conn: &'c mut MySqlConnection, begin: &Begin) -> Result<Session<'c>> {
        Session::new(conn, &self.common, begin).await
    }

    /// A session that has read already, in the round trip with which it began.
    async fn asking<'c>(
        &'c self,
        conn: &'c mut MySqlConnection,
        begin: &Begin,
        reads: Vec<String>,
    ) -> Result<Session<'c>> {
        let (mut session, found) = Session::reading(conn, &self.common, begin, reads).await?;
        session.found = found;
        Ok(session)
    }

    /// A session that only looks, and has looked already, by the catalogue that is known.
    async fn looking<'c>(
        &'c self,
        conn: &'c mut MySqlConnection,
        now: Option<Time>,
        reads: impl Fn(&Catalog) -> Vec<String>,
    ) -> Result<Session<'c>> {
        let known = self.common.cache.get();
        let begin = Begin::looking(now);
        let (mut session, found) = Session::reading(conn, &self.common, &begin, reads(&known)).await?;
        // Somebody else may have read another catalogue meanwhile.
        session.found = found.filter(|_| session.catalog.version == known.version);
        Ok(session)
    }

    /// A session for a change of topics or subscriptions: emits to the topics it touches are kept away until it ends.
    async fn changing<'c>(
        &'c self,
        conn: &'c mut MySqlConnection,
        now: Option<Time>,
        topics: impl Fn(&Catalog) -> BTreeSet<TopicId>,
    ) -> Result<Session<'c>> {
        let mut session = self.session(conn, &Begin::reading(now)).await?;
        let (mut locked, mut wanted) = (BTreeSet::new(), topics(&session.catalog));
        loop {
            catalog::lock_topics(&mut session, &wanted).await?;
            locked.append(&mut wanted);
            // Read again: what was known before the topics were locked may have changed. Another change may have given the
            // subscription topics that are not locked yet; if that comes to a deadlock, the server ends one of the two.
            session.catalog = Arc::new(catalog::load(&mut session).await?);
            wanted = &topics(&session.catalog) - &locked;
            if wanted.is_empty() {
                return Ok(session);
            }
        }
    }

    /// In a transaction that reads what was there when it began, a step would decide by what is no longer so.
    async fn check_isolation(&self, conn: &mut MySqlConnection) -> Result<()> {
        let sql = "SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')";
        let mut sets: Vec<Rows> = Vec::new();
        answered(self.common.answer, exchange(conn, sql.to_owned(), &mut sets)).await?;
        let level = sets
            .first()
            .and_then(|rows| rows.first())
            .map_or_else(|| Ok(String::new()), |row| row.text(1))?;
        if level == "READ-COMMITTED" {
            return Ok(());
        }
        Err(Error::invalid(
            format!("the session's transactions are {level}"),
            "run SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED on the connection, or take one of the store's pool",
        ))
    }
}
