//! Hints between the emitters and workers of one process.

use crate::model::id::SubscriptionId;
use crate::wake::{Bells, Listener, Wake};

/// Hints that stay in this process.
#[derive(Debug, Default)]
pub struct InProcess {
    bells: Bells,
}

impl InProcess {
    /// Hints that nobody has given yet.
    pub fn new() -> InProcess {
        InProcess::default()
    }
}

impl Wake for InProcess {
    fn notify(&self, subscriptions: &[SubscriptionId]) {
        self.bells.ring(subscriptions);
    }

    fn listen(&self, to: SubscriptionId) -> Listener {
        self.bells.listen(to)
    }

    fn listen_to_all(&self) -> Listener {
        self.bells.listen_to_all()
    }
}
