//! Who claims over HTTP from this node: in memory only, and bounded.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::{Duration, Instant};
use tramline::Incarnation;

/// How many claims can still be told by the name of their worker.
const CLAIMS: usize = 10_000;
/// How many workers are remembered, and for how long.
const WORKERS: usize = 1_000;
const REMEMBERED: Duration = Duration::from_secs(300);

/// The workers that claim over HTTP, and the claims that are known to be theirs.
#[derive(Default)]
pub(crate) struct Workers {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    seen: HashMap<(Arc<str>, Arc<str>), Seen>,
    owners: HashMap<Incarnation, Arc<str>>,
    order: VecDeque<Incarnation>,
}

#[derive(Clone, Copy)]
struct Seen {
    first: Instant,
    last: Instant,
    claims: u64,
}

/// A worker as it was last seen.
pub(crate) struct HttpWorker {
    pub(crate) name: Arc<str>,
    pub(crate) subscription: Arc<str>,
    pub(crate) claims: u64,
    pub(crate) known_for: Duration,
    pub(crate) idle_for: Duration,
}

impl Workers {
    /// A worker claims.
    pub(crate) fn claims(&self, worker: &str, subscription: &Arc<str>, owner: Incarnation) {
        let now = Instant::now();
        let worker: Arc<str> = worker.into();
        let mut inner = self.lock();
        if inner.order.len() >= CLAIMS
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.owners.remove(&oldest);
        }
        inner.order.push_back(owner);
        inner.owners.insert(owner, worker.clone());
        if inner.seen.len() >= WORKERS {
            inner.seen.retain(|_, seen| now - seen.last < REMEMBERED);
        }
        if inner.seen.len() < WORKERS || inner.seen.contains_key(&(worker.clone(), subscription.clone())) {
            let new = Seen { first: now, last: now, claims: 0 };
            let seen = inner.seen.entry((worker, subscription.clone())).or_insert(new);
            seen.last = now;
            seen.claims += 1;
        }
    }

    /// The name of the worker behind a claim.
    pub(crate) fn name(&self, owner: Incarnation) -> Option<Arc<str>> {
        self.lock().owners.get(&owner).cloned()
    }

    /// Who claimed in the last minutes, by name.
    pub(crate) fn list(&self) -> Vec<HttpWorker> {
        let now = Instant::now();
        let mut inner = self.lock();
        inner.seen.retain(|_, seen| now - seen.last < REMEMBERED);
        let worker = |((name, subscription), seen): (&(Arc<str>, Arc<str>), &Seen)| HttpWorker {
            name: name.clone(),
            subscription: subscription.clone(),
            claims: seen.claims,
            known_for: now - seen.first,
            idle_for: now - seen.last,
        };
        let mut list: Vec<HttpWorker> = inner.seen.iter().map(worker).collect();
        list.sort_by(|a, b| (&a.name, &a.subscription).cmp(&(&b.name, &b.subscription)));
        list
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded() {
        let workers = Workers::default();
        for number in 0..(CLAIMS as i64 + 5) {
            workers.claims(&format!("w{number}"), &"queue".into(), Incarnation(number));
        }
        assert_eq!(workers.list().len(), WORKERS);
        assert_eq!(workers.name(Incarnation(0)), None);
        assert_eq!(workers.name(Incarnation(CLAIMS as i64)).as_deref(), Some("w10000"));
    }
}
