//! PostgreSQL: any number of nodes on one database.
//!
//! - `options`, `session`, `step`: how a step gets a connection, the time and the catalogue, and how it ends
//! - `emit` (with `idempotency`), `claim`, `order` (with `lanes`), `settle`: the walk of
//!   an event
//! - `mend`, `look`, `sweep`, `catalog`: everything else
//! - `rows`, `migrate`: how rows are read and written, and the tables
//!
//! Nothing is kept in a database session: every step is one transaction, all settings are local to it, and advisory
//! locks end with it. So the store also works behind a pooler that gives out connections by the transaction.

mod catalog;
mod claim;
mod emit;
mod idempotency;
mod lanes;
mod look;
mod mend;
mod migrate;
mod options;
mod order;
mod remote;
mod rows;
mod session;
mod settle;
mod spare;
mod step;
mod sweep;
mod token;

pub use options::PostgresOptions;

use crate::error::{Error, Kind, Result};
use crate::model::event::Event;
use crate::model::id::{EventId, SubscriptionId, TopicId};
use crate::model::rule::AuditEntry;
use crate::model::subscription::{Subscription, Topic};
use crate::model::time::Time;
use crate::model::token::Token;
use crate::store::Store;
use crate::store::catalog::Catalog;
use crate::store::claimed::RawClaim;
use crate::store::verbs::*;
use async_trait::async_trait;
use claim::Due;
use look::Proven;
use session::{BY_INDEX_FOR_EVER, Begin, CatalogCache, Planner, Session, Texts};
use spare::{Hot, Spares};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection as _, PgConnection, PgPool, Postgres, Transaction};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use step::{Tries, step};
use tokio::sync::Semaphore;

/// How long a step waits for a free connection.
const ACQUIRE: Duration = Duration::from_secs(10);
/// A connection that was idle for longer is tried out before it is used: the server may have gone meanwhile.
const STALE: Duration = Duration::from_secs(1);
/// How long a change of topics or subscriptions waits for emits under way, at a time. New emits wait behind it.
const PATIENCE: &str = "SET LOCAL lock_timeout = '1s'";

/// A PostgreSQL database.
#[derive(Debug)]
pub struct PostgresStore {
    /// For the store itself.
    own: PgPool,
    /// For callers.
    pool: PgPool,
    spares: Spares,
    texts: Texts,
    cache: CatalogCache,
    proven: Proven,
    /// Spreads events without a key over the lanes.
    spread: AtomicU64,
    /// Emits that may wait for a locked key at the same time, so that connections are left for all others.
    waiting: Semaphore,
}

impl PostgresStore {
    /// Connects and brings the database up to date. Any number of processes may do so at once.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached or is too old; `Conflict` when a newer version migrated it.
    pub async fn open(options: PostgresOptions) -> Result<PostgresStore> {
        // A start-up parameter that poolers refuse; it only concerns floating-point numbers, of which there are none.
        let mut connect = options.connect.extra_float_digits(None);
        if options.pooled {
            connect = connect.statement_cache_capacity(0);
        }
        // The pool tries until its time is over; this one says at once why it cannot connect.
        PgConnection::connect_with(&connect).await?.close().await?;
        let pool = PgPoolOptions::new()
            .max_connections(options.max_connections)
            .acquire_timeout(ACQUIRE)
            .connect_lazy_with(connect.clone());
        let pooled = options.pooled;
        let own = PgPoolOptions::new()
            .max_connections(options.max_connections)
            .acquire_timeout(ACQUIRE)
            .test_before_acquire(false)
            .before_acquire(|conn, about| {
                Box::pin(async move {
                    if about.idle_for < STALE { Ok(true) } else { conn.ping().await.map(|()| true) }
                })
            })
            .after_connect(move |conn, _| {
                Box::pin(async move {
                    if !pooled {
                        sqlx::raw_sql(BY_INDEX_FOR_EVER).execute(conn).await?;
                    }
                    Ok(())
                })
            })
            .connect_with(connect)
            .await?;
        let schema = migrate::run(&mut *own.acquire().await?, options.schema.as_deref()).await?;
        Ok(PostgresStore {
            own,
            pool,
            spares: Spares::new((options.max_connections / 4) as usize, STALE),
            texts: Texts::new(schema, options.pooled),
            cache: CatalogCache::default(),
            proven: Proven::default(),
            spread: AtomicU64::new(getrandom::u64().unwrap_or_default()),
            waiting: Semaphore::new((options.max_connections / 2).max(1) as usize),
        })
    }

