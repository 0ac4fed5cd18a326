//! What acks make of parts, and what the rows of their tallies have to hear of it.

use crate::model::id::TallyId;
use crate::model::tally::part::{PART, Part, PartId};
use crate::model::tally::{Ack, AckCount, Ending, Items, TallyItem, TallyState};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What an ack has to know of a tally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) state: TallyState,
    pub(crate) estimated: bool,
}

/// Acks on their way into parts.
#[derive(Debug)]
pub(crate) struct Acks<'a> {
    pub(super) acks: &'a [Ack],
    /// Failed items become done: an event that was dead has been replayed.
    amend: bool,
}

/// What the row of a tally has to hear of its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    /// How many parts were finished.
    pub(crate) emptied: u64,
    /// How many items more are done in finished parts.
    pub(crate) done: i64,
    /// How many items more have failed in finished parts.
    pub(crate) failed: i64,
    /// The first item that failed now.
    pub(crate) failure: Option<u64>,
}

impl Delta {
    /// True if the row must be locked for it. A failure alone matters only to rows that have to tell it.
    pub(crate) fn concerns(&self, awaits_failure: bool) -> bool {
        self.emptied > 0 || self.done != 0 || self.failed != 0 || (self.failure.is_some() && awaits_failure)
    }
}

/// What acks did.
#[derive(Debug, Default)]
pub(crate) struct AckOutcome {
    /// For every number or range of every ack.
    pub(crate) results: Vec<Vec<AckCount>>,
    /// The parts that have changed.
    pub(crate) changed: BTreeSet<PartId>,
    /// What the rows of their tallies have to hear.
    pub(crate) deltas: BTreeMap<TallyId, Delta>,
}

impl<'a> Acks<'a> {
    pub(crate) fn new(acks: &'a [Ack], amend: bool) -> Acks<'a> {
        Acks { acks, amend }
    }

    /// The tallies that are meant.
    pub(crate) fn tallies(&self) -> BTreeSet<TallyId> {
        self.acks.iter().map(|ack| ack.tally).collect()
    }

    /// The parts that are touched, sorted: in this order they are locked.
    pub(crate) fn parts(&self) -> BTreeSet<PartId> {
        let parts = |ack: &'a Ack| ack.items.iter().flat_map(|items| parts_of(ack.tally, *items));
        self.acks.iter().flat_map(parts).collect()
    }

    /// Ends items in parts. `parts` holds all that exist of those that are touched, locked; `standings` the tallies that exist.
    pub(crate) fn apply(
        &self,
        standings: &HashMap<TallyId, Standing>,
        parts: &mut BTreeMap<PartId, Part>,
    ) -> AckOutcome {
        let mut outcome = AckOutcome::default();
        let before: BTreeMap<PartId, Sums> = parts.iter().map(|(id, part)| (*id, Sums::of(part))).collect();
        for ack in self.acks {
            let into = Into::of(standings.get(&ack.tally));
            let counts = ack.items.iter().map(|items| match into {
                Into::Nowhere => AckCount { unknown: items.count(), ..AckCount::default() },
                Into::Closed => AckCount { closed: items.count(), ..AckCount::default() },
                Into::Parts => self.end(ack, *items, parts, &mut outcome.deltas),
            });
            outcome.results.push(counts.collect());
        }
        for (id, part) in parts {
            let (old, new) = (before[id], Sums::of(part));
            if old == new {
                continue;
            }
            outcome.changed.insert(*id);
            if new.left == 0 {
                let delta = outcome.deltas.entry(id.tally).or_default();
                let known = if old.left == 0 { old } else { Sums::default() };
                delta.emptied += u64::from(old.left > 0);
                delta.done += new.done - known.done;
                delta.failed += new.failed - known.failed;
            }
        }
        outcome
    }

    fn end(
        &self,
        ack: &Ack,
        items: Items,
        parts: &mut BTreeMap<PartId, Part>,
        deltas: &mut BTreeMap<TallyId, Delta>,
    ) -> AckCount {
        let mut sum = AckCount::default();
        for id in parts_of(ack.tally, items) {
            let start = id.part * PART;
            let first = items.first.max(start);
            let last = items.last.min(start + PART - 1);
            let Some(part) = parts.get_mut(&id) else {
                sum.unknown += last - first + 1;
                continue;
            };
            let (from, to) = ((first - start) as u32, (last - start) as u32);
            if ack.ending == Ending::Failed
                && let Some(at) = (from..=to).find(|at| part.is_pending(*at))
            {
                deltas.entry(ack.tally).or_default().failure.get_or_insert(start + u64::from(at));
            }
            sum = sum.plus(part.end(from, to, ack.ending, self.amend));
        }
        sum
    }
}

/// Where acks of a tally go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Into {
    Nowhere,
    Closed,
    Parts,
}

impl Into {
    fn of(standing: Option<&Standing>) -> Into {
        match standing {
            None | Some(Standing { estimated: true, .. }) => Into::Nowhere,
            Some(Standing { state: TallyState::Cancelled | TallyState::Expired, .. }) => Into::Closed,
            Some(_) => Into::Parts,
        }
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    left: u32,
    done: i64,
    failed: i64,
}

impl Sums {
    fn of(part: &Part) -> Sums {
        Sums { left: part.left(), done: i64::from(part.done()), failed: i64::from(part.failed()) }
    }
}

fn parts_of(tally: TallyId, items: Items) -> impl Iterator<Item = PartId> {
    (items.first / PART..=items.last / PART).map(move |part| PartId { tally, part })
}

/// Items that ended one by one, as acks: sorted, and in ranges where their numbers follow each other.
pub(crate) fn gather(mut items: Vec<(TallyItem, Ending)>) -> Vec<Ack> {
    items.sort_by_key(|(item, ending)| (item.tally, *ending == Ending::Failed, item.number));
    let mut acks: Vec<Ack> = Vec::new();
    for (item, ending) in items {
        match acks.last_mut().filter(|ack| (ack.tally, ack.ending) == (item.tally, ending)) {
            Some(ack) => match ack.items.last_mut().filter(|last| last.last + 1 == item.number) {
                Some(last) => last.last = item.number,
                None => ack.items.push(item.number.into()),
            },
            None => acks.push(Ack { tally: item.tally, items: vec![item.number.into()], ending }),
        }
    }
    acks
}
