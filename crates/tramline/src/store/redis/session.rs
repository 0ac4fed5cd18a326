//! One step: what it has read, what it will write, the time and the catalogue.
//!
//! A step is a plain function that never waits. When it needs something that was not read yet, it notes that and fails; it is run again
//! from its beginning when that was read. What it writes is kept until its end, and seen by what it reads after that.

use super::link::Command;
use super::pack::damaged;
use super::tally::ack::events_ended;
use super::{catalog, drops, unpark};
use crate::error::{Error, Result};
use crate::model::dropped::DropReason;
use crate::model::id::{ChunkId, SubscriptionId, TallyId};
use crate::model::mask::Mask;
use crate::model::time::Time;
use crate::store::catalog::Catalog;
use crate::store::drops::Drops;
use crate::store::tally::Ended;
use redis::Value;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

/// What was read so far: replies, and what they are known by when the server checks whether they still hold.
pub(super) type Seen = HashMap<Command, (Value, Vec<u8>)>;

/// One step.
pub(super) struct Session<'a> {
    pub(super) now: Time,
    name: &'a str,
    seen: &'a Seen,
    catalog: RefCell<Arc<Catalog>>,
    missing: RefCell<Vec<Command>>,
    /// What is read now need not stay so.
    loose: Cell<bool>,
    writes: RefCell<Writes>,
    draws: &'a Draws<'a>,
    drawn: Cell<usize>,
    numbers_wanted: Cell<i64>,
    /// How many slices that waited for their keys may still be moved.
    pub(super) room: Cell<usize>,
    /// What ended in this step and may be items of tallies.
    ended: RefCell<Vec<Ended>>,
    /// What subscriptions will never see because of this step.
    drops: RefCell<Drops>,
}

/// Numbers that nobody else has.
#[derive(Debug)]
pub(super) struct Numbers {
    drawn: Mutex<Drawn>,
    /// The least epoch of what is claimed from now on.
    epoch: AtomicI64,
    /// Grows when something goes wrong.
    breaks: Arc<AtomicU64>,
}

/// The next number, how many are left, and when they were drawn.
#[derive(Debug, Default)]
struct Drawn {
    next: i64,
    left: i64,
    breaks: u64,
}

impl Numbers {
    pub(super) fn new(breaks: Arc<AtomicU64>) -> Numbers {
        Numbers { drawn: Mutex::default(), epoch: AtomicI64::default(), breaks }
    }

    pub(super) fn breaks(&self) -> u64 {
        self.breaks.load(SeqCst)
    }

    pub(super) fn epoch(&self) -> i64 {
        self.epoch.load(SeqCst)
    }

    pub(super) fn begin_epoch(&self, epoch: i64) {
        // Of two who ask at once, one may have asked a server that is no longer the primary.
        self.epoch.fetch_max(epoch, SeqCst);
    }

    /// Takes some, and gives the first. None of before something went wrong: a server that has taken over may not know that they were
    /// drawn, and give them to somebody else.
    pub(super) fn take(&self, count: i64) -> Option<i64> {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        if drawn.breaks != self.breaks() || drawn.left < count {
            return None;
        }
        let first = drawn.next;
        drawn.next += count;
        drawn.left -= count;
        Some(first)
    }

    /// Keeps what was drawn when so much had gone wrong.
    pub(super) fn fill(&self, next: i64, left: i64, breaks: u64) {
        *self.drawn.lock().unwrap_or_else(PoisonError::into_inner) = Drawn { next, left, breaks };
    }
}

/// The numbers that a step has drawn. When it is run again it gets the same: what it reads may depend on them, and it has to come to
/// the same again, else it would never have read enough.
pub(super) struct Draws<'a> {
    numbers: &'a Numbers,
    /// How many were drawn each time, and the first of them.
    drawn: Mutex<Vec<(i64, i64)>>,
}

impl<'a> Draws<'a> {
    pub(super) fn new(numbers: &'a Numbers) -> Draws<'a> {
        Draws { numbers, drawn: Mutex::default() }
    }

    fn get(&self, at: usize, count: i64) -> Option<i64> {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, first)) = drawn.get(at).filter(|(before, _)| *before == count) {
            return Some(*first);
        }
        drawn.truncate(at);
        let first = self.numbers.take(count)?;
        drawn.push((count, first));
        Some(first)
    }
}

/// Fields of a hash as they become; `None`: they go.
type Fields = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// What a step changes, by key.
#[derive(Debug, Default)]
pub(super) struct Writes {
    fields: BTreeMap<Vec<u8>, Fields>,
    members: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, bool>>,
    blobs: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    sums: BTreeMap<(Vec<u8>, Vec<u8>), i64>,
}

