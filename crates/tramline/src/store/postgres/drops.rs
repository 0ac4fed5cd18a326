//! Records of what subscriptions will never see.

use super::session::Session;
use crate::error::Result;
use crate::model::dropped::{DropReason, DropRecord};
use crate::model::id::{EventId, SubscriptionId};
use crate::model::time::Time;
use crate::store::drops::{Drops, KEPT, MERGED, MOST};
use crate::store::verbs::{DropTotal, ListDrops};
use sqlx::Row;
use sqlx::postgres::PgRow;

/// Writes down what a step dropped; what follows within a minute joins a record, unless another step is joining it just now:
/// nobody waits for a record.
pub(super) async fn record(session: &mut Session<'_>, drops: Drops) -> Result<()> {
    let join = "UPDATE tramline_drop d SET first_id = least(d.first_id, $1), last_id = greatest(d.last_id, $2), \
                events = d.events + $3 WHERE d.id = (SELECT l.id FROM tramline_drop l WHERE l.subscription = $4 \
                AND l.reason = $5 AND l.at > $6 ORDER BY l.id DESC LIMIT 1 FOR UPDATE SKIP LOCKED)";
    let begin = "INSERT INTO tramline_drop (first_id, last_id, events, subscription, reason, at) \
                 VALUES ($1, $2, $3, $4, $5, $6)";
    for (by, reason, span) in drops.into_spans() {
        for (sql, at) in [(join, session.now.before(MERGED)), (begin, session.now)] {
            let query = session.query(sql).bind(span.first.0).bind(span.last.0).bind(span.events);
            let query = query.bind(by.0).bind(reason.as_str()).bind(at.0);
            if session.run(query).await? > 0 {
                break;
            }
        }
    }
    Ok(())
}

pub(super) async fn list(session: &mut Session<'_>, list: &ListDrops) -> Result<Vec<DropRecord>> {
    macro_rules! select {
        ($rest:literal) => {
            concat!(
                "SELECT id, subscription, reason, first_id, last_id, events, at FROM tramline_drop WHERE ",
                $rest,
                " LIMIT $3"
            )
        };
    }
    let sql = match (list.subscription, list.after) {
        (Some(_), Some(_)) => select!("subscription = $1 AND id > $2 ORDER BY subscription, id"),
        (Some(_), None) => select!("subscription = $1 AND id < $2 ORDER BY subscription DESC, id DESC"),
        (None, Some(_)) => select!("$1 = 0 AND id > $2 ORDER BY id"),
        (None, None) => select!("$1 = 0 AND id < $2 ORDER BY id DESC"),
    };
    let id = list.subscription.map_or(0, |id| id.0);
    let query = session.query(sql).bind(id).bind(list.after.unwrap_or(i64::MAX)).bind(i64::from(list.limit));
    session.all(query).await?.iter().map(read).collect()
}

/// The newest record that an event may be in.
pub(super) async fn about(
    session: &mut Session<'_>,
    of: SubscriptionId,
    event: EventId,
) -> Result<Option<DropRecord>> {
    let sql = "SELECT id, subscription, reason, first_id, last_id, events, at FROM tramline_drop \
               WHERE subscription = $1 AND first_id <= $2 AND last_id >= $2 ORDER BY subscription DESC, id DESC LIMIT 1";
    let query = session.query(sql).bind(of.0).bind(event.0);
    session.all(query).await?.first().map(read).transpose()
}

fn read(row: &PgRow) -> Result<DropRecord> {
    Ok(DropRecord {
        number: row.try_get(0)?,
        subscription: SubscriptionId(row.try_get(1)?),
        reason: DropReason::parse(row.try_get(2)?).unwrap_or(DropReason::Shed),
        first: EventId(row.try_get(3)?),
        last: EventId(row.try_get(4)?),
        events: row.try_get::<i64, _>(5)?.max(0).cast_unsigned(),
        at: Time(row.try_get(6)?),
    })
}

pub(super) async fn totals(session: &mut Session<'_>) -> Result<Vec<DropTotal>> {
    let sql = "SELECT a.subscription, a.reason, sum(a.events)::bigint FROM ( \
               SELECT d.subscription, d.reason, d.events FROM tramline_drop d \
               UNION ALL SELECT t.subscription, t.reason, t.events FROM tramline_drop_total t) a \
               GROUP BY a.subscription, a.reason ORDER BY a.subscription, a.reason";
    let query = session.query(sql);
    let rows = session.all(query).await?;
    let total = |row: &PgRow| {
        Ok(DropTotal {
            subscription: SubscriptionId(row.try_get(0)?),
            reason: DropReason::parse(row.try_get(1)?).unwrap_or(DropReason::Shed),
            events: row.try_get::<i64, _>(2)?.max(0).cast_unsigned(),
        })
    };
    rows.iter().map(total).collect()
}

/// Records that are too old or too many go into the sums. What another node has locked is left to it.
pub(super) async fn expire(session: &mut Session<'_>, limit: u32) -> Result<()> {
    let sql = "WITH gone AS (DELETE FROM tramline_drop d WHERE d.id IN (SELECT o.id FROM tramline_drop o \
                   WHERE o.at <= $1 OR o.id <= (SELECT max(m.id) FROM tramline_drop m) - $2 \
                   ORDER BY o.id LIMIT $3 FOR UPDATE SKIP LOCKED) RETURNING d.subscription, d.reason, d.events) \
               INSERT INTO tramline_drop_total AS t (subscription, reason, events) \
               SELECT g.subscription, g.reason, sum(g.events) FROM gone g GROUP BY g.subscription, g.reason \
               ORDER BY g.subscription, g.reason \
               ON CONFLICT (subscription, reason) DO UPDATE SET events = t.events + excluded.events";
    let query = session.query(sql).bind(session.now.before(KEPT).0).bind(MOST).bind(i64::from(limit));
    session.run(query).await.map(|_| ())
}
