//! A full store: how much it holds, and what goes.

use super::MysqlStore;
use super::rows::lock_chunks_sql;
use super::session::{Begin, Session};
use super::sql::{Columns, list};
use super::step::{Tries, step};
use super::sweep::{numbers, remove_chunks};
use crate::error::Result;
use crate::model::id::{EventId, SubscriptionId, TopicId};
use crate::plan::mend;
use crate::store::mend::Bench;
use crate::store::shed::{LOOK, Seen, UNCLAIMED, choose, end_of, look_per_topic, losers};
use crate::store::verbs::{Shed, Shedded, StoreSize, Surplus};

impl MysqlStore {
    /// One step: chunks that nobody needs, or work that may go.
    pub(super) async fn make_room(&self, shed: &Shed) -> Result<Shedded> {
        let begin = Begin::reading(shed.now);
        if shed.surplus == Surplus::Retained {
            return step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| retained(
                session, shed
            ));
        }
        let (doomed, next) = step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| {
            oldest_work(session, shed)
        })?;
        let Some(doomed) = doomed else { return Ok(Shedded { next, ..Shedded::default() }) };
        let begin = Begin::writing(shed.now, doomed.subscription);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| drop_work(
            session, &doomed, shed
        ))
    }
}

/// The server keeps the space of removed rows for new ones and does not give it back, and says what tables take only now and then. So
/// what shedding removes is counted by the rows that there are: else there would never be room enough, until nothing is left. 160 bytes
/// are what a chunk, its keys and its numbers take beside its payloads, 300 a slice and its entry in the index, and 400 a note of a
/// failure. Reads `tramline_chunk_topic`, `tramline_slice_claim`, and of chunks no rows.
pub(super) async fn size(session: &mut Session<'_>) -> Result<StoreSize> {
    let sql = "SELECT CAST((SELECT COALESCE(SUM(c.bytes + 160), 0) FROM tramline_chunk c \
                   FORCE INDEX (tramline_chunk_topic) WHERE c.topic > 0) \
               + 300 * (SELECT COUNT(*) FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE s.subscription > 0) \
               + 400 * (SELECT COUNT(*) FROM tramline_failure) \
               + COALESCE((SELECT SUM(t.DATA_LENGTH + t.INDEX_LENGTH) FROM information_schema.TABLES t \
                   WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME LIKE 'tramline|_%' ESCAPE '|' \
                   AND t.TABLE_NAME NOT IN ('tramline_chunk', 'tramline_slice', 'tramline_failure')), 0) AS SIGNED)";
    let rows = session.rows(sql).await?;
    Ok(StoreSize { bytes: rows.first().map_or(Ok(0), |row| row.count(0))? })
}

pub(super) async fn retained(session: &mut Session<'_>, shed: &Shed) -> Result<Shedded> {
    let topics: Vec<TopicId> = session.catalog.topics().iter().map(|topic| topic.id).collect();
    let look = look_per_topic(topics.len());
    let after = shed.after.chunk().0;
    let sql = |TopicId(topic): &TopicId| {
        format!(
            "SELECT c.chunk, c.topic, c.bytes, NOT EXISTS (SELECT 1 FROM tramline_slice s WHERE s.chunk = c.chunk) \
             AND c.chunk < COALESCE((SELECT MIN(st.backfill_next) FROM tramline_subscription_topic st \
             WHERE st.topic = {topic} AND st.backfill_next <= st.backfill_until), {}) \
             FROM tramline_chunk c FORCE INDEX (tramline_chunk_topic) WHERE c.topic = {topic} AND c.chunk > {after} \
             ORDER BY c.topic, c.chunk LIMIT {look}",
            i64::MAX
        )
    };
    let sql: Vec<String> = topics.iter().map(sql).collect();
    let mut seen = Vec::new();
    if !sql.is_empty() {
        for row in session.sets(sql).await?.iter().flatten() {
            let (chunk, topic) = (row.int(0)?, TopicId(row.int(1)?));
            seen.push(Seen { chunk, topic, bytes: row.int(2)?, free: row.flag(3)? });
        }
    }
    let (chosen, next) = choose(seen, look, shed);
    // What somebody resends just now is locked, and stays.
    let lock = lock_chunks_sql(chosen.iter().map(|seen| seen.chunk), "FOR UPDATE SKIP LOCKED");
    let locked = numbers(&session.rows(lock).await?)?;
    let (_, removed) = remove_chunks(session, locked).await?;
    Ok(Shedded { removed, next, ..Shedded::default() })
}

/// Work that is to go: the oldest that may, and what else of its subscription was seen.
pub(super) struct Doomed {
    pub(super) subscription: SubscriptionId,
    pub(super) chunks: Vec<i64>,
}

/// The subscription that is furthest behind is the one with the first slice. Uses the primary key `(chunk, id)`. Also gives
/// where the next look goes on if there is nothing here.
pub(super) async fn oldest_work(
    session: &mut Session<'_>,
    shed: &Shed,
) -> Result<(Option<Doomed>, Option<EventId>)> {
    let seen = format!(
        "(SELECT s.chunk, s.id, s.subscription, s.state FROM tramline_slice s FORCE INDEX (PRIMARY) \
         WHERE s.chunk > {} ORDER BY s.chunk, s.id LIMIT {LOOK}) w",
        shed.after.chunk().0
    );
    let states = list(UNCLAIMED.map(|state| state as i64));
    let losers = list(losers(&session.catalog, shed.include_pull()));
    let one = format!(
        "SELECT w.subscription FROM {seen} WHERE w.subscription IN ({losers}) AND w.state IN ({states}) \
         ORDER BY w.chunk, w.id LIMIT 1"
    );
    let end = format!("SELECT IF(COUNT(*) >= {LOOK}, MAX(w.chunk), NULL) FROM {seen}");
    let sets = session.sets(vec![one, end]).await?;
    let next = sets[1].first().map_or(Ok(None), |row| row.maybe_int(0))?.map(end_of);
    let Some(id) = sets[0].first().map(|row| row.int(0)).transpose()? else { return Ok((None, next)) };
    let sql = format!(
        "SELECT DISTINCT w.chunk FROM {seen} WHERE w.subscription = {id} AND w.state IN ({states}) \
         ORDER BY w.chunk LIMIT {}",
        shed.limit
    );
    let chunks = numbers(&session.rows(sql).await?)?;
    Ok((Some(Doomed { subscription: SubscriptionId(id), chunks }), next))
}

/// Drops what is still unclaimed of it, under the locks of its lanes.
pub(super) async fn drop_work(session: &mut Session<'_>, doomed: &Doomed, shed: &Shed) -> Result<Shedded> {
    session.catalog.require_subscription(doomed.subscription)?;
    let mut bench = Bench::lay(session, doomed.subscription, &doomed.chunks, &UNCLAIMED).await?;
    let fitting = shed.fitting(bench.slices.iter().map(|slice| i64::from(slice.bytes)));
    let mut events = 0;
    for slice in &bench.slices[..fitting] {
        events += u64::from(slice.mask.count());
        mend::shed(slice, bench.views.get_mut(&slice.lane), &mut bench.changes);
    }
    let wake = bench.changes.wake;
    bench.done(session).await?;
    let next = doomed.chunks.first().map(|first| end_of(first - 1));
    Ok(Shedded { dropped: Some((doomed.subscription, events)), wake, next, ..Shedded::default() })
}
