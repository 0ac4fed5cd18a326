//! What every step inside a transaction needs: the connection, the time, the catalogue, and few round trips.

use super::sql::{Columns, NOW};
use super::tally::ack::events_ended;
use super::{catalog, drops};
use crate::error::{Error, Result};
use crate::model::dropped::DropReason;
use crate::model::id::{ChunkId, SliceId, SubscriptionId, TallyId};
use crate::model::mask::Mask;
use crate::model::time::Time;
use crate::store::catalog::{Catalog, CatalogCache};
use crate::store::driver::answered;
use crate::store::drops::Drops;
pub(super) use crate::store::tally::Ended;
use futures_util::TryStreamExt;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Either, MySqlConnection};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many of its own chunks a process remembers: about as many as it stores between two looks.
const OWN_CHUNKS: usize = 256;

/// For how long it is believed which priorities a subscription has: no longer than anybody waits who has not heard of something.
const LATELY: Duration = Duration::from_secs(1);

/// What is the same for all steps of a store.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) cache: CatalogCache,
    /// How long one packet of statements may be.
    pub(super) packet: usize,
    /// How long the server may take to answer one.
    pub(super) answer: Duration,
    /// Whether subscriptions have slices of other priorities than the usual one, and when that was seen.
    priorities: Mutex<HashMap<SubscriptionId, (bool, Instant)>>,
    /// The chunks that this process stored last.
    own: Mutex<VecDeque<ChunkId>>,
    /// The number of the next slice. It begins anywhere, so that no two processes meet, and ascends.
    slice: AtomicI64,
}

impl Common {
    pub(super) fn new(packet: usize, answer: Duration) -> Common {
        let anywhere = getrandom::u64().unwrap_or_default() >> 2;
        Common {
            cache: CatalogCache::default(),
            packet,
            answer,
            priorities: Mutex::default(),
            own: Mutex::default(),
            slice: AtomicI64::new(anywhere.cast_signed()),
        }
    }

    /// Whether a subscription has slices of other priorities than the usual one; `None` if nobody has looked lately.
    pub(super) fn has_priorities(&self, id: SubscriptionId) -> Option<bool> {
        let priorities = self.priorities.lock().unwrap_or_else(PoisonError::into_inner);
        priorities.get(&id).filter(|(_, seen)| seen.elapsed() < LATELY).map(|(has, _)| *has)
    }

    pub(super) fn learn_priorities(&self, id: SubscriptionId, has: bool) {
        let mut priorities = self.priorities.lock().unwrap_or_else(PoisonError::into_inner);
        priorities.insert(id, (has, Instant::now()));
    }

    /// This process has stored chunks, and tells so by itself.
    pub(super) fn remember_own(&self, chunks: impl Iterator<Item = ChunkId>) {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.extend(chunks);
        let old = own.len().saturating_sub(OWN_CHUNKS);
        own.drain(..old);
    }

    /// True if this process has stored the chunk, lately.
    pub(super) fn is_own(&self, chunk: ChunkId) -> bool {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().any(|own| *own == chunk)
    }

    /// A number for a new slice.
    pub(super) fn slice_id(&self) -> SliceId {
        SliceId(self.slice.fetch_add(1, Ordering::Relaxed))
    }
}

/// How a step begins.
#[derive(Clone, Debug, Default)]
pub(super) struct Begin {
    /// Test time.
    pub(super) now: Option<Time>,
    /// What the step locks before it looks at the time and the catalogue.
    pub(super) locks: Vec<String>,
    /// True where no transaction is to be begun and ended: it is somebody else's, or there is none.
    pub(super) bare: bool,
}

impl Begin {
    /// A step that writes no slices, or of all subscriptions.
    pub(super) fn reading(now: Option<Time>) -> Begin {
        Begin { now, ..Begin::default() }
    }

    /// A step that only reads, and every statement for itself, as what is committed by then: there is no transaction to end, which
    /// would be another round trip.
    pub(super) fn looking(now: Option<Time>) -> Begin {
        Begin { now, bare: true, ..Begin::default() }
    }

