//! Rows of tallies and their indexes, and notes of tallies.

use super::outbox::put_out;
use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::news::Outgoing;
use crate::model::tally::{TallyItem, TallyState};
use crate::model::time::Time;
use crate::plan::tally::{TallyRow, Tells, unknown};
use crate::store::redis::catalog::written;
use crate::store::redis::pack::damaged;
use crate::store::redis::session::{Session, hget, number};
use crate::store::redis::tuple::{Columns, Tuple};
use crate::store::tally::{REMOVED, state};
use serde::{Deserialize, Serialize};

/// A tally as it is stored. States above 4 are rows on their way out. `idle_since` is never later than the last activity, and raised
/// only by those who look for idle ones, so that activity costs no index entry.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) state: i16,
    growing: bool,
    estimated: bool,
    tells: i16,
    user_key: Option<String>,
    topic: Option<String>,
    parent: Option<(i64, u64)>,
    next_part: u64,
    total: u64,
    parts_left: u64,
    done: u64,
    failed: u64,
    created_at: i64,
    sealed_at: Option<i64>,
    ended_at: Option<i64>,
    active_at: i64,
    expires_at: Option<i64>,
    ended_by: i64,
    pub(super) idle_since: i64,
    pub(super) checked_at: i64,
    pub(super) open_key: Option<String>,
    pub(super) open_hash: Option<Vec<u8>>,
}

impl Stored {
    fn new(tally: &TallyRow, key: Option<&str>, hash: &[u8]) -> Stored {
        let now = tally.created_at.0;
        let fresh = Stored {
            state: tally.state as i16,
            growing: tally.growing,
            estimated: tally.estimated,
            tells: tally.tells.0,
            user_key: tally.user_key.clone(),
            topic: tally.topic.clone(),
            parent: tally.parent.map(|parent| (parent.tally.0, parent.number)),
            next_part: 0,
            total: 0,
            parts_left: 0,
            done: 0,
            failed: 0,
            created_at: now,
            sealed_at: None,
            ended_at: None,
            active_at: now,
            expires_at: tally.expires_at.map(|time| time.0),
            ended_by: 0,
            idle_since: now,
            checked_at: now,
            open_key: key.map(str::to_owned),
            open_hash: key.map(|_| hash.to_vec()),
        };
        fresh.changed(tally)
    }

    /// The same with what can change of a tally.
    fn changed(&self, tally: &TallyRow) -> Stored {
        Stored {
            state: tally.state as i16,
            tells: tally.tells.0,
            next_part: tally.next_part,
            total: tally.total,
            parts_left: tally.parts_left,
            done: tally.done,
            failed: tally.failed,
            sealed_at: tally.sealed_at.map(|time| time.0),
            ended_at: tally.ended_at.map(|time| time.0),
            active_at: tally.active_at.0,
            ended_by: tally.ended_by,
            ..self.clone()
        }
    }

    fn row(&self, id: TallyId) -> Result<TallyRow> {
        Ok(TallyRow {
            id,
            state: state(self.state)?,
            growing: self.growing,
            estimated: self.estimated,
            tells: Tells(self.tells),
            user_key: self.user_key.clone(),
            topic: self.topic.clone(),
            parent: self.parent.map(|(tally, number)| TallyItem { tally: TallyId(tally), number }),
            next_part: self.next_part,
            total: self.total,
            parts_left: self.parts_left,
            done: self.done,
            failed: self.failed,
            created_at: Time(self.created_at),
            sealed_at: self.sealed_at.map(Time),
            ended_at: self.ended_at.map(Time),
            active_at: Time(self.active_at),
            expires_at: self.expires_at.map(Time),
            ended_by: self.ended_by,
        })
    }

    pub(super) fn parent(&self) -> Option<TallyItem> {
        self.parent.map(|(tally, number)| TallyItem { tally: TallyId(tally), number })
    }

