//! SQLite: the default store. One writer thread per process with group commit; several processes may share the file.
//!
//! - `writer`, `readers`, `session`: how a step gets a connection, the time and the catalogue
//! - `emit`, `claim`, `order`, `settle`: the walk of an event
//! - `mend`, `look`, `sweep`, `catalog`, `token`: everything else
//! - `rows`, `migrate`: how rows are read and written, and the tables

mod catalog;
mod claim;
mod emit;
mod look;
mod mend;
mod migrate;
mod order;
mod readers;
mod remote;
mod rows;
mod session;
mod settle;
mod sweep;
mod token;
mod writer;

use crate::error::{Error, Result};
use crate::model::event::Event;
use crate::model::id::{EventId, SubscriptionId};
use crate::model::rule::AuditEntry;
use crate::model::subscription::{Subscription, Topic};
use crate::model::time::Time;
use crate::model::token::Token;
use crate::store::Store;
use crate::store::verbs::*;
use async_trait::async_trait;
use readers::Readers;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use session::{CatalogCache, Session, store_time};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use writer::{Durable, Writer};

/// The oldest SQLite that is known to be right: earlier ones have a fault that can damage a file in WAL mode.
const OLDEST: i32 = 3_051_003;
/// How long a process waits for another one's transaction.
const BUSY: Duration = Duration::from_secs(5);

/// A SQLite file, or a database in memory.
#[derive(Debug)]
pub struct SqliteStore {
    writer: Writer,
    /// None for a database in memory, which only the writer can see.
    readers: Option<Readers>,
    cache: Arc<CatalogCache>,
    path: Option<PathBuf>,
}

impl SqliteStore {
    /// Opens (or creates) a file and brings it up to date.
    ///
    /// # Errors
    /// `Unavailable` when the file cannot be opened or written; `Conflict` when a newer version wrote it.
    pub async fn open(path: impl AsRef<Path>) -> Result<SqliteStore> {
        let path = path.as_ref().to_owned();
        let readers = Readers::new(path.clone());
        let file = path.clone();
        let conn = blocking(move || {
            let conn = open_connection(&file)?;
            migrate::run(&conn)?;
            Ok(conn)
        })
        .await?;
        SqliteStore::start(conn, Some(readers), Some(path))
    }

    /// A database that lives in memory and dies with the store.
    ///
    /// # Errors
    /// `Unavailable` when there is no memory for it.
    pub async fn in_memory() -> Result<SqliteStore> {
        let conn = blocking(|| {
            let conn = configure(Connection::open_in_memory()?)?;
            migrate::run(&conn)?;
            Ok(conn)
        })
        .await?;
        SqliteStore::start(conn, None, None)
    }

    fn start(conn: Connection, readers: Option<Readers>, path: Option<PathBuf>) -> Result<SqliteStore> {
        let cache = Arc::new(CatalogCache::default());
        Ok(SqliteStore { writer: Writer::start(conn, cache.clone())?, readers, cache, path })
    }

    /// The file, if it is one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// All migrations as SQL, to be read or run by hand.
    pub fn migrations() -> String {
        migrate::sql()
    }

    /// Emits in the caller's own transaction, on the caller's own connection to the same file. Nothing is stored unless
    /// the caller commits; then it should wake the workers with what the emission names.
    ///
    /// # Errors
    /// `Invalid` or `TooLarge` for impossible events, `Conflict` for a reused idempotency key.
    pub fn emit_in(
        &self,
        tx: &rusqlite::Transaction<'_>,
        events: impl IntoIterator<Item = Event>,
    ) -> Result<Emission> {
        // A cache of its own: topics that this transaction creates do not exist for others until it is committed.
        emit::emit_in(tx, events.into_iter().collect(), &CatalogCache::default())
    }

    /// Settles in the caller's own transaction: what the handler wrote and the outcome are stored together or not at all.
    ///
    /// # Errors
    /// As [`Store::settle`]; a lost lease is not an error but an answer.
    pub fn settle_in(&self, tx: &rusqlite::Transaction<'_>, settle: &Settle) -> Result<Settled> {
        settle::settle(&Session::new(tx, settle.now, &CatalogCache::default())?, settle)
    }

    /// One step that writes.
    async fn write<T: Send + 'static>(
        &self,
        durable: Durable,
        now: Option<Time>,
        step: impl FnOnce(&Session<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let cache = self.cache.clone();
        self.writer.run(durable, move |conn| step(&Session::new(conn, now, &cache)?)).await
    }

