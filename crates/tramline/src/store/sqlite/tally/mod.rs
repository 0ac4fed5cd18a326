//! Tallies: opened, added to, sealed, counted, looked at and given up. Acks: [`ack`]; their events: [`deliver`].

pub(super) mod ack;
pub(super) mod deliver;
pub(super) mod place;
mod rows;
pub(super) mod sweep;

use super::session::Session;
use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::{Added, NewTally, Parent, Tally, TallyItem, TallyState};
use crate::plan::tally::{Origin, TallyRow};
use crate::store::tally::{METADATA, Of, added_otherwise, hash, metadata, new_row, notes, reused};
use crate::store::verbs_tally::*;
use rusqlite::{Connection, params};
use std::collections::BTreeSet;

pub(super) fn open(session: &Session<'_>, tally: &NewTally) -> Result<OpenedTally> {
    let (conn, hash) = (session.conn, hash(tally));
    if let Some(known) = known(conn, tally.idempotency_key.as_deref(), &hash)? {
        return Ok(known);
    }
    let parent = tally.parent.map(|parent| stands_for(session, parent)).transpose()?;
    let row = new_row(tally, parent, session.now);
    let id = rows::insert(conn, &row, tally.idempotency_key.as_deref(), &hash)?;
    let sql = "INSERT INTO tramline_tally_note (tally, kind, body) VALUES (?, ?, ?)";
    for (kind, body) in notes(tally) {
        conn.prepare_cached(sql)?.execute(params![id.0, kind, body])?;
    }
    Ok(OpenedTally { id, parent, repeated: false })
}

/// The answer that an idempotency key already has.
fn known(conn: &Connection, key: Option<&str>, hash: &[u8]) -> Result<Option<OpenedTally>> {
    let Some(key) = key else { return Ok(None) };
    let Some(row) = rows::find(conn, "open_key = ? AND state < 5", [key])?.pop() else { return Ok(None) };
    let sql = "SELECT open_hash = ? FROM tramline_tally WHERE id = ?";
    let same: bool = conn.prepare_cached(sql)?.query_row(params![hash, row.id.0], |row| row.get(0))?;
    if !same {
        return Err(reused(key));
    }
    Ok(Some(OpenedTally { id: row.id, parent: row.parent, repeated: true }))
}

/// The item of another tally that a new one stands for.
fn stands_for(session: &Session<'_>, parent: Parent) -> Result<TallyItem> {
    match parent {
        Parent::New(tally) => {
            let added = grow(session, AddItems { tally, count: 1, within: None, token: None, now: None })?;
            Ok(TallyItem { tally, number: added.first })
        }
        Parent::Item(item) => {
            let row = rows::require(session.conn, item.tally)?;
            let known = rows::item(session.conn, item)?;
            row.check_child(item.number, known, rows::has_child(session.conn, item)?, session.now)?;
            Ok(item)
        }
    }
}

pub(super) fn add(session: &Session<'_>, add: AddItems) -> Result<Added> {
    let before = match add.token {
        Some(token) => rows::added(session.conn, add.tally, token)?,
        None => None,
    };
    match before {
        Some(added) if added.count == add.count => rows::require(session.conn, add.tally).map(|_| added),
        Some(_) => Err(added_otherwise()),
        None => grow(session, add),
    }
}

fn grow(session: &Session<'_>, add: AddItems) -> Result<Added> {
    let mut row = rows::require(session.conn, add.tally)?;
    let origin = |number| -> Result<Origin> {
        let item = rows::item(session.conn, TallyItem { tally: add.tally, number })?;
        Ok(Origin { number, item })
    };
    let origin = add.within.map(origin).transpose()?;
    let added = row.grow(add.count, origin, session.now)?;
    rows::extend(session.conn, add.tally, added, Of::Items(add.token))?;
    rows::write(session.conn, &row, &[])?;
    Ok(added)
}

