//! How events are cut into chunks and slices.
//!
//! The plan is made before anything is locked. Numbers that only the store can give are named by their place: the n-th
//! chunk that will be drawn, the n-th key that will be locked.

use crate::model::chunk::{Encoded, MAX_BYTES, encode};
use crate::model::event::{Due, Emitted, Event};
use crate::model::filter::{Filter, Subject};
use crate::model::id::{ChunkId, EventId, LaneId, SubscriptionId, TopicId};
use crate::model::lane;
use crate::model::mask::Mask;
use crate::model::subscription::Ordering;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What has to be known of a topic to emit to it.
#[derive(Clone, Debug)]
pub struct TopicView {
    /// Its number.
    pub id: TopicId,
    /// How many lanes it has.
    pub lanes: u32,
    /// Its subscriptions.
    pub subscriptions: Vec<Consumer>,
}

/// What has to be known of a subscription to emit to it.
#[derive(Clone, Debug)]
pub struct Consumer {
    /// Its number.
    pub id: SubscriptionId,
    /// Which order it keeps.
    pub ordering: Ordering,
    /// Which events it gets.
    pub filter: Filter,
}

/// Everything that an emit writes.
#[derive(Clone, Debug, Default)]
pub struct EmitPlan {
    /// The chunks, in the order in which they are to be numbered.
    pub chunks: Vec<ChunkPlan>,
    /// The keys to lock, sorted by topic and key, and what becomes of each.
    pub heads: Vec<HeadPlan>,
    /// Where every event of every unit is.
    places: Vec<Vec<(Place, Link)>>,
    /// The subscriptions that every unit gives work to.
    wake: Vec<Vec<SubscriptionId>>,
}

/// A chunk to be.
#[derive(Clone, Debug)]
pub struct ChunkPlan {
    /// The topic of its events.
    pub topic: TopicId,
    /// How many events.
    pub count: u32,
    /// The contents.
    pub encoded: Encoded,
    /// The predecessor of each event; empty if no event has a key.
    pub prevs: Vec<Link>,
    /// The main event of each sub-event; empty if there is none.
    pub mains: Vec<Link>,
    /// The slices to write.
    pub slices: Vec<SlicePlan>,
    /// What it weighs.
    pub bytes: u32,
}

/// A slice to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePlan {
    /// Whose work.
    pub subscription: SubscriptionId,
    /// Which lane, if it is ordered.
    pub lane: LaneId,
    /// When it is due.
    pub due: Due,
    /// Its priority; zero if it is ordered.
    pub priority: u8,
    /// Which events.
    pub mask: Mask,
    /// True if some of them are items of tallies that end with them in this subscription.
    pub tallied: bool,
}

/// A key to lock, and its last event after the emit.
#[derive(Clone, Debug)]
pub struct HeadPlan {
    /// The topic.
    pub topic: TopicId,
    /// The key.
    pub key: String,
    /// Its last event after the emit.
    pub last: Place,
    /// The object's state after the emit; `None` leaves what is stored.
    pub state: Option<Bytes>,
}

/// An event of the plan: the n-th chunk, and the index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which chunk of the plan.
    pub chunk: usize,
    /// Which event of the chunk.
    pub index: u32,
}

/// A reference to an event whose number is not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// To none.
    None,
    /// To what the n-th locked key had as its last event.
    Head(usize),
    /// To an event of the plan.
    Event(Place),
}

/// The numbers that the store gave.
#[derive(Clone, Copy, Debug)]
pub struct Numbers<'a> {
    /// One per chunk of the plan, ascending.
    pub chunks: &'a [ChunkId],
    /// The last event of every key of the plan before the emit, zero for none.
    pub heads: &'a [i64],
}

impl Numbers<'_> {
    /// The number of an event of the plan.
    pub fn id(&self, place: Place) -> EventId {
        EventId::at(self.chunks[place.chunk], place.index)
    }

    /// The number behind a link, zero for none.
    pub fn resolve(&self, link: Link) -> i64 {
        match link {
            Link::None => 0,
            Link::Head(at) => self.heads[at],
            Link::Event(place) => self.id(place).0,
        }
    }

    /// The numbers behind links.
    pub fn resolve_all(&self, links: &[Link]) -> Vec<i64> {
        links.iter().map(|link| self.resolve(*link)).collect()
    }
}