    /// One step that only reads.
    async fn read<T: Send + 'static>(
        &self,
        now: Option<Time>,
        step: impl FnOnce(&Session<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let cache = self.cache.clone();
        match &self.readers {
            Some(readers) => readers.run(move |conn| step(&Session::new(conn, now, &cache)?)).await,
            None => self.write(Durable::No, now, step).await,
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::unavailable("opening the store was abandoned", "try again").because(error))?
}

fn open_connection(path: &Path) -> Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(|error| {
        Error::unavailable(
            format!("the database file {} cannot be opened", path.display()),
            "check that the folder exists and can be written",
        )
        .because(error)
    })?;
    configure(conn)
}

fn configure(conn: Connection) -> Result<Connection> {
    if rusqlite::version_number() < OLDEST {
        return Err(Error::unavailable(
            format!("SQLite {} is too old", rusqlite::version()),
            "build with the bundled SQLite, at least 3.51.3",
        ));
    }
    conn.busy_timeout(BUSY)?;
    conn.set_prepared_statement_cache_capacity(256);
    // Plans must not depend on bound values: without this, binding another number compiles the statement again.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // Bigger pages hold a whole chunk more often; a longer log means fewer checkpoints, which sync twice.
    conn.execute_batch(
        "PRAGMA page_size = 8192; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 2000; \
         PRAGMA cache_size = -16000; PRAGMA temp_store = MEMORY;",
    )?;
    Ok(conn)
}

/// Moves the write-ahead log into the file itself, unless somebody reads just now.
fn gather(path: &Path) -> Result<()> {
    let conn = Connection::open(path)?;
    conn.busy_timeout(Duration::from_secs(1))?;
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(())
}

#[async_trait]
impl Store for SqliteStore {
    async fn put_topic(&self, put: PutTopic) -> Result<Topic> {
        self.write(Durable::Yes, put.now, move |session| catalog::put_topic(session, &put)).await
    }

    async fn topics(&self) -> Result<Vec<Topic>> {
        self.read(None, |session| Ok(session.catalog.topics().to_vec())).await
    }

    async fn delete_topic(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.write(Durable::Yes, None, move |session| catalog::delete_topic(session, &name)).await
    }

    async fn put_subscription(&self, put: PutSubscription) -> Result<Subscription> {
        let cache = self.cache.clone();
        let put_both = move |conn: &Connection| {
            let session = Session::new(conn, put.now, &cache)?;
            catalog::create_missing(&session, put.topics.iter().map(String::as_str))?;
            catalog::put_subscription(&Session::new(conn, put.now, &cache)?, &put)
        };
        self.writer.run(Durable::Yes, put_both).await
    }

    async fn subscriptions(&self) -> Result<Vec<Subscription>> {
        self.read(None, |session| Ok(session.catalog.subscriptions().to_vec())).await
    }

    async fn delete_subscription(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.write(Durable::Yes, None, move |session| catalog::delete_subscription(session, &name)).await
    }

    async fn backfill(&self, subscription: SubscriptionId) -> Result<bool> {
        self.write(Durable::Yes, None, move |session| sweep::backfill(session, subscription)).await
    }

    async fn set_rule(&self, set: SetRule) -> Result<()> {
        self.write(Durable::Yes, set.now, move |session| catalog::set_rule(session, &set)).await
    }

    async fn audit(&self, subscription: SubscriptionId, limit: u32) -> Result<Vec<AuditEntry>> {
        self.read(None, move |session| catalog::audit(session.conn, subscription, limit)).await
    }

