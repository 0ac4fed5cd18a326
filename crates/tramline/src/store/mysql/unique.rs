//! Unique events: the last event of each unique key, locked from the look at it until the emit is committed.

use super::session::{Rows, Session};
use super::sql::{self, Columns, LIST, insert, list, overwrite, text};
use crate::error::Result;
use crate::model::id::{EventId, TopicId};
use crate::model::time::Time;
use crate::plan::unique::Standing;
use crate::store::unique::{Entry, NEXT_LOOK, Name, Standings};
use std::collections::{BTreeSet, HashSet};

/// Locks unique keys, in sorted order, and gives what is known of them.
///
/// Whether events are pending is asked by a statement of its own, which sees all that was committed before the lock was given.
pub(super) async fn standings(session: &mut Session<'_>, names: &BTreeSet<Name>) -> Result<Standings> {
    let look_at = session.now.after(NEXT_LOOK).0;
    let rows = names.iter().map(|(topic, key)| format!("({},{},0,0,{look_at})", topic.0, text(key)));
    let head = "INSERT INTO tramline_unique (topic, `key`, event, until, look_at) VALUES ";
    // Locked for good at once, as the heads of keys are.
    let tail = " ON DUPLICATE KEY UPDATE event = event";
    session.write_all(insert(head, rows, tail, session.common.packet));
    // They are locked by now, so that they are read without locks.
    let found = read(&session.sets(named(names.iter(), SELECT, "")).await?)?;
    let known: Vec<&Found> = found.iter().filter(|found| found.event.0 != 0).collect();
    let pending = pending(session, known.iter().map(|found| found.event)).await?;
    let standing = |found: &Found| {
        let pending = pending.contains(&found.event);
        (found.name.clone(), Standing { event: found.event, until: found.until, pending })
    };
    Ok(known.into_iter().map(standing).collect())
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

/// The entry of a unique key; event 0 if it is new.
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
