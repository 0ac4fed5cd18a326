//! What one step dropped, before it is written down.

use crate::model::dropped::DropReason;
use crate::model::id::{ChunkId, EventId, SubscriptionId};
use crate::model::mask::Mask;
use std::collections::BTreeMap;
use std::time::Duration;

/// What is dropped within this time goes into one record.
pub(crate) const MERGED: Duration = Duration::from_secs(60);
/// How long records are kept, and how many at most. Their sums stay.
pub(crate) const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
pub(crate) const MOST: i64 = 10_000;

/// What one step dropped.
#[derive(Debug, Default)]
pub(crate) struct Drops(BTreeMap<(SubscriptionId, DropReason), Span>);

/// Some events between two ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: EventId,
    pub(crate) last: EventId,
    pub(crate) events: i64,
}

impl Drops {
    /// Adds events of one chunk.
    pub(crate) fn add(&mut self, by: SubscriptionId, reason: DropReason, chunk: ChunkId, mask: Mask) {
        for index in mask.iter() {
            let id = EventId::at(chunk, index);
            let span = self.0.entry((by, reason)).or_insert(Span { first: id, last: id, events: 0 });
            *span = Span { first: span.first.min(id), last: span.last.max(id), events: span.events + 1 };
        }
    }

    pub(crate) fn into_spans(self) -> impl Iterator<Item = (SubscriptionId, DropReason, Span)> {
        self.0.into_iter().map(|((by, reason), span)| (by, reason, span))
    }
}
