//! Figures of a server, for an operator to judge.

use super::migrate;
use super::options::MysqlOptions;
use super::server::{Server, is_mariadb};
use super::session::{Rows, exchange};
use super::sql::Columns;
use crate::error::Result;
use crate::store::examine::{Holder, Holds, LockWait, Schema};
use sqlx::mysql::MySqlRow;
use sqlx::{Connection as _, MySqlConnection};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A MySQL or MariaDB server, and the tables in one of its databases.
#[derive(Clone, Debug, Default)]
pub struct MysqlFigures {
    /// The tables.
    pub schema: Schema,
    /// As it says by itself.
    pub version: String,
    /// Why no store can be opened on it, and what to do.
    pub refused: Option<(String, String)>,
    /// Transactions and waits of other users are shown to this one.
    pub sees_all: bool,
    /// Settings by name.
    pub settings: BTreeMap<String, String>,
    /// Sessions of clients.
    pub sessions: i64,
    /// How many connections a node keeps at most.
    pub pool: u32,
    /// How many transactions left old versions of rows behind that are not removed yet.
    pub history: Option<i64>,
    /// Transactions that are open.
    pub holders: Vec<Holder>,
    /// Who waits for a lock.
    pub waits: Vec<LockWait>,
    /// Tables that are not kept by InnoDB, with what keeps them.
    pub foreign_tables: Vec<(String, String)>,
    /// Free bytes by path, where the server says so.
    pub disks: Vec<(String, u64)>,
}

const TABLES: &str = "SELECT CAST(table_name AS CHAR), CAST(engine AS CHAR) FROM information_schema.tables \
    WHERE table_schema = DATABASE() AND table_name LIKE 'tramline\\\\_%'";
const INDEXES: &str = "SELECT DISTINCT CAST(index_name AS CHAR) FROM information_schema.statistics \
    WHERE table_schema = DATABASE() AND table_name LIKE 'tramline\\\\_%'";
/// The times of transactions are those of the server's zone.
const HOLDERS: &str = "SELECT trx_mysql_thread_id, trx_query IS NULL, TIMESTAMPDIFF(SECOND, trx_started, NOW()) \
    FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> CONNECTION_ID()";
const HISTORY: &str = "SELECT CAST(`count` AS SIGNED) FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'";
/// There if the plug-in `disks` of MariaDB is.
const DISKS: &str =
    "SELECT CAST(path AS CHAR), CAST(available AS SIGNED) * 1024 FROM information_schema.disks";

pub(super) async fn examine(options: MysqlOptions) -> Result<MysqlFigures> {
    let mut conn = MySqlConnection::connect_with(&options.connect).await?;
    // What another has locked must not be waited for, and nothing is written.
    let calm =
        "SET SESSION time_zone = 'SYSTEM'; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ ONLY";
    sqlx::raw_sql(calm).execute(&mut conn).await?;
    let figures = read(&mut conn, &options).await?;
    conn.close().await?;
    Ok(figures)
}

async fn read(conn: &mut MySqlConnection, options: &MysqlOptions) -> Result<MysqlFigures> {
    let server = Server::read(conn).await?;
    let refused = server.check().err().map(|error| (error.message().to_owned(), error.remedy().to_owned()));
    let tables = each(conn, TABLES, |row| Ok((row.text(0)?, row.maybe_text(1)?.unwrap_or_default()))).await?;
    let holders = shown(each(conn, HOLDERS, holder).await)?;
    let waits = shown(each(conn, waits_sql(&server.version), wait).await)?;
    let sessions: Vec<i64> = each(conn, "SHOW GLOBAL STATUS LIKE 'Threads_connected'", |row| {
        Ok(row.text(1)?.parse().unwrap_or(0))
    })
    .await?;
    let history = shown(each(conn, HISTORY, |row| row.int(0)).await)?;
    let disks = each(conn, DISKS, |row| Ok((row.text(0)?, row.count(1)?))).await.unwrap_or_default();
    Ok(MysqlFigures {
        schema: schema(conn, &tables).await?,
        refused,
        sees_all: holders.is_some(),
        sessions: sessions.into_iter().sum(),
        pool: options.max_connections,
        history: history.and_then(|found: Vec<i64>| found.first().copied()),
        holders: holders.unwrap_or_default(),
        waits: waits.unwrap_or_default(),
        foreign_tables: tables.into_iter().filter(|(_, engine)| engine != "InnoDB").collect(),
        disks,
        version: server.version,
        settings: server.settings,
    })
}

/// `None` for what this user is not shown.
fn shown<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(super::step::number(&error), Some(1142 | 1227 | 1146 | 1109)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn waits_sql(version: &str) -> &'static str {
    if is_mariadb(version) {
        "SELECT r.trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, r.trx_wait_started, NOW()), b.trx_mysql_thread_id \
         FROM information_schema.innodb_lock_waits w \
         JOIN information_schema.innodb_trx r ON r.trx_id = w.requesting_trx_id \
         JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_trx_id"
    } else {
        "SELECT r.trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, r.trx_wait_started, NOW()), b.trx_mysql_thread_id \
         FROM performance_schema.data_lock_waits w \
         JOIN information_schema.innodb_trx r ON r.trx_id = w.requesting_engine_transaction_id \
         JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_engine_transaction_id"
    }
}

async fn schema(conn: &mut MySqlConnection, tables: &BTreeMap<String, String>) -> Result<Schema> {
    let mut there: BTreeSet<String> = each(conn, INDEXES, |row| row.text(0)).await?;
    there.extend(tables.keys().cloned());
    let version = match there.contains("tramline_migration") {
        true => {
            each::<_, Vec<_>>(conn, "SELECT MAX(version) FROM tramline_migration", |row| row.maybe_int(0))
                .await?
                .pop()
                .flatten()
        }
        false => None,
    };
    Ok(Schema::new(version, migrate::newest(), &migrate::sql(), &there))
}

async fn each<T, C: FromIterator<T>>(
    conn: &mut MySqlConnection,
    sql: &str,
    read: impl Fn(&MySqlRow) -> Result<T>,
) -> Result<C> {
    let mut sets: Vec<Rows> = Vec::new();
    exchange(conn, sql.to_owned(), &mut sets).await?;
    sets.iter().flatten().map(read).collect()
}

/// A prepared one has no session any more.
fn holder(row: &MySqlRow) -> Result<Holder> {
    let holds = match (row.int(0)?, row.flag(1)?) {
        (0, _) => Holds::Prepared,
        (_, true) => Holds::Idle,
        (_, false) => Holds::Running,
    };
    Ok(Holder { holds, who: format!("connection {}", row.int(0)?), age: age(row, 2)? })
}

fn wait(row: &MySqlRow) -> Result<LockWait> {
    Ok(LockWait {
        process: row.int(0)?,
        age: age(row, 1)?.unwrap_or_default(),
        blocked_by: vec![row.int(2)?],
    })
}

fn age(row: &MySqlRow, at: usize) -> Result<Option<Duration>> {
    Ok(row.maybe_int(at)?.map(|seconds| Duration::from_secs(seconds.max(0).cast_unsigned())))
}
