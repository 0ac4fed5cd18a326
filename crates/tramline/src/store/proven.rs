//! Up to where logs are complete.

use crate::model::id::{ChunkId, TopicId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

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

/// The same for one server at a time. One that takes over after another may lack what that one showed: there nothing is known, or readers
/// would pass over what it still writes below.
#[derive(Debug, Default)]
pub(crate) struct ProvenOn(Mutex<(i64, Arc<Proven>)>);

impl ProvenOn {
    /// What is known of this server. Whoever still asks the one before adds to what that one showed, and to nothing else.
    pub(crate) fn server(&self, server: i64) -> Arc<Proven> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != server {
            *known = (server, Arc::default());
        }
        known.1.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: TopicId = TopicId(1);

    #[test]
    fn what_one_server_showed_is_not_known_of_the_next_one() {
        let known = ProvenOn::default();
        let late = known.server(1);
        late.raise(TOPIC, ChunkId(10));
        assert_eq!(known.server(1).get(TOPIC), ChunkId(10));
        assert_eq!(known.server(2).get(TOPIC), ChunkId(0));
        // A reader that had asked the old server before it was gone.
        late.raise(TOPIC, ChunkId(20));
        assert_eq!(known.server(2).get(TOPIC), ChunkId(0));
        assert_eq!(known.server(1).get(TOPIC), ChunkId(0));
    }
}
