//! Emits that wait to be written, and which of them go together.
//!
//! Keys belong to lines, and each line is written by one task: under load a group touches few lanes, which makes few slices, and two
//! groups seldom wait for each other at a key.

use crate::error::Result;
use crate::model::event::Event;
use crate::model::lane;
use crate::store::verbs::Emission;
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// How many events a group holds, unless one emit alone has more.
const MAX_EVENTS: usize = 4_096;
/// How much a group weighs, unless one emit alone weighs more.
const MAX_BYTES: usize = 4 << 20;
/// An emit of more events than this is a group of its own: it needs no copy to fall back on, and gains nothing from company.
const ALONE: usize = 256;
/// A group with fewer events than this takes what waits in other lines, too, and is not written beside another one: commits cost
/// more than slices, and more than waiting for the one before.
pub(super) const ENOUGH: usize = 32;

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) lines: Vec<Line>,
    /// Emits without a key go with whatever group is next.
    loose: VecDeque<Waiting>,
    /// How many events wait.
    events: usize,
    /// The last group had several emits: probably they come together again.
    pub(super) is_crowd: bool,
}

/// Emits of some of the keys.
#[derive(Debug, Default)]
pub(super) struct Line {
    waiting: VecDeque<Waiting>,
    pub(super) flushing: Flush,
}

/// Whether a task writes the groups of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Flush {
    #[default]
    Idle,
    /// It will be back soon for what has gathered.
    Quick,
    /// Its group takes long, or nobody knows when it will be back: others need not wait for it.
    Slow,
}

/// An emit and the caller who waits for it.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) unit: Vec<Event>,
    pub(super) bytes: usize,
    pub(super) reply: oneshot::Sender<Result<Emission>>,
    pub(super) _room: OwnedSemaphorePermit,
}

impl Queue {
    pub(super) fn new(lines: usize) -> Queue {
        Queue {
            lines: (0..lines).map(|_| Line::default()).collect(),
            loose: VecDeque::new(),
            events: 0,
            is_crowd: false,
        }
    }

