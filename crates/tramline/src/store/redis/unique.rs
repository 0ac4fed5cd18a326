//! Unique events: the last event of each unique key.

use super::pack::{Packer, Unpacker};
use super::rows::{expect_slices, slices_at};
use super::session::{Session, hget};
use super::tuple::{Columns, Tuple};
use crate::error::Result;
use crate::model::id::{EventId, TopicId};
use crate::model::slice::State;
use crate::model::time::Time;
use crate::plan::unique::Standing;
use crate::store::unique::{Entry, NEXT_LOOK, Name, Standings};
use std::collections::BTreeSet;

/// The last event of a unique key as it is stored.
struct Row {
    event: EventId,
    until: Time,
    look_at: Time,
}

/// The unique keys of a topic.
pub(super) fn keys_of(session: &Session<'_>, topic: TopicId) -> Vec<u8> {
    session.key(&format!("unique:{topic}"))
}

/// All of them, by the time at which they are looked at.
fn looks(session: &Session<'_>) -> Vec<u8> {
    session.key("unique")
}

fn look(at: Time, topic: TopicId, key: &str) -> Vec<u8> {
    Tuple::new().with(&[at.0, topic.0]).text(key).bytes()
}

fn row(session: &Session<'_>, topic: TopicId, key: &str) -> Result<Option<Row>> {
    let Some(row) = session.get(&keys_of(session, topic), key.as_bytes())? else { return Ok(None) };
    let mut row = Unpacker::new(&row);
    Ok(Some(Row { event: EventId(row.number()?), until: Time(row.number()?), look_at: Time(row.number()?) }))
}

fn write(session: &Session<'_>, topic: TopicId, key: &str, new: &Row) -> Result<()> {
    forget(session, topic, key)?;
    let row = Packer::new().number(new.event.0).number(new.until.0).number(new.look_at.0).done();
    session.put(keys_of(session, topic), key.as_bytes(), row);
    session.enter(looks(session), look(new.look_at, topic, key));
    Ok(())
}

/// Forgets a unique key.
fn forget(session: &Session<'_>, topic: TopicId, key: &str) -> Result<()> {
    let Some(old) = row(session, topic, key)? else { return Ok(()) };
    session.remove(keys_of(session, topic), key.as_bytes());
    session.withdraw(looks(session), look(old.look_at, topic, key));
    Ok(())
}

/// What is known of unique keys.
pub(super) fn standings(session: &Session<'_>, names: &BTreeSet<Name>) -> Result<Standings> {
    session.expect(names.iter().map(|(topic, key)| hget(&keys_of(session, *topic), key.as_bytes())))?;
    let mut rows = Vec::new();
    for (topic, key) in names {
        rows.extend(row(session, *topic, key)?.map(|row| ((*topic, key.clone()), row)));
    }
    expect_slices(session, rows.iter().map(|(_, row)| row.event.chunk()))?;
    let mut standings = Standings::new();
    for (name, Row { event, until, .. }) in rows {
        standings.insert(name, Standing { event, until, pending: is_pending(session, event)? });
    }
    Ok(standings)
}

/// True if some subscription that still exists has not done with an event.
fn is_pending(session: &Session<'_>, event: EventId) -> Result<bool> {
    let catalog = session.catalog();
    let slices = slices_at(session, event.chunk())?;
    Ok(slices.iter().any(|slice| {
        slice.state != State::Dead
            && slice.mask.contains(event.index())
            && catalog.require_subscription(slice.subscription).is_ok()
    }))
}

/// Writes down what was stored.
pub(super) fn keep(session: &Session<'_>, entries: &[Entry]) -> Result<()> {
    for Entry { name: (topic, key), event, until, look_at } in entries {
        write(session, *topic, key, &Row { event: *event, until: *until, look_at: *look_at })?;
    }
    Ok(())
}

/// Removes entries whose event is not pending and counts no longer. True if there may be more.
pub(super) fn expire(session: &Session<'_>, limit: u32) -> Result<bool> {
    let range = (Tuple::new().bytes(), Tuple::new().with(&[session.now.0.saturating_add(1)]).bytes());
    let ended = session.range(&looks(session), range, limit as usize)?;
    let names: Vec<Name> = ended
        .iter()
        .map(|member| {
            let mut columns = Columns(member);
            columns.number();
            (TopicId(columns.number()), columns.text())
        })
        .collect();
    session.expect(names.iter().map(|(topic, key)| hget(&keys_of(session, *topic), key.as_bytes())))?;
    let mut rows = Vec::with_capacity(names.len());
    for (topic, key) in &names {
        rows.push(row(session, *topic, key)?);
    }
    expect_slices(session, rows.iter().flatten().map(|row| row.event.chunk()))?;
    let many = ended.len() >= limit as usize;
    for (((topic, key), old), member) in names.into_iter().zip(rows).zip(ended) {
        session.withdraw(looks(session), member);
        let Some(old) = old.filter(|old| old.look_at <= session.now) else { continue };
        if old.until > session.now || is_pending(session, old.event)? {
            write(session, topic, &key, &Row { look_at: session.now.after(NEXT_LOOK), ..old })?;
        } else {
            forget(session, topic, &key)?;
        }
    }
    Ok(many)
}
