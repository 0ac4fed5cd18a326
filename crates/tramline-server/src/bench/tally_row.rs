//! What tallies are compared with: one row per item, which is marked when the item is done. The index has what is pending.

use super::redis_server::Server;
use super::row::{BoxError, rate};
use super::target::Target;
use rusqlite::{Connection, TransactionBehavior};
use sqlx::{AssertSqlSafe, Connection as _, Executor, MySqlConnection, PgConnection};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How many rows are added in one transaction, and how many are acked by one caller.
const ADD: usize = 10_000;
const ACK: usize = 100;

/// How fast the row loop is, per second, and what it takes.
pub(super) struct RowTally {
    pub(super) add: f64,
    pub(super) ack: f64,
    pub(super) get_ms: f64,
    pub(super) bytes_per_item: f64,
}

impl RowTally {
    fn new(items: usize, add: Duration, ack: Duration, get: Duration, bytes: u64) -> RowTally {
        RowTally {
            add: rate(items, add),
            ack: rate(items, ack),
            get_ms: get.as_secs_f64() * 1e3,
            bytes_per_item: bytes as f64 / items as f64,
        }
    }
}

/// Adds and acks `items` rows, in order.
pub(super) async fn run(target: &Target, items: usize, callers: usize) -> Result<RowTally, BoxError> {
    match target {
        Target::Sqlite { url } => {
            let path = format!("{}.items", url.trim_start_matches("sqlite://"));
            let run = move || {
                let measured = sqlite(&path, items, callers);
                for suffix in ["", "-wal", "-shm"] {
                    std::fs::remove_file(format!("{path}{suffix}")).ok(); // what was never made need not go
                }
                measured
            };
            tokio::task::spawn_blocking(run).await?
        }
        Target::Postgres { server, schema, .. } => postgres(server, schema, items, callers).await,
        Target::Mysql { url, .. } => mysql(url, items, callers).await,
        Target::Redis { server, .. } => redis_set(server, items, callers).await,
    }
}

/// One writer, so the acks of all callers share a transaction, as Tramline's do.
fn sqlite(path: &str, items: usize, callers: usize) -> Result<RowTally, BoxError> {
    let mut connection = Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA page_size = 8192; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -16000;
         CREATE TABLE items (tally INTEGER NOT NULL, item INTEGER NOT NULL, done INTEGER NOT NULL,
             PRIMARY KEY (tally, item)) WITHOUT ROWID;
         CREATE INDEX items_pending ON items (tally) WHERE done = 0;",
    )?;
    let start = Instant::now();
    for first in (0..items).step_by(ADD) {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut insert = transaction.prepare_cached("INSERT INTO items VALUES (1, ?, 0)")?;
        for item in first..(first + ADD).min(items) {
            insert.execute([item as i64])?;
        }
        drop(insert);
        transaction.commit()?;
    }
    let add = start.elapsed();
    let start = Instant::now();
    for first in (0..items).step_by(ACK * callers) {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut update = transaction
            .prepare_cached("UPDATE items SET done = 1 WHERE tally = 1 AND item = ? AND done = 0")?;
        for item in first..(first + ACK * callers).min(items) {
            update.execute([item as i64])?;
        }
        let sql = "SELECT EXISTS (SELECT 1 FROM items WHERE tally = 1 AND done = 0)";
        transaction.prepare_cached(sql)?.query_row([], |row| row.get::<_, bool>(0))?;
        drop(update);
        transaction.commit()?;
    }
    let ack = start.elapsed();
    let start = Instant::now();
    let sql = "SELECT count(*), sum(done) FROM items WHERE tally = 1";
    connection.query_row(sql, [], |row| row.get::<_, i64>(1))?;
    let get = start.elapsed();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    let bytes = std::fs::metadata(path)?.len();
    Ok(RowTally::new(items, add, ack, get, bytes))
}

/// Every caller has a connection of its own.
async fn postgres(server: &str, schema: &str, items: usize, callers: usize) -> Result<RowTally, BoxError> {
    let table = format!("{schema}.items");
    let mut owner = PgConnection::connect(server).await?;
    let create = format!(
        "CREATE TABLE {table} (tally bigint NOT NULL, item bigint NOT NULL, done boolean NOT NULL, \
             PRIMARY KEY (tally, item)) WITH (fillfactor = 50); \
         CREATE INDEX ON {table} (tally) WHERE NOT done;"
    );
    owner.execute(AssertSqlSafe(create)).await?;
    let start = Instant::now();
    for first in (0..items).step_by(ADD) {
        let last = (first + ADD).min(items) - 1;
        let sql = format!(
            "INSERT INTO {table} SELECT 1, item, false FROM generate_series({first}, {last}) AS item"
        );
        owner.execute(AssertSqlSafe(sql)).await?;
    }
    let add = start.elapsed();
    owner.execute(AssertSqlSafe(format!("ANALYZE {table}"))).await?;
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let connection = PgConnection::connect(server).await?;
        let chunks = (caller..items / ACK).step_by(callers);
        tasks.spawn(ack_rows(connection, table.clone(), chunks));
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let ack = start.elapsed();
    let start = Instant::now();
    let sql = format!("SELECT count(*) FILTER (WHERE done) FROM {table} WHERE tally = 1");
    sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut owner).await?;
    let get = start.elapsed();
    let sql = format!("SELECT pg_total_relation_size('{table}')");
    let bytes: i64 = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut owner).await?;
    Ok(RowTally::new(items, add, ack, get, bytes.cast_unsigned()))
}

