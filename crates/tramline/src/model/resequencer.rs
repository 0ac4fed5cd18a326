//! The consumer's side of the order: put the events of each key back in sequence.

use crate::model::id::EventId;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

/// What to do with an event that has just arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<T> {
    /// Apply these, in this order: the event, and those that had been waiting for it.
    Apply(Vec<T>),
    /// It was applied before: acknowledge it and do nothing.
    Duplicate,
    /// Its predecessor has not arrived. It is kept here.
    Wait,
    /// Too many events wait for too long: somebody has to look, or accept the gap with [`Resequencer::skip_to`].
    Overflow(T),
}

/// Applies the events of each key exactly once and in order, whatever the transport does to them.
///
/// Events of a key that nothing is known about are applied as they come. An event whose `prev` was the last one applied,
/// or whose gap is wholly covered by `skipped`, is applied; a later one waits, bounded in number and time. In *sparse*
/// mode (filtered, compacted, started late or at-most-once subscriptions, where predecessors may never come) only
/// duplicates are dropped.
#[derive(Debug)]
pub struct Resequencer<K, T> {
    last: HashMap<K, EventId>,
    waiting: HashMap<K, BTreeMap<EventId, Waiting<T>>>,
    waiting_count: usize,
    limits: Limits,
    sparse: bool,
}

/// How much may wait, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Events waiting over all keys.
    pub events: usize,
    /// How long one event may wait before [`Resequencer::overdue`] names its key.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { events: 10_000, patience: Duration::from_secs(60) }
    }
}

/// What the resequencer needs to know of an event.
#[derive(Clone, Debug)]
pub struct Arrival<K, T> {
    /// Whose sequence it belongs to: topic and key.
    pub key: K,
    /// Its number.
    pub id: EventId,
    /// The preceding event of the key.
    pub prev: Option<EventId>,
    /// Preceding events that will never come.
    pub skipped: Vec<EventId>,
    /// The event itself.
    pub item: T,
}

#[derive(Debug)]
struct Waiting<T> {
    prev: Option<EventId>,
    skipped: Vec<EventId>,
    since: Duration,
    item: T,
}

impl<K: Hash + Eq + Clone, T> Resequencer<K, T> {
    /// A resequencer for subscriptions in which every event of a key arrives.
    pub fn new(limits: Limits) -> Self {
        Resequencer { last: HashMap::new(), waiting: HashMap::new(), waiting_count: 0, limits, sparse: false }
    }

    /// A resequencer that only drops duplicates.
    pub fn sparse() -> Self {
        Resequencer { sparse: true, ..Resequencer::new(Limits::default()) }
    }

    /// Tells what was applied before a restart.
    pub fn restore(&mut self, key: K, last: EventId) {
        self.last.insert(key, last);
    }

    /// The last applied event of a key, to be stored with what applying it changed.
    pub fn last(&self, key: &K) -> Option<EventId> {
        self.last.get(key).copied()
    }

    /// Takes an event that arrived at `now` (any clock that only goes forward) and says what to apply.
    pub fn arrive(&mut self, arrival: Arrival<K, T>, now: Duration) -> Verdict<T> {
        let Arrival { key, id, prev, skipped, item } = arrival;
        match self.last(&key) {
            Some(last) if id <= last => return Verdict::Duplicate,
            Some(last) if !self.sparse && !follows(last, prev, &skipped) => {
                return self.keep(key, id, Waiting { prev, skipped, since: now, item });
            }
            _ => {}
        }
        self.last.insert(key.clone(), id);
        let mut apply = vec![item];
        apply.extend(self.unblock(&key));
        Verdict::Apply(apply)
    }

    /// Accepts that everything of `key` up to `id` will never come, and gives what can be applied now.
    pub fn skip_to(&mut self, key: &K, id: EventId) -> Vec<T> {
        let last = self.last.entry(key.clone()).or_default();
        *last = id.max(*last);
        self.unblock(key)
    }

    /// A key whose oldest waiting event has waited too long, with the predecessor that it misses.
    pub fn overdue(&self, now: Duration) -> Option<(&K, Option<EventId>)> {
        let late = |waiting: &&Waiting<T>| now.saturating_sub(waiting.since) >= self.limits.patience;
        self.waiting
            .iter()
            .find_map(|(key, queue)| queue.values().find(late).map(|waiting| (key, waiting.prev)))
    }

    /// How many events wait.
    pub fn waiting(&self) -> usize {
        self.waiting_count
    }

    fn keep(&mut self, key: K, id: EventId, waiting: Waiting<T>) -> Verdict<T> {
        let queue = self.waiting.entry(key.clone()).or_default();
        if queue.contains_key(&id) {
            return Verdict::Duplicate;
        }
        if self.waiting_count >= self.limits.events {
            if queue.is_empty() {
                self.waiting.remove(&key);
            }
            return Verdict::Overflow(waiting.item);
        }
        queue.insert(id, waiting);
        self.waiting_count += 1;
        Verdict::Wait
    }

