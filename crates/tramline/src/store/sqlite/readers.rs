//! Connections that only read. A file in WAL mode serves them beside the writer.

use crate::error::{Error, Result};
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;

/// How many reads run at once.
const READERS: usize = 4;

/// How a connection is made.
type Open = fn(&Path) -> Result<Connection>;

/// A small pool, filled on demand.
#[derive(Debug)]
pub(super) struct Readers {
    path: PathBuf,
    open: Open,
    idle: Arc<Mutex<Vec<Connection>>>,
    places: Semaphore,
}

impl Readers {
    pub(super) fn new(path: PathBuf, open: Open) -> Readers {
        Readers { path, open, idle: Arc::default(), places: Semaphore::new(READERS) }
    }

    /// Runs `job` on a thread that may block, in one consistent view of the database.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let _place = self.places.acquire().await.map_err(|_| lost())?;
        let idle = self.idle.clone();
        let (path, make) = (self.path.clone(), self.open);
        let read = move || {
            let kept = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let conn = match kept {
                Some(conn) => conn,
                None => open(&path, make)?,
            };
            let view = conn.unchecked_transaction()?;
            let result = job(&view);
            drop(view);
            idle.lock().unwrap_or_else(PoisonError::into_inner).push(conn);
            result
        };
        tokio::task::spawn_blocking(read).await.map_err(|_| lost())?
    }
}

/// Another connection's commit empties a reader's cache, so a large one would only cost memory.
fn open(path: &Path, make: Open) -> Result<Connection> {
    let conn = make(path)?;
    conn.execute_batch("PRAGMA cache_size = -2000")?;
    Ok(conn)
}

fn lost() -> Error {
    Error::unavailable("the read was abandoned", "try again")
}
