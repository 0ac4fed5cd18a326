//! Hints between processes over Redis, by pub/sub. For any store; nothing is kept in that Redis.

use crate::error::{Error, Result};
use crate::wake::relay::{Broken, Channel, Ear, Mouth, Relay};
use async_trait::async_trait;
use futures_util::StreamExt;
use redis::aio::{MultiplexedConnection, PubSubSink, PubSubStream};
use redis::{Client, IntoConnectionInfo};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A connection on which nothing is heard for this long is asked whether it is still there.
const QUIET: Duration = Duration::from_secs(20);
/// How long it may take to say so.
const PATIENCE: Duration = Duration::from_secs(5);

impl Relay {
    /// Hints over a channel of a Redis server, or of a Cluster, where every node passes on what any of them is told: `urls` are
    /// `redis://` or `rediss://`, one for each node. Connects in the background, and again whenever the connection is lost, to
    /// another node every time; until then hints stay in this process. Needs a Tokio runtime.
    ///
    /// # Errors
    /// `Invalid` when a URL is not one of Redis.
    pub fn redis<'u>(urls: impl IntoIterator<Item = &'u str>, channel: &str) -> Result<Relay> {
        crate::tls::prepare();
        let client = |url: &str| {
            url.into_connection_info().and_then(Client::open).map_err(|error| {
                Error::invalid(
                    "the URL of the wake-ups names no Redis",
                    "use redis://host:6379 or rediss://host",
                )
                .because(error)
            })
        };
        let nodes = urls.into_iter().map(client).collect::<Result<Vec<Client>>>()?;
        Ok(Relay::new(Server { nodes, turn: AtomicUsize::new(0), channel: channel.to_owned() }))
    }
}

struct Server {
    nodes: Vec<Client>,
    turn: AtomicUsize,
    channel: String,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the clients: they may have a password.
        write!(f, "Redis, channel {}", self.channel)
    }
}

impl Server {
    /// The node to ask this time.
    fn node(&self) -> Result<&Client, Broken> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.nodes.len().max(1);
        Ok(self.nodes.get(turn).ok_or("no server is named")?)
    }
}

#[async_trait]
impl Channel for Server {
    async fn ear(&self) -> Result<Box<dyn Ear>, Broken> {
        let mut connection = self.node()?.get_async_pubsub().await?;
        connection.subscribe(&self.channel).await?;
        let (sink, stream) = connection.split();
        Ok(Box::new(Subscriber { sink, stream }))
    }

    async fn mouth(&self) -> Result<Box<dyn Mouth>, Broken> {
        let connection = self.node()?.get_multiplexed_async_connection().await?;
        Ok(Box::new(Publisher { connection, channel: self.channel.clone() }))
    }
}

struct Subscriber {
    sink: PubSubSink,
    stream: PubSubStream,
}

#[async_trait]
impl Ear for Subscriber {
    async fn hear(&mut self) -> Result<String, Broken> {
        loop {
            match tokio::time::timeout(QUIET, self.stream.next()).await {
                // Anybody may say anything here, and that is no reason to leave.
                Ok(Some(message)) => {
                    return Ok(String::from_utf8_lossy(message.get_payload_bytes()).into_owned());
                }
                Ok(None) => return Err("the connection was closed".into()),
                // A server that vanished without a word is noticed by that.
                Err(_) => {
                    let answer = tokio::time::timeout(PATIENCE, self.sink.ping::<redis::Value>()).await;
                    answer.map_err(|_| "no answer in time")??;
                }
            }
        }
    }
}

struct Publisher {
    connection: MultiplexedConnection,
    channel: String,
}

#[async_trait]
impl Mouth for Publisher {
    async fn say(&mut self, hint: &str) -> Result<(), Broken> {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&self.channel).arg(hint);
        publish.query_async::<i64>(&mut self.connection).await?;
        Ok(())
    }
}
