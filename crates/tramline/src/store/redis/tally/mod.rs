//! Tallies: opened, added to, sealed, counted, looked at and given up. Acks: [`ack`]; their events: [`deliver`].
//! What is stored of them: `rows`, `parts`, `extents` (what was added) and `outbox`.

pub(super) mod ack;
pub(super) mod deliver;
mod extents;
mod outbox;
mod parts;
pub(super) mod place;
mod rows;
pub(super) mod sweep;

use super::session::Session;
use super::tuple::Tuple;
use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::{Added, NewTally, Parent, Tally, TallyItem, TallyState};
use crate::model::time::Time;
use crate::plan::tally::{Origin, TallyRow};
use crate::store::tally::{METADATA, Of, added_otherwise, hash, metadata, new_row, notes, reused};
use crate::store::verbs_tally::*;
use std::collections::BTreeSet;

pub(super) fn open(session: &Session<'_>, tally: &NewTally) -> Result<OpenedTally> {
    let hash = hash(tally);
    if let Some(known) = known(session, tally.idempotency_key.as_deref(), &hash)? {
        return Ok(known);
    }
    let parent = tally.parent.map(|parent| stands_for(session, parent)).transpose()?;
    let row = new_row(tally, parent, session.now);
    let id = rows::insert(session, &row, tally.idempotency_key.as_deref(), &hash)?;
    for (kind, body) in notes(tally) {
        rows::add_note(session, id, kind, body);
    }
    Ok(OpenedTally { id, parent, repeated: false })
}

/// The answer that an idempotency key already has.
fn known(session: &Session<'_>, key: Option<&str>, hash: &[u8]) -> Result<Option<OpenedTally>> {
    let Some(key) = key else { return Ok(None) };
    let Some((id, stored)) = rows::opened(session, key)? else { return Ok(None) };
    let same = stored.open_hash.as_deref() == Some(hash);
    if !same {
        return Err(reused(key));
    }
    Ok(Some(OpenedTally { id, parent: stored.parent(), repeated: true }))
}

/// The item of another tally that a new one stands for.
fn stands_for(session: &Session<'_>, parent: Parent) -> Result<TallyItem> {
    match parent {
        Parent::New(tally) => {
            let added = grow(session, AddItems { tally, count: 1, within: None, token: None, now: None })?;
            Ok(TallyItem { tally, number: added.first })
        }
        Parent::Item(item) => {
            let row = rows::require(session, item.tally)?;
            let known = parts::item(session, item)?;
            row.check_child(item.number, known, rows::has_child(session, item)?, session.now)?;
            Ok(item)
        }
    }
}

pub(super) fn add(session: &Session<'_>, add: AddItems) -> Result<Added> {
    let before = match add.token {
        Some(token) => extents::added(session, add.tally, token)?,
        None => None,
    };
    match before {
        Some(added) if added.count == add.count => rows::require(session, add.tally).map(|_| added),
        Some(_) => Err(added_otherwise()),
        None => grow(session, add),
    }
}

fn grow(session: &Session<'_>, add: AddItems) -> Result<Added> {
    let mut row = rows::require(session, add.tally)?;
    let origin = |number| -> Result<Origin> {
        let item = parts::item(session, TallyItem { tally: add.tally, number })?;
        Ok(Origin { number, item })
    };
    let origin = add.within.map(origin).transpose()?;
    let added = row.grow(add.count, origin, session.now)?;
    extents::extend(session, add.tally, added, Of::Items(add.token));
    rows::write(session, &row, &[])?;
    Ok(added)
}

pub(super) fn seal(session: &Session<'_>, seal: SealTally) -> Result<SealedTally> {
    let mut row = rows::require(session, seal.tally)?;
    let mut outbox = Vec::new();
    let completed_now = row.seal(seal.expected, seal.by, session.now, &mut outbox)?;
    rows::write(session, &row, &outbox)?;
    Ok(SealedTally { tally: view(session, row)?, completed_now })
}

