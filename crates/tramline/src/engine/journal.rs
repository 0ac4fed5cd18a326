//! The journal of an at-most-once worker: a small local file that knows which claimed events were begun.
//!
//! The claim consumes, so after a crash nothing that was claimed runs again by itself. With a journal the restarted process knows
//! which events no handler has seen, and asks the store to make those ready again. Lines of text, only ever appended:
//! `claimed <lease> <id>..` and `started <id>..`. A torn last line is ignored: it was not waited for.

use crate::error::{Error, Result};
use crate::model::id::EventId;
use crate::model::lease::Lease;
use crate::store::verbs::ClaimedSlice;
use std::collections::{HashSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An open journal.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    open: Arc<Mutex<Open>>,
    synced: bool,
}

#[derive(Debug)]
struct Open {
    file: File,
    unsettled: HashSet<Lease>,
}

/// Leases of an earlier life and the events of each that no handler has seen.
pub(crate) type NeverStarted = Vec<(Lease, Vec<EventId>)>;

impl Journal {
    /// Opens or creates the file and reads what an earlier life left. `synced`: whether each entry is on the disk before a handler runs.
    pub(crate) fn open(path: &Path, synced: bool) -> Result<(Journal, NeverStarted)> {
        let bad = |error| {
            Error::unavailable("the journal cannot be opened", "check that its folder can be written")
                .because(error)
        };
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(bad)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(bad)?;
        let left = never_started(&text);
        Ok((Journal { open: Arc::new(Mutex::new(Open { file, unsettled: HashSet::new() })), synced }, left))
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

    async fn append(&self, lines: String, leases: Vec<Lease>) -> std::io::Result<()> {
        let synced = self.synced;
        self.blocking(move |open| {
            open.unsettled.extend(leases);
            open.file.write_all(lines.as_bytes())?;
            if synced { open.file.sync_data() } else { Ok(()) }
        })
        .await
    }

    async fn blocking(
        &self,
        work: impl FnOnce(&mut Open) -> std::io::Result<()> + Send + 'static,
    ) -> std::io::Result<()> {
        let journal = self.clone();
        tokio::task::spawn_blocking(move || work(&mut journal.lock())).await.map_err(std::io::Error::other)?
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn clear(&mut self) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0)).map(|_| ())
    }
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
                claimed.push((lease, ids(&words)));
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
    }
}
