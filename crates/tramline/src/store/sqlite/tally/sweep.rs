//! Housekeeping of tallies: expiry, recounts, removal. Always a bounded part.

use super::rows;
use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::TallyState;
use crate::model::tally::part::PART;
use crate::model::time::Time;
use crate::plan::tally::TallyRow;
use crate::store::sqlite::session::Session;
use crate::store::tally::{GRACE, RECOUNT, RECOUNTS, REMOVED};
use crate::store::verbs_tally::{ReapTallies, ReapedTallies, SweepTallies, SweptTallies};
use rusqlite::{Connection, params};

/// What removing may cost in one step, in rows.
const ROWS: i64 = 10_000;

pub(in crate::store::sqlite) fn sweep(session: &Session<'_>, sweep: SweepTallies) -> Result<SweptTallies> {
    let mut swept = SweptTallies::default();
    expire(session, sweep.limit, &mut swept)?;
    recount(session, &mut swept)?;
    for (open, kept) in [(true, sweep.keep_open), (false, sweep.keep_sealed)] {
        let idle_since = session.now.before(kept);
        let reaped =
            reap(session, &ReapTallies { open, idle_since, topic: None, limit: sweep.limit, now: None })?;
        swept.reaped += reaped.tallies;
        swept.more |= reaped.more;
    }
    Ok(swept)
}

fn expire(session: &Session<'_>, limit: u32, swept: &mut SweptTallies) -> Result<()> {
    let filter = "state < 2 AND expires_at <= ? ORDER BY expires_at LIMIT ?";
    for mut row in rows::find(session.conn, filter, [session.now.0, i64::from(limit)])? {
        let mut outbox = Vec::new();
        row.expire(session.now, &mut outbox);
        rows::write(session.conn, &row, &outbox)?;
        swept.expired += 1;
        swept.news.push(row.id);
    }
    swept.more |= swept.expired >= u64::from(limit);
    Ok(())
}

/// Proves that sealed tallies are not stuck: every hour their parts are counted anew.
fn recount(session: &Session<'_>, swept: &mut SweptTallies) -> Result<()> {
    let conn = session.conn;
    let filter = "state = 1 AND checked_at <= ? ORDER BY checked_at LIMIT ?";
    for mut row in rows::find(conn, filter, [session.now.before(RECOUNT).0, RECOUNTS])? {
        let (added, finished) = parts(conn, row.id)?;
        let sums = rows::sums(conn, row.id, "remaining = 0")?;
        let mut outbox = Vec::new();
        if row.recount(added.saturating_sub(finished), sums, session.now, &mut outbox) {
            swept.repaired += 1;
            swept.news.push(row.id);
            rows::write(conn, &row, &outbox)?;
        }
        let sql = "UPDATE tramline_tally SET checked_at = ? WHERE id = ?";
        conn.prepare_cached(sql)?.execute([session.now.0, row.id.0])?;
    }
    Ok(())
}

/// How many parts were added, and how many are finished.
fn parts(conn: &Connection, tally: TallyId) -> Result<(u64, u64)> {
    let count = |sql: &str| -> Result<u64> {
        let count: i64 = conn.prepare_cached(sql)?.query_row([tally.0], |row| row.get(0))?;
        Ok(count.cast_unsigned())
    };
    let added = format!(
        "SELECT coalesce(sum((count + {PART} - 1) / {PART}), 0) FROM tramline_tally_extent WHERE tally = ?"
    );
    let finished = "SELECT count(*) FROM tramline_tally_part WHERE tally = ? AND remaining = 0";
    Ok((count(&added)?, count(finished)?))
}

/// Removes what is idle. `idle_since` of a row is never later than its last activity: those it names are looked at closely, and
/// those that stay are not looked at again before they could be idle for as long.
pub(in crate::store::sqlite) fn reap(session: &Session<'_>, reap: &ReapTallies) -> Result<ReapedTallies> {
    let conn = session.conn;
    let mut reaped = ReapedTallies::default();
    let mut looked = 0;
    for state in TallyState::ALL.into_iter().filter(|state| (*state == TallyState::Open) == reap.open) {
        let filter =
            "state = ?1 AND idle_since < ?2 AND (?4 IS NULL OR topic = ?4) ORDER BY idle_since LIMIT ?3";
        let left = i64::from(reap.limit) - looked;
        for row in rows::find(conn, filter, params![state as i64, reap.idle_since.0, left, reap.topic])? {
            looked += 1;
            let parts = rows::unfinished(conn, row.id)?.active_at.unwrap_or(Time(0));
            let active_at = row.active_at.max(parts);
            if active_at < reap.idle_since {
                remove(session, &row)?;
                reaped.tallies += 1;
                reaped.items += row.total;
            } else {
                let sql = "UPDATE tramline_tally SET idle_since = ? WHERE id = ?";
                conn.prepare_cached(sql)?.execute([active_at.0, row.id.0])?;
            }
        }
    }
    reaped.more = clear_removed(session)? || looked >= i64::from(reap.limit);
    Ok(reaped)
}

/// A tally does not exist any more, but for what is left to clear and to tell.
pub(super) fn remove(session: &Session<'_>, row: &TallyRow) -> Result<()> {
    let mut outbox = Vec::new();
    row.remove(session.now, &mut outbox);
    rows::put_out(session.conn, &outbox)?;
    let sql = "UPDATE tramline_tally SET state = ?, idle_since = ? WHERE id = ?";
    session.conn.prepare_cached(sql)?.execute([i64::from(REMOVED), session.now.0, row.id.0])?;
    Ok(())
}

/// Clears what belongs to removed tallies. True if a limit was reached.
fn clear_removed(session: &Session<'_>) -> Result<bool> {
    let sql =
        "SELECT id FROM tramline_tally WHERE state = ? AND idle_since <= ? ORDER BY idle_since LIMIT 1000";
    let removed: Vec<i64> = {
        let mut statement = session.conn.prepare_cached(sql)?;
        let values = [i64::from(REMOVED), session.now.before(GRACE).0];
        let ids = statement.query_map(values, |row| row.get(0))?;
        ids.collect::<rusqlite::Result<_>>()?
    };
    let mut left = ROWS;
    for id in &removed {
        left -= clear(session.conn, TallyId(*id), left)?;
        if left <= 0 {
            return Ok(true);
        }
    }
    Ok(removed.len() == 1000)
}

/// Clears up to `limit` rows of a removed tally, and the tally itself when nothing is left and all its news are told. Gives how
/// many rows.
fn clear(conn: &Connection, tally: TallyId, limit: i64) -> Result<i64> {
    let mut cleared = 0;
    for table in ["tramline_tally_part", "tramline_tally_extent"] {
        let sql = format!(
            "DELETE FROM {table} WHERE tally = ?1 AND part IN (SELECT part FROM {table} WHERE tally = ?1 LIMIT ?2)"
        );
        cleared += conn.prepare_cached(&sql)?.execute([tally.0, limit - cleared])? as i64;
        if cleared >= limit {
            return Ok(cleared);
        }
    }
    let sql = "SELECT EXISTS (SELECT 1 FROM tramline_tally_outbox WHERE tally = ?)";
    if !conn.prepare_cached(sql)?.query_row([tally.0], |row| row.get::<_, bool>(0))? {
        conn.prepare_cached("DELETE FROM tramline_tally_note WHERE tally = ?")?.execute([tally.0])?;
        conn.prepare_cached("DELETE FROM tramline_tally WHERE id = ?")?.execute(params![tally.0])?;
    }
    Ok(cleared + 1)
}
