//! Leases: the right to settle, known by an opaque token.

use crate::error::{Error, Result};
use crate::model::id::{ChunkId, Incarnation, LaneId, SliceId};
use crate::model::lane::Held;
use crate::model::slice::CLAIMS_OF_A_REPLAY;
use std::fmt;
use std::str::FromStr;

/// A claim on some events for a limited time. An old one is refused: it names the owner's incarnation and the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    pub(crate) lane: LaneId,
    pub(crate) chunk: ChunkId,
    pub(crate) slice: SliceId,
    pub(crate) epoch: i64,
    pub(crate) owner: Incarnation,
}

impl Lease {
    /// Who has it.
    pub fn owner(&self) -> Incarnation {
        self.owner
    }

    /// True when the lease hangs on a lane and not on the slice itself.
    pub(crate) fn is_ordered(&self) -> bool {
        self.lane != LaneId::UNORDERED
    }

    /// Tells the replays of an event apart: the same in every attempt until it is replayed again. The lease of a lane knows nothing of
    /// replays; there every attempt counts as one.
    pub(crate) fn replay(&self) -> i64 {
        if self.is_ordered() { self.epoch } else { self.epoch / CLAIMS_OF_A_REPLAY }
    }

    /// The lane on which the lease hangs, if it does: for [`Known::Only`](crate::model::lane::Known).
    pub fn held(&self) -> Option<Held> {
        self.is_ordered().then_some(Held { lane: self.lane, epoch: self.epoch, closed: false })
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:x}.{:x}.{:x}.{:x}.{:x}",
            self.lane.0, self.chunk.0, self.slice.0, self.epoch, self.owner.0
        )
    }
}

impl FromStr for Lease {
    type Err = Error;

    fn from_str(token: &str) -> Result<Lease> {
        let bad = || Error::invalid("this is not a lease", "send the lease exactly as the claim gave it");
        let mut numbers = [0; 5];
        let mut parts = token.split('.');
        for number in &mut numbers {
            *number = parts.next().and_then(|part| i64::from_str_radix(part, 16).ok()).ok_or_else(bad)?;
        }
        let ([lane, chunk, slice, epoch, owner], None) = (numbers, parts.next()) else { return Err(bad()) };
        Ok(Lease {
            lane: LaneId(lane),
            chunk: ChunkId(chunk),
            slice: SliceId(slice),
            epoch,
            owner: Incarnation(owner),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_back_as_it_was_written() {
        let lease = Lease {
            lane: LaneId(4097),
            chunk: ChunkId(70),
            slice: SliceId(9),
            epoch: 3,
            owner: Incarnation(i64::MAX),
        };
        assert_eq!(lease.to_string().parse::<Lease>().unwrap(), lease);
        for bad in ["", "1.2.3", "1.2.3.4.x", "1.2.3.4.5.6"] {
            assert!(bad.parse::<Lease>().is_err(), "{bad}");
        }
    }
}
