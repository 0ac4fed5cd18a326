//! What Tramline is compared with: the classic queue of one table row per job. Every job is inserted, marked as
//! taken, and deleted, and each of these steps is as durable as Tramline's own commits.

use std::time::Duration;

/// Any failure of a benchmark; it is only ever shown to the person who started it.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How fast the row loop is on one store, in events per second.
pub(super) struct RowFigures {
    /// Rows inserted, in batches.
    pub(super) insert: f64,
    /// Rows claimed and then deleted, in batches.
    pub(super) drain: f64,
}

/// Events per second.
pub(super) fn rate(events: usize, elapsed: Duration) -> f64 {
    events as f64 / elapsed.as_secs_f64()
}

/// The median in microseconds; zero when nothing was measured.
pub(super) fn median_us(mut samples: Vec<Duration>) -> f64 {
    samples.sort_unstable();
    samples.get(samples.len() / 2).map_or(0.0, |median| median.as_secs_f64() * 1e6)
}

/// Waits for all tasks; the first failure ends the others.
pub(super) async fn all<T: 'static>(
    mut tasks: tokio::task::JoinSet<Result<T, BoxError>>,
) -> Result<Vec<T>, BoxError> {
    let mut results = Vec::new();
    while let Some(result) = tasks.join_next().await {
        results.push(result??);
    }
    Ok(results)
}