    /// Takes out what follows the last applied event, and what it has overtaken.
    fn unblock(&mut self, key: &K) -> Vec<T> {
        let mut apply = Vec::new();
        let (Some(queue), Some(last)) = (self.waiting.get_mut(key), self.last.get_mut(key)) else {
            return apply;
        };
        while let Some(entry) = queue.first_entry() {
            let id = *entry.key();
            if id > *last && !follows(*last, entry.get().prev, &entry.get().skipped) {
                break;
            }
            let waiting = entry.remove();
            self.waiting_count -= 1;
            if id > *last {
                *last = id;
                apply.push(waiting.item);
            }
        }
        if queue.is_empty() {
            self.waiting.remove(key);
        }
        apply
    }
}

/// True when nothing between `last` and an event with this `prev` is missing: `prev` is the last one applied or an
/// earlier one, or it is known to be skipped (then every earlier unseen one is skipped too, because the skipped ids
/// of a key are listed until one of its events is settled).
fn follows(last: EventId, prev: Option<EventId>, skipped: &[EventId]) -> bool {
    prev.is_none_or(|prev| prev <= last || skipped.contains(&prev))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Duration = Duration::ZERO;

    fn arrival(id: i64, prev: i64, skipped: &[i64]) -> Arrival<&'static str, i64> {
        let skipped = skipped.iter().map(|id| EventId(*id)).collect();
        Arrival { key: "k", id: EventId(id), prev: (prev > 0).then_some(EventId(prev)), skipped, item: id }
    }

    #[test]
    fn the_first_event_known_of_a_key_is_applied() {
        let mut sequence = Resequencer::new(Limits::default());
        assert_eq!(sequence.arrive(arrival(9, 4, &[]), NOW), Verdict::Apply(vec![9]));
        assert_eq!(sequence.arrive(arrival(9, 4, &[]), NOW), Verdict::Duplicate);
        assert_eq!(sequence.arrive(arrival(4, 0, &[]), NOW), Verdict::Duplicate);
    }

    #[test]
    fn an_early_event_waits_for_its_predecessor() {
        let mut sequence = Resequencer::new(Limits::default());
        sequence.restore("k", EventId(1));
        assert_eq!(sequence.arrive(arrival(3, 2, &[]), NOW), Verdict::Wait);
        assert_eq!(sequence.arrive(arrival(3, 2, &[]), NOW), Verdict::Duplicate);
        assert_eq!(sequence.arrive(arrival(2, 1, &[]), NOW), Verdict::Apply(vec![2, 3]));
        assert_eq!(sequence.waiting(), 0);
    }

    #[test]
    fn skipped_events_are_not_waited_for() {
        let mut sequence = Resequencer::new(Limits::default());
        sequence.restore("k", EventId(1));
        assert_eq!(sequence.arrive(arrival(4, 3, &[2, 3]), NOW), Verdict::Apply(vec![4]));
    }

    #[test]
    fn what_waits_is_bounded_in_number_and_time() {
        let limits = Limits { events: 1, patience: Duration::from_secs(5) };
        let mut sequence = Resequencer::new(limits);
        sequence.restore("k", EventId(1));
        assert_eq!(sequence.arrive(arrival(3, 2, &[]), NOW), Verdict::Wait);
        assert_eq!(sequence.arrive(arrival(4, 3, &[]), NOW), Verdict::Overflow(4));
        assert_eq!(sequence.overdue(Duration::from_secs(4)), None);
        assert_eq!(sequence.overdue(Duration::from_secs(5)), Some((&"k", Some(EventId(2)))));
        assert_eq!(sequence.skip_to(&"k", EventId(2)), [3]);
    }

    #[test]
    fn a_sparse_sequence_only_drops_duplicates() {
        let mut sequence = Resequencer::sparse();
        assert_eq!(sequence.arrive(arrival(3, 2, &[]), NOW), Verdict::Apply(vec![3]));
        assert_eq!(sequence.arrive(arrival(9, 7, &[]), NOW), Verdict::Apply(vec![9]));
        assert_eq!(sequence.arrive(arrival(7, 3, &[]), NOW), Verdict::Duplicate);
    }

    proptest! {
        #[test]
        fn any_order_and_repetition_gives_each_event_once_in_sequence(
            order in prop::collection::vec(2i64..30, 0..200)
        ) {
            let mut sequence = Resequencer::new(Limits::default());
            sequence.restore("k", EventId(1));
            let mut applied = Vec::new();
            for id in order.into_iter().chain(2..30) {
                if let Verdict::Apply(items) = sequence.arrive(arrival(id, id - 1, &[]), NOW) {
                    applied.extend(items);
                }
            }
            prop_assert_eq!(applied, (2..30).collect::<Vec<_>>());
        }
    }
}
