//! What a verb changes, decided without I/O.
//!
//! A store locks and loads rows, asks one of these functions what follows, and writes the [`Changes`]. So all SQL stores
//! decide alike, and the decisions can be tested by the thousand.
//!
//! - [`emit`], [`slices`]: how events are cut into chunks, and these into slices
//! - [`claim`]: which slices a claim takes where there is no order
//! - [`limit`]: what a claim may take where a subscription has limits
//! - [`lane`]: what a claim takes from a lane, and whose keys it parks
//! - [`compact`]: what of it gives way to newer events of the same key
//! - [`settle`]: what outcomes make of slices
//! - [`expire`]: what becomes of a lease that nobody settled
//! - [`release`]: what goes back when somebody gives back a part of what it has
//! - [`mend`]: replay, drop, cancel and resend
//! - [`unique`]: what becomes of an event whose unique key is known
//! - [`tally`]: what additions, acks and seals make of a tally
//! - [`schedule`]: what becomes of a schedule when it is put, paused or due

pub mod claim;
pub mod compact;
pub mod emit;
pub mod expire;
pub mod lane;
pub mod limit;
pub mod mend;
pub mod release;
pub mod schedule;
pub mod settle;
pub mod slices;
pub mod tally;
pub mod unique;

use crate::model::dropped::DropReason;
use crate::model::failure::{Gone, MAX_FAILURE, Note};
use crate::model::id::{ChunkId, EventId, LaneId, SliceId};
use crate::model::lane::{Lane, hash};
use crate::model::mask::Mask;
use crate::model::outcome::cut;
use crate::model::slice::{Slice, State};
use crate::model::tally::Ending;
use crate::model::time::Time;
use std::collections::HashMap;
use std::sync::Arc;

/// How many gaps of a key are remembered.
const MOST_GAPS: usize = 1_000;

/// Rows to write, in this order: `unpark`, `park`, `gaps`, `told`, `delete`, `update`, `insert`. A key may go on because one of
/// its events is done and wait again because the next one failed, in one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Rows that exist, with their new contents.
    pub update: Vec<Slice>,
    /// New rows; the store numbers them.
    pub insert: Vec<Slice>,
    /// Rows that go.
    pub delete: Vec<(ChunkId, SliceId)>,
    /// Keys that wait from now on (or whose blocking event is another one).
    pub park: Vec<Park>,
    /// Keys that go on: their row goes, and the parked slices with the hash of the key become ready again,
    /// or suspect if they had crashes.
    pub unpark: Vec<(LaneId, Arc<str>)>,
    /// Events that a key of an ordered subscription will never see.
    pub gaps: Vec<(LaneId, Arc<str>, EventId)>,
    /// Gaps of a key that were told: those before this event.
    pub told: Vec<(LaneId, Arc<str>, EventId)>,
    /// Events that have ended and are items of tallies.
    pub ended: Vec<(ChunkId, Mask, Ending)>,
    /// Events that will never be seen although nobody asked for that.
    pub dropped: Vec<(ChunkId, Mask, DropReason)>,
    /// Why attempts failed, and why events went without being done. Only failures have any.
    pub notes: Vec<Note>,
    /// The name of the worker that these are about, if it is known.
    pub worker: Option<Arc<str>>,
    /// True when events became claimable that were not before.
    pub wake: bool,
}

impl Changes {
    /// Remembers that events of a slice have ended, if they may be items of tallies.
    fn end(&mut self, slice: &Slice, mask: Mask, ending: Ending) {
        if !slice.tallied || mask.is_empty() {
            return;
        }
        match self.ended.last_mut().filter(|last| (last.0, last.2) == (slice.chunk, ending)) {
            Some(last) => last.1 = last.1.plus(mask),
            None => self.ended.push((slice.chunk, mask, ending)),
        }
    }

