//! Indexes as a step sees them: what was read of them, and what it will add and take out.

use super::commands::range;
use super::{Session, found};
use crate::error::Result;
use crate::store::redis::link::Command;
use crate::store::redis::pack::damaged;
use redis::Value;

impl Session<'_> {
    /// Members of an index from `from` to before `to`, the first `limit` of them. All of them are read in parts.
    pub(in crate::store::redis) fn range(
        &self,
        index: &[u8],
        (mut from, to): (Vec<u8>, Vec<u8>),
        limit: usize,
    ) -> Result<Vec<Vec<u8>>> {
        if limit < usize::MAX {
            return self.members(index, from, to, limit, false);
        }
        let mut all = Vec::new();
        loop {
            let mut some = self.members(index, from, to.clone(), PAGE, false)?;
            let last = some.last().filter(|_| some.len() == PAGE).map(|last| [last, &[0][..]].concat());
            all.append(&mut some);
            match last {
                Some(next) => from = next,
                None => return Ok(all),
            }
        }
    }

    /// The same from the end.
    pub(in crate::store::redis) fn range_back(
        &self,
        index: &[u8],
        (from, to): (Vec<u8>, Vec<u8>),
        limit: usize,
    ) -> Result<Vec<Vec<u8>>> {
        self.members(index, from, to, limit, true)
    }

    fn members(
        &self,
        index: &[u8],
        from: Vec<u8>,
        to: Vec<u8>,
        limit: usize,
        back: bool,
    ) -> Result<Vec<Vec<u8>>> {
        if from >= to || limit == 0 {
            return Ok(Vec::new());
        }
        let stored = self.ask(self.wanted(index, &from, &to, limit, back))?;
        let writes = self.writes.borrow();
        let changed = writes.members.get(index).map(|changed| changed.range(from..to));
        let changed: Vec<(&Vec<u8>, bool)> =
            changed.into_iter().flatten().map(|(member, there)| (member, *there)).collect();
        let Some(Value::Array(stored)) = stored else { return Err(damaged()) };
        let mut members: Vec<Vec<u8>> = stored.iter().cloned().filter_map(found).collect();
        if !changed.is_empty() {
            members.retain(|member| !changed.iter().any(|(other, _)| *other == member));
            members.extend(changed.iter().filter(|(_, there)| *there).map(|(member, _)| (*member).clone()));
            members.sort_unstable();
            if back {
                members.reverse();
            }
            members.truncate(limit);
        }
        Ok(members)
    }

    /// The command that reads a range. As many more as this step has taken out, unless the range was read to its end already.
    fn wanted(&self, index: &[u8], from: &[u8], to: &[u8], limit: usize, back: bool) -> Command {
        let writes = self.writes.borrow();
        let changed = writes.members.get(index).map(|changed| changed.range(from.to_vec()..to.to_vec()));
        let gone = changed.into_iter().flatten().filter(|(_, there)| !**there).count();
        let plain = range(index, from, to, limit, back);
        if gone == 0 || self.is_whole(plain.clone(), limit) {
            return plain;
        }
        range(index, from, to, limit.saturating_add(gone), back)
    }

    /// True if a range was read and has no more members than were read.
    fn is_whole(&self, command: Command, limit: usize) -> bool {
        let reply = self.seen.get(&self.as_read(command));
        matches!(reply, Some((Value::Array(members), _)) if members.len() < limit)
    }

    /// Says that all of these ranges will be read: an index, from where to where, and how many.
    pub(in crate::store::redis) fn expect_ranges(
        &self,
        index: &[u8],
        ranges: impl IntoIterator<Item = ((Vec<u8>, Vec<u8>), usize)>,
    ) -> Result<()> {
        let ranges = ranges.into_iter().filter(|((from, to), limit)| from < to && *limit > 0);
        self.expect(ranges.map(|((from, to), limit)| self.wanted(index, &from, &to, limit, false)))
    }

    /// Says that the last member of each of these ranges will be read.
    pub(in crate::store::redis) fn expect_last(
        &self,
        index: &[u8],
        ranges: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
    ) -> Result<()> {
        self.expect(ranges.into_iter().map(|(from, to)| self.wanted(index, &from, &to, 1, true)))
    }

    /// Adds a member to an index.
    pub(in crate::store::redis) fn enter(&self, index: Vec<u8>, member: Vec<u8>) {
        self.writes.borrow_mut().members.entry(index).or_default().insert(member, true);
    }

    /// Takes a member out of an index.
    pub(in crate::store::redis) fn withdraw(&self, index: Vec<u8>, member: Vec<u8>) {
        self.writes.borrow_mut().members.entry(index).or_default().insert(member, false);
    }
}

/// How many members of an index are read at a time where all are wanted.
pub(in crate::store::redis) const PAGE: usize = 1_000;
