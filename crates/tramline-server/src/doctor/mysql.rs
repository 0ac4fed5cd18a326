//! A MySQL or MariaDB server: durable, able to clean up behind a queue, and with room for its nodes.

use super::finding::{Finding, Severity};
use super::server::{self, Open};
use tramline::store::examine::{MysqlFigures, Refusals};

/// A busy server has thousands of transactions to clean up behind at any time; claims feel it from here on.
const LONG_HISTORY: i64 = 100_000;

pub(super) fn check(figures: &MysqlFigures) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(refused(figures));
    findings.extend(sight(figures.sees_all));
    findings.extend(settings(figures));
    findings.extend(connections(figures));
    findings.extend(history(figures.history));
    findings.extend(figures.holders.iter().filter_map(|holder| server::holder(holder, &OPEN)));
    findings.extend(figures.waits.iter().filter_map(|wait| server::wait(wait, "connection", WAIT)));
    findings.extend(figures.foreign_tables.iter().map(|(table, engine)| foreign(table, engine)));
    findings.extend(figures.disks.iter().filter_map(|(path, free)| server::disk(path, *free)));
    findings.extend(figures.refusals.as_ref().map(inbox));
    findings
}

fn refused(figures: &MysqlFigures) -> Option<Finding> {
    let (what, remedy) = figures.refused.as_ref()?;
    Some(Finding::serious("server", format!("no store can be opened here: {what}"), remedy))
}

fn sight(sees_all: bool) -> Option<Finding> {
    let what = "transactions and waits for locks are hidden from this user";
    let remedy = "to have those checked, GRANT PROCESS ON *.* to the user of the URL";
    (!sees_all).then(|| Finding::note("sight", what, remedy))
}

/// The values that are wrong, how bad each is, why, and what to set instead.
const WRONG: &[(&str, &str, Severity, &str, &str)] = &[
    (
        "innodb_flush_log_at_trx_commit",
        "2",
        Severity::Serious,
        "a crash of the machine loses emits that were acknowledged in the last second",
        "1",
    ),
    ("innodb_doublewrite", "OFF", Severity::Warning, "a power failure can damage pages", "ON"),
    (
        "innodb_deadlock_detect",
        "OFF",
        Severity::Note,
        "steps that wait for each other go on after a second, and not at once",
        "ON",
    ),
];

fn settings(figures: &MysqlFigures) -> Vec<Finding> {
    let wrong = WRONG.iter().filter(|(name, value, ..)| setting(figures, name) == *value);
    let mut findings: Vec<Finding> = wrong
        .map(|(name, value, severity, why, right)| {
            let remedy = format!("set {name} = {right}, in the server's configuration too");
            Finding::new(*severity, "settings", format!("{name} is {value}: {why}"), remedy)
        })
        .collect();
    findings.extend(log(figures));
    findings.extend(
        ["max_statement_time", "max_execution_time"].into_iter().filter_map(|name| limit(figures, name)),
    );
    findings
}

fn log(figures: &MysqlFigures) -> Option<Finding> {
    let synced = setting(figures, "sync_binlog");
    let what = format!("sync_binlog is {synced}: after a crash, replicas and this server may differ");
    let remedy = "set sync_binlog = 1";
    (setting(figures, "log_bin") == "ON" && !matches!(synced, "" | "1"))
        .then(|| Finding::warning("settings", what, remedy))
}

fn limit(figures: &MysqlFigures, name: &str) -> Option<Finding> {
    let most: f64 = setting(figures, name).parse().ok()?;
    let what =
        format!("{name} is {most}: the server ends statements that take longer, also those of a sweep");
    let remedy = format!("leave {name} at 0 for the user of the URL");
    (most > 0.0).then(|| Finding::warning("settings", what, remedy))
}

fn connections(figures: &MysqlFigures) -> Option<Finding> {
    let room: i64 = setting(figures, "max_connections").parse().ok()?;
    let remedy = "raise max_connections of the server, or lower max_connections in the URL";
    server::connections(figures.sessions, i64::from(figures.pool), room, remedy)
}

fn setting<'a>(figures: &'a MysqlFigures, name: &str) -> &'a str {
    figures.settings.get(name).map_or("", String::as_str)
}

/// Claims have to step over the old versions of rows that are not removed.
fn history(length: Option<i64>) -> Option<Finding> {
    let length = length?;
    let what = format!("the history list has {length} entries: old versions of rows pile up");
    let remedy = "see to long transactions (horizon); if there are none, raise innodb_purge_threads";
    let severity = if length > 10 * LONG_HISTORY { Severity::Serious } else { Severity::Warning };
    (length > LONG_HISTORY).then(|| Finding::new(severity, "history", what, remedy))
}

const OPEN: Open = Open {
    so: "old rows stay",
    idle: "find out why it does not go on; KILL CONNECTION ends it",
    running: "let long reports run on a replica, or in parts; KILL CONNECTION ends it",
    prepared: "have its coordinator finish it, or XA RECOVER and XA COMMIT or XA ROLLBACK",
};
const WAIT: &str = "look what that does in SHOW PROCESSLIST; KILL CONNECTION ends it";

