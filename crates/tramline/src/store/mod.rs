//! The store: where events, work and order are kept.
//!
//! [`Store`] is all that the engine knows of a database. Every verb is one atomic step; what it takes and gives is in
//! [`verbs`] and [`verbs_tally`]. All stores decide with the pure functions of [`crate::plan`] and pass one conformance suite.

pub(crate) mod backfill;
pub mod catalog;
pub(crate) mod chain;
pub(crate) mod claimed;
pub(crate) mod compact;
pub(crate) mod deleted;
pub(crate) mod driver;
pub(crate) mod drops;
pub(crate) mod emit;
pub mod examine;
pub(crate) mod failures;
pub(crate) mod idempotency;
pub(crate) mod lanes;
pub(crate) mod letters;
pub(crate) mod limit;
pub(crate) mod mend;
pub(crate) mod migration;
pub mod mysql;
pub mod postgres;
pub(crate) mod proven;
pub(crate) mod push;
pub mod redis;
pub(crate) mod retention;
pub(crate) mod rows;
pub(crate) mod rules;
pub(crate) mod schedule;
pub(crate) mod shed;
pub(crate) mod spare;
pub mod sqlite;
pub mod standing;
pub(crate) mod tally;
pub(crate) mod token;
pub(crate) mod unique;
pub mod verbs;
pub mod verbs_tally;

use self::redis::{RedisOptions, RedisStore, SpreadStore};
use crate::error::{Error, Result};
use crate::model::dropped::DropRecord;
use crate::model::health::Health;
use crate::model::id::{EventId, SubscriptionId, TopicId};
use crate::model::rule::{AuditEntry, PatternRule};
use crate::model::schedule::StoredSchedule;
use crate::model::subscription::{Subscription, Topic};
use crate::model::tally::{Added, Tally};
use crate::model::time::Time;
use crate::model::token::Token;
use async_trait::async_trait;
use mysql::MysqlStore;
use postgres::PostgresStore;
use sqlite::{Copied, SqliteStore};
use standing::Standing;
use std::path::Path;
use std::sync::Arc;
use verbs::*;
use verbs_tally::*;

/// Opens the store behind a URL, and brings it up to date: `sqlite://path`, `sqlite::memory:`,
/// `postgres://user@host/database`, `mysql://user@host/database`, `redis://host`, `redis://host,host,host` (a Cluster).
///
/// # Errors
/// `Invalid` for a URL that names no store, and whatever opening that store gives.
pub async fn open(url: &str) -> Result<Arc<dyn Store>> {
    Ok(open_kind(url).await?.store())
}

/// A store by its own type.
#[derive(Clone, Debug)]
pub(crate) enum Opened {
    Sqlite(Arc<SqliteStore>),
    Mysql(Arc<MysqlStore>),
    Postgres(Arc<PostgresStore>),
    Redis(Arc<RedisStore>),
    Spread(Arc<SpreadStore>),
}

impl Opened {
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        match self {
            Opened::Sqlite(store) => store.clone(),
            Opened::Mysql(store) => store.clone(),
            Opened::Postgres(store) => store.clone(),
            Opened::Redis(store) => store.clone(),
            Opened::Spread(store) => store.clone(),
        }
    }

    /// The channel of this store's hints, where it has a name of its own.
    pub(crate) fn wake_channel(&self) -> Option<String> {
        match self {
            Opened::Postgres(store) => Some(store.wake_channel()),
            Opened::Redis(store) => Some(store.wake_channel()),
            Opened::Spread(store) => Some(store.wake_channel()),
            Opened::Sqlite(_) | Opened::Mysql(_) => None,
        }
    }
}

pub(crate) async fn open_kind(url: &str) -> Result<Opened> {
    if url == "sqlite::memory:" {
        return Ok(Opened::Sqlite(Arc::new(SqliteStore::in_memory().await?)));
    }
    if let Some(path) = sqlite_path(url) {
        return Ok(Opened::Sqlite(Arc::new(SqliteStore::open(path).await?)));
    }
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return Ok(Opened::Postgres(Arc::new(PostgresStore::open(url.parse()?).await?)));
    }
    if url.starts_with("mysql://") || url.starts_with("mariadb://") {
        return Ok(Opened::Mysql(Arc::new(MysqlStore::open(url.parse()?).await?)));
    }
    if self::redis::is_redis(url) {
        let options: RedisOptions = url.parse()?;
        if options.is_spread() {
            return Ok(Opened::Spread(Arc::new(SpreadStore::open(options).await?)));
        }
        return Ok(Opened::Redis(Arc::new(RedisStore::open(options).await?)));
    }
    Err(unknown(url))
}

fn sqlite_path(url: &str) -> Option<&str> {
    url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:"))
}

