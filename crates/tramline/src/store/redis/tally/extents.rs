//! Additions: where each begins, how many items it has, and the token that it was made under.

use super::rows::of;
use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::Added;
use crate::model::tally::part::{PART, PartId};
use crate::store::redis::pack::{Packer, Unpacker};
use crate::store::redis::session::Session;
use crate::store::redis::tuple::{Columns, Tuple};
use crate::store::tally::Of;

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

/// Takes an addition back. False if it is not there.
pub(super) fn take_back(session: &Session<'_>, tally: TallyId, added: Added) -> Result<bool> {
    let index = of(session, "tally_extents", tally);
    let range = Tuple::new().with(&[(added.first / PART).cast_signed()]).all();
    let found = session.range(&index, range, 1)?.pop();
    let is_there = found.is_some();
    found.into_iter().for_each(|member| session.withdraw(index.clone(), member));
    Ok(is_there)
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

/// Additions that are known, with whether they were of events.
pub(super) type Extents = Vec<(TallyId, Added, bool)>;

pub(super) fn expect_extents<'p>(
    session: &Session<'_>,
    parts: impl Iterator<Item = &'p PartId>,
) -> Result<()> {
    let mut expected = Ok(());
    for id in parts {
        let index = of(session, "tally_extents", id.tally);
        expected = session.expect_last(&index, [up_to(*id)]).and(expected);
    }
    expected
}

/// The addition that a part belongs to, if it is known.
pub(super) fn covering(known: &Extents, id: PartId) -> Option<(Added, bool)> {
    let has = |added: &Added| {
        let first = added.first / PART;
        (first..first + added.count.div_ceil(PART)).contains(&id.part)
    };
    let found = known.iter().rev().find(|(tally, added, _)| *tally == id.tally && has(added));
    found.map(|(_, added, of_events)| (*added, *of_events))
}

/// The addition that a part belongs to, if it has the part, and whether it was of events. The last addition before it is the only one
/// that can reach it.
pub(super) fn extent(session: &Session<'_>, id: PartId) -> Result<Option<(Added, bool)>> {
    let found = session.range_back(&of(session, "tally_extents", id.tally), up_to(id), 1)?;
    found.first().map(|member| extent_of(member)).transpose()
}

/// The additions that begin with a part or before it.
fn up_to(id: PartId) -> (Vec<u8>, Vec<u8>) {
    (Tuple::new().bytes(), Tuple::new().with(&[id.part.cast_signed()]).end())
}
