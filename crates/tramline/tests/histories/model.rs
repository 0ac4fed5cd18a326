//! One subscription as it should be: where each of its events is, by the words of the design, with no trace of chunks,
//! masks or rows.
//!
//! A lease that has ended is in limbo: it is not said when a store notices. Until then it may be settled or extended as if
//! nothing had happened; once an answer shows that it was noticed, its events count as crashed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tramline::model::id::{EventId, Incarnation, SubscriptionId};
use tramline::model::lane;
use tramline::model::lease::Lease;
use tramline::model::outcome::Outcome;
use tramline::model::rule::RuleKind;
use tramline::model::status::Status;
use tramline::model::subscription::{OnExhausted, Policy, WhileRetrying};
use tramline::model::tally::Ending;
use tramline::model::time::Time;

pub(crate) type Key = String;

#[derive(Clone, Debug)]
pub(crate) struct Sub {
    pub(crate) id: SubscriptionId,
    pub(crate) name: String,
    pub(crate) policy: Policy,
    pub(crate) items: BTreeMap<EventId, Item>,
    pub(crate) leases: Vec<Held>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) gaps: BTreeMap<Key, BTreeSet<EventId>>,
    pub(crate) rules: BTreeSet<RuleKind>,
    /// The events that are items of its tally, and how those ended that have.
    pub(crate) tallied: BTreeMap<EventId, Option<Ending>>,
}

/// An event, and what the subscription knows of it.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) key: Option<Key>,
    pub(crate) prev: Option<EventId>,
    pub(crate) place: Place,
    pub(crate) attempts: u32,
    pub(crate) crashes: u32,
    pub(crate) alone: u32,
    pub(crate) replayed: bool,
    /// True once it failed, or was put off.
    pub(crate) failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Emitted before the subscription, and not yet written into it.
    Unfilled,
    /// Nobody has it.
    Free {
        due: Time,
    },
    /// The lease of this number has it.
    Leased(usize),
    Held,
    Dead,
    /// Done, dropped or cancelled.
    Gone,
}

/// A claim of some events.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) lease: Lease,
    pub(crate) owner: Incarnation,
    /// Its end; in an ordered subscription the lane has it.
    pub(crate) until: Time,
    pub(crate) lane: usize,
    /// What is left of it.
    pub(crate) events: BTreeSet<EventId>,
    /// True once its end was noticed.
    pub(crate) lost: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Lane {
    pub(crate) holder: Option<(Incarnation, Time)>,
    /// Halted surely until the first time, and perhaps until the second.
    pub(crate) halted: (Time, Time),
}

impl Item {
    pub(crate) fn new(key: Option<Key>, prev: Option<EventId>, place: Place) -> Item {
        Item { key, prev, place, attempts: 0, crashes: 0, alone: 0, replayed: false, failed: false }
    }

    pub(crate) fn is_pending(&self) -> bool {
        !matches!(self.place, Place::Dead | Place::Gone)
    }

    /// Runs again from the start.
    fn revive(&mut self, now: Time, replayed: bool) {
        let (key, prev) = (self.key.clone(), self.prev);
        *self = Item { replayed, ..Item::new(key, prev, Place::Free { due: now }) };
    }
}

impl Sub {
    pub(crate) fn new(id: SubscriptionId, name: String, policy: Policy, lanes: u32) -> Sub {
        Sub {
            id,
            name,
            policy,
            items: BTreeMap::new(),
            leases: Vec::new(),
            lanes: vec![Lane::default(); lanes as usize],
            gaps: BTreeMap::new(),
            rules: BTreeSet::new(),
            tallied: BTreeMap::new(),
        }
    }

    /// How many items of its tally have ended so.
    pub(crate) fn ended(&self, ending: Ending) -> u64 {
        self.tallied.values().filter(|ended| **ended == Some(ending)).count() as u64
    }

    /// An item ends once; but what failed is done if it is done after all.
    fn end(&mut self, id: EventId, ending: Ending) {
        if let Some(ended) = self.tallied.get_mut(&id)
            && (ended.is_none() || ending == Ending::Done)
        {
            *ended = Some(ending);
        }
    }

    pub(crate) fn is_ordered(&self) -> bool {
        self.policy.is_ordered()
    }

    pub(crate) fn is_once(&self) -> bool {
        self.policy.is_at_most_once()
    }

    pub(crate) fn lane_of(&self, id: EventId) -> usize {
        let key = self.items[&id].key.as_deref();
        key.map_or(0, |key| lane::hash(key) as usize % self.lanes.len())
    }

    /// The key in whose order the event runs, if any.
    pub(crate) fn ordered_key(&self, id: EventId) -> Option<&Key> {
        let item = &self.items[&id];
        item.key.as_ref().filter(|_| self.is_ordered() && !item.replayed)
    }

