//! The loop that Tramline is compared with on Redis: a stream with a consumer group (`XADD`; `XREADGROUP`, `XACK` and `XDEL`), on several
//! connections.

use std::hint::black_box;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::redis_server::Server;
use super::row::{BoxError, RowFigures, all, median_us, rate};

/// Entries per round trip, for all commands.
const BATCH: usize = 100;
const CONNECTIONS: usize = 4;
const STREAM: &str = "bench_stream";
const GROUP: &str = "bench";

/// Connections that each add one entry at a time.
const SINGLES: usize = 16;

/// Adds and drains `events` entries in a stream of its own.
pub(super) async fn run(server: &Server, events: usize, payload: &[u8]) -> Result<RowFigures, BoxError> {
    let (stream, mut owner) = (server.key(STREAM), server.connect().await?);
    create(&mut owner, &stream).await?;
    let figures = measure(server, events, payload).await;
    remove(&mut owner, &stream).await?;
    figures
}

/// How many entries a second many connections add that each wait for their one `XADD`.
pub(super) async fn insert_singly(server: &Server, time: Duration, payload: &[u8]) -> Result<f64, BoxError> {
    let (stream, mut owner) = (server.key(STREAM), server.connect().await?);
    create(&mut owner, &stream).await?;
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..SINGLES {
        let (mut connection, stream, payload) = (server.connect().await?, stream.clone(), payload.to_vec());
        tasks.spawn(async move {
            let mut added = 0;
            while start.elapsed() < time {
                let mut add = redis::cmd("XADD");
                add.arg(&stream).arg("*").arg("p").arg(&payload);
                add.query_async::<()>(&mut connection).await?;
                added += 1;
            }
            Ok(added)
        });
    }
    let added: usize = all(tasks).await?.iter().sum();
    let figure = rate(added, start.elapsed());
    remove(&mut owner, &stream).await?;
    Ok(figure)
}

/// When the next entry is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// When the one before is in the reader's hand, who acknowledges it meanwhile: as the workers of the latency benchmark do.
    AtOnce,
    /// When the one before is acknowledged, and the server says that the reader waits again.
    WhenTheReaderWaits,
}

/// From the call of `XADD` to the return of an `XREADGROUP`, one entry at a time: the median in microseconds.
pub(super) async fn hand_over_us(
    server: &Server,
    times: usize,
    payload: &[u8],
    next: Next,
) -> Result<f64, BoxError> {
    let (stream, mut owner, mut reader) =
        (server.key(STREAM), server.connect().await?, server.connect().await?);
    create(&mut owner, &stream).await?;
    let read_from = stream.clone();
    let id: u64 = redis::cmd("CLIENT").arg("ID").query_async(&mut reader).await?;
    let (taken, mut takes) = mpsc::channel(1);
    let reading = tokio::spawn(async move {
        for _ in 0..times {
            let mut read = redis::cmd("XREADGROUP");
            read.arg("GROUP").arg(GROUP).arg("0").arg("COUNT").arg(1).arg("BLOCK").arg(5_000);
            read.arg("STREAMS").arg(&read_from).arg(">");
            let ids = ids_of(read.query_async(&mut reader).await?);
            let at = Instant::now();
            if next == Next::AtOnce {
                taken.send(at).await?;
            }
            redis::cmd("XACK").arg(&read_from).arg(GROUP).arg(&ids).query_async::<()>(&mut reader).await?;
            if next == Next::WhenTheReaderWaits {
                taken.send(at).await?;
            }
        }
        Ok::<(), BoxError>(())
    });
    let mut samples = Vec::with_capacity(times);
    for _ in 0..times {
        while next == Next::WhenTheReaderWaits && !is_blocked(&mut owner, id).await? {}
        let start = Instant::now();
        redis::cmd("XADD").arg(&stream).arg("*").arg("p").arg(payload).query_async::<()>(&mut owner).await?;
        let at = takes.recv().await.ok_or("the reader ended")?;
        samples.push(at.duration_since(start));
    }
    reading.await??;
    remove(&mut owner, &stream).await?;
    Ok(median_us(samples))
}

