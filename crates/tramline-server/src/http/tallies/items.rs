//! Items as they are written: numbers, and ranges with both ends.

use crate::http::problem::{Answer, Problem};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt;
use tramline::Items;
use utoipa::openapi::schema::SchemaType;
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, OneOfBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// How many numbers and ranges one call takes.
pub(crate) const MAX_ENTRIES: usize = 10_000;
/// No item has a greater number: each of 2^40 additions takes 2^12 of them at most.
const MAX_NUMBER: u64 = 1 << 52;

/// `3`, or `[10, 19]` for all from 10 to 19.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemsIn(Items);

impl ItemsIn {
    /// How many numbers these are.
    pub(crate) fn count(&self) -> u64 {
        self.0.count()
    }
}

impl<'de> Deserialize<'de> for ItemsIn {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ItemsIn, D::Error> {
        from.deserialize_any(Read)
    }
}

struct Read;

impl<'de> Visitor<'de> for Read {
    type Value = ItemsIn;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("the number of an item, or [first, last]")
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<ItemsIn, E> {
        Ok(ItemsIn(number.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<ItemsIn, A::Error> {
        let both = (from.next_element::<u64>()?, from.next_element::<u64>()?, from.next_element::<u64>()?);
        match both {
            (Some(first), Some(last), None) => Ok(ItemsIn(Items { first, last })),
            _ => Err(serde::de::Error::custom("a range of items is [first, last]")),
        }
    }
}

/// Everything in a list, if it can be.
pub(crate) fn checked(items: &[ItemsIn]) -> Answer<Vec<Items>> {
    items.iter().map(|ItemsIn(items)| check(*items)).collect()
}

fn check(items: Items) -> Answer<Items> {
    if items.first > items.last {
        return Err(Problem::invalid(
            format!("the range [{}, {}] ends before it begins", items.first, items.last),
            "write the smaller number first",
        ));
    }
    if items.last >= MAX_NUMBER {
        return Err(Problem::invalid(
            format!("no item has the number {}", items.last),
            "send numbers as adding gave them",
        ));
    }
    Ok(items)
}

impl PartialSchema for ItemsIn {
    fn schema() -> RefOr<Schema> {
        let number = || ObjectBuilder::new().schema_type(SchemaType::Type(Type::Integer)).minimum(Some(0));
        let range = ArrayBuilder::new().items(number()).min_items(Some(2)).max_items(Some(2));
        OneOfBuilder::new().item(number()).item(range).into()
    }
}

impl ToSchema for ItemsIn {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Items")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Option<(u64, u64)> {
        let items: Vec<ItemsIn> = vec![serde_json::from_str(json).ok()?];
        checked(&items).ok().map(|items| (items[0].first, items[0].last))
    }

    #[test]
    fn items_are_numbers_and_ranges() {
        assert_eq!(read("3"), Some((3, 3)));
        assert_eq!(read("[10, 19]"), Some((10, 19)));
        assert_eq!(read("[5, 5]"), Some((5, 5)));
        for bad in ["-1", "1.5", "\"3\"", "[1]", "[1, 2, 3]", "[2, 1]", "[]", "null", "18446744073709551615"]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
