//! Housekeeping while something of this process runs: retention, what was deleted, dead workers, a full store, back-fills.

use crate::engine::backoff::random_share;
use crate::engine::presence::Presence;
use crate::engine::shed::shed;
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::store::verbs::{BURIALS, Bury, Sweep, Swept};
use crate::store::verbs_tally::SweepTallies;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often each process sweeps. With jitter, so that the processes of a fleet take turns.
const EVERY: Duration = Duration::from_secs(10);
/// How much one step removes.
const LIMIT: u32 = 1_000;
/// How many steps a sweep has at most; what is left waits for the next one, which comes soon.
const STEPS: usize = 50;
const SOON: Duration = Duration::from_secs(1);
/// After a step the housekeeping rests for so many times as long as it took: whoever works meanwhile keeps most of the store.
const REST: u32 = 10;

pub(crate) async fn keep_sweeping(presence: Arc<Presence>, stop: CancellationToken) {
    let mut pause = EVERY;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = presence.clock.sleep(pause.mul_f64(0.75 + 0.5 * random_share())) => {}
        }
        let swept = tokio::select! {
            () = stop.cancelled() => return,
            swept = sweep_at(&presence, REST) => swept,
        };
        pause = if swept.as_ref().is_ok_and(|swept| swept.more) { SOON } else { EVERY };
        if let Err(error) = swept {
            tracing::warn!(error = %error, "a sweep failed; the next one tries again");
        }
    }
}

/// Ends what dead workers held as soon as a heartbeat has found them: a sweep is too long in coming.
pub(crate) async fn keep_burying(presence: Arc<Presence>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = presence.deaths.notified() => {}
        }
        let buried = tokio::select! {
            () = stop.cancelled() => return,
            buried = bury(&presence) => buried,
        };
        if let Err(error) = buried {
            tracing::warn!(error = %error, "what dead workers held could not be freed; the next heartbeat tries again");
        }
    }
}

async fn bury(presence: &Presence) -> Result<()> {
    while let Some(dead_after) = presence.dead_after() {
        let bury = Bury { dead_after, limit: BURIALS, now: presence.clock.now() };
        let buried = presence.store.bury(bury).await?;
        tell_of_dead(buried.workers);
        presence.wake.notify(&buried.wake);
        if !buried.more {
            break;
        }
    }
    Ok(())
}

fn tell_of_dead(workers: u64) {
    if workers > 0 {
        tracing::warn!(workers, "workers were found dead; what they held is free");
    }
}

/// One sweep at once, in bounded steps. Gives the sum of what it did.
pub(crate) async fn sweep(presence: &Presence) -> Result<Swept> {
    sweep_at(presence, 0).await
}

/// A sweep that rests after each step.
async fn sweep_at(presence: &Presence, rest: u32) -> Result<Swept> {
    let mut sum = Swept::default();
    for _ in 0..STEPS {
        let sweep = Sweep { dead_after: presence.dead_after(), limit: LIMIT, now: presence.clock.now() };
        let began = Instant::now();
        let swept = presence.store.sweep(sweep).await?;
        tell_of_dead(swept.workers);
        presence.wake.notify(&swept.wake);
        sum.chunks += swept.chunks;
        sum.workers += swept.workers;
        sum.wake.extend(&swept.wake);
        sum.more = swept.more;
        if !swept.more {
            break;
        }
        // By the real clock: a test's time may stand still.
        tokio::time::sleep(began.elapsed() * rest).await;
    }
    shed(presence).await?;
    look_after_tallies(presence).await?;
    sum.wake.sort_unstable();
    sum.wake.dedup();
    for &subscription in &sum.wake {
        back_fill(presence, subscription).await?;
    }
    Ok(sum)
}

/// Expires, proves and removes tallies, and delivers what a process that died could not.
async fn look_after_tallies(presence: &Presence) -> Result<()> {
    let kept = presence.care.kept;
    for _ in 0..STEPS {
        let (keep_open, keep_sealed) = (kept.open, kept.sealed);
        let sweep = SweepTallies { keep_open, keep_sealed, limit: LIMIT, now: presence.clock.now() };
        let swept = presence.store.sweep_tallies(sweep).await?;
        if swept.repaired > 0 {
            tracing::warn!(
                tallies = swept.repaired,
                "tallies had lost count and were put right; please report this"
            );
        }
        if !swept.more {
            break;
        }
    }
    presence.care.courier.deliver_all().await.map(|_| ())
}

/// Writes retained events into a new subscription. Its own workers do this too; here it is for those that have none.
async fn back_fill(presence: &Presence, subscription: SubscriptionId) -> Result<()> {
    for _ in 0..STEPS {
        if !presence.store.backfill(subscription).await? {
            return Ok(());
        }
        presence.wake.notify(&[subscription]);
    }
    Ok(())
}
