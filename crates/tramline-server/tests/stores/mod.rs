//! The same test on every store, with real nodes.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    clippy::allow_attributes,
    reason = "every test file uses a part of it"
)]

use crate::node::{Launch, Node, PATIENCE};
use std::time::Instant;
use tempfile::TempDir;

/// An empty store of a test.
pub(crate) struct Place {
    url: String,
    _directory: Option<TempDir>,
}

impl Place {
    pub(crate) fn sqlite() -> Place {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", directory.path().join("test.db").display());
        Place { url, _directory: Some(directory) }
    }

    /// A private schema behind the URL of the test server.
    pub(crate) fn postgres() -> Place {
        let server =
            std::env::var("TRAMLINE_TEST_POSTGRES").expect("TRAMLINE_TEST_POSTGRES is not set: run ./test");
        let schema = format!("serve_{:x}", tramline::Incarnation::random().0);
        let url = format!("{server}{}schema={schema}", if server.contains('?') { '&' } else { '?' });
        Place { url, _directory: None }
    }

    /// A new database on the test server.
    pub(crate) async fn mysql() -> Place {
        use sqlx::Connection;
        let server =
            std::env::var("TRAMLINE_TEST_MYSQL").expect("TRAMLINE_TEST_MYSQL is not set: run ./test");
        let database = format!("serve_{:x}", tramline::Incarnation::random().0);
        let mut connection = sqlx::MySqlConnection::connect(&server).await.unwrap();
        let sql = sqlx::AssertSqlSafe(format!("CREATE DATABASE {database}"));
        sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
        Place { url: format!("{server}/{database}"), _directory: None }
    }

    pub(crate) fn redis() -> Place {
        Place::named("TRAMLINE_TEST_REDIS")
    }

    /// On three nodes, of which one has it.
    pub(crate) fn redis_cluster() -> Place {
        Place::named("TRAMLINE_TEST_REDIS_CLUSTER")
    }

    /// On three nodes, with a slot for each topic.
    pub(crate) fn redis_spread() -> Place {
        let Place { url, _directory } = Place::redis_cluster();
        Place { url: format!("{url}&spread=topics"), _directory }
    }

    /// A store of its own name on a test server.
    fn named(variable: &str) -> Place {
        let server = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: run ./test"));
        let url = format!("{server}?name=serve_{:x}", tramline::Incarnation::random().0);
        Place { url, _directory: None }
    }

    /// Whether each topic is somewhere else, so that a line of all events has one topic only.
    pub(crate) fn is_spread(&self) -> bool {
        self.url.ends_with("&spread=topics")
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A node on it.
    pub(crate) fn node(&self) -> Node {
        self.launch(&[]).start()
    }

    /// A node on it that is still to be started.
    pub(crate) fn launch(&self, arguments: &[&str]) -> Launch {
        Launch::with(&[&["--store", &self.url], arguments].concat())
    }
}

/// Makes a test on every store of each function.
macro_rules! on_every_store {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::stores::Place::sqlite()).await;
            })*
        }
        mod postgres {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::stores::Place::postgres()).await;
            })*
        }
        mod mysql {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::stores::Place::mysql().await).await;
            })*
        }
        mod redis {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::stores::Place::redis()).await;
            })*
        }
        mod redis_cluster {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::stores::Place::redis_cluster()).await;
            })*
        }
        mod redis_spread {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::stores::Place::redis_spread()).await;
            })*
        }
    };
}
pub(crate) use on_every_store;

/// Looks until there is something.
pub(crate) async fn until<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "it never came true");
        tokio::task::yield_now().await;
    }
}
