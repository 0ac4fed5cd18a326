//! Figures of a server, for an operator to judge.

use super::{PostgresOptions, migrate};
use crate::error::Result;
use crate::store::examine::{Holder, Holds, LockWait, Schema, disk_free};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// A PostgreSQL server, and the tables in one of its schemas.
#[derive(Clone, Debug, Default)]
pub struct PostgresFigures {
    /// The tables.
    pub schema: Schema,
    /// As `server_version_num` has it: 150004 is 15.4.
    pub version: i32,
    /// It only follows another server.
    pub is_standby: bool,
    /// Other users' sessions are shown to this one.
    pub sees_all: bool,
    /// Settings by name.
    pub settings: BTreeMap<String, String>,
    /// Sessions of clients.
    pub sessions: i64,
    /// How many connections a node keeps at most.
    pub pool: u32,
    /// What may keep dead rows from being removed.
    pub holders: Vec<Holder>,
    /// Standbys that ask for rows to be kept which their own queries still need, unless they do so by a slot.
    pub standbys: Vec<Standby>,
    /// Replication slots.
    pub slots: Vec<ReplicationSlot>,
    /// The tables' statistics.
    pub tables: Vec<TableFigures>,
    /// Who waits for a lock.
    pub waits: Vec<LockWait>,
    /// Indexes that exist but are not used.
    pub invalid_indexes: Vec<String>,
    /// Where the database is, and how much can still be written there, if it is on this machine and can be looked at.
    pub disk: Option<(String, u64)>,
}

/// A standby with `hot_standby_feedback`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standby {
    /// Who, for people.
    pub who: String,
    /// How many transactions ago the oldest one is that it keeps rows for.
    pub transactions: i64,
}

/// A replication slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicationSlot {
    /// Its name.
    pub name: String,
    /// Somebody reads it.
    pub is_active: bool,
    /// How many transactions ago the oldest one is that it keeps rows for.
    pub transactions: i64,
    /// The same for rows of the server's own catalogue.
    pub catalog_transactions: i64,
    /// How much of the log it keeps.
    pub wal_bytes: i64,
}

/// The rows of a table, as the statistics have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFigures {
    /// Its name.
    pub name: String,
    /// Rows.
    pub live: i64,
    /// Rows that nobody can see any more.
    pub dead: i64,
    /// Since it was last vacuumed, if ever.
    pub vacuumed: Option<Duration>,
    /// Somebody has turned autovacuum off for it.
    pub is_neglected: bool,
}

/// Whether commits wait for the disk is for the URL to say: the default of a role, a database or the server does not reach the store
/// (`session.rs`).
const SETTINGS: &str = "SELECT name, setting FROM pg_settings WHERE (name <> 'synchronous_commit' OR source = 'client') AND name IN ('fsync', 'full_page_writes', 'synchronous_commit', \
    'autovacuum', 'track_counts', 'max_connections', 'superuser_reserved_connections', 'default_transaction_isolation', \
    'default_transaction_read_only', 'data_directory', 'port')";

/// Sessions of other databases do not keep rows of this one; those that send to a standby may, and belong to none. What the standby
/// itself asks for has no transaction here.
const HOLDERS: &str = "SELECT CASE WHEN state LIKE 'idle in transaction%' THEN 'idle' ELSE 'running' END, \
        format('process %s of %s (%s)', pid, coalesce(usename, '?'), coalesce(nullif(application_name, ''), 'no name')), \
        extract(epoch FROM clock_timestamp() - xact_start)::float8 \
    FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL \
        OR state LIKE 'idle in transaction%') \
        AND ((backend_type = 'client backend' AND datname = current_database()) OR backend_type = 'walsender') \
    UNION ALL SELECT 'prepared', format('%L of %s', gid, owner), extract(epoch FROM clock_timestamp() - prepared)::float8 \
    FROM pg_prepared_xacts WHERE database = current_database()";

const STANDBYS: &str = "SELECT format('process %s of %s (%s)', pid, coalesce(usename, '?'), \
        coalesce(nullif(application_name, ''), 'no name')), age(backend_xmin)::bigint \
    FROM pg_stat_activity WHERE backend_type = 'walsender' AND backend_xmin IS NOT NULL AND xact_start IS NULL";

const SLOTS: &str = "SELECT slot_name::text, active, coalesce(age(xmin), 0)::bigint, coalesce(age(catalog_xmin), 0)::bigint, \
        CASE WHEN pg_is_in_recovery() THEN 0 ELSE coalesce(pg_current_wal_lsn() - restart_lsn, 0)::bigint END \
    FROM pg_replication_slots";

const TABLES: &str = "SELECT s.relname::text, s.n_live_tup, s.n_dead_tup, \
        extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::float8, \
        coalesce(c.reloptions::text LIKE '%autovacuum_enabled=false%', false) \
    FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid \
    WHERE s.schemaname = $1 AND s.relname LIKE 'tramline\\_%' ORDER BY 1";

const WAITS: &str = "SELECT l.pid::bigint, extract(epoch FROM clock_timestamp() - min(l.waitstart))::float8, pg_blocking_pids(l.pid)::bigint[] \
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid \
    WHERE NOT l.granted AND a.datname = current_database() AND l.waitstart IS NOT NULL GROUP BY l.pid";

const INDEXES: &str = "SELECT c.relname::text, i.indisvalid AND i.indisready FROM pg_index i \
    JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname = $1 AND c.relname LIKE 'tramline\\_%'";

