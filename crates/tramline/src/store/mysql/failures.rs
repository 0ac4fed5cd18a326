//! What is kept of failures: written with them, read by those who ask, removed with the chunk.

use super::session::Session;
use super::sql::{Columns, LIST, insert, list, text};
use crate::error::Result;
use crate::model::failure::Note;
use crate::model::id::{ChunkId, SubscriptionId};
use crate::model::mask::Mask;
use crate::plan::Changes;
use crate::store::failures::{History, Stored, replaced, worker};
use sqlx::mysql::MySqlRow;
use std::collections::BTreeSet;

/// Writes notes in the places of older ones.
pub(super) fn write(session: &mut Session<'_>, SubscriptionId(id): SubscriptionId, changes: &Changes) {
    for ((ChunkId(chunk), slot), mask) in replaced(&changes.notes) {
        let place = format!("chunk = {chunk} AND subscription = {id} AND slot = {slot}");
        let rest = Mask::first(Mask::CAPACITY).minus(mask).to_i64();
        // The server counts in unsigned numbers: what has the highest bit is made to fit.
        session
            .write(format!("UPDATE tramline_failure SET mask = CAST(mask & {rest} AS SIGNED) WHERE {place}"));
        session.write(format!("DELETE FROM tramline_failure WHERE {place} AND mask = 0"));
    }
    let (common, at) = (session.common, session.now.0);
    let values = |note: &Note| {
        format!(
            "({},{},{id},{},{},{},{at},{},{})",
            note.chunk.0,
            common.slice_id().0,
            note.slot(),
            note.mask.to_i64(),
            note.attempt,
            text(&worker(changes, note)),
            text(&note.text)
        )
    };
    let head = "INSERT INTO tramline_failure (chunk, id, subscription, slot, mask, attempt, at, worker, error) VALUES ";
    session.write_all(insert(head, changes.notes.iter().map(values), "", common.packet));
}

/// All notes of chunks, in every subscription.
pub(super) async fn read(
    session: &mut Session<'_>,
    chunks: impl IntoIterator<Item = ChunkId>,
) -> Result<History> {
    let chunks: BTreeSet<i64> = chunks.into_iter().map(|chunk| chunk.0).collect();
    let chunks: Vec<i64> = chunks.into_iter().collect();
    let select = |some: &[i64]| {
        format!(
            "SELECT subscription, chunk, mask, attempt, at, worker, error FROM tramline_failure WHERE chunk IN ({})",
            list(some.iter().copied())
        )
    };
    let stored = |row: &MySqlRow| {
        Ok(Stored {
            subscription: SubscriptionId(row.int(0)?),
            chunk: ChunkId(row.int(1)?),
            mask: Mask::from_i64(row.int(2)?),
            attempt: row.int(3)? as u32,
            at: row.time(4)?,
            worker: row.text(5)?,
            text: row.text(6)?,
        })
    };
    let sql: Vec<String> = chunks.chunks(LIST).map(select).collect();
    if sql.is_empty() {
        return Ok(History::default());
    }
    Ok(History(session.sets(sql).await?.iter().flatten().map(stored).collect::<Result<_>>()?))
}

/// Removes the notes of chunks that are gone.
pub(super) fn forget(session: &mut Session<'_>, chunks: &[i64]) {
    for some in chunks.chunks(LIST) {
        session
            .write(format!("DELETE FROM tramline_failure WHERE chunk IN ({})", list(some.iter().copied())));
    }
}
