//! The connection: it comes back by itself, and goes where the primary is.

use super::options::RedisOptions;
use crate::error::Result;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, IntoConnectionInfo, RedisError, RedisResult,
    ServerErrorKind, Value,
};
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// How often a command is tried, and how long the first pause is.
pub(super) const TRIES: u32 = 6;
pub(super) const PAUSE: Duration = Duration::from_millis(20);
/// How often a connection on which nothing happens shows that it is in use, to whatever is between here and the server.
const ALIVE: Duration = Duration::from_secs(30);

/// A server, or a Cluster, and the connection to it.
pub(super) struct Connection {
    dialer: Dialer,
    /// How long an answer may take.
    answer: Duration,
    current: Mutex<Current>,
    dialling: tokio::sync::Mutex<()>,
    /// How often something went wrong: what a server said before may be unknown to the one that answers now. Grows under the lock of
    /// `current`, before another connection is made.
    breaks: Arc<AtomicU64>,
}

enum Dialer {
    Server(Box<Client>),
    Cluster(Box<ClusterClient>),
}

#[derive(Clone)]
struct Current {
    number: u64,
    line: Line,
    is_lost: bool,
}

#[derive(Clone)]
enum Line {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    pub(super) async fn open(options: &RedisOptions) -> Result<Connection> {
        let (dialer, answer) = (Dialer::new(options)?, options.answer);
        let line = in_time(Instant::now() + answer * 2, dialer.dial(answer)).await?;
        let current = Mutex::new(Current { number: 0, line, is_lost: false });
        Ok(Connection { dialer, answer, current, dialling: Default::default(), breaks: Arc::default() })
    }

    /// The word by which scripts know what they run on.
    pub(super) fn kind(&self) -> &'static str {
        match self.dialer {
            Dialer::Server(_) => "server",
            Dialer::Cluster(_) => "cluster",
        }
    }

    /// Grows when something goes wrong.
    pub(super) fn breaks(&self) -> Arc<AtomicU64> {
        self.breaks.clone()
    }

    /// One command that may be repeated. It is, with pauses, while the server cannot serve, for as long as two answers may take.
    pub(super) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let (mut pause, deadline) = (PAUSE, self.deadline());
        for _ in 1..TRIES {
            match self.send_by(deadline, command, None).await {
                Err(error) if was_not_done(&error) || was_lost(&error) => {
                    if Instant::now() + pause >= deadline {
                        return Err(error);
                    }
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                answer => return answer.map(Option::unwrap_or_default),
            }
        }
        self.send_by(deadline, command, None).await.map(Option::unwrap_or_default)
    }

    /// One command, once, and only if nothing went wrong since `breaks` was what it is; else nothing happens, and nothing is given.
    pub(super) async fn send_once(&self, command: &Cmd, breaks: u64) -> RedisResult<Option<Value>> {
        self.send_by(self.deadline(), command, Some(breaks)).await
    }

    /// One command for every node of a Cluster, the replicas too; what each of them answers. It is sent once, and if one of them does not
    /// answer, that is no reason to leave the others.
    pub(super) async fn send_to_all(&self, command: &Cmd) -> RedisResult<Value> {
        let sent = async {
            let (current, _) = self.connected().await?;
            current.line.send_to_all(command).await
        };
        in_time(Instant::now() + self.answer, sent).await
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.answer * 2
    }

    async fn send_by(
        &self,
        deadline: Instant,
        command: &Cmd,
        breaks: Option<u64>,
    ) -> RedisResult<Option<Value>> {
        let mut number = None;
        let sent = async {
            let (current, now) = self.connected().await?;
            number = Some(current.number);
            if breaks.is_some_and(|breaks| breaks != now) {
                return Ok(None);
            }
            current.line.send(command).await.map(Some)
        };
        let answer = in_time(deadline, sent).await;
        if let Err(error) = &answer {
            self.went_wrong(number, error);
        }
        answer
    }

    /// A connection that was not lost, and how often something went wrong before it was taken.
    async fn connected(&self) -> RedisResult<(Current, u64)> {
        if let Some(found) = self.usable() {
            return Ok(found);
        }
        let _one_at_a_time = self.dialling.lock().await;
        if let Some(found) = self.usable() {
            return Ok(found);
        }
        let dialled = self.dialer.dial(self.answer).await;
        let mut current = self.current();
        match dialled {
            Ok(line) => *current = Current { number: current.number + 1, line, is_lost: false },
            // A Cluster may know nodes that nobody named.
            Err(_) if matches!(self.dialer, Dialer::Cluster(_)) => current.is_lost = false,
            Err(error) => return Err(error),
        }
        Ok((current.clone(), self.breaks.load(SeqCst)))
    }

    fn usable(&self) -> Option<(Current, u64)> {
        let current = self.current();
        (!current.is_lost).then(|| (current.clone(), self.breaks.load(SeqCst)))
    }

    /// Counts errors after which it may be another server, and leaves a connection from which nothing is to be expected.
    fn went_wrong(&self, number: Option<u64>, error: &RedisError) {
        let mut current = self.current();
        if may_be_another(error) {
            self.breaks.fetch_add(1, SeqCst);
        }
        if number == Some(current.number) && self.dialer.leaves(error) {
            current.is_lost = true;
        }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dialer {
    fn new(options: &RedisOptions) -> RedisResult<Dialer> {
        let (answer, nodes) = (options.answer, options.nodes.iter().map(String::as_str));
        if options.cluster {
            // Nothing is sent again without our knowing: what was written twice would be done twice.
            let builder = ClusterClientBuilder::new(nodes)
                .retries(0)
                .connection_timeout(connecting(answer))
                .response_timeout(answer)
                .tcp_settings(tcp(answer));
            return Ok(Dialer::Cluster(Box::new(builder.build()?)));
        }
        let info = nodes.collect::<String>().into_connection_info()?.set_tcp_settings(tcp(answer));
        Ok(Dialer::Server(Box::new(Client::open(info)?)))
    }

    async fn dial(&self, answer: Duration) -> RedisResult<Line> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(connecting(answer)))
            .set_response_timeout(Some(answer));
        Ok(match self {
            Dialer::Server(client) => {
                Line::Server(client.get_multiplexed_async_connection_with_config(&config).await?)
            }
            Dialer::Cluster(client) => Line::Cluster(client.get_async_connection().await?),
        })
    }

    /// True if the connection is to be made anew. A server that became a replica keeps its connections open for ever, and its name may lead to
    /// the new primary; one that vanished without a word closes none, and each command would wait for its answer in vain. A Cluster
    /// finds the way by itself, but for the latter.
    fn leaves(&self, error: &RedisError) -> bool {
        match self {
            Dialer::Server(_) => was_lost(error) || is_replica(error),
            Dialer::Cluster(_) => error.is_timeout(),
        }
    }
}

