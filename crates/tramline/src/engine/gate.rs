//! The gate for suspects: an event that may end its process runs with nothing else in flight in that process.

use std::sync::Arc;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, watch};

/// Shared by all workers of a process. Normal work holds it shared, a suspect alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    lock: Arc<RwLock<()>>,
    /// How many want to be alone. Others finish what they have when they see it.
    wanting: Arc<watch::Sender<usize>>,
}

impl Gate {
    /// Waits until nobody is alone.
    pub(crate) async fn shared(&self) -> OwnedRwLockReadGuard<()> {
        self.lock.clone().read_owned().await
    }

    /// Asks everybody to finish, and waits until this one is alone.
    pub(crate) async fn alone(&self) -> OwnedRwLockWriteGuard<()> {
        let _wanting = Wanting::new(&self.wanting);
        self.lock.clone().write_owned().await
    }

    /// True while somebody waits to be alone.
    pub(crate) fn is_wanted(&self) -> bool {
        *self.wanting.borrow() > 0
    }

    /// Waits until somebody wants to be alone. Cancel-safe.
    pub(crate) async fn wanted(&self) {
        // Fails only when the sender is gone, which `self` keeps.
        let _ = self.wanting.subscribe().wait_for(|wanting| *wanting > 0).await;
    }
}

/// Counts down even if the wait is dropped.
struct Wanting<'a>(&'a watch::Sender<usize>);

impl<'a> Wanting<'a> {
    fn new(wanting: &'a watch::Sender<usize>) -> Wanting<'a> {
        wanting.send_modify(|count| *count += 1);
        Wanting(wanting)
    }
}

impl Drop for Wanting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
