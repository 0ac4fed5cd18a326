//! One step: what it has read, what it will write, the time and the catalogue.
//!
//! A step is a plain function that never waits. When it needs something that was not read yet, it notes that and fails; it is run again
//! from its beginning when that was read. What it writes is kept until its end, and seen by what it reads after that.
//!
//! - `ranges`: indexes as it sees them
//! - `writes`: what it will write
//! - `numbers`: numbers that it draws
//! - `commands`: what it sends to the server

mod commands;
mod numbers;
mod ranges;
mod writes;

pub(super) use commands::{get, hget, hgetall, hlen, is_blob, is_checked, key};
pub(super) use numbers::{Draws, Numbers};
pub(super) use ranges::PAGE;
pub(super) use writes::Writes;

use super::link::Command;
use super::pack::damaged;
use super::tally::ack::events_ended;
use super::{RedisStore, Role, catalog, drops, unpark};
use crate::error::{Error, Result};
use crate::model::dropped::DropReason;
use crate::model::id::{ChunkId, SubscriptionId, TallyId};
use crate::model::mask::Mask;
use crate::model::time::Time;
use crate::store::catalog::Catalog;
use crate::store::drops::Drops;
use crate::store::tally::Ended;
use commands::front;
use redis::Value;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What was read so far: replies, and what they are known by when the server checks whether they still hold.
pub(super) type Seen = HashMap<Command, (Value, Vec<u8>)>;

/// One step.
pub(super) struct Session<'a> {
    pub(super) now: Time,
    pub(super) role: Role,
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
    /// How many slices that waited for their keys may still be moved, and how many keys have gone on.
    pub(super) room: Cell<usize>,
    pub(super) keys_moved: Cell<usize>,
    /// What ended in this step and may be items of tallies.
    ended: RefCell<Vec<Ended>>,
    /// What subscriptions will never see because of this step.
    drops: RefCell<Drops>,
}

/// What a step left behind.
pub(super) struct Left {
    pub(super) missing: Vec<Command>,
    pub(super) numbers_wanted: i64,
    pub(super) writes: Writes,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        store: &'a RedisStore,
        now: Time,
        seen: &'a Seen,
        catalog: Arc<Catalog>,
        draws: &'a Draws<'a>,
    ) -> Session<'a> {
        Session {
            now,
            role: store.role,
            name: &store.options.name,
            seen,
            catalog: RefCell::new(catalog),
            missing: RefCell::default(),
            loose: Cell::new(false),
            writes: RefCell::default(),
            draws,
            drawn: Cell::new(0),
            numbers_wanted: Cell::new(0),
            room: Cell::new(unpark::MOST),
            keys_moved: Cell::new(0),
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

    /// True at the site of a topic that may have lost what it was told of subscriptions and rules.
    pub(super) fn is_untold(&self) -> bool {
        self.role == Role::Site && self.catalog.borrow().version < 0
    }

    /// Refuses to do anything there.
    pub(super) fn require_told(&self) -> Result<()> {
        match self.is_untold() {
            true => Err(Error::not_found("the topic has to hear who consumes it", "try again")),
            false => Ok(()),
        }
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
        let Some(Value::Int(stored)) = self.ask(hlen(key))?.cloned() else {
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

    /// True if events have ended in this step: which items they are is asked of their chunks at its end.
    pub(super) fn has_ended(&self) -> bool {
        !self.ended.borrow().is_empty()
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