fn foreign(table: &str, engine: &str) -> Finding {
    let what = format!("{table} is kept by {engine}, which has no transactions");
    Finding::serious("engine", what, format!("stop all nodes, then ALTER TABLE {table} ENGINE = InnoDB"))
}

fn inbox(refusals: &Refusals) -> Finding {
    let Refusals { rows, first, reason } = refusals;
    let what =
        format!("{rows} rows of tramline_inbox were refused and are no events; the first, {first}: {reason}");
    let remedy =
        "see the column error of those with refused = 1; correct each and set refused to 0, or delete it";
    Finding::warning("inbox", what, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tramline::store::examine::{Holder, Holds, LockWait};

    fn healthy() -> MysqlFigures {
        let settings = [
            ("max_connections", "151"),
            ("innodb_flush_log_at_trx_commit", "1"),
            ("innodb_doublewrite", "ON"),
            ("log_bin", "ON"),
            ("sync_binlog", "1"),
            ("max_statement_time", "0.000000"),
        ];
        MysqlFigures {
            version: "8.0.36".into(),
            sees_all: true,
            sessions: 20,
            pool: 10,
            history: Some(5000),
            settings: settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..MysqlFigures::default()
        }
    }

    fn found(change: impl Fn(&mut MysqlFigures)) -> Vec<(&'static str, Severity)> {
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
        assert_eq!(found(|it| it.history = None), [], "what is not known is no problem");
    }

    #[test]
    fn settings_are_judged_by_what_they_may_cost() {
        assert_eq!(set("innodb_flush_log_at_trx_commit", "2"), [("settings", Severity::Serious)]);
        assert_eq!(set("innodb_doublewrite", "OFF"), [("settings", Severity::Warning)]);
        assert_eq!(set("sync_binlog", "0"), [("settings", Severity::Warning)]);
        assert_eq!(set("max_statement_time", "30.000000"), [("settings", Severity::Warning)]);
        assert_eq!(set("innodb_deadlock_detect", "OFF"), [("settings", Severity::Note)]);
        assert_eq!(found(|it| it.sees_all = false), [("sight", Severity::Note)]);
        let refused = Some(("wsrep_on".into(), "use a single primary".into()));
        assert_eq!(found(|it| it.refused = refused.clone()), [("server", Severity::Serious)]);
    }

    #[test]
    fn the_connections_of_the_pool_have_to_fit() {
        assert_eq!(found(|it| it.sessions = 142), [("connections", Severity::Warning)]);
        assert_eq!(found(|it| it.pool = 152), [("connections", Severity::Serious)]);
        assert_eq!(found(|it| it.sessions = 141), []);
    }

    #[test]
    fn what_keeps_old_rows_is_found_by_its_age_and_by_what_it_keeps() {
        let open = |holds, seconds| {
            let age = Some(Duration::from_secs(seconds));
            found(move |it| it.holders = vec![Holder { holds, who: "connection 7".into(), age }])
        };
        assert_eq!(open(Holds::Running, 300), []);
        assert_eq!(open(Holds::Running, 301), [("horizon", Severity::Warning)]);
        assert_eq!(open(Holds::Idle, 61), [("horizon", Severity::Warning)]);
        assert_eq!(open(Holds::Prepared, 3601), [("horizon", Severity::Serious)]);
        assert_eq!(found(|it| it.history = Some(LONG_HISTORY + 1)), [("history", Severity::Warning)]);
        assert_eq!(found(|it| it.history = Some(10 * LONG_HISTORY + 1)), [("history", Severity::Serious)]);
    }

    #[test]
    fn tables_locks_and_disks_are_looked_at() {
        let wait = |seconds| {
            let wait = LockWait { process: 7, age: Duration::from_secs(seconds), blocked_by: vec![8] };
            found(move |it| it.waits = vec![wait.clone()])
        };
        assert_eq!((wait(5), wait(6)), (vec![], vec![("locks", Severity::Warning)]));
        assert_eq!(wait(61), [("locks", Severity::Serious)]);
        let table = ("tramline_slice".to_owned(), "MyISAM".to_owned());
        assert_eq!(found(|it| it.foreign_tables = vec![table.clone()]), [("engine", Severity::Serious)]);
        let disk = |free| found(|it| it.disks = vec![("/var/lib/mysql".into(), free)]);
        assert_eq!(
            (disk(server::LITTLE_ROOM), disk(server::NO_ROOM)),
            (vec![], vec![("disk", Severity::Warning)])
        );
        assert_eq!(disk(server::NO_ROOM - 1), [("disk", Severity::Serious)]);
    }

    #[test]
    fn what_programs_failed_to_emit_is_told_with_the_first_reason() {
        let refusals = Refusals { rows: 3, first: 7, reason: "headers are no texts".into() };
        let findings = check(&MysqlFigures { refusals: Some(refusals), ..healthy() });
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!((finding.check, finding.severity), ("inbox", Severity::Warning));
        assert!(finding.what.starts_with("3 rows") && finding.what.ends_with("7: headers are no texts"));
    }
}
