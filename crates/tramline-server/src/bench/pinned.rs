//! PostgreSQL while a foreign transaction stays open: nothing that was deleted since can be cleared away, and every index scan meets it.

use super::Samples;
use super::load::{Load, Shape};
use super::row::BoxError;
use super::target::Target;
use sqlx::{Connection, Executor, PgConnection};
use std::time::{Duration, Instant};

/// Emitters, as in a small web service.
const CALLERS: usize = 16;
/// How often the backlog is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// For how long the transaction is open, and how many events per second come meanwhile.
#[derive(Clone, Copy)]
pub(super) struct Pin {
    pub(super) time: Duration,
    pub(super) rate: f64,
}

/// `pinned_*` without order and `pinned_keyed_*` with it: the largest backlog in seconds of work, how many events per second came, and the
/// delay of 99 of 100 events in the first and in the last tenth of the time.
pub(super) async fn measure(target: &Target, pin: Pin, samples: &mut Samples) -> Result<(), BoxError> {
    let Target::Postgres { server, .. } = target else {
        return Err("the pin is measured on PostgreSQL; name one with --store".into());
    };
    let plain = ["pinned_backlog_s", "pinned_rate", "pinned_first_p99_ms", "pinned_last_p99_ms"];
    let keyed = [
        "pinned_keyed_backlog_s",
        "pinned_keyed_rate",
        "pinned_keyed_first_p99_ms",
        "pinned_keyed_last_p99_ms",
    ];
    for (ordered, metrics) in [(false, plain), (true, keyed)] {
        let foreign = hold_snapshot(server).await?;
        let figures = watch(target, pin, ordered).await?;
        foreign.close().await?;
        metrics.iter().zip(figures).for_each(|(metric, figure)| samples.add(metric, figure));
    }
    Ok(())
}

/// A transaction with a snapshot and a number, as a report or a forgotten session has them.
async fn hold_snapshot(server: &str) -> Result<PgConnection, BoxError> {
    let mut foreign = PgConnection::connect(server).await?;
    foreign.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
    foreign.execute("SELECT pg_current_xact_id()").await?;
    Ok(foreign)
}

async fn watch(target: &Target, pin: Pin, ordered: bool) -> Result<[f64; 4], BoxError> {
    let shape = Shape { callers: CALLERS, rate: Some(pin.rate), ordered };
    let name = if ordered { "pinned-keyed" } else { "pinned" };
    let load = Load::start(target, name, shape).await?;
    let (start, mut most, mut first) = (Instant::now(), 0, None);
    while start.elapsed() < pin.time {
        tokio::time::sleep(LOOK).await;
        most = most.max(load.backlog());
        if first.is_none() && start.elapsed() >= pin.time / 10 {
            first = Some(load.p99_ms());
        }
        if start.elapsed() < pin.time * 9 / 10 && start.elapsed() + LOOK >= pin.time * 9 / 10 {
            load.p99_ms();
        }
    }
    let rate = load.emitted() as f64 / start.elapsed().as_secs_f64();
    let last = load.p99_ms();
    load.stop().await?;
    Ok([most as f64 / pin.rate, rate, first.unwrap_or(f64::NAN), last])
}
