//! How a step ends: committed, given up, or tried again; and what the server's errors mean.

use crate::error::{Error, Result};
use crate::store::driver::{SIGN_OF_LIFE, is_silence, mysql_number};
use crate::store::spare::Hot;
use sqlx::{MySql, MySqlConnection};
use std::time::Duration;

/// Runs one step in a transaction of its own: `|conn|` opens the session, `|session|` does the work. A macro, because the
/// compiler cannot see yet that the future of an async closure may move between threads, whatever it borrows.
macro_rules! step {
    ($store:expr, $tries:expr, |$conn:ident| $open:expr, |$session:ident| $work:expr) => {{
        let mut tries = $tries;
        loop {
            let mut transaction = $store.begin().await?;
            let opened = {
                let $conn = transaction.conn();
                $open.await
            };
            let result = match opened {
                Ok(mut session) => {
                    let worked = {
                        let $session = &mut session;
                        $work.await
                    };
                    match worked {
                        Ok(value) => match session.finish().await {
                            Ok(_) => session.commit(Vec::new()).await.map(|_| value),
                            Err(error) => Err(error),
                        },
                        Err(error) => Err(error),
                    }
                }
                Err(error) => Err(error),
            };
            if let Some(result) = tries.end(transaction, result).await {
                break result;
            }
        }
    }};
}
pub(super) use step;

/// A connection in a transaction. If it is dropped before its end, it is closed, and the server undoes what was done.
pub(super) struct Transaction<'s>(Option<Hot<'s, MySql>>);

impl<'s> Transaction<'s> {
    pub(super) fn new(conn: Hot<'s, MySql>) -> Transaction<'s> {
        Transaction(Some(conn))
    }

    #[expect(clippy::expect_used, reason = "only `end` takes the connection, and with it the transaction")]
    pub(super) fn conn(&mut self) -> &mut MySqlConnection {
        self.0.as_mut().expect("a transaction that has not ended")
    }

    /// It was committed.
    pub(super) fn keep(mut self) {
        if let Some(conn) = self.0.take() {
            conn.keep();
        }
    }

    /// It was committed, and then something went wrong: what was done stays, and the connection is closed.
    pub(super) fn lose(&mut self) {
        if let Some(conn) = self.0.take() {
            conn.abandon();
        }
    }

    /// Undoes it because of an error. A server that only reads may have been the primary a moment ago: a new connection may find the
    /// one that is now. One that does not answer would not answer this either.
    pub(super) async fn fail(self, error: &Error) {
        match only_reads(error) || is_silence(error) {
            true => drop(self),
            false => self.rollback().await,
        }
    }

    /// Undoes it.
    pub(super) async fn rollback(mut self) {
        let undone = tokio::time::timeout(SIGN_OF_LIFE, sqlx::raw_sql("ROLLBACK").execute(self.conn())).await;
        if let Some(conn) = self.0.take_if(|_| matches!(undone, Ok(Ok(_)))) {
            conn.keep();
        }
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        self.lose();
    }
}

/// Ends steps, and counts those that another one was in the way of.
pub(super) struct Tries {
    left: u32,
    patient: bool,
}

impl Tries {
    /// For steps that the server may undo in favour of another one.
    pub(super) fn few() -> Tries {
        Tries { left: 10, patient: false }
    }

    /// For changes of topics and subscriptions, which also have to wait for open transactions.
    pub(super) fn patient() -> Tries {
        Tries { left: 10, patient: true }
    }

    /// Keeps what was committed. `None`: another step was in the way, and this one is to be tried again from the start.
    pub(super) async fn end<T>(&mut self, tx: Transaction<'_>, result: Result<T>) -> Option<Result<T>> {
        let error = match result {
            Ok(value) => {
                tx.keep();
                return Some(Ok(value));
            }
            Err(error) => error,
        };
        tx.fail(&error).await;
        if self.left > 0 && self.is_worth_another(&error) {
            self.left -= 1;
            pause(10 - self.left.min(9), &error).await;
            return None;
        }
        if self.patient && waited_too_long(&error) {
            let what = "a transaction that emitted or settled is still open";
            return Some(Err(Error::unavailable(what, "end it, and try again").because(error)));
        }
        Some(Err(error))
    }

    fn is_worth_another(&self, error: &Error) -> bool {
        // A name that another process took at the same moment is found at the next try.
        let taken = number(error) == Some(1062);
        lost_against_another(error) || waited_too_long(error) || (self.patient && taken)
    }
}

/// Two that met once must not meet again at once: each waits for some time that the other does not know.
pub(super) async fn pause(tried: u32, error: &Error) {
    let number = number(error);
    tracing::trace!(target: "tramline::retry", tried, number, "another step was in the way; it is tried again");
    let random = u64::from(getrandom::u32().unwrap_or_default()) % 8;
    tokio::time::sleep(Duration::from_millis(u64::from(tried.min(8)) + random)).await;
}

pub(super) fn number(error: &Error) -> Option<u16> {
    mysql_number(std::error::Error::source(error)?.downcast_ref::<sqlx::Error>()?)
}

/// Deadlock, or a row that changed under a statement: the server undid it, and the step can be repeated as it is.
pub(super) fn lost_against_another(error: &Error) -> bool {
    matches!(number(error), Some(1213 | 1020))
}

/// A lock was not given in time.
pub(super) fn waited_too_long(error: &Error) -> bool {
    matches!(number(error), Some(1205 | 3572))
}

/// The server takes no writes.
fn only_reads(error: &Error) -> bool {
    matches!(number(error), Some(1290 | 1836))
}
