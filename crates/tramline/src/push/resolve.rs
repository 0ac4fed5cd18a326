//! Names to addresses.

use async_trait::async_trait;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// How many look-ups run at the same time. The system's resolver has a thread for each, and one that hangs cannot be stopped.
const LOOK_UPS: usize = 64;

/// Finds the addresses of a name. Tests put another one in place of the system's.
#[async_trait]
pub trait Resolve: Send + Sync + fmt::Debug {
    /// All addresses of `host`, in the order in which they are to be tried.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// The resolver of the operating system, with its files, caches and search lists.
#[derive(Clone, Debug)]
pub struct SystemResolver {
    room: Arc<Semaphore>,
}

impl Default for SystemResolver {
    fn default() -> SystemResolver {
        SystemResolver { room: Arc::new(Semaphore::new(LOOK_UPS)) }
    }
}

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let room = self.room.clone().acquire_owned().await.map_err(io::Error::other)?;
        let host = host.to_owned();
        // A task of its own: when the caller gives up, the thread still runs, and the room is not free before it ends.
        let looking = tokio::spawn(async move {
            let found = tokio::net::lookup_host((host, 0)).await;
            drop(room);
            found.map(|all| all.map(|address| address.ip()).collect())
        });
        looking.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_system_knows_this_machine() {
        let found = SystemResolver::default().resolve("localhost").await.unwrap();
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
    }

    #[tokio::test]
    async fn a_name_that_is_none_is_an_error() {
        assert!(SystemResolver::default().resolve("not a name").await.is_err());
    }
}