pub(super) fn seal(session: &Session<'_>, seal: SealTally) -> Result<SealedTally> {
    let mut row = rows::require(session.conn, seal.tally)?;
    let mut outbox = Vec::new();
    let completed_now = row.seal(seal.expected, seal.by, session.now, &mut outbox)?;
    rows::write(session.conn, &row, &outbox)?;
    Ok(SealedTally { tally: view(session, row)?, completed_now })
}

pub(super) fn count(session: &Session<'_>, tally: TallyId, by: i64) -> Result<CountedTally> {
    let mut row = rows::require(session.conn, tally)?;
    let mut outbox = Vec::new();
    let completed_now = row.count(by, session.now, &mut outbox)?;
    rows::write(session.conn, &row, &outbox)?;
    Ok(CountedTally { tally: view(session, row)?, completed_now })
}

pub(super) fn get(session: &Session<'_>, tally: TallyId) -> Result<Option<Tally>> {
    rows::one(session.conn, tally)?.map(|row| view(session, row)).transpose()
}

fn view(session: &Session<'_>, row: TallyRow) -> Result<Tally> {
    let metadata = metadata(rows::note(session.conn, row.id, METADATA)?);
    let unfinished = rows::unfinished(session.conn, row.id)?;
    Ok(row.view(metadata, unfinished, session.now))
}

/// By user key: `tramline_tally_user_key`; by state: `tramline_tally_state`, one state at a time, because all of them together
/// would have to be sorted, and for what no sweep has met yet `tramline_tally_expiry`; else the primary key.
pub(super) fn list(session: &Session<'_>, list: &ListTallies) -> Result<Vec<Tally>> {
    let (conn, now) = (session.conn, session.now);
    let (after, limit) = (list.after.0, list.limit as usize);
    let wanted = |row: &TallyRow| list.states.is_empty() || list.states.contains(&row.state_at(now));
    let mut found = match (&list.user_key, &list.states[..]) {
        (Some(key), _) => {
            let values = params![key, after];
            rows::find_some(conn, "user_key = ? AND id > ? ORDER BY id", values, limit, wanted)?
        }
        (None, []) => rows::find_some(conn, "id > ? ORDER BY id", [after], limit, wanted)?,
        (None, states) => {
            let mut found = Vec::new();
            for state in states.iter().collect::<BTreeSet<_>>() {
                let (filter, values) = ("state = ? AND id > ? ORDER BY id", [*state as i64, after]);
                let as_written = |row: &TallyRow| row.state_at(now) == *state;
                found.extend(rows::find_some(conn, filter, values, limit, as_written)?);
            }
            let filter = "state < 2 AND expires_at <= ? AND id > ? ORDER BY id";
            found.extend(rows::find_some(conn, filter, [now.0, after], limit, wanted)?);
            found
        }
    };
    found.sort_by_key(|row| row.id);
    found.truncate(limit);
    found.into_iter().map(|row| view(session, row)).collect()
}

pub(super) fn cancel(session: &Session<'_>, tally: TallyId) -> Result<Tally> {
    let mut row = rows::require(session.conn, tally)?;
    let mut outbox = Vec::new();
    if row.cancel(session.now, &mut outbox)? {
        rows::write(session.conn, &row, &outbox)?;
    }
    view(session, row)
}

pub(super) fn delete(session: &Session<'_>, tally: TallyId) -> Result<()> {
    let row = rows::require(session.conn, tally)?;
    sweep::remove(session, &row)
}

/// How many tallies there are in each state, by the index of states.
pub(super) fn counts(conn: &Connection) -> Result<TallyCounts> {
    let mut statement = conn.prepare_cached("SELECT count(*) FROM tramline_tally WHERE state = ?")?;
    let mut counts = TallyCounts::default();
    for state in TallyState::ALL {
        *counts.of(state) = statement.query_row([state as i64], |row| row.get::<_, i64>(0))?.cast_unsigned();
    }
    Ok(counts)
}