impl EmitPlan {
    /// Cuts units into chunks. `spread` is any number that differs from emit to emit: it spreads events without a key over
    /// the lanes.
    ///
    /// Units keep their inner order and stay adjacent. In topics with an ordered subscription, whole units are sorted by
    /// lane first: a chunk that touches few lanes makes few slices.
    pub fn new(units: &[Vec<Event>], topics: &HashMap<String, TopicView>, spread: u64) -> EmitPlan {
        let mut plan = EmitPlan {
            places: units.iter().map(|unit| Vec::with_capacity(unit.len())).collect(),
            wake: units.iter().map(|_| Vec::new()).collect(),
            ..EmitPlan::default()
        };
        let mut by_topic: BTreeMap<&str, Vec<(usize, Vec<&Event>)>> = BTreeMap::new();
        for (at, unit) in units.iter().enumerate() {
            for event in unit {
                let list = by_topic.entry(&event.topic).or_default();
                match list.last_mut().filter(|(last, _)| *last == at) {
                    Some((_, events)) => events.push(event),
                    None => list.push((at, vec![event])),
                }
            }
        }
        for (name, mut list) in by_topic {
            let Some(topic) = topics.get(name) else { continue };
            if topic.has_lanes() {
                let lane =
                    |event: &Event| event.key.as_deref().map_or(0, |key| lane::hash(key) % topic.lanes);
                list.sort_by_key(|(_, events)| lane(events[0]));
            }
            if !topic.has_filters() {
                for (unit, _) in &list {
                    plan.wake[*unit].extend(topic.subscriptions.iter().map(|consumer| consumer.id));
                }
            }
            let events: Vec<(usize, &Event)> = list
                .iter()
                .flat_map(|(unit, events)| events.iter().map(move |event| (*unit, *event)))
                .collect();
            plan.add_topic(topic, &events, spread);
        }
        plan.restore_order(units);
        plan
    }

    /// What unit `at` gave, once the numbers are known.
    pub fn emitted(&self, at: usize, numbers: &Numbers<'_>) -> Vec<Emitted> {
        let emitted = |(place, prev): &(Place, Link)| Emitted {
            id: numbers.id(*place),
            prev: Some(numbers.resolve(*prev)).filter(|prev| *prev != 0).map(EventId),
            duplicate: false,
        };
        self.places[at].iter().map(emitted).collect()
    }

    /// The topics that it writes to.
    pub fn topics(&self) -> BTreeSet<TopicId> {
        self.chunks.iter().map(|chunk| chunk.topic).collect()
    }

    /// The subscriptions that unit `at` gives work to.
    pub fn wake(&self, at: usize) -> &[SubscriptionId] {
        &self.wake[at]
    }

    fn add_topic(&mut self, topic: &TopicView, events: &[(usize, &Event)], spread: u64) {
        let mut heads: BTreeMap<&str, HeadPlan> = BTreeMap::new();
        let mut firsts: HashMap<&str, (Place, usize)> = HashMap::new();
        let mut main: Option<(usize, Place)> = None;
        for run in cut(events) {
            let chunk = self.chunks.len();
            let mut links = vec![Link::None; run.len()];
            let mut mains = vec![Link::None; run.len()];
            for (index, (unit, event)) in run.iter().enumerate() {
                let place = Place { chunk, index: index as u32 };
                if event.is_sub {
                    mains[index] =
                        main.filter(|(of, _)| of == unit).map_or(Link::None, |(_, at)| Link::Event(at));
                } else {
                    main = Some((*unit, place));
                }
                if let Some(key) = event.key.as_deref() {
                    match heads.get_mut(key) {
                        Some(head) => {
                            links[index] = Link::Event(head.last);
                            head.last = place;
                            head.state = event.state.clone().or_else(|| head.state.take());
                        }
                        None => {
                            firsts.insert(key, (place, self.places[*unit].len()));
                            let (key, state) = (key.to_owned(), event.state.clone());
                            let head = HeadPlan { topic: topic.id, key, last: place, state };
                            heads.insert(event.key.as_deref().unwrap_or_default(), head);
                        }
                    }
                }
                self.places[*unit].push((place, links[index]));
            }
            let slices = slices(topic, run, spread.wrapping_add(chunk as u64));
            if topic.has_filters() {
                self.wake_passed(run, &slices);
            }
            self.chunks.push(ChunkPlan {
                topic: topic.id,
                count: run.len() as u32,
                encoded: encode(run.iter().map(|(_, event)| *event)),
                prevs: links,
                mains,
                slices,
                bytes: run.iter().map(|(_, event)| event.weight()).sum::<usize>() as u32,
            });
        }
        self.link_heads(heads, &firsts);
    }

