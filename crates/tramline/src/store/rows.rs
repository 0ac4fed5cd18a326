//! What a step on a server reads and writes inside its transaction. What it does in between is written once, for all servers
//! (`lanes.rs`, `limit.rs`, `mend.rs`).

use super::catalog::Catalog;
use crate::error::Result;
use crate::model::chunk::ChunkRow;
use crate::model::id::{ChunkId, EventId, LaneId, SubscriptionId};
use crate::model::lane::Lane;
use crate::model::slice::{Slice, State};
use crate::model::time::Time;
use crate::plan::limit::{Crowd, Keys};
use crate::plan::{Changes, LaneView};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// What is known of a key in a lane.
pub(crate) struct Mark {
    pub(crate) lane: LaneId,
    pub(crate) key: Arc<str>,
    /// The event that it waits for.
    pub(crate) blocked_by: Option<EventId>,
    /// What it will never see, ascending.
    pub(crate) gaps: Vec<EventId>,
}

/// One step inside a transaction.
pub(crate) trait StepRows: Send {
    fn now(&self) -> Time;

    fn catalog(&self) -> Arc<Catalog>;

    /// Locks lanes in sorted order, waiting for whoever has them, and gives what they hold.
    fn lock_lanes(
        &mut self,
        id: SubscriptionId,
        lanes: &BTreeSet<LaneId>,
    ) -> impl Future<Output = Result<BTreeMap<LaneId, LaneView>>> + Send;

    /// All that is taken in lanes, in the order of the log.
    fn leased(
        &mut self,
        id: SubscriptionId,
        lanes: &[LaneId],
    ) -> impl Future<Output = Result<Vec<Slice>>> + Send;

    /// The lanes that are halted.
    fn halted(&mut self, id: SubscriptionId) -> impl Future<Output = Result<BTreeSet<LaneId>>> + Send;

    /// What failed in lanes that are halted, and is not due.
    fn failed(&mut self, id: SubscriptionId) -> impl Future<Output = Result<Vec<Slice>>> + Send;

    /// Which of these keys are parked or have gaps.
    fn marks(
        &mut self,
        id: SubscriptionId,
        keys: Vec<(LaneId, Arc<str>)>,
    ) -> impl Future<Output = Result<Vec<Mark>>> + Send;

    /// All slices of chunks, of any subscription.
    fn slices_of(&mut self, chunks: &[i64]) -> impl Future<Output = Result<Vec<Slice>>> + Send;

    /// Locks the slices of chunks that are in certain states, in the order of the log.
    fn lock_slices_of(
        &mut self,
        id: SubscriptionId,
        chunks: &[i64],
        states: &[State],
    ) -> impl Future<Output = Result<Vec<Slice>>> + Send;

    /// Locks chunks in the order of their numbers.
    fn lock_chunks(&mut self, chunks: &[i64]) -> impl Future<Output = Result<()>> + Send;

    /// Chunks by their numbers. Those that are gone are left out.
    fn chunks(
        &mut self,
        ids: BTreeSet<ChunkId>,
    ) -> impl Future<Output = Result<HashMap<ChunkId, ChunkRow>>> + Send;

    /// The same, without their bodies.
    fn metas(
        &mut self,
        ids: BTreeSet<ChunkId>,
    ) -> impl Future<Output = Result<HashMap<ChunkId, ChunkRow>>> + Send;

    /// The keys of the events of chunks.
    fn keys(&mut self, ids: BTreeSet<ChunkId>) -> impl Future<Output = Result<Keys>> + Send {
        async move {
            let rows = self.metas(ids).await?;
            rows.into_iter().map(|(id, row)| Ok((id, row.keys()?.into()))).collect()
        }
    }

    /// The chunks of dead and held slices after one, ascending, a step of them; and up to which chunk was looked, where that was not the end.
    fn buried_chunks(
        &mut self,
        id: SubscriptionId,
        after: ChunkId,
    ) -> impl Future<Output = Result<(Vec<i64>, Option<ChunkId>)>> + Send;

    /// Those of the subscriptions that have dead events from before the edge of each.
    fn with_dead_before(
        &mut self,
        edges: Vec<(SubscriptionId, Time)>,
    ) -> impl Future<Output = Result<Vec<SubscriptionId>>> + Send;

    /// The chunks of dead slices from before an edge, one for each of `limit` slices at most.
    fn dead_before(
        &mut self,
        id: SubscriptionId,
        edge: Time,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<i64>>> + Send;

    /// The events that these keys wait for, or all keys if there are none.
    fn blockers(
        &mut self,
        id: SubscriptionId,
        keys: &[(LaneId, &str)],
    ) -> impl Future<Output = Result<BTreeSet<EventId>>> + Send;

    /// The chunks that back-fills have still to bring into a subscription, by topic.
    fn backfills(
        &mut self,
        id: SubscriptionId,
    ) -> impl Future<Output = Result<BTreeMap<i64, RangeInclusive<i64>>>> + Send;

    /// Locks ready slices where there is no order, by priority and then time; what others have locked is passed over.
    fn ready(&mut self, id: SubscriptionId, most: u32) -> impl Future<Output = Result<Vec<Slice>>> + Send;

    /// Locks slices of keys that had to wait and have room now, until they may hold `wanted` events.
    fn crowded(
        &mut self,
        id: SubscriptionId,
        crowd: &Crowd,
        wanted: u32,
    ) -> impl Future<Output = Result<Vec<Slice>>> + Send;

    /// Writes what a plan decided about one subscription.
    fn apply(&mut self, id: SubscriptionId, changes: &Changes) -> impl Future<Output = Result<()>> + Send;

    fn write_lanes(&mut self, lanes: &[&Lane]) -> impl Future<Output = Result<()>> + Send;
}
