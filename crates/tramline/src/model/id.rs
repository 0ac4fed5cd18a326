//! Numbers that name things. Each kind has its own type, so that they cannot be mixed up.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub i64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// An event: `chunk * 64 + index`. Ascends within a topic, with gaps; greater than the id of its predecessor.
    EventId
}
number! {
    /// Up to 64 events that were emitted together.
    ChunkId
}
number! {
    /// A topic, never reused.
    TopicId
}
number! {
    /// A subscription, never reused: a re-created one of the same name has another number.
    SubscriptionId
}
number! {
    /// What one subscription still has to do of one chunk; never reused.
    SliceId
}
number! {
    /// One life of one process (or one claim over HTTP): random, so that a restarted owner is another owner.
    Incarnation
}
number! {
    /// A lane of one topic: `topic * 4096 + lane`. Zero stands for "not ordered".
    LaneId
}

number! {
    /// A tally, never reused.
    TallyId
}

/// The greatest number of lanes that a topic can have.
pub const MAX_LANES: u32 = 4096;

impl EventId {
    /// The id of the event at `index` of `chunk`.
    pub const fn at(chunk: ChunkId, index: u32) -> EventId {
        EventId(chunk.0 * 64 + index as i64)
    }

    /// The chunk that holds the event.
    pub const fn chunk(self) -> ChunkId {
        ChunkId(self.0.div_euclid(64))
    }

    /// Where in its chunk the event is.
    pub const fn index(self) -> u32 {
        self.0.rem_euclid(64) as u32
    }
}

impl LaneId {
    /// The lane of events in subscriptions that are not ordered.
    pub const UNORDERED: LaneId = LaneId(0);

    /// The one lane of a subscription that gets all its events in the order of their arrival, whatever their topic.
    pub const WHOLE: LaneId = LaneId(1);

    /// The lane `number` of a topic.
    pub const fn of(topic: TopicId, number: u32) -> LaneId {
        LaneId(topic.0 * MAX_LANES as i64 + number as i64)
    }

    /// Which lane of its topic this is.
    pub const fn number(self) -> u32 {
        self.0.rem_euclid(MAX_LANES as i64) as u32
    }

    /// The topic that the lane belongs to.
    pub const fn topic(self) -> TopicId {
        TopicId(self.0.div_euclid(MAX_LANES as i64))
    }
}

impl TallyId {
    /// Where hints about the tally are heard. Subscriptions are numbered from 1, so negative numbers are free, and hints about
    /// tallies travel like those about work.
    pub(crate) const fn bell(self) -> SubscriptionId {
        SubscriptionId(-self.0)
    }
}

impl Incarnation {
    /// A new random owner.
    ///
    /// # Panics
    /// When the operating system has no random numbers to give; nothing can run safely then.
    pub fn random() -> Incarnation {
        let bits = getrandom::u64().expect("the operating system provides random numbers");
        Incarnation((bits >> 1).max(1).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_id_holds_its_chunk_and_index() {
        let id = EventId::at(ChunkId(7), 63);
        assert_eq!((id.chunk(), id.index()), (ChunkId(7), 63));
        assert!(id < EventId::at(ChunkId(8), 0));
    }

    #[test]
    fn a_lane_id_holds_its_topic_and_number() {
        let lane = LaneId::of(TopicId(3), 4095);
        assert_eq!((lane.topic(), lane.number()), (TopicId(3), 4095));
    }
}
