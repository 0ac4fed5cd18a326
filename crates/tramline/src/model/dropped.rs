//! What a subscription was to get and will never see.

use crate::model::id::{EventId, SubscriptionId};
use crate::model::time::Time;
use serde::{Deserialize, Serialize};

/// Why events were dropped that nobody asked to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum DropReason {
    /// The store was full, and this was the oldest work.
    Shed,
    /// A newer event of the same key stands for it.
    Compacted,
    /// It was dead for longer than the subscription keeps dead events.
    Expired,
}

impl DropReason {
    /// The stored and shown word.
    pub fn as_str(self) -> &'static str {
        match self {
            DropReason::Shed => "shed",
            DropReason::Compacted => "compacted",
            DropReason::Expired => "expired",
        }
    }

    /// The reason behind a stored word.
    pub fn parse(word: &str) -> Option<DropReason> {
        [DropReason::Shed, DropReason::Compacted, DropReason::Expired]
            .into_iter()
            .find(|reason| reason.as_str() == word)
    }
}

/// Events that were dropped, within one minute and for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropRecord {
    /// Its number; numbers ascend.
    pub number: i64,
    /// Who will never see them.
    pub subscription: SubscriptionId,
    /// Why.
    pub reason: DropReason,
    /// The lowest id among them.
    pub first: EventId,
    /// The highest id among them.
    pub last: EventId,
    /// How many they are; not everything from the first to the last is among them.
    pub events: u64,
    /// When the first of them was dropped.
    pub at: Time,
}