    /// The entries that it has in the indexes: which index, and the tuple.
    fn entries(&self, id: i64) -> Vec<(&'static str, Vec<u8>)> {
        let state = i64::from(self.state);
        let mut all = vec![
            (STATES, Tuple::new().with(&[state, id]).bytes()),
            (IDLE, Tuple::new().with(&[state, self.idle_since, id]).bytes()),
        ];
        if self.state < REMOVED {
            all.push((ALL, Tuple::new().with(&[id]).bytes()));
        }
        if let Some(key) = self.user_key.as_deref().filter(|_| self.state < REMOVED) {
            all.push((USER_KEYS, Tuple::new().text(key).with(&[id]).bytes()));
        }
        if let Some(expires_at) = self.expires_at.filter(|_| self.state < 2) {
            all.push((EXPIRY, Tuple::new().with(&[expires_at, id]).bytes()));
        }
        if self.state == TallyState::Sealed as i16 {
            all.push((UNCHECKED, Tuple::new().with(&[self.checked_at, id]).bytes()));
        }
        if let Some((tally, item)) = self.parent {
            all.push((PARENTS, Tuple::new().with(&[tally, item.cast_signed(), id]).bytes()));
        }
        all
    }
}

/// The indexes over tallies: all; by state; by state and last activity; by user key; by expiry while under way; by the last count while
/// sealed; by the item that they stand for.
pub(super) const ALL: &str = "tally_all";

pub(super) const STATES: &str = "tally_states";

pub(super) const IDLE: &str = "tally_idle";

pub(super) const USER_KEYS: &str = "tally_user_keys";

pub(super) const EXPIRY: &str = "tally_expiry";

pub(super) const UNCHECKED: &str = "tally_unchecked";

pub(super) const PARENTS: &str = "tally_parents";

fn table(session: &Session<'_>) -> Vec<u8> {
    session.key("tallies")
}

pub(super) fn of(session: &Session<'_>, what: &str, tally: TallyId) -> Vec<u8> {
    session.key(&format!("{what}:{tally}"))
}

pub(super) fn stored(session: &Session<'_>, id: TallyId) -> Result<Option<Stored>> {
    let row = session.get(&table(session), id.to_string().as_bytes())?;
    row.map(|row| serde_json::from_slice(&row).map_err(|error| damaged().because(error))).transpose()
}

pub(super) fn store(session: &Session<'_>, id: TallyId, new: &Stored) -> Result<()> {
    let old = stored(session, id)?;
    let (before, after) = (old.as_ref().map(|old| old.entries(id.0)).unwrap_or_default(), new.entries(id.0));
    for (index, member) in before.iter().filter(|entry| !after.contains(entry)) {
        session.withdraw(session.key(index), member.clone());
    }
    for (index, member) in after.iter().filter(|entry| !before.contains(entry)) {
        session.enter(session.key(index), member.clone());
    }
    let was = old.as_ref().map(|old| old.state);
    if was != Some(new.state) {
        count(session, was, -1);
        count(session, Some(new.state), 1);
    }
    if new.state >= REMOVED
        && let Some(key) = &new.open_key
        && was.is_some_and(|was| was < REMOVED)
    {
        session.remove(session.key("tally_open_keys"), key.as_bytes());
    }
    session.put(table(session), id.to_string(), written(new));
    Ok(())
}

fn count(session: &Session<'_>, state: Option<i16>, by: i64) {
    if let Some(state) = state {
        session.sum(session.key("tally_counts"), state.to_string(), by);
    }
}

/// How many tallies are in a state.
pub(super) fn counted(session: &Session<'_>, state: TallyState) -> Result<u64> {
    let counts = session.all(&session.key("tally_counts"))?;
    Ok(number(counts.get((state as i16).to_string().as_bytes()).cloned()).max(0).cast_unsigned())
}

/// The row of a tally as it is written: whoever has read it knows by it whether it was changed.
pub(super) fn row(session: &Session<'_>, id: TallyId) -> Result<Option<Vec<u8>>> {
    session.get(&table(session), id.to_string().as_bytes())
}

/// Removes the row itself.
pub(super) fn erase(session: &Session<'_>, id: TallyId) -> Result<()> {
    let Some(old) = stored(session, id)? else { return Ok(()) };
    old.entries(id.0).into_iter().for_each(|(index, member)| session.withdraw(session.key(index), member));
    count(session, Some(old.state), -1);
    session.remove(table(session), id.to_string());
    for what in ["tally_notes", "tally_tokens"] {
        session.forget(of(session, what, id));
    }
    Ok(())
}

