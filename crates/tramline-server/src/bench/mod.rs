//! `tramline bench`: what this machine and store can do, beside a queue of one row per job in the same run.
//!
//! - `row`, `row_sqlite`, `row_postgres`, `row_mysql`, `row_redis`: what Tramline is compared with
//! - `target`: a private place in the store that is measured; `redis_server`: where that is on Redis
//! - `emit`, `drain`, `latency`: what is measured of the library
//! - `tally`, `tally_row`: what is measured of tallies, and one row per item beside it
//! - `wakes`: what hints cost that come ten times
//! - `pinned`, `retention`: what is measured of a database under stress, with `load` meanwhile
//! - `push`: what is measured of push, beside a bare client
//! - `http`: what is measured of the server, beside a bare endpoint (`bare`)
//! - `process`, `queries`: memory, processor time and statements

mod bare;
mod drain;
mod emit;
mod http;
mod latency;
mod load;
mod pinned;
mod process;
mod push;
mod queries;
mod redis_server;
mod retention;
mod row;
mod row_mysql;
mod row_postgres;
mod row_redis;
mod row_sqlite;
mod tally;
mod tally_row;
mod target;
mod wakes;

pub(crate) use queries::QueryCounter;
pub(crate) use row::BoxError;

use pinned::Pin;
use row_redis::Next;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use target::Target;

pub(crate) const EXAMPLES: &str = "Examples:
  tramline bench --quick
  tramline bench --store postgres://tramline@db/app --json figures.json
  tramline bench --store redis://host --quick --only emit,drain";

/// What is logged. A store is opened a hundred times: what it doubts of its server each time is for the doctor.
pub(crate) const LOG_LEVEL: &str = "warn,tramline::store::redis::opening=error,tramline::store::mysql=error";

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The server to measure: sqlite://path, postgres://user@host/db, mysql://user@host/db or redis://host (a Cluster: redis://a,b,c). A file, schema, database or name of its own is made and removed
    #[arg(long, env = "TRAMLINE_STORE", default_value = "sqlite://tramline.db")]
    store: String,
    /// Where to write the figures
    #[arg(long)]
    json: Option<PathBuf>,
    /// Fewer events: done within 90 seconds
    #[arg(long)]
    quick: bool,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// `pinned`: for how many seconds the transaction is open, with order and without; 300 unless set, 60 with --quick
    #[arg(long)]
    pin_seconds: Option<u64>,
    /// `pinned`: how many events per second come meanwhile
    #[arg(long, default_value_t = 800)]
    pin_rate: u32,
    /// `retention`: how many old events are removed; 100 million unless set, 2 million with --quick
    #[arg(long)]
    retained: Option<usize>,
    /// `wakes`: what carries the hints, such as nats://host:4222, redis://host:6379 or postgres://host/db; in the process unless set
    #[arg(long)]
    wake: Option<String>,
    /// Record traces meanwhile and send them here by OTLP over HTTP, to see what that costs
    #[arg(long)]
    pub(crate) otlp_endpoint: Option<String>,
    /// The share of the traces that is recorded, from 0 to 1
    #[arg(long, default_value_t = 1.0)]
    pub(crate) otlp_sample: f64,
}

/// What can be measured by itself.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The row loop and one durable commit: what the rest is compared with.
    Rows,
    /// Single emits.
    Emit,
    /// Emits in bulk and workers without order.
    Drain,
    /// Workers with order.
    Keyed,
    /// From emit to handler.
    Latency,
    /// Small and large backlogs.
    Backlog,
    /// Statements, writes, idling and memory.
    Cost,
    /// The server.
    Http,
    /// Many topics at once, and on a Redis Cluster how its nodes share that; only when named.
    Topics,
    /// Tallies; only when named.
    Tally,
    /// Push; only when named.
    Push,
    /// Hints that come ten times; only when named.
    Wakes,
    /// PostgreSQL while a foreign transaction stays open; only when named.
    Pinned,
    /// Retention beside full load; only when named.
    Retention,
}

impl Part {
    fn has_to_be_named(self) -> bool {
        let named = [Part::Topics, Part::Tally, Part::Push, Part::Wakes, Part::Pinned, Part::Retention];
        named.contains(&self)
    }
}

