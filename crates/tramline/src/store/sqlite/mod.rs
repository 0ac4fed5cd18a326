//! SQLite: the default store. One writer thread per process with group commit; several processes may share the file.
//!
//! - `store`: the verbs
//! - `writer`, `group`, `readers`, `session`: how a step gets a connection, the time and the catalogue; `standing`: claims that wait
//!   for the writer
//! - `emit`, `claim`, `order`, `settle`: the walk of an event
//! - `tally`: sets of items that are tracked to completion; `schedule`: what is emitted at certain times
//! - `limit`, `unique`, `compact`, `rules`, `failures`: what is allowed, what is there already, what gives way, what is stopped, what went wrong
//! - `mend`, `look`, `sweep`, `shed`, `drops`, `erase`, `push`, `remote`, `catalog`, `token`: everything else
//! - `backup`, `restored`, `examine`: a copy of a file that is in use, what happens when it takes its place, and how a file is
//! - `rows`, `migrate`: how rows are read and written, and the tables

mod backup;
mod catalog;
mod claim;
mod compact;
mod drops;
mod emit;
mod erase;
mod examine;
mod failures;
mod group;
mod limit;
mod look;
mod mend;
mod migrate;
mod order;
mod push;
mod readers;
mod remote;
mod restored;
mod rows;
mod rules;
mod schedule;
mod session;
mod settle;
mod shed;
mod standing;
mod store;
mod sweep;
mod tally;
mod token;
mod unique;
mod writer;

pub use backup::Copied;
pub use examine::SqliteFigures;

use crate::error::{Error, Result};
use crate::model::event::Event;
use crate::model::time::Time;
use crate::store::deleted::{InTheWay, STEP_ROWS};
use crate::store::retention::Round;
use crate::store::verbs::{Emission, Settle, Settled};
use readers::Readers;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use session::{CatalogCache, Session};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use writer::{Durable, Writer};

/// The oldest SQLite that is known to be right: earlier ones have a fault that can damage a file in WAL mode.
const OLDEST: i32 = 3_051_003;
/// How long a process waits for another one's transaction.
const BUSY: Duration = Duration::from_secs(5);
/// How soon it asks again where SQLite does not wait by itself.
const AGAIN: Duration = Duration::from_millis(2);

/// A SQLite file, or a database in memory.
#[derive(Debug)]
pub struct SqliteStore {
    writer: Writer,
    /// None for a database in memory, which only the writer can see.
    readers: Option<Readers>,
    cache: Arc<CatalogCache>,
    path: Option<PathBuf>,
    round: Round,
}

impl SqliteStore {
    /// Opens (or creates) a file and brings it up to date.
    ///
    /// # Errors
    /// `Unavailable` when the file cannot be opened or written; `Conflict` when a newer version wrote it.
    pub async fn open(path: impl AsRef<Path>) -> Result<SqliteStore> {
        let path = path.as_ref().to_owned();
        let readers = Readers::new(path.clone(), open_connection);
        let file = path.clone();
        let conn = blocking(move || {
            let conn = open_connection(&file)?;
            migrate::run(&conn)?;
            restored::stop_what_went_on(&conn)?;
            Ok(conn)
        })
        .await?;
        SqliteStore::start(conn, Some(readers), Some(path))
    }

    /// Opens a file whose tables are up to date for verbs that only look; those that write fail.
    ///
    /// # Errors
    /// `NotFound` when the file cannot be opened.
    pub(crate) async fn open_to_look(path: impl AsRef<Path>) -> Result<SqliteStore> {
        let path = path.as_ref().to_owned();
        let readers = Readers::new(path.clone(), open_to_look);
        let conn = blocking(move || open_to_look(&path)).await?;
        SqliteStore::start(conn, Some(readers), None)
    }

