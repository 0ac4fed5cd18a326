//! The commands that steps are made of, and the keys in them.

use crate::store::redis::link::Command;

/// The key of something in a store of this name. The braces are what a Cluster hashes: all of a store is in one slot.
pub(in crate::store::redis) fn key(name: &str, what: &str) -> Vec<u8> {
    format!("{{{name}}}:{what}").into_bytes()
}

pub(in crate::store::redis) fn hget(key: &[u8], field: &[u8]) -> Command {
    vec![b"HGET".to_vec(), key.to_vec(), field.to_vec()]
}

pub(in crate::store::redis) fn hgetall(key: &[u8]) -> Command {
    vec![b"HGETALL".to_vec(), key.to_vec()]
}

pub(in crate::store::redis) fn hlen(key: &[u8]) -> Command {
    vec![b"HLEN".to_vec(), key.to_vec()]
}

pub(in crate::store::redis) fn get(key: &[u8]) -> Command {
    vec![b"GET".to_vec(), key.to_vec()]
}

pub(super) fn front(key: &[u8], length: usize) -> Command {
    vec![b"GETRANGE".to_vec(), key.to_vec(), b"0".to_vec(), (length - 1).to_string().into_bytes()]
}

pub(super) fn range(index: &[u8], from: &[u8], to: &[u8], limit: usize, back: bool) -> Command {
    let (first, last) = ([b"[", from].concat(), [b"(", to].concat());
    let mut command = match back {
        false => vec![b"ZRANGEBYLEX".to_vec(), index.to_vec(), first, last],
        true => vec![b"ZREVRANGEBYLEX".to_vec(), index.to_vec(), last, first],
    };
    command.extend([b"LIMIT".to_vec(), b"0".to_vec(), limit.to_string().into_bytes()]);
    command
}

/// True for what has to be as it was when the step ends: all but values that never change, and what was looked at loosely.
pub(in crate::store::redis) fn is_checked(command: &Command) -> bool {
    let unchanging = |word: &[u8]| matches!(word, b"GET" | b"GETRANGE");
    command.first().is_some_and(|word| !unchanging(word) && word.first().is_some_and(u8::is_ascii_uppercase))
}

/// True for a value that never changes, read as a whole.
pub(in crate::store::redis) fn is_blob(command: &Command) -> bool {
    command.first().is_some_and(|word| word.eq_ignore_ascii_case(b"GET"))
}

pub(super) fn word(command: &str, key: &[u8]) -> Command {
    vec![command.as_bytes().to_vec(), key.to_vec()]
}
