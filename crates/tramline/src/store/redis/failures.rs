//! What is kept of failures: written with them, read by those who ask, removed with the chunk.

use super::pack::{Packer, Unpacker};
use super::session::{Session, hgetall};
use super::tuple::{Columns, Tuple};
use crate::error::Result;
use crate::model::id::{ChunkId, SubscriptionId};
use crate::model::mask::Mask;
use crate::model::time::Time;
use crate::plan::Changes;
use crate::store::failures::{History, Stored, replaced, worker};
use std::collections::{BTreeMap, BTreeSet};

/// The notes of a chunk, by subscription, slot and number.
fn notes_key(session: &Session<'_>, chunk: ChunkId) -> Vec<u8> {
    session.key(&format!("f:{chunk}"))
}

/// A note and where it is.
struct Note {
    slot: i64,
    number: i64,
    stored: Stored,
}

impl Note {
    fn write(&self, session: &Session<'_>) {
        let stored = &self.stored;
        let row = Packer::new()
            .bits(stored.mask.to_i64())
            .number(i64::from(stored.attempt))
            .number(stored.at.0)
            .bytes(stored.worker.as_bytes())
            .bytes(stored.text.as_bytes())
            .done();
        session.put(notes_key(session, stored.chunk), self.field(), row);
    }

    fn remove(&self, session: &Session<'_>) {
        session.remove(notes_key(session, self.stored.chunk), self.field());
    }

    fn field(&self) -> Vec<u8> {
        Tuple::new().with(&[self.stored.subscription.0, self.slot, self.number]).bytes()
    }
}

fn notes(session: &Session<'_>, chunk: ChunkId) -> Result<Vec<Note>> {
    let mut notes = Vec::new();
    for (field, row) in session.all(&notes_key(session, chunk))? {
        let (mut columns, mut row) = (Columns(&field), Unpacker::new(&row));
        let (subscription, slot, number) = (columns.number(), columns.number(), columns.number());
        let stored = Stored {
            subscription: SubscriptionId(subscription),
            chunk,
            mask: Mask::from_i64(row.bits()?),
            attempt: row.number()? as u32,
            at: Time(row.number()?),
            worker: row.text()?,
            text: row.text()?,
        };
        notes.push(Note { slot, number, stored });
    }
    Ok(notes)
}

fn expect(session: &Session<'_>, chunks: impl Iterator<Item = ChunkId>) -> Result<()> {
    session.expect(chunks.map(|chunk| hgetall(&notes_key(session, chunk))))
}

/// Writes notes in the places of older ones.
pub(super) fn write(session: &Session<'_>, id: SubscriptionId, changes: &Changes) -> Result<()> {
    if changes.notes.is_empty() {
        return Ok(());
    }
    expect(session, changes.notes.iter().map(|note| note.chunk))?;
    let mut last: BTreeMap<ChunkId, i64> = BTreeMap::new();
    let replaced = replaced(&changes.notes);
    for chunk in changes.notes.iter().map(|note| note.chunk).collect::<BTreeSet<_>>() {
        for mut old in notes(session, chunk)? {
            let last = last.entry(chunk).or_default();
            *last = old.number.max(*last);
            let slot = replaced.get(&(chunk, old.slot as i16)).filter(|_| old.stored.subscription == id);
            let left = slot.map_or(old.stored.mask, |mask| old.stored.mask.minus(*mask));
            if left.is_empty() {
                old.remove(session);
            } else if left != old.stored.mask {
                old.stored.mask = left;
                old.write(session);
            }
        }
    }
    for note in &changes.notes {
        // Numbers have to be new in their chunk only, so that nobody else gets into the way.
        let last = last.entry(note.chunk).or_default();
        *last += 1;
        let stored = Stored {
            subscription: id,
            chunk: note.chunk,
            mask: note.mask,
            attempt: note.attempt,
            at: session.now,
            worker: worker(changes, note),
            text: note.text.clone(),
        };
        Note { slot: i64::from(note.slot()), number: *last, stored }.write(session);
    }
    Ok(())
}

/// All notes of chunks, in every subscription.
pub(super) fn read(session: &Session<'_>, chunks: impl Iterator<Item = ChunkId> + Clone) -> Result<History> {
    expect(session, chunks.clone())?;
    let mut found = Vec::new();
    for chunk in chunks {
        found.extend(notes(session, chunk)?.into_iter().map(|note| note.stored));
    }
    Ok(History(found))
}

/// Removes the notes of a chunk that is gone.
pub(super) fn forget(session: &Session<'_>, chunk: ChunkId) {
    session.forget(notes_key(session, chunk));
}
