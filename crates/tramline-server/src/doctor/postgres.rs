//! A PostgreSQL server: durable, able to clean up behind a queue, and with room for its nodes.

use super::finding::{Finding, Severity, span};
use super::server::{self, Open};
use crate::figures::bytes;
use tramline::store::examine::{PostgresFigures, ReplicationSlot, Standby, TableFigures};

/// The oldest server that has everything.
const OLDEST: i32 = 140_000;
/// Dead rows below this are the next vacuum's; a busy queue has that many at any time.
const MANY_DEAD: i64 = 100_000;
/// How many transactions ago the oldest one may be that a standby or a slot keeps rows for.
const OLD: i64 = 1_000_000;
const GB: i64 = 1_000_000_000;

pub(super) fn check(figures: &PostgresFigures) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(version(figures.version));
    findings.extend(sight(figures.sees_all));
    findings.extend(read_only(figures));
    findings.extend(settings(figures));
    findings.extend(connections(figures));
    findings.extend(figures.holders.iter().filter_map(|holder| server::holder(holder, &OPEN)));
    findings.extend(figures.standbys.iter().filter_map(standby));
    findings.extend(figures.slots.iter().filter_map(slot));
    findings.extend(figures.tables.iter().filter_map(dead_rows));
    findings.extend(figures.tables.iter().filter_map(neglected));
    findings.extend(figures.waits.iter().filter_map(|wait| server::wait(wait, "process", WAIT)));
    findings.extend(figures.invalid_indexes.iter().map(|name| invalid(name)));
    findings.extend(figures.disk.iter().filter_map(|(path, free)| server::disk(path, *free)));
    findings
}

fn version(version: i32) -> Option<Finding> {
    let what = format!("the server is PostgreSQL {}", version / 10_000);
    (version < OLDEST).then(|| Finding::serious("version", what, "use PostgreSQL 14 or newer"))
}

fn sight(sees_all: bool) -> Option<Finding> {
    let what = "how long other users' transactions are open is hidden from this user";
    let remedy = "to have that checked, GRANT pg_read_all_stats to the user of the URL";
    (!sees_all).then(|| Finding::note("sight", what, remedy))
}

fn read_only(figures: &PostgresFigures) -> Option<Finding> {
    if figures.is_standby {
        let what = "the server is a standby: nothing can be emitted or claimed";
        return Some(Finding::serious("read-only", what, "let the URL name the primary"));
    }
    let what = "default_transaction_read_only is on: nothing can be emitted or claimed";
    let remedy = "turn it off for the user of the URL: ALTER ROLE .. SET default_transaction_read_only = off";
    (setting(figures, "default_transaction_read_only") == "on")
        .then(|| Finding::serious("read-only", what, remedy))
}

/// The values that are wrong, how bad each is, and why.
const WRONG: &[(&str, &str, Severity, &str)] = &[
    ("fsync", "off", Severity::Serious, "a power failure can destroy the database"),
    ("full_page_writes", "off", Severity::Warning, "a power failure can damage pages"),
    ("autovacuum", "off", Severity::Serious, "tables of a queue grow without end, and claims get slow"),
    ("track_counts", "off", Severity::Serious, "autovacuum does not work without it"),
];

fn settings(figures: &PostgresFigures) -> Vec<Finding> {
    let wrong = WRONG.iter().filter(|(name, value, ..)| setting(figures, name) == *value);
    let mut findings: Vec<Finding> = wrong
        .map(|(name, value, severity, why)| {
            let remedy = format!("turn it on: ALTER SYSTEM SET {name} = on, then SELECT pg_reload_conf()");
            Finding::new(*severity, "settings", format!("{name} is {value}: {why}"), remedy)
        })
        .collect();
    if setting(figures, "synchronous_commit") == "off" {
        let what = "synchronous_commit is off: a crash can lose emits that were acknowledged";
        findings.push(Finding::serious(
            "settings",
            what,
            "take synchronous_commit out of the URL of the store",
        ));
    }
    let isolation = setting(figures, "default_transaction_isolation");
    if !matches!(isolation, "" | "read committed") {
        let what = format!("default_transaction_isolation is {isolation}: steps fail that meet others");
        let remedy =
            "ALTER ROLE .. SET default_transaction_isolation = 'read committed' for the user of the URL";
        findings.push(Finding::warning("settings", what, remedy));
    }
    findings
}

