//! Runs the commands of events that follow each other.

use super::event::Claimed;
use super::pool::Pool;
use super::settle;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use tramline::Outcome;

/// Events, and for each what stops its command.
pub(super) type Row = Vec<(Claimed, CancellationToken)>;

/// Runs one after the other. What follows one that is not done is left: it must not overtake.
pub(super) async fn run(pool: Arc<Pool>, row: Row, ended: settle::To) {
    let mut go_on = true;
    for (event, stop) in row {
        if !go_on || pool.stopping.is_cancelled() || stop.is_cancelled() {
            pool.leave(&event.lease).await;
            continue;
        }
        let started = Instant::now();
        let outcome = match execute(&pool, &event, &stop).await {
            // It must not begin again, so this is how it ended.
            None if pool.setup.consumed => Some(Outcome::dead("killed: its worker was stopped")),
            outcome => outcome,
        };
        match outcome {
            Some(outcome) => {
                let done = outcome.is_done();
                go_on = settle::hand_over(&ended, event, outcome, started.elapsed()).await && done;
            }
            None => {
                go_on = false;
                pool.report.stopped(&event);
                pool.leave(&event.lease).await;
            }
        }
    }
}

/// `None` when the command was stopped. One that takes too long has failed.
async fn execute(pool: &Pool, event: &Claimed, stop: &CancellationToken) -> Option<Outcome> {
    let (input, details) = (event.input(), event.details(&pool.setup.subscription));
    let limit = pool.setup.time_limit;
    let late_or_stopped = async {
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(limit.unwrap_or(Duration::MAX)), if limit.is_some() => {}
        }
    };
    match (pool.command.execute(&input, &details, late_or_stopped).await, limit) {
        (None, Some(limit)) if !stop.is_cancelled() => {
            let limit = humantime::format_duration(limit);
            Some(Outcome::retry(format!("killed: it took longer than {limit}")))
        }
        (ended, _) => ended,
    }
}
