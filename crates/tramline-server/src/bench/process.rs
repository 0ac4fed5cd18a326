//! Memory and processor time of this process, as the kernel counts them.

use super::row::BoxError;
use super::target::Target;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tramline::Shutdown;

/// The most memory that the process ever had, in MiB.
pub(super) fn peak_rss_mb() -> Result<f64, BoxError> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("the kernel does not say VmHWM")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}

/// The share of one core that a process with an idle worker takes.
pub(super) async fn idle_cpu(target: &Target, time: Duration) -> Result<f64, BoxError> {
    let tram = target.open().await?;
    let shutdown = Shutdown::new();
    let worker = tram.worker("idle").topics(["idle"]).on_any(|| std::future::ready(()));
    worker.subscribe().await?;
    let done = shutdown.clone();
    let running = tokio::spawn(async move { worker.run(done).await });
    let (start, before) = (Instant::now(), cpu_ticks()?);
    tokio::time::sleep(time).await;
    let (elapsed, after) = (start.elapsed(), cpu_ticks()?);
    shutdown.start();
    running.await??;
    tram.close().await;
    // The kernel counts in hundredths of a second, whatever its own clock does.
    Ok((after - before) / elapsed.as_secs_f64())
}

/// User and system time of the process so far, in hundredths of a second.
pub(super) fn cpu_ticks() -> Result<f64, BoxError> {
    ticks_of(Path::new("/proc/self"))
}

/// Where the kernel tells of the thread that asks.
pub(super) fn this_thread() -> std::io::Result<PathBuf> {
    Ok(Path::new("/proc").join(std::fs::read_link("/proc/thread-self")?))
}

/// User and system time of a process or a thread so far, in hundredths of a second.
pub(super) fn ticks_of(place: &Path) -> Result<f64, BoxError> {
    let stat = std::fs::read_to_string(place.join("stat"))?;
    // The name of the program may hold spaces; it ends with the last parenthesis.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
    field(11)
        .zip(field(12))
        .map(|(user, system)| user + system)
        .ok_or_else(|| "the kernel does not say cpu times".into())
}
