//! A set of up to 64 positions: which events of a chunk are still to do.

use std::fmt;

/// A set of indexes `0..64`, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mask(u64);

impl Mask {
    /// How many positions a mask can hold.
    pub const CAPACITY: u32 = 64;
    /// The mask with nothing in it.
    pub const EMPTY: Mask = Mask(0);

    /// The positions `0..count`. Counts above the capacity mean a full mask.
    pub const fn first(count: u32) -> Mask {
        if count >= Self::CAPACITY { Mask(u64::MAX) } else { Mask((1 << count) - 1) }
    }

    /// The mask with only `index` in it. Indexes past the capacity give an empty mask.
    pub const fn of(index: u32) -> Mask {
        if index >= Self::CAPACITY { Mask(0) } else { Mask(1 << index) }
    }

    /// The mask behind a database integer: the same 64 bits, read as unsigned.
    pub const fn from_i64(bits: i64) -> Mask {
        Mask(bits.cast_unsigned())
    }

    /// The same 64 bits as a signed integer, which every database can store.
    pub const fn to_i64(self) -> i64 {
        self.0.cast_signed()
    }

    /// How many positions are set.
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// True when no position is set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True when `index` is set.
    pub const fn contains(self, index: u32) -> bool {
        !Self::of(index).and(self).is_empty()
    }

    /// True when every position of `other` is set here too.
    pub const fn covers(self, other: Mask) -> bool {
        other.minus(self).is_empty()
    }

    /// Positions in both.
    pub const fn and(self, other: Mask) -> Mask {
        Mask(self.0 & other.0)
    }

    /// Positions in either.
    pub const fn plus(self, other: Mask) -> Mask {
        Mask(self.0 | other.0)
    }

    /// Positions of this mask that are not in `other`.
    pub const fn minus(self, other: Mask) -> Mask {
        Mask(self.0 & !other.0)
    }

    /// Splits off the lowest `count` positions: `(those, the rest)`.
    pub const fn split_lowest(self, count: u32) -> (Mask, Mask) {
        let mut rest = self.0;
        let mut left = count;
        while left > 0 && rest != 0 {
            rest &= rest - 1; // clears the lowest set bit
            left -= 1;
        }
        (Mask(self.0 & !rest), Mask(rest))
    }

    /// The lowest position, if any.
    pub const fn lowest(self) -> Option<u32> {
        if self.0 == 0 { None } else { Some(self.0.trailing_zeros()) }
    }

    /// The set positions, ascending.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let index = Mask(rest).lowest()?;
            rest &= rest - 1;
            Some(index)
        })
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl FromIterator<u32> for Mask {
    fn from_iter<I: IntoIterator<Item = u32>>(indexes: I) -> Mask {
        indexes.into_iter().fold(Mask::EMPTY, |mask, index| mask.plus(Mask::of(index)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn set(mask: Mask) -> BTreeSet<u32> {
        mask.iter().collect()
    }

    #[test]
    fn every_mask_of_sixteen_bits_behaves_like_a_set() {
        for bits in 0..=u16::MAX {
            let mask = Mask(u64::from(bits));
            let expected: BTreeSet<u32> = (0..16).filter(|i| bits & (1 << i) != 0).collect();
            assert_eq!(set(mask), expected);
            assert_eq!(mask.count() as usize, expected.len());
            assert_eq!(mask.lowest(), expected.first().copied());
            for count in 0..=16 {
                let (low, high) = mask.split_lowest(count);
                let cut: BTreeSet<u32> = expected.iter().copied().take(count as usize).collect();
                assert_eq!(set(low), cut);
                assert_eq!(low.plus(high), mask);
                assert!(low.and(high).is_empty());
            }
        }
    }

    #[test]
    fn the_borders_of_the_word_are_positions_like_any_other() {
        assert_eq!(Mask::first(0), Mask::EMPTY);
        assert_eq!(Mask::first(64).count(), 64);
        assert_eq!(Mask::first(99), Mask::first(64));
        assert_eq!(Mask::of(63).lowest(), Some(63));
        assert_eq!(Mask::of(64), Mask::EMPTY);
        assert_eq!(Mask::from_i64(-1), Mask::first(64));
        assert_eq!(Mask::of(63).to_i64(), i64::MIN);
        assert_eq!(Mask::first(64).split_lowest(64), (Mask::first(64), Mask::EMPTY));
        assert_eq!(format!("{:?}", Mask::from_iter([3, 63])), "{3, 63}");
    }

    proptest! {
        #[test]
        fn masks_are_sets(a in any::<u64>(), b in any::<u64>(), n in 0u32..70) {
            let (x, y) = (Mask(a), Mask(b));
            prop_assert_eq!(Mask::from_i64(x.to_i64()), x);
            prop_assert_eq!(x.iter().collect::<Mask>(), x);
            prop_assert_eq!(set(x.and(y)), set(x).intersection(&set(y)).copied().collect::<BTreeSet<_>>());
            prop_assert_eq!(set(x.plus(y)), set(x).union(&set(y)).copied().collect::<BTreeSet<_>>());
            prop_assert_eq!(set(x.minus(y)), set(x).difference(&set(y)).copied().collect::<BTreeSet<_>>());
            prop_assert_eq!(x.covers(y), set(y).is_subset(&set(x)));
            let (low, high) = x.split_lowest(n);
            prop_assert_eq!(low.count(), n.min(x.count()));
            prop_assert_eq!(low.plus(high), x);
            if let (Some(last), Some(next)) = (low.iter().last(), high.lowest()) {
                prop_assert!(last < next);
            }
        }
    }
}
