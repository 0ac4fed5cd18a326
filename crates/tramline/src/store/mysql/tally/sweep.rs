//! Housekeeping of tallies: expiry, recounts, removal. Always a bounded part; what another node has locked is left to it.

use super::rows::{self, TALLY};
use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::TallyState;
use crate::model::time::Time;
use crate::plan::tally::{TallyRow, Unfinished};
use crate::store::mysql::session::Session;
use crate::store::mysql::sql::{Columns, list, text};
use crate::store::tally::{GRACE, RECOUNT, RECOUNTS, REMOVED};
use crate::store::verbs_tally::{ReapTallies, ReapedTallies, SweepTallies, SweptTallies};
use std::collections::BTreeMap;

/// What removing may cost in one step, in rows.
const ROWS: i64 = 10_000;

pub(in crate::store::mysql) async fn sweep(
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
    let sql = format!(
        "SELECT {TALLY} FROM tramline_tally t FORCE INDEX (tramline_tally_expiry) WHERE t.state IN (0, 1) \
         AND t.expires_at <= {} ORDER BY t.state, t.expires_at LIMIT {limit} FOR UPDATE SKIP LOCKED",
        session.now.0
    );
    let mut found = rows::find(session, sql).await?;
    let mut outbox = Vec::new();
    for row in &mut found {
        row.expire(session.now, &mut outbox);
        swept.expired += 1;
        swept.news.push(row.id);
    }
    swept.more |= swept.expired >= u64::from(limit);
    rows::write(session, &found.iter().collect::<Vec<_>>(), &outbox);
    Ok(())
}

/// Proves that sealed tallies are not stuck: every hour their parts are counted anew. Under the lock of the row, so that a part
/// is either finished and in its sums or neither.
async fn recount(session: &mut Session<'_>, swept: &mut SweptTallies) -> Result<()> {
    let sql = format!(
        "SELECT {TALLY} FROM tramline_tally t FORCE INDEX (tramline_tally_unchecked) WHERE t.state = 1 AND t.checked_at <= {} \
         ORDER BY t.checked_at LIMIT {RECOUNTS} FOR UPDATE SKIP LOCKED",
        session.now.before(RECOUNT).0
    );
    for mut row in rows::find(session, sql).await? {
        let sql = format!(
            "SELECT CAST((SELECT COALESCE(SUM((e.count + 4095) DIV 4096), 0) FROM tramline_tally_extent e \
             WHERE e.tally = {0}) - COUNT(*) AS SIGNED), CAST(COALESCE(SUM(p.done), 0) AS SIGNED), \
             CAST(COALESCE(SUM(p.failed), 0) AS SIGNED) FROM tramline_tally_part p WHERE p.tally = {0} AND p.is_open = 0",
            row.id.0
        );
        let counted = session.rows(sql).await?;
        let Some(counted) = counted.first() else { continue };
        let finished = Unfinished { done: counted.count(1)?, failed: counted.count(2)?, active_at: None };
        let left = counted.int(0)?.max(0).cast_unsigned();
        let mut outbox = Vec::new();
        if row.recount(left, finished, session.now, &mut outbox) {
            swept.repaired += 1;
            swept.news.push(row.id);
            rows::write(session, &[&row], &outbox);
        }
        let now = session.now.0;
        session.write(format!("UPDATE tramline_tally SET checked_at = {now} WHERE id = {}", row.id.0));
    }
    Ok(())
}

