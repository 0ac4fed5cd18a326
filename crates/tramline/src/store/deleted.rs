//! What was deleted goes in two moves: it leaves the catalogue at once, and its rows go later, a bounded number at a time, so that
//! nobody waits for them however many there are.

use crate::model::id::{ChunkId, LaneId, SubscriptionId, TopicId};
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::time::Time;
use crate::plan::LaneView;
use std::sync::Arc;

/// How much one step removes of chunks, in bytes: many small rows cost little, a few large ones as much.
pub(crate) const STEP_BYTES: i64 = 32 << 20;
/// How many rows one step removes when somebody waits for the last one.
pub(crate) const STEP_ROWS: u32 = 1_000;

/// Something that was deleted. Numbers never come back, so nobody can mean its rows any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deleted {
    /// A topic that nobody consumes, with its events.
    Topic(TopicId),
    /// A subscription, with all that it still had to do.
    Subscription(SubscriptionId),
    /// What a subscription still had to do of a topic that it no longer consumes.
    Left(SubscriptionId, TopicId),
}

/// Left-overs that are in the way of a change: they have to go before it.
#[derive(Clone, Debug)]
pub(crate) enum InTheWay {
    /// What the subscription of this name had of topics that it left: it may join them again.
    LeftBy(Arc<str>),
    /// What subscriptions had of the topic of this name that they left: it is to be deleted.
    LeftOf(Arc<str>),
}

impl Deleted {
    /// As it is stored: topic and subscription, zero where there is none.
    pub(crate) fn numbers(self) -> [i64; 2] {
        match self {
            Deleted::Topic(topic) => [topic.0, 0],
            Deleted::Subscription(subscription) => [0, subscription.0],
            Deleted::Left(subscription, topic) => [topic.0, subscription.0],
        }
    }

    /// What the stored numbers mean.
    pub(crate) fn from_numbers(topic: i64, subscription: i64) -> Deleted {
        match (topic, subscription) {
            (topic, 0) => Deleted::Topic(TopicId(topic)),
            (0, subscription) => Deleted::Subscription(SubscriptionId(subscription)),
            (topic, subscription) => Deleted::Left(SubscriptionId(subscription), TopicId(topic)),
        }
    }
}

/// Which events of these slices nobody will ever do, where they may be items of tallies. Dead ones have failed before.
pub(crate) fn given_up(slices: &[Slice]) -> impl Iterator<Item = (SubscriptionId, ChunkId, Mask)> {
    let pending = slices.iter().filter(|slice| slice.tallied && slice.state != State::Dead);
    pending.map(|slice| (slice.subscription, slice.chunk, slice.mask))
}

/// Takes slices that went out of a line of all events, which outlives its topics: it holds less now, and does not stand still for
/// them. What else has failed is met by the next claim.
pub(crate) fn free_line(view: &mut LaneView, gone: &[Slice]) {
    let in_line = || gone.iter().filter(|slice| slice.lane == LaneId::WHOLE);
    if in_line().next().is_some() {
        view.lane.leased -= in_line().filter(|slice| slice.state == State::Leased).count() as i64;
        view.lane.halted_until = Time(0);
        view.let_go();
    }
}

/// The lanes of a topic: from the first number to before the second.
pub(crate) fn lanes_of(topic: TopicId) -> [i64; 2] {
    [LaneId::of(topic, 0).0, LaneId::of(TopicId(topic.0 + 1), 0).0]
}

/// How many of these chunks, of which the weights are known, one step may remove: at least one.
pub(crate) fn within_a_step(weights: impl Iterator<Item = i64>) -> usize {
    within(weights, STEP_BYTES)
}

/// How many of these weights, from the first on, have `most` in all, or a little more: at least one.
pub(crate) fn within(weights: impl Iterator<Item = i64>, most: i64) -> usize {
    let mut sum = 0;
    let fits = |weight: &i64| {
        let room = sum < most;
        sum += *weight;
        room
    };
    weights.take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_many_small_chunks_or_a_few_large_ones() {
        assert_eq!(within_a_step(std::iter::repeat_n(100, 1_000)), 1_000);
        assert_eq!(within_a_step(std::iter::repeat_n(1 << 20, 1_000)), 32);
        assert_eq!(within_a_step([STEP_BYTES * 2, 1].into_iter()), 1);
        assert_eq!(within_a_step(std::iter::empty()), 0);
    }

    #[test]
    fn what_was_deleted_is_read_back_as_it_was_written() {
        let (topic, subscription) = (TopicId(3), SubscriptionId(4));
        let all =
            [Deleted::Topic(topic), Deleted::Subscription(subscription), Deleted::Left(subscription, topic)];
        for deleted in all {
            let [topic, subscription] = deleted.numbers();
            assert_eq!(Deleted::from_numbers(topic, subscription), deleted);
        }
    }
}
