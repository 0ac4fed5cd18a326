//! What every step inside a transaction needs: the connection, the time and the catalogue.

use super::tally::ack::events_ended;
use super::{catalog, drops};
use crate::error::Result;
use crate::model::dropped::DropReason;
use crate::model::id::{ChunkId, SubscriptionId, TallyId};
use crate::model::mask::Mask;
use crate::model::tally::Ending;
use crate::model::time::Time;
use crate::store::catalog::Catalog;
use crate::store::drops::Drops;
use rusqlite::Connection;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

/// One step inside a transaction.
pub(super) struct Session<'a> {
    pub(super) conn: &'a Connection,
    pub(super) now: Time,
    pub(super) catalog: Arc<Catalog>,
    /// What ended in this step and may be items of tallies.
    ended: RefCell<Vec<Ended>>,
    /// What subscriptions will never see because of this step.
    drops: RefCell<Drops>,
}

/// Events of one chunk that have ended in a subscription.
pub(super) struct Ended {
    pub(super) subscription: SubscriptionId,
    pub(super) chunk: ChunkId,
    pub(super) mask: Mask,
    pub(super) ending: Ending,
}

/// The last catalogue that was read.
#[derive(Debug, Default)]
pub(super) struct CatalogCache(Mutex<Arc<Catalog>>);

impl<'a> Session<'a> {
    pub(super) fn new(conn: &'a Connection, now: Option<Time>, cache: &CatalogCache) -> Result<Session<'a>> {
        let now = match now {
            Some(now) => now,
            None => store_time(conn)?,
        };
        Ok(Session {
            conn,
            now,
            catalog: cache.get(conn)?,
            ended: RefCell::default(),
            drops: RefCell::default(),
        })
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

impl CatalogCache {
    fn get(&self, conn: &Connection) -> Result<Arc<Catalog>> {
        let version = catalog::version(conn)?;
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if cached.version == version {
            return Ok(cached);
        }
        let fresh = Arc::new(catalog::load(conn)?);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = fresh.clone();
        Ok(fresh)
    }

    /// True unless the subscription is known to be at-least-once: an unknown one is treated with care.
    pub(super) fn is_at_most_once(&self, id: SubscriptionId) -> bool {
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        cached.require_subscription(id).map_or(true, |subscription| subscription.policy.is_at_most_once())
    }

    /// Forgets what was read inside a transaction that may be undone: a later one could reuse its version number.
    pub(super) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::default();
    }
}

/// The time by SQLite's clock, in milliseconds.
pub(super) fn store_time(conn: &Connection) -> Result<Time> {
    let sql = "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)";
    Ok(conn.prepare_cached(sql)?.query_row([], |row| row.get(0).map(Time))?)
}
