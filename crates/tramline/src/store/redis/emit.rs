//! Emit: heads, then numbers, then chunks, slices and heads.

use super::catalog::create_missing;
use super::mend::cancel;
use super::pack::{Packer, Unpacker};
use super::rows::{Logged, insert, write_chunk};
use super::session::{Session, hget};
use super::spread::has_numbers;
use super::tally::place::place;
use super::tuple::Tuple;
use super::unique;
use super::{RedisStore, Role};
use crate::error::{Error, Kind, Result};
use crate::model::chunk::ChunkRow;
use crate::model::event::Event;
use crate::model::id::{ChunkId, EventId, SliceId, TopicId};
use crate::model::slice::{Slice, State};
use crate::model::time::Time;
use crate::plan::emit::{EmitPlan, Numbers};
use crate::store::catalog::Catalog;
use crate::store::emit::{named, needs_steps};
use crate::store::idempotency::{self, Entry};
use crate::store::unique::{Sifted, entries as unique_entries, has_unique, names, waves};
use crate::store::verbs::{Cancel, Emission, Emit, Head};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// How many events one step stores, about, unless one unit alone has more: a script has to end soon.
const MOST: usize = 1_000;

impl RedisStore {
    /// Stores units, some at a time.
    pub(super) async fn emit_in_parts(&self, given: Emit) -> Result<Vec<Result<Emission>>> {
        let mut parts = parts(given.units).into_iter();
        let first = parts.next().unwrap_or_default();
        let mut answers = self.emit_some(Emit { units: first, now: given.now }).await?;
        for units in parts {
            // What came before is stored, so it must not look as if nothing were known of it.
            match self.emit_some(Emit { units: units.clone(), now: given.now }).await {
                Ok(some) => answers.extend(some),
                Err(error) if error.kind() == Kind::Unavailable => {
                    answers.extend(units.iter().map(|_| Err(error.share())));
                }
                // One of them spoils it for all: find out which.
                Err(_) => {
                    for unit in units {
                        let alone = self.emit_some(Emit { units: vec![unit], now: given.now }).await;
                        answers.extend(alone.unwrap_or_else(|error| vec![Err(error)]));
                    }
                }
            }
        }
        Ok(answers)
    }

    async fn emit_some(&self, emit: Emit) -> Result<Vec<Result<Emission>>> {
        if let Some(emitted) = self.emit_at_once(&emit).await? {
            return Ok(emitted);
        }
        self.add(emit.now, |session: &Session<'_>| self::emit(session, &emit.units)).await
    }
}

/// Which units are stored together.
fn parts(units: Vec<Vec<Event>>) -> Vec<Vec<Vec<Event>>> {
    let mut parts: Vec<Vec<Vec<Event>>> = Vec::new();
    let mut room = 0;
    for unit in units {
        match parts.last_mut().filter(|_| unit.len() <= room) {
            Some(part) => {
                room -= unit.len();
                part.push(unit);
            }
            None => {
                room = MOST.saturating_sub(unit.len());
                parts.push(vec![unit]);
            }
        }
    }
    parts
}

/// Stores units. Each unit gets an answer of its own.
pub(super) fn emit(session: &Session<'_>, units: &[Vec<Event>]) -> Result<Vec<Result<Emission>>> {
    session.require_told()?;
    if has_unique(units) {
        let waves = waves(units);
        if waves.len() > 1 {
            return emit_in_waves(session, units, &waves);
        }
    }
    create_missing(session, units.iter().flatten().map(|event| event.topic.as_str()))?;
    let catalog = session.catalog();
    if !units.iter().any(|unit| needs_steps(unit)) {
        expect(session, &catalog, units, std::iter::empty())?;
        return Ok(write(session, units)?.into_iter().map(Ok).collect());
    }
    let all: Vec<Option<Entry>> = units.iter().map(|unit| Entry::of(unit, &catalog)).collect();
    expect(session, &catalog, units, all.iter().flatten())?;
    let mut answers: Vec<Option<Result<Emission>>> = Vec::with_capacity(units.len());
    let mut fresh: Vec<Vec<Event>> = Vec::with_capacity(units.len());
    let mut entries: Vec<Option<Entry>> = Vec::with_capacity(units.len());
    let mut later: Vec<usize> = Vec::new();
    for (at, (unit, entry)) in units.iter().zip(all).enumerate() {
        // The same key twice in one group: the second one has to see what the first one stored.
        if entry.is_some()
            && entries.iter().flatten().any(|other| entry.as_ref().is_some_and(|e| e.is_same_key(other)))
        {
            later.push(at);
            answers.push(None);
            continue;
        }
        match entry.as_ref().map(|entry| known(session, entry)).transpose()?.flatten() {
            Some(answer) => answers.push(Some(answer)),
            None => {
                answers.push(None);
                entries.push(entry);
                fresh.push(unit.clone());
            }
        }
    }
    let mut written = write_placed(session, fresh, entries)?.into_iter();
    for (at, answer) in answers.iter_mut().enumerate() {
        if answer.is_none() && !later.contains(&at) {
            *answer = written.next();
        }
    }
    for at in later {
        answers[at] = emit(session, &units[at..=at])?.pop();
    }
    Ok(answers.into_iter().flatten().collect())
}

/// Units that share unique keys, one wave after the other.
fn emit_in_waves(
    session: &Session<'_>,
    units: &[Vec<Event>],
    waves: &[Vec<usize>],
) -> Result<Vec<Result<Emission>>> {
    let mut answers: BTreeMap<usize, Result<Emission>> = BTreeMap::new();
    for wave in waves {
        let some: Vec<Vec<Event>> = wave.iter().map(|at| units[*at].clone()).collect();
        answers.extend(wave.iter().copied().zip(emit(session, &some)?));
    }
    Ok(answers.into_values().collect())
}

/// Says what an emit reads: idempotency keys, the last chunk, the heads of its keys.
fn expect<'e>(
    session: &Session<'_>,
    catalog: &Catalog,
    units: &[Vec<Event>],
    entries: impl Iterator<Item = &'e Entry>,
) -> Result<()> {
    let once = entries.map(|entry| hget(&keys_of(session, entry.topic), entry.key.as_bytes()));
    let keyed: BTreeSet<(TopicId, String)> =
        units.iter().flatten().filter_map(|event| named(event, catalog)).collect();
    let heads = keyed.iter().map(|(topic, key)| hget(&heads_of(session, *topic), key.as_bytes()));
    session.expect(once.chain(heads).chain([hget(&session.key("meta"), b"chunk")]))
}

