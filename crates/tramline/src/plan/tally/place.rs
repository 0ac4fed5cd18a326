//! Which items of tallies events become when they are emitted.

use super::TallyRow;
use super::grow::{ItemRow, Origin};
use crate::error::{Error, Result};
use crate::model::event::{Event, EventItem};
use crate::model::id::{SubscriptionId, TallyId};
use crate::model::tally::{Added, TallyItem};
use crate::model::time::Time;
use crate::plan::slices::Consumer;
use crate::store::catalog::Catalog;
use std::collections::{BTreeMap, BTreeSet};

/// What events made of tallies.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    /// Units that cannot be stored, by their place, and why.
    pub(crate) refused: BTreeMap<usize, Error>,
    /// What was added to each tally.
    pub(crate) added: BTreeMap<TallyId, Added>,
}

/// The tallies that units add to.
pub(crate) fn wanted(units: &[Vec<Event>]) -> BTreeSet<TallyId> {
    units.iter().flatten().filter_map(|event| event.tally.as_ref()).map(|tally| tally.id).collect()
}

/// The items from inside which events are emitted.
pub(crate) fn origins(units: &[Vec<Event>]) -> BTreeSet<TallyItem> {
    let tallies = units.iter().flatten().filter_map(|event| event.tally.as_ref());
    tallies.filter_map(|tally| Some(TallyItem { tally: tally.id, number: tally.within? })).collect()
}

/// Numbers the events of units that are items of tallies. `rows` are those tallies, locked; `items` the origins that
/// exist. A unit is placed as a whole or refused.
pub(crate) fn place(
    units: &mut [Vec<Event>],
    catalog: &Catalog,
    rows: &mut BTreeMap<TallyId, TallyRow>,
    items: &BTreeMap<TallyItem, ItemRow>,
    now: Time,
) -> Placement {
    let ground = Ground { catalog, items, now };
    let mut placement = Placement::default();
    let mut counts: BTreeMap<TallyId, u64> = BTreeMap::new();
    for (at, unit) in units.iter_mut().enumerate() {
        let before = counts.clone();
        if let Err(error) = judge(unit, &ground, rows, &mut counts) {
            counts = before;
            placement.refused.insert(at, error);
        }
    }
    for (tally, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        if let Some(row) = rows.get_mut(&tally) {
            placement.added.insert(tally, row.grow_by(count, now));
        }
    }
    let mut next: BTreeMap<TallyId, u64> =
        placement.added.iter().map(|(tally, added)| (*tally, added.first)).collect();
    let placed = units.iter_mut().enumerate().filter(|(at, _)| !placement.refused.contains_key(at));
    for item in placed.flat_map(|(_, unit)| unit).filter_map(|event| event.item.as_mut()) {
        if let Some(next) = next.get_mut(&item.item.tally) {
            item.item.number = *next;
            *next += 1;
        }
    }
    placement
}

/// What the judgement of a unit rests on, beside the tallies.
struct Ground<'a> {
    catalog: &'a Catalog,
    items: &'a BTreeMap<TallyItem, ItemRow>,
    now: Time,
}

/// Checks that a unit can be placed, and says whose settling ends its items.
fn judge(
    unit: &mut [Event],
    ground: &Ground<'_>,
    rows: &BTreeMap<TallyId, TallyRow>,
    counts: &mut BTreeMap<TallyId, u64>,
) -> Result<()> {
    for event in unit {
        let Some(tally) = &event.tally else { continue };
        let row = rows.get(&tally.id).ok_or_else(|| unknown(tally.id))?;
        let item = |number| ground.items.get(&TallyItem { tally: tally.id, number }).copied();
        let origin = tally.within.map(|number| Origin { number, item: item(number) });
        let count = counts.entry(tally.id).or_default();
        *count += 1;
        row.check_growth(*count, origin, ground.now)?;
        let subscription = subscription(event, tally.subscription.as_deref(), ground.catalog)?;
        event.item = Some(EventItem { item: TallyItem { tally: tally.id, number: 0 }, subscription });
    }
    Ok(())
}

/// The subscription whose settling ends an item.
fn subscription(event: &Event, named: Option<&str>, catalog: &Catalog) -> Result<SubscriptionId> {
    let of_topic = catalog.views().get(&event.topic).map_or(&[][..], |view| &view.subscriptions);
    match (named, of_topic) {
        (None, [only]) => admitted(only, event),
        (None, all) => Err(Error::invalid(
            format!(
                "the topic {:?} has {} subscriptions, and one of them has to end the item",
                event.topic,
                all.len()
            ),
            "name the subscription; create it first if there is none",
        )),
        (Some(name), all) => {
            let id = catalog.subscription_named(name).map(|subscription| subscription.id);
            let one = all.iter().find(|one| Some(one.id) == id).ok_or_else(|| {
                Error::invalid(
                    format!("no subscription {name:?} consumes the topic {:?}", event.topic),
                    "name one that does; create it first",
                )
            })?;
            admitted(one, event)
        }
    }
}

/// An item that its subscription never gets would never end.
fn admitted(consumer: &Consumer, event: &Event) -> Result<SubscriptionId> {
    if consumer.filter.passes(event) {
        return Ok(consumer.id);
    }
    Err(Error::invalid(
        "the filter of the subscription that is to end the item does not let the event pass",
        "name another subscription, or emit it outside of the tally",
    ))
}

/// Nobody has the number.
pub(crate) fn unknown(tally: TallyId) -> Error {
    Error::not_found(
        format!("there is no tally {tally}"),
        "check the number; tallies are removed a week after the last thing that happened to them",
    )
}
