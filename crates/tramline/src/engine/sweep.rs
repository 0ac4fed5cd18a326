//! Housekeeping while something of this process runs: retention, what was deleted, dead workers, a full store, back-fills.

use crate::engine::backoff::random_share;
use crate::engine::presence::Presence;
use crate::engine::shed::shed;
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::store::verbs::{Sweep, Swept};
use crate::store::verbs_tally::SweepTallies;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often each process sweeps. With jitter, so that the processes of a fleet take turns.
const EVERY: Duration = Duration::from_secs(10);
/// How much one step removes.
const LIMIT: u32 = 1_000;
/// How many steps a sweep has at most; what is left waits for the next one.
const STEPS: usize = 50;

pub(crate) async fn keep_sweeping(presence: Arc<Presence>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = presence.clock.sleep(EVERY.mul_f64(0.75 + 0.5 * random_share())) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            swept = sweep(&presence) => {
                if let Err(error) = swept {
                    tracing::warn!(error = %error, "a sweep failed; the next one tries again");
                }
            }
        }
    }
}

/// One sweep, in bounded steps. Gives the sum of what it did.
pub(crate) async fn sweep(presence: &Presence) -> Result<Swept> {
    let mut sum = Swept::default();
    for _ in 0..STEPS {
        let sweep = Sweep { dead_after: presence.dead_after(), limit: LIMIT, now: presence.clock.now() };
        let swept = presence.store.sweep(sweep).await?;
        if swept.workers > 0 {
            tracing::warn!(workers = swept.workers, "workers were found dead; what they held is free");
        }
        presence.wake.notify(&swept.wake);
        sum.chunks += swept.chunks;
        sum.workers += swept.workers;
        sum.wake.extend(&swept.wake);
        sum.more = swept.more;
        if !swept.more {
            break;
        }
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
