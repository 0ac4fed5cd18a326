//! Items under the names that Carlyle gives them: groups of up to 64, each known by a UUID.
//!
//! A group is 64 consecutive numbers. Its UUID is made of the tally and of where the group begins, so that nothing has to be
//! stored for it and it can be read back.

use crate::error::{Error, Result};
use crate::model::id::TallyId;
use crate::model::mask::Mask;
use crate::model::tally::{Added, TallyItem};
use std::fmt;
use std::str::FromStr;

/// How many items Carlyle's clients add at a time.
pub const ADD_CHUNK: u64 = 10_000;
/// How many items Carlyle's clients ack at a time.
pub const ACK_CHUNK: usize = 100;

const SIZE: u64 = Mask::CAPACITY as u64;
/// The group of a tally that has no items: a plain counter, known by a UUID of its own.
const NO_GROUP: u64 = HALF;
/// A UUID of version 8 has 122 bits to give: 61 for the tally, 61 for the group.
const HALF: u64 = (1 << 61) - 1;

/// Up to 64 items of a tally, numbered from 0 to `upto - 1` within the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub id: GroupId,
    /// How many items it has.
    pub upto: u32,
}

/// The name of a group, written as a UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId {
    tally: TallyId,
    row: u64,
}

impl Added {
    /// The items in groups of 64 and one remainder.
    pub fn groups(&self, tally: TallyId) -> impl Iterator<Item = Group> + use<> {
        let Added { first, count } = *self;
        (0..count.div_ceil(SIZE)).map(move |at| Group {
            id: GroupId { tally, row: first / SIZE + at },
            upto: (count - at * SIZE).min(SIZE) as u32,
        })
    }
}

impl Group {
    /// The names of its items: `tally:uuid:0`, `tally:uuid:1`, and so on.
    pub fn items(&self) -> impl Iterator<Item = String> + use<> {
        let id = self.id;
        (0..self.upto).map(move |index| format!("{}:{id}:{index}", id.tally))
    }
}

/// The names of all items of groups.
pub fn expand(groups: impl IntoIterator<Item = Group>) -> Vec<String> {
    groups.into_iter().flat_map(|group| group.items()).collect()
}

/// The item behind a name `tally:uuid:index`.
///
/// # Errors
/// `Invalid` when it is no such name, or names a group of another tally.
pub fn parse_item(name: &str) -> Result<TallyItem> {
    let bad = || {
        let shown: String = name.chars().take(80).collect();
        Error::invalid(
            format!("{shown:?} is not an item"),
            "send batchId:groupUuid:index as the groups were given, with an index below `upto`",
        )
    };
    let mut parts = name.split(':');
    let (Some(tally), Some(group), Some(index), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(bad());
    };
    let group: GroupId = group.parse().map_err(|_| bad())?;
    let index: u32 = digits(index).and_then(|index| index.parse().ok()).ok_or_else(bad)?;
    let same = digits(tally).and_then(|tally| tally.parse().ok()) == Some(group.tally.0);
    if !same || index >= Mask::CAPACITY {
        return Err(bad());
    }
    Ok(TallyItem { tally: group.tally, number: group.row * SIZE + u64::from(index) })
}

/// Numbers are written one way only, so that one item has one name.
fn digits(text: &str) -> Option<&str> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    plain.then_some(text)
}

/// The name of a plain counter.
pub fn counter_name(tally: TallyId) -> String {
    GroupId { tally, row: NO_GROUP }.to_string()
}

/// The plain counter behind a name; `None` if it names none.
pub fn parse_counter(name: &str) -> Option<TallyId> {
    uuid(name).map(split).filter(|(_, row)| *row == NO_GROUP).map(|(tally, _)| tally)
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = u128::from(self.tally.0.cast_unsigned() & HALF) << 61 | u128::from(self.row & HALF);
        // 48 bits, the version, 12 bits, the variant, 62 bits.
        let (high, middle, low) = (bits >> 74, (bits >> 62) & 0xfff, bits & ((1 << 62) - 1));
        let all = high << 80 | 8 << 76 | middle << 64 | 2 << 62 | low;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            all >> 96,
            (all >> 80) & 0xffff,
            (all >> 64) & 0xffff,
            (all >> 48) & 0xffff,
            all & 0xffff_ffff_ffff
        )
    }
}

impl FromStr for GroupId {
    type Err = Error;

    fn from_str(text: &str) -> Result<GroupId> {
        let group = uuid(text).map(split).filter(|(_, row)| *row <= HALF / SIZE);
        group.map(|(tally, row)| GroupId { tally, row }).ok_or_else(|| {
            Error::invalid("this is not the UUID of a group", "send it exactly as it was given")
        })
    }
}

fn uuid(text: &str) -> Option<u128> {
    let dashes = [8, 13, 18, 23];
    let fits = text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match dashes.contains(&at) {
            true => byte == b'-',
            false => byte.is_ascii_hexdigit(),
        });
    let all = u128::from_str_radix(&text.replace('-', ""), 16).ok().filter(|_| fits)?;
    let ours = (all >> 76) & 0xf == 8 && (all >> 62) & 3 == 2;
    ours.then_some(all)
}

fn split(all: u128) -> (TallyId, u64) {
    let bits = (all >> 80) << 74 | ((all >> 64) & 0xfff) << 62 | (all & ((1 << 62) - 1));
    (TallyId((bits >> 61) as i64), bits as u64 & HALF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_item_is_found_by_its_name(tally in 1i64..1 << 60, row in 0u64..1 << 54, count in 1u64..300) {
            let added = Added { first: row * SIZE, count };
            let groups: Vec<Group> = added.groups(TallyId(tally)).collect();
            prop_assert_eq!(groups.iter().map(|group| u64::from(group.upto)).sum::<u64>(), count);
            prop_assert!(groups[..groups.len() - 1].iter().all(|group| group.upto == 64));
            let numbers: Vec<u64> = expand(groups).iter().map(|name| {
                let item = parse_item(name).unwrap();
                assert_eq!(item.tally, TallyId(tally));
                item.number
            }).collect();
            prop_assert_eq!(numbers, (added.first..added.first + count).collect::<Vec<_>>());
        }

        #[test]
        fn any_other_text_is_refused(text in "\\PC{0,50}") {
            prop_assert!(parse_item(&text).is_err());
            prop_assert!(parse_counter(&text).is_none());
        }
    }

    #[test]
    fn a_name_of_another_tally_or_past_the_group_is_refused() {
        let group = Added { first: 64, count: 3 }.groups(TallyId(7)).next().unwrap();
        let id = group.id;
        assert_eq!(parse_item(&format!("7:{id}:2")).unwrap().number, 66);
        for bad in ["8:ID:0", "7:ID:64", "7:ID:-1", "7:ID:00", "+7:ID:0", "7:ID", "7:ID:0:0", "x:ID:0"] {
            assert!(parse_item(&bad.replace("ID", &id.to_string())).is_err(), "{bad}");
        }
        let other = "123e4567-e89b-42d3-a456-426614174000";
        assert!(other.parse::<GroupId>().is_err());
    }

    #[test]
    fn a_counter_has_a_name_that_no_group_has() {
        let name = counter_name(TallyId(9));
        assert_eq!(parse_counter(&name), Some(TallyId(9)));
        assert!(name.parse::<GroupId>().is_err());
        let group = Added { first: 0, count: 1 }.groups(TallyId(9)).next().unwrap();
        assert_eq!(parse_counter(&group.id.to_string()), None);
    }
}
