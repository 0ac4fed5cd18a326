//! The row loop on SQLite: one writer, the journal mode and the durability that Tramline itself uses.

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rusqlite::{Connection, TransactionBehavior, params};

use super::row::{BoxError, RowFigures, median_us, rate};

/// Rows per transaction, for inserts, claims and deletes.
const BATCH: usize = 256;

// The two indexes that such queues have: one to find what is due, one to list and count a queue.
const SCHEMA: &str = "
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY,
        queue TEXT NOT NULL,
        status INTEGER NOT NULL,
        due_at INTEGER NOT NULL,
        locked_at INTEGER,
        attempts INTEGER NOT NULL,
        payload BLOB NOT NULL
    );
    CREATE INDEX jobs_due ON jobs (status, due_at);
    CREATE INDEX jobs_queue ON jobs (queue, id);
    CREATE TABLE commits (id INTEGER PRIMARY KEY);";

const INSERT: &str =
    "INSERT INTO jobs (queue, status, due_at, attempts, payload) VALUES ('bench', 0, ?1, 0, ?2)";

// The limit is `BATCH`.
const CLAIM: &str = "
    UPDATE jobs SET status = 1, locked_at = ?1, attempts = attempts + 1
    WHERE id IN (SELECT id FROM jobs WHERE status = 0 AND due_at <= ?1 ORDER BY due_at LIMIT 256)
    RETURNING id, payload";

const DELETE: &str = "DELETE FROM jobs WHERE id IN (SELECT value FROM json_each(?1))";

/// Inserts and drains `events` rows in a file of its own beside the store at `url`.
pub(super) async fn run(url: &str, events: usize, payload: &[u8]) -> Result<RowFigures, BoxError> {
    let file = ScratchFile::beside(url)?;
    let payload = payload.to_vec();
    tokio::task::spawn_blocking(move || {
        let mut connection = open(&file)?;
        let start = Instant::now();
        insert(&mut connection, events, &payload)?;
        let insert = rate(events, start.elapsed());

        let start = Instant::now();
        let drained = drain(&connection)?;
        let drain = rate(events, start.elapsed());
        if drained != events {
            return Err(format!("the row loop inserted {events} rows but drained {drained}").into());
        }
        Ok(RowFigures { insert, drain })
    })
    .await?
}

/// The median time of one durable commit, in microseconds.
pub(super) async fn commit_us(url: &str, rounds: usize) -> Result<f64, BoxError> {
    let file = ScratchFile::beside(url)?;
    tokio::task::spawn_blocking(move || {
        let connection = open(&file)?;
        let mut insert = connection.prepare("INSERT INTO commits DEFAULT VALUES")?;
        let mut samples = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let start = Instant::now();
            insert.execute([])?;
            samples.push(start.elapsed());
        }
        Ok(median_us(samples))
    })
    .await?
}

fn open(file: &ScratchFile) -> Result<Connection, BoxError> {
    let connection = Connection::open(&file.0)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.execute_batch(SCHEMA)?;
    Ok(connection)
}

fn insert(connection: &mut Connection, events: usize, payload: &[u8]) -> Result<(), BoxError> {
    let mut left = events;
    while left > 0 {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let now = now_ms(&transaction)?;
        let mut insert = transaction.prepare_cached(INSERT)?;
        for _ in 0..left.min(BATCH) {
            insert.execute(params![now, payload])?;
        }
        drop(insert);
        transaction.commit()?;
        left = left.saturating_sub(BATCH);
    }
    Ok(())
}

/// Claims and deletes until nothing is due; returns how many rows there were.
fn drain(connection: &Connection) -> Result<usize, BoxError> {
    let mut drained = 0;
    loop {
        let ids = claim(connection)?;
        if ids.is_empty() {
            return Ok(drained);
        }
        delete(connection, &ids)?;
        drained += ids.len();
    }
}

/// One statement, so a transaction of its own: a claim that a crash could undo would run a job twice.
fn claim(connection: &Connection) -> Result<Vec<i64>, BoxError> {
    let now = now_ms(connection)?;
    let mut claim = connection.prepare_cached(CLAIM)?;
    let mut rows = claim.query([now])?;
    let mut ids = Vec::with_capacity(BATCH);
    while let Some(row) = rows.next()? {
        black_box(row.get_ref(1)?.as_blob()?);
        ids.push(row.get(0)?);
    }
    Ok(ids)
}

fn delete(connection: &Connection, ids: &[i64]) -> Result<(), BoxError> {
    let json_array = format!("{ids:?}");
    connection.prepare_cached(DELETE)?.execute([json_array])?;
    Ok(())
}

fn now_ms(connection: &Connection) -> Result<i64, BoxError> {
    let mut now = connection.prepare_cached("SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)")?;
    Ok(now.query_row([], |row| row.get(0))?)
}

/// A database beside the store, so that both are on the same disk; removed when dropped.
struct ScratchFile(PathBuf);

impl ScratchFile {
    fn beside(url: &str) -> Result<Self, BoxError> {
        let path = url.strip_prefix("sqlite://").ok_or("the row loop needs a sqlite:// URL")?;
        let path = path.split('?').next().unwrap_or(path);
        let file = Self(PathBuf::from(format!("{path}.rows")));
        file.remove();
        Ok(file)
    }

    // Files that are not there need no removal, and a benchmark has no better answer to one that stays.
    fn remove(&self) {
        for suffix in ["", "-wal", "-shm"] {
            let mut name = self.0.clone().into_os_string();
            name.push(suffix);
            let _ = fs::remove_file(Path::new(&name));
        }
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        self.remove();
    }
}
