//! Rows of tallies, their parts and what was added to them.

use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::news::Outgoing;
use crate::model::tally::part::{PART, Part, PartId};
use crate::model::tally::{Added, TallyItem, TallyState};
use crate::model::time::Time;
use crate::plan::tally::{ItemRow, TallyRow, Tells, Unfinished, unknown};
use crate::store::redis::catalog::written;
use crate::store::redis::pack::{Packer, Unpacker, damaged};
use crate::store::redis::session::{Session, hget, number};
use crate::store::redis::tuple::{Columns, Tuple};
use crate::store::tally::{Of, REMOVED, news, state};
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

fn of(session: &Session<'_>, what: &str, tally: TallyId) -> Vec<u8> {
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

/// News as they wait, by number: tally, news, total, done, failed, item.
type Waiting = (i64, i16, u64, u64, u64, Option<u64>);

/// Puts news into the outbox.
pub(super) fn put_out(session: &Session<'_>, outbox: &[Outgoing]) -> Result<()> {
    for out in outbox {
        let number = session.draw("outbox", 1)?;
        let row: Waiting = (out.tally.0, out.news as i16, out.total, out.done, out.failed, out.item);
        session.enter(session.key("outbox"), Tuple::new().with(&[number]).carrying(&written(&row)));
        session.enter(session.key("outbox_tallies"), Tuple::new().with(&[out.tally.0, number]).bytes());
    }
    Ok(())
}

/// The first news in the outbox, each with its entry.
pub(super) fn waiting(session: &Session<'_>, limit: u32) -> Result<Vec<(Vec<u8>, Outgoing)>> {
    let mut waiting = Vec::new();
    for member in session.range(&session.key("outbox"), Tuple::new().all(), limit as usize)? {
        let mut columns = Columns(&member);
        columns.number();
        let (tally, of, total, done, failed, item): Waiting =
            serde_json::from_slice(columns.load()).map_err(|error| damaged().because(error))?;
        let out = Outgoing { tally: TallyId(tally), news: news(of)?, total, done, failed, item };
        waiting.push((member, out));
    }
    Ok(waiting)
}

pub(super) fn take_out(session: &Session<'_>, member: Vec<u8>, tally: TallyId) {
    let number = Columns(&member).number();
    session.withdraw(session.key("outbox_tallies"), Tuple::new().with(&[tally.0, number]).bytes());
    session.withdraw(session.key("outbox"), member);
}

/// True if a tally has something to tell.
pub(super) fn has_news(session: &Session<'_>, tally: TallyId) -> Result<bool> {
    let of_tally = Tuple::new().with(&[tally.0]).all();
    Ok(!session.range(&session.key("outbox_tallies"), of_tally, 1)?.is_empty())
}

/// Writes that items were added.
pub(super) fn extend(session: &Session<'_>, tally: TallyId, added: Added, with: Of) {
    let part = (added.first / PART).cast_signed();
    let (token, of_events) = with.columns();
    let load = Packer::new().number(added.count.cast_signed()).number(i64::from(of_events)).done();
    session.enter(of(session, "tally_extents", tally), Tuple::new().with(&[part]).carrying(&load));
    if let Some(token) = token {
        let row = Packer::new().number(part).number(added.count.cast_signed()).done();
        session.put(of(session, "tally_tokens", tally), token.to_string(), row);
    }
}

/// What was added under a token.
pub(super) fn added(session: &Session<'_>, tally: TallyId, token: i64) -> Result<Option<Added>> {
    let row = session.get(&of(session, "tally_tokens", tally), token.to_string().as_bytes())?;
    let Some(row) = row else { return Ok(None) };
    let mut row = Unpacker::new(&row);
    let (part, count) = (row.number()?, row.number()?);
    Ok(Some(Added { first: part.cast_unsigned() * PART, count: count.cast_unsigned() }))
}

fn extent_of(member: &[u8]) -> Result<(Added, bool)> {
    let mut columns = Columns(member);
    let part = columns.number();
    let mut load = Unpacker::new(columns.load());
    let (count, of_events) = (load.number()?, load.number()? != 0);
    Ok((Added { first: part.cast_unsigned() * PART, count: count.cast_unsigned() }, of_events))
}

/// Some of the additions to a tally after an entry, with their entries.
pub(super) fn extents(
    session: &Session<'_>,
    tally: TallyId,
    after: &[u8],
    limit: usize,
) -> Result<Vec<(Vec<u8>, Added)>> {
    let range = ([after, &[0]].concat(), Tuple::new().end());
    let members = session.range(&of(session, "tally_extents", tally), range, limit)?;
    members.into_iter().map(|member| Ok((member.clone(), extent_of(&member)?.0))).collect()
}

pub(super) fn remove_extent(session: &Session<'_>, tally: TallyId, member: Vec<u8>) {
    session.withdraw(of(session, "tally_extents", tally), member);
}

/// A part as it is stored.
struct PartRow {
    part: Part,
    active_at: Time,
}

fn read_part(row: &[u8]) -> Result<PartRow> {
    let mut row = Unpacker::new(row);
    let (items, left, active_at) = (row.number()? as u32, row.number()? as u32, Time(row.number()?));
    let pending = row.optional()?;
    Ok(PartRow { part: Part::read(items, pending, left, row.optional()?)?, active_at })
}

/// A part as it is. One that nobody has touched follows from what was added; `None` if there is none.
pub(super) fn part(session: &Session<'_>, id: PartId, known: &Extents) -> Result<Option<Part>> {
    let row = session.get(&of(session, "tally_parts", id.tally), id.part.to_string().as_bytes())?;
    if let Some(row) = row {
        return Ok(Some(read_part(&row)?.part));
    }
    let added = match covering(known, id) {
        Some(added) => Some(added),
        None => extent(session, id)?,
    };
    Ok(added.and_then(|(added, _)| Part::untouched(added.count, id.part - added.first / PART)))
}

/// Additions that are known, with whether they were of events.
pub(super) type Extents = Vec<(TallyId, Added, bool)>;

/// Says that these parts will be read, sorted; and the additions of those that nobody has touched. Gives additions that have many.
pub(super) fn expect_parts<'p>(
    session: &Session<'_>,
    parts: impl Iterator<Item = &'p PartId> + Clone,
) -> Result<Extents> {
    let place = |id: &PartId| (of(session, "tally_parts", id.tally), id.part.to_string().into_bytes());
    let read = |id: &PartId| {
        let (key, field) = place(id);
        hget(&key, &field)
    };
    session.expect(parts.clone().map(read))?;
    let mut untouched: Vec<PartId> = Vec::new();
    for id in parts {
        let (key, field) = place(id);
        untouched.extend(session.get(&key, &field)?.is_none().then_some(*id));
    }
    let mut known = Extents::new();
    let mut expected = Ok(());
    for of_tally in untouched.chunk_by(|a, b| a.tally == b.tally) {
        let ends = [of_tally.first(), of_tally.last()].into_iter().flatten();
        expected = expect_extents(session, ends).and(expected);
    }
    expected?;
    let mut expected = Ok(());
    for of_tally in untouched.chunk_by(|a, b| a.tally == b.tally) {
        for id in [of_tally.first(), of_tally.last()].into_iter().flatten() {
            known.extend(extent(session, *id)?.map(|(added, of_events)| (id.tally, added, of_events)));
        }
        // Mostly all are of one addition, and then nothing else has to be read, be they ever so many.
        let others = of_tally.iter().filter(|id| covering(&known, **id).is_none());
        expected = expect_extents(session, others).and(expected);
    }
    expected.map(|()| known)
}

