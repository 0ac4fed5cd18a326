//! A consistent copy of a file that is in use, marked as one.

use super::session::store_time;
use super::{open_to_look, restored};
use crate::error::{Error, Kind, Result};
use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

/// How much is copied at a time: 8 MiB with pages of 8 KiB.
const STEP_PAGES: i32 = 1024;

/// A copy that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Its size.
    pub bytes: u64,
    /// The version of the tables in it.
    pub version: i64,
}

/// Copies what was committed when it began. The file gets its name when it is complete, checked and synced; until then it has
/// `.part` behind it.
pub(super) fn copy(from: &Path, to: &Path) -> Result<Copied> {
    // Neither creates nor migrates: a copy is often made before an upgrade.
    let source = open_to_look(from)?;
    version(&source)?;
    if to.exists() {
        return Err(taken(to));
    }
    let part = Part::create(to)?;
    part.close_to_others(from)?;
    pages(&source, &part.path)?;
    let version = check(&part.path)?;
    part.finish(to, version)
}

/// One view of the database, held over all steps: in WAL mode it stops no writer, and without it every commit of another process
/// would make the copy begin anew. What is written meanwhile stays in the write-ahead log.
fn pages(source: &Connection, to: &Path) -> Result<()> {
    // Before the view: what is done from this moment on may be missing in it.
    let begun = store_time(source)?;
    let view = source.unchecked_transaction()?;
    version(&view)?;
    let mut copy = Connection::open(to)?;
    // Nobody else sees the file, and half of it is of no use: no journal.
    copy.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = FULL")?;
    step_by_step(&Backup::new(&view, &mut copy)?)?;
    restored::mark(&copy, begun)
}

fn step_by_step(backup: &Backup<'_, '_>) -> Result<()> {
    loop {
        match backup.step(STEP_PAGES)? {
            StepResult::Done => return Ok(()),
            StepResult::More => {}
            _ => return Err(Error::unavailable("another process holds the database", "try again")),
        }
    }
}

/// Reads all of the copy. It leaves WAL mode until a store is opened on it, so that it is one file and stays one.
fn check(copy: &Path) -> Result<i64> {
    let conn = Connection::open(copy)?;
    conn.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))?;
    let found: String = conn.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if found != "ok" {
        let what = format!("the copy is damaged: {found}");
        return Err(Error::conflict(
            what,
            "the store is likely to be so too; run `tramline doctor`, check the disk",
        ));
    }
    version(&conn)
}

fn version(conn: &Connection) -> Result<i64> {
    let sql = "SELECT max(version) FROM tramline_migration";
    conn.query_row(sql, [], |row| row.get(0)).map_err(|error| {
        Error::not_found("the file has no tables of Tramline", "check the path of the store").because(error)
    })
}

fn taken(path: &Path) -> Error {
    Error::conflict(
        format!("{} exists; a backup overwrites nothing", path.display()),
        "choose another name, or remove it",
    )
}

/// A copy that is not complete. It goes unless it is finished.
struct Part {
    path: PathBuf,
}

impl Part {
    /// Fails if it is there: two backups to one file are kept apart by it.
    fn create(to: &Path) -> Result<Part> {
        let mut name = OsString::from(to);
        name.push(".part");
        let path = PathBuf::from(name);
        match File::create_new(&path) {
            Ok(_) => Ok(Part { path }),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(Error::conflict(
                format!("{} exists: another backup is running, or was killed", path.display()),
                "wait for it, or remove the file if there is none",
            )),
            Err(error) => Err(failed(&path, error)),
        }
    }

    /// Whoever may not read the store may not read the copy. It is still empty.
    fn close_to_others(&self, from: &Path) -> Result<()> {
        let allowed = std::fs::metadata(from).map_err(|error| failed(from, error))?.permissions();
        std::fs::set_permissions(&self.path, allowed).map_err(|error| failed(&self.path, error))
    }

