//! From the call of `emit` to the start of the handler, one event at a time.

use super::emit::event;
use super::row::BoxError;
use super::target::Target;
use super::{Samples, Size};
use std::time::Instant;
use tokio::sync::mpsc;
use tramline::{Shutdown, Tramline};

/// `latency_p50_us` and `latency_p99_us`: on a server the worker has a handle of its own, as it would have in another process. Then
/// also `latency_local_p50_us` and `latency_local_p99_us`, where emitter and worker share one.
pub(super) async fn measure(
    target: &Target,
    size: Size,
    round: usize,
    samples: &mut Samples,
) -> Result<(), BoxError> {
    let tram = target.open().await?;
    let beside = target.open_beside(&tram).await?;
    let [p50, p99] = hand_over(&tram, &beside, &format!("latency/{round}"), size.handovers).await?;
    samples.add("latency_p50_us", p50);
    samples.add("latency_p99_us", p99);
    if target.tasks() > 1 {
        beside.close().await;
        let [p50, p99] = hand_over(&tram, &tram, &format!("local/{round}"), size.handovers).await?;
        samples.add("latency_local_p50_us", p50);
        samples.add("latency_local_p99_us", p99);
    }
    tram.close().await;
    Ok(())
}

/// The median and the 99th percentile, in microseconds.
async fn hand_over(
    tram: &Tramline,
    beside: &Tramline,
    name: &str,
    times: usize,
) -> Result<[f64; 2], BoxError> {
    let (started, mut starts) = mpsc::channel(1);
    let worker = beside.worker(name).topics([name]).on_any(move || {
        let started = started.clone();
        let at = Instant::now();
        async move { started.send(at).await.map_err(|_| "the benchmark is over") }
    });
    worker.subscribe().await?;
    let shutdown = Shutdown::new();
    let done = shutdown.clone();
    let running = tokio::spawn(async move { worker.run(done).await });
    let mut taken = Vec::with_capacity(times);
    for _ in 0..times {
        let start = Instant::now();
        tram.emit(event(name)).await?;
        let at = starts.recv().await.ok_or("the worker ended")?;
        taken.push(at.duration_since(start).as_secs_f64() * 1e6);
    }
    shutdown.start();
    running.await??;
    taken.sort_by(f64::total_cmp);
    Ok([taken[taken.len() / 2], taken[taken.len() * 99 / 100]])
}
