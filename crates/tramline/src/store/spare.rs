//! Connections that are kept at hand. The pool hands one over by two tasks and their queues, which takes as long as a short
//! statement does; a lone emit or claim would wait for that twice.

use crate::error::Result;
use crate::store::driver::SIGN_OF_LIFE;
use sqlx::Database;
use sqlx::pool::{Pool, PoolConnection};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};

/// A few connections that were used a moment ago.
#[derive(Debug)]
pub(crate) struct Spares<DB: Database> {
    idle: Mutex<Vec<(PoolConnection<DB>, Instant)>>,
    /// As many as the pool has connections, given in turn: those who wait in the pool would not see what is kept at hand, and whoever comes
    /// later would take it.
    places: Semaphore,
    most: usize,
    stale: Duration,
    is_closed: AtomicBool,
}

impl<DB: Database> Spares<DB> {
    /// At most `most` of the connections of a pool of `all`; those that nobody used for as long as `stale` go back to the pool, which looks
    /// after them.
    pub(crate) fn new(most: usize, all: usize, stale: Duration) -> Spares<DB> {
        let (idle, places) = (Mutex::default(), Semaphore::new(all));
        Spares { idle, places, most, stale, is_closed: AtomicBool::new(false) }
    }

    /// A connection: the one that was used last, or one of the pool.
    pub(crate) async fn take(&self, pool: &Pool<DB>) -> Result<Hot<'_, DB>> {
        let place = tokio::time::timeout(pool.options().get_acquire_timeout(), self.places.acquire()).await;
        let place = place.map_err(|_| sqlx::Error::PoolTimedOut)?.map_err(|_| sqlx::Error::PoolClosed)?;
        self.shed();
        let last = self.idle().pop();
        let conn = match last {
            Some((conn, _)) => conn,
            None => pool.acquire().await?,
        };
        Ok(Hot { conn: Some(conn), spares: self, _place: place })
    }

    /// Gives those back to the pool that nobody used for long. The first ones are the oldest, as the last one is taken first.
    pub(crate) fn shed(&self) {
        let mut idle = self.idle();
        while idle.first().is_some_and(|(_, since)| since.elapsed() >= self.stale) {
            give_back(idle.remove(0).0);
        }
    }

    /// Gives all of them back to the pool, and keeps no more: a pool that closes waits for the last one.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.idle().drain(..).for_each(|(conn, _)| give_back(conn));
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(PoolConnection<DB>, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection in use. It goes back to the pool unless it is kept or abandoned.
pub(crate) struct Hot<'s, DB: Database> {
    conn: Option<PoolConnection<DB>>,
    spares: &'s Spares<DB>,
    /// Given to the next one after the connection: fields are dropped after `drop`.
    _place: SemaphorePermit<'s>,
}

impl<DB: Database> Hot<'_, DB> {
    /// It cannot be used any more: it is closed, and the server undoes what was left open. Without a word to the server, which may not
    /// listen any more; so the pool can make another one at once.
    pub(crate) fn abandon(mut self) {
        drop(self.conn.take().map(PoolConnection::detach));
    }

    /// All went well: it stays at hand.
    pub(crate) fn keep(mut self) {
        let Some(conn) = self.conn.take() else { return };
        let mut idle = self.spares.idle();
        // Looked at under the lock: whoever closes has not emptied the list yet, or has said so before.
        if idle.len() < self.spares.most && !self.spares.is_closed.load(Ordering::SeqCst) {
            idle.push((conn, Instant::now()));
        } else {
            give_back(conn);
        }
    }
}

impl<DB: Database> Deref for Hot<'_, DB> {
    type Target = DB::Connection;

    #[expect(clippy::expect_used, reason = "only those take the connection who end this")]
    fn deref(&self) -> &DB::Connection {
        self.conn.as_ref().expect("a connection in use")
    }
}

impl<DB: Database> DerefMut for Hot<'_, DB> {
    #[expect(clippy::expect_used, reason = "only those take the connection who end this")]
    fn deref_mut(&mut self) -> &mut DB::Connection {
        self.conn.as_mut().expect("a connection in use")
    }
}

impl<DB: Database> Drop for Hot<'_, DB> {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            give_back(conn);
        }
    }
}

/// Gives a connection back to its pool. The pool tries it out before it counts as free, and would wait without end for a server that has
/// vanished: its place would be lost. What does not answer in time is closed, and its place is free.
pub(crate) fn give_back<DB: Database>(mut conn: PoolConnection<DB>) {
    tokio::spawn(tokio::time::timeout(SIGN_OF_LIFE, conn.return_to_pool()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use sqlx::postgres::PgPoolOptions;

    /// Below the one that is used again and again, a connection would be kept from the pool for ever.
    #[tokio::test]
    async fn connections_that_nobody_used_for_long_go_back_to_the_pool() {
        let url = std::env::var("TRAMLINE_TEST_POSTGRES").expect("run ./test");
        let pool = PgPoolOptions::new().max_connections(2).connect(&url).await.unwrap();
        let spares = Spares::new(2, 2, Duration::ZERO);
        let (one, two) = (spares.take(&pool).await.unwrap(), spares.take(&pool).await.unwrap());
        one.keep();
        two.keep();
        let used = spares.take(&pool).await.unwrap();
        let other = tokio::time::timeout(Duration::from_secs(5), pool.acquire()).await;
        assert!(other.is_ok(), "it is still kept at hand");
        drop(used);
    }

    /// The story: 200 lines of push wanted ten connections. Those who waited in the pool got one when five were kept at hand and a sixth came
    /// back, or after a second; whoever came later took what was at hand.
    #[tokio::test]
    async fn whoever_waits_gets_the_next_connection_that_is_kept() {
        let url = std::env::var("TRAMLINE_TEST_POSTGRES").expect("run ./test");
        let pool = PgPoolOptions::new().max_connections(1).connect(&url).await.unwrap();
        let spares = Spares::new(1, 1, Duration::from_secs(60));
        let used = spares.take(&pool).await.unwrap();
        let waits = spares.take(&pool);
        tokio::pin!(waits);
        assert!(tokio::time::timeout(Duration::ZERO, &mut waits).await.is_err());
        used.keep();
        let late = spares.take(&pool);
        tokio::pin!(late);
        assert!(tokio::time::timeout(Duration::ZERO, &mut late).await.is_err(), "somebody was there before");
        tokio::time::timeout(Duration::from_secs(5), waits).await.expect("its turn").unwrap().keep();
        tokio::time::timeout(Duration::from_secs(5), late).await.expect("its turn").unwrap().keep();
    }

    /// The story: a store was closed while a step was ending, which kept its connection at hand, and the pool waited for it for ever.
    #[tokio::test]
    async fn a_connection_that_comes_back_after_the_end_is_not_kept() {
        let url = std::env::var("TRAMLINE_TEST_POSTGRES").expect("run ./test");
        let pool = PgPoolOptions::new().max_connections(1).connect(&url).await.unwrap();
        let spares = Spares::new(1, 1, Duration::from_secs(60));
        let used = spares.take(&pool).await.unwrap();
        spares.close();
        used.keep();
        tokio::time::timeout(Duration::from_secs(5), pool.close())
            .await
            .expect("the pool has all connections");
    }
}
