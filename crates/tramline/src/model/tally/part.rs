//! Parts: which of up to 4,096 items of a tally are still pending.
//!
//! A part is 64 masks of 64 items in one row. One that nobody has touched needs no row: how many items it has follows from
//! what was added. One that is finished keeps its counts, and which items failed.

use crate::error::{Error, Result};
use crate::model::id::TallyId;
use crate::model::mask::Mask;
use crate::model::tally::{AckCount, Ending};

/// How many items a part has at most.
pub const PART: u64 = 4096;
const WORD: u32 = Mask::CAPACITY;

/// A part by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartId {
    /// Whose.
    pub tally: TallyId,
    /// Which: the numbers of its items begin at 4,096 times this.
    pub part: u64,
}

/// What is known of the items of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    items: u32,
    pending: Masks,
    failed: Masks,
}

/// Up to 64 masks, one after the other; those at the end that are empty are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Masks(Vec<Mask>);

impl Part {
    /// A part of `items` items, all pending.
    pub fn new(items: u32) -> Part {
        let pending = (0..items.div_ceil(WORD)).map(|at| Mask::first(items - at * WORD)).collect();
        Part { items, pending: Masks(pending), failed: Masks::default() }
    }

    /// The part number `at` of an addition of `count` items, all pending; `None` if the addition does not reach it.
    pub fn untouched(count: u64, at: u64) -> Option<Part> {
        let items = count.saturating_sub(at.saturating_mul(PART)).min(PART);
        (items > 0).then(|| Part::new(items as u32))
    }

    /// A part as it was stored.
    ///
    /// # Errors
    /// `Invalid` when the row was damaged or written by something else.
    pub fn read(items: u32, pending: Option<&[u8]>, left: u32, failed: Option<&[u8]>) -> Result<Part> {
        let pending = match pending {
            Some(bytes) => Masks::read(bytes),
            None if left == 0 => Some(Masks::default()),
            None => Some(Part::new(items).pending),
        };
        let failed = failed.map_or(Some(Masks::default()), Masks::read);
        let part = pending.zip(failed).map(|(pending, failed)| Part { items, pending, failed });
        part.filter(|part| part.left() == left && left + part.failed() <= items).ok_or_else(|| {
            Error::invalid(
                "a part of a tally cannot be read",
                "it was not written by this program; restore it from a backup",
            )
        })
    }

    /// Which items are pending, as it is stored: nothing where that is all or none.
    pub fn pending_bytes(&self) -> Option<Vec<u8>> {
        let left = self.left();
        (left > 0 && left < self.items).then(|| self.pending.bytes())
    }

    /// Which items failed, as it is stored: nothing where that is none.
    pub fn failed_bytes(&self) -> Option<Vec<u8>> {
        (self.failed() > 0).then(|| self.failed.bytes())
    }

    /// How many items it has.
    pub fn items(&self) -> u32 {
        self.items
    }

    /// How many are pending.
    pub fn left(&self) -> u32 {
        self.pending.count()
    }

    /// How many failed.
    pub fn failed(&self) -> u32 {
        self.failed.count()
    }

    /// How many are done.
    pub fn done(&self) -> u32 {
        self.items - self.left() - self.failed()
    }

    /// True if the item at `index` is pending.
    pub fn is_pending(&self, index: u32) -> bool {
        self.pending.get(index / WORD).contains(index % WORD)
    }

    /// Ends the items from `first` to `last`. Those that have ended before stay as they are, and those that do not exist are
    /// unknown. With `amend`, failed ones become done: an event that was dead has been replayed.
    pub fn end(&mut self, first: u32, last: u32, ending: Ending, amend: bool) -> AckCount {
        let mut count = AckCount::default();
        let known = last.min(self.items.saturating_sub(1));
        if first >= self.items {
            return AckCount { unknown: u64::from(last - first) + 1, ..count };
        }
        count.unknown = u64::from(last - known);
        for word in first / WORD..=known / WORD {
            let from = first.saturating_sub(word * WORD);
            let wanted = Mask::first(known - word * WORD + 1).minus(Mask::first(from));
            let now = wanted.and(self.pending.get(word));
            count.acked += u64::from(now.count());
            count.already += u64::from(wanted.count() - now.count());
            self.pending.take(word, now);
            match ending {
                Ending::Failed => self.failed.put(word, now),
                Ending::Done if amend => self.failed.take(word, wanted),
                Ending::Done => {}
            }
        }
        count
    }
}

