//! Claimed events, cut into batches.

use crate::model::id::{EventId, SubscriptionId};
use crate::model::lease::Lease;
use crate::push::Sending;
use crate::store::verbs::Claimed;

/// The events of one request, in the order of their ids, and the lease of each.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) events: Vec<Sending>,
    pub(super) leases: Vec<Lease>,
}

impl Batch {
    /// Names the batch: receivers take what they have seen under a name for done. So the same events of a subscription have the same
    /// name however often they are sent, and another one whenever they are replayed.
    pub(super) fn id(&self, subscription: SubscriptionId) -> String {
        let mut which = crc32fast::Hasher::new();
        for (sending, lease) in self.events.iter().zip(&self.leases) {
            which.update(&sending.event.id.0.to_be_bytes());
            which.update(&if sending.replayed { lease.replay() } else { 0 }.to_be_bytes());
        }
        format!("{subscription}-{}-{}-{:08x}", self.first(), self.events.len(), which.finalize())
    }

    pub(super) fn first(&self) -> EventId {
        self.events.first().map_or(EventId(0), |one| one.event.id)
    }

    pub(super) fn last(&self) -> EventId {
        self.events.last().map_or(EventId(0), |one| one.event.id)
    }
}

/// Cuts what was claimed into batches of at most `size` events.
pub(super) fn cut(claimed: Claimed, size: u32) -> Vec<Batch> {
    let mut all: Vec<(Sending, Lease)> = Vec::new();
    for slice in claimed.slices {
        let (lease, attempt, replayed) = (slice.lease, slice.attempts + 1, slice.replayed);
        let sending = |one: crate::store::verbs::ClaimedEvent| {
            (Sending { event: one.event, attempt, skipped: one.skipped, replayed }, lease)
        };
        all.extend(slice.events.into_iter().map(sending));
    }
    all.sort_by_key(|(sending, _)| sending.event.id);
    let mut batches = Vec::with_capacity(all.len().div_ceil(size.max(1) as usize));
    let mut rest = all.into_iter();
    loop {
        let (events, leases): (Vec<_>, Vec<_>) = rest.by_ref().take(size.max(1) as usize).unzip();
        if events.is_empty() {
            return batches;
        }
        batches.push(Batch { events, leases });
    }
}