fn expect_extents<'p>(session: &Session<'_>, parts: impl Iterator<Item = &'p PartId>) -> Result<()> {
    let mut expected = Ok(());
    for id in parts {
        let index = of(session, "tally_extents", id.tally);
        expected = session.expect_last(&index, [up_to(*id)]).and(expected);
    }
    expected
}

/// The addition that a part belongs to, if it is known.
fn covering(known: &Extents, id: PartId) -> Option<(Added, bool)> {
    let has = |added: &Added| {
        let first = added.first / PART;
        (first..first + added.count.div_ceil(PART)).contains(&id.part)
    };
    let found = known.iter().rev().find(|(tally, added, _)| *tally == id.tally && has(added));
    found.map(|(_, added, of_events)| (*added, *of_events))
}

/// Says that these tallies will be read.
pub(super) fn expect(session: &Session<'_>, tallies: impl Iterator<Item = TallyId>) -> Result<()> {
    session.expect(tallies.map(|id| hget(&table(session), id.to_string().as_bytes())))
}

/// The addition that a part belongs to, if it has the part, and whether it was of events. The last addition before it is the only one
/// that can reach it.
fn extent(session: &Session<'_>, id: PartId) -> Result<Option<(Added, bool)>> {
    let found = session.range_back(&of(session, "tally_extents", id.tally), up_to(id), 1)?;
    found.first().map(|member| extent_of(member)).transpose()
}