    /// All migrations as SQL, to be read or run by hand; for tables in `schema`, or wherever the search path leads.
    pub fn migrations(schema: Option<&str>) -> String {
        migrate::sql(schema)
    }

    /// The channel on which `tramline_emit`, the SQL function, names the subscriptions that have work: their numbers with
    /// commas between them.
    pub fn wake_channel(&self) -> String {
        format!("{}.tramline_wake", self.texts.schema)
    }

    /// The statement that finds due work, to be given to `EXPLAIN`: its values are the subscription, the state (0 is ready),
    /// the time in milliseconds and how many rows.
    pub fn claim_sql(&self) -> Arc<str> {
        self.texts.text(claim::DUE)
    }

    /// A pool of connections for callers that keep their own tables in the same database. Connects when it is first used.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Emits in the caller's own transaction. Nothing is stored unless the caller commits; then it should wake the workers
    /// with what the emission names. The keys of the events stay locked until then, so keep it short. Unknown topics are
    /// created at once, whatever becomes of the transaction.
    ///
    /// # Errors
    /// `Invalid` or `TooLarge` for impossible events, `Conflict` for a reused idempotency key. After `Unavailable` the
    /// transaction is lost: roll it back, and try again from its start.
    pub async fn emit_in(
        &self,
        tx: &mut PgConnection,
        events: impl IntoIterator<Item = Event> + Send,
    ) -> Result<Emission> {
        let events: Vec<Event> = events.into_iter().collect();
        self.emit_unit_in(tx, events).await
    }

    /// Settles in the caller's own transaction: what the handler wrote and the outcome are stored together or not at all.
    ///
    /// # Errors
    /// As [`Store::settle`]; a lost lease is not an error but an answer.
    pub async fn settle_in(&self, tx: &mut PgConnection, settle: Settle) -> Result<Settled> {
        let cache = CatalogCache::default();
        cache.set(self.cache.get());
        let planner = Planner::save(tx, &self.texts).await?;
        let begin = Begin { foreign: true, ..writing(settle.now, settle.subscription) };
        let settled = match Session::new(tx, &self.texts, &cache, begin).await {
            Ok(mut session) => settle::settle(&mut session, &settle).await,
            Err(error) => Err(error),
        };
        planner.restore(tx, &self.texts, settled).await
    }