/// The idempotency keys of a topic.
pub(super) fn keys_of(session: &Session<'_>, topic: TopicId) -> Vec<u8> {
    session.key(&format!("once:{topic}"))
}

/// All idempotency keys, by the time at which they are forgotten.
pub(super) fn keys_by_expiry(session: &Session<'_>) -> Vec<u8> {
    session.key("once")
}

/// The answer that an idempotency key already has.
pub(super) fn known(session: &Session<'_>, entry: &Entry) -> Result<Option<Result<Emission>>> {
    let Some(row) = session.get(&keys_of(session, entry.topic), entry.key.as_bytes())? else {
        return Ok(None);
    };
    let mut row = Unpacker::new(&row);
    let expires_at = row.number()?;
    if expires_at <= session.now.0 {
        return Ok(None);
    }
    let hash = row.bytes()?;
    Ok(Some(entry.answer(hash, &row.text()?)))
}

fn remember(session: &Session<'_>, entry: &Entry, emission: &Emission) -> Result<()> {
    forget(session, entry.topic, &entry.key)?;
    let expires_at = session.now.after(idempotency::KEPT_FOR).0;
    let receipt = idempotency::receipt(&emission.events);
    let row = Packer::new().number(expires_at).bytes(&entry.hash).bytes(receipt.as_bytes()).done();
    session.put(keys_of(session, entry.topic), entry.key.as_bytes(), row);
    let member = Tuple::new().with(&[expires_at, entry.topic.0]).text(&entry.key).bytes();
    session.enter(keys_by_expiry(session), member);
    Ok(())
}

/// Forgets an idempotency key if its time is over. One that was given anew since is kept.
pub(super) fn forget_ended(session: &Session<'_>, topic: TopicId, key: &str) -> Result<()> {
    let Some(row) = session.get(&keys_of(session, topic), key.as_bytes())? else { return Ok(()) };
    if Unpacker::new(&row).number()? <= session.now.0 { forget(session, topic, key) } else { Ok(()) }
}

/// Forgets an idempotency key.
fn forget(session: &Session<'_>, topic: TopicId, key: &str) -> Result<()> {
    let Some(row) = session.get(&keys_of(session, topic), key.as_bytes())? else { return Ok(()) };
    let expires_at = Unpacker::new(&row).number()?;
    session.remove(keys_of(session, topic), key.as_bytes());
    session.withdraw(keys_by_expiry(session), Tuple::new().with(&[expires_at, topic.0]).text(key).bytes());
    Ok(())
}

/// Writes units, but for those that a tally does not take, and of these what is not there already.
fn write_placed(
    session: &Session<'_>,
    mut units: Vec<Vec<Event>>,
    mut entries: Vec<Option<Entry>>,
) -> Result<Vec<Result<Emission>>> {
    let catalog = session.catalog();
    let names = names(units.iter().flatten(), &catalog);
    let standings = unique::standings(session, &names)?;
    let mut sifted = Sifted::new(&mut units, &standings, &catalog, session.now);
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
    unique::keep(session, &unique_entries(&units, &written, &catalog, session.now))?;
    sifted.complete(&mut written);
    for (entry, emission) in entries.iter().zip(&written) {
        if let Some(entry) = entry {
            remember(session, entry, emission)?;
        }
    }
    let mut written = written.into_iter();
    let count = written.len() + refused.len();
    let answer = |at| refused.remove(&at).map_or_else(|| written.next().map(Ok), |error| Some(Err(error)));
    Ok((0..count).filter_map(answer).collect())
}

