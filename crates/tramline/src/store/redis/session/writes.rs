//! What a step will write: kept by key until its end, and then one list of commands.

use super::commands::{hget, word};
use crate::store::redis::link::Command;
use std::collections::BTreeMap;

/// What a step changes, by key.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct Writes {
    pub(super) fields: BTreeMap<Vec<u8>, Fields>,
    pub(super) members: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, bool>>,
    pub(super) blobs: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    pub(super) sums: BTreeMap<(Vec<u8>, Vec<u8>), i64>,
}

/// Fields of a hash as they become; `None`: they go.
type Fields = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

impl Writes {
    /// True if nothing changes.
    pub(in crate::store::redis) fn is_empty(&self) -> bool {
        let sums = self.sums.values().all(|by| *by == 0);
        self.fields.is_empty() && self.members.is_empty() && self.blobs.is_empty() && sums
    }

    /// What fields of hashes become whose keys begin like this, as what reads them.
    pub(in crate::store::redis) fn fields_under(&self, prefix: &[u8]) -> Vec<(Command, Vec<u8>)> {
        let hashes = self.fields.range(prefix.to_vec()..).take_while(|(key, _)| key.starts_with(prefix));
        let values = hashes.flat_map(|(key, fields)| {
            fields.iter().filter_map(|(field, value)| Some((hget(key, field), value.clone()?)))
        });
        values.collect()
    }

    /// True if an index gets a member.
    pub(in crate::store::redis) fn adds_to(&self, index: &[u8]) -> bool {
        self.members.get(index).is_some_and(|members| members.values().any(|there| *there))
    }

    /// What a field of a hash becomes, if it is written.
    pub(in crate::store::redis) fn field(&self, key: &[u8], field: &[u8]) -> Option<&[u8]> {
        self.fields.get(key)?.get(field)?.as_deref()
    }

    /// As commands. Removals come first, but not in a step that is to be refused by a server that is full: it lets a script go on that
    /// begins with one.
    pub(in crate::store::redis) fn commands(self, when_full: bool) -> Vec<Command> {
        let (mut removals, mut additions) = (Vec::new(), Vec::new());
        for (key, fields) in self.fields {
            let (mut gone, mut set) = (Parts::new("HDEL", &key, 1), Parts::new("HSET", &key, 2));
            for (field, value) in fields {
                match value {
                    None => gone.add([field]),
                    Some(value) => set.add([field, value]),
                }
            }
            removals.append(&mut gone.done);
            additions.append(&mut set.done);
        }
        for (key, members) in self.members {
            let (mut gone, mut added) = (Parts::new("ZREM", &key, 1), Parts::new("ZADD", &key, 2));
            for (member, there) in members {
                match there {
                    false => gone.add([member]),
                    true => added.add([b"0".to_vec(), member]),
                }
            }
            removals.append(&mut gone.done);
            additions.append(&mut added.done);
        }
        for (key, value) in self.blobs {
            match value {
                None => removals.push(word("UNLINK", &key)),
                Some(value) => additions.push(vec![b"SET".to_vec(), key, value]),
            }
        }
        for ((key, field), by) in self.sums.into_iter().filter(|(_, by)| *by != 0) {
            additions.push(vec![b"HINCRBY".to_vec(), key, field, by.to_string().into_bytes()]);
        }
        let (mut first, mut then) = if when_full { (removals, additions) } else { (additions, removals) };
        first.append(&mut then);
        first
    }
}

/// One command in as many parts as it needs.
struct Parts<'k> {
    command: &'static str,
    key: &'k [u8],
    most: usize,
    done: Vec<Command>,
}

impl<'k> Parts<'k> {
    fn new(command: &'static str, key: &'k [u8], words: usize) -> Parts<'k> {
        Parts { command, key, most: 2 + MANY * words, done: Vec::new() }
    }

    fn add<const N: usize>(&mut self, words: [Vec<u8>; N]) {
        match self.done.last_mut().filter(|last| last.len() < self.most) {
            Some(last) => last.extend(words),
            None => self.done.push(word(self.command, self.key).into_iter().chain(words).collect()),
        }
    }
}

/// How many fields one command has: Lua passes on a limited number of arguments.
const MANY: usize = 500;
