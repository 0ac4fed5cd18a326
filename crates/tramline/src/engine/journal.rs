//! The journal of an at-most-once worker: a small local file that knows which claimed events were begun.
//!
//! The claim consumes, so after a crash nothing that was claimed runs again by itself. With a journal the restarted process knows
//! which events no handler has seen, and asks the store to make those ready again. Lines of text, only ever appended:
//! `claimed <lease> <id>..` and `started <id>..`. A torn last line is ignored: it was not waited for.
//!
//! Whoever has it open holds a lock on the file. What is in it is an earlier life's only if nobody else can still begin it: not a
//! second worker, and not a process that was stopped, replaced, and goes on.

use crate::error::{Error, Result};
use crate::model::id::EventId;
use crate::model::lease::Lease;
use crate::store::verbs::ClaimedSlice;
use std::collections::{HashSet, VecDeque};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An open journal. It is closed when it is dropped, also while an entry is being written.
#[derive(Debug)]
pub(crate) struct Journal {
    open: Arc<Mutex<Open>>,
    synced: bool,
}

#[derive(Debug)]
struct Open {
    /// None once it is closed.
    file: Option<File>,
    unsettled: HashSet<Lease>,
    /// How much of the file is whole entries.
    whole: u64,
    /// There may be more in it than that.
    torn: bool,
}

/// Leases of an earlier life and the events of each that no handler has seen.
pub(crate) type NeverStarted = Vec<(Lease, Vec<EventId>)>;

impl Journal {
    /// Opens or creates the file and reads what an earlier life left. `synced`: whether each entry is on the disk before a handler runs.
    ///
    /// # Errors
    /// `Conflict` while somebody else has it open, in this process or another one.
    pub(crate) fn open(path: &Path, synced: bool) -> Result<(Journal, NeverStarted)> {
        let bad = |error| {
            Error::unavailable("the journal cannot be opened", "check that its folder can be written")
                .because(error)
        };
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(bad)?;
        file.try_lock().map_err(|refused| match refused {
            TryLockError::WouldBlock => Error::conflict(
                "another worker has this journal open",
                "give each worker a journal of its own; end the process that has this one open, also if it is stopped",
            ),
            TryLockError::Error(error) => bad(error),
        })?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(bad)?;
        let left = never_started(&text);
        let whole = text.rfind('\n').map_or(0, |end| end as u64 + 1);
        let open =
            Open { file: Some(file), unsettled: HashSet::new(), whole, torn: whole < text.len() as u64 };
        Ok((Journal { open: Arc::new(Mutex::new(open)), synced }, left))
    }

    /// What an earlier life left is taken care of.
    pub(crate) async fn clear(&self) -> std::io::Result<()> {
        self.blocking(|open| open.clear()).await
    }

    /// These events are ours, and none of them is begun.
    pub(crate) async fn claimed(&self, slices: &[ClaimedSlice]) -> std::io::Result<()> {
        let mut lines = String::new();
        let mut leases = Vec::with_capacity(slices.len());
        for slice in slices {
            let ids: Vec<String> = slice.events.iter().map(|event| event.event.id.to_string()).collect();
            lines += &format!("claimed {} {}\n", slice.lease, ids.join(" "));
            leases.push(slice.lease);
        }
        self.append(lines, leases).await
    }

    /// These events are about to be begun.
    pub(crate) async fn started(&self, ids: Vec<EventId>) -> std::io::Result<()> {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        self.append(format!("started {}\n", ids.join(" ")), Vec::new()).await
    }

    /// Nothing is left of a lease. When nothing is left at all, the file is emptied.
    pub(crate) fn settled(&self, lease: &Lease) {
        let mut open = self.lock();
        if open.unsettled.remove(lease) && open.unsettled.is_empty() {
            // If it fails the file is longer than needed, no more: the store knows what was settled.
            let _ = open.clear();
        }
    }

    /// The next life may have it. From now on no entry can be written, so that nothing more is begun in this one.
    pub(crate) fn close(&self) {
        self.lock().file = None;
    }

    async fn append(&self, lines: String, leases: Vec<Lease>) -> std::io::Result<()> {
        let synced = self.synced;
        self.blocking(move |open| {
            open.unsettled.extend(leases);
            open.append(lines.len(), |file| {
                file.write_all(lines.as_bytes())?;
                if synced { file.sync_data() } else { Ok(()) }
            })
        })
        .await
    }

    async fn blocking(
        &self,
        work: impl FnOnce(&mut Open) -> std::io::Result<()> + Send + 'static,
    ) -> std::io::Result<()> {
        let open = self.open.clone();
        tokio::task::spawn_blocking(move || work(&mut lock(&open))).await.map_err(std::io::Error::other)?
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        lock(&self.open)
    }
}

