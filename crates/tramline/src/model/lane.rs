//! Lanes: the unit of ordered parallelism, and who holds them.

use crate::model::id::{Incarnation, LaneId, SubscriptionId, TopicId};
use crate::model::lease::Lease;
use crate::model::slice::Slice;
use crate::model::subscription::{Ordering, Topic};
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

/// The lane of an event in a subscription that orders like this; `keyless` is for events without a key.
pub(crate) fn within(ordering: Ordering, topic: &Topic, key: Option<&str>, keyless: u32) -> LaneId {
    match (ordering, key) {
        (Ordering::None, _) => LaneId::UNORDERED,
        (Ordering::Subscriber, _) => LaneId::WHOLE,
        (Ordering::Key, Some(key)) => of(topic.id, topic.lanes, key),
        (Ordering::Key, None) => LaneId::of(topic.id, keyless % topic.lanes.max(1)),
    }
}

/// The lanes that a subscription has of a topic: the first, and how many. A line of all events has one, whatever the topic.
pub(crate) fn all(ordering: Ordering, topic: &Topic) -> (LaneId, u32) {
    match ordering {
        Ordering::None => (LaneId::UNORDERED, 0),
        Ordering::Subscriber => (LaneId::WHOLE, 1),
        Ordering::Key => (LaneId::of(topic.id, 0), topic.lanes),
    }
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

    /// True if `owner` may take from the lane now. In a line of all events one batch follows the other, whoever takes it.
    pub fn is_open_to(&self, owner: Incarnation, known: &Known, now: Time) -> bool {
        let own = self.owner == Some(owner);
        let may_add = own && (self.lane != LaneId::WHOLE || known.forgotten(self));
        self.halted_until <= now && (!self.is_held(now) || may_add) && !(own && known.closed(self))
    }

    /// True if somebody took the slice before, and it failed or was given back. A replay begins at an epoch that no lane reaches.
    pub fn has_had(&self, slice: &Slice) -> bool {
        (1..=self.epoch).contains(&slice.epoch)
    }

    /// True if the lease on the lane has ended and nobody has seen to it: its time is over, or `owner`, who asks, has it in
    /// the books and knows nothing of it.
    pub fn is_lapsed(&self, owner: Incarnation, known: &Known, now: Time) -> bool {
        let forgotten = self.owner == Some(owner) && known.forgotten(self);
        self.owner.is_some() && (self.until <= now || forgotten)
    }
}

/// What a worker knows of the lanes that are its own in the books of the store. The two differ when an answer was lost, or when
/// the worker gave something up because it could not extend its lease in time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Known {
    /// All that is in the books.
    #[default]
    All,
    /// These lanes. It will never settle what it has in others, so their leases have ended.
    Only(Vec<Held>),
}

/// A lane that a worker knows to be its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Which lane.
    pub lane: LaneId,
    /// Under which epoch.
    pub epoch: i64,
    /// True if nothing more is to be taken from it: it may hold events that the worker knows nothing of, which become free when
    /// the worker has settled all that it does know of.
    pub closed: bool,
}

impl Known {
    fn forgotten(&self, lane: &Lane) -> bool {
        matches!(self, Known::Only(_)) && self.find(lane).is_none()
    }

    fn closed(&self, lane: &Lane) -> bool {
        self.find(lane).is_some_and(|held| held.closed)
    }

    fn find(&self, lane: &Lane) -> Option<&Held> {
        match self {
            Known::All => None,
            Known::Only(held) => held.iter().find(|held| held.lane == lane.lane && held.epoch == lane.epoch),
        }
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