/// True if a connection waits in a command that blocks.
async fn is_blocked(connection: &mut MultiplexedConnection, id: u64) -> Result<bool, BoxError> {
    let line: String = redis::cmd("CLIENT").arg("LIST").arg("ID").arg(id).query_async(connection).await?;
    let flags = line.split(' ').find_map(|field| field.strip_prefix("flags=")).ok_or("the reader ended")?;
    Ok(flags.contains('b'))
}

async fn create(connection: &mut MultiplexedConnection, stream: &str) -> Result<(), RedisError> {
    remove(connection, stream).await?;
    let mut create = redis::cmd("XGROUP");
    create.arg("CREATE").arg(stream).arg(GROUP).arg("0").arg("MKSTREAM");
    create.query_async::<()>(connection).await
}

/// The median time of one write, in microseconds. How durable it is, the server's settings say.
pub(super) async fn commit_us(server: &Server, rounds: usize) -> Result<f64, BoxError> {
    let (stream, mut owner) = (server.key(STREAM), server.connect().await?);
    let mut samples = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        redis::cmd("INCR").arg(&stream).query_async::<()>(&mut owner).await?;
        samples.push(start.elapsed());
    }
    remove(&mut owner, &stream).await?;
    Ok(median_us(samples))
}

async fn remove(connection: &mut MultiplexedConnection, stream: &str) -> Result<(), RedisError> {
    redis::cmd("UNLINK").arg(stream).query_async(connection).await
}

async fn measure(server: &Server, events: usize, payload: &[u8]) -> Result<RowFigures, BoxError> {
    let start = Instant::now();
    let mut inserts = JoinSet::new();
    for number in 0..CONNECTIONS {
        let share = events / CONNECTIONS + usize::from(number < events % CONNECTIONS);
        inserts.spawn(insert(server.connect().await?, server.key(STREAM), share, payload.to_vec()));
    }
    all(inserts).await?;
    let insert = rate(events, start.elapsed());
    let start = Instant::now();
    let mut drains = JoinSet::new();
    for number in 0..CONNECTIONS {
        drains.spawn(drain(server.connect().await?, server.key(STREAM), number));
    }
    let drained: usize = all(drains).await?.iter().sum();
    let drain = rate(events, start.elapsed());
    if drained != events {
        return Err(format!("the loop added {events} entries but drained {drained}").into());
    }
    Ok(RowFigures { insert, drain })
}

async fn insert(
    mut connection: MultiplexedConnection,
    stream: String,
    events: usize,
    payload: Vec<u8>,
) -> Result<(), BoxError> {
    let mut left = events;
    while left > 0 {
        let mut batch = redis::pipe();
        for _ in 0..left.min(BATCH) {
            batch.cmd("XADD").arg(&stream).arg("*").arg("p").arg(&payload).ignore();
        }
        batch.query_async::<()>(&mut connection).await?;
        left -= left.min(BATCH);
    }
    Ok(())
}

async fn drain(
    mut connection: MultiplexedConnection,
    stream: String,
    number: usize,
) -> Result<usize, BoxError> {
    let mut drained = 0;
    loop {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg(GROUP).arg(number).arg("COUNT").arg(BATCH).arg("STREAMS").arg(&stream).arg(">");
        let ids = ids_of(read.query_async(&mut connection).await?);
        if ids.is_empty() {
            return Ok(drained);
        }
        drained += ids.len();
        let mut done = redis::pipe();
        done.cmd("XACK").arg(&stream).arg(GROUP).arg(&ids).ignore();
        done.cmd("XDEL").arg(&stream).arg(&ids).ignore();
        done.query_async::<()>(&mut connection).await?;
    }
}

/// The numbers of the entries that were read; each is a pair of number and fields, in the list of its stream.
fn ids_of(answer: Value) -> Vec<Vec<u8>> {
    let entries: Vec<Value> = match answer {
        Value::Array(streams) => streams.into_iter().flat_map(second).collect(),
        Value::Map(streams) => streams.into_iter().flat_map(|(_, entries)| items(entries)).collect(),
        _ => Vec::new(),
    };
    let id = |entry: Value| match items(entry).into_iter().next() {
        Some(Value::BulkString(id)) => Some(black_box(id)),
        _ => None,
    };
    entries.into_iter().filter_map(id).collect()
}

fn second(stream: Value) -> Vec<Value> {
    items(stream).into_iter().nth(1).map(items).unwrap_or_default()
}

fn items(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}
