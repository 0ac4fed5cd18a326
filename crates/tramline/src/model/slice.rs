//! Slices: what one subscription still has to do of one chunk.

use crate::model::id::{ChunkId, EventId, Incarnation, LaneId, SliceId, SubscriptionId};
use crate::model::lease::Lease;
use crate::model::mask::Mask;
use crate::model::status::Status;
use crate::model::time::Time;

/// Where the events of a slice are. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i16)]
pub enum State {
    /// May be claimed when due.
    Ready = 0,
    /// Claimed. Not ordered: until `due_at`. Ordered: as long as its lane is held under the slice's epoch.
    Leased = 1,
    /// A lease on it ended by expiry: claimed in small parts, alone in its process.
    Suspect = 2,
    /// Ordered: the first event of its key, which must wait until `due_at`; the key is parked behind it.
    Waiting = 3,
    /// Ordered: behind a waiting or held event of the same key; outside every search for work.
    Parked = 4,
    /// Ordered: out of attempts, and its key stays parked until somebody replays or drops it.
    Held = 5,
    /// Will not run again unless somebody replays it.
    Dead = 6,
    /// Claimed at most once: the entry of the consumption log. Never claimable again.
    Consumed = 7,
    /// Not ordered: due, but as many events of its key are under way as may be; outside the search for what is ready.
    Crowded = 8,
}

impl State {
    /// All states, by number.
    pub const ALL: [State; 9] = [
        State::Ready,
        State::Leased,
        State::Suspect,
        State::Waiting,
        State::Parked,
        State::Held,
        State::Dead,
        State::Consumed,
        State::Crowded,
    ];

    /// The state behind a stored number.
    pub fn from_i16(number: i16) -> Option<State> {
        State::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// What users are shown of a slice in this state.
    pub fn status(self, ordered: bool, due_at: Time, now: Time, held: bool) -> Status {
        match self {
            State::Ready | State::Waiting if due_at > now => Status::Delayed,
            State::Ready | State::Waiting | State::Suspect | State::Crowded => Status::Ready,
            State::Leased if if ordered { held } else { due_at > now } => Status::Leased,
            State::Leased => Status::Ready,
            State::Parked | State::Held => Status::Parked,
            State::Dead => Status::Dead,
            State::Consumed => Status::Leased,
        }
    }
}

/// How many claims fit between the epochs of replays in two following milliseconds. A power of two, and so small that epochs stay
/// below 2^53 for centuries.
pub(crate) const CLAIMS_OF_A_REPLAY: i64 = 1024;

/// A row of work: some events of one chunk, in one subscription, in the same situation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Its number; zero until it is stored.
    pub id: SliceId,
    /// Whose events.
    pub chunk: ChunkId,
    /// Whose work.
    pub subscription: SubscriptionId,
    /// Which lane, if the subscription is ordered.
    pub lane: LaneId,
    /// Where the events are.
    pub state: State,
    /// Which events.
    pub mask: Mask,
    /// The only clock: not before. The end of the lease while leased, the time of death when dead.
    pub due_at: Time,
    /// Priority; in parked slices the hash of the key, in crowded ones both.
    pub rank: i64,
    /// Settled failures.
    pub attempts: u32,
    /// Leases that ended by expiry.
    pub crashes: u32,
    /// Those of them in which one event ran alone as a suspect.
    pub alone: u32,
    /// Grows with every claim (ordered: the lane's epoch when it was claimed). A replay begins at its own time, see
    /// [`Slice::epoch_of_replay`].
    pub epoch: i64,
    /// Who claimed it last.
    pub owner: Incarnation,
    /// True once somebody replayed it: it may come out of order.
    pub replayed: bool,
    /// True if some of its events may be items of tallies that end with them; mostly there are none, and nobody has to look.
    pub tallied: bool,
    /// What its chunk weighs, so that claims can be capped by bytes.
    pub bytes: u32,
    /// Why it failed last.
    pub error: Option<String>,
}

impl Slice {
    /// With which epoch a replay of this moment begins, so that no other replay has its epochs.
    pub(crate) fn epoch_of_replay(now: Time) -> i64 {
        now.0.saturating_mul(CLAIMS_OF_A_REPLAY)
    }

    /// The place in the claim index among slices of the same subscription, state, lane and rank.
    pub fn pos(&self) -> i64 {
        let by_chunk = self.is_ordered() && !matches!(self.state, State::Waiting | State::Dead);
        if by_chunk { self.chunk.0 } else { self.due_at.0 }
    }

    /// True if it belongs to a lane.
    pub fn is_ordered(&self) -> bool {
        self.lane != LaneId::UNORDERED
    }

    /// The same situation for other events; a row of its own.
    #[must_use]
    pub fn part(&self, mask: Mask) -> Slice {
        Slice { id: SliceId(0), mask, ..self.clone() }
    }

    /// The lease that the claim which owns it was given.
    pub fn lease(&self) -> Lease {
        Lease { lane: self.lane, chunk: self.chunk, slice: self.id, epoch: self.epoch, owner: self.owner }
    }

    /// True if a claim has it.
    pub(crate) fn is_taken(&self) -> bool {
        matches!(self.state, State::Leased | State::Consumed)
    }

    /// True if `lease` is the current one.
    pub fn is_under(&self, lease: &Lease) -> bool {
        self.is_taken() && self.lease() == *lease
    }

    /// The ids of its events, ascending.
    pub fn events(&self) -> impl Iterator<Item = EventId> {
        let chunk = self.chunk;
        self.mask.iter().map(move |index| EventId::at(chunk, index))
    }

    /// What users are shown. `held` says whether the lane of an ordered slice is still held.
    pub fn status(&self, now: Time, held: bool) -> Status {
        self.state.status(self.is_ordered(), self.due_at, now, held)
    }
}
