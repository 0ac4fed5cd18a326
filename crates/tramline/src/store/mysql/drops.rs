//! Records of what subscriptions will never see.

use super::session::Session;
use super::sql::{Columns, insert, numbered, text};
use crate::error::Result;
use crate::model::dropped::{DropReason, DropRecord};
use crate::model::id::{EventId, SubscriptionId};
use crate::store::drops::{Drops, KEPT, MERGED, MOST};
use crate::store::verbs::{DropTotal, ListDrops};
use sqlx::mysql::MySqlRow;
use std::collections::BTreeMap;

/// Writes down what a step dropped; what follows within a minute joins a record, unless another step is joining it just now:
/// nobody waits for a record.
pub(super) async fn record(session: &mut Session<'_>, drops: Drops) -> Result<()> {
    let since = session.now.before(MERGED).0;
    let spans: Vec<_> = drops.into_spans().collect();
    if spans.is_empty() {
        return Ok(());
    }
    let last = spans.iter().map(|(by, reason, _)| {
        format!(
            "SELECT id FROM tramline_drop FORCE INDEX (tramline_drop_subscription) WHERE subscription = {} \
             AND reason = {} AND at > {since} ORDER BY subscription DESC, id DESC LIMIT 1 FOR UPDATE SKIP LOCKED",
            by.0,
            text(reason.as_str())
        )
    });
    let found = session.sets(last.collect()).await?;
    for ((by, reason, span), last) in spans.into_iter().zip(found) {
        let (first, last_id, events) = (span.first.0, span.last.0, span.events);
        session.write(match last.first().map(|row| row.int(0)).transpose()? {
            Some(id) => format!(
                "UPDATE tramline_drop SET first_id = LEAST(first_id, {first}), last_id = GREATEST(last_id, {last_id}), \
                 events = events + {events} WHERE id = {id}"
            ),
            None => format!(
                "INSERT INTO tramline_drop (subscription, reason, first_id, last_id, events, at) \
                 VALUES ({}, {}, {first}, {last_id}, {events}, {})",
                by.0,
                text(reason.as_str()),
                session.now.0
            ),
        });
    }
    Ok(())
}

pub(super) async fn list_records(session: &mut Session<'_>, wanted: &ListDrops) -> Result<Vec<DropRecord>> {
    let of = wanted.subscription.map_or_else(|| "TRUE".to_owned(), |id| format!("subscription = {}", id.0));
    let (range, order) = match wanted.after {
        Some(after) => (format!("id > {after}"), "id"),
        None => ("TRUE".to_owned(), "id DESC"),
    };
    let sql = format!(
        "SELECT id, subscription, reason, first_id, last_id, events, at FROM tramline_drop \
         WHERE {of} AND {range} ORDER BY {order} LIMIT {}",
        wanted.limit
    );
    session.rows(sql).await?.iter().map(read).collect()
}

/// The newest record that an event may be in.
pub(super) async fn about(
    session: &mut Session<'_>,
    of: SubscriptionId,
    event: EventId,
) -> Result<Option<DropRecord>> {
    let sql = format!(
        "SELECT id, subscription, reason, first_id, last_id, events, at FROM tramline_drop \
         WHERE subscription = {0} AND first_id <= {1} AND last_id >= {1} ORDER BY id DESC LIMIT 1",
        of.0, event.0
    );
    session.rows(sql).await?.first().map(read).transpose()
}

fn read(row: &MySqlRow) -> Result<DropRecord> {
    Ok(DropRecord {
        number: row.int(0)?,
        subscription: SubscriptionId(row.int(1)?),
        reason: reason(row, 2)?,
        first: EventId(row.int(3)?),
        last: EventId(row.int(4)?),
        events: row.count(5)?,
        at: row.time(6)?,
    })
}

fn reason(row: &MySqlRow, at: usize) -> Result<DropReason> {
    Ok(DropReason::parse(&row.text(at)?).unwrap_or(DropReason::Shed))
}

pub(super) async fn totals(session: &mut Session<'_>) -> Result<Vec<DropTotal>> {
    let sql = "SELECT a.subscription, a.reason, CAST(SUM(a.events) AS SIGNED) FROM ( \
               SELECT d.subscription, d.reason, d.events FROM tramline_drop d \
               UNION ALL SELECT t.subscription, t.reason, t.events FROM tramline_drop_total t) a \
               GROUP BY a.subscription, a.reason ORDER BY a.subscription, a.reason";
    let total = |row: &MySqlRow| {
        Ok(DropTotal {
            subscription: SubscriptionId(row.int(0)?),
            reason: reason(row, 1)?,
            events: row.count(2)?,
        })
    };
    session.rows(sql).await?.iter().map(total).collect()
}

/// Records that are too old or too many go into the sums. What another node has locked is left to it.
pub(super) async fn expire(session: &mut Session<'_>, limit: u32) -> Result<()> {
    let find = format!(
        "SELECT id FROM tramline_drop WHERE at <= {} OR id <= (SELECT MAX(m.id) FROM tramline_drop m) - {MOST} \
         ORDER BY id LIMIT {limit}",
        session.now.before(KEPT).0
    );
    let found: Vec<i64> = session.rows(find).await?.iter().map(|row| row.int(0)).collect::<Result<_>>()?;
    if found.is_empty() {
        return Ok(());
    }
    // Found first, so that only what goes is locked.
    let lock = format!(
        "SELECT d.id, d.subscription, d.reason, d.events FROM {} STRAIGHT_JOIN tramline_drop d ON d.id = n.a \
         FOR UPDATE SKIP LOCKED",
        numbered(found)
    );
    let mut gone = Vec::new();
    let mut sums: BTreeMap<(i64, String), i64> = BTreeMap::new();
    for row in session.rows(lock).await? {
        gone.push(row.int(0)?);
        *sums.entry((row.int(1)?, row.text(2)?)).or_default() += row.int(3)?;
    }
    session.write(format!("DELETE d FROM {} STRAIGHT_JOIN tramline_drop d ON d.id = n.a", numbered(gone)));
    let rows = sums.iter().map(|((id, reason), events)| format!("({id},{},{events})", text(reason)));
    let head = "INSERT INTO tramline_drop_total (subscription, reason, events) VALUES ";
    let tail = " ON DUPLICATE KEY UPDATE events = events + VALUES(events)";
    session.write_all(insert(head, rows, tail, session.common.packet));
    Ok(())
}
