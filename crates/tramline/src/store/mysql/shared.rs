//! What the steps that all servers share ask of MySQL.

use super::buried;
use super::due::due;
use super::lanes::{failed_sql, first_new_sql, leased_sql, lock_sql, views};
use super::limit;
use super::next_due::NEVER;
use super::rows::{SLICE, apply, chunks, lock_chunks_sql, metas, slices, slices_sql, write_lanes};
use super::session::Session;
use super::sql::{Columns, LIST, list, named, text};
use crate::error::Result;
use crate::model::chunk::ChunkRow;
use crate::model::id::{ChunkId, EventId, LaneId, SubscriptionId};
use crate::model::lane::Lane;
use crate::model::slice::{Slice, State};
use crate::model::time::Time;
use crate::plan::limit::Crowd;
use crate::plan::{Changes, LaneView};
use crate::store::catalog::Catalog;
use crate::store::rows::{Mark, StepRows};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

impl StepRows for Session<'_> {
    fn now(&self) -> Time {
        self.now
    }

    fn catalog(&self) -> Arc<Catalog> {
        self.catalog.clone()
    }

    async fn lock_lanes(
        &mut self,
        id: SubscriptionId,
        lanes: &BTreeSet<LaneId>,
    ) -> Result<BTreeMap<LaneId, LaneView>> {
        views(&self.rows(lock_sql(id, lanes.iter().copied(), "FOR UPDATE")).await?)
    }

    async fn leased(&mut self, id: SubscriptionId, lanes: &[LaneId]) -> Result<Vec<Slice>> {
        slices(&self.rows(leased_sql(id, lanes)).await?)
    }

    async fn halted(&mut self, id: SubscriptionId) -> Result<BTreeSet<LaneId>> {
        let sql = format!(
            "SELECT lane FROM tramline_lane WHERE subscription = {} AND halted_until > {}",
            id.0, self.now.0
        );
        self.rows(sql).await?.iter().map(|row| row.int(0).map(LaneId)).collect()
    }

    async fn failed(&mut self, id: SubscriptionId) -> Result<Vec<Slice>> {
        let end = match self.rows(first_new_sql(id)).await?.first() {
            Some(row) => row.int(0)?,
            None => NEVER,
        };
        slices(&self.rows(failed_sql(id, end, self.now)).await?)
    }

    async fn marks(&mut self, id: SubscriptionId, keys: Vec<(LaneId, Arc<str>)>) -> Result<Vec<Mark>> {
        let mut sql = Vec::new();
        for (table, column) in [("tramline_parked", "blocked_by"), ("tramline_gap", "id")] {
            sql.extend(keys.chunks(LIST).map(|some| {
                format!(
                    "SELECT m.lane, m.`key`, m.{column} FROM {} STRAIGHT_JOIN {table} m FORCE INDEX (PRIMARY) \
                     ON m.subscription = {} AND m.lane = n.a AND m.`key` = n.b ORDER BY m.{column}",
                    named(some.iter().map(|(lane, key)| (lane.0, &**key))),
                    id.0
                )
            }));
        }
        let mut parked = self.sets(sql).await?;
        let gaps = parked.split_off(parked.len() / 2);
        let mut marks: BTreeMap<(LaneId, Arc<str>), Mark> = BTreeMap::new();
        for (rows, is_gap) in [(parked, false), (gaps, true)] {
            for row in rows.iter().flatten() {
                let (lane, key): (_, Arc<str>) = (LaneId(row.int(0)?), row.text(1)?.into());
                let new = || Mark { lane, key: key.clone(), blocked_by: None, gaps: Vec::new() };
                let mark = marks.entry((lane, key.clone())).or_insert_with(new);
                match is_gap {
                    true => mark.gaps.push(EventId(row.int(2)?)),
                    false => mark.blocked_by = Some(EventId(row.int(2)?)),
                }
            }
        }
        Ok(marks.into_values().collect())
    }

    async fn slices_of(&mut self, chunks: &[i64]) -> Result<Vec<Slice>> {
        let sql = format!(
            "SELECT {SLICE} FROM tramline_slice s FORCE INDEX (PRIMARY) WHERE s.chunk IN ({}) \
             ORDER BY s.chunk, s.subscription, s.id",
            list(chunks.iter().copied())
        );
        slices(&self.rows(sql).await?)
    }

    async fn lock_slices_of(
        &mut self,
        id: SubscriptionId,
        chunks: &[i64],
        states: &[State],
    ) -> Result<Vec<Slice>> {
        let states = list(states.iter().map(|state| *state as i64));
        let which = format!("s.subscription = {} AND s.state IN ({states})", id.0);
        slices(&self.rows(slices_sql(&which, chunks.iter().copied(), "FOR UPDATE")).await?)
    }

    async fn lock_chunks(&mut self, chunks: &[i64]) -> Result<()> {
        self.rows(lock_chunks_sql(chunks.iter().copied(), "FOR UPDATE")).await.map(drop)
    }

    async fn chunks(&mut self, ids: BTreeSet<ChunkId>) -> Result<HashMap<ChunkId, ChunkRow>> {
        chunks(self, ids.into_iter()).await
    }

    async fn metas(&mut self, ids: BTreeSet<ChunkId>) -> Result<HashMap<ChunkId, ChunkRow>> {
        metas(self, ids.into_iter()).await
    }

    async fn buried_chunks(
        &mut self,
        id: SubscriptionId,
        after: ChunkId,
    ) -> Result<(Vec<i64>, Option<ChunkId>)> {
        buried::chunks(self, id, after).await
    }

    /// Of dead slices the claim index has the time of their death.
    async fn with_dead_before(&mut self, edges: Vec<(SubscriptionId, Time)>) -> Result<Vec<SubscriptionId>> {
        let sql = |(SubscriptionId(id), Time(edge)): &(SubscriptionId, Time)| {
            format!(
                "SELECT {id} FROM DUAL WHERE EXISTS (SELECT 1 FROM tramline_slice FORCE INDEX (tramline_slice_claim) \
                 WHERE subscription = {id} AND state = 6 AND pos <= {edge})"
            )
        };
        let sets = self.sets(edges.iter().map(sql).collect()).await?;
        sets.iter().flatten().map(|row| row.int(0).map(SubscriptionId)).collect()
    }

    async fn dead_before(&mut self, id: SubscriptionId, edge: Time, limit: u32) -> Result<Vec<i64>> {
        let sql = format!(
            "SELECT chunk FROM tramline_slice FORCE INDEX (tramline_slice_claim) WHERE subscription = {} AND state = 6 \
             AND pos <= {} LIMIT {limit}",
            id.0, edge.0
        );
        self.rows(sql).await?.iter().map(|row| row.int(0)).collect()
    }

    async fn blockers(&mut self, id: SubscriptionId, keys: &[(LaneId, &str)]) -> Result<BTreeSet<EventId>> {
        let one = |(lane, key): &(LaneId, &str)| format!("lane = {} AND `key` = {}", lane.0, text(key));
        let which: Vec<String> = keys.iter().map(one).collect();
        let which = if which.is_empty() { "TRUE".to_owned() } else { which.join(" OR ") };
        let sql =
            format!("SELECT blocked_by FROM tramline_parked WHERE subscription = {} AND ({which})", id.0);
        self.rows(sql).await?.iter().map(|row| Ok(EventId(row.int(0)?))).collect()
    }

    async fn backfills(&mut self, id: SubscriptionId) -> Result<BTreeMap<i64, RangeInclusive<i64>>> {
        let sql = format!(
            "SELECT topic, backfill_next, backfill_until FROM tramline_subscription_topic \
             WHERE subscription = {} AND backfill_next <= backfill_until",
            id.0
        );
        self.rows(sql).await?.iter().map(|row| Ok((row.int(0)?, row.int(1)?..=row.int(2)?))).collect()
    }

    async fn ready(&mut self, id: SubscriptionId, most: u32) -> Result<Vec<Slice>> {
        due(self, id, State::Ready, most).await
    }

    async fn crowded(&mut self, id: SubscriptionId, crowd: &Crowd, wanted: u32) -> Result<Vec<Slice>> {
        limit::crowded(self, id, crowd, wanted).await
    }

    async fn apply(&mut self, id: SubscriptionId, changes: &Changes) -> Result<()> {
        apply(self, id, changes);
        Ok(())
    }

    async fn write_lanes(&mut self, lanes: &[&Lane]) -> Result<()> {
        write_lanes(self, lanes);
        Ok(())
    }
}
