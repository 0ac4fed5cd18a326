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
        let servers = servers(url)?;
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

/// What comes after the first one is reached as that is, unless it says otherwise.
fn servers(url: &str) -> Result<Vec<ServerAddr>> {
    let scheme = url.split_once("://").map_or("nats", |(scheme, _)| scheme);
    let in_full = |one: &str| if one.contains("://") { one.to_owned() } else { format!("{scheme}://{one}") };
    let servers = url.split(',').map(|one| server(&in_full(one.trim()))).collect::<Result<Vec<_>>>()?;
    let credentials = |server: &ServerAddr| {
        let password = server.password().map(str::to_owned);
        server.username().map(|user| (user.to_owned(), password))
    };
    let first = servers.first().and_then(credentials);
    if servers.iter().filter_map(credentials).any(|own| Some(own) != first) {
        return Err(Error::invalid(
            "the URL of the wake-ups names several users, and all servers are told the first one",
            "name one user, before the first server: nats://user:password@a:4222,b:4222",
        ));
    }
    Ok(servers)
}

fn server(url: &str) -> Result<ServerAddr> {
    let bad = || Error::invalid("the URL of the wake-ups names no NATS", "use nats://host:4222");
    let server = url.parse::<ServerAddr>().map_err(|error| bad().because(error))?;
    let is_reached = matches!(server.scheme(), "nats" | "tls") && server.port() != 0;
    let is_whole = matches!(server.clone().into_inner().path(), "" | "/");
    if server.host().is_empty() || !is_reached || !is_whole { Err(bad()) } else { Ok(server) }
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
            // Also by those of which only the servers know.
            .require_tls(self.servers.iter().all(ServerAddr::tls_required))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn reached(url: &str) -> Vec<String> {
        servers(url).unwrap().iter().map(|server| server.as_url_str().to_owned()).collect()
    }

    /// They were reached in the clear, if they let themselves, and were told the password.
    #[test]
    fn servers_after_the_first_one_speak_tls_as_it_does() {
        assert_eq!(reached("tls://u:p@a:1,b:2, c"), ["tls://u:p@a:1", "tls://b:2", "tls://c"]);
        assert_eq!(reached("nats://a,tls://b"), ["nats://a", "tls://b"]);
        assert_eq!(reached("nats://u:p@a/,u:p@b/").len(), 2);
    }
}