pub(super) fn count(session: &Session<'_>, tally: TallyId, by: i64) -> Result<CountedTally> {
    let mut row = rows::require(session, tally)?;
    let mut outbox = Vec::new();
    let completed_now = row.count(by, session.now, &mut outbox)?;
    rows::write(session, &row, &outbox)?;
    Ok(CountedTally { tally: view(session, row)?, completed_now })
}

pub(super) fn get(session: &Session<'_>, tally: TallyId) -> Result<Option<Tally>> {
    rows::one(session, tally)?.map(|row| view(session, row)).transpose()
}

fn view(session: &Session<'_>, row: TallyRow) -> Result<Tally> {
    let metadata = metadata(rows::note(session, row.id, METADATA)?);
    let unfinished = parts::unfinished(session, row.id)?;
    Ok(row.view(metadata, unfinished, session.now))
}

/// How many tallies of a list are looked at in one step.
pub(super) const VIEWS: usize = 100;

/// Some of the tallies that were found, as they are now.
pub(super) fn views(session: &Session<'_>, found: &[TallyId], list: &ListTallies) -> Result<Vec<Tally>> {
    rows::expect(session, found.iter().copied())?;
    let mut views = Vec::with_capacity(found.len());
    for id in found {
        let row = rows::one(session, *id)?.filter(|row| is_wanted(row, list, session.now));
        views.extend(row.map(|row| view(session, row)).transpose()?);
    }
    Ok(views)
}

fn is_wanted(row: &TallyRow, list: &ListTallies, now: Time) -> bool {
    list.states.is_empty() || list.states.contains(&row.state_at(now))
}

/// By user key; by state, one state at a time, and for what no sweep has met yet by expiry; else by number.
pub(super) fn find(session: &Session<'_>, list: &ListTallies) -> Result<Vec<TallyId>> {
    let now = session.now;
    let (after, limit) = (list.after.0, list.limit as usize);
    let wanted = |row: &TallyRow| is_wanted(row, list, now);
    let mut found = match (&list.user_key, &list.states[..]) {
        (Some(key), _) => {
            let of_key = || Tuple::new().text(key);
            let range = (of_key().with(&[after + 1]).bytes(), of_key().end());
            rows::find_some(session, rows::USER_KEYS, range, limit, wanted)?
        }
        (None, []) => rows::find_some(
            session,
            rows::ALL,
            (Tuple::new().with(&[after + 1]).bytes(), Tuple::new().end()),
            limit,
            wanted,
        )?,
        (None, states) => {
            let mut found = Vec::new();
            for state in states.iter().collect::<BTreeSet<_>>() {
                let of_state = || Tuple::new().with(&[*state as i64]);
                let range = (of_state().with(&[after + 1]).bytes(), of_state().end());
                let as_written = |row: &TallyRow| row.state_at(now) == *state;
                found.extend(rows::find_some(session, rows::STATES, range, limit, as_written)?);
            }
            let range = (Tuple::new().bytes(), Tuple::new().with(&[now.0.saturating_add(1)]).bytes());
            let overdue = |row: &TallyRow| row.id.0 > after && wanted(row);
            found.extend(rows::find_some(session, rows::EXPIRY, range, usize::MAX, overdue)?);
            found
        }
    };
    found.sort_by_key(|row| row.id);
    found.truncate(limit);
    Ok(found.into_iter().map(|row| row.id).collect())
}

pub(super) fn cancel(session: &Session<'_>, tally: TallyId) -> Result<Tally> {
    let mut row = rows::require(session, tally)?;
    let mut outbox = Vec::new();
    if row.cancel(session.now, &mut outbox)? {
        rows::write(session, &row, &outbox)?;
    }
    view(session, row)
}

pub(super) fn delete(session: &Session<'_>, tally: TallyId) -> Result<()> {
    let row = rows::require(session, tally)?;
    sweep::remove(session, &row)
}

/// How many tallies there are in each state.
pub(super) fn counts(session: &Session<'_>) -> Result<TallyCounts> {
    let mut counts = TallyCounts::default();
    for state in TallyState::ALL {
        *counts.of(state) = rows::counted(session, state)?;
    }
    Ok(counts)
}
