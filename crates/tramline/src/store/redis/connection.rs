//! The connection: it comes back by itself, and goes where the primary is.

use super::options::RedisOptions;
use crate::error::Result;
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::{Client, Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a connection may take, and an answer.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(10);
/// How often a command is tried, and how long the first pause is.
pub(super) const TRIES: u32 = 6;
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// Cheap to clone.
#[derive(Clone)]
pub(super) enum Connection {
    Server(Arc<Server>),
    Cluster(ClusterConnection),
}

/// One server, by a name that may lead to another one later.
pub(super) struct Server {
    client: Client,
    config: ConnectionManagerConfig,
    current: Mutex<Current>,
    renewing: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Current {
    number: u64,
    manager: ConnectionManager,
}

impl Connection {
    pub(super) async fn open(options: &RedisOptions) -> Result<Connection> {
        let nodes = options.nodes.iter().map(String::as_str);
        if options.cluster {
            // Nothing is sent again without our knowing: what was written twice would be done twice.
            let client = ClusterClientBuilder::new(nodes)
                .retries(0)
                .connection_timeout(CONNECT)
                .response_timeout(ANSWER)
                .build()?;
            return Ok(Connection::Cluster(client.get_async_connection().await?));
        }
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(ANSWER))
            .set_number_of_retries(2)
            .set_max_delay(Duration::from_millis(500));
        let client = Client::open(nodes.collect::<String>())?;
        let manager = ConnectionManager::new_with_config(client.clone(), config.clone()).await?;
        let current = Mutex::new(Current { number: 0, manager });
        Ok(Connection::Server(Arc::new(Server { client, config, current, renewing: Default::default() })))
    }

    /// The word by which scripts know what they run on.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Connection::Server(_) => "server",
            Connection::Cluster(_) => "cluster",
        }
    }

    /// One command that may be repeated. It is, with pauses, while the server cannot serve.
    pub(super) async fn send(&self, command: &Cmd, breaks: &AtomicU64) -> RedisResult<Value> {
        let mut pause = PAUSE;
        for _ in 1..TRIES {
            match self.send_once(command, breaks).await {
                Err(error) if was_not_done(&error) || was_lost(&error) => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                answer => return answer,
            }
        }
        self.send_once(command, breaks).await
    }

    /// One command, once. Counts errors after which it may be another server.
    pub(super) async fn send_once(&self, command: &Cmd, breaks: &AtomicU64) -> RedisResult<Value> {
        let answer = match self {
            Connection::Server(server) => server.send(command).await,
            Connection::Cluster(cluster) => {
                let answer = cluster.clone().req_packed_command(command).await;
                answer.and_then(Value::extract_error)
            }
        };
        if answer.as_ref().is_err_and(may_be_another) {
            breaks.fetch_add(1, SeqCst);
        }
        answer
    }
}

impl Server {
    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let mut current = self.current();
        let answer = current.manager.req_packed_command(command).await.and_then(Value::extract_error);
        if answer.as_ref().is_err_and(is_replica) {
            self.renew(current.number).await;
        }
        answer
    }

    fn current(&self) -> Current {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The server is a replica by now, and would keep this connection open for ever: its name may lead to the new primary.
    async fn renew(&self, number: u64) {
        let _one_at_a_time = self.renewing.lock().await;
        if self.current().number != number {
            return;
        }
        let connected = ConnectionManager::new_with_config(self.client.clone(), self.config.clone()).await;
        // If nobody is there, the next call finds that out.
        if let Ok(manager) = connected {
            let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            *current = Current { number: number + 1, manager };
        }
    }
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
