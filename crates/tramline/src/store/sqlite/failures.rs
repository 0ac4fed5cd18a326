//! What is kept of failures: written with them, read by those who ask, removed with the chunk.

use super::rows::draw;
use super::session::Session;
use crate::error::Result;
use crate::model::id::{ChunkId, SubscriptionId};
use crate::model::mask::Mask;
use crate::model::time::Time;
use crate::plan::Changes;
use crate::store::failures::{History, Stored, replaced, worker};
use rusqlite::{Connection, params};

/// Writes notes in the places of older ones.
pub(super) fn write(session: &Session<'_>, id: SubscriptionId, changes: &Changes) -> Result<()> {
    if changes.notes.is_empty() {
        return Ok(());
    }
    let conn = session.conn;
    let clear = "UPDATE tramline_failure SET mask = mask & ~?1 WHERE chunk = ?2 AND subscription = ?3 AND slot = ?4 AND mask & ?1 <> 0";
    let delete =
        "DELETE FROM tramline_failure WHERE chunk = ? AND subscription = ? AND slot = ? AND mask = 0";
    for ((chunk, slot), mask) in replaced(&changes.notes) {
        if conn.prepare_cached(clear)?.execute(params![mask.to_i64(), chunk.0, id.0, slot])? > 0 {
            conn.prepare_cached(delete)?.execute(params![chunk.0, id.0, slot])?;
        }
    }
    let insert = "INSERT INTO tramline_failure (chunk, id, subscription, slot, mask, attempt, at, worker, error) \
                  VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
    let first = draw(conn, "failure", changes.notes.len())?;
    for (number, note) in (first..).zip(&changes.notes) {
        let (chunk, mask, by) = (note.chunk.0, note.mask.to_i64(), worker(changes, note));
        let (slot, at) = (note.slot(), session.now.0);
        let values = params![chunk, number, id.0, slot, mask, note.attempt, at, by, note.text];
        conn.prepare_cached(insert)?.execute(values)?;
    }
    Ok(())
}

/// All notes of chunks, in every subscription.
pub(super) fn read(conn: &Connection, chunks: impl IntoIterator<Item = ChunkId>) -> Result<History> {
    let sql =
        "SELECT subscription, chunk, mask, attempt, at, worker, error FROM tramline_failure WHERE chunk = ?";
    let mut statement = conn.prepare_cached(sql)?;
    let mut found = Vec::new();
    for chunk in chunks {
        let rows = statement.query_map([chunk.0], |row| {
            Ok(Stored {
                subscription: SubscriptionId(row.get(0)?),
                chunk: ChunkId(row.get(1)?),
                mask: Mask::from_i64(row.get(2)?),
                attempt: row.get(3)?,
                at: Time(row.get(4)?),
                worker: row.get(5)?,
                text: row.get(6)?,
            })
        })?;
        found.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    Ok(History(found))
}

/// Removes the notes of chunks that are gone.
pub(super) fn forget<'a>(conn: &Connection, chunks: impl IntoIterator<Item = &'a i64>) -> Result<()> {
    let mut statement = conn.prepare_cached("DELETE FROM tramline_failure WHERE chunk = ?")?;
    for chunk in chunks {
        statement.execute([chunk])?;
    }
    Ok(())
}