    /// Remembers why an attempt of some events of a slice failed.
    fn failed(&mut self, slice: &Slice, mask: Mask, attempt: u32, error: &str) {
        self.note(slice, mask, attempt, cut(error.to_owned(), MAX_FAILURE));
    }

    /// Remembers why some events of a slice will not run although they were not done.
    fn gone(&mut self, slice: &Slice, mask: Mask, gone: Gone) {
        self.note(slice, mask, 0, gone.as_str().to_owned());
    }

    /// Remembers that events which may have gone are to be done again.
    fn came_back(&mut self, slice: &Slice) {
        self.note(slice, slice.mask, 0, String::new());
    }

    /// Events of a chunk that failed alike share a note.
    fn note(&mut self, slice: &Slice, mask: Mask, attempt: u32, text: String) {
        let note = Note { chunk: slice.chunk, mask, attempt, owner: slice.owner, text };
        let same = |other: &&mut Note| Note { mask: note.mask, ..(**other).clone() } == note;
        match self.notes.iter_mut().rev().take(8).find(same) {
            Some(other) => other.mask = other.mask.plus(mask),
            None => self.notes.push(note),
        }
    }
}

/// A key that waits behind one of its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Park {
    /// The lane of the key.
    pub lane: LaneId,
    /// The key.
    pub key: Arc<str>,
    /// The event that everything waits for.
    pub blocked_by: EventId,
    /// Since when.
    pub since: Time,
}

/// A locked lane, with what is known of the keys that matter now.
#[derive(Clone, Debug)]
pub struct LaneView {
    /// The lane's row; decisions change it in place.
    pub lane: Lane,
    /// Parked keys and the event that blocks each. Complete for the keys in question.
    pub parked: HashMap<Arc<str>, EventId>,
    /// The first event under way of each key. Has to be complete only for a claim that meets events which are not due.
    pub running: HashMap<Arc<str>, EventId>,
    /// Events that will never be seen, by key, ascending. Complete for the keys in question.
    pub gaps: HashMap<Arc<str>, Vec<EventId>>,
    /// The keys of the events of every chunk in question.
    pub keys: HashMap<ChunkId, Arc<[Option<Arc<str>>]>>,
    /// What the lane stood still for may be gone.
    eased: bool,
}

impl LaneView {
    /// A lane of which nothing else is known yet.
    pub fn new(lane: Lane) -> LaneView {
        LaneView {
            lane,
            parked: HashMap::new(),
            running: HashMap::new(),
            gaps: HashMap::new(),
            keys: HashMap::new(),
            eased: false,
        }
    }

    /// The key of an event, if it has one that matters: where all events are one line, no key waits for itself.
    pub fn key(&self, event: EventId) -> Option<&Arc<str>> {
        if self.lane.lane == LaneId::WHOLE {
            return None;
        }
        self.keys.get(&event.chunk())?.get(event.index() as usize)?.as_ref()
    }

    /// Ids that the next event of `event`'s key has to name.
    pub fn skipped(&self, event: EventId) -> Vec<EventId> {
        let gaps = self.key(event).and_then(|key| self.gaps.get(key));
        gaps.map_or_else(Vec::new, |gaps| gaps.iter().copied().filter(|gap| *gap < event).collect())
    }

    /// Remembers that an event is under way.
    pub fn run(&mut self, event: EventId) {
        if let Some(key) = self.key(event).cloned() {
            let first = self.running.entry(key).or_insert(event);
            *first = event.min(*first);
        }
    }

    /// True if the key of `event` waits for an earlier event.
    fn waits(&self, event: EventId) -> bool {
        self.key(event).and_then(|key| self.parked.get(key)).is_some_and(|first| *first < event)
    }

    /// True if it is `event` that its key waits for.
    fn is_parked_behind(&self, event: EventId) -> bool {
        self.key(event).and_then(|key| self.parked.get(key)) == Some(&event)
    }

