//! The row loop on PostgreSQL: several connections that take turns with `FOR UPDATE SKIP LOCKED`.

use std::hint::black_box;
use std::str::FromStr;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgListener};
use sqlx::{ConnectOptions, Executor, PgConnection, Row};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::row::{BoxError, RowFigures, all, median_us, rate};

/// Rows per statement, for inserts, claims and deletes.
const BATCH: usize = 64;
const CONNECTIONS: usize = 4;

// The two indexes that such queues have: one to find what is due, one to list and count a queue. The first covers
// only what waits, so a claimed row leaves it instead of moving inside it.
const CREATE: &str = "
    DROP TABLE IF EXISTS tramline_bench_rows, tramline_bench_commits;
    CREATE TABLE tramline_bench_rows (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        queue TEXT NOT NULL,
        status SMALLINT NOT NULL,
        due_at TIMESTAMPTZ NOT NULL,
        locked_at TIMESTAMPTZ,
        attempts INTEGER NOT NULL,
        payload BYTEA NOT NULL
    );
    CREATE INDEX tramline_bench_rows_due ON tramline_bench_rows (due_at, id) WHERE status = 0;
    CREATE INDEX tramline_bench_rows_queue ON tramline_bench_rows (queue, id);
    CREATE TABLE tramline_bench_commits (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY);";

const DROP: &str = "DROP TABLE IF EXISTS tramline_bench_rows, tramline_bench_commits";

const INSERT: &str = "
    INSERT INTO tramline_bench_rows (queue, status, due_at, attempts, payload)
    SELECT 'bench', 0, now(), 0, payload FROM UNNEST($1::bytea[]) AS payload";

// The limit is `BATCH`, written out because the planner has to know that it is small. As an array, the inner query
// runs exactly once, whatever the plan; `IN (SELECT ..)` is not faster.
const CLAIM: &str = "
    UPDATE tramline_bench_rows SET status = 1, locked_at = now(), attempts = attempts + 1
    WHERE id = ANY (ARRAY(
        SELECT id FROM tramline_bench_rows WHERE status = 0 AND due_at <= now()
        ORDER BY due_at, id LIMIT 64 FOR UPDATE SKIP LOCKED
    ))
    RETURNING id, payload";

const DELETE: &str = "DELETE FROM tramline_bench_rows WHERE id = ANY($1)";

/// Inserts and drains `events` rows in a table of its own.
pub(super) async fn run(url: &str, events: usize, payload: &[u8]) -> Result<RowFigures, BoxError> {
    let mut owner = connect(url).await?;
    owner.execute(CREATE).await?;
    let figures = measure(url, &mut owner, events, payload).await;
    owner.execute(DROP).await?;
    figures
}

/// The median time of one durable commit, in microseconds.
pub(super) async fn commit_us(url: &str, rounds: usize) -> Result<f64, BoxError> {
    let mut owner = connect(url).await?;
    owner.execute(CREATE).await?;
    let median = measure_commits(&mut owner, rounds).await;
    owner.execute(DROP).await?;
    median
}

/// The median time from the insert of one row to its claim on another connection, which is told by NOTIFY and waits for that, in
/// microseconds. The claim need not reach the disk, as Tramline's.
pub(super) async fn hand_over_us(url: &str, times: usize, payload: &[u8]) -> Result<f64, BoxError> {
    let mut owner = connect(url).await?;
    owner.execute(CREATE).await?;
    let median = measure_hand_over(url, times, payload).await;
    owner.execute(DROP).await?;
    median
}

async fn measure_hand_over(url: &str, times: usize, payload: &[u8]) -> Result<f64, BoxError> {
    let mut listener = PgListener::connect(url).await?;
    listener.listen("tramline_bench").await?;
    let mut worker = connect(url).await?;
    worker.execute("SET synchronous_commit = off").await?;
    let (taken, mut takes) = mpsc::channel(1);
    let working = tokio::spawn(async move {
        while listener.recv().await.is_ok() {
            let ids = claim(&mut worker).await?;
            if !ids.is_empty() && taken.send(Instant::now()).await.is_err() {
                break;
            }
            sqlx::query(DELETE).bind(&ids).execute(&mut worker).await?;
        }
        Ok::<(), BoxError>(())
    });
    let mut emitter = connect(url).await?;
    let mut samples: Vec<Duration> = Vec::with_capacity(times);
    for _ in 0..times {
        let start = Instant::now();
        sqlx::query(INSERT).bind([payload].as_slice()).execute(&mut emitter).await?;
        sqlx::query("NOTIFY tramline_bench").execute(&mut emitter).await?;
        samples.push(takes.recv().await.ok_or("the worker of the row loop ended")? - start);
    }
    working.abort();
    Ok(median_us(samples))
}

async fn connect(url: &str) -> Result<PgConnection, BoxError> {
    let mut connection = PgConnectOptions::from_str(url)?.connect().await?;
    connection.execute("SET synchronous_commit = on").await?;
    Ok(connection)
}

async fn measure(
    url: &str,
    owner: &mut PgConnection,
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

    // Between two measurements, as autovacuum would do it by and by: the planner must know that the table is full.
    owner.execute("ANALYZE tramline_bench_rows").await?;

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
    mut connection: PgConnection,
    events: usize,
    payload: Vec<u8>,
) -> Result<PgConnection, BoxError> {
    let batch = vec![payload.as_slice(); BATCH];
    let mut left = events;
    while left > 0 {
        let rows = left.min(BATCH);
        sqlx::query(INSERT).bind(&batch[..rows]).execute(&mut connection).await?;
        left -= rows;
    }
    Ok(connection)
}

/// Claims and deletes until nothing is due; returns how many rows there were.
async fn drain(mut connection: PgConnection) -> Result<usize, BoxError> {
    let mut drained = 0;
    loop {
        let ids = claim(&mut connection).await?;
        if ids.is_empty() {
            return Ok(drained);
        }
        sqlx::query(DELETE).bind(&ids).execute(&mut connection).await?;
        drained += ids.len();
    }
}

/// One statement, so a transaction of its own: a claim that a crash could undo would run a job twice.
async fn claim(connection: &mut PgConnection) -> Result<Vec<i64>, BoxError> {
    let rows = sqlx::query(CLAIM).fetch_all(connection).await?;
    let mut ids = Vec::with_capacity(rows.len());
    for row in &rows {
        black_box(row.try_get::<&[u8], _>(1)?);
        ids.push(row.try_get(0)?);
    }
    Ok(ids)
}

async fn measure_commits(connection: &mut PgConnection, rounds: usize) -> Result<f64, BoxError> {
    let mut samples = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        sqlx::query("INSERT INTO tramline_bench_commits DEFAULT VALUES").execute(&mut *connection).await?;
        samples.push(start.elapsed());
    }
    Ok(median_us(samples))
}