/// What a step left behind.
pub(super) struct Left {
    pub(super) missing: Vec<Command>,
    pub(super) numbers_wanted: i64,
    pub(super) writes: Writes,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        name: &'a str,
        now: Time,
        seen: &'a Seen,
        catalog: Arc<Catalog>,
        draws: &'a Draws<'a>,
    ) -> Session<'a> {
        Session {
            now,
            name,
            seen,
            catalog: RefCell::new(catalog),
            missing: RefCell::default(),
            loose: Cell::new(false),
            writes: RefCell::default(),
            draws,
            drawn: Cell::new(0),
            numbers_wanted: Cell::new(0),
            room: Cell::new(unpark::MOST),
            ended: RefCell::default(),
            drops: RefCell::default(),
        }
    }

    pub(super) fn leave(self) -> Left {
        Left {
            missing: self.missing.into_inner(),
            numbers_wanted: self.numbers_wanted.get(),
            writes: self.writes.into_inner(),
        }
    }

    /// The catalogue as this step sees it.
    pub(super) fn catalog(&self) -> Arc<Catalog> {
        self.catalog.borrow().clone()
    }

    /// Reads the catalogue again, because this step has changed it.
    pub(super) fn refresh(&self) -> Result<()> {
        let fresh = Arc::new(catalog::load(self)?);
        self.catalog.replace(fresh);
        Ok(())
    }

    /// The key of something.
    pub(super) fn key(&self, what: &str) -> Vec<u8> {
        key(self.name, what)
    }

    /// A field of a hash.
    pub(super) fn get(&self, key: &[u8], field: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(written) = self.writes.borrow().fields.get(key).and_then(|fields| fields.get(field)) {
            return Ok(written.clone());
        }
        Ok(self.ask(hget(key, field))?.cloned().and_then(found))
    }

    /// All fields of a hash.
    pub(super) fn all(&self, key: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut all = BTreeMap::new();
        if let Some(Value::Array(flat)) = self.ask(hgetall(key))? {
            let mut flat = flat.iter().cloned();
            while let (Some(field), Some(value)) = (flat.next(), flat.next()) {
                all.extend(found(field).zip(found(value)));
            }
        }
        for (field, value) in self.writes.borrow().fields.get(key).into_iter().flatten() {
            match value {
                Some(value) => all.insert(field.clone(), value.clone()),
                None => all.remove(field),
            };
        }
        Ok(all)
    }

    /// How many fields a hash has.
    pub(super) fn count(&self, key: &[u8]) -> Result<i64> {
        let Some(Value::Int(stored)) = self.ask(vec![b"HLEN".to_vec(), key.to_vec()])?.cloned() else {
            return Err(damaged());
        };
        let written = self.writes.borrow().fields.get(key).cloned().unwrap_or_default();
        let mut count = stored;
        for (field, value) in written {
            let was = self.ask(hget(key, &field))?.cloned().and_then(found).is_some();
            count += i64::from(value.is_some()) - i64::from(was);
        }
        Ok(count)
    }

    pub(super) fn put(&self, key: Vec<u8>, field: impl Into<Vec<u8>>, value: Vec<u8>) {
        self.writes.borrow_mut().fields.entry(key).or_default().insert(field.into(), Some(value));
    }

    pub(super) fn remove(&self, key: Vec<u8>, field: impl Into<Vec<u8>>) {
        self.writes.borrow_mut().fields.entry(key).or_default().insert(field.into(), None);
    }

    /// Adds to a number that this step does not read, so that nobody gets into its way.
    pub(super) fn sum(&self, key: Vec<u8>, field: impl Into<Vec<u8>>, by: i64) {
        *self.writes.borrow_mut().sums.entry((key, field.into())).or_default() += by;
    }

    /// Members of an index from `from` to before `to`, the first `limit` of them. All of them are read in parts.
    pub(super) fn range(
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
    pub(super) fn range_back(
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
    pub(super) fn expect_ranges(
        &self,
        index: &[u8],
        ranges: impl IntoIterator<Item = ((Vec<u8>, Vec<u8>), usize)>,
    ) -> Result<()> {
        let ranges = ranges.into_iter().filter(|((from, to), limit)| from < to && *limit > 0);
        self.expect(ranges.map(|((from, to), limit)| self.wanted(index, &from, &to, limit, false)))
    }

    /// Says that the last member of each of these ranges will be read.
    pub(super) fn expect_last(
        &self,
        index: &[u8],
        ranges: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
    ) -> Result<()> {
        self.expect(ranges.into_iter().map(|(from, to)| self.wanted(index, &from, &to, 1, true)))
    }

    /// Adds a member to an index.
    pub(super) fn enter(&self, index: Vec<u8>, member: Vec<u8>) {
        self.writes.borrow_mut().members.entry(index).or_default().insert(member, true);
    }

    /// Takes a member out of an index.
    pub(super) fn withdraw(&self, index: Vec<u8>, member: Vec<u8>) {
        self.writes.borrow_mut().members.entry(index).or_default().insert(member, false);
    }

    /// A value of its own that never changes: it is not checked again.
    pub(super) fn blob(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(written) = self.writes.borrow().blobs.get(key) {
            return Ok(written.clone());
        }
        Ok(self.ask(get(key))?.cloned().and_then(found))
    }

    /// The first bytes of a value that never changes; `None` if it is not there.
    pub(super) fn front(&self, key: &[u8], length: usize) -> Result<Option<Vec<u8>>> {
        if let Some(written) = self.writes.borrow().blobs.get(key) {
            return Ok(written.clone());
        }
        Ok(self.ask(front(key, length))?.cloned().and_then(found).filter(|front| !front.is_empty()))
    }

    /// Says that the first bytes of these will be read.
    pub(super) fn expect_fronts(&self, keys: &[Vec<u8>], length: usize) -> Result<()> {
        let unwritten = |key: &&Vec<u8>| !self.writes.borrow().blobs.contains_key(*key);
        self.expect(keys.iter().filter(unwritten).map(|key| front(key, length)))
    }

    pub(super) fn put_blob(&self, key: Vec<u8>, value: Vec<u8>) {
        self.writes.borrow_mut().blobs.insert(key, Some(value));
    }

    pub(super) fn remove_blob(&self, key: Vec<u8>) {
        self.writes.borrow_mut().blobs.insert(key, None);
    }

    /// Removes a whole key. Whoever does that knows that nobody adds to it any more.
    pub(super) fn forget(&self, key: Vec<u8>) {
        self.remove_blob(key);
    }

    /// Draws `count` numbers of a counter and gives the first. Two steps that draw from one get into each other's way.
    pub(super) fn draw(&self, counter: &str, count: usize) -> Result<i64> {
        let meta = self.key("meta");
        let last = number(self.get(&meta, counter.as_bytes())?);
        if count > 0 {
            self.put(meta, counter, (last + count as i64).to_string().into_bytes());
        }
        Ok(last + 1)
    }

    /// Numbers for slices. They only have to be new, so every process draws many at a time, outside of its steps.
    pub(super) fn slice_numbers(&self, count: usize) -> Result<i64> {
        let first = self.draws.get(self.drawn.replace(self.drawn.get() + 1), count as i64);
        first.ok_or_else(|| {
            self.numbers_wanted.set(count as i64);
            unread()
        })
    }

    /// Under which epoch things are claimed at least.
    pub(super) fn least_epoch(&self) -> i64 {
        self.draws.numbers.epoch()
    }

    /// Says that all of these will be read, so that they are read together.
    pub(super) fn expect(&self, commands: impl IntoIterator<Item = Command>) -> Result<()> {
        let mut missing = self.missing.borrow_mut();
        let before = missing.len();
        let commands = commands.into_iter().map(|command| self.as_read(command));
        missing.extend(commands.filter(|command| !self.seen.contains_key(command)));
        if missing.len() > before { Err(unread()) } else { Ok(()) }
    }

    /// Does something for each of many that have nothing to do with each other. Where one needs what was not read yet, the others are gone through
    /// all the same, so that what all of them need is read together; the step is run again anyway.
    pub(super) fn for_each<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        mut act: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        let mut unread = Ok(());
        for item in items {
            match act(item) {
                Err(error) if self.is_unread() => unread = Err(error),
                done => done?,
            }
        }
        unread
    }

    /// True if the step has to be run again, because it needs more than was read.
    fn is_unread(&self) -> bool {
        !self.missing.borrow().is_empty() || self.numbers_wanted.get() > 0
    }

    /// Looks at what need not stay so until the step ends, such as where there may be work. Whoever acts on it reads again what it
    /// acts on.
    pub(super) fn loosely<T>(&self, look: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = self.loose.replace(true);
        let seen = look();
        self.loose.set(before);
        seen
    }

    /// The server does not care how a command is spelled; in small letters, it is not checked again.
    fn as_read(&self, command: Command) -> Command {
        if !self.loose.get() || self.seen.contains_key(&command) {
            return command;
        }
        let mut command = command;
        command.iter_mut().take(1).for_each(|word| word.make_ascii_lowercase());
        command
    }

    fn ask(&self, command: Command) -> Result<Option<&Value>> {
        let command = self.as_read(command);
        match self.seen.get(&command) {
            Some((value, _)) => Ok(Some(value)),
            None => {
                self.missing.borrow_mut().push(command);
                Err(unread())
            }
        }
    }

    /// Says that slices were moved because of their keys. False if that is enough for one step.
    pub(super) fn takes_room(&self, moved: usize) -> bool {
        self.room.set(self.room.get().saturating_sub(moved));
        self.room.get() > 0
    }

    /// Remembers that events have ended which may be items of tallies.
    pub(super) fn end(&self, ended: impl Iterator<Item = Ended>) {
        self.ended.borrow_mut().extend(ended);
    }

    /// Remembers that a subscription will never see events.
    pub(super) fn drop(&self, by: SubscriptionId, dropped: &[(ChunkId, Mask, DropReason)]) {
        let mut drops = self.drops.borrow_mut();
        dropped.iter().for_each(|&(chunk, mask, reason)| drops.add(by, reason, chunk, mask));
    }

    /// Writes down what was dropped, and ends the items of tallies whose events have ended, all at once. Gives the tallies that
    /// have news. Every step ends with this.
    pub(super) fn finish(&self) -> Result<Vec<TallyId>> {
        drops::record(self, self.drops.take())?;
        let ended = self.ended.take();
        if ended.is_empty() { Ok(Vec::new()) } else { events_ended(self, &ended) }
    }
}