fn connections(figures: &PostgresFigures) -> Option<Finding> {
    let number = |name| setting(figures, name).parse::<i64>().ok();
    let room = number("max_connections")? - number("superuser_reserved_connections")?;
    // One more listens.
    let node = i64::from(figures.pool) + 1;
    let remedy = "raise max_connections of the server, lower max_connections in the URL, or use a pooler";
    server::connections(figures.sessions, node, room, remedy)
}

fn setting<'a>(figures: &'a PostgresFigures, name: &str) -> &'a str {
    figures.settings.get(name).map_or("", String::as_str)
}

const OPEN: Open = Open {
    so: "dead rows stay",
    idle: "find out why it does not go on; SELECT pg_terminate_backend(PROCESS) ends it, \
           idle_in_transaction_session_timeout prevents it",
    running: "let long reports run on a standby, or in parts; SELECT pg_terminate_backend(PROCESS) ends it",
    prepared: "have its coordinator finish it, or COMMIT PREPARED or ROLLBACK PREPARED",
};
const WAIT: &str = "look what those do in pg_stat_activity; SELECT pg_terminate_backend(PROCESS) ends one";

/// Queries of a standby with `hot_standby_feedback` keep rows here as if they ran here.
fn standby(standby: &Standby) -> Option<Finding> {
    let what = format!(
        "a standby, served by {}, keeps dead rows of {} transactions",
        standby.who, standby.transactions
    );
    let remedy = "end the long query that runs there, or turn hot_standby_feedback off there";
    (standby.transactions > OLD).then(|| Finding::warning("horizon", what, remedy))
}

fn slot(slot: &ReplicationSlot) -> Option<Finding> {
    let remedy = "bring its reader back, or SELECT pg_drop_replication_slot(NAME)";
    let name = &slot.name;
    let kept = [(slot.transactions, "dead rows"), (slot.catalog_transactions, "dead rows of the catalogue")];
    if let Some((transactions, rows)) = kept.into_iter().find(|(transactions, _)| *transactions > OLD) {
        let what = format!("the replication slot {name} keeps {rows} of {transactions} transactions");
        return Some(Finding::warning("horizon", what, remedy));
    }
    let log = bytes(slot.wal_bytes.max(0).cast_unsigned());
    let what = format!("nobody reads the replication slot {name}, which keeps {log} of log");
    let severity = if slot.wal_bytes > 10 * GB { Severity::Serious } else { Severity::Warning };
    (!slot.is_active && slot.wal_bytes > GB).then(|| Finding::new(severity, "slots", what, remedy))
}

fn dead_rows(table: &TableFigures) -> Option<Finding> {
    let vacuumed = table.vacuumed.map_or("never".to_owned(), |age| format!("{} ago", span(age)));
    let what = format!(
        "{} has {} dead rows beside {} that live; last vacuumed: {vacuumed}",
        table.name, table.dead, table.live
    );
    let remedy = format!("see to what keeps them (horizon, locks), then VACUUM {}", table.name);
    (table.dead > MANY_DEAD && table.dead > 2 * table.live).then(|| Finding::warning("vacuum", what, remedy))
}

fn neglected(table: &TableFigures) -> Option<Finding> {
    let what = format!("autovacuum is turned off for {}", table.name);
    let remedy = format!("ALTER TABLE {} RESET (autovacuum_enabled)", table.name);
    table.is_neglected.then(|| Finding::serious("vacuum", what, remedy))
}

