//! Migrations: versioned, safe when many processes start at once. The server commits each change of a table by itself, so every
//! statement can be repeated: what a crash left half done is done again.

use super::session::exchange;
use super::sql::Columns;
use crate::error::{Error, Result};
use crate::store::migration::{self, Migration, checksum, pending};
use sqlx::MySqlConnection;

/// Every migration, oldest first. They are never changed once released.
const MIGRATIONS: &[Migration] = &[
    (1, include_str!("migrations/0001_core.sql")),
    (2, include_str!("migrations/0002_token.sql")),
    (3, include_str!("migrations/0003_tally.sql")),
    (4, include_str!("migrations/0004_push.sql")),
    (5, include_str!("migrations/0005_drop.sql")),
    (6, include_str!("migrations/0006_schedule.sql")),
    (7, include_str!("migrations/0007_limit.sql")),
    (8, include_str!("migrations/0008_letters.sql")),
    (9, include_str!("migrations/0009_inbox.sql")),
];

const VERSIONS: &str = "CREATE TABLE IF NOT EXISTS tramline_migration (version BIGINT NOT NULL PRIMARY KEY, \
                        checksum BIGINT NOT NULL) ENGINE = InnoDB";

/// How long to wait for another process that is migrating, in seconds.
const PATIENCE: u32 = 60;

/// All migrations as SQL, to be read or run by hand.
pub(super) fn sql() -> String {
    let mut text = format!("{VERSIONS};\n");
    for (version, sql) in MIGRATIONS {
        text.push_str(&format!("\n-- migration {version}\n{sql}{};\n", done(*version, sql)));
    }
    text
}

/// Writes down that a migration was applied.
fn done(version: i64, sql: &str) -> String {
    format!("INSERT IGNORE INTO tramline_migration VALUES ({version}, {})", checksum(sql))
}

/// The version of a database that is up to date.
pub(super) fn newest() -> i64 {
    migration::newest(MIGRATIONS)
}

/// Brings the database up to date.
pub(super) async fn run(conn: &mut MySqlConnection) -> Result<()> {
    // Only if need be: creating needs a right that a service may have lost since.
    if exists(conn).await? && pending(MIGRATIONS, &applied(conn).await?)?.is_empty() {
        return Ok(());
    }
    let lock = format!("SELECT GET_LOCK(CONCAT('tramline ', LEFT(SHA2(DATABASE(), 256), 16)), {PATIENCE})");
    if number(conn, lock).await? != 1 {
        return Err(Error::unavailable(
            "another process is migrating the database",
            "try again when it is done",
        ));
    }
    let migrated = apply(conn).await;
    number(conn, "SELECT RELEASE_LOCK(CONCAT('tramline ', LEFT(SHA2(DATABASE(), 256), 16)))".to_owned())
        .await?;
    migrated
}

async fn apply(conn: &mut MySqlConnection) -> Result<()> {
    execute(conn, VERSIONS).await?;
    for (version, sql) in pending(MIGRATIONS, &applied(conn).await?)? {
        execute(conn, sql).await?;
        execute(conn, &done(*version, sql)).await?;
        tracing::info!(version, "database migrated");
    }
    Ok(())
}

async fn exists(conn: &mut MySqlConnection) -> Result<bool> {
    let sql = "SELECT COUNT(*) FROM information_schema.tables \
               WHERE table_schema = DATABASE() AND table_name = 'tramline_migration'";
    Ok(number(conn, sql.to_owned()).await? > 0)
}

async fn applied(conn: &mut MySqlConnection) -> Result<Vec<(i64, i64)>> {
    let mut sets = Vec::new();
    exchange(conn, "SELECT version, checksum FROM tramline_migration".to_owned(), &mut sets).await?;
    sets.first().into_iter().flatten().map(|row| Ok((row.int(0)?, row.int(1)?))).collect()
}

async fn number(conn: &mut MySqlConnection, sql: String) -> Result<i64> {
    let mut sets = Vec::new();
    exchange(conn, sql, &mut sets).await?;
    sets.first().and_then(|rows| rows.first()).map_or(Ok(0), |row| Ok(row.maybe_int(0)?.unwrap_or(0)))
}

async fn execute(conn: &mut MySqlConnection, sql: &str) -> Result<()> {
    exchange(conn, sql.to_owned(), &mut Vec::new()).await
}