    /// The events of the same key that come before in its order and are still to be done.
    pub(crate) fn pending_before(&self, id: EventId) -> impl Iterator<Item = EventId> {
        let key = self.ordered_key(id);
        let same = move |item: &Item| key.is_some() && item.key.as_ref() == key && !item.replayed;
        self.items.range(..id).filter(move |(_, item)| same(item) && item.is_pending()).map(|(id, _)| *id)
    }

    /// The events of the same key that come after in its order and that somebody has.
    pub(crate) fn leased_after(&self, id: EventId) -> impl Iterator<Item = EventId> {
        let key = self.ordered_key(id);
        let later = self.items.range(EventId(id.0 + 1)..).map(|(later, _)| *later);
        later.filter(move |later| {
            let leased = matches!(self.items[later].place, Place::Leased(_));
            leased && key.is_some() && self.ordered_key(*later) == key
        })
    }

    /// True while a lease has not ended.
    pub(crate) fn is_live(&self, lease: usize, now: Time) -> bool {
        let held = &self.leases[lease];
        if !self.is_ordered() {
            return held.until > now;
        }
        self.lanes[held.lane].holder.is_some_and(|(_, until)| until > now)
    }

    /// The leases of a worker with something left, by number.
    pub(crate) fn leases_of(&self, owner: Incarnation) -> Vec<usize> {
        let with = |held: &Held| held.owner == owner && !held.events.is_empty();
        (0..self.leases.len()).filter(|at| with(&self.leases[*at])).collect()
    }

    /// The leases that share their fate with this one, itself among them.
    fn fellows(&self, lease: usize) -> Vec<usize> {
        if !self.is_ordered() {
            return vec![lease];
        }
        let lane = self.leases[lease].lane;
        let in_lane = |at: &usize| self.leases[*at].lane == lane && !self.leases[*at].events.is_empty();
        (0..self.leases.len()).filter(in_lane).collect()
    }

    /// A lease was noticed to have ended: nobody knows what became of its events.
    pub(crate) fn crash(&mut self, lease: usize, now: Time) {
        let mut lost: BTreeMap<EventId, bool> = BTreeMap::new();
        let lane = self.leases[lease].lane;
        for at in self.fellows(lease) {
            self.leases[at].lost = true;
            let events = std::mem::take(&mut self.leases[at].events);
            let alone = events.len() == 1;
            lost.extend(events.into_iter().map(|id| (id, alone)));
        }
        for (id, alone) in lost {
            let once = self.is_once();
            let Some(item) = self.items.get_mut(&id) else { continue };
            item.place = Place::Free { due: now };
            if !once {
                item.alone += u32::from(alone && item.crashes > 0);
                item.crashes += 1;
            }
            if once || item.alone >= 3 {
                self.bury(id);
            }
        }
        self.lanes[lane].holder = None;
    }

    /// True if noticing that its lease has ended would bury the event.
    pub(crate) fn would_bury(&self, id: EventId, lease: usize) -> bool {
        let item = &self.items[&id];
        let alone = self.leases[lease].events.len() == 1 && item.crashes > 0;
        self.is_once() || item.alone + u32::from(alone) >= 3
    }

    /// The event will not be done, and goes where the policy says.
    fn bury(&mut self, id: EventId) {
        let held_before = self.pending_before(id).any(|before| self.items[&before].place == Place::Held);
        let ordered = self.ordered_key(id).cloned();
        let Some(item) = self.items.get_mut(&id) else { return };
        item.place = match self.policy.on_exhausted {
            OnExhausted::Drop => Place::Gone,
            OnExhausted::Hold if ordered.is_some() && !held_before => Place::Held,
            OnExhausted::Dead | OnExhausted::Hold => Place::Dead,
        };
        let held = item.place == Place::Held;
        if let (Some(key), false) = (ordered, held) {
            self.gaps.entry(key).or_default().insert(id);
        }
        if !held {
            self.end(id, Ending::Failed);
        }
    }

    /// Takes an event out of its lease; a lane with nothing left is free.
    fn give_up(&mut self, id: EventId, place: Place) {
        if let Place::Leased(at) = self.items[&id].place {
            self.leases[at].events.remove(&id);
            if self.fellows(at).is_empty() {
                let lane = self.leases[at].lane;
                self.lanes[lane].holder = None;
            }
        }
        if let Some(item) = self.items.get_mut(&id) {
            item.place = place;
        }
    }

