//! What remote workers settle: settlements of a subscription that come at the same time are written together.

use crate::engine::clock::Clock;
use crate::engine::courier::Courier;
use crate::engine::groups::{Groups, Work};
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::store::Store;
use crate::store::verbs::{Settle, SettleSlice, Settled};
use crate::wake::Wake;
use std::sync::Arc;

/// How many slices are settled together.
const SLICES: usize = 4_096;

/// Settles, alone or with others.
#[derive(Debug)]
pub(crate) struct Returns {
    groups: Groups<Settling>,
    /// The store makes the groups.
    store_gathers: bool,
}

/// What it takes to settle.
#[derive(Debug)]
pub(crate) struct Settling {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) wake: Arc<dyn Wake>,
    pub(crate) courier: Arc<Courier>,
}

impl Returns {
    /// `store_gathers`: groups are left to the store.
    pub(crate) fn new(settling: Settling, store_gathers: bool) -> Returns {
        Returns { groups: Groups::new(settling, SLICES), store_gathers }
    }

    /// Settles, and tells whoever waits for what came of it. If the future is dropped, it may be settled or not.
    pub(crate) async fn settle(&self, settle: Settle) -> Result<Settled> {
        if settle.results.is_empty() {
            return Ok(Settled::default());
        }
        if self.store_gathers || !is_plain(&settle) {
            return self.groups.work().settle(settle).await;
        }
        let accepted = self.groups.join(settle.subscription, settle.results).await?;
        Ok(Settled { accepted, ..Settled::default() })
    }
}

/// Nothing failed and there is no order: then no settlement can spoil another one, and nobody asks who ran the events.
fn is_plain(settle: &Settle) -> bool {
    settle.results.iter().all(|one| !one.lease.is_ordered() && one.is_all_done())
}

impl Settling {
    async fn settle(&self, settle: Settle) -> Result<Settled> {
        let id = settle.subscription;
        let ordered = settle.results.iter().any(|one| one.lease.is_ordered());
        let settled = self.store.settle(settle).await?;
        self.courier.send(&settled.news);
        // A settled lane is free for the next claim, which may be waiting for just that.
        if settled.wake || ordered {
            self.wake.notify(&[id]);
        }
        Ok(settled)
    }
}

impl Work for Settling {
    type Key = SubscriptionId;
    type Wish = Vec<SettleSlice>;
    type Answer = Vec<Vec<bool>>;

    async fn carry_out(
        &self,
        id: &SubscriptionId,
        wishes: Vec<Vec<SettleSlice>>,
    ) -> Vec<Result<Vec<Vec<bool>>>> {
        let lengths: Vec<usize> = wishes.iter().map(Vec::len).collect();
        let results = wishes.into_iter().flatten().collect();
        let settle = Settle { subscription: *id, results, worker: None, now: self.clock.now() };
        match self.settle(settle).await {
            Ok(settled) => {
                let mut accepted = settled.accepted.into_iter();
                lengths.into_iter().map(|length| Ok(accepted.by_ref().take(length).collect())).collect()
            }
            Err(error) => lengths.iter().map(|_| Err(error.share())).collect(),
        }
    }

    fn size(wish: &Vec<SettleSlice>) -> usize {
        wish.len()
    }

    fn unwanted(&self, _: &SubscriptionId, _: Vec<Vec<bool>>) {}
}