    async fn claim_by_steps(&self, claim: &Claim) -> Result<(RawClaim, Arc<Catalog>)> {
        // At least once needs no sync: a claim that a power cut undoes is simply due again. What is consumed must stay so.
        let known = self.cache.get();
        let subscription = known.require_subscription(claim.subscription);
        let may_be_lost = subscription.is_ok_and(|subscription| !subscription.policy.is_at_most_once());
        let begin = Begin { may_be_lost, ..writing(claim.now, claim.subscription) };
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| async {
            Ok((claim::claim(session, claim).await?, session.catalog.clone()))
        })
    }

    async fn connection(&self) -> Result<Hot<'_>> {
        self.spares.take(&self.own).await
    }

    async fn begin(&self) -> Result<Transaction<'static, Postgres>> {
        Ok(self.own.begin().await?)
    }

    /// The catalogue, read if none is known. Whether it is still right shows when it is used.
    async fn catalog(&self, conn: &mut PgConnection) -> Result<Arc<Catalog>> {
        let known = self.cache.get();
        if known.version != 0 {
            return Ok(known);
        }
        let mut tx = conn.begin().await?;
        let catalog = Arc::new(catalog::load(&mut tx, &self.texts).await?);
        tx.commit().await?;
        self.cache.set(catalog.clone());
        Ok(catalog)
    }

    /// Creates the topics that are not known yet.
    async fn create_topics<'a>(&self, names: impl Iterator<Item = &'a str> + Clone + Send) -> Result<()> {
        let known = self.cache.get();
        if names.clone().all(|name| known.topic(name).is_some()) {
            return Ok(());
        }
        let names: Vec<&str> = names.collect();
        step!(self, Tries::few(), |tx| self.session(tx, reading(None)), |session| {
            catalog::create_missing(session, &names)
        })?;
        // Emits look into the cache: it has to know the new topics.
        self.cache.set(Arc::default());
        let mut conn = self.connection().await?;
        self.catalog(&mut conn).await.map(|_| ())
    }

    async fn session<'c>(&'c self, tx: &'c mut PgConnection, begin: Begin) -> Result<Session<'c>> {
        Session::new(tx, &self.texts, &self.cache, begin).await
    }

    /// A session for a change of topics or subscriptions: emits to the topics it touches are kept away until it ends.
    async fn changing<'c>(
        &'c self,
        tx: &'c mut PgConnection,
        now: Option<Time>,
        topics: impl Fn(&Catalog) -> BTreeSet<TopicId>,
    ) -> Result<Session<'c>> {
        sqlx::raw_sql(PATIENCE).execute(&mut *tx).await?;
        let mut session = self.session(tx, reading(now)).await?;
        let locked = topics(&session.catalog);
        catalog::lock_topics(&mut session, &locked).await?;
        // Read again: what was known before the topics were locked may have changed.
        session.catalog = Arc::new(catalog::load(session.conn, &self.texts).await?);
        if topics(&session.catalog) != locked {
            return Err(Error::unavailable("topics and subscriptions changed meanwhile", "try again"));
        }
        Ok(session)
    }
}

/// A step that writes slices of a subscription.
fn writing(now: Option<Time>, subscription: SubscriptionId) -> Begin {
    Begin { now, subscription: Some(subscription), ..Begin::default() }
}

fn reading(now: Option<Time>) -> Begin {
    Begin { now, ..Begin::default() }
}

#[async_trait]
impl Store for PostgresStore {
    async fn put_topic(&self, put: PutTopic) -> Result<Topic> {
        let topics = |_: &Catalog| BTreeSet::new();
        step!(self, Tries::patient(), |tx| self.changing(tx, put.now, topics), |session| catalog::put_topic(
            session, &put
        ))
    }

    async fn topics(&self) -> Result<Vec<Topic>> {
        step!(self, Tries::few(), |tx| self.session(tx, reading(None)), |session| async {
            Ok(session.catalog.topics().to_vec())
        })
    }

    async fn delete_topic(&self, name: &str) -> Result<()> {
        let topics = |catalog: &Catalog| catalog.topic(name).map(|topic| topic.id).into_iter().collect();
        step!(self, Tries::patient(), |tx| self.changing(tx, None, topics), |session| catalog::delete_topic(
            session, name
        ))
    }

    async fn put_subscription(&self, put: PutSubscription) -> Result<Subscription> {
        put.check()?;
        let known = step!(self, Tries::few(), |tx| self.session(tx, reading(put.now)), |session| async {
            Ok(catalog::as_wanted(&session.catalog, &put))
        })?;
        if let Some(subscription) = known {
            return Ok(subscription);
        }
        for name in &put.topics {
            crate::model::name::check("topic", name)?;
        }
        let names = || put.topics.iter().map(String::as_str);
        self.create_topics(names()).await?;
        let topics = |catalog: &Catalog| catalog::touched(catalog, &put.name, names());
        step!(self, Tries::patient(), |tx| self.changing(tx, put.now, topics), |session| {
            catalog::put_subscription(session, &put)
        })
    }