impl Line {
    async fn send(self, command: &Cmd) -> RedisResult<Value> {
        tracing::trace!(target: "tramline::query", "round trip");
        let answer = match self {
            Line::Server(mut server) => server.req_packed_command(command).await,
            Line::Cluster(mut cluster) => cluster.req_packed_command(command).await,
        };
        answer.and_then(Value::extract_error)
    }

    async fn send_to_all(self, command: &Cmd) -> RedisResult<Value> {
        let Line::Cluster(mut cluster) = self else { return self.send(command).await };
        tracing::trace!(target: "tramline::query", "round trip");
        let everywhere = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllNodes, None));
        cluster.route_command(command.clone(), everywhere).await.and_then(Value::extract_error)
    }
}

/// How long connecting may take: so a call that did not get its answer has time for a new connection, also if a node of a Cluster does
/// not answer.
fn connecting(answer: Duration) -> Duration {
    answer / 2
}

/// The system ends a connection on which nothing was acknowledged for as long as an answer may take.
fn tcp(answer: Duration) -> TcpSettings {
    let settings = TcpSettings::default().set_keepalive(TcpKeepalive::new().with_time(ALIVE));
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(answer);
    #[cfg(not(target_os = "linux"))]
    let _ = answer;
    settings
}

async fn in_time<T>(deadline: Instant, asked: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    let late = || RedisError::from(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
    timeout_at(deadline, asked).await.unwrap_or_else(|_| Err(late()))
}

/// True if the server said that it did nothing: the slot is elsewhere, or it cannot serve just now.
pub(super) fn was_not_done(error: &RedisError) -> bool {
    use ServerErrorKind::*;
    let refused = [Moved, Ask, TryAgain, ClusterDown, MasterDown, ReadOnly, BusyLoading];
    matches!(error.kind(), ErrorKind::Server(kind) if refused.contains(&kind))
        || matches!(error.kind(), ErrorKind::ClusterConnectionNotFound)
        || error.is_connection_refusal()
        || is_replica(error)
}

/// True unless the server that everybody knows has answered, be it that it is full.
fn may_be_another(error: &RedisError) -> bool {
    was_not_done(error) || was_lost(error) || code(error) == "NOSCRIPT"
}

fn was_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped()
}

/// A script on a replica ends at its first write, so nothing was done.
fn is_replica(error: &RedisError) -> bool {
    code(error) == "READONLY"
}

/// What the server calls an error. Before 7.0 it wraps those that happen in a script: `ERR Error running script (..): -OOM command ..`.
pub(super) fn code<'e>(error: &'e RedisError) -> &'e str {
    let wrapped =
        error.detail().filter(|text| text.contains("running script") || text.contains("@user_script"));
    let is_code = |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase());
    let codes = |text: &'e str| text.split_whitespace().filter_map(|word| word.strip_prefix('-'));
    let inner = wrapped.and_then(|text| codes(text).find(is_code));
    inner.or(error.code()).unwrap_or_default()
}
