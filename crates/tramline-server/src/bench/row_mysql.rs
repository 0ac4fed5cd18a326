//! The row loop on MySQL and MariaDB: several connections that take turns with `FOR UPDATE SKIP LOCKED`.

use std::hint::black_box;
use std::time::Instant;

use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, Row};
use tokio::task::JoinSet;

use super::row::{BoxError, RowFigures, all, median_us, rate};

/// Rows per statement, for inserts, claims and deletes.
const BATCH: usize = 64;
const CONNECTIONS: usize = 4;

// The two indexes that such queues have: one to find what is due, one to list and count a queue.
const CREATE: &str = "
    DROP TABLE IF EXISTS tramline_bench_rows, tramline_bench_commits;
    CREATE TABLE tramline_bench_rows (
        id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
        queue VARCHAR(64) NOT NULL,
        status TINYINT NOT NULL,
        due_at DATETIME(3) NOT NULL,
        locked_at DATETIME(3),
        attempts INT NOT NULL,
        payload BLOB NOT NULL,
        KEY tramline_bench_rows_due (status, due_at, id),
        KEY tramline_bench_rows_queue (queue, id)
    ) ENGINE = InnoDB;
    CREATE TABLE tramline_bench_commits (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY) ENGINE = InnoDB";

const DROP: &str = "DROP TABLE IF EXISTS tramline_bench_rows, tramline_bench_commits";

// The limit is `BATCH`.
const CLAIM: &str = "
    SELECT id, payload FROM tramline_bench_rows WHERE status = 0 AND due_at <= NOW(3)
    ORDER BY due_at, id LIMIT 64 FOR UPDATE SKIP LOCKED";

/// Inserts and drains `events` rows in a table of its own.
pub(super) async fn run(url: &str, events: usize, payload: &[u8]) -> Result<RowFigures, BoxError> {
    let mut owner = connect(url).await?;
    sqlx::raw_sql(CREATE).execute(&mut owner).await?;
    let figures = measure(url, &mut owner, events, payload).await;
    owner.execute(DROP).await?;
    figures
}

/// The median time of one durable commit, in microseconds.
pub(super) async fn commit_us(url: &str, rounds: usize) -> Result<f64, BoxError> {
    let mut owner = connect(url).await?;
    sqlx::raw_sql(CREATE).execute(&mut owner).await?;
    let mut samples = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        sqlx::query("INSERT INTO tramline_bench_commits VALUES (NULL)").execute(&mut owner).await?;
        samples.push(start.elapsed());
    }
    owner.execute(DROP).await?;
    Ok(median_us(samples))
}

async fn connect(url: &str) -> Result<MySqlConnection, BoxError> {
    let mut connection = MySqlConnection::connect(url).await?;
    connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
    Ok(connection)
}

async fn measure(
    url: &str,
    owner: &mut MySqlConnection,
    events: usize,
    payload: &[u8],
) -> Result<RowFigures, BoxError> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(connect(url).await?);
    }
    let start = Instant::now();
    let mut inserts = JoinSet::new();
    for (number, connection) in connections.into_iter().enumerate() {
        let share = events / CONNECTIONS + usize::from(number < events % CONNECTIONS);
        inserts.spawn(insert(connection, share, payload.to_vec()));
    }
    let connections = all(inserts).await?;
    let insert = rate(events, start.elapsed());

    // Between two measurements, as the server would do it by and by.
    sqlx::raw_sql("ANALYZE TABLE tramline_bench_rows").execute(&mut *owner).await?;

    let start = Instant::now();
    let drains: JoinSet<_> = connections.into_iter().map(drain).collect();
    let drained: usize = all(drains).await?.iter().sum();
    let drain = rate(events, start.elapsed());
    if drained != events {
        return Err(format!("the row loop inserted {events} rows but drained {drained}").into());
    }
    Ok(RowFigures { insert, drain })
}

async fn insert(
    mut connection: MySqlConnection,
    events: usize,
    payload: Vec<u8>,
) -> Result<MySqlConnection, BoxError> {
    let mut left = events;
    while left > 0 {
        let rows = left.min(BATCH);
        let values = vec!["('bench', 0, NOW(3), 0, ?)"; rows].join(",");
        let sql = format!(
            "INSERT INTO tramline_bench_rows (queue, status, due_at, attempts, payload) VALUES {values}"
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for _ in 0..rows {
            query = query.bind(payload.as_slice());
        }
        query.execute(&mut connection).await?;
        left -= rows;
    }
    Ok(connection)
}

/// Claims and deletes until nothing is due; returns how many rows there were.
async fn drain(mut connection: MySqlConnection) -> Result<usize, BoxError> {
    let mut drained = 0;
    loop {
        let ids = claim(&mut connection).await?;
        if ids.is_empty() {
            return Ok(drained);
        }
        let delete = format!("DELETE FROM tramline_bench_rows WHERE id IN ({})", marks(ids.len()));
        let mut query = sqlx::query(AssertSqlSafe(delete));
        for id in &ids {
            query = query.bind(id);
        }
        query.execute(&mut connection).await?;
        drained += ids.len();
    }
}

/// A transaction of its own: a claim that a crash could undo would run a job twice.
async fn claim(connection: &mut MySqlConnection) -> Result<Vec<i64>, BoxError> {
    let mut transaction = connection.begin().await?;
    let rows: Vec<MySqlRow> = sqlx::query(CLAIM).fetch_all(&mut *transaction).await?;
    let mut ids: Vec<i64> = Vec::with_capacity(rows.len());
    for row in &rows {
        black_box(row.try_get::<&[u8], _>(1)?);
        ids.push(row.try_get(0)?);
    }
    if !ids.is_empty() {
        let update = format!(
            "UPDATE tramline_bench_rows SET status = 1, locked_at = NOW(3), attempts = attempts + 1 WHERE id IN ({})",
            marks(ids.len())
        );
        let mut query = sqlx::query(AssertSqlSafe(update));
        for id in &ids {
            query = query.bind(id);
        }
        query.execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(ids)
}

fn marks(count: usize) -> String {
    vec!["?"; count].join(",")
}