/// How much is measured.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub(super) rounds: usize,
    /// Events per round of the row loop, `emit_bulk` and `drain`.
    pub(super) events: usize,
    /// How long single emits are counted.
    pub(super) singles: Duration,
    /// Hand-overs that are timed one by one.
    pub(super) handovers: usize,
    pub(super) backlog: usize,
    pub(super) idle: Duration,
    /// Items of a tally, on SQLite and on servers.
    pub(super) tallied: [u64; 2],
    /// How long a foreign transaction is open.
    pin: Pin,
    /// Old events that are removed beside the load.
    retained: usize,
}

const FULL: Size = Size {
    rounds: 5,
    events: 400_000,
    singles: Duration::from_secs(3),
    handovers: 2000,
    backlog: 10_000_000,
    idle: Duration::from_secs(10),
    tallied: [100_000_000, 10_000_000],
    pin: Pin { time: Duration::from_secs(300), rate: 800.0 },
    retained: 100_000_000,
};
const QUICK: Size = Size {
    rounds: 3,
    events: 100_000,
    singles: Duration::from_millis(700),
    handovers: 500,
    backlog: 1_000_000,
    idle: Duration::from_secs(4),
    tallied: [10_000_000, 2_000_000],
    pin: Pin { time: Duration::from_secs(60), rate: 800.0 },
    retained: 2_000_000,
};

/// What takes a file a second takes some servers ten.
const QUICK_ON_SERVER: Size = Size { events: 50_000, handovers: 200, ..QUICK };

/// How many commits are timed one by one.
const COMMITS: usize = 200;

/// The size of a payload, in bytes.
pub(super) const PAYLOAD: usize = 100;

#[derive(Serialize)]
struct Report {
    store: String,
    versions: BTreeMap<&'static str, String>,
    metrics: BTreeMap<&'static str, f64>,
}

/// Samples of every metric; the medians are reported.
#[derive(Default)]
pub(super) struct Samples(BTreeMap<&'static str, Vec<f64>>);

impl Samples {
    pub(super) fn add(&mut self, metric: &'static str, value: f64) {
        tracing::info!(metric, value, "measured");
        self.0.entry(metric).or_default().push(value);
    }

    fn medians(self) -> BTreeMap<&'static str, f64> {
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        self.0.into_iter().map(|(metric, values)| (metric, median(values))).collect()
    }
}

/// Measures everything and reports.
pub(crate) async fn run(args: Args, queries: QueryCounter) -> Result<(), BoxError> {
    let target = Target::create(&args.store).await?;
    let size = match (args.quick, &target) {
        (false, _) => FULL,
        (true, Target::Sqlite { .. }) => QUICK,
        (true, _) => QUICK_ON_SERVER,
    };
    let named = |part| args.only.contains(&part);
    let wanted = |part: Part| named(part) || (args.only.is_empty() && !part.has_to_be_named());
    let size = Size {
        pin: Pin {
            time: args.pin_seconds.map_or(size.pin.time, Duration::from_secs),
            rate: f64::from(args.pin_rate.max(1)),
        },
        retained: args.retained.unwrap_or(size.retained),
        ..size
    };
    let measured = measure(&target, args.wake.as_deref(), size, &queries, wanted).await;
    let versions = BTreeMap::from([
        ("tramline", env!("CARGO_PKG_VERSION").to_owned()),
        ("store", target.version().await?),
    ]);
    target.remove().await?;
    let report = Report { store: target.kind().to_owned(), versions, metrics: measured?.medians() };
    if let Some(path) = args.json {
        std::fs::write(path, serde_json::to_string_pretty(&report)?)?;
    }
    let mut out = std::io::stdout();
    for (metric, value) in &report.metrics {
        writeln!(out, "{metric:<26} {value:>16.3}")?;
    }
    Ok(())
}