    /// A step that writes slices of a subscription: its deletion waits for the step.
    pub(super) fn writing(now: Option<Time>, SubscriptionId(id): SubscriptionId) -> Begin {
        let share = format!(
            "SELECT id FROM tramline_gate WHERE kind = 1 AND id = {id} AND side = 0 LOCK IN SHARE MODE"
        );
        Begin { now, locks: vec![share], ..Begin::default() }
    }

    /// A claim: who sets a rule on the subscription waits for its end, too.
    pub(super) fn claiming(now: Option<Time>, subscription: SubscriptionId) -> Begin {
        let share = format!(
            "SELECT id FROM tramline_gate FORCE INDEX (PRIMARY) WHERE kind = 1 AND id = {} AND side IN (0, 1) LOCK IN SHARE MODE",
            subscription.0
        );
        Begin { now, locks: vec![share], ..Begin::default() }
    }

    /// The statements with which the step begins. Later ones of the same packet may name the time as `@tramline_now`.
    fn statements(&self) -> Vec<String> {
        let mut statements = Vec::with_capacity(self.locks.len() + 3);
        if !self.bare {
            statements.push("START TRANSACTION".to_owned());
        }
        statements.extend(self.locks.iter().cloned());
        statements.push(match self.now {
            Some(Time(now)) => format!("SET @tramline_now = {now}"),
            None => format!("SET @tramline_now = {NOW}"),
        });
        statements.push(format!("SELECT @tramline_now, ({VERSION})"));
        statements
    }
}

/// The version of the catalogue.
pub(super) const VERSION: &str = "SELECT value FROM tramline_meta WHERE name = 'catalog'";

/// The rows of one statement.
pub(super) type Rows = Vec<MySqlRow>;

/// One step inside a transaction. What it writes waits for what it reads next, or for the end, so that both are one round trip.
pub(super) struct Session<'c> {
    pub(super) conn: &'c mut MySqlConnection,
    pub(super) common: &'c Common,
    pub(super) now: Time,
    pub(super) catalog: Arc<Catalog>,
    /// Statements that are still to be sent.
    queue: Vec<String>,
    /// What was read with the beginning, for the step to take.
    pub(super) found: Option<Vec<Rows>>,
    /// What ended in this step and may be items of tallies.
    ended: Vec<Ended>,
    /// What subscriptions will never see because of this step.
    drops: Drops,
    is_own: bool,
}

