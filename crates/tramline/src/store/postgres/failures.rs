//! What is kept of failures: written with them, read by those who ask, removed with the chunk.

use super::session::Session;
use crate::error::Result;
use crate::model::id::{ChunkId, SubscriptionId};
use crate::model::mask::Mask;
use crate::model::time::Time;
use crate::plan::Changes;
use crate::store::failures::{History, Stored, replaced, worker};
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::collections::BTreeSet;

/// Writes notes in the places of older ones. Those are locked in the order of their numbers: two settlements of one chunk may share
/// some.
pub(super) async fn write(session: &mut Session<'_>, id: SubscriptionId, changes: &Changes) -> Result<()> {
    if changes.notes.is_empty() {
        return Ok(());
    }
    let places = replaced(&changes.notes);
    let clear = "WITH old AS MATERIALIZED (SELECT f.chunk, f.id, u.mask FROM tramline_failure f \
            JOIN unnest($2::bigint[], $3::smallint[], $4::bigint[]) AS u(chunk, slot, mask) \
            ON f.chunk = u.chunk AND f.slot = u.slot WHERE f.subscription = $1 AND f.mask & u.mask <> 0 \
            ORDER BY f.chunk, f.id FOR UPDATE OF f) \
        UPDATE tramline_failure f SET mask = f.mask & ~old.mask FROM old WHERE f.chunk = old.chunk AND f.id = old.id";
    let query = session
        .query(clear)
        .bind(id.0)
        .bind(places.keys().map(|(chunk, _)| chunk.0).collect::<Vec<i64>>())
        .bind(places.keys().map(|(_, slot)| *slot).collect::<Vec<i16>>())
        .bind(places.values().map(|mask| mask.to_i64()).collect::<Vec<i64>>());
    if session.run(query).await? > 0 {
        let sql = "DELETE FROM tramline_failure WHERE chunk = ANY($1) AND subscription = $2 AND mask = 0";
        let chunks: BTreeSet<i64> = places.keys().map(|(chunk, _)| chunk.0).collect();
        let query = session.query(sql).bind(chunks.into_iter().collect::<Vec<i64>>()).bind(id.0);
        session.run(query).await?;
    }
    let notes = &changes.notes;
    let insert = "INSERT INTO tramline_failure (chunk, subscription, slot, mask, attempt, at, worker, error) \
        SELECT u.chunk, $1, u.slot, u.mask, u.attempt, $2, u.worker, u.error FROM unnest($3::bigint[], $4::smallint[], \
        $5::bigint[], $6::int[], $7::text[], $8::text[]) AS u(chunk, slot, mask, attempt, worker, error)";
    let query = session
        .query(insert)
        .bind(id.0)
        .bind(session.now.0)
        .bind(notes.iter().map(|note| note.chunk.0).collect::<Vec<i64>>())
        .bind(notes.iter().map(|note| note.slot()).collect::<Vec<i16>>())
        .bind(notes.iter().map(|note| note.mask.to_i64()).collect::<Vec<i64>>())
        .bind(notes.iter().map(|note| note.attempt.cast_signed()).collect::<Vec<i32>>())
        .bind(notes.iter().map(|note| worker(changes, note)).collect::<Vec<String>>())
        .bind(notes.iter().map(|note| note.text.clone()).collect::<Vec<String>>());
    session.run(query).await.map(|_| ())
}

/// All notes of chunks, in every subscription.
pub(super) async fn read(
    session: &mut Session<'_>,
    chunks: impl IntoIterator<Item = ChunkId>,
) -> Result<History> {
    let chunks: BTreeSet<i64> = chunks.into_iter().map(|chunk| chunk.0).collect();
    let sql = "SELECT subscription, chunk, mask, attempt, at, worker, error FROM tramline_failure WHERE chunk = ANY($1)";
    let query = session.query(sql).bind(chunks.into_iter().collect::<Vec<i64>>());
    let stored = |row: &PgRow| {
        Ok(Stored {
            subscription: SubscriptionId(row.try_get(0)?),
            chunk: ChunkId(row.try_get(1)?),
            mask: Mask::from_i64(row.try_get(2)?),
            attempt: row.try_get::<i32, _>(3)?.cast_unsigned(),
            at: Time(row.try_get(4)?),
            worker: row.try_get(5)?,
            text: row.try_get(6)?,
        })
    };
    Ok(History(session.all(query).await?.iter().map(stored).collect::<Result<_>>()?))
}

/// Removes the notes of those of these chunks that are gone.
pub(super) async fn forget(session: &mut Session<'_>, chunks: Vec<i64>) -> Result<()> {
    let sql = "DELETE FROM tramline_failure f WHERE f.chunk = ANY($1) \
               AND NOT EXISTS (SELECT 1 FROM tramline_chunk c WHERE c.chunk = f.chunk)";
    let query = session.query(sql).bind(chunks);
    session.run(query).await.map(|_| ())
}