/// A run that is dropped leaves work to threads that it does not wait for; they must not keep the file from the next run.
impl Drop for Journal {
    fn drop(&mut self) {
        self.close();
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Open {
    fn clear(&mut self) -> std::io::Result<()> {
        self.whole = 0;
        self.mend()
    }

    /// Writes entries of so many bytes, all of them or none: the next entry must not continue what was left of one.
    fn append(
        &mut self,
        bytes: usize,
        write: impl FnOnce(&mut File) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        if self.torn {
            self.mend()?;
        }
        if let Err(error) = write(self.file.as_mut().ok_or_else(closed)?) {
            // If this fails too, the next entry has to begin with it.
            let _ = self.mend();
            return Err(error);
        }
        self.whole += bytes as u64;
        Ok(())
    }

    /// Cuts off what does not count.
    fn mend(&mut self) -> std::io::Result<()> {
        let file = self.file.as_mut().ok_or_else(closed)?;
        self.torn = true;
        file.set_len(self.whole)?;
        file.seek(SeekFrom::Start(self.whole))?;
        self.torn = false;
        Ok(())
    }
}

fn closed() -> std::io::Error {
    std::io::Error::other("the journal is closed")
}

/// The events that were claimed and not begun, by lease.
fn never_started(text: &str) -> NeverStarted {
    let mut claimed = NeverStarted::new();
    let mut started = HashSet::new();
    // Only what ends with a line break was written completely.
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let mut words: VecDeque<&str> = line.split(' ').collect();
        match words.pop_front() {
            Some("claimed") => {
                let Some(lease) = words.pop_front().and_then(|word| word.parse().ok()) else { continue };
                // With a word in it that is no number, an entry is not what was written: it gives nobody the right to run.
                let events = ids(&words);
                if events.len() == words.len() {
                    claimed.push((lease, events));
                }
            }
            Some("started") => started.extend(ids(&words)),
            _ => {}
        }
    }
    for (_, events) in &mut claimed {
        events.retain(|event| !started.contains(event));
    }
    claimed.retain(|(_, events)| !events.is_empty());
    claimed
}

fn ids(words: &VecDeque<&str>) -> Vec<EventId> {
    words.iter().filter_map(|word| word.parse().ok()).map(EventId).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_claimed_and_never_begun_is_left() {
        let text = "claimed 0.1.2.3.4 64 65 66\nstarted 64\nclaimed 0.9.9.9.9 640\nstarted 640\nstarted 6";
        let lease = "0.1.2.3.4".parse().unwrap();
        assert_eq!(never_started(text), [(lease, vec![EventId(65), EventId(66)])]);
        assert_eq!(never_started("rubbish\nclaimed x 1\n"), []);
        assert_eq!(never_started("claimed 0.1.2.3.4 64 65started 64\n"), []);
    }

    /// On a full disk the first half of an entry was left, the next one continued its line, and after a crash an event that had
    /// run was taken for one that had not.
    #[test]
    fn an_entry_that_could_not_be_written_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let (journal, _) = Journal::open(&path, false).unwrap();
        let mut open = journal.lock();
        let put =
            |open: &mut Open, line: &str| open.append(line.len(), |file| file.write_all(line.as_bytes()));
        put(&mut open, "claimed 0.1.2.3.4 64 65\n").unwrap();
        let full = open.append(99, |file| {
            file.write_all(b"claimed 0.9.9.9.9 128 129")?;
            Err(std::io::ErrorKind::StorageFull.into())
        });
        assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
        put(&mut open, "started 64\n").unwrap();
        drop(open);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "claimed 0.1.2.3.4 64 65\nstarted 64\n");
    }

    /// What was left of an entry by a life that ended is not continued either.
    #[test]
    fn a_torn_last_line_is_cut_off_before_the_next_entry() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        std::fs::write(&path, "claimed 0.1.2.3.4 64\nclaimed 0.9.9.9.9 1").unwrap();
        let (journal, left) = Journal::open(&path, false).unwrap();
        assert_eq!(left, [("0.1.2.3.4".parse().unwrap(), vec![EventId(64)])]);
        journal.lock().append(11, |file| file.write_all(b"started 64\n")).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "claimed 0.1.2.3.4 64\nstarted 64\n");
    }

    /// Two of them made what the first one held ready again, while the first one still began it.
    #[test]
    fn a_journal_is_open_only_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let (first, _) = Journal::open(&path, false).unwrap();
        first.lock().append(21, |file| file.write_all(b"claimed 0.1.2.3.4 64\n")).unwrap();
        assert_eq!(Journal::open(&path, false).unwrap_err().kind(), crate::error::Kind::Conflict);
        first.close();
        let (_, left) = Journal::open(&path, false).unwrap();
        assert_eq!(left, [("0.1.2.3.4".parse().unwrap(), vec![EventId(64)])]);
    }

    /// A handler of a run that was dropped may just be about to start, while the next life reads what never started.
    #[test]
    fn nothing_is_begun_once_the_journal_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let (journal, _) = Journal::open(&path, false).unwrap();
        journal.close();
        journal.lock().append(11, |file| file.write_all(b"started 64\n")).unwrap_err();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }

    /// The story: a worker was aborted while it started. A thread was still to empty the journal, or had just done so, and held it; the
    /// next run was refused.
    #[test]
    fn a_run_that_is_dropped_while_it_starts_leaves_its_journal_to_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || ended.recv());
            let (journal, _) = Journal::open(&path, false).unwrap();
            tokio::select! {
                biased;
                _ = journal.clear() => panic!("the only thread is busy"),
                () = std::future::ready(()) => {}
            }
            drop(journal);
            Journal::open(&path, false).unwrap();
            drop(end);
            assert!(busy.await.unwrap().is_err());
        });
    }
}
