//! Which dead events one step is about.

use crate::error::Result;
use crate::model::chunk::ChunkRow;
use crate::model::id::{ChunkId, EventId};
use crate::model::letter::Letters;
use crate::model::mask::Mask;
use crate::model::slice::Slice;
use crate::model::time::Time;
use crate::store::catalog::Catalog;
use std::collections::BTreeMap;

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
pub(crate) fn old_dead(catalog: &Catalog, now: Time) -> (Vec<i64>, Vec<i64>) {
    let limited = catalog.subscriptions().iter();
    let limited = limited.filter_map(|one| Some((one.id.0, now.before(one.policy.dead_retention?).0)));
    limited.unzip()
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
