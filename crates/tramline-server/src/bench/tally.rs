//! Tallies: adding, acking in order, looking, and what they take on disk, beside one row per item.

use super::row::{BoxError, rate};
use super::target::Target;
use super::{Samples, Size, tally_row};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tramline::{Event, NewTally, TallyId, Tramline};

/// Callers that add or ack at the same time, each waiting for its answer.
const CALLERS: usize = 16;
/// How many items a caller adds at a time, and acks at a time.
const ADD: u64 = 10_000;
const ACK: u64 = 100;
/// How many items the row loop has.
const ROWS: usize = 1_000_000;
/// How many events are drained, with and without a tally, and how many are emitted at a time.
const EVENTS: usize = 200_000;
const UNIT: usize = 1_000;
/// How often a tally is looked at.
const LOOKS: usize = 21;

/// Measures everything once: the numbers are large enough to be stable.
pub(super) async fn measure(target: &Target, size: Size, samples: &mut Samples) -> Result<(), BoxError> {
    let [on_file, on_server] = size.tallied;
    let items = if matches!(target, Target::Sqlite { .. }) { on_file } else { on_server };
    samples.add("tally_items", items as f64);
    let tram = target.open().await?;
    let before = target.bytes().await?;
    let tally = tram.tallies().open(NewTally::new()).await?.id;
    let start = Instant::now();
    tram.tallies().add(tally, items).await?;
    samples.add("tally_add_once_ms", start.elapsed().as_secs_f64() * 1e3);
    tram.tallies().seal(tally, Some(items)).await?;
    ack_in_order(&tram, tally, items, samples).await?;
    samples.add("tally_bytes_per_item", (target.bytes().await? - before) as f64 / items as f64);
    touch_everything(target, &tram, items, samples).await?;
    add_in_chunks(&tram, items, samples).await?;
    drain(&tram, samples).await?;
    tram.close().await;
    let rows = tally_row::run(target, ROWS, CALLERS).await?;
    samples.add("tally_row_add_items", rows.add);
    samples.add("tally_row_ack_items", rows.ack);
    samples.add("tally_row_get_ms", rows.get_ms);
    samples.add("tally_row_bytes_per_item", rows.bytes_per_item);
    Ok(())
}

/// `tally_add_items`: in chunks of 10,000, as Carlyle's clients add.
async fn add_in_chunks(tram: &Tramline, items: u64, samples: &mut Samples) -> Result<(), BoxError> {
    let tally = tram.tallies().open(NewTally::new()).await?.id;
    let start = Instant::now();
    in_chunks(
        tram,
        items / ADD,
        move |tram, _| async move { tram.tallies().add(tally, ADD).await.map(|_| ()) },
    )
    .await?;
    samples.add("tally_add_items", rate(items as usize, start.elapsed()));
    tram.tallies().delete(tally).await?;
    Ok(())
}

/// `tally_ack_items`: in chunks of 100 in the order of the numbers; `tally_get_ms` while half of them are acked.
async fn ack_in_order(
    tram: &Tramline,
    tally: TallyId,
    items: u64,
    samples: &mut Samples,
) -> Result<(), BoxError> {
    let completed = Arc::new(AtomicU64::new(0));
    let ack = |from: u64| {
        let completed = completed.clone();
        move |tram: Tramline, chunk: u64| {
            let (first, completed) = (from + chunk * ACK, completed.clone());
            async move {
                let acked = tram.tallies().done(tally, [first..=first + ACK - 1]).await?;
                completed.fetch_add(acked.completed.len() as u64, Ordering::Relaxed);
                Ok(())
            }
        }
    };
    let half = items / 2;
    let mut took = Duration::ZERO;
    for from in [0, half] {
        let start = Instant::now();
        in_chunks(tram, half / ACK, ack(from)).await?;
        took += start.elapsed();
        if from == 0 {
            samples.add("tally_get_ms", look(tram, tally).await?);
        }
    }
    samples.add("tally_ack_items", rate(items as usize, took));
    let tally = tram.tallies().get(tally).await?;
    if completed.load(Ordering::Relaxed) != 1 || !tally.is_complete() || tally.done != items {
        return Err(format!("{completed:?} calls were told of {tally:?}").into());
    }
    Ok(())
}

/// `tally_worst_get_ms`, `tally_worst_bytes_per_item`: one item of every part is acked, so that every part is under way.
async fn touch_everything(
    target: &Target,
    tram: &Tramline,
    items: u64,
    samples: &mut Samples,
) -> Result<(), BoxError> {
    const PART: u64 = 4_096;
    let before = target.bytes().await?;
    let tally = tram.tallies().open(NewTally::new()).await?.id;
    tram.tallies().add(tally, items).await?;
    in_chunks(tram, items.div_ceil(PART * ACK), move |tram, chunk| async move {
        let parts = chunk * ACK..(chunk + 1) * ACK;
        let numbers = parts.map(|part| part * PART).filter(|number| *number < items);
        tram.tallies().done(tally, numbers).await.map(|_| ())
    })
    .await?;
    samples.add("tally_worst_get_ms", look(tram, tally).await?);
    samples.add("tally_worst_bytes_per_item", (target.bytes().await? - before) as f64 / items as f64);
    Ok(())
}

/// `tally_drain`: events that are items, until their tally is complete; `tally_drain_without`: the same events, one of which is one.
async fn drain(tram: &Tramline, samples: &mut Samples) -> Result<(), BoxError> {
    for (metric, every) in [("tally_drain_without", EVENTS), ("tally_drain", 1)] {
        let worker = tram.worker(metric).topics([metric]).concurrency(64).on_any(|| std::future::ready(()));
        worker.subscribe().await?;
        let tally = tram.tallies().open(NewTally::new()).await?.id;
        for first in (0..EVENTS).step_by(UNIT) {
            let event = |n: usize| {
                let event = Event::new(metric, vec![b'x'; super::PAYLOAD]);
                // The last one, where there is one only: then both end with the last event.
                if (n + 1).is_multiple_of(every) { event.tally(tally) } else { event }
            };
            tram.emit((first..first + UNIT).map(event).collect::<Vec<_>>()).await?;
        }
        tram.tallies().seal(tally, Some((EVENTS / every) as u64)).await?;
        let start = Instant::now();
        worker.run_until(tram.tallies().wait(tally, std::future::pending())).await?;
        samples.add(metric, rate(EVENTS, start.elapsed()));
    }
    Ok(())
}

/// The median time of looking at a tally, in milliseconds.
async fn look(tram: &Tramline, tally: TallyId) -> Result<f64, BoxError> {
    let mut took = Vec::with_capacity(LOOKS);
    for _ in 0..LOOKS {
        let start = Instant::now();
        tram.tallies().get(tally).await?;
        took.push(start.elapsed());
    }
    took.sort_unstable();
    Ok(took[LOOKS / 2].as_secs_f64() * 1e3)
}

/// Lets callers work off chunks, each taking the next one.
async fn in_chunks<F>(
    tram: &Tramline,
    chunks: u64,
    call: impl Fn(Tramline, u64) -> F + Clone + Send + 'static,
) -> Result<(), BoxError>
where
    F: Future<Output = tramline::Result<()>> + Send,
{
    let next = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (tram, next, call) = (tram.clone(), next.clone(), call.clone());
        callers.spawn(async move {
            loop {
                let chunk = next.fetch_add(1, Ordering::Relaxed);
                if chunk >= chunks {
                    return Ok::<(), tramline::Error>(());
                }
                call(tram.clone(), chunk).await?;
            }
        });
    }
    while let Some(done) = callers.join_next().await {
        done??;
    }
    Ok(())
}
