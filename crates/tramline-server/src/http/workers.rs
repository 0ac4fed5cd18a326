//! Who claims over HTTP: what this node has seen since it last told the store, bounded; and the names behind its latest claims.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;
use tramline::store::verbs::{REMEMBERED, Seen};
use tramline::{Incarnation, SubscriptionId, Tramline};

/// How many claims can still be told by the name of their worker.
const CLAIMS: usize = 10_000;
/// How many workers this node tells of.
const WORKERS: usize = 1_000;

/// The workers that claim over HTTP, and the claims that are known to be theirs.
#[derive(Default)]
pub(crate) struct Workers {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    seen: HashMap<(Arc<str>, SubscriptionId), Sight>,
    owners: HashMap<Incarnation, Arc<str>>,
    order: VecDeque<Incarnation>,
}

struct Sight {
    last: Instant,
    /// Claims that the store does not know of.
    untold: u64,
}

impl Workers {
    /// A worker claims.
    pub(crate) fn claims(&self, worker: &str, subscription: SubscriptionId, owner: Incarnation) {
        let worker: Arc<str> = worker.into();
        let mut inner = self.lock();
        if inner.order.len() >= CLAIMS
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.owners.remove(&oldest);
        }
        inner.order.push_back(owner);
        inner.owners.insert(owner, worker.clone());
        inner.see(worker, subscription, 1);
    }

    /// The name of the worker behind a claim.
    pub(crate) fn name(&self, owner: Incarnation) -> Option<Arc<str>> {
        self.lock().owners.get(&owner).cloned()
    }

    /// Tells the store who was seen since the last time, so that all nodes know.
    pub(crate) async fn tell(&self, tram: &Tramline) {
        let untold = self.lock().take_untold();
        if untold.is_empty() {
            return;
        }
        if let Err(error) = tram.see_remote(untold.clone()).await {
            tracing::debug!(error = %error, "the store was not told who works; the next time");
            self.lock().put_back(untold);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn see(&mut self, worker: Arc<str>, subscription: SubscriptionId, claims: u64) {
        let now = Instant::now();
        if self.seen.len() >= WORKERS {
            self.seen.retain(|_, sight| now - sight.last < REMEMBERED);
        }
        if self.seen.len() < WORKERS || self.seen.contains_key(&(worker.clone(), subscription)) {
            let new = Sight { last: now, untold: 0 };
            let sight = self.seen.entry((worker, subscription)).or_insert(new);
            sight.last = now;
            sight.untold += claims;
        }
    }

    fn take_untold(&mut self) -> Vec<Seen> {
        let mut untold = Vec::new();
        for ((name, subscription), sight) in self.seen.iter_mut().filter(|(_, sight)| sight.untold > 0) {
            let claims = std::mem::take(&mut sight.untold);
            untold.push(Seen { name: name.to_string(), subscription: *subscription, claims });
        }
        untold
    }

    fn put_back(&mut self, untold: Vec<Seen>) {
        for seen in untold {
            self.see(seen.name.into(), seen.subscription, seen.claims);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded() {
        let workers = Workers::default();
        for number in 0..(CLAIMS as i64 + 5) {
            workers.claims(&format!("w{number}"), SubscriptionId(1), Incarnation(number));
        }
        assert_eq!(workers.lock().take_untold().len(), WORKERS);
        assert_eq!(workers.name(Incarnation(0)), None);
        assert_eq!(workers.name(Incarnation(CLAIMS as i64)).as_deref(), Some("w10000"));
    }

    #[test]
    fn what_could_not_be_told_is_told_the_next_time() {
        let workers = Workers::default();
        workers.claims("ada", SubscriptionId(1), Incarnation(1));
        let untold = workers.lock().take_untold();
        workers.lock().put_back(untold);
        workers.claims("ada", SubscriptionId(1), Incarnation(2));
        let seen = Seen { name: "ada".into(), subscription: SubscriptionId(1), claims: 2 };
        assert_eq!(workers.lock().take_untold(), [seen]);
        assert_eq!(workers.lock().take_untold(), []);
    }
}
