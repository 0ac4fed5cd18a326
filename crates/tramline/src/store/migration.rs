//! Migrations, as all SQL stores have them: numbered texts, and beside the number of each that was applied a checksum of its text.

use crate::error::{Error, Result};

/// A number and SQL.
pub(crate) type Migration = (i64, &'static str);

/// What is written down with a migration.
pub(crate) fn checksum(sql: &str) -> i64 {
    i64::from(crc32fast::hash(sql.as_bytes()))
}

/// The version that all of them make.
pub(crate) fn newest(all: &[Migration]) -> i64 {
    all.last().map_or(0, |(version, _)| *version)
}

/// Those that are still to be applied to a database that has these, with their checksums. Tables that were made by other texts than those of this
/// program may be other tables, and nothing it does with them is sure.
pub(crate) fn pending(all: &'static [Migration], applied: &[(i64, i64)]) -> Result<&'static [Migration]> {
    let current = applied.iter().map(|(version, _)| *version).max().unwrap_or_default();
    let newest = newest(all);
    if current > newest {
        return Err(Error::conflict(
            format!("the database is at version {current}, this program knows {newest}"),
            "run a newer version of the program",
        ));
    }
    let (done, pending) = all.split_at(all.partition_point(|(version, _)| *version <= current));
    match done.iter().find(|(version, sql)| !applied.contains(&(*version, checksum(sql)))) {
        None => Ok(pending),
        Some((version, _)) => Err(Error::conflict(
            format!("migration {version} of the database is not the one of this program"),
            "run the program that made the database, or give this one another database or schema",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    const ALL: &[Migration] = &[(1, "one"), (2, "two"), (3, "three")];

    fn applied(texts: &[&str]) -> Vec<(i64, i64)> {
        (1..).zip(texts).map(|(version, sql)| (version, checksum(sql))).collect()
    }

    #[test]
    fn what_was_not_applied_is_pending() {
        assert_eq!(pending(ALL, &[]).unwrap(), ALL);
        assert_eq!(pending(ALL, &applied(&["one", "two"])).unwrap(), &ALL[2..]);
        assert!(pending(ALL, &applied(&["one", "two", "three"])).unwrap().is_empty());
    }

    #[test]
    fn a_database_of_a_newer_program_is_left_alone() {
        let error = pending(ALL, &applied(&["one", "two", "three", "four"])).unwrap_err();
        assert_eq!(error.kind(), Kind::Conflict);
    }

    #[test]
    fn a_database_with_other_migrations_is_left_alone() {
        for other in [applied(&["one", "changed"]), vec![(2, checksum("two"))]] {
            let error = pending(ALL, &other).unwrap_err();
            assert_eq!(error.kind(), Kind::Conflict, "{other:?}");
        }
    }
}
