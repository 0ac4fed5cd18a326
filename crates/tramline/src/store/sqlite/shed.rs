//! A full store: how much it holds, and what goes.

use super::mend::change;
use super::rows::slices;
use super::session::Session;
use super::sweep::{backfill_floor, remove_chunks};
use crate::error::Result;
use crate::model::id::{EventId, SubscriptionId, TopicId};
use crate::plan::mend;
use crate::store::shed::{LOOK, Seen, UNCLAIMED, choose, end_of, look_per_topic, losers};
use crate::store::verbs::{Shed, Shedded, StoreSize, Surplus};
use rusqlite::Connection;

/// The file never shrinks: pages that became free are used again, so only those in use count.
pub(super) fn size(conn: &Connection) -> Result<StoreSize> {
    let read = |name: &str| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let pages = read("page_count")? - read("freelist_count")?;
    Ok(StoreSize { bytes: (pages * read("page_size")?).max(0).cast_unsigned() })
}

pub(super) fn shed(session: &Session<'_>, shed: &Shed) -> Result<Shedded> {
    match shed.surplus {
        Surplus::Retained => retained(session, shed),
        Surplus::Work { .. } => work(session, shed),
    }
}

fn retained(session: &Session<'_>, shed: &Shed) -> Result<Shedded> {
    let topics = session.catalog.topics();
    let look = look_per_topic(topics.len());
    let mut seen = Vec::new();
    for topic in topics {
        seen.extend(seen_of(session.conn, topic.id, shed.after.chunk().0, look)?);
    }
    let (chosen, next) = choose(seen, look, shed);
    let chunks: Vec<i64> = chosen.iter().map(|seen| seen.chunk).collect();
    let (_, removed) = remove_chunks(session.conn, &chunks)?;
    Ok(Shedded { removed, next, ..Shedded::default() })
}

/// The next chunks of a topic. Reads `tramline_chunk_topic (topic, chunk, count, bytes)` and no rows.
fn seen_of(conn: &Connection, topic: TopicId, after: i64, look: i64) -> Result<Vec<Seen>> {
    let sql = "SELECT c.chunk, c.bytes, EXISTS (SELECT 1 FROM tramline_slice s WHERE s.chunk = c.chunk) \
               FROM tramline_chunk c WHERE c.topic = ? AND c.chunk > ? ORDER BY c.chunk LIMIT ?";
    let floor = backfill_floor(conn, topic)?;
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([topic.0, after, look], |row| {
        let chunk = row.get(0)?;
        Ok(Seen { chunk, topic, bytes: row.get(1)?, free: !row.get::<_, bool>(2)? && chunk < floor })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn work(session: &Session<'_>, shed: &Shed) -> Result<Shedded> {
    let Window { oldest, last, next } = look(session, shed)?;
    let Some((first, id)) = oldest else { return Ok(Shedded { next, ..Shedded::default() }) };
    let states: Vec<String> = UNCLAIMED.iter().map(|state| (*state as i16).to_string()).collect();
    let filter = format!(
        "chunk BETWEEN ? AND ? AND subscription = ? AND state IN ({}) ORDER BY chunk, id LIMIT ?",
        states.join(", ")
    );
    let (mut events, mut wake) = (0, false);
    let mut found = slices(session.conn, &filter, &[first, last, id, i64::from(shed.limit)])?;
    found.truncate(shed.fitting(found.iter().map(|slice| i64::from(slice.bytes))));
    for slice in found {
        events += u64::from(slice.mask.count());
        wake |= change(session, &slice, |view, changes| mend::shed(&slice, view, changes))?;
    }
    let dropped = Some((SubscriptionId(id), events));
    Ok(Shedded { dropped, wake, next: Some(end_of(first - 1)), ..Shedded::default() })
}

/// A part of the slices, in the order of their chunks.
struct Window {
    /// The first work that may go: its chunk, and whose it is.
    oldest: Option<(i64, i64)>,
    /// The last chunk that was looked at.
    last: i64,
    next: Option<EventId>,
}

/// The subscription that is furthest behind is the one with the first slice. Uses the primary key `(chunk, id)`.
fn look(session: &Session<'_>, shed: &Shed) -> Result<Window> {
    let losers = losers(&session.catalog, shed.include_pull());
    let sql =
        "SELECT chunk, subscription, state FROM tramline_slice WHERE chunk > ? ORDER BY chunk, id LIMIT ?";
    let mut statement = session.conn.prepare_cached(sql)?;
    let mut rows = statement.query([shed.after.chunk().0, LOOK])?;
    let mut window = Window { oldest: None, last: 0, next: None };
    let mut seen = 0;
    while let Some(row) = rows.next()? {
        let (id, state): (i64, i16) = (row.get(1)?, row.get(2)?);
        seen += 1;
        window.last = row.get(0)?;
        let unclaimed = UNCLAIMED.iter().any(|one| *one as i16 == state);
        if window.oldest.is_none() && unclaimed && losers.contains(&id) {
            window.oldest = Some((window.last, id));
        }
    }
    window.next = (seen >= LOOK).then(|| end_of(window.last));
    Ok(window)
}
