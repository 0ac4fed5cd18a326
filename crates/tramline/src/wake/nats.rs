//! Hints between processes over NATS. For any store; core NATS is enough, nothing is kept there.

use crate::error::{Error, Result};
use crate::wake::relay::{Broken, Channel, Ear, Mouth, Relay};
use async_nats::{Client, ConnectOptions, Event, ServerAddr, ServerError, Subscriber};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A server that vanished without a word is noticed within two of these.
const PING: Duration = Duration::from_secs(20);

impl Relay {
    /// Hints over a subject of a NATS server. Connects in the background, and again whenever the connection is lost; until then hints stay in this process. `url` is
    /// `nats://` or `tls://`, or several of them with commas for a cluster. Needs a Tokio runtime.
    ///
    /// # Errors
    /// `Invalid` when the URL is not one of NATS, or the subject is none.
    pub fn nats(url: &str, subject: &str) -> Result<Relay> {
        crate::tls::prepare();
        let servers = url.split(',').map(|one| one.trim().parse::<ServerAddr>());
        let servers = servers.collect::<std::io::Result<Vec<_>>>().map_err(|error| {
            Error::invalid("the URL of the wake-ups names no NATS", "use nats://host:4222").because(error)
        })?;
        let is_token = |token: &str| {
            !token.is_empty() && !token.contains(|c: char| c.is_whitespace() || "*>".contains(c))
        };
        if !subject.split('.').all(is_token) {
            return Err(Error::invalid(
                format!("{subject:?} is no subject of NATS"),
                "use letters, digits, and dots between them",
            ));
        }
        Ok(Relay::new(Cluster { servers, subject: subject.to_owned(), complained: Arc::default() }))
    }
}

struct Cluster {
    servers: Vec<ServerAddr>,
    subject: String,
    /// A user who may not use the subject is told so again and again; whoever reads the log, once.
    complained: Arc<AtomicBool>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the servers: they may have passwords.
        write!(f, "NATS, subject {}", self.subject)
    }
}

impl Cluster {
    /// A connection, and what is cancelled when it is lost. Connecting again is left to the relay, which knows what was missed.
    async fn connect(&self) -> Result<(Client, CancellationToken), Broken> {
        let lost = CancellationToken::new();
        let (tell, complained, subject) = (lost.clone(), self.complained.clone(), self.subject.clone());
        let options = ConnectOptions::new()
            .name("tramline")
            .ping_interval(PING)
            .max_reconnects(self.servers.len())
            .event_callback(move |event| {
                match event {
                    Event::Disconnected | Event::Closed => tell.cancel(),
                    Event::ServerError(ServerError::Other(error))
                        if is_refusal(&error) && !complained.swap(true, Relaxed) =>
                    {
                        tracing::warn!(
                            error,
                            subject,
                            "NATS refuses wake-ups; let its user publish and subscribe to this subject"
                        );
                    }
                    _ => {}
                }
                std::future::ready(())
            });
        let credentials =
            self.servers.first().and_then(|server| Some((server.username()?, server.password())));
        let options = match credentials {
            Some((user, Some(password))) => options.user_and_password(decoded(user), decoded(password)),
            Some((token, None)) => options.token(decoded(token)),
            None => options,
        };
        Ok((options.connect(self.servers.clone()).await?, lost))
    }
}

/// The server calls it a `Permissions Violation for Publish to "subject"`, or for a subscription.
fn is_refusal(error: &str) -> bool {
    error.to_ascii_lowercase().contains("permissions violation")
}

/// The driver gives them as they are written in the URL: `%40` stands for `@`, which cannot be written there.
fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[async_trait]
impl Channel for Cluster {
    async fn ear(&self) -> Result<Box<dyn Ear>, Broken> {
        let (client, lost) = self.connect().await?;
        let hints = client.subscribe(self.subject.clone()).await?;
        // It is on its way to the server when this ends, before anybody looks for what was not heard.
        client.flush().await?;
        Ok(Box::new(Listening { hints, lost, _client: client }))
    }

    async fn mouth(&self) -> Result<Box<dyn Mouth>, Broken> {
        let (client, lost) = self.connect().await?;
        Ok(Box::new(Speaking { client, lost, subject: self.subject.clone() }))
    }
}

struct Listening {
    hints: Subscriber,
    lost: CancellationToken,
    _client: Client,
}

#[async_trait]
impl Ear for Listening {
    async fn hear(&mut self) -> Result<String, Broken> {
        tokio::select! {
            () = self.lost.cancelled() => Err("the connection is lost".into()),
            hint = self.hints.next() => {
                let hint = hint.ok_or("the connection was closed")?;
                Ok(String::from_utf8_lossy(&hint.payload).into_owned())
            }
        }
    }
}

struct Speaking {
    client: Client,
    lost: CancellationToken,
    subject: String,
}

#[async_trait]
impl Mouth for Speaking {
    async fn say(&mut self, hint: &str) -> Result<(), Broken> {
        if self.lost.is_cancelled() {
            return Err("the connection is lost".into());
        }
        self.client.publish(self.subject.clone(), Bytes::copy_from_slice(hint.as_bytes())).await?;
        self.client.flush().await?;
        Ok(())
    }
}
