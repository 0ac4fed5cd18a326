//! How retention goes through the chunks. What a backlog needs stays past its retention, and that may be millions of chunks: a step
//! looks at some of them, and the next one goes on behind those, round and round through all topics.

use crate::model::id::{ChunkId, TopicId};
use crate::model::subscription::Topic;
use crate::model::time::Time;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How many chunks are read at once. Of a topic in which only the first ones are old, not much more is read than those.
const PAGE: u32 = 100;

/// Where this process goes on. One that restarts begins anew, and so nobody else has to know.
#[derive(Debug, Default)]
pub(crate) struct Round(Mutex<Place>);

impl Round {
    pub(crate) fn place(&self) -> Place {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn go_on_at(&self, place: Place) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }
}

/// A chunk of a topic, or where it would be. The default is before all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    topic: TopicId,
    chunk: ChunkId,
}

/// One step: at most so many chunks that are past their retention, be they needed or not.
#[derive(Debug)]
pub(crate) struct Walk {
    /// What is ahead, from the topic that it is in.
    topics: VecDeque<(TopicId, Duration)>,
    from: ChunkId,
    left: u32,
}

/// Chunks to be looked at next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) topic: TopicId,
    retention: Duration,
    /// The first one, if it is there.
    pub(crate) from: ChunkId,
    pub(crate) most: u32,
}

/// A chunk that was looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) chunk: ChunkId,
    pub(crate) emitted_at: Time,
    /// Nothing refers to it.
    pub(crate) free: bool,
}

/// What a stretch has.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    old: u32,
    last: ChunkId,
    /// Can be removed.
    pub(crate) free: Vec<ChunkId>,
}

impl Walk {
    pub(crate) fn new(topics: &[Topic], place: Place, limit: u32) -> Walk {
        let ahead = topics.iter().filter(|topic| topic.id >= place.topic);
        let mut topics: Vec<(TopicId, Duration)> = ahead.map(|topic| (topic.id, topic.retention)).collect();
        topics.sort_unstable();
        let is_there = topics.first().is_some_and(|(first, _)| *first == place.topic);
        let from = if is_there { place.chunk } else { ChunkId::default() };
        Walk { topics: topics.into(), from, left: limit }
    }

    /// What comes next. `None` when the step has seen enough, or everything.
    pub(crate) fn stretch(&self) -> Option<Stretch> {
        let &(topic, retention) = self.topics.front().filter(|_| self.left > 0)?;
        Some(Stretch { topic, retention, from: self.from, most: self.left.min(PAGE) })
    }

    /// Goes on behind a stretch.
    pub(crate) fn pass(&mut self, stretch: &Stretch, looked: &Looked) {
        self.left = self.left.saturating_sub(looked.old);
        if looked.old < stretch.most {
            self.topics.pop_front();
            self.from = ChunkId::default();
        } else {
            self.from = ChunkId(looked.last.0 + 1);
        }
    }

    /// True when the step had to stop before the end.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.left == 0
    }

    /// Where the next step goes on.
    pub(crate) fn place(&self) -> Place {
        self.topics.front().map_or(Place::default(), |(topic, _)| Place { topic: *topic, chunk: self.from })
    }
}

impl Stretch {
    /// What was emitted before this is past its retention.
    pub(crate) fn oldest(&self, now: Time) -> Time {
        now.before(self.retention)
    }

    /// Judges the chunks of a stretch, which come by their numbers. They ascend in time: behind the first young one nothing is old.
    pub(crate) fn look(&self, now: Time, seen: impl IntoIterator<Item = Seen>) -> Looked {
        let oldest = self.oldest(now);
        let mut looked = Looked::default();
        for one in seen.into_iter().take_while(|one| one.emitted_at < oldest) {
            looked.old += 1;
            looked.last = one.chunk;
            looked.free.extend(one.free.then_some(one.chunk));
        }
        looked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time(10_000);

    fn topic(id: i64) -> Topic {
        Topic {
            id: TopicId(id),
            name: format!("t{id}").into(),
            lanes: 1,
            retention: Duration::from_secs(1),
            created_at: Time(0),
            owner: None,
        }
    }

    /// Chunks of a topic that were emitted at these times; even numbers are free.
    fn walk(times: &[(i64, &[i64])], place: Place, limit: u32) -> (Vec<i64>, Walk) {
        let topics: Vec<Topic> = times.iter().rev().map(|(id, _)| topic(*id)).collect();
        let mut walk = Walk::new(&topics, place, limit);
        let mut free = Vec::new();
        while let Some(stretch) = walk.stretch() {
            let chunks = times.iter().find(|(id, _)| TopicId(*id) == stretch.topic).unwrap().1;
            let seen = chunks.iter().enumerate().map(|(at, time)| Seen {
                chunk: ChunkId(at as i64),
                emitted_at: Time(*time),
                free: at % 2 == 0,
            });
            let page: Vec<Seen> =
                seen.filter(|seen| seen.chunk >= stretch.from).take(stretch.most as usize).collect();
            let looked = stretch.look(NOW, page);
            free.extend(looked.free.iter().map(|chunk| chunk.0));
            walk.pass(&stretch, &looked);
        }
        (free, walk)
    }

    #[test]
    fn a_step_looks_at_so_many_and_the_next_one_goes_on_behind_them() {
        let chunks: &[(i64, &[i64])] = &[(1, &[1, 2, 3, 4, 5]), (2, &[1, 2])];
        let (free, first) = walk(chunks, Place::default(), 3);
        assert_eq!((free, first.is_cut_short()), (vec![0, 2], true));
        assert_eq!(first.place(), Place { topic: TopicId(1), chunk: ChunkId(3) });
        let (free, second) = walk(chunks, first.place(), 3);
        assert_eq!((free, second.is_cut_short()), (vec![4, 0], true));
        let (free, third) = walk(chunks, second.place(), 3);
        assert_eq!((free, third.is_cut_short(), third.place()), (vec![], false, Place::default()));
    }

    #[test]
    fn what_is_young_ends_a_topic_and_not_the_walk() {
        let chunks: &[(i64, &[i64])] = &[(1, &[1, 9_500, 2]), (2, &[1, 2, 3])];
        let (free, walk) = walk(chunks, Place::default(), 9);
        assert_eq!((free, walk.place()), (vec![0, 0, 2], Place::default()));
    }

    #[test]
    fn a_topic_that_is_gone_is_passed_over() {
        let gone = Place { topic: TopicId(2), chunk: ChunkId(1) };
        let (free, _) = walk(&[(1, &[1]), (3, &[1, 2, 3])], gone, 9);
        assert_eq!(free, [0, 2]);
    }

    #[test]
    fn more_than_a_page_is_read_page_by_page() {
        let times: Vec<i64> = (0..250).collect();
        let (free, walk) = walk(&[(1, &times)], Place::default(), 1_000);
        assert_eq!((free.len(), walk.is_cut_short()), (125, false));
    }
}
