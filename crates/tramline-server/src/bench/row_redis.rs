//! The loop that Tramline is compared with on Redis: a stream with a consumer group (`XADD`; `XREADGROUP`, `XACK` and `XDEL`), on several
//! connections.

use std::hint::black_box;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Client, RedisError, Value};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::row::{BoxError, RowFigures, all, median_us, rate};

/// Entries per round trip, for all commands.
const BATCH: usize = 100;
const CONNECTIONS: usize = 4;
const STREAM: &str = "tramline_bench_stream";
const GROUP: &str = "bench";

/// Connections that each add one entry at a time.
const SINGLES: usize = 16;

/// Adds and drains `events` entries in a stream of its own.
pub(super) async fn run(url: &str, events: usize, payload: &[u8]) -> Result<RowFigures, BoxError> {
    let mut owner = connect(url).await?;
    create(&mut owner).await?;
    let figures = measure(url, events, payload).await;
    remove(&mut owner).await?;
    figures
}

/// How many entries a second many connections add that each wait for their one `XADD`.
pub(super) async fn insert_singly(url: &str, time: Duration, payload: &[u8]) -> Result<f64, BoxError> {
    let mut owner = connect(url).await?;
    create(&mut owner).await?;
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..SINGLES {
        let (mut connection, payload) = (connect(url).await?, payload.to_vec());
        tasks.spawn(async move {
            let mut added = 0;
            while start.elapsed() < time {
                let mut add = redis::cmd("XADD");
                add.arg(STREAM).arg("*").arg("p").arg(&payload);
                add.query_async::<()>(&mut connection).await?;
                added += 1;
            }
            Ok(added)
        });
    }
    let added: usize = all(tasks).await?.iter().sum();
    let figure = rate(added, start.elapsed());
    remove(&mut owner).await?;
    Ok(figure)
}

/// From the call of `XADD` to the return of an `XREADGROUP` that waits for it, one entry at a time: the median in microseconds. An entry is
/// added when the one before is acknowledged and the server says that the reader waits: a worker of Tramline always listens.
pub(super) async fn hand_over_us(url: &str, times: usize, payload: &[u8]) -> Result<f64, BoxError> {
    let (mut owner, mut reader) = (connect(url).await?, connect(url).await?);
    create(&mut owner).await?;
    let id: u64 = redis::cmd("CLIENT").arg("ID").query_async(&mut reader).await?;
    let (taken, mut takes) = mpsc::channel(1);
    let reading = tokio::spawn(async move {
        for _ in 0..times {
            let mut read = redis::cmd("XREADGROUP");
            read.arg("GROUP").arg(GROUP).arg("0").arg("COUNT").arg(1).arg("BLOCK").arg(5_000);
            read.arg("STREAMS").arg(STREAM).arg(">");
            let ids = ids_of(read.query_async(&mut reader).await?);
            let at = Instant::now();
            redis::cmd("XACK").arg(STREAM).arg(GROUP).arg(&ids).query_async::<()>(&mut reader).await?;
            taken.send(at).await?;
        }
        Ok::<(), BoxError>(())
    });
    let mut samples = Vec::with_capacity(times);
    for _ in 0..times {
        while !is_blocked(&mut owner, id).await? {}
        let start = Instant::now();
        redis::cmd("XADD").arg(STREAM).arg("*").arg("p").arg(payload).query_async::<()>(&mut owner).await?;
        let at = takes.recv().await.ok_or("the reader ended")?;
        samples.push(at.duration_since(start));
    }
    reading.await??;
    remove(&mut owner).await?;
    Ok(median_us(samples))
}

/// True if a connection waits in a command that blocks.
async fn is_blocked(connection: &mut MultiplexedConnection, id: u64) -> Result<bool, BoxError> {
    let line: String = redis::cmd("CLIENT").arg("LIST").arg("ID").arg(id).query_async(connection).await?;
    let flags = line.split(' ').find_map(|field| field.strip_prefix("flags=")).ok_or("the reader ended")?;
    Ok(flags.contains('b'))
}

