//! A full store: how much it holds, and what goes.

use super::session::Session;
use super::sweep::remove_chunks;
use crate::error::Result;
use crate::model::id::{EventId, SubscriptionId, TopicId};
use crate::plan::mend;
use crate::store::mend::Bench;
use crate::store::shed::{LOOK, Seen, UNCLAIMED, choose, end_of, look_per_topic, losers};
use crate::store::verbs::{Shed, Shedded, StoreSize};
use sqlx::Row;
use sqlx::postgres::PgRow;

/// The server keeps the space of removed rows for new ones and does not give it back. So what shedding removes is counted by the rows
/// that there are, and never for more than its table has: else there would never be room enough, until nothing is left. 160 bytes are
/// what a chunk, its keys and its numbers take beside its payloads, 300 a slice and its entries in indexes, and 400 a note of a failure.
///
/// Reads `tramline_chunk_topic` and primary keys, and no rows. What is below 1 is ballast.
pub(super) async fn size(session: &mut Session<'_>) -> Result<StoreSize> {
    let sql = "SELECT least(pg_total_relation_size('tramline_chunk'::regclass), \
                   (SELECT coalesce(sum(c.bytes + 160), 0) FROM tramline_chunk c WHERE c.topic > 0))::bigint \
               + least(pg_total_relation_size('tramline_slice'::regclass), \
                   300 * (SELECT count(*) FROM tramline_slice s WHERE s.chunk > 0))::bigint \
               + least(pg_total_relation_size('tramline_failure'::regclass), \
                   400 * (SELECT count(*) FROM tramline_failure f WHERE f.chunk > 0))::bigint \
               + coalesce((SELECT sum(pg_total_relation_size(r.oid)) FROM pg_class r, pg_class c \
                   WHERE c.oid = 'tramline_chunk'::regclass AND r.relnamespace = c.relnamespace \
                   AND r.relkind = 'r' AND r.relname LIKE 'tramline\\_%' AND r.oid NOT IN \
                   ('tramline_chunk'::regclass, 'tramline_slice'::regclass, 'tramline_failure'::regclass)), 0)::bigint";
    let row = session.query(sql).fetch_one(&mut *session.conn).await?;
    Ok(StoreSize { bytes: row.try_get::<i64, _>(0)?.max(0).cast_unsigned() })
}

pub(super) async fn retained(session: &mut Session<'_>, shed: &Shed) -> Result<Shedded> {
    let sql = "SELECT c.chunk, t.id, c.bytes::bigint, NOT EXISTS (SELECT 1 FROM tramline_slice s WHERE s.chunk = c.chunk) \
                   AND c.chunk < coalesce((SELECT min(st.backfill_next) FROM tramline_subscription_topic st \
                       WHERE st.topic = t.id AND st.backfill_next <= st.backfill_until), 9223372036854775807) \
               FROM unnest($1::bigint[]) AS t(id) CROSS JOIN LATERAL (SELECT c.chunk, c.bytes FROM tramline_chunk c \
                   WHERE c.topic = t.id AND c.chunk > $2 ORDER BY c.topic, c.chunk LIMIT $3) c";
    let topics: Vec<i64> = session.catalog.topics().iter().map(|topic| topic.id.0).collect();
    let look = look_per_topic(topics.len());
    let query = session.query(sql).bind(topics).bind(shed.after.chunk().0).bind(look);
    let read = |row: &PgRow| {
        let (chunk, bytes, free) = (row.try_get(0)?, row.try_get(2)?, row.try_get(3)?);
        Ok(Seen { chunk, topic: TopicId(row.try_get(1)?), bytes, free })
    };
    let seen = session.all(query).await?.iter().map(read).collect::<Result<_>>()?;
    let (chosen, next) = choose(seen, look, shed);
    // What somebody resends just now is locked, and stays.
    let sql = "SELECT c.chunk FROM tramline_chunk c WHERE c.chunk = ANY($1) ORDER BY c.chunk FOR UPDATE SKIP LOCKED";
    let query = session.query(sql).bind(chosen.iter().map(|seen| seen.chunk).collect::<Vec<i64>>());
    let rows = session.all(query).await?;
    let chunks = rows.iter().map(|row| Ok(row.try_get(0)?)).collect::<Result<_>>()?;
    let (_, removed) = remove_chunks(session, chunks).await?;
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
    let sql = "WITH seen AS MATERIALIZED (SELECT s.chunk, s.id, s.subscription, s.state, s.lane FROM tramline_slice s \
                   WHERE s.chunk > $1 ORDER BY s.chunk, s.id LIMIT $2), \
               begin AS MATERIALIZED (SELECT n.subscription, n.lane, (SELECT l.low FROM tramline_lane l \
                       WHERE l.subscription = n.subscription AND l.lane = n.lane ORDER BY l.epoch DESC LIMIT 1) AS low \
                   FROM (SELECT DISTINCT seen.subscription, seen.lane FROM seen WHERE seen.state = 0 AND seen.lane <> 0) n), \
               open AS MATERIALIZED (SELECT * FROM seen WHERE seen.subscription = ANY($3) AND seen.state = ANY($4) \
                   AND NOT (seen.state = 0 AND EXISTS (SELECT 1 FROM begin b \
                       WHERE b.subscription = seen.subscription AND b.lane = seen.lane AND b.low > seen.chunk))), \
               one AS (SELECT open.subscription FROM open ORDER BY open.chunk, open.id LIMIT 1) \
               SELECT (SELECT one.subscription FROM one), ARRAY(SELECT DISTINCT open.chunk FROM open, one \
                   WHERE open.subscription = one.subscription ORDER BY open.chunk LIMIT $5), \
                   (SELECT CASE WHEN count(*) >= $2 THEN max(seen.chunk) END FROM seen)";
    let losers = losers(&session.catalog, shed.include_pull());
    let query = session
        .query(sql)
        .bind(shed.after.chunk().0)
        .bind(LOOK)
        .bind(losers.into_iter().collect::<Vec<i64>>())
        .bind(UNCLAIMED.map(|state| state as i16).to_vec())
        .bind(i64::from(shed.limit));
    let row = query.fetch_one(&mut *session.conn).await?;
    let next = row.try_get::<Option<i64>, _>(2)?.map(end_of);
    let Some(id) = row.try_get::<Option<i64>, _>(0)? else { return Ok((None, next)) };
    Ok((Some(Doomed { subscription: SubscriptionId(id), chunks: row.try_get(1)? }), next))
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