/// The additions that begin with a part or before it.
fn up_to(id: PartId) -> (Vec<u8>, Vec<u8>) {
    (Tuple::new().bytes(), Tuple::new().with(&[id.part.cast_signed()]).end())
}

/// One item as it is; `None` if it was never added.
pub(super) fn item(session: &Session<'_>, item: TallyItem) -> Result<Option<ItemRow>> {
    let id = PartId { tally: item.tally, part: item.number / PART };
    let (Some(part), Some((_, of_events))) = (part(session, id, &Extents::new())?, extent(session, id)?)
    else {
        return Ok(None);
    };
    Ok(ItemRow::of(item.number, &part, of_events))
}

/// True if a tally stands for an item. One on its way out counts: it may still have to tell.
pub(super) fn has_child(session: &Session<'_>, item: TallyItem) -> Result<bool> {
    let children = Tuple::new().with(&[item.tally.0, item.number.cast_signed()]).all();
    Ok(!session.range(&session.key(PARENTS), children, 1)?.is_empty())
}

/// Writes a part back, or for the first time. What happened in those under way is also summed, for all who look at the tally.
pub(super) fn write_part(session: &Session<'_>, id: PartId, part: &Part, now: Time) -> Result<()> {
    let row = Packer::new()
        .number(i64::from(part.items()))
        .number(i64::from(part.left()))
        .number(now.0)
        .optional(part.pending_bytes().as_deref())
        .optional(part.failed_bytes().as_deref())
        .done();
    let (parts, field) = (of(session, "tally_parts", id.tally), id.part.to_string());
    let before = session.get(&parts, field.as_bytes())?.map(|row| read_part(&row)).transpose()?;
    let under_way = |part: Option<&Part>| match part.filter(|part| part.left() > 0) {
        Some(part) => [i64::from(part.done()), i64::from(part.failed())],
        None => [0, 0],
    };
    let (was, is) = (under_way(before.as_ref().map(|before| &before.part)), under_way(Some(part)));
    let sums = of(session, UNDER_WAY, id.tally);
    session.sum(sums.clone(), "done", is[0] - was[0]);
    session.sum(sums.clone(), "failed", is[1] - was[1]);
    session.put(sums, "active_at", now.0.to_string().into_bytes());
    session.put(parts, field, row);
    Ok(())
}

/// What happened in the parts of a tally that are under way, and when something last did.
const UNDER_WAY: &str = "tally_under_way";

pub(super) fn unfinished(session: &Session<'_>, tally: TallyId) -> Result<Unfinished> {
    let sums = session.all(&of(session, UNDER_WAY, tally))?;
    let sum = |name: &str| sums.get(name.as_bytes()).map(|sum| number(Some(sum.clone())));
    let count = |name: &str| sum(name).unwrap_or(0).max(0).cast_unsigned();
    let active_at = sum("active_at").map(Time);
    Ok(Unfinished { done: count("done"), failed: count("failed"), active_at })
}

/// How many of these parts are finished, and what happened in them.
pub(super) fn finished(session: &Session<'_>, tally: TallyId, parts: &[u64]) -> Result<(u64, Unfinished)> {
    let table = of(session, "tally_parts", tally);
    session.expect(parts.iter().map(|part| hget(&table, part.to_string().as_bytes())))?;
    let (mut count, mut sums) = (0, Unfinished::default());
    for part in parts {
        let Some(row) = session.get(&table, part.to_string().as_bytes())? else { continue };
        let PartRow { part, active_at } = read_part(&row)?;
        if part.left() == 0 {
            count += 1;
            sums.done += u64::from(part.done());
            sums.failed += u64::from(part.failed());
            sums.active_at = sums.active_at.max(Some(active_at));
        }
    }
    Ok((count, sums))
}

/// Forgets all parts of a tally that is gone: the server frees them beside its work.
pub(super) fn forget_parts(session: &Session<'_>, tally: TallyId) {
    for what in ["tally_parts", UNDER_WAY] {
        session.forget(of(session, what, tally));
    }
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
