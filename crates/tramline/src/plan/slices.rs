//! Which slices a chunk gives: one per subscription and distinct lane (if ordered), due time and priority.

use crate::model::event::{Due, Event};
use crate::model::filter::{Filter, Subject};
use crate::model::id::{LaneId, SubscriptionId, TopicId};
use crate::model::lane;
use crate::model::mask::Mask;
use crate::model::subscription::Ordering;
use std::collections::BTreeMap;

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

impl TopicView {
    /// True if some subscription orders events by key.
    pub(super) fn has_lanes(&self) -> bool {
        self.subscriptions.iter().any(|consumer| consumer.ordering == Ordering::Key)
    }

    /// True if some subscription does not get all events.
    pub(super) fn has_filters(&self) -> bool {
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
pub(super) fn slices(topic: &TopicView, run: &[(usize, &Event)], spread: u64) -> Vec<SlicePlan> {
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
