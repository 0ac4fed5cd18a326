//! What every step inside a transaction needs: the connection, the time, the catalogue, and SQL with the schema in it.

use super::low::{Look, Proofs};
use super::recent::Recent;
use super::taken::Starts;
use super::tally::ack::events_ended;
use super::{catalog, drops};
use crate::error::Result;
use crate::model::dropped::DropReason;
use crate::model::id::{ChunkId, SubscriptionId, TallyId};
use crate::model::mask::Mask;
use crate::model::time::Time;
use crate::store::catalog::Catalog;
pub(super) use crate::store::catalog::CatalogCache;
use crate::store::drops::Drops;
pub(super) use crate::store::tally::Ended;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// A statement to which values can be bound.
pub(super) type Query = sqlx::query::Query<'static, Postgres, PgArguments>;

/// SQL as it is sent: written for tables without a schema, and qualified once for each statement. A search path would be
/// session state, which a pooler does not keep.
#[derive(Debug)]
pub(super) struct Texts {
    pub(super) schema: String,
    pub(super) pooled: bool,
    qualified: RwLock<HashMap<&'static str, Arc<str>>>,
}

impl Texts {
    pub(super) fn new(schema: String, pooled: bool) -> Texts {
        Texts { schema, pooled, qualified: RwLock::default() }
    }

    pub(super) fn query(&self, sql: &'static str) -> Query {
        sqlx::query(AssertSqlSafe(self.text(sql))).persistent(!self.pooled)
    }

    pub(super) fn text(&self, sql: &'static str) -> Arc<str> {
        if let Some(text) = self.qualified.read().unwrap_or_else(PoisonError::into_inner).get(sql) {
            return text.clone();
        }
        let columns = sql.replace("{slice}", super::rows::SLICE).replace("{lane}", super::rows::LANE);
        let columns = columns.replace("{newest}", super::rows::NEWEST).replace("{lanes}", super::rows::LANES);
        let columns = columns.replace("{tally}", super::tally::rows::TALLY);
        let columns = columns.replace("{schedule}", super::schedule::SCHEDULE);
        let text: Arc<str> = qualify(&columns, &self.schema).into();
        self.qualified.write().unwrap_or_else(PoisonError::into_inner).insert(sql, text.clone());
        text
    }
}

/// Writes the schema before every name of ours. New indexes take the schema of their table and may not name one.
pub(super) fn qualify(sql: &str, schema: &str) -> String {
    let prefix = format!("{schema}.tramline_");
    sql.replace("tramline_", &prefix).replace(&format!("INDEX {prefix}"), "INDEX tramline_")
}

/// The planner's settings of a transaction that is not ours.
pub(super) struct Planner([String; 5]);

impl Planner {
    pub(super) async fn save(conn: &mut PgConnection, texts: &Texts) -> Result<Planner> {
        let sql = "SELECT current_setting('enable_seqscan'), current_setting('enable_hashjoin'), \
                   current_setting('enable_mergejoin'), current_setting('jit'), current_setting('plan_cache_mode')";
        let row = texts.query(sql).fetch_one(conn).await?;
        Ok(Planner([row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?, row.try_get(4)?]))
    }

    /// Gives them back, and passes the result of the step on. A step that failed may have left no transaction to restore.
    pub(super) async fn restore<T>(
        self,
        conn: &mut PgConnection,
        texts: &Texts,
        result: Result<T>,
    ) -> Result<T> {
        let sql = "SELECT set_config('enable_seqscan', $1, true), set_config('enable_hashjoin', $2, true), \
                   set_config('enable_mergejoin', $3, true), set_config('jit', $4, true), \
                   set_config('plan_cache_mode', $5, true)";
        let [seqscan, hashjoin, mergejoin, jit, cached] = self.0;
        let restored = texts
            .query(sql)
            .bind(seqscan)
            .bind(hashjoin)
            .bind(mergejoin)
            .bind(jit)
            .bind(cached)
            .execute(conn)
            .await;
        let value = result?;
        restored?;
        Ok(value)
    }
}

/// How a step begins.
#[derive(Clone, Copy, Default)]
pub(super) struct Begin {
    /// Test time.
    pub(super) now: Option<Time>,
    /// Whose slices the step may write: its deletion waits for the step.
    pub(super) subscription: Option<SubscriptionId>,
    /// True for a claim: who sets a rule on the subscription waits for its end.
    pub(super) claims: bool,
    /// True when a power cut may undo the step: its commit waits for no disk.
    pub(super) may_be_lost: bool,
    /// True for a connection that is not of the store's own pool.
    pub(super) foreign: bool,
}

impl Begin {
    /// A step that writes no slices, or of all subscriptions.
    pub(super) fn reading(now: Option<Time>) -> Begin {
        Begin { now, ..Begin::default() }
    }

    /// A step that writes slices of a subscription.
    pub(super) fn writing(now: Option<Time>, subscription: SubscriptionId) -> Begin {
        Begin { now, subscription: Some(subscription), ..Begin::default() }
    }
}