impl<'c> Session<'c> {
    /// Begins a step in a transaction.
    pub(super) async fn new(
        conn: &'c mut MySqlConnection,
        common: &'c Common,
        begin: &Begin,
    ) -> Result<Session<'c>> {
        Ok(Session::reading(conn, common, begin, Vec::new()).await?.0)
    }

    /// The same, with statements in the same round trip. What they gave is void if the catalogue was not the known one: then all
    /// that they were made from may be, and there are no rows.
    pub(super) async fn reading(
        conn: &'c mut MySqlConnection,
        common: &'c Common,
        begin: &Begin,
        reads: Vec<String>,
    ) -> Result<(Session<'c>, Option<Vec<Rows>>)> {
        let catalog = common.cache.get();
        let (queue, ended, is_own) = (begin.statements(), Vec::new(), !begin.bare);
        let first = queue.len() - 1;
        let mut session = Session {
            conn,
            common,
            now: Time(0),
            catalog,
            queue: Vec::new(),
            found: None,
            ended,
            drops: Drops::default(),
            is_own,
        };
        let mut sets = session.send(queue.into_iter().chain(reads).collect()).await?;
        let mut rest = sets.split_off(first);
        let found = rest.split_off(1);
        let header = rest.pop().unwrap_or_default();
        let header =
            header.first().ok_or_else(|| Error::unavailable("the server gave no time", "try again"))?;
        session.now = header.time(0)?;
        if session.catalog.version == header.int(1)? {
            return Ok((session, Some(found)));
        }
        session.catalog = Arc::new(catalog::load(&mut session).await?);
        common.cache.set(session.catalog.clone());
        Ok((session, None))
    }

    /// Remembers that events have ended which may be items of tallies.
    pub(super) fn end(&mut self, ended: impl Iterator<Item = Ended>) {
        self.ended.extend(ended);
    }

    /// True if events have ended in this step: which items they are is asked of their chunks at its end.
    pub(super) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Remembers that a subscription will never see events.
    pub(super) fn drop(&mut self, by: SubscriptionId, dropped: &[(ChunkId, Mask, DropReason)]) {
        dropped.iter().for_each(|&(chunk, mask, reason)| self.drops.add(by, reason, chunk, mask));
    }

    /// Writes down what was dropped, and ends the items of tallies whose events have ended, all at once and after everything
    /// else: parts of tallies are locked after lanes and slices. Gives the tallies that have news. Every step ends with this.
    pub(super) async fn finish(&mut self) -> Result<Vec<TallyId>> {
        let drops = std::mem::take(&mut self.drops);
        drops::record(self, drops).await?;
        let ended = std::mem::take(&mut self.ended);
        if ended.is_empty() { Ok(Vec::new()) } else { events_ended(self, &ended).await }
    }

    /// Writes, with whatever is sent next.
    pub(super) fn write(&mut self, sql: impl Into<String>) {
        self.queue.push(sql.into());
    }

    /// Writes several.
    pub(super) fn write_all(&mut self, statements: impl IntoIterator<Item = String>) {
        self.queue.extend(statements);
    }

    /// The rows of one statement.
    pub(super) async fn rows(&mut self, sql: impl Into<String>) -> Result<Rows> {
        Ok(self.sets(vec![sql.into()]).await?.pop().unwrap_or_default())
    }

    /// The rows of each of some statements, in one round trip.
    pub(super) async fn sets(&mut self, reads: Vec<String>) -> Result<Vec<Rows>> {
        let mut queue = std::mem::take(&mut self.queue);
        let written = queue.len();
        queue.extend(reads);
        let mut sets = self.send(queue).await?;
        Ok(sets.split_off(written))
    }

    /// How many rows a statement wrote.
    pub(super) async fn count(&mut self, sql: impl Into<String>) -> Result<u64> {
        let rows = self.sets(vec![sql.into(), "SELECT ROW_COUNT()".to_owned()]).await?;
        Ok(rows[1].first().map_or(Ok(0), |row| row.int(0))?.max(0).cast_unsigned())
    }

    /// Sends what is still to be written, with the end of the transaction if it is ours, and gives what some last statements read.
    pub(super) async fn commit(&mut self, mut reads: Vec<String>) -> Result<Vec<Rows>> {
        let count = reads.len();
        if self.is_own {
            reads.push("COMMIT".to_owned());
        }
        if reads.is_empty() && self.queue.is_empty() {
            return Ok(Vec::new());
        }
        let mut sets = self.sets(reads).await?;
        sets.truncate(count);
        Ok(sets)
    }

    /// Sends statements in as few packets as they fit into, and gives the rows of each.
    async fn send(&mut self, statements: Vec<String>) -> Result<Vec<Rows>> {
        let mut sets = Vec::with_capacity(statements.len());
        let mut packet = String::new();
        for statement in statements {
            if !packet.is_empty() && packet.len() + statement.len() >= self.common.packet {
                self.exchange(std::mem::take(&mut packet), &mut sets).await?;
            }
            if !packet.is_empty() {
                packet.push(';');
            }
            packet.push_str(&statement);
        }
        if !packet.is_empty() {
            self.exchange(packet, &mut sets).await?;
        }
        Ok(sets)
    }

    async fn exchange(&mut self, packet: String, sets: &mut Vec<Rows>) -> Result<()> {
        answered(self.common.answer, exchange(self.conn, packet, sets)).await
    }
}

/// One round trip, however long it takes. The server stops at the first statement that fails.
pub(super) async fn exchange(conn: &mut MySqlConnection, sql: String, sets: &mut Vec<Rows>) -> Result<()> {
    tracing::trace!(target: "tramline::query", "round trip");
    let mut answers = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_many(conn);
    let mut rows = Vec::new();
    while let Some(answer) = answers.try_next().await? {
        match answer {
            Either::Left(_) => sets.push(std::mem::take(&mut rows)),
            Either::Right(row) => rows.push(row),
        }
    }
    Ok(())
}
