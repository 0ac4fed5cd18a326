//! Reading logs: up to the last chunk below which nothing is still being written. Nothing here writes events.
//!
//! Whoever reads holds one connection at a time, and none while he waits: all readers of a topic wake up at once, and would otherwise
//! wait for each other's second connection.

use super::MysqlStore;
use super::rows::{CHUNK, chunk};
use super::session::{Begin, Rows, Session, exchange};
use super::sql::Columns;
use super::step::{Tries, step, waited_too_long};
use crate::error::{Error, Result};
use crate::model::id::{ChunkId, EventId, TopicId};
use crate::model::mask::Mask;
use crate::store::driver::answered;
use crate::store::verbs::{LogPage, ReadLog};
use sqlx::MySqlConnection;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How many chunks are read at once.
const LOG_STEP: i64 = 64;
/// How often the end of a log is looked for: for about a second.
const ENDS: u32 = 64;
const BETWEEN_ENDS: Duration = Duration::from_millis(15);

/// The last chunk of a topic that can be seen. Something before it may still be written.
#[derive(Clone, Copy)]
struct Seen {
    topic: TopicId,
    last: ChunkId,
}

impl MysqlStore {
    /// Reads what is proved to be complete, and if that is not enough, proves more and reads that.
    pub(super) async fn read_page(&self, read: &ReadLog) -> Result<LogPage> {
        let mut page = LogPage { events: Vec::new(), next: read.after };
        let wanted = read.limit as usize;
        let beyond = self.read_on(read, &mut page).await?.filter(|_| page.events.len() < wanted);
        if let Some(seen) = beyond
            && self.prove(seen).await?
        {
            self.read_on(read, &mut page).await?;
        }
        if page.events.len() >= wanted {
            page.events.truncate(wanted);
            page.next = page.events.last().map_or(read.after, |event| event.id);
        }
        Ok(page)
    }

