//! The words in which the tests are written: a store in a file of its own, and the caller's connection to it.

pub(crate) use crate::words::{claim, done, event, ids};
use rusqlite::Connection;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tramline::model::id::SubscriptionId;
use tramline::model::subscription::{Ordering, Policy, Start, Subscription};
use tramline::store::Store;
use tramline::store::verbs::{Claimed, Emission, Emit, Expected, PutSubscription};
use tramline::{Event, Result, SqliteStore};

/// A store in a file of its own, which is gone when this is dropped.
pub(crate) struct Private {
    pub(crate) store: Arc<SqliteStore>,
    folder: TempDir,
}

impl Deref for Private {
    type Target = SqliteStore;

    fn deref(&self) -> &SqliteStore {
        &self.store
    }
}

impl Private {
    pub(crate) async fn open() -> Private {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("app.db")).await.unwrap();
        Private { store: Arc::new(store), folder }
    }

    /// A connection of the caller.
    pub(crate) fn connection(&self) -> Connection {
        let connection = Connection::open(self.folder.path().join("app.db")).unwrap();
        connection.busy_timeout(Duration::from_secs(5)).unwrap();
        connection
    }

    pub(crate) async fn subscribe(&self, name: &str, ordering: Ordering) -> Subscription {
        let put = PutSubscription {
            name: name.into(),
            topics: vec!["t".to_owned()],
            policy: Policy { ordering, ..Policy::default() },
            start: Start::Beginning,
            expected: Expected::Anything,
            now: None,
        };
        self.store.put_subscription(put).await.unwrap()
    }

    pub(crate) async fn emit(&self, event: Event) -> Result<Emission> {
        self.store.emit(Emit { units: vec![vec![event]], now: None }).await?.pop().unwrap()
    }

    pub(crate) async fn claim(&self, id: SubscriptionId, max_events: u32) -> Claimed {
        self.store.claim(claim(id, max_events)).await.unwrap()
    }
}
