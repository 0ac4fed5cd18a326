//! Migrations: versioned, each in one transaction, safe when many processes start at once.

use crate::error::{Error, Result};
use rusqlite::Connection;

/// Every migration, oldest first. They are never changed once released.
const MIGRATIONS: &[(i64, &str)] = &[
    (1, include_str!("migrations/0001_core.sql")),
    (2, include_str!("migrations/0002_token.sql")),
    (3, include_str!("migrations/0003_deleted.sql")),
    (4, include_str!("migrations/0004_tally.sql")),
    (5, include_str!("migrations/0005_owner.sql")),
    (6, include_str!("migrations/0006_remote.sql")),
    (7, include_str!("migrations/0007_tally_child.sql")),
    (8, include_str!("migrations/0008_push.sql")),
    (9, include_str!("migrations/0009_drop.sql")),
    (10, include_str!("migrations/0010_sealed_token.sql")),
    (11, include_str!("migrations/0011_schedule.sql")),
    (12, include_str!("migrations/0012_limit.sql")),
    (13, include_str!("migrations/0013_letters.sql")),
];

/// The version that all of them make.
pub(super) fn newest() -> i64 {
    MIGRATIONS.last().map_or(0, |(version, _)| *version)
}

/// All migrations as SQL, to be read or run by hand.
pub(super) fn sql() -> String {
    let mut text = String::from(VERSIONS);
    text.push_str(";\n");
    for (version, sql) in MIGRATIONS {
        text.push_str(&format!(
            "\n-- migration {version}\n{sql}INSERT INTO tramline_migration VALUES ({version});\n"
        ));
    }
    text
}

const VERSIONS: &str = "CREATE TABLE IF NOT EXISTS tramline_migration (version INTEGER PRIMARY KEY)";

/// Brings the file up to date. The write lock of the first step makes other processes wait, and find it done.
pub(super) fn run(conn: &Connection) -> Result<()> {
    conn.execute_batch("BEGIN IMMEDIATE")?;
    let result = apply(conn);
    conn.execute_batch(if result.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    result
}

fn apply(conn: &Connection) -> Result<()> {
    conn.execute_batch(VERSIONS)?;
    let current: i64 =
        conn.query_row("SELECT coalesce(max(version), 0) FROM tramline_migration", [], |row| row.get(0))?;
    let newest = newest();
    if current > newest {
        return Err(Error::conflict(
            format!("the database is at version {current}, this program knows {newest}"),
            "run a newer version of the program",
        ));
    }
    for (version, sql) in MIGRATIONS.iter().filter(|(version, _)| *version > current) {
        conn.execute_batch(sql)?;
        conn.execute("INSERT INTO tramline_migration (version) VALUES (?)", [version])?;
        tracing::info!(version, "database migrated");
    }
    Ok(())
}
