//! What becomes of an event whose unique key is known.

use crate::model::id::EventId;
use crate::model::time::Time;
use crate::model::unique::{Duplicates, Unique};

/// The last event of a unique key, under the lock of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which one.
    pub event: EventId,
    /// How long it is unique even if it is not pending.
    pub until: Time,
    /// True if some subscription has still to be done with it, or is just at it.
    pub pending: bool,
}

/// What an emit does with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is stored.
    Stored,
    /// This one is there already.
    Duplicate(EventId),
    /// It is stored, and this one gives way where nobody has claimed it.
    Replaces(EventId),
}

/// What becomes of a unique event. What is done, but so lately that it still counts, cannot give way: then the new one does.
pub fn fate(unique: &Unique, last: Option<Standing>, now: Time) -> Fate {
    match (last, unique.policy) {
        (Some(last), Duplicates::Replace) if last.pending => Fate::Replaces(last.event),
        (Some(last), _) if last.pending || last.until > now => Fate::Duplicate(last.event),
        _ => Fate::Stored,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pending_is_kept_or_gives_way_and_what_is_done_counts_for_its_window() {
        let (now, event) = (Time(1_000), EventId(64));
        let (keep, replace) = (Unique::new("k"), Unique::new("k").replacing());
        let last = |pending, until| Some(Standing { event, until: Time(until), pending });
        for unique in [&keep, &replace] {
            assert_eq!(fate(unique, None, now), Fate::Stored);
            assert_eq!(fate(unique, last(false, 1_000), now), Fate::Stored);
            assert_eq!(fate(unique, last(false, 1_001), now), Fate::Duplicate(event));
        }
        assert_eq!(fate(&keep, last(true, 0), now), Fate::Duplicate(event));
        assert_eq!(fate(&replace, last(true, 0), now), Fate::Replaces(event));
        assert_eq!(fate(&replace, last(true, 2_000), now), Fate::Replaces(event));
    }
}
