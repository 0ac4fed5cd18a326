//! Emit: heads, then numbers, then chunks, slices and heads.

use super::catalog::create_missing;
use super::mend::cancel;
use super::rows::{draw, numbers_text};
use super::session::{CatalogCache, Session};
use super::tally::place::place;
use super::unique;
use crate::error::{Error, Kind, Result};
use crate::model::event::Event;
use crate::model::id::ChunkId;
use crate::model::slice::State;
use crate::model::time::Time;
use crate::model::unique::check_unit;
use crate::plan::emit::{EmitPlan, Numbers};
use crate::store::idempotency::{self, Entry};
use crate::store::unique::{Sifted, entries as unique_entries, has_unique, names, waves};
use crate::store::verbs::{Cancel, Emission};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeMap;

/// Stores units in the transaction that the connection is in. Each unit gets an answer of its own.
pub(super) fn emit(
    conn: &Connection,
    units: Vec<Vec<Event>>,
    now: Option<Time>,
    cache: &CatalogCache,
) -> Result<Vec<Result<Emission>>> {
    if has_unique(&units) {
        let waves = waves(&units);
        if waves.len() > 1 {
            return emit_in_waves(conn, &units, &waves, now, cache);
        }
    }
    let session = with_topics(conn, &units, now, cache)?;
    let mut answers: Vec<Option<Result<Emission>>> = Vec::with_capacity(units.len());
    let mut fresh: Vec<Vec<Event>> = Vec::with_capacity(units.len());
    let mut entries: Vec<Option<Entry>> = Vec::with_capacity(units.len());
    let mut later: Vec<(usize, Vec<Event>)> = Vec::new();
    for unit in units {
        let entry = Entry::of(&unit, &session.catalog);
        // The same key twice in one group: the second one has to see what the first one stored.
        if entry.is_some()
            && entries.iter().flatten().any(|other| entry.as_ref().is_some_and(|e| e.is_same_key(other)))
        {
            later.push((answers.len(), unit));
            answers.push(None);
            continue;
        }
        match entry.as_ref().map(|entry| known(&session, entry)).transpose()?.flatten() {
            Some(answer) => answers.push(Some(answer)),
            None => {
                answers.push(None);
                entries.push(entry);
                fresh.push(unit);
            }
        }
    }
    let mut written = write_placed(&session, fresh, entries)?.into_iter();
    let repeated: Vec<usize> = later.iter().map(|(at, _)| *at).collect();
    for (at, answer) in answers.iter_mut().enumerate() {
        if answer.is_none() && !repeated.contains(&at) {
            *answer = written.next();
        }
    }
    for (at, unit) in later {
        answers[at] = emit(conn, vec![unit], Some(session.now), cache)?.pop();
    }
    Ok(answers.into_iter().flatten().collect())
}

/// Stores plain units in the transaction that the connection is in.
pub(super) fn emit_plain(
    conn: &Connection,
    units: &[Vec<Event>],
    now: Option<Time>,
    cache: &CatalogCache,
) -> Result<Vec<Result<Emission>>> {
    let session = with_topics(conn, units, now, cache)?;
    let written = write(&session, units)?;
    session.finish()?;
    Ok(written.into_iter().map(Ok).collect())
}

/// A step that knows the topics of these units.
fn with_topics<'a>(
    conn: &'a Connection,
    units: &[Vec<Event>],
    now: Option<Time>,
    cache: &CatalogCache,
) -> Result<Session<'a>> {
    let session = Session::new(conn, now, cache)?;
    if create_missing(&session, units.iter().flatten().map(|event| event.topic.as_str()))? {
        return Session::new(conn, now, cache);
    }
    Ok(session)
}

/// Units that share unique keys, one wave after the other.
fn emit_in_waves(
    conn: &Connection,
    units: &[Vec<Event>],
    waves: &[Vec<usize>],
    now: Option<Time>,
    cache: &CatalogCache,
) -> Result<Vec<Result<Emission>>> {
    let mut answers: BTreeMap<usize, Result<Emission>> = BTreeMap::new();
    for wave in waves {
        let some = wave.iter().map(|at| units[*at].clone()).collect();
        answers.extend(wave.iter().copied().zip(emit(conn, some, now, cache)?));
    }
    Ok(answers.into_values().collect())
}

/// The answer that an idempotency key already has.
fn known(session: &Session<'_>, entry: &Entry) -> Result<Option<Result<Emission>>> {
    let sql = "SELECT hash, receipt FROM tramline_idempotency WHERE topic = ? AND key = ? AND expires_at > ?";
    let found = session
        .conn
        .prepare_cached(sql)?
        .query_row(params![entry.topic.0, entry.key, session.now.0], |row| {
            Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, String>(1)?))
        })
        .optional()?;
    Ok(found.map(|(hash, receipt)| entry.answer(&hash, &receipt)))
}

/// Writes units, but for those that a tally does not take, and of these what is not there already.
fn write_placed(
    session: &Session<'_>,
    mut units: Vec<Vec<Event>>,
    mut entries: Vec<Option<Entry>>,
) -> Result<Vec<Result<Emission>>> {
    let names = names(units.iter().flatten(), &session.catalog);
    let standings = unique::standings(session, &names)?;
    let mut sifted = Sifted::new(&mut units, &standings, &session.catalog, session.now);
    let mut refused = place(session, &mut units)?.refused;
    refused.keys().rev().for_each(|at| sifted.remove(*at));
    let mut at = 0..;
    units.retain(|_| at.next().is_some_and(|at| !refused.contains_key(&at)));
    let mut at = 0..;
    entries.retain(|_| at.next().is_some_and(|at| !refused.contains_key(&at)));
    for id in sifted.replaced() {
        cancel(session, &Cancel { id, now: None })?;
    }
    let mut written = write(session, &units)?;
    unique::keep(session, &unique_entries(&units, &written, &session.catalog, session.now))?;
    sifted.complete(&mut written);
    write_receipts(session, &entries, &written)?;
    session.finish()?;
    let mut written = written.into_iter();
    let count = written.len() + refused.len();
    let answer = |at| refused.remove(&at).map_or_else(|| written.next().map(Ok), |error| Some(Err(error)));
    Ok((0..count).filter_map(answer).collect())
}

