//! Unique events: the last event of each unique key, locked from the look at it until the emit is committed.

use super::hoped::IN_THE_WAY;
use super::session::{Rows, Session};
use super::sql::{self, Columns, LIST, insert, list, overwrite, text};
use crate::error::Result;
use crate::model::id::{EventId, TopicId};
use crate::model::mask::Mask;
use crate::model::time::{Time, millis};
use crate::plan::unique::Standing;
use crate::store::catalog::Catalog;
use crate::store::unique::{Entry, NEXT_LOOK, Name, Standings};
use std::collections::{BTreeSet, HashSet};

/// Locks unique keys, in sorted order, and gives what is known of them.
pub(super) async fn standings(session: &mut Session<'_>, names: &BTreeSet<Name>) -> Result<Standings> {
    let sql = standings_sql(names, &session.catalog, "TRUE");
    standings_of(&session.sets(sql).await?)
}

/// The same if nothing is in the way yet; and then, counts those that are in the way of another event.
pub(super) fn hoped_sql(names: &BTreeSet<Name>, catalog: &Catalog) -> Vec<String> {
    let mut sql = standings_sql(names, catalog, &format!("{IN_THE_WAY} = 0"));
    // Not SET .. = (SELECT ..), which would lock the slices that it reads.
    let count = format!("SELECT {IN_THE_WAY} + COUNT(*) INTO {IN_THE_WAY} FROM");
    let counts = format!(" WHERE u.event <> 0 AND (u.until > @tramline_now OR {})", is_pending(catalog));
    sql.extend(named(names.iter(), &count, &counts));
    sql
}

/// Inserted with ON DUPLICATE KEY, so locked for good at once, as the heads of keys are; and read without locks after that.
///
/// Whether events are pending is asked by a statement of its own, which sees all that was committed before the lock was given.
fn standings_sql(names: &BTreeSet<Name>, catalog: &Catalog, condition: &str) -> Vec<String> {
    let all: Vec<(i64, &str)> = names.iter().map(|(topic, key)| (topic.0, key.as_str())).collect();
    let lock = |some: &[(i64, &str)]| {
        format!(
            "INSERT INTO tramline_unique (topic, `key`, event, until, look_at) \
             SELECT n.a, n.b, 0, 0, @tramline_now + {} FROM {} WHERE {condition} \
             ON DUPLICATE KEY UPDATE event = tramline_unique.event",
            millis(NEXT_LOOK),
            sql::named(some.iter().copied())
        )
    };
    let mut sql: Vec<String> = all.chunks(LIST).map(lock).collect();
    let select = format!("SELECT u.topic, u.`key`, u.event, u.until, {} FROM", is_pending(catalog));
    sql.extend(named(names.iter(), &select, " WHERE u.event <> 0"));
    sql
}

/// True for an entry `u` whose event a subscription that still exists has not done with. By the primary key of slices.
fn is_pending(catalog: &Catalog) -> String {
    format!(
        "EXISTS (SELECT 1 FROM tramline_slice s FORCE INDEX (PRIMARY) WHERE s.chunk = u.event DIV {CAPACITY} AND s.state <> 6 \
         AND s.subscription IN ({}) AND s.mask >> (u.event % {CAPACITY}) & 1 = 1)",
        list(catalog.subscriptions().iter().map(|one| one.id.0)),
        CAPACITY = Mask::CAPACITY,
    )
}

/// What is known of unique keys, where something is.
pub(super) fn standings_of(sets: &[Rows]) -> Result<Standings> {
    let standing = |row: &sqlx::mysql::MySqlRow| {
        let name = (TopicId(row.int(0)?), row.text(1)?);
        Ok((name, Standing { event: EventId(row.int(2)?), until: row.time(3)?, pending: row.flag(4)? }))
    };
    sets.iter().flatten().map(standing).collect()
}

const SELECT: &str = "SELECT u.topic, u.`key`, u.event, u.until FROM";