/// Removes what is idle. `idle_since` of a row is never later than its last activity: those it names are looked at closely, and
/// those that stay are not looked at again before they could be idle for as long.
pub(in crate::store::mysql) async fn reap(
    session: &mut Session<'_>,
    reap: &ReapTallies,
) -> Result<ReapedTallies> {
    let states = TallyState::ALL.into_iter().filter(|state| (*state == TallyState::Open) == reap.open);
    let topic = match &reap.topic {
        Some(topic) => format!(" AND t.topic = {}", text(topic)),
        None => String::new(),
    };
    let mut found = Vec::new();
    for state in states {
        let left = (reap.limit as usize).saturating_sub(found.len());
        let sql = format!(
            "SELECT {TALLY} FROM tramline_tally t FORCE INDEX (tramline_tally_idle) WHERE t.state = {} \
             AND t.idle_since < {}{topic} ORDER BY t.state, t.idle_since LIMIT {left} FOR UPDATE SKIP LOCKED",
            state as i16, reap.idle_since.0
        );
        found.extend(rows::find(session, sql).await?);
    }
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
    remove(session, &idle);
    raise_idle(session, &active);
    let more = clear_removed(session).await? || looked >= reap.limit as usize;
    let items = idle.iter().map(|row| row.total).sum();
    Ok(ReapedTallies { tallies: idle.len() as u64, items, more })
}

/// Those that are not idle are not looked at again soon.
fn raise_idle(session: &mut Session<'_>, active: &[(TallyId, Time)]) {
    for (id, time) in active {
        session.write(format!("UPDATE tramline_tally SET idle_since = {} WHERE id = {}", time.0, id.0));
    }
}

/// When a part that is under way was touched last, for each tally.
async fn last_active(session: &mut Session<'_>, found: &[TallyRow]) -> Result<Vec<Time>> {
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let sql = format!(
        "SELECT tally, MAX(active_at) FROM tramline_tally_part FORCE INDEX (tramline_tally_part_open) \
         WHERE tally IN ({}) AND is_open = 1 GROUP BY tally",
        list(found.iter().map(|row| row.id.0))
    );
    let mut times = BTreeMap::new();
    for row in session.rows(sql).await? {
        times.insert(TallyId(row.int(0)?), row.time(1)?);
    }
    Ok(found.iter().map(|row| times.get(&row.id).copied().unwrap_or_default()).collect())
}

/// Tallies do not exist any more, but for what is left to clear and to tell.
pub(super) fn remove(session: &mut Session<'_>, found: &[&TallyRow]) {
    if found.is_empty() {
        return;
    }
    let mut outbox = Vec::new();
    found.iter().for_each(|row| row.remove(session.now, &mut outbox));
    rows::put_out(session, &outbox);
    session.write(format!(
        "UPDATE tramline_tally SET state = {REMOVED}, idle_since = {}, open_key = NULL WHERE id IN ({})",
        session.now.0,
        list(found.iter().map(|row| row.id.0))
    ));
}

/// Clears what belongs to removed tallies. True if a limit was reached.
async fn clear_removed(session: &mut Session<'_>) -> Result<bool> {
    let sql = format!(
        "SELECT id FROM tramline_tally FORCE INDEX (tramline_tally_idle) WHERE state = {REMOVED} AND idle_since <= {} \
         ORDER BY state, idle_since LIMIT 1000 FOR UPDATE SKIP LOCKED",
        session.now.before(GRACE).0
    );
    let removed = session.rows(sql).await?;
    let mut left = ROWS;
    for row in &removed {
        left -= clear(session, TallyId(row.int(0)?), left).await?;
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
    for table in ["tramline_tally_part", "tramline_tally_extent"] {
        let left = limit - cleared;
        let sql = format!("DELETE FROM {table} WHERE tally = {} ORDER BY tally, part LIMIT {left}", tally.0);
        cleared += session.count(sql).await? as i64;
        if cleared >= limit {
            return Ok(cleared);
        }
    }
    for (table, column) in [("tramline_tally_note", "tally"), ("tramline_tally", "id")] {
        session.write(format!(
            "DELETE FROM {table} WHERE {column} = {0} AND NOT EXISTS (SELECT 1 FROM tramline_tally_outbox o WHERE o.tally = {0})",
            tally.0
        ));
    }
    Ok(cleared + 1)
}