    async fn subscriptions(&self) -> Result<Vec<Subscription>> {
        step!(self, Tries::few(), |tx| self.session(tx, reading(None)), |session| async {
            Ok(session.catalog.subscriptions().to_vec())
        })
    }

    async fn delete_subscription(&self, name: &str) -> Result<()> {
        let topics = |catalog: &Catalog| catalog::touched(catalog, name, std::iter::empty());
        step!(self, Tries::patient(), |tx| self.changing(tx, None, topics), |session| {
            catalog::delete_subscription(session, name)
        })
    }

    async fn backfill(&self, subscription: SubscriptionId) -> Result<bool> {
        let begin = writing(None, subscription);
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| sweep::backfill(
            session,
            subscription
        ))
    }

    async fn set_rule(&self, set: SetRule) -> Result<()> {
        let begin = writing(set.now, set.subscription);
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| catalog::set_rule(session, &set))
    }

    async fn audit(&self, subscription: SubscriptionId, limit: u32) -> Result<Vec<AuditEntry>> {
        let begin = reading(None);
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| {
            catalog::audit(session, subscription, limit)
        })
    }

    async fn emit(&self, emit: Emit) -> Result<Vec<Result<Emission>>> {
        self.emit_units(emit).await
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        let known = self.cache.get();
        let due = match known.require_subscription(claim.subscription) {
            Ok(subscription) => self.claim_due(&claim, &subscription.policy, known.version).await?,
            Err(_) => Due::Undecided, // it may be new
        };
        let (first, rest) = match due {
            Due::All(raw) => return raw.decode(&known),
            Due::Undecided => (None, claim),
            Due::Some(raw) => {
                let rest = raw.rest_of(&claim);
                (Some(raw), rest)
            }
        };
        match (first, self.claim_by_steps(&rest).await) {
            (None, claimed) => claimed.and_then(|(raw, catalog)| raw.decode(&catalog)),
            (Some(first), Ok((raw, catalog))) => first.and(raw).decode(&catalog),
            (Some(first), Err(error)) if first.slices.is_empty() => Err(error),
            // What was taken is taken; the next claim meets the error again.
            (Some(first), Err(_)) => first.decode(&known),
        }
    }

    async fn settle(&self, settle: Settle) -> Result<Settled> {
        let begin = writing(settle.now, settle.subscription);
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| settle::settle(session, &settle))
    }

    async fn extend(&self, extend: Extend) -> Result<Vec<Extended>> {
        let begin = Begin { may_be_lost: true, ..writing(extend.now, extend.subscription) };
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| settle::extend(session, &extend))
    }

    async fn release(&self, release: Release) -> Result<u64> {
        let begin = Begin { may_be_lost: true, ..writing(release.now, release.subscription) };
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| settle::release(session, &release))
    }

    async fn adopt(&self, adopt: Adopt) -> Result<Vec<EventId>> {
        let begin = writing(adopt.now, adopt.subscription);
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| mend::adopt(session, &adopt))
    }

    async fn stats(&self, subscription: SubscriptionId, now: Option<Time>) -> Result<Stats> {
        step!(self, Tries::few(), |tx| self.session(tx, reading(now)), |session| look::stats(
            session,
            subscription
        ))
    }

    async fn event(&self, find: FindEvent) -> Result<Option<EventView>> {
        step!(self, Tries::few(), |tx| self.session(tx, reading(find.now)), |session| look::event(
            session, find.id
        ))
    }

    async fn head(&self, topic: &str, key: &str) -> Result<Option<Head>> {
        step!(self, Tries::few(), |tx| self.session(tx, reading(None)), |session| look::head(
            session, topic, key
        ))
    }

    async fn read_log(&self, read: ReadLog) -> Result<LogPage> {
        let begin = reading(None);
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| look::read_log(
            &self.proven,
            session,
            &read
        ))
    }

    async fn log_end(&self, topic: &str) -> Result<EventId> {
        let begin = reading(None);
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| look::log_end(
            &self.proven,
            session,
            topic
        ))
    }

    async fn dead(&self, page: Page) -> Result<Vec<DeadEvent>> {
        step!(self, Tries::few(), |tx| self.session(tx, reading(page.now)), |session| look::dead(
            session, &page
        ))
    }

    async fn parked(&self, page: Page) -> Result<Vec<ParkedKey>> {
        step!(self, Tries::few(), |tx| self.session(tx, reading(page.now)), |session| look::parked(
            session, &page
        ))
    }

    async fn revive(&self, revive: Revive) -> Result<u64> {
        let begin = writing(revive.now, revive.subscription);
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| mend::revive(session, &revive))
    }

    async fn resend(&self, resend: Resend) -> Result<u64> {
        let begin = writing(resend.now, resend.subscription);
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| mend::resend(session, &resend))
    }

    async fn cancel(&self, cancel: Cancel) -> Result<Vec<Arc<str>>> {
        step!(self, Tries::few(), |tx| self.session(tx, reading(cancel.now)), |session| mend::cancel(
            session, &cancel
        ))
    }

    async fn release_parked(&self, release: ReleaseParked) -> Result<u64> {
        let begin = writing(release.now, release.subscription);
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| mend::release_parked(
            session, &release
        ))
    }

    async fn put_token(&self, put: PutToken) -> Result<Token> {
        let begin = reading(put.now);
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| token::put(session, &put.token))
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        step!(self, Tries::few(), |tx| self.session(tx, reading(None)), |session| token::all(session))
    }

    async fn delete_token(&self, name: &str) -> Result<()> {
        step!(self, Tries::few(), |tx| self.session(tx, reading(None)), |session| token::delete(
            session, name
        ))
    }

    async fn touch_tokens(&self, uses: Vec<(String, Time)>) -> Result<()> {
        let begin = Begin { may_be_lost: true, ..reading(None) };
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| token::touch(session, &uses))
    }

    async fn beat(&self, beat: Beat) -> Result<Vec<Worker>> {
        let begin = Begin { may_be_lost: true, ..reading(beat.now) };
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| sweep::beat(session, &beat))
    }

    async fn workers(&self) -> Result<Vec<Worker>> {
        step!(self, Tries::few(), |tx| self.session(tx, reading(None)), |session| look::workers(session))
    }

    async fn see_remote(&self, see: SeeRemote) -> Result<()> {
        let begin = Begin { may_be_lost: true, ..reading(see.now) };
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| remote::see(session, &see))
    }

    async fn remote_workers(&self, now: Option<Time>) -> Result<Vec<RemoteWorker>> {
        step!(self, Tries::few(), |tx| self.session(tx, reading(now)), |session| remote::all(session))
    }

    async fn sweep(&self, sweep: Sweep) -> Result<Swept> {
        let begin = reading(sweep.now);
        let (mut swept, ended) = step!(self, Tries::few(), |tx| self.session(tx, begin), |session| {
            sweep::sweep(session, &sweep)
        })?;
        for id in ended {
            let begin = writing(sweep.now, id);
            let interrupted =
                step!(self, Tries::few(), |tx| self.session(tx, begin), |session| claim::interrupt(
                    session, id
                ));
            match interrupted {
                Ok(more) => swept.more |= more,
                // Deleted meanwhile.
                Err(error) if error.kind() == Kind::NotFound => continue,
                Err(error) => return Err(error),
            }
            swept.wake.push(id);
        }
        swept.wake.sort_unstable();
        swept.wake.dedup();
        Ok(swept)
    }

    async fn now(&self) -> Result<Time> {
        step!(self, Tries::few(), |tx| self.session(tx, reading(None)), |session| async { Ok(session.now) })
    }

    async fn close(&self) {
        self.spares.clear();
        self.pool.close().await;
        self.own.close().await;
    }
}
