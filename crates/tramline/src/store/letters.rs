//! Which dead events one step is about.

use crate::error::Result;
use crate::model::chunk::ChunkRow;
use crate::model::event::StoredEvent;
use crate::model::id::{ChunkId, EventId, SubscriptionId};
use crate::model::letter::Letters;
use crate::model::mask::Mask;
use crate::model::slice::Slice;
use crate::model::time::Time;
use crate::store::catalog::Catalog;
use crate::store::failures::History;
use crate::store::verbs::{DeadEvent, DeadPage, ListDead, Page};
use std::collections::{BTreeMap, HashMap};

/// Of the chunks of the rows that a step of so many found, in order, those that it has all rows of, and where the next step goes on.
pub(crate) fn whole_chunks(mut found: Vec<i64>, step: usize) -> (Vec<i64>, Option<EventId>) {
    let full = found.len() >= step;
    found.dedup();
    if full {
        found.pop();
    }
    let next = found.last().filter(|_| full).map(|last| EventId::at(ChunkId(*last), Mask::CAPACITY - 1));
    (found, next)
}

/// The subscriptions that keep dead events for a limited time, and until when those have died that are to go.
pub(crate) fn old_dead(catalog: &Catalog, now: Time) -> Vec<(SubscriptionId, Time)> {
    let limited = catalog.subscriptions().iter();
    limited.filter_map(|one| Some((one.id, now.before(one.policy.dead_retention?)))).collect()
}

/// Which events a step takes from the rows that it has locked.
pub(crate) struct Chosen {
    by_chunk: Option<BTreeMap<ChunkId, Mask>>,
    letters: Letters,
}

impl Chosen {
    /// Those with these numbers.
    pub(crate) fn by_number(wanted: BTreeMap<ChunkId, Mask>) -> Chosen {
        Chosen { by_chunk: Some(wanted), letters: Letters::default() }
    }

    /// Those of which something is true. `rows`: the chunks in question, if they have to be known.
    pub(crate) fn by_letters<'a>(
        letters: Letters,
        rows: impl Iterator<Item = &'a ChunkRow>,
        catalog: &Catalog,
    ) -> Result<Chosen> {
        let mut by_chunk = None;
        if letters.asks_for_events() {
            let select =
                |row: &ChunkRow| Ok((row.chunk, letters.select(row, &catalog.topic_name(row.topic))?));
            by_chunk = Some(rows.map(select).collect::<Result<_>>()?);
        }
        Ok(Chosen { by_chunk, letters })
    }

    /// The events of a dead or held slice that are meant.
    pub(crate) fn of(&self, slice: &Slice) -> Mask {
        if !self.letters.fits(slice) {
            return Mask::EMPTY;
        }
        match &self.by_chunk {
            None => slice.mask,
            Some(wanted) => wanted.get(&slice.chunk).map_or(Mask::EMPTY, |mask| slice.mask.and(*mask)),
        }
    }
}

/// How many rows a look for dead events takes. Rows of a chunk are in the order of the deaths. Up to 64 belong to what was listed
/// before, and the last 64 may be a part of their chunk: the page is filled from whole chunks between them.
pub(crate) fn rows_of(page: &Page) -> u32 {
    page.limit.saturating_add(2 * Mask::CAPACITY)
}

/// The page that a look comes to.
pub(crate) struct Buried<'a> {
    pub(crate) list: &'a ListDead,
    /// Rows in the order of their chunks, [`rows_of`] at most, and the chunks.
    pub(crate) found: Vec<Slice>,
    /// There may be more rows than these.
    pub(crate) is_full: bool,
    pub(crate) chunks: &'a HashMap<ChunkId, ChunkRow>,
    pub(crate) history: &'a History,
    pub(crate) catalog: &'a Catalog,
}

impl Buried<'_> {
    pub(crate) fn page(mut self) -> Result<DeadPage> {
        let Page { after, limit, .. } = self.list.page;
        let mut next = self.keep_whole_chunks();
        let mut events = Vec::new();
        for slice in self.found.iter().filter(|slice| self.list.letters.fits(slice)) {
            events.extend(self.events(slice)?);
        }
        events.retain(|dead| dead.event.id > after);
        events.sort_by_key(|dead| dead.event.id);
        if events.len() > limit as usize {
            events.truncate(limit as usize);
            next = events.last().map(|last| last.event.id);
        }
        for dead in &mut events {
            dead.failures = self.history.failures(self.list.page.subscription, dead.event.id);
        }
        Ok(DeadPage { events, next })
    }

    /// Leaves out a chunk of which there may be more rows, and says where the next look goes on then.
    fn keep_whole_chunks(&mut self) -> Option<EventId> {
        if !self.is_full {
            return None;
        }
        let part = self.found.last()?.chunk;
        self.found.retain(|slice| slice.chunk != part);
        self.found.last().map(|last| EventId::at(last.chunk, Mask::CAPACITY - 1))
    }

    fn events(&self, slice: &Slice) -> Result<Vec<DeadEvent>> {
        let Some(row) = self.chunks.get(&slice.chunk) else { return Ok(Vec::new()) };
        let topic = self.catalog.topic_name(row.topic);
        let mask = match self.list.letters.asks_for_events() {
            true => slice.mask.and(self.list.letters.select(row, &topic)?),
            false => slice.mask,
        };
        let dead = |event: StoredEvent| DeadEvent {
            event: event.shown_to(slice.subscription),
            attempts: slice.attempts,
            crashes: slice.crashes,
            error: slice.error.clone().unwrap_or_default(),
            died_at: slice.due_at,
            failures: Vec::new(),
        };
        Ok(row.select(&topic, mask)?.into_iter().map(dead).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_whole_chunks_and_says_where_the_next_one_begins() {
        assert_eq!(whole_chunks(vec![3, 3, 7], 500), (vec![3, 7], None));
        assert_eq!(whole_chunks(Vec::new(), 500), (Vec::new(), None));
        let mut many: Vec<i64> = (1..500).collect();
        many.push(499);
        let (chunks, next) = whole_chunks(many, 500);
        assert_eq!((chunks.len(), next.map(EventId::chunk)), (498, Some(ChunkId(498))));
    }
}
