//! How far a tally is, as answers tell it.

use crate::http::json::When;
use crate::http::tallies::number::Number;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tramline::{Tally, TallyId, TallyItem, TallyState};
use utoipa::ToSchema;

/// Where a tally is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// Items may be added.
    Open,
    /// All items are there; some are pending.
    Sealed,
    /// Sealed, and no item is pending.
    Complete,
    /// Somebody gave it up.
    Cancelled,
    /// Its time was over before it was complete.
    Expired,
}

impl From<TallyState> for State {
    fn from(state: TallyState) -> State {
        match state {
            TallyState::Open => State::Open,
            TallyState::Sealed => State::Sealed,
            TallyState::Complete => State::Complete,
            TallyState::Cancelled => State::Cancelled,
            TallyState::Expired => State::Expired,
        }
    }
}

impl From<State> for TallyState {
    fn from(state: State) -> TallyState {
        match state {
            State::Open => TallyState::Open,
            State::Sealed => TallyState::Sealed,
            State::Complete => TallyState::Complete,
            State::Cancelled => TallyState::Cancelled,
            State::Expired => TallyState::Expired,
        }
    }
}

/// How far a tally is. What could not be read any more after something was done is null; the rest is true all the same.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Standing {
    tally: Number,
    /// True for exactly one call: the one that made it complete
    completed_now: bool,
    state: Option<State>,
    /// True once it was sealed
    sealed: Option<bool>,
    /// True when it is sealed and no item is pending
    complete: Option<bool>,
    /// How many items were added
    total: Option<u64>,
    done: Option<u64>,
    failed: Option<u64>,
    pending: Option<u64>,
}

impl Standing {
    /// As it was read.
    pub(crate) fn of(tally: &Tally, completed_now: bool) -> Standing {
        Standing {
            tally: Number(tally.id),
            completed_now,
            state: Some(tally.state.into()),
            sealed: Some(tally.is_sealed()),
            complete: Some(tally.is_complete()),
            total: Some(tally.total),
            done: Some(tally.done),
            failed: Some(tally.failed),
            pending: Some(tally.pending()),
        }
    }

    /// What is known of one that could not be read.
    pub(crate) fn unread(tally: TallyId, completed_now: bool) -> Standing {
        let known = completed_now.then_some(true);
        Standing {
            tally: Number(tally),
            completed_now,
            state: known.map(|_| State::Complete),
            sealed: known,
            complete: known,
            total: None,
            done: None,
            failed: None,
            pending: known.map(|_| 0),
        }
    }
}

/// A tally, with all that is known of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TallyOut {
    #[serde(flatten)]
    standing: Standing,
    /// How much of it is finished, from 0 to 1
    progress: f64,
    /// Items finished per second, from its opening to the last thing that happened to it
    per_second: f64,
    user_key: Option<String>,
    metadata: Option<Value>,
    /// The topic to which it belongs
    topic: Option<String>,
    /// True if it may grow after it is sealed
    growing: bool,
    /// True if it is a plain counter: what was counted twice is in the counts twice
    estimated: bool,
    /// The item of another tally that it stands for
    parent: Option<ItemOut>,
    created_at: When,
    sealed_at: Option<When>,
    /// When it was complete, cancelled or expired
    ended_at: Option<When>,
    /// When something happened to it last
    active_at: When,
    expires_at: Option<When>,
}

impl From<Tally> for TallyOut {
    fn from(tally: Tally) -> TallyOut {
        TallyOut {
            standing: Standing::of(&tally, false),
            progress: tally.progress(),
            per_second: tally.rate(),
            growing: tally.growing,
            estimated: tally.estimated,
            parent: tally.parent.map(ItemOut::from),
            created_at: When(tally.created_at),
            sealed_at: tally.sealed_at.map(When),
            ended_at: tally.ended_at.map(When),
            active_at: When(tally.active_at),
            expires_at: tally.expires_at.map(When),
            user_key: tally.user_key,
            metadata: tally.metadata,
            topic: tally.topic,
        }
    }
}

/// One item of a tally.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct ItemOut {
    /// The tally
    id: Number,
    /// The number of the item
    item: u64,
}

impl From<TallyItem> for ItemOut {
    fn from(item: TallyItem) -> ItemOut {
        ItemOut { id: Number(item.tally), item: item.number }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_is_told_even_if_the_counts_could_not_be_read() {
        let told = serde_json::to_value(Standing::unread(TallyId(7), true)).unwrap();
        assert_eq!(
            (&told["tally"], &told["completed_now"], &told["complete"]),
            (&"7".into(), &true.into(), &true.into())
        );
        assert_eq!((&told["pending"], &told["done"]), (&0.into(), &Value::Null));
        let other = serde_json::to_value(Standing::unread(TallyId(7), false)).unwrap();
        assert_eq!((&other["complete"], &other["state"]), (&Value::Null, &Value::Null));
    }
}
