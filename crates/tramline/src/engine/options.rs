//! How a Tramline is opened.

use crate::engine::buffer::Amount;
use crate::engine::clock::Clock;
use crate::engine::hooks::{Guarded, Hooks, LogHooks};
use crate::engine::shed::Ceiling;
use crate::engine::trace::{NoTraces, Traces};
use crate::error::Result;
use crate::store::postgres::PostgresOptions;
use crate::store::redis::RedisOptions;
use crate::store::{Opened, Store};
use crate::wake::in_process::InProcess;
use crate::wake::mysql::{Pulse, WithInbox};
use crate::wake::relay::Relay;
use crate::wake::sqlite::FileWatch;
use crate::wake::{Wake, address};
use std::sync::Arc;
use std::time::Duration;

/// A heartbeat this often; after three missed ones a worker is dead.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// How much the buffer of `emit_later` holds.
const BUFFER: Amount = Amount { events: 10_000, bytes: 64 << 20 };
/// Tallies to which nothing happens are kept for this long.
const TALLIES: Duration = Duration::from_secs(7 * 24 * 3600);

/// How a Tramline is opened. Everything but the URL has a sensible default.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) url: String,
    pub(crate) listen_url: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) heartbeat: Duration,
    pub(crate) buffer: Amount,
    pub(crate) flushers: Option<usize>,
    pub(crate) clock: Clock,
    pub(crate) hooks: Arc<dyn Hooks>,
    pub(crate) traces: Arc<dyn Traces>,
    pub(crate) wake: Option<Arc<dyn Wake>>,
    pub(crate) wake_url: Option<String>,
    pub(crate) watch: Option<Watch>,
    pub(crate) tallies_kept: Kept,
    pub(crate) ceiling: Ceiling,
}

/// How long tallies are kept to which nothing happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) open: Duration,
    pub(crate) sealed: Duration,
}

/// Puts something between the engine and the store.
#[derive(Clone)]
pub(crate) struct Watch(pub(crate) Arc<Between>);

type Between = dyn Fn(Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync;

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a watch")
    }
}

impl Options {
    /// The store behind `url`, and defaults.
    pub fn new(url: impl Into<String>) -> Options {
        Options {
            url: url.into(),
            listen_url: None,
            name: None,
            heartbeat: HEARTBEAT,
            buffer: BUFFER,
            flushers: None,
            clock: Clock::store(),
            hooks: Arc::new(LogHooks),
            traces: Arc::new(NoTraces),
            wake: None,
            wake_url: None,
            watch: None,
            tallies_kept: Kept { open: TALLIES, sealed: TALLIES },
            ceiling: Ceiling::default(),
        }
    }

    /// PostgreSQL behind a pooler: where to LISTEN, which needs a connection of its own to the server itself.
    #[must_use]
    pub fn listen_url(mut self, url: impl Into<String>) -> Options {
        self.listen_url = Some(url.into());
        self
    }

