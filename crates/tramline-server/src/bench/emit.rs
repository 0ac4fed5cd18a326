//! Emitting: one event at a time from many callers, and many events at a time.

use super::row::{BoxError, rate};
use super::target::Target;
use super::{PAYLOAD, Samples, Size};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tramline::{Event, Tramline};

/// How many events one bulk emit holds.
pub(super) const BULK: usize = 1024;

/// An event of the usual size.
pub(super) fn event(topic: &str) -> Event {
    Event::new(topic, vec![b'x'; PAYLOAD]).kind("bench")
}

/// `emit_single_*`: concurrent callers that each wait for their event to be stored.
pub(super) async fn singles(
    target: &Target,
    size: Size,
    round: usize,
    samples: &mut Samples,
) -> Result<(), BoxError> {
    let tram = target.open().await?;
    for (metric, callers) in [("emit_single_1", 1), ("emit_single_16", 16), ("emit_single_256", 256)] {
        let topic = format!("singles/{callers}/{round}");
        samples.add(metric, emit_singly(&tram, &topic, callers, size.singles).await?);
    }
    tram.close().await;
    Ok(())
}

async fn emit_singly(tram: &Tramline, topic: &str, callers: usize, time: Duration) -> Result<f64, BoxError> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (tram, event) = (tram.clone(), event(topic));
        tasks.spawn(async move {
            let mut emitted = 0;
            while start.elapsed() < time {
                tram.emit(event.clone()).await?;
                emitted += 1;
            }
            Ok::<usize, tramline::Error>(emitted)
        });
    }
    let mut emitted = 0;
    while let Some(done) = tasks.join_next().await {
        emitted += done??;
    }
    Ok(rate(emitted, start.elapsed()))
}

/// Emits `events` events made by `make`, one at a time, from many callers.
pub(super) async fn concurrently(
    tram: &Tramline,
    callers: usize,
    events: usize,
    make: impl Fn(usize) -> Event + Clone + Send + 'static,
) -> Result<(), BoxError> {
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let (tram, make) = (tram.clone(), make.clone());
        tasks.spawn(async move {
            for n in (caller..events).step_by(callers) {
                tram.emit(make(n)).await?;
            }
            Ok::<(), tramline::Error>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Emits `events` events made by `make`, in bulk, from as many callers as the store likes. Gives events per second.
pub(super) async fn bulk(
    tram: &Tramline,
    callers: usize,
    events: usize,
    make: impl Fn(usize) -> Event + Clone + Send + 'static,
) -> Result<f64, BoxError> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let (tram, make) = (tram.clone(), make.clone());
        tasks.spawn(async move {
            // Whole groups, so that each begins where a multiple of their size does.
            let groups = events.div_ceil(BULK);
            let begin = |caller: usize| (groups * caller / callers * BULK).min(events);
            let (mut next, end) = (begin(caller), begin(caller + 1));
            while next < end {
                let until = (next + BULK).min(end);
                tram.emit((next..until).map(&make).collect::<Vec<_>>()).await?;
                next = until;
            }
            Ok::<(), tramline::Error>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(rate(events, start.elapsed()))
}
