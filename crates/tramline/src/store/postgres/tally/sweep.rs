//! Housekeeping of tallies: expiry, recounts, removal. Always a bounded part; what another node has locked is left to it.

use super::rows;
use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::TallyState;
use crate::model::time::Time;
use crate::plan::tally::{TallyRow, Unfinished};
use crate::store::postgres::session::Session;
use crate::store::tally::{GRACE, RECOUNT, RECOUNTS, REMOVED};
use crate::store::verbs_tally::{ReapTallies, ReapedTallies, SweepTallies, SweptTallies};
use sqlx::Row;

/// What removing may cost in one step, in rows.
const ROWS: i64 = 10_000;

pub(in crate::store::postgres) async fn sweep(
    session: &mut Session<'_>,
    sweep: SweepTallies,
) -> Result<SweptTallies> {
    let mut swept = SweptTallies::default();
    expire(session, sweep.limit, &mut swept).await?;
    recount(session, &mut swept).await?;
    for (open, kept) in [(true, sweep.keep_open), (false, sweep.keep_sealed)] {
        let idle_since = session.now.before(kept);
        let reaped =
            reap(session, &ReapTallies { open, idle_since, topic: None, limit: sweep.limit, now: None })
                .await?;
        swept.reaped += reaped.tallies;
        swept.more |= reaped.more;
    }
    Ok(swept)
}

async fn expire(session: &mut Session<'_>, limit: u32, swept: &mut SweptTallies) -> Result<()> {
    let sql = "SELECT {tally} FROM tramline_tally t WHERE t.state < 2 AND t.expires_at IS NOT NULL \
               AND t.expires_at <= $1 ORDER BY t.expires_at LIMIT $2 FOR UPDATE SKIP LOCKED";
    let query = session.query(sql).bind(session.now.0).bind(i64::from(limit));
    let mut found = rows::find(session, query).await?;
    let mut outbox = Vec::new();
    for row in &mut found {
        row.expire(session.now, &mut outbox);
        swept.expired += 1;
        swept.news.push(row.id);
    }
    swept.more |= swept.expired >= u64::from(limit);
    rows::write(session, &found.iter().collect::<Vec<_>>(), &outbox).await
}

/// Proves that sealed tallies are not stuck: every hour their parts are counted anew. Under the lock of the row, so that a part
/// is either finished and in its sums or neither.
async fn recount(session: &mut Session<'_>, swept: &mut SweptTallies) -> Result<()> {
    let sql = "SELECT {tally} FROM tramline_tally t WHERE t.state = 1 AND t.checked_at <= $1 \
               ORDER BY t.checked_at LIMIT $2 FOR UPDATE SKIP LOCKED";
    let query = session.query(sql).bind(session.now.before(RECOUNT).0).bind(RECOUNTS);
    for mut row in rows::find(session, query).await? {
        let sql = "SELECT (SELECT coalesce(sum((e.count + 4095) / 4096), 0)::bigint FROM tramline_tally_extent e \
                   WHERE e.tally = $1) - count(*), coalesce(sum(p.done), 0)::bigint, coalesce(sum(p.failed), 0)::bigint \
                   FROM tramline_tally_part p WHERE p.tally = $1 AND NOT p.is_open";
        let query = session.query(sql).bind(row.id.0);
        let counted = query.fetch_one(&mut *session.conn).await?;
        let finished = Unfinished {
            done: counted.try_get::<i64, _>(1)?.cast_unsigned(),
            failed: counted.try_get::<i64, _>(2)?.cast_unsigned(),
            active_at: None,
        };
        let left = counted.try_get::<i64, _>(0)?.max(0).cast_unsigned();
        let mut outbox = Vec::new();
        if row.recount(left, finished, session.now, &mut outbox) {
            swept.repaired += 1;
            swept.news.push(row.id);
            rows::write(session, &[&row], &outbox).await?;
        }
        let sql = "UPDATE tramline_tally SET checked_at = $2 WHERE id = $1";
        let query = session.query(sql).bind(row.id.0).bind(session.now.0);
        session.run(query).await?;
    }
    Ok(())
}

/// Removes what is idle. `idle_since` of a row is never later than its last activity: those it names are looked at closely, and
/// those that stay are not looked at again before they could be idle for as long.
pub(in crate::store::postgres) async fn reap(
    session: &mut Session<'_>,
    reap: &ReapTallies,
) -> Result<ReapedTallies> {
    let states = TallyState::ALL.into_iter().filter(|state| (*state == TallyState::Open) == reap.open);
    let sql = "SELECT {tally} FROM unnest($1::smallint[]) AS s(state) CROSS JOIN LATERAL (SELECT * \
               FROM tramline_tally t WHERE t.state = s.state AND t.idle_since < $2 AND ($4::text IS NULL OR t.topic = $4) ORDER BY t.state, t.idle_since \
               LIMIT $3 FOR UPDATE SKIP LOCKED) t LIMIT $3";
    let query = session
        .query(sql)
        .bind(states.map(|state| state as i16).collect::<Vec<i16>>())
        .bind(reap.idle_since.0)
        .bind(i64::from(reap.limit))
        .bind(reap.topic.clone());
    let found = rows::find(session, query).await?;
    let looked = found.len();
    let parts = last_active(session, &found).await?;
    let (mut idle, mut active) = (Vec::new(), Vec::new());
    for (row, parts) in found.iter().zip(parts) {
        let active_at = row.active_at.max(parts);
        if active_at < reap.idle_since {
            idle.push(row);
        } else {
            active.push((row.id, active_at));
        }
    }
    remove(session, &idle).await?;
    raise_idle(session, &active).await?;
    let more = clear_removed(session).await? || looked >= reap.limit as usize;
    let items = idle.iter().map(|row| row.total).sum();
    Ok(ReapedTallies { tallies: idle.len() as u64, items, more })
}

