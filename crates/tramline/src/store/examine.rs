//! Figures of a database as an operator has to judge them: read without changing anything, also where the tables are not up to
//! date. What they mean is decided elsewhere.

pub use super::mysql::{MysqlFigures, Refusals};
pub use super::postgres::{PostgresFigures, ReplicationSlot, Standby, TableFigures};
pub use super::redis::{RedisFigures, RedisNode};
pub use super::sqlite::SqliteFigures;

use super::mysql::MysqlStore;
use super::postgres::PostgresStore;
use super::redis::RedisStore;
use super::sqlite::SqliteStore;
use super::{Store, sqlite_path, unknown};
use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What is known of a database.
#[derive(Clone, Debug)]
pub enum Figures {
    /// Of a SQLite file.
    Sqlite(SqliteFigures),
    /// Of a PostgreSQL server.
    Postgres(PostgresFigures),
    /// Of a MySQL or MariaDB server.
    Mysql(MysqlFigures),
    /// Of a Redis server, or the nodes of a Cluster.
    Redis(RedisFigures),
}

impl Figures {
    /// The tables.
    pub fn schema(&self) -> &Schema {
        match self {
            Figures::Sqlite(figures) => &figures.schema,
            Figures::Postgres(figures) => &figures.schema,
            Figures::Mysql(figures) => &figures.schema,
            Figures::Redis(figures) => &figures.schema,
        }
    }
}

/// A transaction that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// How.
    pub holds: Holds,
    /// Who, for people.
    pub who: String,
    /// For how long; unknown of other users' sessions, unless this one may see them.
    pub age: Option<Duration>,
}

/// How a transaction is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// A statement runs.
    Running,
    /// Nothing runs, and the client does not go on.
    Idle,
    /// It is prepared, and waits for its second phase.
    Prepared,
}

/// A session that waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockWait {
    /// Its process, or connection.
    pub process: i64,
    /// For how long.
    pub age: Duration,
    /// Whom it waits for.
    pub blocked_by: Vec<i64>,
}

/// The tables that there are, against those that there should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    /// The version of the tables; `None` if there are none.
    pub version: Option<i64>,
    /// The version that this program knows.
    pub known: i64,
    /// Tables and indexes that are not there.
    pub missing: Vec<String>,
}

impl Schema {
    pub(crate) fn new(version: Option<i64>, known: i64, sql: &str, there: &BTreeSet<String>) -> Schema {
        let missing = declared(sql).into_iter().filter(|name| !there.contains(name)).collect();
        Schema { version, known, missing }
    }

    /// True if a store can be opened on it without changing it.
    pub fn is_current(&self) -> bool {
        self.version == Some(self.known)
    }
}

/// Reads the figures of the database behind a URL. Nothing is created or changed.
///
/// # Errors
/// `Invalid` for a URL that names no database that lasts; `NotFound` and `Unavailable` when it cannot be opened or reached.
pub async fn examine(url: &str) -> Result<Figures> {
    if url == "sqlite::memory:" {
        return Err(Error::invalid(
            "a store in memory is new whenever it is opened",
            "use a store in a file",
        ));
    }
    if let Some(path) = sqlite_path(url) {
        return Ok(Figures::Sqlite(SqliteStore::examine(path).await?));
    }
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return Ok(Figures::Postgres(PostgresStore::examine(url.parse()?).await?));
    }
    if url.starts_with("mysql://") || url.starts_with("mariadb://") {
        return Ok(Figures::Mysql(MysqlStore::examine(url.parse()?).await?));
    }
    if super::redis::is_redis(url) {
        return Ok(Figures::Redis(RedisStore::examine(url.parse()?).await?));
    }
    Err(unknown(url))
}

/// Opens the store behind a URL for verbs that only look. Its tables have to be up to date, so nothing is changed.
///
/// # Errors
/// As [`super::open`].
pub async fn open_to_look(url: &str) -> Result<Arc<dyn Store>> {
    match sqlite_path(url) {
        Some(path) => Ok(Arc::new(SqliteStore::open_to_look(path).await?)),
        None => super::open(url).await,
    }
}

/// How much can still be written to the file system of a path.
pub(crate) fn disk_free(path: &Path) -> Option<u64> {
    rustix::fs::statvfs(path).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// The names of the tables and indexes that migrations leave behind.
fn declared(sql: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in sql.lines() {
        let words: Vec<&str> = line.split([' ', '(', ';']).filter(|word| !word.is_empty()).collect();
        let plain: Vec<&str> =
            words.into_iter().filter(|word| !["UNIQUE", "IF", "NOT", "EXISTS"].contains(word)).collect();
        match plain[..] {
            ["CREATE", "TABLE" | "INDEX", name, ..] | ["KEY", name, ..] => names.insert(name.to_owned()),
            ["DROP", "TABLE" | "INDEX", name, ..] => names.remove(name),
            _ => false,
        };
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_migrations_leave_behind_is_read_from_them() {
        let sql = "CREATE TABLE IF NOT EXISTS a (x bigint);\n    PRIMARY KEY (x),\n    KEY k (x)\nCREATE TABLE b (\nCREATE UNIQUE INDEX i ON a (x) WHERE x > 0;\n\
                   CREATE INDEX old ON b (y);\nDROP INDEX IF EXISTS old;\n-- CREATE TABLE not (\nINSERT INTO b VALUES (1);";
        assert_eq!(declared(sql), BTreeSet::from(["a".into(), "b".into(), "i".into(), "k".into()]));
    }
}