fn invalid(name: &str) -> Finding {
    let what = format!("the index {name} is not valid, so it is not used");
    Finding::serious("indexes", what, format!("REINDEX INDEX CONCURRENTLY {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tramline::store::examine::{Holder, Holds, LockWait};

    fn healthy() -> PostgresFigures {
        let settings = [("max_connections", "100"), ("superuser_reserved_connections", "3"), ("fsync", "on")];
        PostgresFigures {
            version: 150_004,
            sees_all: true,
            sessions: 20,
            pool: 10,
            settings: settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..PostgresFigures::default()
        }
    }

    fn found(change: impl Fn(&mut PostgresFigures)) -> Vec<(&'static str, Severity)> {
        let mut figures = healthy();
        change(&mut figures);
        check(&figures).into_iter().map(|finding| (finding.check, finding.severity)).collect()
    }

    fn set(name: &'static str, value: &'static str) -> Vec<(&'static str, Severity)> {
        found(|it| drop(it.settings.insert(name.into(), value.into())))
    }

    #[test]
    fn a_healthy_server_gives_no_findings() {
        assert_eq!(found(|_| {}), []);
        assert_eq!(set("synchronous_commit", "remote_apply"), []);
        assert_eq!(set("default_transaction_isolation", "read committed"), []);
    }

    #[test]
    fn settings_that_lose_events_are_serious() {
        for name in ["fsync", "synchronous_commit", "autovacuum", "track_counts"] {
            assert_eq!(set(name, "off"), [("settings", Severity::Serious)], "{name}");
        }
        assert_eq!(set("full_page_writes", "off"), [("settings", Severity::Warning)]);
        assert_eq!(set("default_transaction_isolation", "serializable"), [("settings", Severity::Warning)]);
        assert_eq!(set("default_transaction_read_only", "on"), [("read-only", Severity::Serious)]);
        assert_eq!(found(|it| it.is_standby = true), [("read-only", Severity::Serious)]);
        assert_eq!(found(|it| it.version = 130_012), [("version", Severity::Serious)]);
        assert_eq!(found(|it| it.sees_all = false), [("sight", Severity::Note)]);
    }

    #[test]
    fn the_connections_of_the_pool_have_to_fit() {
        assert_eq!(found(|it| it.sessions = 87), [("connections", Severity::Warning)]);
        assert_eq!(found(|it| it.pool = 97), [("connections", Severity::Serious)]);
        assert_eq!(found(|it| it.sessions = 86), []);
    }

    #[test]
    fn what_keeps_dead_rows_is_found_by_its_age() {
        let open = |holds, seconds| {
            let age = Some(Duration::from_secs(seconds));
            found(move |it| it.holders = vec![Holder { holds, who: "process 7".into(), age }])
        };
        assert_eq!(open(Holds::Running, 299), []);
        assert_eq!(open(Holds::Running, 301), [("horizon", Severity::Warning)]);
        assert_eq!(open(Holds::Idle, 61), [("horizon", Severity::Warning)]);
        assert_eq!(open(Holds::Prepared, 3601), [("horizon", Severity::Serious)]);
        let slot = |is_active, transactions, catalog_transactions, wal_bytes| {
            let name = "s".into();
            let slot = ReplicationSlot { name, is_active, transactions, catalog_transactions, wal_bytes };
            found(move |it| it.slots = vec![slot.clone()])
        };
        assert_eq!(slot(true, OLD, OLD, 20 * GB), []);
        assert_eq!(slot(false, 0, 0, 2 * GB), [("slots", Severity::Warning)]);
        assert_eq!(slot(false, 0, 0, 11 * GB), [("slots", Severity::Serious)]);
        assert_eq!(slot(true, OLD + 1, 0, 0), [("horizon", Severity::Warning)]);
        assert_eq!(slot(true, 0, OLD + 1, 0), [("horizon", Severity::Warning)]);
    }

    /// It has no transaction on this server, and so no age but the number of those that came since.
    #[test]
    fn a_standby_that_keeps_dead_rows_is_found_by_the_transactions_since() {
        let standby = |transactions| {
            found(move |it| it.standbys = vec![Standby { who: "process 7".into(), transactions }])
        };
        assert_eq!((standby(OLD), standby(OLD + 1)), (vec![], vec![("horizon", Severity::Warning)]));
    }

    #[test]
    fn tables_indexes_locks_and_the_disk_are_looked_at() {
        let disk = |free| found(move |it| it.disk = Some(("/data".into(), free)));
        assert_eq!(
            (disk(server::LITTLE_ROOM), disk(server::NO_ROOM)),
            (vec![], vec![("disk", Severity::Warning)])
        );
        assert_eq!(disk(server::NO_ROOM - 1), [("disk", Severity::Serious)]);
        let table = |live, dead, is_neglected| {
            let table =
                TableFigures { name: "tramline_slice".into(), live, dead, vacuumed: None, is_neglected };
            found(move |it| it.tables = vec![table.clone()])
        };
        assert_eq!(table(10, MANY_DEAD, false), []);
        assert_eq!(table(10, MANY_DEAD + 1, false), [("vacuum", Severity::Warning)]);
        assert_eq!(table(MANY_DEAD, MANY_DEAD + 1, false), []);
        assert_eq!(table(0, 0, true), [("vacuum", Severity::Serious)]);
        let wait = |seconds| {
            let wait = LockWait { process: 7, age: Duration::from_secs(seconds), blocked_by: vec![8] };
            found(move |it| it.waits = vec![wait.clone()])
        };
        assert_eq!((wait(5), wait(6)), (vec![], vec![("locks", Severity::Warning)]));
        assert_eq!(wait(61), [("locks", Severity::Serious)]);
        assert_eq!(found(|it| it.invalid_indexes = vec!["i".into()]), [("indexes", Severity::Serious)]);
    }
}
