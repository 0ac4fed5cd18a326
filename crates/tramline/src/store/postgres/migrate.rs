//! Migrations: versioned, all in one transaction, safe when many processes start at once.

use super::session::qualify;
use crate::error::{Error, Result};
use crate::store::migration::{self, Migration, checksum, pending};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

/// Every migration, oldest first. They are never changed once released.
const MIGRATIONS: &[Migration] = &[
    (1, include_str!("migrations/0001_core.sql")),
    (2, include_str!("migrations/0002_emit.sql")),
    (3, include_str!("migrations/0003_claim.sql")),
    (4, include_str!("migrations/0004_token.sql")),
    (5, include_str!("migrations/0005_ballast.sql")),
    (6, include_str!("migrations/0006_deleted.sql")),
    (7, include_str!("migrations/0007_tally.sql")),
    (8, include_str!("migrations/0008_owner.sql")),
    (9, include_str!("migrations/0009_remote.sql")),
    (10, include_str!("migrations/0010_tally_child.sql")),
    (11, include_str!("migrations/0011_push.sql")),
    (12, include_str!("migrations/0012_drop.sql")),
    (13, include_str!("migrations/0013_sealed_token.sql")),
    (14, include_str!("migrations/0014_schedule.sql")),
    (15, include_str!("migrations/0015_limit.sql")),
    (16, include_str!("migrations/0016_letters.sql")),
];

const VERSIONS: &str =
    "CREATE TABLE IF NOT EXISTS tramline_migration (version bigint PRIMARY KEY, checksum bigint NOT NULL)";

/// The oldest server that has everything: bit_count came with 14.
const OLDEST: i32 = 140_000;

/// The version that all of them make.
pub(super) fn newest() -> i64 {
    migration::newest(MIGRATIONS)
}

/// All migrations as SQL, to be read or run by hand.
pub(super) fn sql(schema: Option<&str>) -> String {
    let mut text = String::new();
    if let Some(schema) = schema {
        text.push_str(&format!("CREATE SCHEMA IF NOT EXISTS {schema};\n"));
    }
    text.push_str(&format!("{VERSIONS};\n"));
    for (version, sql) in MIGRATIONS {
        text.push_str(&format!("\n-- migration {version}\n{sql}{};\n", done(*version, sql)));
    }
    match schema {
        Some(schema) => qualify(&text, schema),
        None => text,
    }
}

/// Writes down that a migration was applied.
fn done(version: i64, sql: &str) -> String {
    format!("INSERT INTO tramline_migration VALUES ({version}, {})", checksum(sql))
}

/// Brings the database up to date and gives the schema in which the tables are.
pub(super) async fn run(conn: &mut PgConnection, schema: Option<&str>) -> Result<String> {
    // Begun before the first question: outside of a transaction a pooler may give each half of it another connection.
    let mut tx = conn.begin().await?;
    let row = sqlx::query("SELECT current_setting('server_version_num')::int, quote_ident(current_schema())")
        .persistent(false)
        .fetch_one(&mut *tx)
        .await?;
    let server: i32 = row.try_get(0)?;
    if server < OLDEST {
        let found = format!("the server is PostgreSQL {}", server / 10_000);
        return Err(Error::unavailable(found, "use PostgreSQL 14 or newer"));
    }
    let first: Option<String> = row.try_get(1)?;
    let schema = schema.map(str::to_owned).or(first).ok_or_else(|| {
        Error::unavailable("the search path names no schema that exists", "set schema=NAME in the URL")
    })?;
    apply(&mut tx, &schema).await?;
    tx.commit().await?;
    Ok(schema)
}

async fn apply(conn: &mut PgConnection, schema: &str) -> Result<()> {
    // Not the two-number form: its space belongs to the locks of topics and subscriptions.
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('tramline migrations of ' || $1, 0))")
        .bind(schema)
        .persistent(false)
        .execute(&mut *conn)
        .await?;
    let execute = async |conn: &mut PgConnection, sql: &str| {
        sqlx::raw_sql(AssertSqlSafe(qualify(sql, schema))).execute(conn).await.map(|_| ())
    };
    if !exists(conn, schema).await? {
        // Only if need be: creating needs a right that a service may have lost since.
        let known =
            sqlx::query("SELECT 1 FROM pg_namespace WHERE nspname = $1").bind(schema).persistent(false);
        if known.fetch_optional(&mut *conn).await?.is_none() {
            execute(conn, &format!("CREATE SCHEMA IF NOT EXISTS {schema}")).await?;
        }
        execute(conn, VERSIONS).await?;
    }
    let applied = format!("SELECT version, checksum FROM {schema}.tramline_migration");
    let rows = sqlx::query(AssertSqlSafe(applied)).persistent(false).fetch_all(&mut *conn).await?;
    let applied =
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<Vec<_>>>()?;
    for (version, sql) in pending(MIGRATIONS, &applied)? {
        execute(conn, sql).await?;
        execute(conn, &done(*version, sql)).await?;
        tracing::info!(version, schema, "database migrated");
    }
    Ok(())
}

async fn exists(conn: &mut PgConnection, schema: &str) -> Result<bool> {
    let table = format!("{schema}.tramline_migration");
    let query = sqlx::query("SELECT to_regclass($1) IS NOT NULL").bind(table).persistent(false);
    Ok(query.fetch_one(conn).await?.try_get(0)?)
}