    fn finish(self, to: &Path, version: i64) -> Result<Copied> {
        let file = File::open(&self.path).map_err(|error| failed(&self.path, error))?;
        file.sync_all().map_err(|error| failed(&self.path, error))?;
        let bytes = file.metadata().map_err(|error| failed(&self.path, error))?.len();
        // A link never replaces a file that came meanwhile, as a rename would. Not every file system has links.
        match std::fs::hard_link(&self.path, to) {
            Ok(()) => {}
            Err(_) if to.exists() => return Err(taken(to)),
            Err(_) => std::fs::rename(&self.path, to).map_err(|error| failed(to, error))?,
        }
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| failed(folder, error))?;
        Ok(Copied { bytes, version })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).ok(); // gone already where it was renamed
    }
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    let what = format!("{} cannot be written", path.display());
    Error::new(Kind::Unavailable, what, "check that the folder exists, can be written and has room")
        .because(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SqliteStore;

    async fn store() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        SqliteStore::open(&path).await.unwrap();
        (folder, path)
    }

    #[tokio::test]
    async fn a_copy_is_one_file_and_can_be_opened_as_a_store() {
        let (folder, path) = store().await;
        let to = folder.path().join("copy.db");
        let copied = SqliteStore::backup(&path, &to).await.unwrap();
        assert_eq!(copied.bytes, std::fs::metadata(&to).unwrap().len());
        let of_copy = |name: &str| name.starts_with("copy.db");
        let names = std::fs::read_dir(folder.path()).unwrap();
        let names: Vec<String> = names.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(names.iter().filter(|name| of_copy(name)).count(), 1, "{names:?}");
        SqliteStore::open(&to).await.unwrap();
    }

    #[tokio::test]
    async fn what_is_there_is_never_overwritten() {
        let (folder, path) = store().await;
        for name in ["copy.db", "other.db.part"] {
            let there = folder.path().join(name);
            std::fs::write(&there, "mine").unwrap();
            let to = folder.path().join(name.trim_end_matches(".part"));
            let error = SqliteStore::backup(&path, &to).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Conflict, "{error}");
            assert_eq!(std::fs::read_to_string(&there).unwrap(), "mine");
        }
    }

    #[tokio::test]
    async fn what_is_no_store_is_refused_and_leaves_nothing_behind() {
        let (folder, path) = store().await;
        let empty = folder.path().join("empty.db");
        Connection::open(&empty).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
        for from in [empty, folder.path().join("missing.db")] {
            let to = folder.path().join("copy.db");
            let error = SqliteStore::backup(&from, &to).await.unwrap_err();
            assert_eq!(error.kind(), Kind::NotFound, "{error}");
            assert!(!to.exists() && !folder.path().join("copy.db.part").exists());
        }
        assert!(!folder.path().join("missing.db").exists(), "looking creates nothing");
        let nowhere = folder.path().join("no/such/folder/copy.db");
        assert_eq!(SqliteStore::backup(&path, &nowhere).await.unwrap_err().kind(), Kind::Unavailable);
    }

    #[tokio::test]
    async fn only_a_copy_is_marked_and_only_until_it_is_opened() {
        let (folder, path) = store().await;
        let to = folder.path().join("copy.db");
        SqliteStore::backup(&path, &to).await.unwrap();
        let marks = |path: &Path| {
            let sql = "SELECT count(*) FROM tramline_meta WHERE name = 'copied_at'";
            Connection::open(path).unwrap().query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap()
        };
        assert_eq!((marks(&path), marks(&to)), (0, 1));
        SqliteStore::open(&to).await.unwrap();
        assert_eq!(marks(&to), 0);
    }

    /// Every commit of another connection would make a copy without a view of its own begin anew.
    #[tokio::test]
    async fn a_copy_ends_while_others_write() {
        let (folder, path) = store().await;
        let other = Connection::open(&path).unwrap();
        other.execute_batch("CREATE TABLE filler (x BLOB)").unwrap();
        other
            .execute_batch(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) \
                             INSERT INTO filler SELECT zeroblob(8000) FROM n",
            )
            .unwrap();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let writer = std::thread::spawn(move || {
            let mut writes = 0;
            while stopped.try_recv().is_err() {
                other.execute("INSERT INTO filler VALUES (1)", []).unwrap();
                writes += 1;
            }
            writes
        });
        let copied = SqliteStore::backup(&path, folder.path().join("copy.db")).await.unwrap();
        stop.send(()).unwrap();
        assert!(writer.join().unwrap() > 0);
        assert!(copied.bytes > 3000 * 8000);
    }
}
