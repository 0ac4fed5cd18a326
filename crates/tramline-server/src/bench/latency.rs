//! From the call of `emit` to the start of the handler, one event at a time.

use super::emit::event;
use super::row::BoxError;
use super::target::Target;
use super::{Samples, Size};
use std::time::Instant;
use tokio::sync::mpsc;
use tramline::Shutdown;

/// `latency_p50_us` and `latency_p99_us`.
pub(super) async fn measure(
    target: &Target,
    size: Size,
    round: usize,
    samples: &mut Samples,
) -> Result<(), BoxError> {
    let name = format!("latency/{round}");
    let tram = target.open().await?;
    let beside = target.open_beside(&tram).await?;
    let (started, mut starts) = mpsc::channel(1);
    let worker = beside.worker(&name).topics([name.as_str()]).on_any(move || {
        let started = started.clone();
        let at = Instant::now();
        async move { started.send(at).await.map_err(|_| "the benchmark is over") }
    });
    worker.subscribe().await?;
    let shutdown = Shutdown::new();
    let done = shutdown.clone();
    let running = tokio::spawn(async move { worker.run(done).await });
    let mut taken = Vec::with_capacity(size.handovers);
    for _ in 0..size.handovers {
        let start = Instant::now();
        tram.emit(event(&name)).await?;
        let at = starts.recv().await.ok_or("the worker ended")?;
        taken.push(at.duration_since(start).as_secs_f64() * 1e6);
    }
    shutdown.start();
    running.await??;
    taken.sort_by(f64::total_cmp);
    samples.add("latency_p50_us", taken[taken.len() / 2]);
    samples.add("latency_p99_us", taken[taken.len() * 99 / 100]);
    tram.close().await;
    Ok(())
}
