//! What emits of unique events decide between reading and writing, whatever the database.

use crate::model::event::{Emitted, Event};
use crate::model::id::{EventId, TopicId};
use crate::model::time::Time;
use crate::plan::unique::{Fate, Standing, fate};
use crate::store::catalog::Catalog;
use crate::store::emit::Units;
use crate::store::verbs::Emission;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

/// How long after it is written an entry is looked at first, to see whether it is still of use.
const FIRST_LOOK: Duration = Duration::from_secs(600);
/// How long after a look comes the next one, if its event is still pending.
pub(crate) const NEXT_LOOK: Duration = Duration::from_secs(3600);

/// A unique key of a topic.
pub(crate) type Name = (TopicId, String);

/// The last events of unique keys that have one.
pub(crate) type Standings = BTreeMap<Name, Standing>;

/// An entry to write: the last event of a unique key.
pub(crate) struct Entry {
    pub(crate) name: Name,
    pub(crate) event: EventId,
    pub(crate) until: Time,
    pub(crate) look_at: Time,
}

fn name_of(event: &Event, catalog: &Catalog) -> Option<Name> {
    let unique = event.unique.as_ref()?;
    Some((catalog.topic(&event.topic)?.id, unique.key.clone()))
}

/// True if some of them is unique.
pub(crate) fn has_unique(units: &[Vec<Event>]) -> bool {
    units.iter().flatten().any(|event| event.unique.is_some())
}

/// The unique keys of units, in the order in which they are locked.
pub(crate) fn names<'a>(events: impl Iterator<Item = &'a Event>, catalog: &Catalog) -> BTreeSet<Name> {
    events.filter_map(|event| name_of(event, catalog)).collect()
}

/// Units in runs in which no unique key comes twice: the second one has to see what became of the first one.
pub(crate) fn waves(units: &[Vec<Event>]) -> Vec<Vec<usize>> {
    let mut waves = vec![Wave::default()];
    for (at, unit) in units.iter().enumerate() {
        let keys: HashSet<(&str, &str)> = unit
            .iter()
            .filter_map(|event| Some((event.topic.as_str(), event.unique.as_ref()?.key.as_str())))
            .collect();
        // Never before a wave that it shares a key with.
        let place = waves.iter().rposition(|wave| !wave.keys.is_disjoint(&keys)).map_or(0, |last| last + 1);
        if place == waves.len() {
            waves.push(Wave::default());
        }
        waves[place].units.push(at);
        waves[place].keys.extend(keys);
    }
    waves.into_iter().map(|wave| wave.units).collect()
}

#[derive(Default)]
struct Wave<'a> {
    units: Vec<usize>,
    keys: HashSet<(&'a str, &'a str)>,
}

/// Units without what is not stored.
#[derive(Default)]
pub(crate) struct Sifted {
    /// By unit: what is not stored, by its place, and what is there instead.
    duplicates: Vec<BTreeMap<usize, EventId>>,
    /// By unit: what gives way.
    replaced: Vec<Vec<EventId>>,
}

impl Sifted {
    /// Takes duplicates out of units. Where nothing is unique there is nothing to keep.
    pub(crate) fn new(units: &mut Units, standings: &Standings, catalog: &Catalog, now: Time) -> Sifted {
        let mut sifted = Sifted::default();
        if !has_unique(units) {
            return sifted;
        }
        for unit in units {
            let (mut duplicates, mut replaced, mut place) = (BTreeMap::new(), Vec::new(), 0..);
            unit.retain(|event| {
                let at = place.next().unwrap_or_default();
                let last = name_of(event, catalog).and_then(|name| standings.get(&name).copied());
                match event.unique.as_ref().map_or(Fate::Stored, |unique| fate(unique, last, now)) {
                    Fate::Stored => true,
                    Fate::Replaces(event) => {
                        replaced.push(event);
                        true
                    }
                    Fate::Duplicate(event) => {
                        duplicates.insert(at, event);
                        false
                    }
                }
            });
            sifted.duplicates.push(duplicates);
            sifted.replaced.push(replaced);
        }
        sifted
    }

    /// By unit, the places of what is not stored.
    pub(crate) fn duplicates(&self) -> Vec<BTreeSet<usize>> {
        self.duplicates.iter().map(|duplicates| duplicates.keys().copied().collect()).collect()
    }

    /// A unit is not stored after all.
    pub(crate) fn remove(&mut self, unit: usize) {
        if unit < self.duplicates.len() {
            self.duplicates.remove(unit);
            self.replaced.remove(unit);
        }
    }

    /// What gives way.
    pub(crate) fn replaced(&self) -> Vec<EventId> {
        self.replaced.iter().flatten().copied().collect()
    }

    /// Puts what is there already into the receipts, each in its place.
    pub(crate) fn complete(&self, emissions: &mut [Emission]) {
        for (emission, duplicates) in emissions.iter_mut().zip(&self.duplicates) {
            for (&at, &id) in duplicates {
                emission.events.insert(at, Emitted { id, prev: None, duplicate: true });
            }
        }
    }
}

/// The entries of what was stored. `units` and `emissions` are without duplicates.
pub(crate) fn entries(
    units: &[Vec<Event>],
    emissions: &[Emission],
    catalog: &Catalog,
    now: Time,
) -> Vec<Entry> {
    let mut entries: BTreeMap<Name, Entry> = BTreeMap::new();
    for (event, emitted) in units.iter().flatten().zip(emissions.iter().flat_map(|it| &it.events)) {
        let (Some(name), Some(unique)) = (name_of(event, catalog), &event.unique) else { continue };
        let until = now.after(unique.window);
        let look_at = until.max(now.after(FIRST_LOOK));
        entries.insert(name.clone(), Entry { name, event: emitted.id, until, look_at });
    }
    entries.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_units_with_one_unique_key_the_second_waits_for_the_first() {
        let event = |topic: &str, key: &str| Event::new(topic, "x").unique(key);
        let units = [
            vec![event("t", "a")],
            vec![Event::new("t", "x")],
            vec![event("t", "b"), event("t", "a")],
            vec![event("u", "a")],
            vec![event("t", "b")],
            vec![event("t", "a")],
        ];
        assert_eq!(waves(&units), [vec![0, 1, 3], vec![2], vec![4, 5]]);
        assert_eq!(waves(&units[1..2]), [[0]]);
    }
}
