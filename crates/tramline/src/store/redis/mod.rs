//! Redis 6.2 or newer, one server or a Cluster: a store in memory, as durable as the server is set up to be.
//!
//! How a step is done. A step is the same plain function as on SQLite: it reads rows, asks [`crate::plan`] what follows, and writes rows.
//! It is optimistic: what it reads is read at a few moments (`scripts/read.lua`), what it writes is kept, and at its end one script
//! (`scripts/commit.lua`) reads all of it again on the server, compares, and writes only if nothing has changed. So every step is
//! one script that checks everything before its first write; it happens or it does not, and it sees one state of the store. A step
//! that was overtaken begins anew; one that was overtaken too often takes the *turn*, and everybody else waits for it. What only says where
//! there may be work is looked at loosely, and not compared: claims get into each other's way only if they take the same. Deciding in
//! Lua would repeat all decisions of `plan` in a second language; only the plainest claim does (`scripts/claim.lua`), because it is what workers
//! wait for. Chunks, which never change, come by plain commands beside the scripts. What a process wrote last it need not read again: it is assumed to be still so, and checked like everything else (`at_once`).
//!
//! How rows are kept. A hash is a table; a sorted set whose members are tuples that sort bytewise is an index (`tuple`). A chunk is one
//! value, the slices of a chunk are one small hash, and every subscription has one index over its slices, as in SQL.
//!
//! Where it is kept. All keys of a store begin with its name in braces, so in a Cluster they are in one slot: a store has one node at
//! a time, with its replicas and fail-over, and every step is atomic there too. A store that is spread (`spread`) has a slot for each topic and
//! one for what belongs to none; in each of them everything here is as it is in one slot, but for what a [`Role`] says.
//!
//! - `store`: the verbs; `step`: how one is run
//! - `at_once`: emits, claims and settlements that mostly need one trip
//! - `link`, `connection`, `options`, `opening` (`nodes`): the scripts, the connection, and what a server has to be
//! - `session`, `rows`, `tuple`, `pack`: what a step has read and writes, and how
//! - `emit`, `claim`, `order` (`work`, `lapsed`, `unpark`), `settle`: the walk of an event
//! - `tally`: sets of items that are tracked to completion; `schedule`: what is emitted at certain times
//! - `parts`: what is too much for one script
//! - `limit`, `unique`, `compact`, `rules`, `failures`: what is allowed, what is there already, what gives way, what is stopped, what went wrong
//! - `renumber`: numbers after a loss
//! - `spread`: a slot for each topic
//! - `mend`, `look`, `sweep`, `shed`, `drops`, `erase`, `push`, `remote`, `catalog`, `token`, `examine`: everything else

mod at_once;
mod catalog;
mod claim;
mod compact;
mod connection;
mod drops;
mod emit;
mod erase;
mod examine;
mod failures;
mod lapsed;
mod limit;
mod link;
mod look;
mod mend;
mod nodes;
mod opening;
mod options;
mod order;
mod pack;
mod parts;
mod push;
mod remote;
mod renumber;
mod rows;
mod rules;
mod schedule;
mod session;
mod settle;
mod shed;
mod spread;
mod step;
mod store;
mod sweep;
mod tally;
mod token;
mod tuple;
mod unique;
mod unpark;
mod work;

pub use examine::{RedisFigures, RedisNode};
pub use options::RedisOptions;
pub(crate) use options::is_redis;
pub use spread::SpreadStore;

use crate::error::{Error, Result};
use crate::model::id::Incarnation;
use crate::store::catalog::CatalogCache;
use crate::store::deleted::{InTheWay, STEP_ROWS};
use crate::store::retention::Round;
use crate::wake::relay::Voice;
use at_once::AtOnce;
use link::Link;
use renumber::Assured;
use session::{Numbers, Session};
use std::sync::atomic::AtomicBool;

/// A store in Redis, or what one slot has of a store that is spread.
#[derive(Debug)]
pub struct RedisStore {
    link: Link,
    options: RedisOptions,
    role: Role,
    cache: CatalogCache,
    numbers: Numbers,
    assured: Assured,
    round: Round,
    at_once: AtOnce,
    /// Steps of this process have noted what tallies elsewhere have to hear.
    owes: AtomicBool,
    /// Names this store among all that are open on the server.
    incarnation: Incarnation,
}

/// What of a store is in this slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// All of it.
    Whole,
    /// What belongs to no single topic of a store that is spread: the catalogue, rules, tallies, schedules, tokens, workers.
    Home,
    /// One topic of a store that is spread: its events, and all work that subscriptions have of them.
    Site,
}

impl RedisStore {
    /// Connects, and checks that the server is one that keeps what it is given.
    ///
    /// # Errors
    /// `Unavailable` when it cannot be reached; `Invalid` when it is too old or may throw events away; `Conflict` when a newer version
    /// wrote the store.
    pub async fn open(options: RedisOptions) -> Result<RedisStore> {
        if options.spread {
            return Err(Error::invalid("this store is spread over topics", "open it by its URL"));
        }
        RedisStore::open_as(Role::Whole, options).await
    }

    async fn open_as(role: Role, options: RedisOptions) -> Result<RedisStore> {
        let link = Link::open(&options).await?;
        opening::check(&link, options.cluster).await?;
        let store = RedisStore::over(link, role, options);
        // In a store of a newer version nothing is written.
        store.read(None, opening::mark).await?;
        store.write(None, opening::mark).await?;
        Ok(store)
    }

    /// What a slot has, over a connection that others use too.
    fn over(link: Link, role: Role, options: RedisOptions) -> RedisStore {
        let numbers = Numbers::new(link.breaks());
        RedisStore {
            link,
            options,
            role,
            cache: CatalogCache::default(),
            numbers,
            assured: Assured::default(),
            round: Round::default(),
            at_once: AtOnce::default(),
            owes: AtomicBool::default(),
            incarnation: Incarnation::random(),
        }
    }

    /// Reads the figures of the server that the options lead to. Nothing is changed.
    ///
    /// # Errors
    /// `Unavailable` when it cannot be reached.
    pub async fn examine(options: RedisOptions) -> Result<RedisFigures> {
        examine::examine(options).await
    }

    /// Where the store is.
    pub fn options(&self) -> &RedisOptions {
        &self.options
    }

    /// The channel of this store's hints.
    pub(crate) fn wake_channel(&self) -> String {
        format!("{}:wake", self.options.name)
    }

    /// Lets emits say hints over this store's own channel.
    pub(crate) fn speak_with(&self, voice: Voice) {
        // A Cluster has other channels for that, and a store has one voice only.
        if !self.options.cluster {
            self.at_once.speech.begin(voice);
        }
    }

    /// Removes left-overs that are in the way of a change, step by step.
    async fn clear(&self, way: InTheWay) -> Result<()> {
        while self.write(None, |session: &Session<'_>| erase::clear(session, &way, STEP_ROWS / 4)).await? {}
        Ok(())
    }
}
