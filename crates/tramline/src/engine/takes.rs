//! What remote workers claim: claims of a subscription that come at the same time go to the store together.

use crate::engine::groups::{Groups, Work};
use crate::error::{Error, Result};
use crate::model::id::SubscriptionId;
use crate::store::Store;
use crate::store::verbs::{Claim, Claimed, Release, Suspects};
use crate::wake::Wake;
use std::sync::Arc;
use std::time::Duration;

/// How many events are claimed together.
const EVENTS: usize = 4_096;

/// Claims, alone or with others.
#[derive(Debug)]
pub(crate) struct Takes {
    groups: Groups<Claiming>,
}

#[derive(Debug)]
struct Claiming {
    store: Arc<dyn Store>,
    wake: Arc<dyn Wake>,
}

/// Claims that differ in nothing but who wants how much.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Alike {
    subscription: SubscriptionId,
    lease: Option<Duration>,
    max_bytes: usize,
}

impl Takes {
    pub(crate) fn new(store: Arc<dyn Store>, wake: Arc<dyn Wake>) -> Takes {
        Takes { groups: Groups::new(Claiming { store, wake }, EVENTS) }
    }

    /// Claims, for an owner that has no other claim. If the future is dropped, what others claim together with it is not touched; what it
    /// would have brought is given back, or is free when its lease ends.
    pub(crate) async fn claim(&self, claim: Claim) -> Result<Claimed> {
        let store = &self.groups.work().store;
        if claim.now.is_some()
            || claim.suspects != Suspects::Leave
            || !store.claims_together(claim.subscription)
        {
            return store.claim(claim).await;
        }
        let Claim { subscription, lease, max_bytes, .. } = claim;
        match self.groups.join(Alike { subscription, lease, max_bytes }, claim.clone()).await? {
            Some(claimed) => Ok(claimed),
            None => store.claim(claim).await,
        }
    }
}

impl Work for Claiming {
    type Key = Alike;
    type Wish = Claim;
    /// `None`: it has to be claimed alone, by whoever wants it.
    type Answer = Option<Claimed>;

    async fn carry_out(&self, _: &Alike, wishes: Vec<Claim>) -> Vec<Result<Option<Claimed>>> {
        match <[Claim; 1]>::try_from(wishes) {
            Ok([lone]) => vec![self.store.claim(lone).await.map(Some)],
            Err(wishes) => {
                let count = wishes.len();
                let share = |error: Error| (0..count).map(|_| Err(error.share())).collect();
                self.store.claim_together(wishes).await.unwrap_or_else(share)
            }
        }
    }

    fn size(wish: &Claim) -> usize {
        wish.max_events as usize
    }

    fn unwanted(&self, key: &Alike, claimed: Option<Claimed>) {
        let leases: Vec<_> = claimed.iter().flat_map(|it| &it.slices).map(|slice| slice.lease).collect();
        if leases.is_empty() {
            return;
        }
        // Without a runtime nobody can give them back.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (store, wake, subscription) = (self.store.clone(), self.wake.clone(), key.subscription);
        runtime.spawn(async move {
            match store.release(Release { subscription, leases, now: None }).await {
                Ok(_) => wake.notify(&[subscription]),
                Err(error) => {
                    tracing::debug!(error = %error, "events could not be given back; they are free when their lease ends");
                }
            }
        });
    }
}
