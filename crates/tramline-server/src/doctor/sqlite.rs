//! A SQLite file: whole, where it can be, and with room to grow.

use super::finding::Finding;
use crate::figures::bytes;
use tramline::store::examine::SqliteFigures;

const MB: u64 = 1_000_000;
/// Stores move the log into the file after 16 MB; more than this is not for lack of time.
const LONG_LOG: u64 = 256 * MB;
/// Free pages below this are not worth a word.
const FREE: u64 = 64 * MB;
const LITTLE_ROOM: u64 = 1000 * MB;
const NO_ROOM: u64 = 100 * MB;

pub(super) fn check(figures: &SqliteFigures) -> Vec<Finding> {
    let checks = [damage, place, disk, log, journal, free_pages, processes];
    checks.iter().filter_map(|check| check(figures)).collect()
}

fn damage(figures: &SqliteFigures) -> Option<Finding> {
    let damage = figures.damage.as_ref()?;
    let remedy = "stop the server, keep the file, check the disk, and restore a backup; `.recover` of sqlite3 may save more";
    Some(Finding::serious("integrity", format!("the file is damaged: {damage}"), remedy))
}

fn place(figures: &SqliteFigures) -> Option<Finding> {
    let remedy = "move the file to a disk of the machine itself, or use PostgreSQL";
    let what = "the file is on a network file system, where locks cannot be relied on";
    figures.is_remote.then(|| Finding::serious("place", what, remedy))
}

fn disk(figures: &SqliteFigures) -> Option<Finding> {
    let free = figures.disk_free?;
    let what = format!("the disk has {} left", bytes(free));
    let remedy = "free some space, or set store_limit_bytes so that the store makes room in time";
    match free {
        ..NO_ROOM => Some(Finding::serious("disk", what, remedy)),
        NO_ROOM..LITTLE_ROOM => Some(Finding::warning("disk", what, remedy)),
        _ => None,
    }
}

fn log(figures: &SqliteFigures) -> Option<Finding> {
    let what = format!("the write-ahead log has {}: it cannot be emptied", bytes(figures.wal_bytes));
    let remedy = "look for somebody who reads for long, such as a backup or an open shell, and end that";
    (figures.wal_bytes > LONG_LOG).then(|| Finding::warning("wal", what, remedy))
}

/// As in a copy that nobody has opened yet.
fn journal(figures: &SqliteFigures) -> Option<Finding> {
    let what = format!("the journal mode is {}, not wal", figures.journal_mode);
    let remedy = "nothing to do; it is set when a server opens the file";
    (figures.journal_mode != "wal").then(|| Finding::note("journal", what, remedy))
}

fn free_pages(figures: &SqliteFigures) -> Option<Finding> {
    let free = figures.free_pages * figures.page_bytes;
    let what =
        format!("{} of {} in the file are free", bytes(free), bytes(figures.pages * figures.page_bytes));
    let remedy = "they are used again; to give them back, stop the server and run `sqlite3 FILE VACUUM`";
    (free > FREE && figures.free_pages > figures.pages / 2).then(|| Finding::note("free", what, remedy))
}

fn processes(figures: &SqliteFigures) -> Option<Finding> {
    let what = format!("{} processes have the file open", figures.processes);
    let remedy = "fine on one machine; make sure that all of them are meant to";
    (figures.processes > 1).then(|| Finding::note("processes", what, remedy))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    fn healthy() -> SqliteFigures {
        SqliteFigures {
            pages: 100_000,
            free_pages: 10,
            page_bytes: 8192,
            wal_bytes: 16 * MB,
            journal_mode: "wal".into(),
            processes: 1,
            disk_free: Some(50_000 * MB),
            ..SqliteFigures::default()
        }
    }

    fn found(change: impl Fn(&mut SqliteFigures)) -> Vec<(&'static str, Severity)> {
        let mut figures = healthy();
        change(&mut figures);
        check(&figures).into_iter().map(|finding| (finding.check, finding.severity)).collect()
    }

    #[test]
    fn a_healthy_file_gives_no_findings() {
        assert_eq!(found(|_| {}), []);
        assert_eq!(found(|it| it.disk_free = None), [], "what is not known is no problem");
    }

    #[test]
    fn each_problem_is_found() {
        assert_eq!(found(|it| it.damage = Some("row missing".into())), [("integrity", Severity::Serious)]);
        assert_eq!(found(|it| it.is_remote = true), [("place", Severity::Serious)]);
        assert_eq!(found(|it| it.disk_free = Some(LITTLE_ROOM - 1)), [("disk", Severity::Warning)]);
        assert_eq!(found(|it| it.disk_free = Some(NO_ROOM - 1)), [("disk", Severity::Serious)]);
        assert_eq!(found(|it| it.wal_bytes = LONG_LOG + 1), [("wal", Severity::Warning)]);
        assert_eq!(found(|it| it.journal_mode = "delete".into()), [("journal", Severity::Note)]);
        assert_eq!(found(|it| it.free_pages = 60_000), [("free", Severity::Note)]);
        assert_eq!(found(|it| it.processes = 2), [("processes", Severity::Note)]);
    }
}
