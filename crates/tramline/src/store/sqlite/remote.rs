//! Workers that claim through a node: who was seen lately.

use super::session::Session;
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::model::time::Time;
use crate::store::verbs::{REMEMBERED, RemoteWorker, SeeRemote};
use rusqlite::{Connection, params};

pub(super) fn see(session: &Session<'_>, see: &SeeRemote) -> Result<()> {
    let sql = "INSERT INTO tramline_remote AS r (subscription, name, born_at, seen_at, claims) VALUES (?1, ?2, ?3, ?3, ?4) \
               ON CONFLICT DO UPDATE SET seen_at = max(r.seen_at, excluded.seen_at), \
               born_at = CASE WHEN r.seen_at <= ?5 THEN excluded.born_at ELSE r.born_at END, \
               claims = CASE WHEN r.seen_at <= ?5 THEN 0 ELSE r.claims END + excluded.claims";
    let mut statement = session.conn.prepare_cached(sql)?;
    let forgotten = session.now.before(REMEMBERED);
    for seen in &see.workers {
        if session.catalog.require_subscription(seen.subscription).is_ok() {
            let claims = seen.claims.cast_signed();
            statement.execute(params![seen.subscription.0, seen.name, session.now.0, claims, forgotten.0])?;
        }
    }
    Ok(())
}

pub(super) fn all(session: &Session<'_>) -> Result<Vec<RemoteWorker>> {
    let sql = "SELECT subscription, name, born_at, seen_at, claims FROM tramline_remote WHERE seen_at > ? \
               ORDER BY name, subscription";
    let mut statement = session.conn.prepare_cached(sql)?;
    let rows = statement.query_map([session.now.before(REMEMBERED).0], |row| {
        Ok(RemoteWorker {
            subscription: SubscriptionId(row.get(0)?),
            name: row.get(1)?,
            born_at: Time(row.get(2)?),
            seen_at: Time(row.get(3)?),
            claims: row.get::<_, i64>(4)?.max(0).cast_unsigned(),
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Forgets who was not seen for long.
pub(super) fn expire(conn: &Connection, now: Time, limit: i64) -> Result<()> {
    let sql = "DELETE FROM tramline_remote WHERE (subscription, name) IN \
               (SELECT subscription, name FROM tramline_remote WHERE seen_at <= ? LIMIT ?)";
    conn.prepare_cached(sql)?.execute([now.before(REMEMBERED).0, limit])?;
    Ok(())
}