    pub(super) fn events(&self) -> usize {
        self.events
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// Where units with this one's key wait.
    pub(super) fn line_of(&self, unit: &[Event]) -> Option<usize> {
        let key = unit.first()?.key.as_deref()?;
        Some(lane::hash(key) as usize % self.lines.len())
    }

    /// The line on which what waits, and `more` events, may be written now. `None`: somebody who writes will be back for them.
    pub(super) fn free_line(&self, more: usize) -> Option<usize> {
        let is_awaited = self.lines.iter().any(|line| line.flushing == Flush::Quick);
        if is_awaited && self.events + more < ENOUGH {
            return None;
        }
        let free = (0..self.lines.len()).filter(|at| self.lines[*at].flushing == Flush::Idle);
        free.max_by_key(|at| self.lines[*at].waiting.len())
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        self.events += waiting.unit.len();
        match self.line_of(&waiting.unit) {
            Some(line) => self.lines[line].waiting.push_back(waiting),
            None => self.loose.push_back(waiting),
        }
    }

    /// Takes a group from a line, with all that is loose, and from the other lines if that is too little.
    pub(super) fn next_group(&mut self, line: usize, hasher: &RandomState) -> Vec<Waiting> {
        let mut group = Group::default();
        group.take(&mut self.lines[line].waiting, MAX_EVENTS, hasher);
        group.take(&mut self.loose, MAX_EVENTS, hasher);
        let others = self.lines.len();
        for other in (1..others).map(|step| (line + step) % others) {
            group.take(&mut self.lines[other].waiting, ENOUGH, hasher);
        }
        self.events -= group.events;
        // One that finds nothing says nothing of those who were just answered.
        if !group.units.is_empty() {
            self.is_crowd = group.units.len() > 1;
        }
        group.units
    }
}

/// Emits that are written together.
#[derive(Default)]
struct Group {
    units: Vec<Waiting>,
    events: usize,
    bytes: usize,
    /// Hashes of what no two of them may share.
    keys: HashSet<u64>,
    /// Nothing else fits in.
    closed: bool,
}

impl Group {
    /// Takes from the front as long as the group has fewer than `most` events. Emits with an idempotency key or unique key that
    /// is in it already stay for the next one.
    fn take(&mut self, waiting: &mut VecDeque<Waiting>, most: usize, hasher: &RandomState) {
        let mut later = Vec::new();
        while self.events < most && !self.closed {
            let Some(next) = waiting.pop_front() else { break };
            let fits = self.events + next.unit.len() <= MAX_EVENTS && self.bytes + next.bytes <= MAX_BYTES;
            let alone = next.unit.len() > ALONE;
            if !self.units.is_empty() && (alone || !fits) {
                waiting.push_front(next);
                break;
            }
            let own: Vec<u64> = single(&next.unit).map(|key| hasher.hash_one(key)).collect();
            let shares = own.iter().any(|key| self.keys.contains(key));
            // What comes after it with one of its keys has to stay behind it, also if it has to wait itself.
            self.keys.extend(own);
            if shares {
                later.push(next);
                continue;
            }
            self.events += next.unit.len();
            self.bytes += next.bytes;
            self.units.push(next);
            self.closed = alone;
        }
        later.into_iter().rev().for_each(|next| waiting.push_front(next));
    }
}

/// What makes a unit repeatable: the idempotency key of its first event, which belongs to that one's topic.
pub(super) fn idempotency(unit: &[Event]) -> Option<(&str, &str)> {
    let first = unit.first()?;
    first.idempotency_key.as_deref().map(|key| (first.topic.as_str(), key))
}

/// What no two units of a group share: idempotency keys and unique keys.
fn single(unit: &[Event]) -> impl Iterator<Item = (bool, &str, &str)> {
    let unique = unit
        .iter()
        .filter_map(|event| Some((true, event.topic.as_str(), event.unique.as_ref()?.key.as_str())));
    idempotency(unit).map(|(topic, key)| (false, topic, key)).into_iter().chain(unique)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::sync::Semaphore;

    /// How many emits of so many events and bytes each group has.
    fn groups(emits: &[(usize, usize)]) -> Vec<usize> {
        let mut queue = Queue::new(2);
        let room = Arc::new(Semaphore::new(emits.len()));
        for (events, bytes) in emits {
            let (reply, _) = oneshot::channel();
            let _room = room.clone().try_acquire_owned().unwrap();
            queue.push(Waiting { unit: vec![Event::new("t", "x"); *events], bytes: *bytes, reply, _room });
        }
        let hasher = RandomState::new();
        std::iter::from_fn(|| Some(queue.next_group(0, &hasher).len()).filter(|count| *count > 0)).collect()
    }

    #[test]
    fn a_group_is_bounded_by_bytes_and_events_unless_one_emit_alone_has_more() {
        let half = MAX_BYTES / 2;
        assert_eq!(groups(&[(1, half), (1, half), (1, 1), (1, half)]), [2, 2]);
        assert_eq!(groups(&[(1, 1), (1, 2 * MAX_BYTES), (1, 1)]), [1, 1, 1]);
        let sixteenth = (MAX_EVENTS / 16, 1);
        assert_eq!(groups(&[sixteenth; 20]), [16, 4]);
        assert_eq!(groups(&[(1, 1), (ALONE + 1, 1), (1, 1)]), [1, 1, 1]);
    }

    #[test]
    fn what_waits_gets_a_line_beside_another_one_only_if_it_is_enough_or_the_other_takes_long() {
        let mut queue = Queue::new(3);
        assert!(queue.free_line(1).is_some());
        queue.lines[0].flushing = Flush::Quick;
        assert_eq!(queue.free_line(ENOUGH - 1), None);
        assert!(queue.free_line(ENOUGH).is_some_and(|line| line > 0));
        queue.lines[0].flushing = Flush::Slow;
        assert!(queue.free_line(1).is_some_and(|line| line > 0));
        queue.lines[1].flushing = Flush::Slow;
        assert_eq!(queue.free_line(1), Some(2));
        queue.lines[2].flushing = Flush::Slow;
        assert_eq!(queue.free_line(ENOUGH), None);
    }
}
