//! What the steps that all servers share ask of PostgreSQL.

use super::claim::due;
use super::limit;
use super::order;
use super::rows::{apply, chunks, locked_lane, metas, slices, write_lanes};
use super::session::Session;
use super::taken::as_taken;
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
use crate::store::verbs::REVIVE_STEP;
use sqlx::Row;
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
        let sql = "WITH n AS (SELECT * FROM unnest($2::bigint[]) AS n(lane)), {newest} SELECT {lane} FROM {lanes} \
                   ORDER BY l.lane FOR UPDATE OF l";
        let query = self.query(sql).bind(id.0).bind(lanes.iter().map(|lane| lane.0).collect::<Vec<i64>>());
        let rows = self.all(query).await?;
        rows.iter().map(|row| locked_lane(self, row).map(|lane| (lane.lane, LaneView::new(lane)))).collect()
    }

    async fn leased(&mut self, id: SubscriptionId, lanes: &[LaneId]) -> Result<Vec<Slice>> {
        let sql = "SELECT {slice} FROM tramline_slice s \
                   WHERE s.subscription = $1 AND s.state IN (1, 7) AND s.lane = ANY($2) \
                   UNION ALL SELECT {slice} FROM unnest($2::bigint[], $3::bigint[]) AS u(lane, low) \
                   JOIN tramline_slice s ON s.subscription = $1 AND s.state = 0 AND s.lane = u.lane AND s.rank = 0 \
                       AND s.pos < u.low \
                   ORDER BY 1, 2";
        let low = |lane: &LaneId| self.starts.get(&(id, *lane)).map_or(i64::MIN, |start| start.low);
        let query = self.query(sql).bind(id.0).bind(lanes.iter().map(|lane| lane.0).collect::<Vec<i64>>());
        let query = query.bind(lanes.iter().map(low).collect::<Vec<i64>>());
        let found = slices(&self.all(query).await?)?;
        Ok(found.into_iter().map(|slice| as_taken(slice, &self.starts)).collect())
    }

    async fn halted(&mut self, id: SubscriptionId) -> Result<BTreeSet<LaneId>> {
        let sql = "SELECT l.lane FROM tramline_lane l WHERE l.subscription = $1 AND l.halted_until > $2";
        let query = self.query(sql).bind(id.0).bind(self.now.0);
        self.all(query).await?.iter().map(|row| Ok(LaneId(row.try_get(0)?))).collect()
    }

    /// In a line of all events it is ready, in front of what nobody took; elsewhere it waits, perhaps beside what was delayed.
    ///
    /// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`.
    async fn failed(&mut self, id: SubscriptionId) -> Result<Vec<Slice>> {
        let sql = "WITH n AS (SELECT * FROM unnest($3::bigint[]) AS n(lane)), {newest} SELECT {slice} FROM {lanes} \
                   CROSS JOIN LATERAL (SELECT w.* FROM tramline_slice w WHERE l.lane <> 1 AND w.subscription = $1 \
                       AND w.state = 3 AND w.lane = l.lane AND w.rank = 0 AND w.pos > $2 \
                       UNION ALL SELECT r.* FROM tramline_slice r WHERE l.lane = 1 AND r.subscription = $1 \
                       AND r.state = 0 AND r.lane = 1 AND r.rank = 0 AND r.pos >= l.low AND r.due_at > $2 \
                       AND r.pos <= coalesce((SELECT f.pos FROM tramline_slice f WHERE f.subscription = $1 \
                           AND f.state = 0 AND f.lane = 1 AND f.rank = 0 AND f.pos >= l.low AND f.epoch = 0 \
                           ORDER BY f.pos LIMIT 1), 9223372036854775807)) s \
                   WHERE l.halted_until > $2 AND s.epoch BETWEEN 1 AND l.epoch";
        let query = self.query(sql).bind(id.0).bind(self.now.0).bind(order::lanes(self, id)?);
        slices(&self.all(query).await?)
    }

    async fn marks(&mut self, id: SubscriptionId, keys: Vec<(LaneId, Arc<str>)>) -> Result<Vec<Mark>> {
        let sql = "SELECT u.lane, u.key, p.blocked_by, ARRAY(SELECT g.id FROM tramline_gap g WHERE g.subscription = $1 \
                   AND g.lane = u.lane AND g.key = u.key ORDER BY g.id) \
                   FROM unnest($2::bigint[], $3::text[]) AS u(lane, key) LEFT JOIN tramline_parked p \
                   ON p.subscription = $1 AND p.lane = u.lane AND p.key = u.key";
        let (lanes, keys): (Vec<i64>, Vec<String>) =
            keys.into_iter().map(|(lane, key)| (lane.0, key.to_string())).unzip();
        let query = self.query(sql).bind(id.0).bind(lanes).bind(keys);
        let mark = |row: &sqlx::postgres::PgRow| {
            Ok(Mark {
                lane: LaneId(row.try_get(0)?),
                key: row.try_get::<String, _>(1)?.into(),
                blocked_by: row.try_get::<Option<i64>, _>(2)?.map(EventId),
                gaps: row.try_get::<Vec<i64>, _>(3)?.into_iter().map(EventId).collect(),
            })
        };
        self.all(query).await?.iter().map(mark).collect()
    }

    async fn slices_of(&mut self, chunks: &[i64]) -> Result<Vec<Slice>> {
        let sql = "SELECT {slice} FROM tramline_slice s WHERE s.chunk = ANY($1) ORDER BY s.chunk, s.subscription, s.id";
        let query = self.query(sql).bind(chunks.to_vec());
        slices(&self.all(query).await?)
    }

    async fn lock_slices_of(
        &mut self,
        id: SubscriptionId,
        chunks: &[i64],
        states: &[State],
    ) -> Result<Vec<Slice>> {
        let sql = "SELECT {slice} FROM tramline_slice s WHERE s.chunk = ANY($2) AND s.subscription + 0 = $1 \
                   AND s.state + 0 = ANY($3) ORDER BY s.chunk, s.id FOR UPDATE";
        // What is taken may have no mark.
        let unmarked = states.contains(&State::Leased).then_some(State::Ready);
        let stored: Vec<i32> = states.iter().copied().chain(unmarked).map(|state| state as i32).collect();
        let query = self.query(sql).bind(id.0).bind(chunks.to_vec()).bind(stored);
        let found = slices(&self.all(query).await?)?.into_iter().map(|slice| as_taken(slice, &self.starts));
        // What came into another lane since somebody looked which ones to lock may be taken as well.
        let is_known = |slice: &Slice| self.starts.contains_key(&(id, slice.lane));
        let is_sure = |slice: &Slice| slice.state != State::Ready || !slice.is_ordered() || is_known(slice);
        Ok(found.filter(|slice| states.contains(&slice.state) && is_sure(slice)).collect())
    }

    async fn lock_chunks(&mut self, chunks: &[i64]) -> Result<()> {
        let sql = "SELECT chunk FROM tramline_chunk WHERE chunk = ANY($1) ORDER BY chunk FOR UPDATE";
        let query = self.query(sql).bind(chunks.to_vec());
        self.all(query).await.map(drop)
    }

    async fn chunks(&mut self, ids: BTreeSet<ChunkId>) -> Result<HashMap<ChunkId, ChunkRow>> {
        chunks(self, ids.into_iter()).await
    }

    async fn metas(&mut self, ids: BTreeSet<ChunkId>) -> Result<HashMap<ChunkId, ChunkRow>> {
        metas(self, ids.into_iter()).await
    }

    /// By `tramline_slice_dead`.
    async fn buried_chunks(
        &mut self,
        id: SubscriptionId,
        after: ChunkId,
    ) -> Result<(Vec<i64>, Option<ChunkId>)> {
        let sql = "SELECT s.chunk FROM tramline_slice s WHERE s.subscription = $1 AND s.state IN (5, 6) AND s.chunk > $2 \
                   ORDER BY s.chunk LIMIT $3";
        let query = self.query(sql).bind(id.0).bind(after.0).bind(i64::from(REVIVE_STEP));
        let found = self.all(query).await?.iter().map(|row| Ok(row.try_get(0)?)).collect::<Result<_>>()?;
        Ok((found, None))
    }

    /// By `tramline_slice_died`.
    async fn with_dead_before(&mut self, edges: Vec<(SubscriptionId, Time)>) -> Result<Vec<SubscriptionId>> {
        let sql = "SELECT u.id FROM unnest($1::bigint[], $2::bigint[]) AS u(id, edge) CROSS JOIN LATERAL ( \
                   SELECT 1 FROM tramline_slice s WHERE s.subscription = u.id AND s.state = 6 AND s.due_at <= u.edge LIMIT 1) f";
        let (ids, edges): (Vec<i64>, Vec<i64>) = edges.into_iter().map(|(id, edge)| (id.0, edge.0)).unzip();
        let query = self.query(sql).bind(ids).bind(edges);
        self.all(query).await?.iter().map(|row| Ok(SubscriptionId(row.try_get(0)?))).collect()
    }

    /// Oldest first, by `tramline_slice_died`.
    async fn dead_before(&mut self, id: SubscriptionId, edge: Time, limit: u32) -> Result<Vec<i64>> {
        let sql = "SELECT s.chunk FROM tramline_slice s WHERE s.subscription = $1 AND s.state = 6 AND s.due_at <= $2 \
                   ORDER BY s.due_at LIMIT $3";
        let query = self.query(sql).bind(id.0).bind(edge.0).bind(i64::from(limit));
        self.all(query).await?.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    async fn blockers(&mut self, id: SubscriptionId, keys: &[(LaneId, &str)]) -> Result<BTreeSet<EventId>> {
        let query = if keys.is_empty() {
            self.query("SELECT blocked_by FROM tramline_parked WHERE subscription = $1").bind(id.0)
        } else {
            let sql = "SELECT p.blocked_by FROM tramline_parked p JOIN unnest($2::bigint[], $3::text[]) AS u(lane, key) \
                       ON p.subscription = $1 AND p.lane = u.lane AND p.key = u.key";
            let (lanes, keys): (Vec<i64>, Vec<String>) =
                keys.iter().map(|(lane, key)| (lane.0, (*key).to_owned())).unzip();
            self.query(sql).bind(id.0).bind(lanes).bind(keys)
        };
        self.all(query).await?.iter().map(|row| Ok(EventId(row.try_get(0)?))).collect()
    }

    async fn backfills(&mut self, id: SubscriptionId) -> Result<BTreeMap<i64, RangeInclusive<i64>>> {
        let sql = "SELECT topic, backfill_next, backfill_until FROM tramline_subscription_topic \
                   WHERE subscription = $1 AND backfill_next <= backfill_until";
        let query = self.query(sql).bind(id.0);
        let rows = self.all(query).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?..=row.try_get(2)?))).collect()
    }

    async fn ready(&mut self, id: SubscriptionId, most: u32) -> Result<Vec<Slice>> {
        due(self, id, State::Ready, i64::from(most)).await
    }

    async fn crowded(&mut self, id: SubscriptionId, crowd: &Crowd, wanted: u32) -> Result<Vec<Slice>> {
        limit::crowded(self, id, crowd, wanted).await
    }

    async fn apply(&mut self, id: SubscriptionId, changes: &Changes) -> Result<()> {
        apply(self, id, changes).await
    }

    async fn write_lanes(&mut self, lanes: &[&Lane]) -> Result<()> {
        write_lanes(self, lanes).await
    }
}
