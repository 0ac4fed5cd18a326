//! Lanes: the unit of ordered parallelism, and who holds them.

use crate::model::id::{Incarnation, LaneId, SubscriptionId, TopicId};
use crate::model::lease::Lease;
use crate::model::time::Time;

/// How many lanes a topic has unless it says otherwise.
pub const DEFAULT_LANES: u32 = 32;

/// The hash of a key: CRC-32 (IEEE). Pinned for ever, because it decides the lane of events already stored, and
/// simple enough to be computed inside any database.
pub fn hash(key: &str) -> u32 {
    crc32fast::hash(key.as_bytes())
}

/// The lane of a key in a topic.
pub fn of(topic: TopicId, lanes: u32, key: &str) -> LaneId {
    LaneId::of(topic, hash(key) % lanes.max(1))
}

/// The lease of one lane of one subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Whose lane it is.
    pub subscription: SubscriptionId,
    /// Which lane.
    pub lane: LaneId,
    /// Who holds it, if anybody.
    pub owner: Option<Incarnation>,
    /// Grows with every new owner; what was taken under another epoch is not leased.
    pub epoch: i64,
    /// The end of the lease.
    pub until: Time,
    /// Nothing of the lane may start before: set while a failed event halts the lane.
    pub halted_until: Time,
    /// How many slices are taken under this epoch. At zero the lane is given up.
    pub leased: i64,
    /// How many parked keys and gaps the lane has, so that lanes without any cost no look-up.
    pub marks: i64,
}

impl Lane {
    /// True while nobody but the owner may take from the lane.
    pub fn is_held(&self, now: Time) -> bool {
        self.owner.is_some() && self.until > now
    }

    /// True if `lease` is the current one of this lane.
    pub fn is_under(&self, lease: &Lease) -> bool {
        self.lane == lease.lane && self.owner == Some(lease.owner) && self.epoch == lease.epoch
    }

    /// True if `owner` may take from the lane now.
    pub fn is_open_to(&self, owner: Incarnation, now: Time) -> bool {
        self.halted_until <= now && (!self.is_held(now) || self.owner == Some(owner))
    }
}

/// Which lanes a worker prefers: those whose number leaves `index` when divided by `of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The worker's place in birth order, from 0.
    pub index: u32,
    /// How many workers are alive.
    pub of: u32,
    /// True when the worker has nothing else to do and may take other workers' lanes too.
    pub help: bool,
}

impl Share {
    /// All lanes.
    pub const ALL: Share = Share { index: 0, of: 1, help: true };

    /// True if the lane is the worker's own.
    pub fn prefers(self, lane: LaneId) -> bool {
        lane.number() % self.of.max(1) == self.index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_key_never_changes() {
        assert_eq!(hash("order:42"), 0x4e9e_b32b);
        assert_eq!(hash(""), 0);
        assert_eq!(hash("123456789"), 0xcbf4_3926);
    }

    #[test]
    fn every_lane_is_preferred_by_exactly_one_worker() {
        for workers in 1..9 {
            for lane in 0..64 {
                let lane = LaneId::of(TopicId(1), lane);
                let owners =
                    (0..workers).filter(|&index| Share { index, of: workers, help: false }.prefers(lane));
                assert_eq!(owners.count(), 1);
            }
        }
    }
}
