//! The Redis server that is measured, or of a Cluster the node that has the store: the row loop runs there too, on plain connections.

use super::row::BoxError;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError};
use std::time::Duration;

/// One server, and what the store on it is called.
pub(super) struct Server {
    url: String,
    name: String,
    /// All servers that were named.
    all: Vec<String>,
}

impl Server {
    /// Of the servers that a store's URL names, or that they know of, the one with the keys of the store `name`.
    pub(super) async fn of(store: &str, name: &str) -> Result<Server, BoxError> {
        let (scheme, rest) = store.split_once("://").ok_or("the URL cannot be read")?;
        let scheme = scheme.trim_end_matches("+cluster");
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        // Of the parameters all are Tramline's.
        let path = path.split('?').next().unwrap_or_default();
        let (user, hosts) = authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (user, hosts));
        let sign = if user.is_empty() { "" } else { "@" };
        let url = |host: &str| format!("{scheme}://{user}{sign}{host}{path}");
        let all: Vec<String> = hosts.split(',').map(url).collect();
        let at = |host: &str| Server { url: url(host), name: name.to_owned(), all: all.clone() };
        let mut unreachable = None;
        for host in hosts.split(',') {
            match at(host).has_the_store().await {
                Ok(()) => return Ok(at(host)),
                Err(error) => match error.redirect_node() {
                    Some((host, _)) => return Ok(at(host)),
                    None => unreachable = Some(error),
                },
            }
        }
        Err(unreachable.map_or("the URL names no host".into(), BoxError::from))
    }

    /// An error that names another node where that one has it.
    async fn has_the_store(&self) -> Result<(), RedisError> {
        redis::cmd("EXISTS").arg(self.key("x")).query_async(&mut self.connect().await?).await
    }

    /// A key that is in the slot of the store, and goes with it at the latest.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{{{}}}:{name}", self.name)
    }

    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        // A connection that waits for an entry has to outwait it.
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
        Client::open(self.url.as_str())?.get_multiplexed_async_connection_with_config(&config).await
    }

    /// What it needs in memory.
    pub(super) async fn memory(&self) -> Result<i64, BoxError> {
        Ok(self.info("memory", "used_memory:").await?.parse()?)
    }

    pub(super) async fn version(&self) -> Result<String, BoxError> {
        self.info("server", "redis_version:").await
    }

    async fn info(&self, section: &str, field: &str) -> Result<String, BoxError> {
        field_of(&mut self.connect().await?, section, field).await
    }

    /// For how many seconds each server has kept a processor busy.
    pub(super) async fn busy(&self) -> Result<Vec<f64>, BoxError> {
        let mut busy = Vec::with_capacity(self.all.len());
        for url in &self.all {
            let mut server = Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
            let mut sum = 0.0;
            for field in ["used_cpu_sys:", "used_cpu_user:"] {
                sum += field_of(&mut server, "cpu", field).await?.parse::<f64>()?;
            }
            busy.push(sum);
        }
        Ok(busy)
    }

    /// Removes all keys of the store, also those that it has on other servers when it is spread.
    pub(super) async fn remove_store(&self) -> Result<(), BoxError> {
        for url in self.all.iter().chain([&self.url]) {
            let mut server = Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
            for pattern in [self.key("*"), format!("{{{}/*", self.name)] {
                remove(&mut server, &pattern).await?;
            }
        }
        Ok(())
    }
}

async fn field_of(
    server: &mut MultiplexedConnection,
    section: &str,
    field: &str,
) -> Result<String, BoxError> {
    let text: String = redis::cmd("INFO").arg(section).query_async(server).await?;
    let found = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    Ok(found.trim().to_owned())
}

/// Removes all keys of a pattern, each by itself: in a Cluster they may be in several slots.
async fn remove(server: &mut MultiplexedConnection, pattern: &str) -> Result<(), BoxError> {
    let mut cursor = "0".to_owned();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000);
        let (next, keys): (String, Vec<Vec<u8>>) = scan.query_async(server).await?;
        let mut unlink = redis::pipe();
        for key in &keys {
            unlink.cmd("UNLINK").arg(key).ignore();
        }
        if !keys.is_empty() {
            unlink.query_async::<()>(server).await?;
        }
        if next == "0" {
            return Ok(());
        }
        cursor = next;
    }
}