impl Writes {
    /// True if nothing changes.
    pub(super) fn is_empty(&self) -> bool {
        let sums = self.sums.values().all(|by| *by == 0);
        self.fields.is_empty() && self.members.is_empty() && self.blobs.is_empty() && sums
    }

    /// What fields of hashes become whose keys begin like this, as what reads them.
    pub(super) fn fields_under(&self, prefix: &[u8]) -> Vec<(Command, Vec<u8>)> {
        let hashes = self.fields.range(prefix.to_vec()..).take_while(|(key, _)| key.starts_with(prefix));
        let values = hashes.flat_map(|(key, fields)| {
            fields.iter().filter_map(|(field, value)| Some((hget(key, field), value.clone()?)))
        });
        values.collect()
    }

    /// What a field of a hash becomes, if it is written.
    pub(super) fn field(&self, key: &[u8], field: &[u8]) -> Option<&[u8]> {
        self.fields.get(key)?.get(field)?.as_deref()
    }

    /// As commands. Removals come first, but not in a step that is to be refused by a server that is full: it lets a script go on that
    /// begins with one.
    pub(super) fn commands(self, when_full: bool) -> Vec<Command> {
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

/// How many members of an index are read at a time where all are wanted.
pub(super) const PAGE: usize = 1_000;

/// How many fields one command has: Lua passes on a limited number of arguments.
const MANY: usize = 500;

fn word(command: &str, key: &[u8]) -> Command {
    vec![command.as_bytes().to_vec(), key.to_vec()]
}

/// The key of something in a store of this name. The braces are what a Cluster hashes: all of a store is in one slot.
pub(super) fn key(name: &str, what: &str) -> Vec<u8> {
    format!("{{{name}}}:{what}").into_bytes()
}

pub(super) fn hget(key: &[u8], field: &[u8]) -> Command {
    vec![b"HGET".to_vec(), key.to_vec(), field.to_vec()]
}

pub(super) fn hgetall(key: &[u8]) -> Command {
    vec![b"HGETALL".to_vec(), key.to_vec()]
}

pub(super) fn get(key: &[u8]) -> Command {
    vec![b"GET".to_vec(), key.to_vec()]
}

fn front(key: &[u8], length: usize) -> Command {
    vec![b"GETRANGE".to_vec(), key.to_vec(), b"0".to_vec(), (length - 1).to_string().into_bytes()]
}

/// True for what has to be as it was when the step ends: all but values that never change, and what was looked at loosely.
pub(super) fn is_checked(command: &Command) -> bool {
    let unchanging = |word: &[u8]| matches!(word, b"GET" | b"GETRANGE");
    command.first().is_some_and(|word| !unchanging(word) && word.first().is_some_and(u8::is_ascii_uppercase))
}

fn range(index: &[u8], from: &[u8], to: &[u8], limit: usize, back: bool) -> Command {
    let (first, last) = ([b"[", from].concat(), [b"(", to].concat());
    let mut command = match back {
        false => vec![b"ZRANGEBYLEX".to_vec(), index.to_vec(), first, last],
        true => vec![b"ZREVRANGEBYLEX".to_vec(), index.to_vec(), last, first],
    };
    command.extend([b"LIMIT".to_vec(), b"0".to_vec(), limit.to_string().into_bytes()]);
    command
}

fn found(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

/// A number as it is stored; zero if it is not.
pub(super) fn number(stored: Option<Vec<u8>>) -> i64 {
    stored.and_then(|bytes| std::str::from_utf8(&bytes).ok()?.parse().ok()).unwrap_or(0)
}

/// The step ends here, and begins again when what it needs was read.
fn unread() -> Error {
    Error::unavailable("a step needs more than was read", "try again")
}