/// The rounds of the row loop and of Tramline alternate, so that both meet the same machine.
async fn measure(
    target: &Target,
    wake: Option<&str>,
    size: Size,
    queries: &QueryCounter,
    wanted: impl Fn(Part) -> bool,
) -> Result<Samples, BoxError> {
    let mut samples = Samples::default();
    for round in 0..size.rounds {
        if wanted(Part::Rows) {
            row_loop(target, size, &mut samples).await?;
        }
        if wanted(Part::Emit) {
            emit::singles(target, size, round, &mut samples).await?;
        }
        if wanted(Part::Drain) {
            drain::bulk(target, size, round, &mut samples).await?;
        }
        if wanted(Part::Keyed) {
            drain::keyed(target, size, round, &mut samples).await?;
        }
        // On both sides of the hand-overs: how long a commit takes changes from one second to the next.
        if wanted(Part::Rows) || wanted(Part::Latency) {
            row_latency(target, size, &mut samples).await?;
        }
        if wanted(Part::Latency) {
            latency::measure(target, size, round, &mut samples).await?;
            row_latency(target, size, &mut samples).await?;
        }
        if wanted(Part::Backlog) {
            drain::backlog_small(target, round, &mut samples).await?;
        }
    }
    if wanted(Part::Backlog) {
        drain::backlog_large(target, size, &mut samples).await?;
    }
    if wanted(Part::Cost) {
        drain::statements(target, size, queries, &mut samples).await?;
        for _ in 0..size.rounds {
            samples.add("idle_cpu_percent", process::idle_cpu(target, size.idle).await?);
        }
        samples.add("peak_rss_mb", process::peak_rss_mb()?);
    }
    if wanted(Part::Http) {
        // After the memory of the library was read: the clients are part of this process.
        for round in 0..size.rounds {
            http::measure(target, size, round, &mut samples).await?;
        }
    }
    if wanted(Part::Topics) {
        for round in 0..size.rounds {
            drain::topics(target, size, round, &mut samples).await?;
        }
    }
    if wanted(Part::Push) {
        for round in 0..size.rounds {
            push::measure(target, size, round, &mut samples).await?;
        }
        push::isolation(target, size, &mut samples).await?;
    }
    if wanted(Part::Wakes) {
        for round in 0..size.rounds {
            wakes::measure(target, wake, size, round, &mut samples).await?;
        }
    }
    if wanted(Part::Pinned) {
        pinned::measure(target, size.pin, &mut samples).await?;
    }
    if wanted(Part::Retention) {
        retention::measure(target, size.retained, &mut samples).await?;
    }
    if wanted(Part::Tally) {
        tally::measure(target, size, &mut samples).await?;
    }
    Ok(samples)
}

async fn row_loop(target: &Target, size: Size, samples: &mut Samples) -> Result<(), BoxError> {
    let payload = [b'x'; PAYLOAD];
    let figures = match target {
        Target::Sqlite { url } => row_sqlite::run(url, size.events, &payload).await?,
        Target::Postgres { server, .. } => row_postgres::run(server, size.events, &payload).await?,
        Target::Mysql { url, .. } => row_mysql::run(url, size.events, &payload).await?,
        Target::Redis { server, .. } => row_redis::run(server, size.events, &payload).await?,
    };
    samples.add("row_insert", figures.insert);
    samples.add("row_drain", figures.drain);
    if let Target::Redis { server, .. } = target {
        samples.add("row_insert_16", row_redis::insert_singly(server, size.singles, &payload).await?);
    }
    Ok(())
}

/// `commit_us`, and `row_latency_p50_us` where a plain server hands rows over by itself; on Redis also `row_latency_waiting_p50_us`, where
/// the reader has nothing else to do.
async fn row_latency(target: &Target, size: Size, samples: &mut Samples) -> Result<(), BoxError> {
    let payload = [b'x'; PAYLOAD];
    let commit = match target {
        Target::Sqlite { url } => row_sqlite::commit_us(url, COMMITS).await?,
        Target::Postgres { server, .. } => row_postgres::commit_us(server, COMMITS).await?,
        Target::Mysql { url, .. } => row_mysql::commit_us(url, COMMITS).await?,
        Target::Redis { server, .. } => row_redis::commit_us(server, COMMITS).await?,
    };
    samples.add("commit_us", commit);
    let handover = match target {
        Target::Postgres { server, .. } => {
            row_postgres::hand_over_us(server, size.handovers, &payload).await?
        }
        Target::Redis { server, .. } => {
            let waiting = Next::WhenTheReaderWaits;
            let waiting = row_redis::hand_over_us(server, size.handovers, &payload, waiting).await?;
            samples.add("row_latency_waiting_p50_us", waiting);
            row_redis::hand_over_us(server, size.handovers, &payload, Next::AtOnce).await?
        }
        Target::Sqlite { .. } | Target::Mysql { .. } => return Ok(()),
    };
    samples.add("row_latency_p50_us", handover);
    Ok(())
}