/// Copies the SQLite store behind a URL to a new file, while it is in use; see [`SqliteStore::backup`].
///
/// # Errors
/// `Invalid` for a store that is not a file, and whatever the copy gives.
pub async fn backup(url: &str, to: &Path) -> Result<Copied> {
    if url == "sqlite::memory:" {
        return Err(Error::invalid("a store in memory cannot be copied", "use a store in a file"));
    }
    if let Some(path) = sqlite_path(url) {
        return SqliteStore::backup(path, to).await;
    }
    let remedy = match url.split(':').next() {
        Some("postgres" | "postgresql") => "use pg_dump, or what backs up the rest of that server",
        Some("mysql" | "mariadb") => {
            "use mysqldump --single-transaction, or what backs up the rest of that server"
        }
        _ if self::redis::is_redis(url) => {
            "copy its append-only file or its snapshot, or what backs up the rest of that server"
        }
        _ => return Err(unknown(url)),
    };
    Err(Error::invalid("only SQLite stores are copied; a server has tools of its own for that", remedy))
}

/// All migrations of the kind of store that a URL names, as SQL to be read or run by hand.
///
/// # Errors
/// `Invalid` for a URL that names no store.
pub fn migrations(url: &str) -> Result<String> {
    match url.split(':').next() {
        Some("postgres" | "postgresql") => Ok(url.parse::<postgres::PostgresOptions>()?.migrations()),
        Some("mysql" | "mariadb") => Ok(MysqlStore::migrations()),
        Some("sqlite") => Ok(SqliteStore::migrations()),
        _ if self::redis::is_redis(url) => {
            Err(Error::invalid("a store in Redis has no tables", "open it: there is nothing to prepare"))
        }
        _ => Err(unknown(url)),
    }
}

fn unknown(url: &str) -> Error {
    let scheme = url.split(':').next().unwrap_or_default();
    Error::invalid(
        format!("{scheme:?} is not a known kind of store"),
        "use sqlite://path, sqlite::memory:, postgres://user@host/database, mysql://user@host/database or redis://host",
    )
}

