//! Retention beside full load: how much slower events are worked while old ones are removed.

use super::Samples;
use super::emit::{bulk, event};
use super::load::{Load, Shape};
use super::row::BoxError;
use super::target::Target;
use std::time::{Duration, Instant};
use tramline::{EventId, TopicSettings, Tramline};

/// Callers that emit as fast as they can.
const CALLERS: usize = 64;
/// How long the load is counted at a time while nothing is removed: twice before and twice after.
const WINDOW: Duration = Duration::from_secs(60);
/// How often it is looked whether something was removed.
const LOOK: Duration = Duration::from_millis(100);
const TOPIC: &str = "retained";
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// `retention_load_without` and `retention_load_beside`: events per second that are emitted one by one and worked, before and after, and
/// while the housekeeping of the same process removes `events` old ones; `retention_removed`: how many it removes per second.
pub(super) async fn measure(target: &Target, events: usize, samples: &mut Samples) -> Result<(), BoxError> {
    let tram = target.open().await?;
    keep_for(&tram, YEAR).await?;
    bulk(&tram, target.tasks(), events, |_| event(TOPIC)).await?;
    let load = Load::start(target, "beside", Shape { callers: CALLERS, rate: None, ordered: false }).await?;
    // The first seconds are for warming up.
    count(&load).await;
    for _ in 0..2 {
        samples.add("retention_load_without", count(&load).await);
    }
    let oldest = oldest(&tram, EventId(0)).await?;
    keep_for(&tram, Duration::ZERO).await?;
    until(&tram, |found| found != oldest).await?;
    let (start, before) = (Instant::now(), load.handled());
    until(&tram, |found| found.is_none()).await?;
    let (took, handled) = (start.elapsed().as_secs_f64(), load.handled() - before);
    samples.add("retention_load_beside", handled as f64 / took);
    samples.add("retention_removed", events as f64 / took);
    for _ in 0..2 {
        samples.add("retention_load_without", count(&load).await);
    }
    load.stop().await?;
    tram.close().await;
    Ok(())
}

async fn count(load: &Load) -> f64 {
    let (start, before) = (Instant::now(), load.handled());
    tokio::time::sleep(WINDOW).await;
    (load.handled() - before) as f64 / start.elapsed().as_secs_f64()
}

async fn keep_for(tram: &Tramline, retention: Duration) -> Result<(), BoxError> {
    let settings = TopicSettings { retention: Some(retention), ..TopicSettings::default() };
    tram.put_topic(TOPIC, settings).await?;
    Ok(())
}

/// The oldest event behind one.
async fn oldest(tram: &Tramline, after: EventId) -> Result<Option<EventId>, BoxError> {
    Ok(tram.read_log(TOPIC, after, 1).await?.events.first().map(|event| event.id))
}

/// Waits until the oldest event that is left is as wanted. Looks no further back than the last time: what was removed there is only in the
/// way, and passing over it would be part of the load.
async fn until(tram: &Tramline, wanted: impl Fn(Option<EventId>) -> bool) -> Result<(), BoxError> {
    let mut after = EventId(0);
    loop {
        let found = oldest(tram, after).await?;
        if wanted(found) {
            return Ok(());
        }
        after = found.map_or(after, |found| EventId(found.0 - 1));
        tokio::time::sleep(LOOK).await;
    }
}
