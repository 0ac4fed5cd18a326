//! Connections that are kept at hand. The pool hands one over by two tasks and their queues, which takes as long as a short
//! statement does; a lone emit or claim would wait for that twice.

use crate::error::Result;
use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A few connections that were used a moment ago.
#[derive(Debug)]
pub(super) struct Spares {
    idle: Mutex<Vec<(PoolConnection<Postgres>, Instant)>>,
    most: usize,
    stale: Duration,
}

impl Spares {
    /// At most `most` of them; the pool looks after those that nobody used for as long as `stale`.
    pub(super) fn new(most: usize, stale: Duration) -> Spares {
        Spares { idle: Mutex::default(), most, stale }
    }

    /// A connection: the one that was used last, or one of the pool.
    pub(super) async fn take(&self, pool: &PgPool) -> Result<Hot<'_>> {
        let last = self.idle().pop().filter(|(_, since)| since.elapsed() < self.stale);
        let conn = match last {
            Some((conn, _)) => conn,
            None => pool.acquire().await?,
        };
        Ok(Hot { conn, spares: self })
    }

    /// Gives all of them back to the pool.
    pub(super) fn clear(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(PoolConnection<Postgres>, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection in use. It goes back to the pool unless it is kept.
pub(super) struct Hot<'s> {
    conn: PoolConnection<Postgres>,
    spares: &'s Spares,
}

impl Hot<'_> {
    /// All went well: it stays at hand.
    pub(super) fn keep(self) {
        let mut idle = self.spares.idle();
        if idle.len() < self.spares.most {
            idle.push((self.conn, Instant::now()));
        }
    }
}

impl Deref for Hot<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.conn
    }
}

impl DerefMut for Hot<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.conn
    }
}