async fn ack_rows(
    mut connection: PgConnection,
    table: String,
    chunks: impl Iterator<Item = usize>,
) -> Result<(), BoxError> {
    let update = format!("UPDATE {table} SET done = true WHERE tally = 1 AND item = ANY($1) AND NOT done");
    let left = format!("SELECT EXISTS (SELECT FROM {table} WHERE tally = 1 AND NOT done)");
    for chunk in chunks {
        let items: Vec<i64> = (chunk * ACK..(chunk + 1) * ACK).map(|item| item as i64).collect();
        sqlx::query(AssertSqlSafe(update.clone())).bind(items).execute(&mut connection).await?;
        sqlx::query(AssertSqlSafe(left.clone())).fetch_one(&mut connection).await?;
    }
    Ok(())
}

/// Every caller has a connection of its own.
async fn mysql(url: &str, items: usize, callers: usize) -> Result<RowTally, BoxError> {
    let mut owner = MySqlConnection::connect(url).await?;
    let create = "CREATE TABLE items (tally BIGINT NOT NULL, item BIGINT NOT NULL, done BOOLEAN NOT NULL, \
                  PRIMARY KEY (tally, item), KEY items_pending (tally, done)) ENGINE = InnoDB";
    owner.execute(create).await?;
    let start = Instant::now();
    for first in (0..items).step_by(ADD) {
        let rows: Vec<String> =
            (first..(first + ADD).min(items)).map(|item| format!("(1,{item},0)")).collect();
        let sql = format!("INSERT INTO items VALUES {}", rows.join(","));
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut owner).await?;
    }
    let add = start.elapsed();
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let connection = MySqlConnection::connect(url).await?;
        let chunks = (caller..items / ACK).step_by(callers);
        tasks.spawn(ack_rows_on_mysql(connection, chunks));
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let ack = start.elapsed();
    let start = Instant::now();
    sqlx::query("SELECT COUNT(*) FROM items WHERE tally = 1 AND done = 1").fetch_one(&mut owner).await?;
    let get = start.elapsed();
    let sql = "SELECT CAST(data_length + index_length AS SIGNED) FROM information_schema.tables \
               WHERE table_schema = DATABASE() AND table_name = 'items'";
    let bytes: i64 = sqlx::query_scalar(sql).fetch_one(&mut owner).await?;
    owner.execute("DROP TABLE items").await?;
    Ok(RowTally::new(items, add, ack, get, bytes.cast_unsigned()))
}

async fn ack_rows_on_mysql(
    mut connection: MySqlConnection,
    chunks: impl Iterator<Item = usize>,
) -> Result<(), BoxError> {
    for chunk in chunks {
        let items: Vec<String> = (chunk * ACK..(chunk + 1) * ACK).map(|item| item.to_string()).collect();
        let sql = format!(
            "UPDATE items SET done = 1 WHERE tally = 1 AND item IN ({}) AND done = 0; \
             SELECT EXISTS (SELECT 1 FROM items WHERE tally = 1 AND done = 0)",
            items.join(",")
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
    }
    Ok(())
}

/// A set of what is pending: the usual way on Redis, and its smallest.
async fn redis_set(server: &Server, items: usize, callers: usize) -> Result<RowTally, BoxError> {
    let (set, mut owner) = (server.key("bench_items"), server.connect().await?);
    redis::cmd("UNLINK").arg(&set).query_async::<()>(&mut owner).await?;
    let start = Instant::now();
    for first in (0..items).step_by(ADD) {
        let some: Vec<usize> = (first..(first + ADD).min(items)).collect();
        redis::cmd("SADD").arg(&set).arg(some).query_async::<()>(&mut owner).await?;
    }
    let add = start.elapsed();
    let bytes: u64 = redis::cmd("MEMORY").arg("USAGE").arg(&set).query_async(&mut owner).await?;
    let start = Instant::now();
    let mut tasks: JoinSet<Result<(), BoxError>> = JoinSet::new();
    for caller in 0..callers {
        let (set, mut connection) = (set.clone(), server.connect().await?);
        tasks.spawn(async move {
            for chunk in (caller..items / ACK).step_by(callers) {
                let some: Vec<usize> = (chunk * ACK..(chunk + 1) * ACK).collect();
                let mut ack = redis::pipe();
                ack.cmd("SREM").arg(&set).arg(some).ignore().cmd("EXISTS").arg(&set).ignore();
                ack.query_async::<()>(&mut connection).await?;
            }
            Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let ack = start.elapsed();
    let start = Instant::now();
    redis::cmd("SCARD").arg(&set).query_async::<()>(&mut owner).await?;
    let get = start.elapsed();
    redis::cmd("UNLINK").arg(&set).query_async::<()>(&mut owner).await?;
    Ok(RowTally::new(items, add, ack, get, bytes))
}
