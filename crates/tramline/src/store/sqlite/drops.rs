//! Records of what subscriptions will never see.

use super::session::Session;
use crate::error::Result;
use crate::model::dropped::{DropReason, DropRecord};
use crate::model::id::{EventId, SubscriptionId};
use crate::model::time::Time;
use crate::store::drops::{Drops, KEPT, MERGED, MOST};
use crate::store::verbs::{DropTotal, ListDrops};
use rusqlite::{Connection, OptionalExtension, Row, params};

/// Writes down what a step dropped; what follows within a minute joins a record.
pub(super) fn record(session: &Session<'_>, drops: Drops) -> Result<()> {
    let join = "UPDATE tramline_drop SET first_id = min(first_id, ?1), last_id = max(last_id, ?2), events = events + ?3 \
                WHERE id = (SELECT id FROM tramline_drop WHERE subscription = ?4 AND reason = ?5 ORDER BY id DESC LIMIT 1) \
                AND at > ?6";
    let begin = "INSERT INTO tramline_drop (first_id, last_id, events, subscription, reason, at) VALUES (?, ?, ?, ?, ?, ?)";
    for (by, reason, span) in drops.into_spans() {
        let values = |at: Time| (span.first.0, span.last.0, span.events, by.0, reason.as_str(), at.0);
        let joined = session.conn.prepare_cached(join)?.execute(values(session.now.before(MERGED)))?;
        if joined == 0 {
            session.conn.prepare_cached(begin)?.execute(values(session.now))?;
        }
    }
    Ok(())
}

pub(super) fn list(conn: &Connection, list: &ListDrops) -> Result<Vec<DropRecord>> {
    let (edge, order) = match list.after {
        Some(after) => (after, "id > ? ORDER BY id"),
        None => (i64::MAX, "id < ? ORDER BY id DESC"),
    };
    let whose = if list.subscription.is_some() { "subscription = ?" } else { "? = 0" };
    let sql = format!(
        "SELECT id, subscription, reason, first_id, last_id, events, at FROM tramline_drop WHERE {whose} AND {order} LIMIT ?"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let id = list.subscription.map_or(0, |id| id.0);
    let rows = statement.query_map([id, edge, i64::from(list.limit)], read)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The newest record that an event may be in.
pub(super) fn about(conn: &Connection, of: SubscriptionId, event: EventId) -> Result<Option<DropRecord>> {
    let sql = "SELECT id, subscription, reason, first_id, last_id, events, at FROM tramline_drop \
               WHERE subscription = ?1 AND first_id <= ?2 AND last_id >= ?2 ORDER BY id DESC LIMIT 1";
    Ok(conn.prepare_cached(sql)?.query_row([of.0, event.0], read).optional()?)
}

fn read(row: &Row<'_>) -> rusqlite::Result<DropRecord> {
    Ok(DropRecord {
        number: row.get(0)?,
        subscription: SubscriptionId(row.get(1)?),
        reason: DropReason::parse(row.get_ref(2)?.as_str()?).unwrap_or(DropReason::Shed),
        first: EventId(row.get(3)?),
        last: EventId(row.get(4)?),
        events: row.get::<_, i64>(5)?.max(0).cast_unsigned(),
        at: Time(row.get(6)?),
    })
}

pub(super) fn totals(conn: &Connection) -> Result<Vec<DropTotal>> {
    let sql = "SELECT subscription, reason, sum(events) FROM (SELECT subscription, reason, events FROM tramline_drop \
               UNION ALL SELECT subscription, reason, events FROM tramline_drop_total) \
               GROUP BY subscription, reason ORDER BY subscription, reason";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        Ok(DropTotal {
            subscription: SubscriptionId(row.get(0)?),
            reason: DropReason::parse(row.get_ref(1)?.as_str()?).unwrap_or(DropReason::Shed),
            events: row.get::<_, i64>(2)?.max(0).cast_unsigned(),
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Records that are too old or too many go into the sums.
pub(super) fn expire(session: &Session<'_>, limit: i64) -> Result<()> {
    let sql = "SELECT coalesce(max(id), 0) FROM (SELECT id FROM tramline_drop WHERE at <= ?1 \
               OR id <= (SELECT max(id) FROM tramline_drop) - ?2 ORDER BY id LIMIT ?3)";
    let values = [session.now.before(KEPT).0, MOST, limit];
    let until: i64 = session.conn.prepare_cached(sql)?.query_row(values, |row| row.get(0))?;
    if until == 0 {
        return Ok(());
    }
    let sql = "INSERT INTO tramline_drop_total SELECT subscription, reason, sum(events) FROM tramline_drop WHERE id <= ? \
               GROUP BY subscription, reason ON CONFLICT DO UPDATE SET events = events + excluded.events";
    session.conn.prepare_cached(sql)?.execute([until])?;
    session.conn.prepare_cached("DELETE FROM tramline_drop WHERE id <= ?")?.execute(params![until])?;
    Ok(())
}