/// The number of the first chunk is read and checked like everything else, so chunks appear in the order of their numbers.
fn write(session: &Session<'_>, units: &[Vec<Event>]) -> Result<Vec<Emission>> {
    let catalog = session.catalog();
    let first_chunk = session.draw("chunk", 0)?;
    let mut plan = EmitPlan::new(units, catalog.views(), first_chunk.cast_unsigned());
    let heads = last_events(session, &plan)?;
    let first = session.draw("chunk", plan.chunks.len())?;
    if session.role == Role::Site && !has_numbers(ChunkId(first)) {
        return Err(Error::invalid(
            "the topic has used up its numbers",
            "emit to a new topic, or use a store in one slot",
        ));
    }
    let chunks: Vec<ChunkId> = (first..).take(plan.chunks.len()).map(ChunkId).collect();
    let numbers = Numbers { chunks: &chunks, heads: &heads };
    write_chunks(session, &mut plan, &numbers);
    insert(session, &slices(&plan, &numbers, session.now))?;
    write_heads(session, &plan, &numbers)?;
    let emission = |at| Emission {
        events: plan.emitted(at, &numbers),
        wake: plan.wake(at).to_vec(),
        repeated: false,
        hinted: false,
    };
    Ok((0..units.len()).map(emission).collect())
}

/// The heads of a topic, by key.
pub(super) fn heads_of(session: &Session<'_>, topic: TopicId) -> Vec<u8> {
    session.key(&format!("h:{topic}"))
}

pub(super) fn head(session: &Session<'_>, topic: TopicId, key: &str) -> Result<Option<Head>> {
    let Some(row) = session.get(&heads_of(session, topic), key.as_bytes())? else { return Ok(None) };
    let mut row = Unpacker::new(&row);
    Ok(Some(Head { last_id: EventId(row.number()?), state: row.optional()?.map(Bytes::copy_from_slice) }))
}

/// The last event of every key.
fn last_events(session: &Session<'_>, plan: &EmitPlan) -> Result<Vec<i64>> {
    let mut heads = Vec::with_capacity(plan.heads.len());
    for plan in &plan.heads {
        heads.push(head(session, plan.topic, &plan.key)?.map_or(0, |head| head.last_id.0));
    }
    Ok(heads)
}

/// Takes what is encoded out of the plan: it can be large, and nobody else needs it.
fn write_chunks(session: &Session<'_>, plan: &mut EmitPlan, numbers: &Numbers<'_>) {
    for (chunk, number) in plan.chunks.iter_mut().zip(numbers.chunks) {
        let row = ChunkRow {
            chunk: *number,
            topic: chunk.topic,
            emitted_at: session.now,
            meta: std::mem::take(&mut chunk.encoded.meta),
            prevs: numbers.resolve_all(&chunk.prevs),
            mains: numbers.resolve_all(&chunk.mains),
            body: std::mem::take(&mut chunk.encoded.body).into(),
        };
        let logged = Logged {
            chunk: *number,
            emitted_at: session.now,
            count: i64::from(chunk.count),
            bytes: i64::from(chunk.bytes),
        };
        write_chunk(session, &row, &logged);
        session.sum(session.key("totals"), chunk.topic.to_string(), i64::from(chunk.count));
    }
}

fn slices(plan: &EmitPlan, numbers: &Numbers<'_>, now: Time) -> Vec<Slice> {
    let of_chunk = plan.chunks.iter().zip(numbers.chunks);
    let all =
        of_chunk.flat_map(|(chunk, number)| chunk.slices.iter().map(move |slice| (chunk, number, slice)));
    all.map(|(chunk, number, slice)| Slice {
        id: SliceId(0),
        chunk: *number,
        subscription: slice.subscription,
        lane: slice.lane,
        state: State::Ready,
        mask: slice.mask,
        due_at: slice.due.from(now),
        rank: i64::from(slice.priority),
        attempts: 0,
        crashes: 0,
        alone: 0,
        epoch: 0,
        owner: Default::default(),
        replayed: false,
        tallied: slice.tallied,
        bytes: chunk.bytes,
        error: None,
    })
    .collect()
}

fn write_heads(session: &Session<'_>, plan: &EmitPlan, numbers: &Numbers<'_>) -> Result<()> {
    for plan in &plan.heads {
        let state = match &plan.state {
            Some(state) => Some(state.clone()),
            None => head(session, plan.topic, &plan.key)?.and_then(|head| head.state),
        };
        let row = Packer::new().number(numbers.id(plan.last).0).optional(state.as_deref()).done();
        session.put(heads_of(session, plan.topic), plan.key.as_bytes(), row);
    }
    Ok(())
}