/// A database that keeps events.
///
/// Dropping a verb's future before it is done leaves open whether the step happened, but never half of it.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Creates a topic or changes what may change of it. `Conflict`: the number of lanes never changes.
    async fn put_topic(&self, put: PutTopic) -> Result<Topic>;
    /// All topics, by name.
    async fn topics(&self) -> Result<Vec<Topic>>;
    /// How many events were ever emitted to each topic, by its number.
    async fn topic_totals(&self) -> Result<Vec<(TopicId, u64)>>;
    /// Deletes a topic with its events. `Conflict` while a subscription consumes it. It is gone at once; what it took up is free
    /// after some sweeps.
    async fn delete_topic(&self, name: &str) -> Result<()>;
    /// Creates a subscription or changes what may change of it. From its return on, no emit misses it.
    async fn put_subscription(&self, put: PutSubscription) -> Result<Subscription>;
    /// All subscriptions, by name.
    async fn subscriptions(&self) -> Result<Vec<Subscription>>;
    /// Deletes a subscription with all that it still had to do. It is gone at once; what it took up is free after some sweeps.
    async fn delete_subscription(&self, name: &str) -> Result<()>;
    /// Writes a bounded part of the retained events into a new subscription. True while there is more.
    async fn backfill(&self, subscription: SubscriptionId) -> Result<bool>;
    /// Sets or removes a rule. Once it is set, nothing is taken any more: claims that had not seen it have ended. `Unavailable`
    /// if one of them takes too long; the rule is in force all the same.
    async fn set_rule(&self, set: SetRule) -> Result<()>;
    /// Sets a rule for all subscriptions whose names match, those that there are and those that come. `Conflict` when there are too many.
    async fn set_pattern_rule(&self, set: SetPatternRule) -> Result<PatternRule>;
    /// Removes a rule by pattern. Gives all subscriptions that it stopped. `NotFound`.
    async fn remove_pattern_rule(&self, remove: RemovePatternRule) -> Result<Vec<SubscriptionId>>;
    /// The rules by pattern in force, by number.
    async fn pattern_rules(&self, now: Option<Time>) -> Result<Vec<PatternRule>>;
    /// Who did what to a subscription, newest first, at most `limit`.
    async fn audit(&self, subscription: SubscriptionId, limit: u32) -> Result<Vec<AuditEntry>>;

    /// Stores events. Units succeed or fail one by one; an error of the whole call means that nothing is known.
    async fn emit(&self, emit: Emit) -> Result<Vec<Result<Emission>>>;
    /// Takes events for a limited time.
    async fn claim(&self, claim: Claim) -> Result<Claimed>;
    /// Whether several claims of this subscription cost less if they are made together.
    fn claims_together(&self, subscription: SubscriptionId) -> bool;
    /// Makes several claims of one subscription that differ in nothing but their owners, of whom no two are the same, and in how many
    /// events each wants. Each gets an answer of its own, in the order given, as if they had come one after the other. `None`: this one took
    /// nothing, and has to be made alone.
    async fn claim_together(&self, claims: Vec<Claim>) -> Result<Vec<Result<Option<Claimed>>>>;
    /// Leaves a claim that found nothing with the store, which carries it out in the transaction of the next emit of this process to
    /// the subscription. `None`: this store does not; its owner looks when there is a hint. With order it must not be used: an owner has to
    /// know what it holds whenever something is settled.
    fn stand(&self, claim: Claim) -> Option<Standing>;
    /// Writes outcomes back. `Invalid`: an event is settled as done after one of its key that must run again.
    async fn settle(&self, settle: Settle) -> Result<Settled>;
    /// Makes leases last longer.
    async fn extend(&self, extend: Extend) -> Result<Vec<Extended>>;
    /// Gives events back at once, uncounted, and where there is order the later ones of their keys too. Lost leases are passed
    /// over. Gives how many leases it was.
    async fn release(&self, release: Release) -> Result<u64>;
    /// Makes ready again what an earlier incarnation consumed but never started. Gives the ids it got.
    async fn adopt(&self, adopt: Adopt) -> Result<Vec<EventId>>;

    /// Counts and rules of a subscription.
    async fn stats(&self, subscription: SubscriptionId, now: Option<Time>) -> Result<Stats>;
    /// Looks an event up.
    async fn event(&self, find: FindEvent) -> Result<Option<EventView>>;
    /// Follows the chain of a key from one of its events back, as far as events are retained.
    async fn trace(&self, trace: Trace) -> Result<Traced>;
    /// The last event of a key.
    async fn head(&self, topic: &str, key: &str) -> Result<Option<Head>>;
    /// Reads the retained events of a topic, never past one that is still being written.
    async fn read_log(&self, read: ReadLog) -> Result<LogPage>;
    /// Where the log of a topic ends now: nothing at or before it will ever be added. `Unavailable` while that cannot be known.
    async fn log_end(&self, topic: &str) -> Result<EventId>;
    /// Dead (and held) events of a subscription, by id.
    async fn dead(&self, list: ListDead) -> Result<DeadPage>;
    /// Parked keys of a subscription, by the event that blocks them.
    async fn parked(&self, page: Page) -> Result<Vec<ParkedKey>>;

    /// Replays or drops dead and held events, a bounded part of them at a time.
    async fn revive(&self, revive: Revive) -> Result<Revived>;
    /// Restores events that the subscription had settled or lost. Gives how many.
    async fn resend(&self, resend: Resend) -> Result<u64>;
    /// Cancels an event where it has not been claimed. Gives the subscriptions.
    async fn cancel(&self, cancel: Cancel) -> Result<Vec<Arc<str>>>;
    /// Lets parked keys go on. Gives how many.
    async fn release_parked(&self, release: ReleaseParked) -> Result<u64>;

    /// All push subscriptions, by name, and whether each may have something to send.
    async fn push_board(&self, now: Option<Time>) -> Result<Vec<PushEntry>>;
    /// What has gathered for the next batch of a push subscription.
    async fn gather(&self, gather: Gather) -> Result<Gathered>;
    /// Writes down what was tried, and what follows from it for the subscription.
    async fn record_push(&self, record: RecordPush) -> Result<Recorded>;
    /// Enables or disables a push subscription, or notes that its receiver has agreed. `Invalid` for one that workers claim from.
    async fn steer_push(&self, steer: SteerPush) -> Result<Health>;
    /// What was tried lately, newest first.
    async fn attempts(&self, list: ListAttempts) -> Result<Vec<NumberedAttempt>>;

    /// Opens a tally. `Conflict` when its idempotency key was used for another one, or its item cannot have it; `NotFound` when it has
    /// no such parent.
    async fn open_tally(&self, open: OpenTally) -> Result<OpenedTally>;
    /// Adds items. `NotFound`; `Conflict` when it is sealed (and does not grow from inside an unfinished item) or has ended.
    async fn add_items(&self, add: AddItems) -> Result<Added>;
    /// Says that a tally has all its items; again is harmless. `NotFound`; `Conflict` when it was given up, or has another
    /// number of items than expected.
    async fn seal_tally(&self, seal: SealTally) -> Result<SealedTally>;
    /// Ends items, of any number of tallies. What does not exist is an answer, not an error; again is harmless.
    async fn ack_items(&self, ack: AckItems) -> Result<AckedItems>;
    /// Counts estimated tallies up and down. Each gets an answer of its own: `NotFound`, `Invalid` for one that has items,
    /// `Conflict` for adding to a sealed one.
    async fn count_tallies(&self, count: CountTallies) -> Result<Vec<Result<CountedTally>>>;
    /// A tally, with exact counts.
    async fn tally(&self, find: NameTally) -> Result<Option<Tally>>;
    /// Tallies, by number.
    async fn tallies(&self, list: ListTallies) -> Result<Vec<Tally>>;
    /// How many tallies there are in each state.
    async fn tally_counts(&self) -> Result<TallyCounts>;
    /// Gives a tally up; again is harmless. `NotFound`; `Conflict` when it is complete or has expired.
    async fn cancel_tally(&self, cancel: NameTally) -> Result<Tally>;
    /// Deletes a tally, in whatever state. `NotFound`.
    async fn delete_tally(&self, delete: NameTally) -> Result<()>;
    /// Removes tallies that nothing has happened to for long.
    async fn reap_tallies(&self, reap: ReapTallies) -> Result<ReapedTallies>;
    /// Emits what tallies have to tell: each piece of news exactly once.
    async fn deliver(&self, deliver: Deliver) -> Result<Delivered>;
    /// Looks after tallies: expiry, proof that none is stuck, removal.
    async fn sweep_tallies(&self, sweep: SweepTallies) -> Result<SweptTallies>;

    /// Creates a schedule or replaces it. `Conflict` when it may not replace what has the name, or there are too many.
    async fn put_schedule(&self, put: PutSchedule) -> Result<StoredSchedule>;
    /// Puts what somebody declares and deletes what it declared before and no longer does, all or nothing. `Conflict` when a name
    /// is of somebody else.
    async fn declare_schedules(&self, declare: DeclareSchedules) -> Result<Vec<StoredSchedule>>;
    /// Schedules, by name.
    async fn schedules(&self, list: ListSchedules) -> Result<Vec<StoredSchedule>>;
    /// A schedule.
    async fn schedule(&self, name: &str) -> Result<Option<StoredSchedule>>;
    /// Deletes a schedule. `NotFound`.
    async fn delete_schedule(&self, name: &str) -> Result<()>;
    /// Pauses or resumes a schedule; again is harmless. `NotFound`.
    async fn pause_schedule(&self, pause: PauseSchedule) -> Result<StoredSchedule>;
    /// Emits what a schedule emits, once and now, also while it rests. Its times stay as they are. `NotFound`.
    async fn run_schedule(&self, run: NameSchedule) -> Result<Emission>;
    /// Emits what is due by schedules: each run exactly once, whoever else ticks.
    async fn tick(&self, tick: Tick) -> Result<Ticked>;

    /// Keeps a token. `Conflict` when its name is taken.
    async fn put_token(&self, put: PutToken) -> Result<Token>;
    /// All tokens, by name.
    async fn tokens(&self) -> Result<Vec<Token>>;
    /// Deletes a token.
    async fn delete_token(&self, name: &str) -> Result<()>;
    /// Replaces how the secret of a token is sealed. False if that is no longer as it was expected, or the token is gone.
    async fn seal_token(&self, seal: SealToken) -> Result<bool>;
    /// Records when tokens were last used. Unknown ones are passed over.
    async fn touch_tokens(&self, uses: Vec<(String, Time)>) -> Result<()>;

    /// Records a sign of life and gives all workers known to the store in birth order. Which of them are dead is for the caller
    /// to judge.
    async fn beat(&self, beat: Beat) -> Result<Vec<Worker>>;
    /// Workers known to the store, in birth order.
    async fn workers(&self) -> Result<Vec<Worker>>;
    /// Records that workers claimed through a node. They have no heartbeat, and no share of the lanes.
    async fn see_remote(&self, see: SeeRemote) -> Result<()>;
    /// Workers that claimed through some node lately, by name.
    async fn remote_workers(&self, now: Option<Time>) -> Result<Vec<RemoteWorker>>;
    /// Ends what workers held that were silent for too long, and forgets them. A sweep does so too; this does not wait for one.
    async fn bury(&self, bury: Bury) -> Result<Buried>;
    /// Housekeeping: retention, expired entries, dead workers, claims that ended at most once, what was deleted.
    async fn sweep(&self, sweep: Sweep) -> Result<Swept>;
    /// How much the store holds.
    async fn size(&self) -> Result<StoreSize>;
    /// Makes room in a full store, step by step. What is lost by it is recorded.
    async fn shed(&self, shed: Shed) -> Result<Shedded>;
    /// Records of what subscriptions will never see although nobody asked for that.
    async fn drops(&self, list: ListDrops) -> Result<Vec<DropRecord>>;
    /// How many events that were, ever.
    async fn drop_totals(&self) -> Result<Vec<DropTotal>>;
    /// The store's time.
    async fn now(&self) -> Result<Time>;
    /// Writes, durably, what nobody reads: whether a store can be written is known only by trying. `Unavailable`.
    async fn probe(&self) -> Result<()>;
    /// Ends background work and closes connections.
    async fn close(&self);
}