async fn create(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    remove(connection).await?;
    let mut create = redis::cmd("XGROUP");
    create.arg("CREATE").arg(STREAM).arg(GROUP).arg("0").arg("MKSTREAM");
    create.query_async::<()>(connection).await
}

/// The median time of one write, in microseconds. How durable it is, the server's settings say.
pub(super) async fn commit_us(url: &str, rounds: usize) -> Result<f64, BoxError> {
    let mut owner = connect(url).await?;
    let mut samples = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        redis::cmd("INCR").arg(STREAM).query_async::<()>(&mut owner).await?;
        samples.push(start.elapsed());
    }
    remove(&mut owner).await?;
    Ok(median_us(samples))
}

/// What the server needs in memory.
pub(super) async fn memory(url: &str) -> Result<i64, BoxError> {
    Ok(info(url, "memory", "used_memory:").await?.parse()?)
}

/// The version of the server.
pub(super) async fn version(url: &str) -> Result<String, BoxError> {
    info(url, "server", "redis_version:").await
}

async fn info(url: &str, section: &str, field: &str) -> Result<String, BoxError> {
    let text: String = redis::cmd("INFO").arg(section).query_async(&mut connect(url).await?).await?;
    let found = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    Ok(found.trim().to_owned())
}

/// Removes all keys of a store.
pub(super) async fn remove_store(url: &str, name: &str) -> Result<(), BoxError> {
    let mut connection = connect(url).await?;
    let mut cursor = "0".to_owned();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(format!("{{{name}}}:*")).arg("COUNT").arg(1000);
        let (next, keys): (String, Vec<Vec<u8>>) = scan.query_async(&mut connection).await?;
        if !keys.is_empty() {
            redis::cmd("UNLINK").arg(keys).query_async::<()>(&mut connection).await?;
        }
        if next == "0" {
            return Ok(());
        }
        cursor = next;
    }
}

async fn connect(url: &str) -> Result<MultiplexedConnection, RedisError> {
    // A connection that waits for an entry has to outwait it.
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
    Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
}

async fn remove(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    redis::cmd("UNLINK").arg(STREAM).query_async(connection).await
}

async fn measure(url: &str, events: usize, payload: &[u8]) -> Result<RowFigures, BoxError> {
    let start = Instant::now();
    let mut inserts = JoinSet::new();
    for number in 0..CONNECTIONS {
        let share = events / CONNECTIONS + usize::from(number < events % CONNECTIONS);
        inserts.spawn(insert(connect(url).await?, share, payload.to_vec()));
    }
    all(inserts).await?;
    let insert = rate(events, start.elapsed());
    let start = Instant::now();
    let mut drains = JoinSet::new();
    for number in 0..CONNECTIONS {
        drains.spawn(drain(connect(url).await?, number));
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
    events: usize,
    payload: Vec<u8>,
) -> Result<(), BoxError> {
    let mut left = events;
    while left > 0 {
        let mut batch = redis::pipe();
        for _ in 0..left.min(BATCH) {
            batch.cmd("XADD").arg(STREAM).arg("*").arg("p").arg(&payload).ignore();
        }
        batch.query_async::<()>(&mut connection).await?;
        left -= left.min(BATCH);
    }
    Ok(())
}

async fn drain(mut connection: MultiplexedConnection, number: usize) -> Result<usize, BoxError> {
    let mut drained = 0;
    loop {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg(GROUP).arg(number).arg("COUNT").arg(BATCH).arg("STREAMS").arg(STREAM).arg(">");
        let ids = ids_of(read.query_async(&mut connection).await?);
        if ids.is_empty() {
            return Ok(drained);
        }
        drained += ids.len();
        let mut done = redis::pipe();
        done.cmd("XACK").arg(STREAM).arg(GROUP).arg(&ids).ignore();
        done.cmd("XDEL").arg(STREAM).arg(&ids).ignore();
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