    async fn emit(&self, emit: Emit) -> Result<Vec<Result<Emission>>> {
        let cache = self.cache.clone();
        self.writer.run(Durable::Yes, move |conn| emit::emit(conn, emit.units, emit.now, &cache)).await
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        let claim_now = claim.now;
        // At least once needs no sync: a claim that a power cut undoes is simply due again. What is consumed must stay so.
        let consumes = self.cache.is_at_most_once(claim.subscription);
        let durable = if consumes { Durable::Yes } else { Durable::No };
        let take = move |session: &Session<'_>| Ok((claim::claim(session, &claim)?, session.catalog.clone()));
        let (raw, catalog) = self.write(durable, claim_now, take).await?;
        if raw.missing().is_empty() {
            return raw.decode(&catalog);
        }
        let load = move |session: &Session<'_>| {
            let mut raw = raw;
            claim::load_chunks(session.conn, &mut raw)?;
            Ok(raw)
        };
        self.read(claim_now, load).await?.decode(&catalog)
    }

    async fn settle(&self, settle: Settle) -> Result<Settled> {
        self.write(Durable::Yes, settle.now, move |session| settle::settle(session, &settle)).await
    }

    async fn extend(&self, extend: Extend) -> Result<Vec<Extended>> {
        self.write(Durable::No, extend.now, move |session| settle::extend(session, &extend)).await
    }

    async fn release(&self, release: Release) -> Result<u64> {
        self.write(Durable::No, release.now, move |session| settle::release(session, &release)).await
    }

    async fn adopt(&self, adopt: Adopt) -> Result<Vec<EventId>> {
        self.write(Durable::Yes, adopt.now, move |session| mend::adopt(session, &adopt)).await
    }

    async fn stats(&self, subscription: SubscriptionId, now: Option<Time>) -> Result<Stats> {
        self.read(now, move |session| look::stats(session, subscription)).await
    }

    async fn event(&self, find: FindEvent) -> Result<Option<EventView>> {
        self.read(find.now, move |session| look::event(session, find.id)).await
    }

    async fn head(&self, topic: &str, key: &str) -> Result<Option<Head>> {
        let (topic, key) = (topic.to_owned(), key.to_owned());
        self.read(None, move |session| look::head(session, &topic, &key)).await
    }

    async fn read_log(&self, read: ReadLog) -> Result<LogPage> {
        self.read(None, move |session| look::read_log(session, &read)).await
    }

    async fn log_end(&self, topic: &str) -> Result<EventId> {
        let topic = topic.to_owned();
        self.read(None, move |session| look::log_end(session, &topic)).await
    }

    async fn dead(&self, page: Page) -> Result<Vec<DeadEvent>> {
        self.read(page.now, move |session| look::dead(session, &page)).await
    }

    async fn parked(&self, page: Page) -> Result<Vec<ParkedKey>> {
        self.read(page.now, move |session| look::parked(session, &page)).await
    }

    async fn revive(&self, revive: Revive) -> Result<u64> {
        self.write(Durable::Yes, revive.now, move |session| mend::revive(session, &revive)).await
    }

    async fn resend(&self, resend: Resend) -> Result<u64> {
        self.write(Durable::Yes, resend.now, move |session| mend::resend(session, &resend)).await
    }

    async fn cancel(&self, cancel: Cancel) -> Result<Vec<Arc<str>>> {
        self.write(Durable::Yes, cancel.now, move |session| mend::cancel(session, &cancel)).await
    }

    async fn release_parked(&self, release: ReleaseParked) -> Result<u64> {
        self.write(Durable::Yes, release.now, move |session| mend::release_parked(session, &release)).await
    }

    async fn put_token(&self, put: PutToken) -> Result<Token> {
        self.write(Durable::Yes, put.now, move |session| token::put(session, &put.token)).await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        self.read(None, |session| token::all(session.conn)).await
    }

    async fn delete_token(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.write(Durable::Yes, None, move |session| token::delete(session.conn, &name)).await
    }

    async fn touch_tokens(&self, uses: Vec<(String, Time)>) -> Result<()> {
        self.write(Durable::No, None, move |session| token::touch(session.conn, &uses)).await
    }

    async fn beat(&self, beat: Beat) -> Result<Vec<Worker>> {
        self.write(Durable::No, beat.now, move |session| sweep::beat(session, &beat)).await
    }

    async fn workers(&self) -> Result<Vec<Worker>> {
        self.read(None, |session| look::workers(session.conn)).await
    }

    async fn see_remote(&self, see: SeeRemote) -> Result<()> {
        self.write(Durable::No, see.now, move |session| remote::see(session, &see)).await
    }

    async fn remote_workers(&self, now: Option<Time>) -> Result<Vec<RemoteWorker>> {
        self.read(now, remote::all).await
    }

    async fn sweep(&self, sweep: Sweep) -> Result<Swept> {
        self.write(Durable::Yes, sweep.now, move |session| sweep::sweep(session, &sweep)).await
    }

    async fn now(&self) -> Result<Time> {
        self.read(None, |session| store_time(session.conn)).await
    }

    async fn close(&self) {
        // Everything acknowledged is stored; the thread ends with the last handle. Brought together in one file, which can be
        // copied then.
        if let Some(path) = self.path().map(Path::to_owned) {
            let gathered = tokio::task::spawn_blocking(move || gather(&path)).await;
            if !matches!(gathered, Ok(Ok(()))) {
                tracing::debug!(
                    "the write-ahead log stays beside the database; it is read at the next start"
                );
            }
        }
    }
}
