//! What a full store can do without, and in which order it goes.

use crate::model::id::{ChunkId, EventId, TopicId};
use crate::model::mask::Mask;
use crate::model::slice::State;
use crate::store::catalog::Catalog;
use crate::store::deleted::{STEP_BYTES, within};
use crate::store::verbs::{Shed, Surplus};
use std::collections::BTreeSet;

/// How many rows one step looks at: passing over what cannot go must not take long either.
pub(crate) const LOOK: i64 = 10_000;
/// What a row takes beside its payloads, at least: with small events that is most of it.
const ROW: i64 = 160;
/// However many topics there are, so many rows of each.
const FEW: i64 = 64;

/// Work that nobody has claimed. Dead events are no work: they wait for somebody to look at them.
pub(crate) const UNCLAIMED: [State; 5] =
    [State::Ready, State::Suspect, State::Waiting, State::Parked, State::Held];

/// How many rows of each topic one step looks at.
pub(crate) fn look_per_topic(topics: usize) -> i64 {
    (LOOK / topics.max(1) as i64).max(FEW)
}

/// The subscriptions whose work may go.
pub(crate) fn losers(catalog: &Catalog, include_pull: bool) -> BTreeSet<i64> {
    let may_lose = catalog.subscriptions().iter().filter(|one| include_pull || one.policy.push.is_some());
    may_lose.map(|one| one.id.0).collect()
}

/// The last event that a chunk can have: where a look that passed it goes on.
pub(crate) fn end_of(chunk: i64) -> EventId {
    EventId::at(ChunkId(chunk), Mask::CAPACITY - 1)
}

impl Shed {
    /// True if the work of workers may go too.
    pub(crate) fn include_pull(&self) -> bool {
        matches!(self.surplus, Surplus::Work { include_pull: true })
    }

    /// What is still to go after rows of these weights; `None` if that was all.
    pub(crate) fn rest(mut self, gone: Vec<i64>) -> Option<Shed> {
        self.limit = self.limit.saturating_sub(gone.len() as u32);
        let weight: i64 = gone.iter().map(|weight| weight + ROW).sum();
        self.bytes = self.bytes.saturating_sub(weight.cast_unsigned());
        Some(self).filter(|rest| rest.limit > 0 && rest.bytes > 0)
    }

    /// How many of these rows, of which the payloads' weights are known, go in this step.
    pub(crate) fn fitting(&self, weights: impl Iterator<Item = i64>) -> usize {
        let most = i64::try_from(self.bytes).unwrap_or(i64::MAX).clamp(1, STEP_BYTES);
        within(weights.map(|weight| weight + ROW), most).min(self.limit as usize)
    }
}

/// A chunk that a step looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) chunk: i64,
    pub(crate) topic: TopicId,
    pub(crate) bytes: i64,
    /// False if some work, or a back-fill, needs it.
    pub(crate) free: bool,
}

/// Which of the chunks go, oldest first, and where the next step goes on. Of every topic `look` chunks were read, or all that
/// it has.
pub(crate) fn choose(mut seen: Vec<Seen>, look: i64, shed: &Shed) -> (Vec<Seen>, Option<EventId>) {
    seen.sort_unstable_by_key(|seen| (seen.topic, seen.chunk));
    // Of a topic that was not read to its end there may be others from there on: what comes later has to wait.
    let cut_off = seen.chunk_by(|a, b| a.topic == b.topic).filter(|of_topic| of_topic.len() as i64 >= look);
    let border = cut_off.filter_map(|of_topic| of_topic.last()).map(|last| last.chunk).min();
    seen.sort_unstable_by_key(|seen| seen.chunk);
    seen.retain(|seen| seen.free && border.is_none_or(|border| seen.chunk <= border));
    let fitting = shed.fitting(seen.iter().map(|seen| seen.bytes));
    let next = if fitting < seen.len() { Some(seen[fitting].chunk - 1) } else { border };
    seen.truncate(fitting);
    (seen, next.map(end_of))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(topic: i64, chunk: i64, free: bool) -> Seen {
        Seen { chunk, topic: TopicId(topic), bytes: 100, free }
    }

    fn chosen(seen: Vec<Seen>, look: i64, limit: u32) -> (Vec<i64>, Option<i64>) {
        let shed = Shed { surplus: Surplus::Retained, after: EventId(0), limit, bytes: 30 << 20, now: None };
        let (chosen, next) = choose(seen, look, &shed);
        (chosen.iter().map(|seen| seen.chunk).collect(), next.map(|next| next.chunk().0))
    }

    #[test]
    fn the_oldest_of_all_topics_go_first() {
        let all =
            vec![seen(1, 4, true), seen(1, 9, true), seen(2, 3, true), seen(2, 5, false), seen(2, 7, true)];
        assert_eq!(chosen(all.clone(), 10, 10), (vec![3, 4, 7, 9], None));
        assert_eq!(chosen(all, 10, 2), (vec![3, 4], Some(6)));
    }

    #[test]
    fn nothing_goes_before_what_was_not_looked_at() {
        let all = vec![seen(1, 1, false), seen(1, 2, true), seen(2, 3, true), seen(2, 8, true)];
        assert_eq!(chosen(all.clone(), 2, 10), (vec![2], Some(2)), "topic 1 may have more from 2 on");
        assert_eq!(chosen(all, 3, 10), (vec![2, 3, 8], None));
    }

    #[test]
    fn what_has_gone_is_not_asked_for_again() {
        let shed = Shed { surplus: Surplus::Retained, after: EventId(0), limit: 5, bytes: 1_000, now: None };
        let left = |gone: &[i64]| shed.rest(gone.to_vec()).map(|rest| (rest.limit, rest.bytes));
        assert_eq!(left(&[]), Some((5, 1_000)));
        assert_eq!(left(&[100, 100]), Some((3, 1_000 - 2 * (100 + ROW as u64))));
        assert_eq!(left(&[1, 1, 1, 1, 1]), None, "no more rows");
        assert_eq!(left(&[5_000]), None, "heavy enough");
    }

    #[test]
    fn a_step_has_its_weight() {
        let heavy = |chunk| Seen { bytes: 20 << 20, ..seen(1, chunk, true) };
        assert_eq!(chosen(vec![heavy(1), heavy(2), heavy(3)], 10, 10), (vec![1, 2], Some(2)));
    }
}
