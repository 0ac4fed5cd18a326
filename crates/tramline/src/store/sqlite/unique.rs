//! Unique events: the last event of each unique key. The write transaction is the lock.

use super::session::Session;
use crate::error::Result;
use crate::model::id::{EventId, SubscriptionId, TopicId};
use crate::model::time::Time;
use crate::plan::unique::Standing;
use crate::store::unique::{Entry, NEXT_LOOK, Name, Standings};
use rusqlite::{OptionalExtension, params};
use std::collections::BTreeSet;

/// What is known of unique keys.
pub(super) fn standings(session: &Session<'_>, names: &BTreeSet<Name>) -> Result<Standings> {
    let sql = "SELECT event, until FROM tramline_unique WHERE topic = ? AND key = ?";
    let mut statement = session.conn.prepare_cached(sql)?;
    let mut standings = Standings::new();
    for (topic, key) in names {
        let found = statement
            .query_row(params![topic.0, key], |row| Ok((EventId(row.get(0)?), Time(row.get(1)?))))
            .optional()?;
        if let Some((event, until)) = found {
            let pending = is_pending(session, event)?;
            standings.insert((*topic, key.clone()), Standing { event, until, pending });
        }
    }
    Ok(standings)
}

/// True if some subscription that still exists has not done with an event. By the primary key.
fn is_pending(session: &Session<'_>, event: EventId) -> Result<bool> {
    let sql = "SELECT subscription FROM tramline_slice WHERE chunk = ? AND (mask >> ?) & 1 AND state <> 6";
    let mut statement = session.conn.prepare_cached(sql)?;
    let rows = statement
        .query_map([event.chunk().0, i64::from(event.index())], |row| row.get(0).map(SubscriptionId))?;
    for subscription in rows {
        if session.catalog.require_subscription(subscription?).is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Writes down what was stored.
pub(super) fn keep(session: &Session<'_>, entries: &[Entry]) -> Result<()> {
    let sql =
        "INSERT OR REPLACE INTO tramline_unique (topic, key, event, until, look_at) VALUES (?, ?, ?, ?, ?)";
    let mut statement = session.conn.prepare_cached(sql)?;
    for entry in entries {
        let (topic, key) = &entry.name;
        statement.execute(params![topic.0, key, entry.event.0, entry.until.0, entry.look_at.0])?;
    }
    Ok(())
}

/// Removes entries whose event is not pending and counts no longer.
pub(super) fn expire(session: &Session<'_>, limit: i64) -> Result<()> {
    let (conn, now) = (session.conn, session.now);
    let sql =
        "SELECT topic, key, event, until FROM tramline_unique WHERE look_at <= ? ORDER BY look_at LIMIT ?";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([now.0, limit], |row| {
        Ok((TopicId(row.get(0)?), row.get::<_, String>(1)?, EventId(row.get(2)?), Time(row.get(3)?)))
    })?;
    for (topic, key, event, until) in rows.collect::<rusqlite::Result<Vec<_>>>()? {
        if until > now || is_pending(session, event)? {
            let sql = "UPDATE tramline_unique SET look_at = ? WHERE topic = ? AND key = ?";
            conn.prepare_cached(sql)?.execute(params![now.after(NEXT_LOOK).0, topic.0, key])?;
        } else {
            let sql = "DELETE FROM tramline_unique WHERE topic = ? AND key = ?";
            conn.prepare_cached(sql)?.execute(params![topic.0, key])?;
        }
    }
    Ok(())
}
