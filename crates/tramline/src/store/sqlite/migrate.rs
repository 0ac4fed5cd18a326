//! Migrations: versioned, each in one transaction, safe when many processes start at once.

use crate::error::Result;
use crate::store::migration::{self, Migration, checksum, pending};
use rusqlite::Connection;

/// Every migration, oldest first. They are never changed once released.
const MIGRATIONS: &[Migration] = &[
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
    migration::newest(MIGRATIONS)
}

/// All migrations as SQL, to be read or run by hand.
pub(super) fn sql() -> String {
    let mut text = String::from(VERSIONS);
    text.push_str(";\n");
    for (version, sql) in MIGRATIONS {
        text.push_str(&format!("\n-- migration {version}\n{sql}{};\n", done(*version, sql)));
    }
    text
}

const VERSIONS: &str =
    "CREATE TABLE IF NOT EXISTS tramline_migration (version INTEGER PRIMARY KEY, checksum INTEGER NOT NULL)";

/// Writes down that a migration was applied.
fn done(version: i64, sql: &str) -> String {
    format!("INSERT INTO tramline_migration VALUES ({version}, {})", checksum(sql))
}

/// Brings the file up to date. The write lock of the first step makes other processes wait, and find it done.
pub(super) fn run(conn: &Connection) -> Result<()> {
    conn.execute_batch("BEGIN IMMEDIATE")?;
    let result = apply(conn);
    conn.execute_batch(if result.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    result
}

fn apply(conn: &Connection) -> Result<()> {
    conn.execute_batch(VERSIONS)?;
    let mut query = conn.prepare("SELECT version, checksum FROM tramline_migration")?;
    let applied =
        query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<Vec<_>>>()?;
    for (version, sql) in pending(MIGRATIONS, &applied)? {
        conn.execute_batch(sql)?;
        conn.execute_batch(&done(*version, sql))?;
        tracing::info!(version, "database migrated");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn a_file_that_other_migrations_made_is_not_opened() {
        let conn = Connection::open_in_memory().unwrap();
        run(&conn).unwrap();
        run(&conn).unwrap();
        conn.execute_batch("UPDATE tramline_migration SET checksum = checksum + 1 WHERE version = 2")
            .unwrap();
        assert_eq!(run(&conn).unwrap_err().kind(), Kind::Conflict);
    }
}
