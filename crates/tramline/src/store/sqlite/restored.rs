//! A copy that is put in the place of a store does not know what was done after it was made. It is marked, and when it is first opened
//! what must not run twice is stopped until somebody who knows lets it go on.

use super::session::{CatalogCache, Session};
use super::{rules, schedule};
use crate::error::Result;
use crate::model::rule::RuleKind;
use crate::model::schedule::Missed;
use crate::model::time::Time;
use crate::store::verbs::{ListSchedules, RuleEnd, SetRule};
use rusqlite::{Connection, OptionalExtension};

/// The time at which a copy was made; a store that nobody copied has none.
const MARK: &str = "copied_at";
/// Who stops what.
const BY: &str = "tramline";

/// Says in a copy when it was made.
pub(super) fn mark(copy: &Connection, at: Time) -> Result<()> {
    let sql = "INSERT OR REPLACE INTO tramline_meta (name, value) VALUES (?, ?)";
    copy.execute(sql, rusqlite::params![MARK, at.0])?;
    Ok(())
}

/// Stops in a copy what may have gone on after it was made, once. Whoever else opens the file waits, and finds it done.
pub(super) fn stop_what_went_on(conn: &Connection) -> Result<()> {
    if copied_at(conn)?.is_none() {
        return Ok(());
    }
    conn.execute_batch("BEGIN IMMEDIATE")?;
    let result = stop(conn);
    conn.execute_batch(if result.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    result
}

fn copied_at(conn: &Connection) -> Result<Option<Time>> {
    let sql = "SELECT value FROM tramline_meta WHERE name = ?";
    Ok(conn.query_row(sql, [MARK], |row| row.get(0).map(Time)).optional()?)
}

fn stop(conn: &Connection) -> Result<()> {
    let Some(at) = copied_at(conn)? else { return Ok(()) };
    let session = Session::new(conn, None, &CatalogCache::default())?;
    let at = written(conn, at)?;
    let mut blocked = Vec::new();
    for one in session.catalog.subscriptions().iter().filter(|one| one.policy.is_at_most_once()) {
        let reason = format!(
            "the store is a copy of {at}, and what was claimed after that would run again: unblock when nothing was, or when that does no harm"
        );
        let set = SetRule {
            subscription: one.id,
            kind: RuleKind::Block,
            until: Some(RuleEnd::Open),
            by: BY.to_owned(),
            reason,
            now: Some(session.now),
        };
        rules::set(&session, &set)?;
        blocked.push(one.name.clone());
    }
    let paused = pause_schedules(&session)?;
    session.finish()?;
    conn.execute("DELETE FROM tramline_meta WHERE name = ?", [MARK])?;
    tracing::warn!(
        copied_at = at,
        ?blocked,
        ?paused,
        "this store is a copy: subscriptions that are at most once are blocked, and schedules that make up for missed runs are paused, \
         until somebody lets them go on"
    );
    Ok(())
}

/// Runs that they missed since the copy was made may have been emitted, and be done.
fn pause_schedules(session: &Session<'_>) -> Result<Vec<String>> {
    let all = schedule::list(session.conn, &ListSchedules { after: None, limit: u32::MAX })?;
    let makes_up = all.into_iter().filter(|one| !one.paused && one.schedule.missed != Missed::Skip);
    let mut paused = Vec::new();
    for one in makes_up {
        paused.push(schedule::pause(session, &one.schedule.name, true)?.schedule.name);
    }
    Ok(paused)
}

fn written(conn: &Connection, Time(at): Time) -> Result<String> {
    let sql = "SELECT strftime('%Y-%m-%dT%H:%M:%SZ', ? / 1000, 'unixepoch')";
    Ok(conn.query_row(sql, [at], |row| row.get(0))?)
}
