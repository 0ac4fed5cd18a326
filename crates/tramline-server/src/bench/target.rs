//! A private place in the store that is measured: a file, a schema or a database of its own.

use super::redis_server::Server;
use super::row::BoxError;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};
use std::sync::Arc;
use tramline::{Options, OtelTraces, Tramline};

/// What is measured.
pub(super) enum Target {
    /// A file beside the one that was named.
    Sqlite {
        /// Its URL.
        url: String,
    },
    /// A schema in the database that was named.
    Postgres {
        /// The URL of the database.
        server: String,
        /// The URL with the schema.
        url: String,
        schema: String,
    },
    /// A database on the server that was named.
    Mysql {
        /// The URL of the server.
        server: String,
        /// The URL with the database.
        url: String,
        database: String,
    },
    /// A store of its own name on the server or Cluster that was named.
    Redis {
        server: Server,
        /// The URL with the name.
        url: String,
    },
}

/// What a server has written.
pub(super) struct Writes {
    /// Bytes of its log.
    pub(super) wal_bytes: f64,
    /// Row versions that updates and deletions left behind.
    pub(super) dead_tuples: f64,
}

impl Target {
    /// Names the place; opening it creates it.
    pub(super) async fn create(store: &str) -> Result<Target, BoxError> {
        let name = format!("bench_{}", std::process::id());
        let scheme = store.split("://").next().unwrap_or_default();
        let sign = if store.contains('?') { '&' } else { '?' };
        if let Some(path) = store.strip_prefix("sqlite://") {
            return Ok(Target::Sqlite { url: format!("sqlite://{path}.{name}") });
        }
        if store.starts_with("postgres") {
            let url = format!("{store}{sign}schema={name}");
            return Ok(Target::Postgres { server: store.to_owned(), url, schema: name });
        }
        if store.starts_with("mysql://") || store.starts_with("mariadb://") {
            let server =
                store.splitn(4, '/').take(3).collect::<Vec<_>>().join("/").replacen("mariadb:", "mysql:", 1);
            let mut connection = MySqlConnection::connect(&server).await?;
            connection.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
            return Ok(Target::Mysql { url: format!("{server}/{name}"), server, database: name });
        }
        if ["redis", "rediss", "redis+cluster", "rediss+cluster"].contains(&scheme) {
            let server = Server::of(store, &name).await?;
            // Of two names the last one counts.
            return Ok(Target::Redis { url: format!("{store}{sign}name={name}"), server });
        }
        Err("bench measures sqlite://path, postgres://user@host/db, mysql://user@host/db and redis://host; memory is not durable".into())
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Target::Sqlite { .. } => "sqlite",
            Target::Postgres { .. } => "postgres",
            Target::Mysql { .. } => "mysql",
            Target::Redis { .. } => "redis",
        }
    }

    /// How many worker tasks drain, and how many callers emit in bulk.
    pub(super) fn tasks(&self) -> usize {
        match self {
            Target::Sqlite { .. } => 1,
            Target::Postgres { .. } | Target::Mysql { .. } | Target::Redis { .. } => 4,
        }
    }

    pub(super) async fn open(&self) -> Result<Tramline, BoxError> {
        Ok(Tramline::with(Options::new(self.url()).traces(Arc::new(OtelTraces::new()))).await?)
    }

    /// Where it is.
    pub(super) fn url(&self) -> &str {
        let (Target::Sqlite { url }
        | Target::Postgres { url, .. }
        | Target::Mysql { url, .. }
        | Target::Redis { url, .. }) = self;
        url
    }

    /// A second handle for the worker where the emitter and the worker are to have connections of their own.
    pub(super) async fn open_beside(&self, tram: &Tramline) -> Result<Tramline, BoxError> {
        match self {
            Target::Sqlite { .. } => Ok(tram.clone()),
            Target::Postgres { .. } | Target::Mysql { .. } | Target::Redis { .. } => self.open().await,
        }
    }

    pub(super) async fn version(&self) -> Result<String, BoxError> {
        match self {
            Target::Sqlite { .. } => Ok(rusqlite::version().to_owned()),
            Target::Postgres { server, .. } => {
                let mut connection = PgConnection::connect(server).await?;
                Ok(sqlx::query_scalar("SHOW server_version").fetch_one(&mut connection).await?)
            }
            Target::Mysql { server, .. } => {
                let mut connection = MySqlConnection::connect(server).await?;
                Ok(sqlx::query_scalar("SELECT VERSION()").fetch_one(&mut connection).await?)
            }
            Target::Redis { server, .. } => server.version().await,
        }
    }

    /// For how many seconds each node of a Redis Cluster has kept a processor busy so far; nothing elsewhere.
    pub(super) async fn busy(&self) -> Result<Vec<f64>, BoxError> {
        match self {
            Target::Redis { server, .. } => server.busy().await,
            Target::Sqlite { .. } | Target::Postgres { .. } | Target::Mysql { .. } => Ok(Vec::new()),
        }
    }

    /// What PostgreSQL has written so far; the others do not count it so.
    pub(super) async fn writes(&self) -> Result<Option<Writes>, BoxError> {
        let Target::Postgres { server, schema, .. } = self else { return Ok(None) };
        let mut connection = PgConnection::connect(server).await?;
        let sql = "SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::float8, \
                   (SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::float8 FROM pg_stat_user_tables WHERE schemaname = $1)";
        let (wal_bytes, dead_tuples) = sqlx::query_as(sql).bind(schema).fetch_one(&mut connection).await?;
        Ok(Some(Writes { wal_bytes, dead_tuples }))
    }

    /// What everything in it takes on disk; on Redis, what the server has in memory.
    pub(super) async fn bytes(&self) -> Result<i64, BoxError> {
        match self {
            Target::Sqlite { url } => {
                let path = url.trim_start_matches("sqlite://");
                let connection = rusqlite::Connection::open(path)?;
                connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
                Ok(std::fs::metadata(path)?.len() as i64)
            }
            Target::Postgres { server, schema, .. } => {
                let mut connection = PgConnection::connect(server).await?;
                let sql = "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c \
                           JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind = 'r'";
                Ok(sqlx::query_scalar(sql).bind(schema).fetch_one(&mut connection).await?)
            }
            Target::Mysql { server, database, .. } => {
                let mut connection = MySqlConnection::connect(server).await?;
                let sql = "SELECT CAST(COALESCE(SUM(data_length + index_length), 0) AS SIGNED) \
                           FROM information_schema.tables WHERE table_schema = ?";
                Ok(sqlx::query_scalar(sql).bind(database).fetch_one(&mut connection).await?)
            }
            Target::Redis { server, .. } => server.memory().await,
        }
    }

    /// Removes the file, schema, database or keys.
    pub(super) async fn remove(&self) -> Result<(), BoxError> {
        match self {
            Target::Sqlite { url } => {
                let path = url.trim_start_matches("sqlite://");
                for suffix in ["", "-wal", "-shm"] {
                    std::fs::remove_file(format!("{path}{suffix}")).ok(); // what was never made need not go
                }
            }
            Target::Postgres { server, schema, .. } => {
                let mut connection = PgConnection::connect(server).await?;
                connection.execute(AssertSqlSafe(format!("DROP SCHEMA IF EXISTS {schema} CASCADE"))).await?;
            }
            Target::Mysql { server, database, .. } => {
                let mut connection = MySqlConnection::connect(server).await?;
                connection.execute(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {database}"))).await?;
            }
            Target::Redis { server, .. } => server.remove_store().await?,
        }
        Ok(())
    }
}