    /// Figures of a file for an operator to judge; reads all of it, and changes nothing.
    ///
    /// # Errors
    /// `NotFound` when the file cannot be opened; `Unavailable` when it cannot be read.
    pub async fn examine(path: impl AsRef<Path>) -> Result<SqliteFigures> {
        let path = path.as_ref().to_owned();
        blocking(move || examine::examine(&path)).await
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
        let writer = Writer::start(conn, cache.clone())?;
        Ok(SqliteStore { writer, readers, cache, path, round: Round::default() })
    }

    /// The file, if it is one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Copies a store that may be in use to a new file: everything that was committed when this began. Nobody has to wait
    /// for it. The copy is checked and synced before it gets its name; nothing is overwritten, and the store is not migrated.
    /// When the copy is first opened, its subscriptions that are at most once are blocked, and its schedules that make up for missed
    /// runs are paused: what they did after it was made is not in it.
    ///
    /// # Errors
    /// `NotFound` when `from` is no store; `Conflict` when `to` exists or the copy turns out to be damaged; `Unavailable` when
    /// `to` cannot be written.
    pub async fn backup(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Copied> {
        let (from, to) = (from.as_ref().to_owned(), to.as_ref().to_owned());
        blocking(move || backup::copy(&from, &to)).await
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
    /// As [`crate::Store::settle`]; a lost lease is not an error but an answer.
    pub fn settle_in(&self, tx: &rusqlite::Transaction<'_>, settle: &Settle) -> Result<Settled> {
        settle::settle(&Session::new(tx, settle.now, &CatalogCache::default())?, settle)
    }

    /// Removes left-overs that are in the way of a change, step by step.
    async fn clear(&self, way: InTheWay) -> Result<()> {
        loop {
            let way = way.clone();
            let step = move |session: &Session<'_>| erase::clear(session, &way, STEP_ROWS);
            if !self.write(Durable::No, None, step).await? {
                return Ok(());
            }
        }
    }

    /// One step that writes.
    async fn write<T: Send + 'static>(
        &self,
        durable: Durable,
        now: Option<Time>,
        step: impl FnOnce(&Session<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let cache = self.cache.clone();
        let whole = move |conn: &Connection| {
            let session = Session::new(conn, now, &cache)?;
            let value = step(&session)?;
            session.finish()?;
            Ok(value)
        };
        self.writer.run(durable, whole).await
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

/// Neither creates nor changes anything.
fn open_to_look(path: &Path) -> Result<Connection> {
    let missing = |error| {
        let what = format!("the database file {} cannot be opened", path.display());
        Error::not_found(what, "name the file of a store that exists").because(error)
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(missing)?;
    conn.busy_timeout(BUSY)?;
    conn.execute_batch("PRAGMA query_only = ON")?;
    Ok(conn)
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
    // Bigger pages hold a whole chunk more often. They have to be asked for before there are any.
    conn.execute_batch("PRAGMA page_size = 8192")?;
    write_ahead(&conn)?;
    // A longer log means fewer checkpoints, which sync twice.
    conn.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 2000; PRAGMA cache_size = -16000; PRAGMA temp_store = MEMORY;",
    )?;
    Ok(conn)
}

/// Gives a new file its write-ahead log. That takes a lock for which SQLite does not wait, whatever the time-out is: of several processes that
/// create a file together all but one are refused, and find it done when they ask again.
#[expect(clippy::disallowed_methods, reason = "no signal tells that another process has let go of the file")]
fn write_ahead(conn: &Connection) -> Result<()> {
    let start = Instant::now();
    loop {
        match conn.execute_batch("PRAGMA journal_mode = WAL") {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && start.elapsed() < BUSY =>
            {
                std::thread::sleep(AGAIN);
            }
            result => return Ok(result?),
        }
    }
}

/// Moves the write-ahead log into the file itself, unless somebody reads just now.
fn gather(path: &Path) -> Result<()> {
    let conn = Connection::open(path)?;
    conn.busy_timeout(Duration::from_secs(1))?;
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(())
}
