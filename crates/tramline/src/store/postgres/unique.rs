//! Unique events: the last event of each unique key, locked from the look at it until the emit is committed.

use super::session::Session;
use crate::error::Result;
use crate::model::id::{EventId, TopicId};
use crate::model::time::Time;
use crate::plan::unique::Standing;
use crate::store::unique::{Entry, NEXT_LOOK, Name, Standings};
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::collections::{BTreeSet, HashSet};

/// Locks unique keys, in sorted order, and gives what is known of them.
///
/// Whether events are pending is asked by a statement of its own: one that waited for a lock would look at what was there before.
pub(super) async fn standings(session: &mut Session<'_>, names: &BTreeSet<Name>) -> Result<Standings> {
    let found = lock(session, names).await?;
    let known: Vec<&Found> = found.iter().filter(|found| found.event.0 != 0).collect();
    let pending = pending(session, known.iter().map(|found| found.event)).await?;
    let standing = |found: &Found| {
        let pending = pending.contains(&found.event);
        (found.name.clone(), Standing { event: found.event, until: found.until, pending })
    };
    Ok(known.into_iter().map(standing).collect())
}

/// The entry of a unique key; event 0 if it is new.
struct Found {
    name: Name,
    event: EventId,
    until: Time,
}

impl Found {
    fn read(row: &PgRow) -> Result<Found> {
        Ok(Found {
            name: (TopicId(row.try_get(0)?), row.try_get(1)?),
            event: EventId(row.try_get(2)?),
            until: Time(row.try_get(3)?),
        })
    }
}

async fn lock(session: &mut Session<'_>, names: &BTreeSet<Name>) -> Result<Vec<Found>> {
    let create = "INSERT INTO tramline_unique (topic, key, event, until, look_at) \
                  SELECT n.topic, n.key, 0, 0, $3 FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY \
                  AS n(topic, key, place) ORDER BY n.place ON CONFLICT DO NOTHING";
    let lock = "SELECT u.topic, u.key, u.event, u.until FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY \
                AS n(topic, key, place) JOIN tramline_unique u ON u.topic = n.topic AND u.key = n.key \
                ORDER BY n.place FOR UPDATE OF u";
    let (topics, keys): (Vec<i64>, Vec<String>) =
        names.iter().map(|(topic, key)| (topic.0, key.clone())).unzip();
    let look_at = session.now.after(NEXT_LOOK).0;
    loop {
        let query = session.query(create).bind(topics.clone()).bind(keys.clone()).bind(look_at);
        session.run(query).await?;
        let query = session.query(lock).bind(topics.clone()).bind(keys.clone());
        let rows = session.all(query).await?;
        // A sweep may have removed one in between.
        if rows.len() == names.len() {
            return rows.iter().map(Found::read).collect();
        }
    }
}

/// Those of some events that a subscription which still exists has not done with. By the primary key.
async fn pending(
    session: &mut Session<'_>,
    events: impl Iterator<Item = EventId>,
) -> Result<HashSet<EventId>> {
    let events: Vec<i64> = events.map(|event| event.0).collect();
    if events.is_empty() {
        return Ok(HashSet::new());
    }
    let sql = "SELECT e.event FROM unnest($1::bigint[]) AS e(event) WHERE EXISTS (SELECT 1 FROM tramline_slice s \
               WHERE s.chunk = e.event >> 6 AND (s.mask >> (e.event & 63)::int) & 1 = 1 AND s.state + 0 <> 6 \
               AND s.subscription + 0 = ANY($2))";
    let living: Vec<i64> = session.catalog.subscriptions().iter().map(|one| one.id.0).collect();
    let query = session.query(sql).bind(events).bind(living);
    session.all(query).await?.iter().map(|row| Ok(EventId(row.try_get(0)?))).collect()
}

/// Writes down what was stored. The entries exist, and are locked.
pub(super) async fn keep(session: &mut Session<'_>, entries: &[Entry]) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let sql = "UPDATE tramline_unique u SET event = n.event, until = n.until, look_at = n.look_at \
               FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) \
               AS n(topic, key, event, until, look_at) WHERE u.topic = n.topic AND u.key = n.key";
    let column = |value: fn(&Entry) -> i64| entries.iter().map(value).collect::<Vec<i64>>();
    let query = session
        .query(sql)
        .bind(column(|entry| entry.name.0.0))
        .bind(entries.iter().map(|entry| entry.name.1.clone()).collect::<Vec<String>>())
        .bind(column(|entry| entry.event.0))
        .bind(column(|entry| entry.until.0))
        .bind(column(|entry| entry.look_at.0));
    session.run(query).await.map(|_| ())
}

/// Removes entries whose event is not pending and counts no longer.
pub(super) async fn expire(session: &mut Session<'_>, limit: u32) -> Result<()> {
    let sql = "SELECT topic, key, event, until FROM tramline_unique WHERE look_at <= $1 ORDER BY look_at LIMIT $2 \
               FOR UPDATE SKIP LOCKED";
    let now = session.now;
    let query = session.query(sql).bind(now.0).bind(i64::from(limit));
    let rows = session.all(query).await?;
    if rows.is_empty() {
        return Ok(());
    }
    let found: Vec<Found> = rows.iter().map(Found::read).collect::<Result<_>>()?;
    let pending = pending(session, found.iter().map(|found| found.event)).await?;
    let (stay, go): (Vec<Found>, Vec<Found>) =
        found.into_iter().partition(|found| found.until > now || pending.contains(&found.event));
    let columns = |some: Vec<Found>| -> (Vec<i64>, Vec<String>) {
        some.into_iter().map(|found| (found.name.0.0, found.name.1)).unzip()
    };
    let sql = "UPDATE tramline_unique u SET look_at = $3 FROM unnest($1::bigint[], $2::text[]) AS n(topic, key) \
               WHERE u.topic = n.topic AND u.key = n.key";
    let (topics, keys) = columns(stay);
    let query = session.query(sql).bind(topics).bind(keys).bind(now.after(NEXT_LOOK).0);
    session.run(query).await?;
    let sql = "DELETE FROM tramline_unique u USING unnest($1::bigint[], $2::text[]) AS n(topic, key) \
               WHERE u.topic = n.topic AND u.key = n.key";
    let (topics, keys) = columns(go);
    let query = session.query(sql).bind(topics).bind(keys);
    session.run(query).await.map(|_| ())
}