    /// Where there are filters, an event gives work only to those who let it pass.
    fn wake_passed(&mut self, run: &[(usize, &Event)], slices: &[SlicePlan]) {
        for slice in slices {
            for index in slice.mask.iter() {
                let wake = &mut self.wake[run[index as usize].0];
                if !wake.contains(&slice.subscription) {
                    wake.push(slice.subscription);
                }
            }
        }
    }

    /// The first event of every key follows what the key had before. Keys are numbered in sorted order, in which they will
    /// be locked.
    fn link_heads(&mut self, heads: BTreeMap<&str, HeadPlan>, firsts: &HashMap<&str, (Place, usize)>) {
        let mut first_at: HashMap<(usize, u32), usize> = HashMap::new();
        for (key, head) in heads {
            let (place, _) = firsts[key];
            let at = self.heads.len();
            self.chunks[place.chunk].prevs[place.index as usize] = Link::Head(at);
            first_at.insert((place.chunk, place.index), at);
            self.heads.push(head);
        }
        for (place, prev) in self.places.iter_mut().flatten() {
            if let Some(at) = first_at.get(&(place.chunk, place.index)) {
                *prev = Link::Head(*at);
            }
        }
    }

    /// Events of a unit that go to several topics were placed topic by topic; receipts follow the order of the unit.
    fn restore_order(&mut self, units: &[Vec<Event>]) {
        for (unit, places) in units.iter().zip(&mut self.places) {
            let topics: BTreeSet<&str> = unit.iter().map(|event| event.topic.as_str()).collect();
            if topics.len() < 2 {
                continue;
            }
            let mut by_topic: Vec<usize> = (0..unit.len()).collect();
            by_topic.sort_by_key(|at| unit[*at].topic.as_str());
            let mut ordered = places.clone();
            for (at, place) in by_topic.into_iter().zip(places.iter()) {
                ordered[at] = *place;
            }
            *places = ordered;
        }
    }
}

