//! The connection, the two scripts, and what the errors of the server mean.

use super::options::RedisOptions;
use crate::error::{Error, Kind, Result};
use crate::model::time::Time;
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::{Client, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use std::sync::Arc;
use std::time::Duration;

/// How long a connection may take, and an answer.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(10);
/// How often something that was certainly not done is tried again, and how long the first pause is.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(20);

/// The words of one Redis command.
pub(super) type Command = Vec<Vec<u8>>;

/// A script and its name.
struct Script {
    sha: String,
    text: &'static str,
}

/// A connection that comes back by itself. Cheap to clone.
#[derive(Clone)]
pub(super) struct Link {
    connection: Connection,
    /// Reading and committing.
    scripts: Arc<[Script; 2]>,
}

#[derive(Clone)]
enum Connection {
    Server(ConnectionManager),
    Cluster(ClusterConnection),
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Link")
    }
}

/// How the writing of a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Done,
    /// Something that it had read is different by now.
    Changed,
    /// It is somebody else's turn.
    Wait,
}

/// What a moment of reading gave.
pub(super) struct Moment {
    pub(super) now: Time,
    /// A reply and its digest for each read.
    pub(super) replies: Vec<(Value, Vec<u8>)>,
}

impl Link {
    pub(super) async fn open(options: &RedisOptions) -> Result<Link> {
        let nodes = options.nodes.iter().map(String::as_str);
        let connection = if options.cluster {
            // Nothing is sent again without our knowing: what was written twice would be done twice.
            let client = ClusterClientBuilder::new(nodes)
                .retries(0)
                .connection_timeout(CONNECT)
                .response_timeout(ANSWER)
                .build()?;
            Connection::Cluster(client.get_async_connection().await?)
        } else {
            let config = ConnectionManagerConfig::new()
                .set_connection_timeout(Some(CONNECT))
                .set_response_timeout(Some(ANSWER))
                .set_number_of_retries(2)
                .set_max_delay(Duration::from_millis(500));
            let client = Client::open(nodes.collect::<String>())?;
            Connection::Server(ConnectionManager::new_with_config(client, config).await?)
        };
        let scripts = [include_str!("scripts/read.lua"), include_str!("scripts/commit.lua")];
        Ok(Link { connection, scripts: Arc::new(scripts.map(|text| Script { sha: sha1(text), text })) })
    }

    /// Reads at one moment. What only reads may be repeated.
    pub(super) async fn read(&self, key: &[u8], commands: &[Command]) -> Result<Moment> {
        let mut call = self.scripts[0].call(key);
        commands.iter().for_each(|command| add(&mut call, command));
        let Value::Array(answer) = self.run(&self.scripts[0], &call, true).await? else {
            return Err(strange());
        };
        let mut answer = answer.into_iter();
        let mut number =
            || answer.next().and_then(|value| text(&value)?.parse::<i64>().ok()).ok_or_else(strange);
        let (seconds, micros) = (number()?, number()?);
        let mut replies = Vec::with_capacity(commands.len());
        while let (Some(reply), Some(digest)) = (answer.next(), answer.next()) {
            replies.push((reply, bytes(digest)));
        }
        Ok(Moment { now: Time(seconds * 1000 + micros / 1000), replies })
    }

    /// Writes a step, if what it has read is still so. An error leaves open whether it happened, unless it says that nothing did.
    pub(super) async fn commit(
        &self,
        key: &[u8],
        name: &[u8],
        reads: &[(&Command, &[u8])],
        writes: &[Command],
    ) -> Result<Ended> {
        let mut call = self.scripts[1].call(key);
        call.arg(name).arg(self.connection.kind()).arg(reads.len());
        for (command, digest) in reads {
            add(&mut call, command);
            call.arg(digest);
        }
        writes.iter().for_each(|command| add(&mut call, command));
        match text(&self.run(&self.scripts[1], &call, false).await?).as_deref() {
            Some("done") => Ok(Ended::Done),
            Some("changed") => Ok(Ended::Changed),
            Some("wait") => Ok(Ended::Wait),
            _ => Err(strange()),
        }
    }

    async fn run(&self, script: &Script, call: &Cmd, again: bool) -> Result<Value> {
        match self.send(call, again).await {
            // The server was started anew, or is another one now, or somebody flushed its scripts.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(script.text);
                self.send(&load, true).await?;
                Ok(self.send(call, again).await?)
            }
            answer => Ok(answer?),
        }
    }

    /// One command. What was certainly not done is tried again, and with `again` also what may have been.
    pub(super) async fn send(&self, command: &Cmd, again: bool) -> redis::RedisResult<Value> {
        let mut pause = PAUSE;
        for _ in 1..TRIES {
            match self.connection.clone().send(command).await {
                Err(error) if was_not_done(&error) || (again && was_lost(&error)) => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                answer => return answer,
            }
        }
        self.connection.clone().send(command).await
    }
}

impl Connection {
    /// The word by which the script knows what it runs on.
    fn kind(&self) -> &'static str {
        match self {
            Connection::Server(_) => "server",
            Connection::Cluster(_) => "cluster",
        }
    }

    async fn send(&mut self, command: &Cmd) -> redis::RedisResult<Value> {
        let value = match self {
            Connection::Server(server) => server.req_packed_command(command).await?,
            Connection::Cluster(cluster) => cluster.req_packed_command(command).await?,
        };
        value.extract_error()
    }
}

/// True if the server said that it did nothing: the slot is elsewhere, or it cannot serve just now.
fn was_not_done(error: &RedisError) -> bool {
    use ServerErrorKind::*;
    let refused = [Moved, Ask, TryAgain, ClusterDown, MasterDown, ReadOnly, BusyLoading];
    matches!(error.kind(), ErrorKind::Server(kind) if refused.contains(&kind))
        || matches!(error.kind(), ErrorKind::ClusterConnectionNotFound)
        || error.is_connection_refusal()
}

fn was_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped()
}

impl Script {
    /// A call of it, still without arguments.
    fn call(&self, key: &[u8]) -> Cmd {
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.sha).arg(1).arg(key);
        call
    }
}

/// Adds a command to the arguments of a script.
fn add(call: &mut Cmd, command: &Command) {
    call.arg(command.len());
    for word in command {
        call.arg(word.as_slice());
    }
}

pub(super) fn bytes(value: Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes,
        Value::SimpleString(text) => text.into_bytes(),
        Value::Int(number) => number.to_string().into_bytes(),
        _ => Vec::new(),
    }
}

pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Scripts are known by the SHA-1 of their text.
fn sha1(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn strange() -> Error {
    Error::unavailable(
        "Redis answered something else than a script of this program gives",
        "see the server's log",
    )
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Error {
        let remedy = match (error.code(), error.kind()) {
            (Some("OOM"), _) => {
                "Redis is full; raise maxmemory, or let retention, limits and workers make room"
            }
            (Some("MISCONF"), _) => "Redis cannot write to its disk; see its log",
            (Some("NOAUTH" | "WRONGPASS" | "NOPERM"), _) | (_, ErrorKind::AuthenticationFailed) => {
                "check user, password and rights in the URL"
            }
            (Some("READONLY"), _) => "this server is a replica; name the primary in the URL",
            (Some("CLUSTERDOWN"), _) => "the Cluster is down; work goes on by itself when it is up",
            (Some("BUSY"), _) => "another program's script keeps Redis busy; end it with SCRIPT KILL",
            (_, ErrorKind::InvalidClientConfig) => "check the URL",
            _ => "check that Redis runs and can be reached; work goes on by itself",
        };
        Error::new(Kind::Unavailable, "Redis failed", remedy).because(error)
    }
}