pub(super) async fn examine(options: PostgresOptions) -> Result<PostgresFigures> {
    let mut conn = PgConnection::connect_with(&options.connect.clone().extra_float_digits(None)).await?;
    // One transaction: a pooler may give each one another connection.
    let mut tx = conn.begin().await?;
    sqlx::raw_sql("SET TRANSACTION READ ONLY").execute(&mut *tx).await?;
    let figures = read(&mut tx, &options).await?;
    tx.rollback().await?;
    conn.close().await?;
    Ok(figures)
}

async fn read(conn: &mut PgConnection, options: &PostgresOptions) -> Result<PostgresFigures> {
    let about = "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), \
                 pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), current_schema()::text, \
                 (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')";
    let about = all(conn, about, None).await?;
    let Some(about) = about.first() else { return Ok(PostgresFigures::default()) };
    let first: Option<String> = about.try_get(3)?;
    let name = options.schema.clone().or(first).unwrap_or_default();
    let indexes = indexes(conn, &name).await?;
    let settings: BTreeMap<String, String> =
        each(conn, SETTINGS, None, |row| Ok((row.try_get(0)?, row.try_get(1)?))).await?;
    Ok(PostgresFigures {
        disk: disk(&settings, options.connect.get_host()),
        version: about.try_get(0)?,
        is_standby: about.try_get(1)?,
        sees_all: about.try_get(2)?,
        sessions: about.try_get(4)?,
        pool: options.max_connections,
        schema: schema(conn, &name, indexes.keys().cloned().collect()).await?,
        settings,
        standbys: each(conn, STANDBYS, None, standby).await?,
        holders: each(conn, HOLDERS, None, holder).await?,
        slots: each(conn, SLOTS, None, slot).await?,
        tables: each(conn, TABLES, Some(&name), table).await?,
        waits: each(conn, WAITS, None, wait).await?,
        invalid_indexes: indexes.into_iter().filter(|(_, valid)| !valid).map(|(name, _)| name).collect(),
    })
}

/// No function of the server tells. Its directory is looked at where it is one of this machine: the address is, and the server that
/// writes into it has the port of the one that was asked.
fn disk(settings: &BTreeMap<String, String>, host: &str) -> Option<(String, u64)> {
    let is_local = host.starts_with('/') || matches!(host, "localhost" | "127.0.0.1" | "::1" | "[::1]");
    let path = settings.get("data_directory").filter(|_| is_local)?;
    let written = std::fs::read_to_string(Path::new(path).join("postmaster.pid")).ok()?;
    let is_its = written.lines().nth(3) == settings.get("port").map(String::as_str);
    Some((path.clone(), disk_free(Path::new(path)).filter(|_| is_its)?))
}

async fn indexes(conn: &mut PgConnection, schema: &str) -> Result<BTreeMap<String, bool>> {
    each(conn, INDEXES, Some(schema), |row| Ok((row.try_get(0)?, row.try_get(1)?))).await
}

async fn schema(conn: &mut PgConnection, schema: &str, indexes: BTreeSet<String>) -> Result<Schema> {
    let tables = "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                  WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND c.relname LIKE 'tramline\\_%'";
    let mut there: BTreeSet<String> = each(conn, tables, Some(schema), |row| row.try_get(0)).await?;
    let version = match there.contains("tramline_migration") {
        true => {
            let sql = format!("SELECT max(version) FROM \"{schema}\".tramline_migration");
            sqlx::query_scalar(AssertSqlSafe(sql)).persistent(false).fetch_one(conn).await?
        }
        false => None,
    };
    there.extend(indexes);
    Ok(Schema::new(version, migrate::newest(), &migrate::sql(None), &there))
}

async fn each<T, C: FromIterator<T>>(
    conn: &mut PgConnection,
    sql: &'static str,
    schema: Option<&str>,
    read: impl Fn(&PgRow) -> sqlx::Result<T>,
) -> Result<C> {
    Ok(all(conn, sql, schema).await?.iter().map(read).collect::<sqlx::Result<C>>()?)
}

async fn all(conn: &mut PgConnection, sql: &'static str, schema: Option<&str>) -> Result<Vec<PgRow>> {
    let query = sqlx::query(sql).persistent(false);
    let query = match schema {
        Some(schema) => query.bind(schema.to_owned()),
        None => query,
    };
    Ok(query.fetch_all(conn).await?)
}

fn holder(row: &PgRow) -> sqlx::Result<Holder> {
    let holds = match row.try_get(0)? {
        "idle" => Holds::Idle,
        "prepared" => Holds::Prepared,
        _ => Holds::Running,
    };
    Ok(Holder { holds, who: row.try_get(1)?, age: age(row.try_get(2)?) })
}

fn standby(row: &PgRow) -> sqlx::Result<Standby> {
    Ok(Standby { who: row.try_get(0)?, transactions: row.try_get(1)? })
}

fn slot(row: &PgRow) -> sqlx::Result<ReplicationSlot> {
    Ok(ReplicationSlot {
        name: row.try_get(0)?,
        is_active: row.try_get(1)?,
        transactions: row.try_get(2)?,
        catalog_transactions: row.try_get(3)?,
        wal_bytes: row.try_get(4)?,
    })
}

fn table(row: &PgRow) -> sqlx::Result<TableFigures> {
    Ok(TableFigures {
        name: row.try_get(0)?,
        live: row.try_get(1)?,
        dead: row.try_get(2)?,
        vacuumed: age(row.try_get(3)?),
        is_neglected: row.try_get(4)?,
    })
}

fn wait(row: &PgRow) -> sqlx::Result<LockWait> {
    Ok(LockWait {
        process: row.try_get(0)?,
        age: age(row.try_get(1)?).unwrap_or_default(),
        blocked_by: row.try_get(2)?,
    })
}

fn age(seconds: Option<f64>) -> Option<Duration> {
    seconds.map(|seconds| Duration::from_secs_f64(seconds.max(0.0)))
}
