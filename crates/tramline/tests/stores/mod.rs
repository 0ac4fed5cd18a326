//! Fresh private stores for tests, one for each place in which a store can be.

use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tramline::model::id::Incarnation;
use tramline::store::{self, Store};

/// What is tested here is not the disk, so that nobody waits for it. On MySQL that holds for the whole server, until it restarts.
const NO_SYNC: &str = "-c%20synchronous_commit%3Doff";

/// Where a store under test is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    SqliteFile,
    SqliteMemory,
    Postgres,
    Mysql,
    Redis,
    RedisCluster,
    /// A Cluster with a slot for each topic.
    RedisSpread,
}

/// A store that nobody else uses. It is gone after [`Fresh::close`].
pub(crate) struct Fresh {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) url: String,
    pub(crate) place: Place,
    _directory: Option<TempDir>,
}

impl Fresh {
    pub(crate) async fn open(place: Place) -> Fresh {
        let directory = matches!(place, Place::SqliteFile).then(directory);
        let url = match (&directory, place) {
            (Some(directory), _) => format!("sqlite://{}", directory.path().join("test.db").display()),
            (None, Place::Postgres) => {
                format!("{}?schema={}&options={NO_SYNC}", postgres(), clean_schema())
            }
            (None, Place::Mysql) => format!("{}/{}", mysql(), clean_database().await),
            (None, Place::Redis) => named(&redis()),
            (None, Place::RedisCluster) => named(&redis_cluster()),
            (None, Place::RedisSpread) => format!("{}&spread=topics", named(&redis_cluster())),
            (None, Place::SqliteFile | Place::SqliteMemory) => "sqlite::memory:".to_owned(),
        };
        let store = store::open(&url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
        Fresh { store, url, place, _directory: directory }
    }

    pub(crate) async fn close(&self) {
        self.store.close().await;
        if let (Place::Postgres, Some(schema)) = (self.place, self.schema()) {
            self.execute(&empty_schema(schema)).await;
            SCHEMAS.lock().unwrap().push(schema.to_owned());
        }
        if let (Place::Mysql, Some(name)) = (self.place, self.database()) {
            clean(name).await;
            DATABASES.lock().unwrap().push(name.to_owned());
        }
    }

    fn database(&self) -> Option<&str> {
        self.url.rsplit('/').next()
    }

    fn schema(&self) -> Option<&str> {
        self.url.split(['?', '&']).find_map(|part| part.strip_prefix("schema="))
    }

    /// Runs a statement on the server of the store, where its tables are.
    pub(crate) async fn execute(&self, sql: &str) {
        use sqlx::Connection;
        if let (Place::Mysql, Some(name)) = (self.place, self.database()) {
            return execute_on_mysql(name, sql).await;
        }
        let mut connection = sqlx::PgConnection::connect(&postgres()).await.unwrap();
        let schema = self.schema().unwrap_or("public");
        let sql = sqlx::AssertSqlSafe(format!("SET search_path = {schema}; {sql}"));
        sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    }
}

fn postgres() -> String {
    std::env::var("TRAMLINE_TEST_POSTGRES").expect("TRAMLINE_TEST_POSTGRES is not set: run ./test")
}

fn mysql() -> String {
    std::env::var("TRAMLINE_TEST_MYSQL").expect("TRAMLINE_TEST_MYSQL is not set: run ./test")
}

fn redis() -> String {
    std::env::var("TRAMLINE_TEST_REDIS").expect("TRAMLINE_TEST_REDIS is not set: run ./test")
}

fn redis_cluster() -> String {
    std::env::var("TRAMLINE_TEST_REDIS_CLUSTER").expect("TRAMLINE_TEST_REDIS_CLUSTER is not set: run ./test")
}

/// A store of its own. What is left of it goes with the server.
fn named(server: &str) -> String {
    format!("{server}?name=conf_{:x}", Incarnation::random().0)
}

/// What tests have left behind, emptied: creating tables takes a server longer than most tests.
static SCHEMAS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static DATABASES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn clean_schema() -> String {
    let left = SCHEMAS.lock().unwrap().pop();
    left.unwrap_or_else(|| format!("conf_{:x}", Incarnation::random().0))
}

/// Empties all tables but those that tell how they were made. The ballast goes too: it is for large tables.
fn empty_schema(schema: &str) -> String {
    format!(
        "SET synchronous_commit = off; \
         DO $$ DECLARE name text; BEGIN \
             FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' \
                 AND tablename NOT IN ('tramline_meta', 'tramline_migration') LOOP \
                 EXECUTE format('DELETE FROM {schema}.%I', name); \
             END LOOP; \
         END $$"
    )
}

async fn clean_database() -> String {
    if let Some(name) = DATABASES.lock().unwrap().pop() {
        return name;
    }
    let name = format!("conf_{:x}", Incarnation::random().0);
    execute_on_mysql("", &format!("SET GLOBAL innodb_flush_log_at_trx_commit = 2; CREATE DATABASE {name}"))
        .await;
    name
}

/// Empties all tables but those that a new database would have something in.
async fn clean(database: &str) {
    use sqlx::{Connection, Row};
    let mut connection = sqlx::MySqlConnection::connect(&format!("{}/{database}", mysql())).await.unwrap();
    let sql = "SELECT CAST(table_name AS CHAR) FROM information_schema.tables WHERE table_schema = DATABASE() \
               AND table_name NOT IN ('tramline_meta', 'tramline_migration')";
    let tables = sqlx::query(sql).fetch_all(&mut connection).await.unwrap();
    let deletes: Vec<String> =
        tables.iter().map(|row| format!("DELETE FROM {}", row.get::<String, _>(0))).collect();
    let sql = format!("START TRANSACTION; {}; COMMIT", deletes.join("; "));
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
}

async fn execute_on_mysql(database: &str, sql: &str) {
    use sqlx::Connection;
    let mut connection = sqlx::MySqlConnection::connect(&format!("{}/{database}", mysql())).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
}

/// In memory where the system has a directory for it.
fn directory() -> TempDir {
    let memory = std::path::Path::new("/dev/shm");
    if memory.is_dir() { TempDir::new_in(memory).unwrap() } else { TempDir::new().unwrap() }
}
