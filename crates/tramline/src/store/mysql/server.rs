//! What a server is and how it is set, and whether the promises of a store hold on it.

use super::session::{Rows, exchange};
use super::sql::Columns;
use crate::error::{Error, Result};
use sqlx::MySqlConnection;
use std::collections::BTreeMap;

/// What is left of a packet for statements: some is for what surrounds them.
const PACKET_MARGIN: usize = 64 << 10;
/// Packets need not be longer, whatever the server allows.
const LARGEST_PACKET: usize = 8 << 20;
/// The heaviest chunk has to fit, in hexadecimal digits.
const SMALLEST_PACKET: usize = 4 << 20;

/// What was read of a server.
#[derive(Clone, Debug, Default)]
pub(super) struct Server {
    /// As it says by itself.
    pub(super) version: String,
    /// Settings by name; those that a server does not know are missing.
    pub(super) settings: BTreeMap<String, String>,
}

const SETTINGS: &str = "'max_allowed_packet', 'innodb_flush_log_at_trx_commit', 'wsrep_on', 'group_replication_single_primary_mode', \
    'read_only', 'super_read_only', 'innodb_read_only', 'log_bin', 'binlog_format', 'sync_binlog', 'innodb_doublewrite', \
    'innodb_deadlock_detect', 'max_statement_time', 'max_execution_time', 'max_connections'";

impl Server {
    pub(super) async fn read(conn: &mut MySqlConnection) -> Result<Server> {
        let sql = format!("SELECT VERSION(); SHOW GLOBAL VARIABLES WHERE Variable_name IN ({SETTINGS})");
        let mut sets: Vec<Rows> = Vec::new();
        exchange(conn, sql, &mut sets).await?;
        let silent = || Error::unavailable("the server did not say what it is", "try again");
        let [version, settings] = &sets[..] else { return Err(silent()) };
        let version = version.first().ok_or_else(silent)?.text(0)?;
        let pair = |row: &sqlx::mysql::MySqlRow| Ok((row.text(0)?.to_lowercase(), row.text(1)?));
        Ok(Server { version, settings: settings.iter().map(pair).collect::<Result<_>>()? })
    }

    /// Refuses a server on which events could be lost or run out of order.
    pub(super) fn check(&self) -> Result<()> {
        check_version(&self.version)?;
        if self.is_on("wsrep_on") || self.get("group_replication_single_primary_mode") == "OFF" {
            return Err(Error::unavailable(
                "the server is one of several that take writes at the same time, where locks hold on one only",
                "use a database with a single primary",
            ));
        }
        if let Some(name) =
            ["read_only", "super_read_only", "innodb_read_only"].into_iter().find(|name| self.is_on(name))
        {
            return Err(Error::unavailable(
                format!("{name} is on: nothing can be emitted or claimed"),
                "let the URL name the primary",
            ));
        }
        if self.is_on("log_bin") && self.get("binlog_format") == "STATEMENT" {
            return Err(Error::unavailable(
                "binlog_format is STATEMENT, with which READ COMMITTED cannot write",
                "set it to ROW or MIXED, which are the defaults",
            ));
        }
        if self.get("innodb_flush_log_at_trx_commit") == "0" {
            return Err(Error::unavailable(
                "innodb_flush_log_at_trx_commit is 0: a crash of the server loses what was acknowledged",
                "set it to 1",
            ));
        }
        let allowed = self.allowed_packet();
        if allowed < SMALLEST_PACKET {
            return Err(Error::unavailable(
                format!("max_allowed_packet is {allowed}, too short for the largest events"),
                "set it to 16M or more",
            ));
        }
        Ok(())
    }

    /// What works, but should not stay so.
    pub(super) fn doubts(&self) -> Vec<&'static str> {
        let is_unsynced = self.get("innodb_flush_log_at_trx_commit") == "2";
        // A page that was written in part has no copy. Some file systems and disks never write one in part, so it is for the operator
        // to say; sync_binlog is about replicas, not about what this server has.
        let is_torn = self.settings.contains_key("innodb_doublewrite") && !self.is_on("innodb_doublewrite");
        let doubts = [
            (
                is_unsynced,
                "innodb_flush_log_at_trx_commit is 2: a crash of the machine loses what was emitted in the last second; set it to 1",
            ),
            (
                is_torn,
                "innodb_doublewrite is off: a crash of the machine while a page is written may spoil the database; set it to ON unless \
                 the file system writes pages whole",
            ),
        ];
        doubts.into_iter().filter_map(|(is_so, doubt)| is_so.then_some(doubt)).collect()
    }

    /// How long a packet of statements may be.
    pub(super) fn packet(&self) -> usize {
        self.allowed_packet().saturating_sub(PACKET_MARGIN).min(LARGEST_PACKET)
    }

    fn allowed_packet(&self) -> usize {
        self.get("max_allowed_packet").parse().unwrap_or(0)
    }

    fn get(&self, name: &str) -> &str {
        self.settings.get(name).map_or("", String::as_str)
    }

    fn is_on(&self, name: &str) -> bool {
        // MariaDB says NO_LOCK and NO_LOCK_NO_ADMIN where even administrators cannot write.
        !matches!(self.get(name), "" | "OFF" | "0")
    }
}