/// The tallies that an index names, in its order, as long as there are fewer than `limit` that are wanted. The last column is
/// the number of the tally.
pub(super) fn find_some(
    session: &Session<'_>,
    index: &str,
    (mut from, to): (Vec<u8>, Vec<u8>),
    limit: usize,
    wanted: impl Fn(&TallyRow) -> bool,
) -> Result<Vec<TallyRow>> {
    let page = limit.clamp(16, 1_000);
    let mut found = Vec::new();
    while found.len() < limit {
        let members = session.range(&session.key(index), (from.clone(), to.clone()), page)?;
        let ids: Vec<TallyId> = members.iter().map(|member| TallyId(last(index, member))).collect();
        session.expect(ids.iter().map(|id| hget(&table(session), id.to_string().as_bytes())))?;
        for id in ids {
            if let Some(row) = one(session, id)?.filter(|row| found.len() < limit && wanted(row)) {
                found.push(row);
            }
        }
        match members.into_iter().next_back() {
            Some(last) if found.len() < limit => from = [&last[..], &[0]].concat(),
            _ => break,
        }
    }
    Ok(found)
}

/// The last number of a tuple.
fn last(index: &str, member: &[u8]) -> i64 {
    let mut columns = Columns(member);
    if index == USER_KEYS {
        columns.text();
    }
    let mut last = 0;
    while !columns.load().is_empty() {
        last = columns.number();
    }
    last
}

/// One tally.
pub(super) fn one(session: &Session<'_>, id: TallyId) -> Result<Option<TallyRow>> {
    stored(session, id)?.filter(|stored| stored.state < REMOVED).map(|stored| stored.row(id)).transpose()
}

/// Writes a new tally, and gives its number.
pub(super) fn insert(
    session: &Session<'_>,
    tally: &TallyRow,
    key: Option<&str>,
    hash: &[u8],
) -> Result<TallyId> {
    let id = TallyId(session.draw("tally", 1)?);
    store(session, id, &Stored::new(tally, key, hash))?;
    if let Some(key) = key {
        session.put(session.key("tally_open_keys"), key, id.to_string().into_bytes());
    }
    Ok(id)
}

/// The tally that was opened under an idempotency key.
pub(super) fn opened(session: &Session<'_>, key: &str) -> Result<Option<(TallyId, Stored)>> {
    let Some(id) = session.get(&session.key("tally_open_keys"), key.as_bytes())? else { return Ok(None) };
    let id = TallyId(number(Some(id)));
    Ok(stored(session, id)?.filter(|stored| stored.state < REMOVED).map(|stored| (id, stored)))
}

/// Writes back what can change, and what there is to tell.
pub(super) fn write(session: &Session<'_>, tally: &TallyRow, outbox: &[Outgoing]) -> Result<()> {
    if let Some(old) = stored(session, tally.id)? {
        store(session, tally.id, &old.changed(tally))?;
    }
    put_out(session, outbox)
}

/// Says that these tallies will be read.
pub(super) fn expect(session: &Session<'_>, tallies: impl Iterator<Item = TallyId>) -> Result<()> {
    session.expect(tallies.map(|id| hget(&table(session), id.to_string().as_bytes())))
}

/// True if a tally stands for an item. One on its way out counts: it may still have to tell.
pub(super) fn has_child(session: &Session<'_>, item: TallyItem) -> Result<bool> {
    let children = Tuple::new().with(&[item.tally.0, item.number.cast_signed()]).all();
    Ok(!session.range(&session.key(PARENTS), children, 1)?.is_empty())
}

/// A note of a tally.
pub(super) fn note(session: &Session<'_>, tally: TallyId, kind: i16) -> Result<Option<String>> {
    let note = session.get(&of(session, "tally_notes", tally), kind.to_string().as_bytes())?;
    Ok(note.map(|note| String::from_utf8_lossy(&note).into_owned()))
}

pub(super) fn add_note(session: &Session<'_>, tally: TallyId, kind: i16, body: String) {
    session.put(of(session, "tally_notes", tally), kind.to_string(), body.into_bytes());
}

/// One that must be there.
pub(super) fn require(session: &Session<'_>, id: TallyId) -> Result<TallyRow> {
    one(session, id)?.ok_or_else(|| unknown(id))
}