    async fn read_on(&self, read: &ReadLog, page: &mut LogPage) -> Result<Option<Seen>> {
        let begin = Begin::reading(None);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| read_proven(
            self, session, read, page
        ))
    }

    /// Reads nothing, so that a reader who begins at the end gets all that is still being written.
    pub(super) async fn find_log_end(&self, topic: &str) -> Result<EventId> {
        for _ in 0..ENDS {
            let begin = Begin::reading(None);
            let seen = step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| {
                last_seen(session, topic)
            })?;
            if self.prove(seen).await? {
                return Ok(EventId::at(self.proven.get(seen.topic), Mask::CAPACITY - 1));
            }
            tokio::time::sleep(BETWEEN_ENDS).await;
        }
        Err(Error::unavailable(
            "somebody has been writing to the topic for long, so where its log ends is not known",
            "try again when that transaction has ended",
        ))
    }

    /// True if every chunk of a topic up to one that was seen is committed or will never be.
    ///
    /// Whoever draws numbers for a topic shares a side of its gate before that, and until the transaction has ended. The last chunk that
    /// can be seen was numbered after all before it. So once everybody has gone who held a side of the gate when it was seen, nothing
    /// before it can still appear.
    async fn prove(&self, seen: Seen) -> Result<bool> {
        let is_proven = || seen.last <= self.proven.get(seen.topic);
        if is_proven() {
            return Ok(true);
        }
        let turn = self.turns.of(seen.topic);
        let failed = turn.failed.load(Ordering::SeqCst);
        let _mine = turn.lock.lock().await;
        if is_proven() {
            return Ok(true);
        }
        // Who had the turn before has just waited in vain for the same transactions.
        if turn.failed.load(Ordering::SeqCst) != failed {
            return Ok(false);
        }
        let gone = self.all_have_gone(seen.topic).await?;
        if gone {
            self.proven.raise(seen.topic, seen.last);
        } else {
            turn.failed.fetch_add(1, Ordering::SeqCst);
        }
        Ok(gone)
    }

    /// True when everybody has gone who held a side of the gate of a topic when this began. On a quiet topic one look is enough. On a
    /// busy one somebody always holds the open side: then emits are sent to the other side, and the last ones on this side are waited
    /// for. Nobody sends them back before that, because it takes that side to be empty; and only one process decides at a time.
    async fn all_have_gone(&self, TopicId(topic): TopicId) -> Result<bool> {
        let gate = format!("SELECT `open` FROM tramline_gate WHERE kind = 0 AND id = {topic} AND side IN");
        let mut tx = self.begin().await?;
        let look = format!("START TRANSACTION; {gate} (0, 1) FOR UPDATE NOWAIT; COMMIT");
        if self.is_given(tx.conn(), look).await?.is_some() {
            tx.keep();
            return Ok(true);
        }
        // Waiting takes a connection for up to a second. When too many do so, others look again later.
        let waits = self.turning.try_acquire();
        let decide = format!("START TRANSACTION; {gate} (3) FOR UPDATE NOWAIT; {gate} (2)");
        let open = if waits.is_ok() { self.is_given(tx.conn(), decide).await? } else { None };
        let gone = match open {
            None => false,
            Some(open) => {
                let shut = 1 - open;
                let sql = format!(
                    "{gate} ({shut}) FOR UPDATE NOWAIT; \
                     UPDATE tramline_gate SET `open` = {shut} WHERE kind = 0 AND id = {topic} AND side = 2; COMMIT; \
                     START TRANSACTION; {gate} ({open}) FOR UPDATE; COMMIT"
                );
                self.is_given(tx.conn(), sql).await?.is_some()
            }
        };
        tx.rollback().await;
        Ok(gone)
    }

    /// The last number that statements give, or `None` if a lock was not given.
    async fn is_given(&self, conn: &mut MySqlConnection, sql: String) -> Result<Option<i64>> {
        let mut sets: Vec<Rows> = Vec::new();
        match answered(self.common.answer, exchange(conn, sql, &mut sets)).await {
            Ok(()) => Ok(Some(sets.iter().flatten().last().map_or(Ok(0), |row| row.int(0))?)),
            Err(error) if waited_too_long(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whose turn it is to prove something about a topic: in one process one reader does so, and the others have what it found.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<TopicId, Arc<Turn>>>);

#[derive(Debug, Default)]
struct Turn {
    lock: tokio::sync::Mutex<()>,
    /// How often somebody waited in vain.
    failed: AtomicU64,
}

impl Turns {
    fn of(&self, topic: TopicId) -> Arc<Turn> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(topic).or_default().clone()
    }
}

/// Reads on from where a page ends, up to the last chunk that is proved. Gives what can be seen beyond that, if there is something.
async fn read_proven(
    store: &MysqlStore,
    session: &mut Session<'_>,
    read: &ReadLog,
    page: &mut LogPage,
) -> Result<Option<Seen>> {
    let topic = session.catalog.require_topic(&read.topic)?.clone();
    let proven = store.proven.get(topic.id);
    while page.events.len() < read.limit as usize {
        let from = EventId(page.next.0 + 1).chunk().0;
        let some = format!(
            "SELECT {CHUNK} FROM tramline_chunk FORCE INDEX (tramline_chunk_topic) \
             WHERE topic = {} AND chunk >= {from} AND chunk <= {} ORDER BY topic, chunk LIMIT {LOG_STEP}",
            topic.id.0, proven.0
        );
        let sets = session.sets(vec![some, last_sql(topic.id)]).await?;
        for row in &sets[0] {
            let events = chunk(row)?.decode(&topic.name)?;
            let after = page.next;
            page.events.extend(events.into_iter().filter(|event| event.id > after));
            page.next = page.next.max(EventId::at(ChunkId(row.int(0)?), Mask::CAPACITY - 1));
        }
        if (sets[0].len() as i64) < LOG_STEP {
            page.next = page.next.max(EventId::at(proven, Mask::CAPACITY - 1));
            let last = last(&sets[1])?;
            return Ok((last > proven).then_some(Seen { topic: topic.id, last }));
        }
    }
    Ok(None)
}

async fn last_seen(session: &mut Session<'_>, topic: &str) -> Result<Seen> {
    let topic = session.catalog.require_topic(topic)?.id;
    Ok(Seen { topic, last: last(&session.rows(last_sql(topic)).await?)? })
}

/// The end of `tramline_chunk_topic`.
fn last_sql(topic: TopicId) -> String {
    format!("SELECT COALESCE(MAX(chunk), 0) FROM tramline_chunk WHERE topic = {}", topic.0)
}

fn last(rows: &Rows) -> Result<ChunkId> {
    Ok(ChunkId(rows.first().map_or(Ok(0), |row| row.int(0))?))
}