    fn park(&mut self, event: EventId, now: Time, changes: &mut Changes) {
        let Some(key) = self.key(event).cloned() else { return };
        let before = self.parked.insert(key.clone(), event);
        if before != Some(event) {
            self.lane.marks += i64::from(before.is_none());
            changes.park.push(Park { lane: self.lane.lane, key, blocked_by: event, since: now });
        }
    }

    /// Lets the key of `event` go on, if it was `event` that it waited for.
    fn unpark(&mut self, event: EventId, changes: &mut Changes) {
        let Some(key) = self.key(event).cloned() else { return };
        if self.is_parked_behind(event) {
            self.parked.remove(&key);
            self.lane.marks -= 1;
            changes.unpark.push((self.lane.lane, key));
            changes.wake = true;
        }
    }

    /// Remembers that the consumer will never see `event` in its place. Of very many only the last ones are told: with them it
    /// knows that nothing is missing before the next event.
    fn gap(&mut self, event: EventId, changes: &mut Changes) {
        let Some(key) = self.key(event).cloned() else { return };
        let gaps = self.gaps.entry(key.clone()).or_default();
        if let Err(at) = gaps.binary_search(&event) {
            gaps.insert(at, event);
            self.lane.marks += 1;
            changes.gaps.push((self.lane.lane, key.clone(), event));
        }
        if gaps.len() > MOST_GAPS {
            let oldest = gaps.remove(0);
            self.lane.marks -= 1;
            changes.told.push((self.lane.lane, key, oldest));
        }
    }

    /// Forgets the gaps before `event`, which the consumer has been told.
    fn tell(&mut self, event: EventId, changes: &mut Changes) {
        let Some(key) = self.key(event).cloned() else { return };
        let Some(gaps) = self.gaps.get_mut(&key) else { return };
        let before = gaps.len();
        gaps.retain(|gap| *gap > event);
        if gaps.len() < before {
            self.lane.marks -= (before - gaps.len()) as i64;
            changes.told.push((self.lane.lane, key, event));
        }
    }

    /// A slice goes for which the lane may stand still. In a line of all events the next claim meets what else has failed; the store
    /// has to look for it elsewhere.
    fn ease(&mut self, slice: &Slice, changes: &mut Changes) {
        if self.lane.halted_until == Time(0) || slice.due_at < self.lane.halted_until {
            return;
        }
        changes.wake = true;
        match self.lane.lane {
            LaneId::WHOLE => self.lane.halted_until = Time(0),
            _ => self.eased = true,
        }
    }

    /// True if the store has to look what failed in the lane and is left, once this change is written: see [`LaneView::halt_for`].
    pub(crate) fn is_eased(&self, now: Time) -> bool {
        self.eased && self.lane.halted_until > now
    }

    /// The lane stands still for what failed in it and is left, and no longer.
    pub(crate) fn halt_for<'a>(&mut self, failed: impl Iterator<Item = &'a Slice>, now: Time) {
        let last = failed.map(|slice| slice.due_at).max().unwrap_or(now);
        self.lane.halted_until = last.min(self.lane.halted_until);
        self.eased = false;
    }

    /// Gives the lane up when nothing of it is leased any more.
    pub(crate) fn let_go(&mut self) {
        if self.lane.leased <= 0 {
            self.lane.leased = 0;
            self.lane.owner = None;
            self.lane.until = Time(0);
        }
    }
}

/// The part of a slice that waits behind its key.
fn parked_part(slice: &Slice, key: &str, event: EventId) -> Slice {
    let mask = Mask::of(event.index());
    Slice { state: State::Parked, rank: i64::from(hash(key)), owner: Default::default(), ..slice.part(mask) }
}

/// Adds a part to a list of new rows, joining parts that differ in nothing but their events.
fn join(rows: &mut Vec<Slice>, part: Slice) {
    let same = |row: &&mut Slice| Slice { mask: part.mask, ..(**row).clone() } == part;
    match rows.iter_mut().rev().take(8).find(same) {
        Some(row) => row.mask = row.mask.plus(part.mask),
        None => rows.push(part),
    }
}
