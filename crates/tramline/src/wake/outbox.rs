//! Hints on their way to other processes: rung here at once, and gathered for whoever sends them on.

use crate::model::id::SubscriptionId;
use crate::wake::Bells;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// What one process has to tell the others. Many hints are sent as one.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(crate) bells: Bells,
    pending: Mutex<Option<BTreeSet<SubscriptionId>>>,
    filled: Notify,
}

impl Outbox {
    /// Rings the bells of this process, and keeps the hint for the others.
    pub(crate) fn notify(&self, subscriptions: &[SubscriptionId]) {
        self.bells.ring(subscriptions);
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.get_or_insert_default().extend(subscriptions);
        self.filled.notify_one();
    }

    /// True if there is something to send.
    pub(crate) fn is_filled(&self) -> bool {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Waits for something to send, and takes it.
    pub(crate) async fn take(&self) -> BTreeSet<SubscriptionId> {
        loop {
            self.filled.notified().await;
            let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(pending) = pending {
                return pending;
            }
        }
    }
}
