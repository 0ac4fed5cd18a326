//! Hints between processes on PostgreSQL: LISTEN and NOTIFY, each on a connection of its own.
//!
//! NOTIFY takes a lock that all notifying commits share, so it never runs inside the transaction of an emit. Hints of lone emits are not said
//! here, but by the server that stores them (`store/postgres/tell.rs`).

use crate::wake::relay::{Broken, Channel, Ear, Mouth, Relay};
use async_trait::async_trait;
use sqlx::postgres::PgListener;
use sqlx::{Connection, Executor, PgConnection};

impl Relay {
    /// Hints over a channel of a PostgreSQL database. Connects in the background, and again whenever the connection is lost; until then hints stay in this process. `url` must
    /// lead to the server itself, not to a pooler that shares connections; `channel` is the one of the store. Needs a Tokio runtime.
    pub fn postgres(url: &str, channel: &str) -> Relay {
        Relay::new(Server { url: url.to_owned(), channel: channel.to_owned() })
    }
}

struct Server {
    url: String,
    channel: String,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the URL: it may have a password.
        write!(f, "PostgreSQL, channel {}", self.channel)
    }
}

#[async_trait]
impl Channel for Server {
    async fn ear(&self) -> Result<Box<dyn Ear>, Broken> {
        let mut listener = PgListener::connect(&self.url).await?;
        listener.eager_reconnect(false);
        listener.listen(&self.channel).await?;
        Ok(Box::new(listener))
    }

    async fn mouth(&self) -> Result<Box<dyn Mouth>, Broken> {
        let mut connection = PgConnection::connect(&self.url).await?;
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