pub(super) fn is_mariadb(version: &str) -> bool {
    version.contains("MariaDB")
}

/// Both have `SKIP LOCKED` and `JSON_TABLE` since these versions, and MySQL checks what is inserted into the inbox; older ones read
/// over the CHECK constraints of tables.
fn check_version(version: &str) -> Result<()> {
    let mut parts = version.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let (oldest, remedy) = if is_mariadb(version) {
        ((10, 6, 0), "use MariaDB 10.6 or newer")
    } else {
        ((8, 0, 16), "use MySQL 8.0.16 or newer")
    };
    if found < oldest { Err(Error::unavailable(format!("the server is {version}"), remedy)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> Server {
        let usual =
            [("max_allowed_packet", "16777216"), ("innodb_flush_log_at_trx_commit", "1"), ("log_bin", "ON")];
        let mut settings: BTreeMap<String, String> =
            usual.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        settings.insert(name.to_owned(), value.to_owned());
        Server { version: "8.0.36".into(), settings }
    }

    #[test]
    fn servers_that_cannot_pass_over_locked_rows_or_check_them_are_refused() {
        for good in ["10.11.19-MariaDB-0+deb12u1", "11.4.2-MariaDB", "8.0.16", "8.0.36", "8.4.0-log", "9.0.1"]
        {
            assert!(check_version(good).is_ok(), "{good}");
        }
        for bad in ["10.5.9-MariaDB", "5.7.44", "8.0.0", "8.0.15", "5.5.5", "nonsense"] {
            assert!(!check_version(bad).unwrap_err().remedy().is_empty(), "{bad}");
        }
    }

    #[test]
    fn settings_that_lose_or_disorder_events_are_refused_with_a_remedy() {
        let bad = [
            ("wsrep_on", "ON"),
            ("group_replication_single_primary_mode", "OFF"),
            ("read_only", "ON"),
            ("read_only", "NO_LOCK"),
            ("super_read_only", "ON"),
            ("innodb_read_only", "ON"),
            ("binlog_format", "STATEMENT"),
            ("innodb_flush_log_at_trx_commit", "0"),
            ("max_allowed_packet", "1048576"),
        ];
        for (name, value) in bad {
            let error = with(name, value).check().unwrap_err();
            assert!(!error.remedy().is_empty(), "{name}");
        }
    }

    #[test]
    fn usual_settings_will_do() {
        let good = [
            ("wsrep_on", "OFF"),
            ("group_replication_single_primary_mode", "ON"),
            ("read_only", "OFF"),
            ("binlog_format", "ROW"),
            ("binlog_format", "MIXED"),
            ("innodb_flush_log_at_trx_commit", "3"),
            ("max_allowed_packet", "4194304"),
            ("innodb_doublewrite", "ON"),
            ("innodb_doublewrite", "DETECT_AND_RECOVER"),
            ("sync_binlog", "0"),
        ];
        for (name, value) in good {
            let server = with(name, value);
            assert!(server.check().is_ok() && server.doubts().is_empty(), "{name} = {value}");
        }
        for (name, value) in [("innodb_flush_log_at_trx_commit", "2"), ("innodb_doublewrite", "OFF")] {
            let doubtful = with(name, value);
            assert!(doubtful.check().is_ok() && doubtful.doubts()[0].contains(name), "{name} = {value}");
        }
        assert_eq!(with("max_allowed_packet", "1073741824").packet(), LARGEST_PACKET);
        let unlogged = Server {
            settings: [("log_bin".into(), "OFF".into()), ("binlog_format".into(), "STATEMENT".into())]
                .into_iter()
                .chain(with("", "").settings.into_iter().filter(|(name, _)| name != "log_bin"))
                .collect(),
            ..with("", "")
        };
        assert!(unlogged.check().is_ok(), "what is not logged has no format");
    }
}