    /// An outcome was taken.
    pub(crate) fn settle(&mut self, id: EventId, outcome: &Outcome, now: Time) {
        self.give_up(id, Place::Gone);
        let max_attempts = self.policy.retry.max_attempts;
        let once = self.is_once();
        let Some(item) = self.items.get_mut(&id) else { return };
        item.attempts += u32::from(matches!(outcome, Outcome::Retry { .. } | Outcome::Dead { .. }));
        let again = match outcome {
            Outcome::Done => return self.done(id),
            Outcome::Snooze { delay } => Some(*delay),
            Outcome::Retry { delay, .. } if item.attempts < max_attempts && !once => {
                Some(delay.unwrap_or(Duration::from_secs(5)))
            }
            Outcome::Retry { .. } | Outcome::Dead { .. } => None,
        };
        match again {
            Some(delay) => self.wait(id, now.after(delay)),
            None => self.bury(id),
        }
        if self.items[&id].is_pending() {
            self.take_back_later(id, now);
        }
    }

    /// The consumer has seen the event, and with it the gaps before it.
    fn done(&mut self, id: EventId) {
        self.end(id, Ending::Done);
        if let Some(key) = self.ordered_key(id).cloned() {
            self.gaps.entry(key).or_default().retain(|gap| *gap > id);
        }
    }

    fn wait(&mut self, id: EventId, due: Time) {
        if self.is_ordered() && self.policy.while_retrying == WhileRetrying::Halt {
            let lane = self.lane_of(id);
            let (sure, maybe) = self.lanes[lane].halted;
            self.lanes[lane].halted = (sure.max(due), maybe.max(due));
        }
        if let Some(item) = self.items.get_mut(&id) {
            (item.place, item.crashes, item.alone, item.failed) = (Place::Free { due }, 0, 0, true);
        }
    }

    /// An event has to wait: the later ones of its key are taken from whoever has them.
    fn take_back_later(&mut self, id: EventId, now: Time) {
        let later: Vec<EventId> = self.leased_after(id).collect();
        for later in later {
            self.give_up(later, Place::Free { due: now });
        }
    }

    /// Somebody gives an event back, and with it the later ones of its key.
    pub(crate) fn release(&mut self, id: EventId, now: Time) {
        self.give_up(id, Place::Free { due: now });
        self.take_back_later(id, now);
    }

    /// Somebody drops or cancels an event that nobody has.
    pub(crate) fn remove(&mut self, id: EventId, now: Time) {
        let (was, lane) = (self.items[&id].place, self.lane_of(id));
        let was_dead = was == Place::Dead;
        if let (Some(key), false) = (self.ordered_key(id).cloned(), was_dead) {
            self.gaps.entry(key).or_default().insert(id);
        }
        self.end(id, Ending::Failed);
        self.give_up(id, Place::Gone);
        if let Place::Free { due } = was {
            self.ease(lane, due, now);
        }
    }

    /// What failed in a lane and is not due.
    pub(crate) fn failed_in(&self, lane: usize, now: Time) -> impl Iterator<Item = (EventId, Time)> {
        self.items.iter().filter_map(move |(id, item)| match item.place {
            Place::Free { due } if item.failed && due > now && self.lane_of(*id) == lane => Some((*id, due)),
            _ => None,
        })
    }

    /// A lane is halted by what failed and is left, if what halted it goes.
    fn ease(&mut self, lane: usize, due: Time, now: Time) {
        let left = self.failed_in(lane, now).map(|(_, due)| due).max().unwrap_or(now);
        let (sure, maybe) = &mut self.lanes[lane].halted;
        for halted in [sure, maybe].into_iter().filter(|halted| due >= **halted) {
            *halted = left.min(*halted);
        }
    }

    /// Somebody replays or resends an event. A held one still has its place in the order.
    pub(crate) fn replay(&mut self, id: EventId, now: Time) {
        if let Some(item) = self.items.get_mut(&id) {
            let replayed = item.replayed || item.place != Place::Held;
            item.revive(now, replayed);
        }
    }

    /// Somebody lets a parked key go on: the event that it waits for may run now.
    pub(crate) fn hasten(&mut self, id: EventId, now: Time) {
        match self.items[&id].place {
            Place::Held => self.replay(id, now),
            Place::Free { due } if due > now => self.give_up(id, Place::Free { due: now }),
            _ => {}
        }
    }

    /// What the counts may show of an event. The later events of a key are set aside when a claim meets them.
    pub(crate) fn statuses(&self, id: EventId, now: Time) -> Vec<Status> {
        match self.items[&id].place {
            Place::Unfilled | Place::Gone => vec![Status::Settled],
            Place::Dead => vec![Status::Dead],
            Place::Held => vec![Status::Parked],
            Place::Leased(at) if self.is_live(at, now) || self.is_once() => vec![Status::Leased],
            Place::Leased(_) => vec![Status::Ready],
            Place::Free { due } => {
                let own = if due > now { Status::Delayed } else { Status::Ready };
                if self.pending_before(id).next().is_some() { vec![own, Status::Parked] } else { vec![own] }
            }
        }
    }
}