    /// The name of this process among the workers. A process that starts under the name of another one takes over what that one held:
    /// give a name only if it belongs to one process at a time. A unique one unless set.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Options {
        self.name = Some(name.into());
        self
    }

    /// How often this process shows that it lives (2 s unless set). All processes on a store must agree; after three missed ones a
    /// worker is dead.
    #[must_use]
    pub fn heartbeat(mut self, every: Duration) -> Options {
        self.heartbeat = every;
        self
    }

    /// How many events the buffer of `emit_later` holds (10,000 unless set).
    #[must_use]
    pub fn buffer(mut self, events: usize) -> Options {
        self.buffer.events = events.max(1);
        self
    }

    /// How many bytes of events the buffer of `emit_later` holds (64 MiB unless set).
    #[must_use]
    pub fn buffer_bytes(mut self, bytes: usize) -> Options {
        self.buffer.bytes = bytes;
        self
    }

    /// How many groups of emits are written at the same time (4 unless set, on Redis 1; SQLite's one writer makes the groups itself).
    #[must_use]
    pub fn flushers_at_most(mut self, flushers: usize) -> Options {
        self.flushers = Some(flushers.max(1));
        self
    }

    /// How long tallies are kept to which nothing happens: those that are open, and those that were sealed or have ended (7 days
    /// each unless set). The housekeeping of every process removes by its own settings.
    #[must_use]
    pub fn keep_tallies(mut self, open: Duration, sealed: Duration) -> Options {
        self.tallies_kept = Kept { open, sealed };
        self
    }

    /// How much the store may hold, in bytes; no limit unless set. Within a tenth of it, the housekeeping makes room until a fifth
    /// is free: first settled events go before their retention ends, then the oldest work of push subscriptions, which is
    /// recorded (see [`crate::Store::drops`]).
    #[must_use]
    pub fn store_limit(mut self, bytes: u64) -> Options {
        self.ceiling.bytes = Some(bytes);
        self
    }

    /// Whether a full store may drop the work of pull subscriptions too (not unless set).
    #[must_use]
    pub fn shed_pull(mut self, allowed: bool) -> Options {
        self.ceiling.include_pull = allowed;
        self
    }

    /// Who is told what happens; workers may have their own.
    #[must_use]
    pub fn hooks(mut self, hooks: Arc<dyn Hooks>) -> Options {
        self.hooks = Guarded::around(hooks);
        self
    }

    /// What connects spans with the trace contexts in the headers of events (nothing unless set); see [`crate::engine::trace`].
    #[must_use]
    pub fn traces(mut self, traces: Arc<dyn Traces>) -> Options {
        self.traces = traces;
        self
    }

    /// Whose time counts; only tests set it.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Options {
        self.clock = clock;
        self
    }

    /// How hints travel; chosen by the store unless set.
    #[must_use]
    pub fn wake(mut self, wake: Arc<dyn Wake>) -> Options {
        self.wake = Some(wake);
        self
    }

    /// Over which server hints travel, whatever the store is: `nats://host:4222`, `redis://host:6379` (several nodes of a Cluster with commas), `postgres://host/db`, or `in-process` if
    /// there is one process only. Chosen by the store unless set. Programs on one store have to agree; stores that share a server
    /// have a channel each: `nats://host:4222?channel=shop`. For [`crate::Tramline::with`].
    #[must_use]
    pub fn wake_url(mut self, url: impl Into<String>) -> Options {
        self.wake_url = Some(url.into());
        self
    }

    /// Puts something between the engine and the store, for example to measure how long its verbs take.
    #[must_use]
    pub fn watch_store(
        mut self,
        watch: impl Fn(Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync + 'static,
    ) -> Options {
        self.watch = Some(Watch(Arc::new(watch)));
        self
    }

    /// `None`: the store makes the groups. SQLite's writer knows when it is free for the next one. On Redis two emits at once get into
    /// each other's way.
    pub(crate) fn flushers(&self) -> Option<usize> {
        let is_redis = crate::store::redis::is_redis(&self.url);
        self.flushers.or(is_redis.then_some(1)).or(self.is_server().then_some(4))
    }

    /// True if topics may be on different servers.
    pub(crate) fn is_spread(&self) -> bool {
        let is_redis = crate::store::redis::is_redis(&self.url);
        is_redis && self.url.parse::<RedisOptions>().is_ok_and(|options| options.is_spread())
    }

    /// Opens the store, and the way hints travel on this kind of store unless another one is set.
    pub(crate) async fn open(&self) -> Result<(Opened, Arc<dyn Wake>)> {
        let opened = crate::store::open_kind(&self.url).await?;
        let other = match (&self.wake, &self.wake_url) {
            (Some(wake), _) => Some(wake.clone()),
            (None, Some(url)) => Some(address::open(url, opened.wake_channel().as_deref())?),
            (None, None) => None,
        };
        let wake = match (other, &opened) {
            (None, _) => self.own_wake(&opened)?,
            (Some(wake), Opened::Mysql(store)) => Arc::new(WithInbox::new(store.clone(), wake)),
            (Some(wake), _) => wake,
        };
        Ok((opened, wake))
    }

    /// How hints travel on this kind of store where nobody says anything.
    fn own_wake(&self, opened: &Opened) -> Result<Arc<dyn Wake>> {
        Ok(match opened {
            Opened::Postgres(store) => {
                let options: PostgresOptions = self.url.parse()?;
                match self.listen_url.as_deref().or_else(|| options.listen_url()) {
                    Some(url) => {
                        let relay = Relay::postgres(url, &store.wake_channel())?;
                        store.speak_with(relay.voice());
                        Arc::new(relay)
                    }
                    None => Arc::new(InProcess::new()),
                }
            }
            Opened::Mysql(store) => Arc::new(Pulse::new(store.clone())),
            Opened::Redis(store) => {
                let relay = Relay::redis(store.options().nodes(), &store.wake_channel())?;
                store.speak_with(relay.voice());
                Arc::new(relay)
            }
            Opened::Spread(store) => Arc::new(Relay::redis(store.options().nodes(), &store.wake_channel())?),
            Opened::Sqlite(store) => match store.path() {
                Some(path) => Arc::new(FileWatch::new(path)?),
                None => Arc::new(InProcess::new()),
            },
        })
    }

    fn is_server(&self) -> bool {
        ["postgres:", "postgresql:", "mysql:", "mariadb:"].iter().any(|scheme| self.url.starts_with(scheme))
    }
}