/// Statements about unique keys: `what` up to the table, `tail` behind it. Each key is looked up by itself, because a list may make the
/// server read, and wait for, the keys of others.
fn named<'a>(names: impl Iterator<Item = &'a Name>, what: &str, tail: &str) -> Vec<String> {
    let names: Vec<(i64, &str)> = names.map(|(topic, key)| (topic.0, key.as_str())).collect();
    let about = |some: &[(i64, &str)]| {
        let names = sql::named(some.iter().copied());
        format!("{what} {names} STRAIGHT_JOIN tramline_unique u ON u.topic = n.a AND u.`key` = n.b{tail}")
    };
    names.chunks(LIST).map(about).collect()
}

/// The entry of a unique key.
struct Found {
    name: Name,
    event: EventId,
    until: Time,
}

fn read(sets: &[Rows]) -> Result<Vec<Found>> {
    let found = |row: &sqlx::mysql::MySqlRow| {
        Ok(Found {
            name: (TopicId(row.int(0)?), row.text(1)?),
            event: EventId(row.int(2)?),
            until: row.time(3)?,
        })
    };
    sets.iter().flatten().map(found).collect()
}

/// Those of some events that a subscription which still exists has not done with. By the primary key.
async fn pending(
    session: &mut Session<'_>,
    events: impl Iterator<Item = EventId>,
) -> Result<HashSet<EventId>> {
    let events: Vec<EventId> = events.collect();
    if events.is_empty() {
        return Ok(HashSet::new());
    }
    let living = list(session.catalog.subscriptions().iter().map(|one| one.id.0));
    let chunks: BTreeSet<i64> = events.iter().map(|event| event.chunk().0).collect();
    let chunks: Vec<i64> = chunks.into_iter().collect();
    let select = |some: &[i64]| {
        format!(
            "SELECT chunk, mask FROM tramline_slice FORCE INDEX (PRIMARY) WHERE chunk IN ({}) AND state <> 6 \
             AND subscription IN ({living})",
            list(some.iter().copied())
        )
    };
    let mut masks = HashSet::new();
    for row in session.sets(chunks.chunks(LIST).map(select).collect()).await?.iter().flatten() {
        masks.insert((row.int(0)?, row.int(1)?));
    }
    let is_pending = |event: &EventId| {
        let bit = |(chunk, mask): &(i64, i64)| *chunk == event.chunk().0 && mask >> event.index() & 1 == 1;
        masks.iter().any(bit)
    };
    Ok(events.into_iter().filter(is_pending).collect())
}

/// Writes down what was stored. The entries exist, and are locked.
pub(super) fn keep(session: &mut Session<'_>, entries: &[Entry]) {
    let row = |entry: &Entry| {
        let (topic, key) = &entry.name;
        format!("({},{},{},{},{})", topic.0, text(key), entry.event.0, entry.until.0, entry.look_at.0)
    };
    let head = "INSERT INTO tramline_unique (topic, `key`, event, until, look_at) VALUES ";
    let tail = overwrite(&["event", "until", "look_at"]);
    session.write_all(insert(head, entries.iter().map(row), &tail, session.common.packet));
}

/// Removes entries whose event is not pending and counts no longer.
pub(super) async fn expire(session: &mut Session<'_>, limit: u32) -> Result<()> {
    let now = session.now;
    let sql = format!(
        "{SELECT} tramline_unique u FORCE INDEX (tramline_unique_look) WHERE u.look_at <= {} ORDER BY u.look_at LIMIT {limit} \
         FOR UPDATE SKIP LOCKED",
        now.0
    );
    let found = read(&session.sets(vec![sql]).await?)?;
    let pending = pending(session, found.iter().map(|found| found.event)).await?;
    let (stay, go): (Vec<Found>, Vec<Found>) =
        found.into_iter().partition(|found| found.until > now || pending.contains(&found.event));
    let stays = format!(" SET u.look_at = {}", now.after(NEXT_LOOK).0);
    session.write_all(named(stay.iter().map(|found| &found.name), "UPDATE", &stays));
    session.write_all(named(go.iter().map(|found| &found.name), "DELETE u FROM", ""));
    Ok(())
}
