//! Hints between processes that share a SQLite file: each watches it while it waits.

use crate::error::{Error, Result};
use crate::model::id::SubscriptionId;
use crate::wake::{Audience, Bells, Listener, Wake};
use rusqlite::{Connection, OpenFlags};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// How often the file is looked at while somebody waits.
const EVERY: Duration = Duration::from_millis(20);

/// Watches `PRAGMA data_version`, which changes whenever another connection commits. What exactly changed is not known, so
/// all bells ring: a claim that finds nothing is cheap.
#[derive(Debug)]
pub struct FileWatch {
    bells: Arc<Bells>,
    watcher: JoinHandle<()>,
}

impl FileWatch {
    /// Watches the database file at `path`, which must exist. Needs a Tokio runtime.
    ///
    /// # Errors
    /// `Unavailable` when the file cannot be opened.
    pub fn new(path: &Path) -> Result<FileWatch> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let file = Connection::open_with_flags(path, flags).map_err(|error| {
            Error::unavailable("the database file cannot be watched", "check that the file can be read")
                .because(error)
        })?;
        let bells = Arc::new(Bells::default());
        let watcher = tokio::spawn(watch(file, bells.clone()));
        Ok(FileWatch { bells, watcher })
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

impl Wake for FileWatch {
    /// Only this process is told: the others see the file change.
    fn notify(&self, subscriptions: &[SubscriptionId]) {
        self.bells.ring(subscriptions);
    }

    fn listen(&self, to: SubscriptionId) -> Listener {
        self.bells.listen(to)
    }

    fn listen_to_all(&self) -> Listener {
        self.bells.listen_to_all()
    }
}

/// The look itself reads a few bytes of shared memory, so it needs no thread of its own.
async fn watch(file: Connection, bells: Arc<Bells>) {
    let audience: Arc<Audience> = bells.audience();
    let mut seen = None;
    loop {
        audience.somebody().await;
        // An error (the file is being replaced, a lock) reads as a change: whoever waits looks for himself.
        let version = file
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut query| query.query_row([], |row| row.get(0)));
        let version: Option<i64> = version.ok();
        if version.is_none() || version != seen {
            seen = version;
            bells.ring_all();
        }
        tokio::time::sleep(EVERY).await;
    }
}