/// Every statement here finds its rows by an index, a few at a time. The server must not think otherwise: a queue's tables
/// grow from nothing to millions of rows between two looks of its statistics, and a plan that was made for nothing would
/// read all of them for each row. So all other ways are switched off; and compiling and planning again for every length of
/// an array, which take longer than any of them runs. Own connections are told once, others for each transaction.
macro_rules! by_index {
    () => {
        "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), \
         set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true), \
         set_config('plan_cache_mode', 'force_generic_plan', true)"
    };
}

/// For a transaction that is not ours: whether its commit waits for the disk is for its owner to say.
const BY_INDEX: &str = by_index!();

/// For a transaction of ours behind a pooler. An acknowledged step is a promise, so its commit waits for the disk, whatever the default of
/// the role, the database or the server is; steps that may be lost say so themselves. All other settings wait for at least that.
pub(super) const POOLED: &str = concat!(
    by_index!(),
    ", CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END"
);

/// For a connection of ours. Here the URL may ask for commits that do not wait, and gets them.
pub(super) const FOR_EVER: &str = "SET enable_seqscan = off; SET enable_hashjoin = off; \
    SET enable_mergejoin = off; SET jit = off; SET plan_cache_mode = force_generic_plan; \
    SELECT set_config('synchronous_commit', 'on', false) FROM pg_settings \
    WHERE name = 'synchronous_commit' AND setting = 'off' AND source <> 'client'";

/// One step inside a transaction.
pub(super) struct Session<'c> {
    pub(super) conn: &'c mut PgConnection,
    pub(super) texts: &'c Texts,
    pub(super) now: Time,
    /// A test told the time.
    pub(super) is_test: bool,
    /// When the server started. One that takes over may have lost what another one showed, and draw its numbers again.
    pub(super) server: i64,
    /// Every statement sees what was committed before it, and not only what was when the first one began.
    pub(super) is_fresh: bool,
    pub(super) catalog: Arc<Catalog>,
    /// After which time a claim looks for what is due.
    pub(super) floor: Time,
    /// The lanes that the step has locked, as their rows were then.
    pub(super) starts: Starts,
    /// Up to where a claim may raise that: what the store knows, what this step knows by now, and what the store is to know after it.
    pub(super) proofs: Option<&'c Proofs>,
    pub(super) proven: Option<ChunkId>,
    pub(super) look: Option<Look>,
    /// What other claims have read.
    pub(super) recent: Option<&'c Recent>,
    /// What ended in this step and may be items of tallies.
    ended: Vec<Ended>,
    /// What subscriptions will never see because of this step.
    drops: Drops,
}

impl<'c> Session<'c> {
    /// Begins a step in a transaction.
    pub(super) async fn new(
        conn: &'c mut PgConnection,
        texts: &'c Texts,
        cache: &CatalogCache,
        begin: Begin,
    ) -> Result<Session<'c>> {
        let sql = "SELECT coalesce($1, tramline_now()), (SELECT value FROM tramline_meta WHERE name = 'catalog'), \
                   CASE WHEN $3 THEN set_config('synchronous_commit', 'off', true) END, \
                   pg_advisory_xact_lock_shared('tramline_subscription'::regclass::oid::int, $2::int), \
                   pg_advisory_xact_lock_shared('tramline_rule'::regclass::oid::int, CASE WHEN $4 THEN $2::int END), \
                   (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, \
                   current_setting('transaction_isolation') = 'read committed'";
        if begin.foreign {
            texts.query(BY_INDEX).execute(&mut *conn).await?;
        } else if texts.pooled {
            texts.query(POOLED).execute(&mut *conn).await?;
        }
        let row = texts
            .query(sql)
            .bind(begin.now.map(|now| now.0))
            .bind(begin.subscription.map(|id| id.0 as i32))
            .bind(begin.may_be_lost)
            .bind(begin.claims)
            .fetch_one(&mut *conn)
            .await?;
        let now = Time(row.try_get(0)?);
        let version: i64 = row.try_get(1)?;
        let (server, is_fresh) = (row.try_get(5)?, row.try_get(6)?);
        let mut catalog = cache.get();
        if catalog.version != version {
            catalog = Arc::new(catalog::load(conn, texts).await?);
            cache.set(catalog.clone());
        }
        let floor = Time(i64::MIN);
        Ok(Session {
            conn,
            texts,
            now,
            is_test: begin.now.is_some(),
            server,
            is_fresh,
            catalog,
            floor,
            starts: Starts::new(),
            proofs: None,
            proven: None,
            look: None,
            recent: None,
            ended: Vec::new(),
            drops: Drops::default(),
        })
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

    pub(super) fn query(&self, sql: &'static str) -> Query {
        self.texts.query(sql)
    }

    pub(super) async fn all(&mut self, query: Query) -> Result<Vec<PgRow>> {
        Ok(query.fetch_all(&mut *self.conn).await?)
    }

    pub(super) async fn run(&mut self, query: Query) -> Result<u64> {
        Ok(query.execute(&mut *self.conn).await?.rows_affected())
    }
}
