//! Figures of a file, for an operator to judge.

use super::{migrate, open_to_look};
use crate::error::Result;
use crate::store::examine::{Schema, disk_free};
use rusqlite::Connection;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A SQLite file. How much is synced is no property of it: every connection of a store syncs fully.
#[derive(Clone, Debug, Default)]
pub struct SqliteFigures {
    /// The tables.
    pub schema: Schema,
    /// Its pages, and how many of them are free.
    pub pages: u64,
    /// How many of the pages are free.
    pub free_pages: u64,
    /// The size of a page.
    pub page_bytes: u64,
    /// The size of the write-ahead log.
    pub wal_bytes: u64,
    /// How it keeps its journal; stores use `wal`.
    pub journal_mode: String,
    /// What is wrong with it, as far as a quick check sees.
    pub damage: Option<String>,
    /// How many other processes have it open, as far as this one may see.
    pub processes: usize,
    /// How much can still be written to its file system.
    pub disk_free: Option<u64>,
    /// It is on a file system over the network.
    pub is_remote: bool,
}

pub(super) fn examine(path: &Path) -> Result<SqliteFigures> {
    let conn = open_to_look(path)?;
    let number = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned);
    let damage: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok(SqliteFigures {
        schema: schema(&conn)?,
        pages: number("PRAGMA page_count")?,
        free_pages: number("PRAGMA freelist_count")?,
        page_bytes: number("PRAGMA page_size")?,
        wal_bytes: std::fs::metadata(log(path)).map_or(0, |file| file.len()),
        journal_mode: conn.query_row("PRAGMA journal_mode", [], |row| row.get(0))?,
        damage: (damage != "ok").then_some(damage),
        processes: processes(path),
        disk_free: disk_free(path),
        is_remote: is_remote(path),
    })
}

fn schema(conn: &Connection) -> Result<Schema> {
    let mut names = conn.prepare("SELECT name FROM sqlite_schema WHERE name LIKE 'tramline%'")?;
    let there: BTreeSet<String> = names.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let sql = "SELECT max(version) FROM tramline_migration";
    let version = match there.contains("tramline_migration") {
        true => conn.query_row(sql, [], |row| row.get(0))?,
        false => None,
    };
    Ok(Schema::new(version, migrate::newest(), &migrate::sql(), &there))
}

fn log(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push("-wal");
    name.into()
}

/// Only where the system has `/proc`, and only processes of the same user unless this one may see all.
fn processes(path: &Path) -> usize {
    let Ok(file) = path.canonicalize() else { return 0 };
    let has_it = |process: &Path| {
        let open = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        open.into_iter().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == file))
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pid = |name: &OsString| name.to_str().and_then(|name| name.parse::<u32>().ok());
    let others = all.filter(|entry| pid(&entry.file_name()).is_some_and(|pid| pid != std::process::id()));
    others.filter(|entry| has_it(&entry.path())).count()
}

/// Processes on different machines do not see each other's shared memory, on which WAL mode rests.
#[cfg(target_os = "linux")]
fn is_remote(path: &Path) -> bool {
    // NFS, SMB, CIFS, SMB2, Ceph and 9P, by the numbers that Linux has for them.
    let remote = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x00c3_6400, 0x0102_1997];
    rustix::fs::statfs(path).is_ok_and(|system| remote.contains(&(system.f_type as u64 & 0xffff_ffff)))
}

#[cfg(not(target_os = "linux"))]
fn is_remote(_: &Path) -> bool {
    false
}
