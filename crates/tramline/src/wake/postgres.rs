//! Hints between processes on PostgreSQL: LISTEN and NOTIFY, each on a connection of its own.
//!
//! NOTIFY takes a lock that all notifying commits share, so it never runs inside the transaction of an emit. Hints of lone emits are not said
//! here, but by the server that stores them (`store/postgres/tell.rs`).

use crate::error::{Error, Result};
use crate::wake::relay::{Broken, Channel, Ear, Mouth, Relay};
use async_trait::async_trait;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{Connection, Executor, PgConnection};
use url::Url;

/// What the driver takes. It passes over what it does not know.
const PARAMETERS: [&str; 18] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

impl Relay {
    /// Hints over a channel of a PostgreSQL database. Connects in the background, and again whenever the connection is lost; until then hints stay in this process. `url` must
    /// lead to the server itself, not to a pooler that shares connections; `channel` is the one of the store. Needs a Tokio runtime.
    ///
    /// # Errors
    /// `Invalid` when the URL is not one of PostgreSQL.
    pub fn postgres(url: &str, channel: &str) -> Result<Relay> {
        let connect = url
            .parse::<PgConnectOptions>()
            .map_err(|error| bad("the URL of the wake-ups names no PostgreSQL").because(error))?;
        if connect.get_port() == 0 {
            return Err(bad("the URL of the wake-ups names a port that no server has"));
        }
        Ok(Relay::new(Server { connect, channel: channel.to_owned() }))
    }
}

/// Refuses what the driver would pass over, or take for something else: without a host it goes to this machine.
pub(super) fn check(url: &str) -> Result<()> {
    let url =
        Url::parse(url).map_err(|error| bad("the URL of the wake-ups cannot be read").because(error))?;
    let names: Vec<String> = url.query_pairs().map(|(name, _)| name.into_owned()).collect();
    let is_known = |name: &String| PARAMETERS.contains(&&**name) || name.starts_with("options[");
    if !names.iter().all(is_known) {
        return Err(Error::invalid(
            "the URL of the wake-ups has a parameter that nobody knows",
            "there is channel, and what the driver of PostgreSQL takes, such as sslmode",
        ));
    }
    let host = url.host_str().unwrap_or_default();
    if host.contains(',') {
        return Err(bad("the URL of the wake-ups names several hosts; the driver of PostgreSQL takes one"));
    }
    if host.is_empty() && !names.iter().any(|name| name.starts_with("host")) {
        return Err(bad("the URL of the wake-ups names no host"));
    }
    Ok(())
}

fn bad(what: &str) -> Error {
    Error::invalid(what, "write it like postgres://user:password@host:5432/database")
}

struct Server {
    connect: PgConnectOptions,
    channel: String,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not how to connect: there may be a password.
        write!(f, "PostgreSQL, channel {}", self.channel)
    }
}

#[async_trait]
impl Channel for Server {
    async fn ear(&self) -> Result<Box<dyn Ear>, Broken> {
        let pool = PgPoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None);
        let mut listener = PgListener::connect_with(&pool.connect_with(self.connect.clone()).await?).await?;
        listener.eager_reconnect(false);
        listener.listen(&self.channel).await?;
        Ok(Box::new(listener))
    }

    async fn mouth(&self) -> Result<Box<dyn Mouth>, Broken> {
        let mut connection = PgConnection::connect_with(&self.connect).await?;
        // A hint may be lost with the server; waiting for the disk would only make it late.
        connection.execute("SET synchronous_commit = off").await?;
        Ok(Box::new(Notifier { connection, channel: self.channel.clone() }))
    }
}

#[async_trait]
impl Ear for PgListener {
    async fn hear(&mut self) -> Result<String, Broken> {
        let notification = self.try_recv().await?.ok_or("the connection was closed")?;
        Ok(notification.payload().to_owned())
    }
}

struct Notifier {
    connection: PgConnection,
    channel: String,
}

#[async_trait]
impl Mouth for Notifier {
    async fn say(&mut self, hint: &str) -> Result<(), Broken> {
        let query = sqlx::query("SELECT pg_notify($1, $2)").bind(&self.channel).bind(hint);
        query.execute(&mut self.connection).await?;
        Ok(())
    }
}