impl Masks {
    fn read(bytes: &[u8]) -> Option<Masks> {
        let (words, rest) = bytes.as_chunks::<8>();
        let fits = rest.is_empty() && words.len() <= (PART / u64::from(WORD)) as usize;
        fits.then(|| Masks(words.iter().map(|word| Mask::from_i64(i64::from_le_bytes(*word))).collect()))
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|mask| mask.to_i64().to_le_bytes()).collect()
    }

    fn count(&self) -> u32 {
        self.0.iter().map(|mask| mask.count()).sum()
    }

    fn get(&self, word: u32) -> Mask {
        self.0.get(word as usize).copied().unwrap_or_default()
    }

    fn put(&mut self, word: u32, mask: Mask) {
        if mask.is_empty() {
            return;
        }
        if self.0.len() <= word as usize {
            self.0.resize(word as usize + 1, Mask::EMPTY);
        }
        self.0[word as usize] = self.0[word as usize].plus(mask);
    }

    fn take(&mut self, word: u32, mask: Mask) {
        if let Some(own) = self.0.get_mut(word as usize) {
            *own = own.minus(mask);
        }
        while self.0.last().is_some_and(|last| last.is_empty()) {
            self.0.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn store(part: &Part) -> Part {
        let (pending, failed) = (part.pending_bytes(), part.failed_bytes());
        Part::read(part.items(), pending.as_deref(), part.left(), failed.as_deref()).unwrap()
    }

    fn ending() -> impl Strategy<Value = Ending> {
        prop_oneof![Just(Ending::Done), Just(Ending::Failed)]
    }

    proptest! {
        #[test]
        fn a_part_behaves_like_a_map_and_is_read_back_as_it_was_stored(
            items in 1u32..=4096,
            acks in prop::collection::vec((0u32..4200, 0u32..600, ending(), any::<bool>()), 0..20),
        ) {
            let mut part = Part::new(items);
            let mut model: BTreeMap<u32, Ending> = BTreeMap::new();
            for (first, more, ending, amend) in acks {
                let mut expected = AckCount::default();
                for index in first..=first + more {
                    match model.get(&index) {
                        _ if index >= items => expected.unknown += 1,
                        None => {
                            expected.acked += 1;
                            model.insert(index, ending);
                        }
                        Some(old) => {
                            expected.already += 1;
                            if amend && ending == Ending::Done && *old == Ending::Failed {
                                model.insert(index, Ending::Done);
                            }
                        }
                    }
                }
                prop_assert_eq!(part.end(first, first + more, ending, amend), expected);
                part = store(&part);
                let of = |wanted| model.values().filter(|ending| **ending == wanted).count() as u32;
                prop_assert_eq!(part.done(), of(Ending::Done));
                prop_assert_eq!(part.failed(), of(Ending::Failed));
                prop_assert_eq!(part.left(), items - model.len() as u32);
                prop_assert!((0..4200).all(|i| part.is_pending(i) == (i < items && !model.contains_key(&i))));
            }
        }
    }

    #[test]
    fn whole_and_finished_parts_need_no_masks() {
        let mut part = Part::new(130);
        assert_eq!((part.pending_bytes(), part.left()), (None, 130));
        part.end(0, 63, Ending::Done, false);
        assert_eq!(part.pending_bytes().map(|bytes| bytes.len()), Some(24));
        part.end(64, 129, Ending::Done, false);
        assert_eq!((part.pending_bytes(), part.failed_bytes(), part.done()), (None, None, 130));
    }

    #[test]
    fn damaged_rows_are_errors_and_no_panics() {
        assert!(Part::read(64, Some(&[1; 7]), 1, None).is_err());
        assert!(Part::read(64, Some(&[255; 8]), 3, None).is_err());
        assert!(Part::read(64, Some(&[255; 8192]), 64, None).is_err());
        assert!(Part::read(1, None, 2, None).is_err());
    }
}
