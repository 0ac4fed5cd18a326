//! How a step ends: committed, given up, or tried again; and what the server's errors mean.

use crate::error::{Error, Result};
use crate::store::driver::{SIGN_OF_LIFE, asked, is_silence};
use crate::store::spare::give_back;
use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// Runs one step in a transaction of its own: `|tx|` opens the session, `|session|` does the work. A macro, because the
/// compiler cannot see yet that the future of an async closure may move between threads, whatever it borrows. Both may take as long as an
/// answer may.
macro_rules! step {
    ($store:expr, $tries:expr, |$tx:ident| $open:expr, |$session:ident| $work:expr) => {{
        let mut tries = $tries;
        loop {
            let mut transaction = $store.begin().await?;
            let limit = transaction.answer();
            let opened = {
                let $tx = &mut *transaction;
                $crate::store::driver::answered(limit, $open).await
            };
            let result = match opened {
                Ok(mut session) => {
                    let worked = {
                        let $session = &mut session;
                        $crate::store::driver::answered(limit, $work).await
                    };
                    match worked {
                        Ok(value) => {
                            $crate::store::driver::answered(limit, session.finish()).await.map(|_| value)
                        }
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

/// A connection in a transaction. If it is dropped before its end, what was done is undone.
pub(super) struct Transaction {
    conn: Option<PoolConnection<Postgres>>,
    answer: Duration,
}

impl Transaction {
    /// `answer`: how long the server may take for each answer.
    pub(super) async fn begin(conn: PoolConnection<Postgres>, answer: Duration) -> Result<Transaction> {
        let mut transaction = Transaction { conn: Some(conn), answer };
        transaction.say("BEGIN").await?;
        Ok(transaction)
    }

    pub(super) async fn commit(mut self) -> Result<()> {
        self.say("COMMIT").await?;
        self.conn.take().into_iter().for_each(give_back);
        Ok(())
    }

    pub(super) async fn rollback(mut self) -> Result<()> {
        self.say("ROLLBACK").await?;
        self.conn.take().into_iter().for_each(give_back);
        Ok(())
    }

    pub(super) fn answer(&self) -> Duration {
        self.answer
    }

    /// Undoes it because of an error. A server that does not answer would not answer this either.
    async fn fail(mut self, error: &Error) {
        if is_silence(error) {
            return self.abandon();
        }
        // A connection that cannot roll back is closed; either way nothing of the step is left.
        let _ = self.rollback().await;
    }

    async fn say(&mut self, sql: &'static str) -> Result<()> {
        let said = asked(self.answer, sqlx::raw_sql(sql).execute(&mut **self)).await;
        if said.is_err() {
            self.abandon();
        }
        said.map(|_| ())
    }

    /// Closes it, without a word to a server that may not listen any more.
    fn abandon(&mut self) {
        drop(self.conn.take().map(PoolConnection::detach));
    }
}

impl Deref for Transaction {
    type Target = PgConnection;

    #[expect(clippy::expect_used, reason = "only those take the connection who end this")]
    fn deref(&self) -> &PgConnection {
        self.conn.as_ref().expect("a transaction that has not ended")
    }
}

impl DerefMut for Transaction {
    #[expect(clippy::expect_used, reason = "only those take the connection who end this")]
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.conn.as_mut().expect("a transaction that has not ended")
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let Some(mut conn) = self.conn.take() else { return };
        tokio::spawn(async move {
            let undo = sqlx::raw_sql("ROLLBACK").execute(&mut *conn);
            match tokio::time::timeout(SIGN_OF_LIFE, undo).await {
                Ok(Ok(_)) => give_back(conn),
                _ => drop(conn.detach()),
            }
        });
    }
}

/// Ends steps, and counts those that another one was in the way of.
pub(super) struct Tries {
    left: u32,
    pause: Duration,
    patient: bool,
}

impl Tries {
    /// For steps that the server may undo in favour of another one.
    pub(super) fn few() -> Tries {
        Tries { left: 5, pause: Duration::ZERO, patient: false }
    }

    /// For changes of topics and subscriptions, which also have to wait for open transactions.
    pub(super) fn patient() -> Tries {
        Tries { left: 10, pause: Duration::from_millis(50), patient: true }
    }

    /// Commits what went well. `None`: another step was in the way, and this one is to be tried again from the start.
    pub(super) async fn end<T>(&mut self, tx: Transaction, result: Result<T>) -> Option<Result<T>> {
        let result = match result {
            Ok(value) => tx.commit().await.map(|()| value),
            Err(error) => {
                tx.fail(&error).await;
                Err(error)
            }
        };
        match result {
            Err(error) if self.left > 0 && self.is_worth_another(&error) => {
                self.left -= 1;
                tokio::time::sleep(self.pause).await;
                None
            }
            Err(error) if self.patient && waited_too_long(&error) => {
                let what = "a transaction that emitted or settled is still open";
                Some(Err(Error::unavailable(what, "end it, and try again").because(error)))
            }
            result => Some(result),
        }
    }

    fn is_worth_another(&self, error: &Error) -> bool {
        // A name that another process took at the same moment is found at the next try.
        let taken = matches!(code(error).as_deref(), Some("23505"));
        lost_against_another(error) || (self.patient && (taken || waited_too_long(error)))
    }
}

/// The SQLSTATE behind an error, if the server gave one.
fn code(error: &Error) -> Option<String> {
    let source = std::error::Error::source(error)?.downcast_ref::<sqlx::Error>()?;
    source.as_database_error()?.code().map(|code| code.into_owned())
}

/// Deadlock or serialisation failure: the server undid the step, and it can be repeated as it is.
pub(super) fn lost_against_another(error: &Error) -> bool {
    matches!(code(error).as_deref(), Some("40P01" | "40001"))
}

/// A lock was not given in time.
pub(super) fn waited_too_long(error: &Error) -> bool {
    matches!(code(error).as_deref(), Some("55P03"))
}

/// Somebody, or a limit of the server, has ended the statement.
pub(super) fn was_cancelled(error: &Error) -> bool {
    matches!(code(error).as_deref(), Some("57014"))
}
