//! What every step inside a transaction needs: the connection, the time and the catalogue.

use super::catalog;
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::model::time::Time;
use crate::store::catalog::Catalog;
use rusqlite::Connection;
use std::sync::{Arc, Mutex, PoisonError};

/// One step inside a transaction.
pub(super) struct Session<'a> {
    pub(super) conn: &'a Connection,
    pub(super) now: Time,
    pub(super) catalog: Arc<Catalog>,
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
        Ok(Session { conn, now, catalog: cache.get(conn)? })
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
