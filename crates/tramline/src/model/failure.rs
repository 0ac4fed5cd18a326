//! Why an event failed, attempt by attempt, and why it went without being done.

use crate::model::id::{ChunkId, Incarnation};
use crate::model::mask::Mask;
use crate::model::time::Time;
use serde::{Deserialize, Serialize};

/// How many failures of an event are kept in each subscription: the last ones.
pub const FAILURES_KEPT: u32 = 10;
/// The longest error text that is kept of each.
pub const MAX_FAILURE: usize = 1024;

/// An attempt that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which attempt, from 1. A replay counts anew.
    pub attempt: u32,
    /// When it was settled.
    pub at: Time,
    /// Who ran it: its name, or the number of its life if it told none.
    pub worker: String,
    /// What went wrong.
    pub error: String,
}

/// Why an event will not run although it was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Gone {
    /// Somebody dropped it when it was dead or held.
    Dropped,
    /// Somebody cancelled it before it was claimed.
    Cancelled,
    /// It was dead for longer than the subscription keeps dead events.
    Expired,
    /// It was out of attempts, and the subscription drops such events.
    Exhausted,
}

impl Gone {
    const ALL: [Gone; 4] = [Gone::Dropped, Gone::Cancelled, Gone::Expired, Gone::Exhausted];

    /// The stored and shown word.
    pub fn as_str(self) -> &'static str {
        match self {
            Gone::Dropped => "dropped",
            Gone::Cancelled => "cancelled",
            Gone::Expired => "expired",
            Gone::Exhausted => "exhausted",
        }
    }

    /// The reason behind a stored word.
    pub fn parse(word: &str) -> Option<Gone> {
        Gone::ALL.into_iter().find(|gone| gone.as_str() == word)
    }
}

/// What is to be kept of some events of one chunk: why an attempt failed, or (attempt zero) why they went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whose events.
    pub chunk: ChunkId,
    /// Which.
    pub mask: Mask,
    /// Which attempt; zero: the end.
    pub attempt: u32,
    /// Who had them.
    pub owner: Incarnation,
    /// Why.
    pub text: String,
}

impl Note {
    /// The place of the note among those of an event. Attempts go round in a ring, so an event never has more notes than are
    /// kept, and nobody has to look how many there are.
    pub fn slot(&self) -> i16 {
        match self.attempt {
            0 => FAILURES_KEPT as i16,
            attempt => ((attempt - 1) % FAILURES_KEPT) as i16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_go_round_and_the_end_has_a_place_of_its_own() {
        let slot = |attempt| {
            let (chunk, mask, owner) = (ChunkId(1), Mask::of(0), Incarnation(1));
            Note { chunk, mask, attempt, owner, text: String::new() }.slot()
        };
        assert_eq!([1, 2, 10, 11, 21].map(slot), [0, 1, 9, 0, 0]);
        assert!(!(1..100).map(slot).any(|place| place == slot(0)));
    }

    #[test]
    fn what_became_of_an_event_is_read_back_as_it_was_written() {
        assert!(Gone::ALL.into_iter().all(|gone| Gone::parse(gone.as_str()) == Some(gone)));
    }
}