fn write(session: &Session<'_>, units: &[Vec<Event>]) -> Result<Vec<Emission>> {
    let conn = session.conn;
    let first_chunk = draw(conn, "chunk", 0)?;
    let plan = EmitPlan::new(units, session.catalog.views(), first_chunk.cast_unsigned());
    let heads = lock_heads(conn, &plan)?;
    let first = draw(conn, "chunk", plan.chunks.len())?;
    let chunks: Vec<ChunkId> = (first..).take(plan.chunks.len()).map(ChunkId).collect();
    let numbers = Numbers { chunks: &chunks, heads: &heads };
    write_chunks(session, &plan, &numbers)?;
    write_slices(session, &plan, &numbers)?;
    write_heads(conn, &plan, &numbers)?;
    let emission = |at| Emission {
        events: plan.emitted(at, &numbers),
        wake: plan.wake(at).to_vec(),
        repeated: false,
        hinted: false,
    };
    Ok((0..units.len()).map(emission).collect())
}

fn write_receipts(session: &Session<'_>, entries: &[Option<Entry>], emissions: &[Emission]) -> Result<()> {
    let sql = "INSERT OR REPLACE INTO tramline_idempotency (topic, key, hash, receipt, expires_at) \
               VALUES (?, ?, ?, ?, ?)";
    let expires_at = session.now.after(idempotency::KEPT_FOR).0;
    for (entry, emission) in entries.iter().zip(emissions) {
        let Some(entry) = entry else { continue };
        let receipt = idempotency::receipt(&emission.events);
        let values = params![entry.topic.0, entry.key, entry.hash, receipt, expires_at];
        session.conn.prepare_cached(sql)?.execute(values)?;
    }
    Ok(())
}

/// The last event of every key. The write transaction is the lock.
fn lock_heads(conn: &Connection, plan: &EmitPlan) -> Result<Vec<i64>> {
    let mut statement =
        conn.prepare_cached("SELECT last_id FROM tramline_head WHERE topic = ? AND key = ?")?;
    let mut heads = Vec::with_capacity(plan.heads.len());
    for head in &plan.heads {
        let last: Option<i64> =
            statement.query_row(params![head.topic.0, head.key], |row| row.get(0)).optional()?;
        heads.push(last.unwrap_or(0));
    }
    Ok(heads)
}

fn write_chunks(session: &Session<'_>, plan: &EmitPlan, numbers: &Numbers<'_>) -> Result<()> {
    let sql = "INSERT INTO tramline_chunk (chunk, topic, emitted_at, count, bytes, meta, prevs, mains, body) \
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
    let mut statement = session.conn.prepare_cached(sql)?;
    for (chunk, number) in plan.chunks.iter().zip(numbers.chunks) {
        statement.execute(params![
            number.0,
            chunk.topic.0,
            session.now.0,
            chunk.count,
            chunk.bytes,
            chunk.encoded.meta,
            numbers_text(&numbers.resolve_all(&chunk.prevs)),
            numbers_text(&numbers.resolve_all(&chunk.mains)),
            chunk.encoded.body,
        ])?;
    }
    Ok(())
}

fn write_slices(session: &Session<'_>, plan: &EmitPlan, numbers: &Numbers<'_>) -> Result<()> {
    let count = plan.chunks.iter().map(|chunk| chunk.slices.len()).sum();
    if count == 0 {
        return Ok(());
    }
    let mut id = draw(session.conn, "slice", count)?;
    let sql = "INSERT INTO tramline_slice (chunk, id, subscription, state, lane, rank, pos, mask, due_at, attempts, \
               crashes, alone, epoch, owner, replayed, bytes, tallied) \
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0, 0, 0, ?, ?)";
    let mut statement = session.conn.prepare_cached(sql)?;
    for (chunk, number) in plan.chunks.iter().zip(numbers.chunks) {
        for slice in &chunk.slices {
            let due_at = slice.due.from(session.now).0;
            let pos = if slice.lane.0 == 0 { due_at } else { number.0 };
            statement.execute(params![
                number.0,
                id,
                slice.subscription.0,
                State::Ready as i16,
                slice.lane.0,
                slice.priority,
                pos,
                slice.mask.to_i64(),
                due_at,
                chunk.bytes,
                slice.tallied,
            ])?;
            id += 1;
        }
    }
    Ok(())
}

fn write_heads(conn: &Connection, plan: &EmitPlan, numbers: &Numbers<'_>) -> Result<()> {
    let sql = "INSERT INTO tramline_head (topic, key, last_id, state) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE \
               SET last_id = excluded.last_id, state = coalesce(excluded.state, state)";
    let mut statement = conn.prepare_cached(sql)?;
    for head in &plan.heads {
        statement.execute(params![head.topic.0, head.key, numbers.id(head.last).0, head.state.as_deref()])?;
    }
    Ok(())
}

/// One unit in the caller's own transaction.
pub(super) fn emit_in(conn: &Connection, events: Vec<Event>, cache: &CatalogCache) -> Result<Emission> {
    for event in &events {
        event.check()?;
    }
    check_unit(&events)?;
    let answer = emit(conn, vec![events], None, cache)?.pop();
    answer.unwrap_or_else(|| Err(Error::new(Kind::Invalid, "nothing to emit", "pass at least one event")))
}