/// Runs of at most 64 events and at most 1 MiB.
fn cut<'a, 'e>(events: &'a [(usize, &'e Event)]) -> Vec<&'a [(usize, &'e Event)]> {
    let mut runs = Vec::with_capacity(events.len() / 64 + 1);
    let (mut start, mut bytes) = (0, 0);
    for (at, (_, event)) in events.iter().enumerate() {
        let full = at - start == Mask::CAPACITY as usize || bytes + event.weight() > MAX_BYTES;
        if full && at > start {
            runs.push(&events[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += event.weight();
    }
    if start < events.len() {
        runs.push(&events[start..]);
    }
    runs
}

impl TopicView {
    /// True if some subscription orders events by key.
    fn has_lanes(&self) -> bool {
        self.subscriptions.iter().any(|consumer| consumer.ordering == Ordering::Key)
    }

    /// True if some subscription does not get all events.
    fn has_filters(&self) -> bool {
        self.subscriptions.iter().any(|consumer| !consumer.filter.is_empty())
    }
}

/// Events of a run by lane, priority and due time: what a subscription of each ordering needs.
#[derive(Default)]
struct Sorts {
    unordered: BTreeMap<(u8, Due), Mask>,
    lanes: BTreeMap<(LaneId, Due), Mask>,
    whole: BTreeMap<Due, Mask>,
}

impl Sorts {
    fn of(topic: &TopicView, run: &[(usize, &Event)], spread: u64) -> Sorts {
        let mut sorts = Sorts::default();
        let keyless = LaneId::of(topic.id, (spread % u64::from(topic.lanes.max(1))) as u32);
        let has_lanes = topic.has_lanes();
        let is_whole = |consumer: &Consumer| consumer.ordering == Ordering::Subscriber;
        let has_whole = topic.subscriptions.iter().any(is_whole);
        for (index, (_, event)) in run.iter().enumerate() {
            let bit = Mask::of(index as u32);
            let add = |mask: &mut Mask| *mask = mask.plus(bit);
            add(sorts.unordered.entry((event.priority, event.due)).or_default());
            if has_lanes {
                let lane = event.key.as_deref().map_or(keyless, |key| lane::of(topic.id, topic.lanes, key));
                add(sorts.lanes.entry((lane, event.due)).or_default());
            }
            if has_whole {
                add(sorts.whole.entry(event.due).or_default());
            }
        }
        sorts
    }

    /// Lane, priority, due time and events of each slice that a subscription would get of all.
    fn of_ordering(&self, ordering: Ordering) -> Vec<(LaneId, u8, Due, Mask)> {
        match ordering {
            Ordering::None => self
                .unordered
                .iter()
                .map(|(&(priority, due), &mask)| (LaneId::UNORDERED, priority, due, mask))
                .collect(),
            Ordering::Key => self.lanes.iter().map(|(&(lane, due), &mask)| (lane, 0, due, mask)).collect(),
            Ordering::Subscriber => {
                self.whole.iter().map(|(&due, &mask)| (LaneId::WHOLE, 0, due, mask)).collect()
            }
        }
    }
}

/// One slice per subscription and distinct lane (if ordered), due time and priority.
fn slices(topic: &TopicView, run: &[(usize, &Event)], spread: u64) -> Vec<SlicePlan> {
    let sorts = Sorts::of(topic, run, spread);
    let filtered = if topic.has_filters() { run } else { &[] };
    let subjects: Vec<Subject<'_>> = filtered.iter().map(|(_, event)| Subject::of(event)).collect();
    let tallied = |subscription, mask: Mask| {
        let items = || run.iter().enumerate().filter_map(|(at, (_, event))| Some((at as u32, event.item?)));
        items().any(|(at, item)| item.subscription == subscription && mask.contains(at))
    };
    let mut slices = Vec::new();
    for consumer in &topic.subscriptions {
        let passing = passing(&consumer.filter, &subjects);
        for (lane, priority, due, mask) in sorts.of_ordering(consumer.ordering) {
            let mask = passing.map_or(mask, |passing| mask.and(passing));
            if !mask.is_empty() {
                let tallied = tallied(consumer.id, mask);
                slices.push(SlicePlan { subscription: consumer.id, lane, due, priority, mask, tallied });
            }
        }
    }
    slices
}

/// The events that pass a filter; `None`: all.
fn passing(filter: &Filter, subjects: &[Subject<'_>]) -> Option<Mask> {
    let admitted = || (0..).zip(subjects).filter(|(_, subject)| filter.admits(subject)).map(|(at, _)| at);
    (!filter.is_empty()).then(|| admitted().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn topics(ordered: bool) -> HashMap<String, TopicView> {
        let ordering = if ordered { Ordering::Key } else { Ordering::None };
        let consumer = |id| Consumer { id: SubscriptionId(id), ordering, filter: Filter::default() };
        let view = |id| TopicView { id: TopicId(id), lanes: 4, subscriptions: vec![consumer(id)] };
        HashMap::from([("a".to_owned(), view(1)), ("b".to_owned(), view(2))])
    }

    prop_compose! {
        fn units()(units in prop::collection::vec(
            prop::collection::vec((any::<bool>(), prop::option::of(0u8..6), 0u64..2, 4u8..6), 1..20), 1..20)
        ) -> Vec<Vec<Event>> {
            units.into_iter().map(|unit| unit.into_iter().map(|(a, key, delay, priority)| {
                let event = Event::new(if a { "a" } else { "b" }, "x")
                    .delay(Duration::from_secs(delay)).priority(priority);
                match key { Some(key) => event.key(format!("k{key}")), None => event }
            }).collect()).collect()
        }
    }

    proptest! {
        #[test]
        fn every_key_gets_one_chain_and_every_event_one_bit(units in units(), ordered in any::<bool>()) {
            let plan = EmitPlan::new(&units, &topics(ordered), 7);
            let chunks: Vec<ChunkId> = (0..plan.chunks.len()).map(|n| ChunkId(100 + n as i64)).collect();
            let heads: Vec<i64> = (0..plan.heads.len()).map(|n| n as i64 + 1).collect();
            let numbers = Numbers { chunks: &chunks, heads: &heads };
            let mut chains: HashMap<(String, String), BTreeMap<EventId, i64>> = HashMap::new();
            let mut ids = BTreeSet::new();
            for (at, unit) in units.iter().enumerate() {
                let emitted = plan.emitted(at, &numbers);
                prop_assert_eq!(emitted.len(), unit.len());
                let mut last: HashMap<(&str, Option<&str>), EventId> = HashMap::new();
                for (event, got) in unit.iter().zip(&emitted) {
                    prop_assert!(ids.insert(got.id), "an id was given twice");
                    let chunk = &plan.chunks[(got.id.chunk().0 - 100) as usize];
                    prop_assert_eq!(chunk.topic, topics(false)[&event.topic].id);
                    let before = last.insert((&event.topic, event.key.as_deref()), got.id);
                    prop_assert!(before.is_none_or(|before| before < got.id), "a unit was reordered");
                    match &event.key {
                        None => prop_assert_eq!(got.prev, None),
                        Some(key) => {
                            let prev = got.prev.map_or(0, |prev| prev.0);
                            chains.entry((event.topic.clone(), key.clone())).or_default().insert(got.id, prev);
                        }
                    }
                    let holders = chunk.slices.iter().filter(|slice| slice.mask.contains(got.id.index()));
                    prop_assert_eq!(holders.count(), 1);
                }
            }
            for ((topic, key), chain) in chains {
                let at = plan.heads.iter().position(|head| head.topic == topics(false)[&topic].id && head.key == key);
                let at = at.unwrap();
                let mut prev = heads[at];
                for (id, linked) in &chain {
                    prop_assert_eq!(*linked, prev);
                    prev = id.0;
                }
                prop_assert_eq!(numbers.id(plan.heads[at].last).0, prev);
            }
            prop_assert!(plan.heads.windows(2).all(|w| (w[0].topic, &w[0].key) < (w[1].topic, &w[1].key)));
        }
    }

    #[test]
    fn chunks_hold_64_events_or_one_mebibyte() {
        let small: Vec<Event> = (0..130).map(|_| Event::new("a", "x")).collect();
        let counts = |units: &[Vec<Event>]| -> Vec<u32> {
            EmitPlan::new(units, &topics(false), 0).chunks.iter().map(|chunk| chunk.count).collect()
        };
        assert_eq!(counts(&[small]), [64, 64, 2]);
        let large: Vec<Event> = (0..3).map(|_| Event::new("a", vec![0; 700_000])).collect();
        assert_eq!(counts(&[large]), [1, 1, 1]);
    }

    #[test]
    fn single_emits_are_sorted_by_lane_where_order_matters() {
        let units: Vec<Vec<Event>> =
            (0..64).map(|n| vec![Event::new("a", "x").key(format!("k{n}"))]).collect();
        let plan = EmitPlan::new(&units, &topics(true), 0);
        assert_eq!(plan.chunks.len(), 1);
        assert_eq!(plan.chunks[0].slices.len(), 4);
        let last_bits: Vec<u32> =
            plan.chunks[0].slices.iter().filter_map(|slice| slice.mask.iter().last()).collect();
        assert!(last_bits.is_sorted(), "{last_bits:?}");
    }

    #[test]
    fn sub_events_name_their_main_event() {
        let main = Event::new("a", "m").key("k");
        let sub = main.clone().sub_event();
        let plan = EmitPlan::new(&[vec![main.clone()], vec![main, sub.clone(), sub]], &topics(false), 0);
        let main = Link::Event(Place { chunk: 0, index: 1 });
        assert_eq!(plan.chunks[0].mains, [Link::None, Link::None, main, main]);
    }
}
