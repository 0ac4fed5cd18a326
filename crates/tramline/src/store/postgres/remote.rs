//! Workers that claim through a node: who was seen lately.

use super::session::Session;
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::model::time::Time;
use crate::store::verbs::{REMEMBERED, RemoteWorker, SeeRemote};
use sqlx::Row;
use sqlx::postgres::PgRow;

/// Sorted, so that two nodes never wait in a circle.
pub(super) async fn see(session: &mut Session<'_>, see: &SeeRemote) -> Result<()> {
    let sql = "INSERT INTO tramline_remote AS r (subscription, name, born_at, seen_at, claims) \
               SELECT u.subscription, u.name, $4, $4, sum(u.claims)::bigint \
               FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS u(subscription, name, claims) \
               WHERE EXISTS (SELECT 1 FROM tramline_subscription s WHERE s.id = u.subscription) \
               GROUP BY u.subscription, u.name ORDER BY u.subscription, u.name \
               ON CONFLICT (subscription, name) DO UPDATE SET seen_at = greatest(r.seen_at, excluded.seen_at), \
               born_at = CASE WHEN r.seen_at <= $5 THEN excluded.born_at ELSE r.born_at END, \
               claims = CASE WHEN r.seen_at <= $5 THEN 0 ELSE r.claims END + excluded.claims";
    let query = session
        .query(sql)
        .bind(see.workers.iter().map(|seen| seen.subscription.0).collect::<Vec<i64>>())
        .bind(see.workers.iter().map(|seen| seen.name.clone()).collect::<Vec<String>>())
        .bind(see.workers.iter().map(|seen| seen.claims.cast_signed()).collect::<Vec<i64>>())
        .bind(session.now.0)
        .bind(session.now.before(REMEMBERED).0);
    session.run(query).await.map(|_| ())
}

pub(super) async fn all(session: &mut Session<'_>) -> Result<Vec<RemoteWorker>> {
    let sql = "SELECT subscription, name, born_at, seen_at, claims FROM tramline_remote WHERE seen_at > $1 \
               ORDER BY name, subscription";
    let query = session.query(sql).bind(session.now.before(REMEMBERED).0);
    let worker = |row: &PgRow| {
        Ok(RemoteWorker {
            subscription: SubscriptionId(row.try_get(0)?),
            name: row.try_get(1)?,
            born_at: Time(row.try_get(2)?),
            seen_at: Time(row.try_get(3)?),
            claims: row.try_get::<i64, _>(4)?.max(0).cast_unsigned(),
        })
    };
    session.all(query).await?.iter().map(worker).collect()
}

/// Forgets who was not seen for long.
pub(super) async fn expire(session: &mut Session<'_>, limit: u32) -> Result<()> {
    let sql = "DELETE FROM tramline_remote WHERE (subscription, name) IN (SELECT r.subscription, r.name \
               FROM tramline_remote r WHERE r.seen_at <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)";
    let query = session.query(sql).bind(session.now.before(REMEMBERED).0).bind(i64::from(limit));
    session.run(query).await.map(|_| ())
}
