//! Up to where logs are complete.

use crate::model::id::{ChunkId, TopicId};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Up to which chunk the log of each topic is known to be complete. Kept, so that readers of a busy topic get on.
#[derive(Debug, Default)]
pub(crate) struct Proven(Mutex<HashMap<TopicId, ChunkId>>);

impl Proven {
    pub(crate) fn get(&self, topic: TopicId) -> ChunkId {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&topic).copied().unwrap_or_default()
    }

    pub(crate) fn raise(&self, topic: TopicId, to: ChunkId) {
        let mut proven = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let chunk = proven.entry(topic).or_default();
        *chunk = to.max(*chunk);
    }
}
