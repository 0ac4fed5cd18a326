//! For workers in other processes, whose claims and outcomes come over a network.

use crate::engine::claim::Again;
use crate::engine::tramline::Tramline;
use crate::error::Result;
use crate::model::id::{EventId, Incarnation, SubscriptionId};
use crate::model::lane::{Known, Share};
use crate::model::lease::Lease;
use crate::model::outcome::Outcome;
use crate::store::verbs::{Claim, Claimed, Extend, Extended, Release, Settle, SettleSlice, Suspects};
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// A hint may be lost: look at least this often.
const SLOW_POLL: Duration = Duration::from_secs(1);
/// How much of a back-fill a single claim does, at most, before it answers with nothing.
const BACKFILLS: usize = 64;
/// How often an extension is tried while a transaction has the lease.
const EXTENSIONS: usize = 10;

/// What a remote worker wants.
#[derive(Clone, Debug)]
pub struct Take {
    /// Whose events.
    pub subscription: SubscriptionId,
    /// Who takes them: a random one for each claim, so that an ordered lane gives nothing more while another claim has
    /// unsettled work of it.
    pub owner: Incarnation,
    /// At most this many.
    pub max_events: u32,
    /// Not much more than this; at least one event is given whatever it weighs.
    pub max_bytes: usize,
    /// For how long. `None`: as the policy says.
    pub lease: Option<Duration>,
}

impl Tramline {
    /// Takes events for a remote worker. If there are none, waits for some until `give_up` is done; then the answer is empty. A
    /// suspect is given only when there is nothing else, and alone.
    ///
    /// Dropping the future may leave events claimed until their lease ends: let `give_up` end it instead.
    ///
    /// # Errors
    /// `NotFound` when the subscription is gone, `Unavailable` when the store does not answer.
    pub async fn take(&self, take: &Take, give_up: impl Future<Output = ()> + Send) -> Result<Claimed> {
        let mut listener = self.wake().listen(take.subscription);
        tokio::pin!(give_up);
        let mut backfills = 0;
        let mut again = Again::default();
        loop {
            listener.arm();
            let claimed = self.take_now(take).await?;
            let again = again.after(claimed.passed_over, 0);
            if !claimed.slices.is_empty() {
                return Ok(claimed);
            }
            if claimed.backfilling && backfills < BACKFILLS {
                backfills += 1;
                self.store().backfill(take.subscription).await?;
                continue;
            }
            backfills = 0;
            let due = claimed.next_due.map_or(SLOW_POLL, |due| due.since(claimed.now).min(SLOW_POLL));
            tokio::select! {
                biased;
                () = &mut give_up => return Ok(claimed),
                () = listener.wait() => {}
                () = self.clock().sleep(due) => {}
                () = tokio::time::sleep(again.unwrap_or(SLOW_POLL)), if again.is_some() => {}
            }
        }
    }

    pub(crate) async fn take_now(&self, take: &Take) -> Result<Claimed> {
        let mut claimed = self.takes().claim(self.claim_for(take, Suspects::Leave)).await?;
        self.courier().send(&claimed.news);
        if claimed.slices.is_empty() && claimed.suspects_wait {
            claimed = self.store().claim(self.claim_for(take, Suspects::TakeOne)).await?;
            self.courier().send(&claimed.news);
        }
        Ok(claimed)
    }

    fn claim_for(&self, take: &Take, suspects: Suspects) -> Claim {
        Claim {
            subscription: take.subscription,
            owner: take.owner,
            max_events: take.max_events,
            max_bytes: take.max_bytes,
            lease: take.lease,
            suspects,
            share: Share::ALL,
            known: Known::All,
            single: false,
            now: self.clock().now(),
        }
    }

    /// Writes the outcomes of remote workers back. Says for each whether it was taken; `false`: the lease on the event was lost, and
    /// nothing was changed. Repeating it after a lost answer is harmless. `worker`: who ran them, kept with what failed.
    ///
    /// # Errors
    /// `Invalid` when an event is done together with an earlier one of its key that must run again; `NotFound`, `Unavailable`.
    pub async fn settle(
        &self,
        subscription: SubscriptionId,
        outcomes: Vec<(EventId, Lease, Outcome)>,
        worker: Option<Arc<str>>,
    ) -> Result<Vec<bool>> {
        let (results, places) = by_lease(outcomes);
        let settle = Settle { subscription, results, worker, now: self.clock().now() };
        let settled = self.returns().settle(settle).await?;
        let accepted = |(slice, at): (usize, usize)| -> bool {
            settled.accepted.get(slice).and_then(|slice| slice.get(at)).copied().unwrap_or(false)
        };
        Ok(places.into_iter().map(|place| place.is_some_and(accepted)).collect())
    }

    /// Makes leases of remote workers last longer.
    ///
    /// # Errors
    /// `NotFound`, `Unavailable`.
    pub async fn extend(
        &self,
        subscription: SubscriptionId,
        leases: Vec<Lease>,
        lease: Option<Duration>,
    ) -> Result<Vec<Extended>> {
        let extend = Extend { subscription, leases, lease, now: self.clock().now() };
        let mut extended = self.store().extend(extend.clone()).await?;
        for _ in 0..EXTENSIONS {
            if !extended.contains(&Extended::Locked) {
                break;
            }
            self.clock().sleep(Duration::from_millis(5)).await;
            extended = self.store().extend(extend.clone()).await?;
        }
        Ok(extended)
    }

    /// Gives back what remote workers have not settled, at once and uncounted. Leases that are lost are passed over; says how many
    /// were not.
    ///
    /// # Errors
    /// `NotFound`, `Unavailable`.
    pub async fn release(&self, subscription: SubscriptionId, leases: Vec<Lease>) -> Result<u64> {
        let count = self.store().release(Release { subscription, leases, now: self.clock().now() }).await?;
        self.wake().notify(&[subscription]);
        Ok(count)
    }
}

/// Outcomes in groups of one lease, and where each one went. `None`: the lease is not of that event.
type Grouped = (Vec<SettleSlice>, Vec<Option<(usize, usize)>>);

fn by_lease(outcomes: Vec<(EventId, Lease, Outcome)>) -> Grouped {
    let mut slices: Vec<SettleSlice> = Vec::new();
    let mut known: HashMap<Lease, usize> = HashMap::new();
    let mut places = Vec::with_capacity(outcomes.len());
    for (id, lease, outcome) in outcomes {
        if id.chunk() != lease.chunk {
            places.push(None);
            continue;
        }
        let slice = *known.entry(lease).or_insert_with(|| {
            slices.push(SettleSlice { lease, outcomes: Vec::new() });
            slices.len() - 1
        });
        places.push(Some((slice, slices[slice].outcomes.len())));
        slices[slice].outcomes.push((id.index(), outcome));
    }
    (slices, places)
}