/// Those that are not idle are not looked at again soon.
async fn raise_idle(session: &mut Session<'_>, active: &[(TallyId, Time)]) -> Result<()> {
    if active.is_empty() {
        return Ok(());
    }
    let sql = "UPDATE tramline_tally t SET idle_since = u.active_at FROM unnest($1::bigint[], $2::bigint[]) \
               AS u(id, active_at) WHERE t.id = u.id";
    let (ids, times): (Vec<i64>, Vec<i64>) = active.iter().map(|(id, time)| (id.0, time.0)).unzip();
    let query = session.query(sql).bind(ids).bind(times);
    session.run(query).await.map(|_| ())
}

/// When a part that is under way was touched last, for each tally.
async fn last_active(session: &mut Session<'_>, found: &[TallyRow]) -> Result<Vec<Time>> {
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT coalesce(p.active_at, 0) FROM unnest($1::bigint[]) WITH ORDINALITY AS u(id, place) \
               CROSS JOIN LATERAL (SELECT max(p.active_at) AS active_at FROM tramline_tally_part p \
                   WHERE p.tally = u.id AND p.is_open) p ORDER BY u.place";
    let query = session.query(sql).bind(found.iter().map(|row| row.id.0).collect::<Vec<i64>>());
    session.all(query).await?.iter().map(|row| Ok(Time(row.try_get(0)?))).collect()
}

/// Tallies do not exist any more, but for what is left to clear and to tell.
pub(super) async fn remove(session: &mut Session<'_>, found: &[&TallyRow]) -> Result<()> {
    if found.is_empty() {
        return Ok(());
    }
    let mut outbox = Vec::new();
    found.iter().for_each(|row| row.remove(session.now, &mut outbox));
    rows::put_out(session, &outbox).await?;
    let sql = "UPDATE tramline_tally SET state = $2, idle_since = $3 WHERE id = ANY($1)";
    let ids: Vec<i64> = found.iter().map(|row| row.id.0).collect();
    let query = session.query(sql).bind(ids).bind(REMOVED).bind(session.now.0);
    session.run(query).await.map(|_| ())
}

/// Clears what belongs to removed tallies. True if a limit was reached.
async fn clear_removed(session: &mut Session<'_>) -> Result<bool> {
    let sql = "SELECT id FROM tramline_tally WHERE state = $1 AND idle_since <= $2 ORDER BY state, idle_since \
               LIMIT 1000 FOR UPDATE SKIP LOCKED";
    let query = session.query(sql).bind(REMOVED).bind(session.now.before(GRACE).0);
    let removed = session.all(query).await?;
    let mut left = ROWS;
    for row in &removed {
        left -= clear(session, TallyId(row.try_get(0)?), left).await?;
        if left <= 0 {
            return Ok(true);
        }
    }
    Ok(removed.len() == 1000)
}

/// Clears up to `limit` rows of a removed tally, and the tally itself when nothing is left and all its news are told. Gives how
/// many rows.
async fn clear(session: &mut Session<'_>, tally: TallyId, limit: i64) -> Result<i64> {
    let mut cleared = 0;
    for sql in [
        "DELETE FROM tramline_tally_part p USING (SELECT f.part FROM tramline_tally_part f WHERE f.tally = $1 \
         ORDER BY f.tally, f.part LIMIT $2) f WHERE p.tally = $1 AND p.part = f.part",
        "DELETE FROM tramline_tally_extent e USING (SELECT f.part FROM tramline_tally_extent f WHERE f.tally = $1 \
         ORDER BY f.tally, f.part LIMIT $2) f WHERE e.tally = $1 AND e.part = f.part",
    ] {
        let query = session.query(sql).bind(tally.0).bind(limit - cleared);
        cleared += session.run(query).await? as i64;
        if cleared >= limit {
            return Ok(cleared);
        }
    }
    for sql in [
        "DELETE FROM tramline_tally_note n WHERE n.tally = $1 \
         AND NOT EXISTS (SELECT FROM tramline_tally_outbox o WHERE o.tally = $1)",
        "DELETE FROM tramline_tally t WHERE t.id = $1 \
         AND NOT EXISTS (SELECT FROM tramline_tally_outbox o WHERE o.tally = $1)",
    ] {
        let query = session.query(sql).bind(tally.0);
        session.run(query).await?;
    }
    Ok(cleared + 1)
}
