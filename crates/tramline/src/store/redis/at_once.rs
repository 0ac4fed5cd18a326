//! What mostly needs one trip to the server. A process that wrote something last knows what is there, unless another one was at work since:
//! it assumes that nobody was, and what it assumed is checked like everything that was read. If it was wrong, nothing has happened, and
//! the step is run as every other.

use super::RedisStore;
use super::link::{Command, Ended, Micros, sign, text};
use super::pack::Packer;
use super::rows::{SLICE_BYTES, pack, slice_read, slice_row, unpack, unpack_chunk};
use super::session::{Draws, Left, Seen, Session, hget};
use super::step::Step;
use super::{emit, settle};
use crate::error::Result;
use crate::model::id::{ChunkId, SliceId, SubscriptionId};
use crate::model::lease::Lease;
use crate::model::slice::Slice;
use crate::model::time::{Time, millis};
use crate::store::catalog::Catalog;
use crate::store::claimed::RawClaim;
use crate::store::verbs::{Claim, Emission, Emit, Settle, SettleSlice, Settled};
use crate::wake::relay::Voice;
use redis::Value;
use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

/// How long the time of the server is carried on by this machine's clock.
const CARRIED: Duration = Duration::from_secs(1);
/// How many rows are remembered.
const ROWS: usize = 100_000;
/// How often the next chunk is read, at most, after it was assumed wrongly.
const DISTRUST: u32 = 64;
/// How many bytes of chunks the script of a claim gives. Lua hashes every byte of what passes through it, which costs more than another trip
/// for many.
const CHUNK_BYTES: i64 = 16 << 10;

/// What a process knows of its last steps.
#[derive(Debug, Default)]
pub(super) struct AtOnce {
    pub(super) clock: Carried,
    ahead: tokio::sync::Mutex<Ahead>,
    pub(super) speech: Speech,
    /// What claims wrote, for the settlements to come.
    rows: Mutex<HashMap<(ChunkId, SliceId), Vec<u8>>>,
    /// Lanes as they were written last, by what reads them.
    lanes: Mutex<HashMap<Command, Vec<u8>>>,
    /// Subscriptions into which nothing is filled any more, and the catalogue of which that is true.
    filled: Mutex<HashMap<SubscriptionId, i64>>,
}

/// The time of the server, and when it was heard: what is made of them is never ahead of the server.
#[derive(Debug, Default)]
pub(super) struct Carried(Mutex<Option<(Instant, Micros)>>);

impl Carried {
    /// Answers may be heard in another order than they were given: it never goes back, as chunks ascend in time.
    pub(super) fn set(&self, time: Micros) {
        let mut carried = lock(&self.0);
        let is_later = |(heard, Micros(then)): (Instant, Micros)| {
            let since = heard.elapsed();
            since < CARRIED && then + since.as_micros() as i64 > time.0
        };
        if !carried.is_some_and(is_later) {
            *carried = Some((Instant::now(), time));
        }
    }

    fn now(&self) -> Option<Time> {
        let (heard, Micros(then)) = (*lock(&self.0))?;
        let since = Some(heard.elapsed()).filter(|since| *since < CARRIED)?;
        Some(Micros(then + since.as_micros() as i64).time())
    }
}

/// Hints that are said by the commit of an emit. Where several callers emit at once, that is left to the relay, which gathers them.
#[derive(Debug, Default)]
pub(super) struct Speech(OnceLock<Voice>);

impl Speech {
    pub(super) fn begin(&self, voice: Voice) {
        self.0.set(voice).ok(); // the first one stays
    }

    /// The hint to say with an emit, if it is to be said with it.
    fn hint(&self, units: usize, ids: &[SubscriptionId]) -> Option<(&Voice, String)> {
        let voice = self.0.get().filter(|_| units == 1 && !ids.is_empty())?;
        Some((voice, voice.hint(ids)?))
    }
}

/// The last chunk, as it will be when all that was sent is done.
#[derive(Debug, Default)]
struct Ahead {
    chunk: Option<Vec<u8>>,
    /// How often it was wrong of late, and how often it is to be read before it is assumed again.
    distrust: u32,
    reads: u32,
}

impl Ahead {
    fn was_wrong(&mut self) {
        self.distrust = (self.distrust * 2 + 1).min(DISTRUST);
        self.reads = self.distrust;
        self.chunk = None;
    }
}

impl AtOnce {
    /// A step has written the number of the last chunk.
    pub(super) fn expect_chunk(&self, last: Vec<u8>) {
        // Who has it locked knows better.
        let Ok(mut ahead) = self.ahead.try_lock() else { return };
        ahead.reads = ahead.reads.saturating_sub(1);
        if ahead.reads == 0 {
            ahead.chunk = Some(last);
        }
    }

    /// A claim has seen that nothing is filled into a subscription. That changes with the catalogue only.
    pub(super) fn is_filled(&self, id: SubscriptionId, version: i64) {
        lock(&self.filled).insert(id, version);
    }

    /// A step has written lanes.
    pub(super) fn remember_lanes(&self, lanes: Vec<(Command, Vec<u8>)>) {
        let mut known = lock(&self.lanes);
        if known.len() > ROWS {
            known.clear();
        }
        known.extend(lanes);
    }

    /// A claim has taken slices.
    pub(super) fn remember_slices(&self, slices: &[Slice]) {
        self.remember(slices.iter().map(|slice| ((slice.chunk, slice.id), pack(slice))));
    }

    fn remember(&self, rows: impl Iterator<Item = ((ChunkId, SliceId), Vec<u8>)>) {
        let mut known = lock(&self.rows);
        // What was lost on the way to a settlement must not stay for ever.
        if known.len() > ROWS {
            known.clear();
        }
        known.extend(rows);
    }

    /// The rows under leases, if all are known.
    fn rows<'l>(&self, leases: impl Iterator<Item = &'l Lease>) -> Option<Vec<Vec<u8>>> {
        let known = lock(&self.rows);
        leases.map(|lease| known.get(&(lease.chunk, lease.slice)).cloned()).collect()
    }

    /// Lanes and what is written there, if all are known.
    fn lanes(&self, reads: BTreeSet<Command>) -> Option<Vec<(Command, Vec<u8>)>> {
        let known = lock(&self.lanes);
        reads.into_iter().map(|read| known.get(&read).cloned().map(|row| (read, row))).collect()
    }

    pub(super) fn forget<'l>(&self, leases: impl Iterator<Item = &'l Lease>) {
        let mut known = lock(&self.rows);
        leases.for_each(|lease| drop(known.remove(&(lease.chunk, lease.slice))));
    }
}

impl RedisStore {
    /// Emits; `None` if nothing has happened and it has to be done as every other step. Emits of this process are sent one behind the other
    /// without waiting for answers.
    pub(super) async fn emit_at_once(&self, emit: &Emit) -> Result<Option<Vec<Result<Emission>>>> {
        if emit.units.iter().flatten().any(|event| event.key.is_some()) {
            return Ok(None);
        }
        let Some(breaks) = self.is_assured() else { return Ok(None) };
        let Some(now) = emit.now.or_else(|| self.at_once.clock.now()) else { return Ok(None) };
        let mut ahead = self.at_once.ahead.lock().await;
        let Some(chunk) = ahead.chunk.clone() else { return Ok(None) };
        let (catalog, meta) = (self.cache.get(), self.key("meta"));
        let seen = self.assumed(&catalog, [(hget(&meta, b"chunk"), chunk)]);
        let step = |session: &Session<'_>| emit::emit(session, &emit.units);
        let Some((mut emitted, left)) = self.decide(now, &seen, &catalog, step) else { return Ok(None) };
        let Some(next) = left.writes.field(&meta, b"chunk").map(<[u8]>::to_vec) else { return Ok(None) };
        let wake: BTreeSet<SubscriptionId> =
            emitted.iter().flatten().flat_map(|emission| emission.wake.iter().copied()).collect();
        let wake: Vec<SubscriptionId> = wake.into_iter().collect();
        let hint = self.at_once.speech.hint(emit.units.len(), &wake);
        let said = hint.as_ref().map(|(_, hint)| (self.wake_channel(), hint.as_str()));
        let mut commit = Box::pin(self.commit(&seen, left.writes, Step::Add(b""), breaks, said));
        // It is on its way before the next one is decided, so that they arrive in this order.
        let sent = poll_fn(|cx| Poll::Ready(commit.as_mut().poll(cx))).await;
        ahead.chunk = Some(next);
        drop(ahead);
        let ended = match sent {
            Poll::Ready(ended) => ended,
            Poll::Pending => commit.await,
        };
        let mut ahead = self.at_once.ahead.lock().await;
        match ended {
            Ok(Ended::Done(time)) => {
                self.at_once.clock.set(time);
                ahead.distrust = 0;
                if let Some((voice, _)) = &hint {
                    voice.ring(&wake);
                    emitted.iter_mut().flatten().for_each(|emission| emission.hinted = true);
                }
                Ok(Some(emitted))
            }
            Ok(Ended::Changed | Ended::Wait | Ended::Refused(_)) => {
                ahead.was_wrong();
                Ok(None)
            }
            Err(error) => {
                ahead.chunk = None;
                Err(error)
            }
        }
    }

    /// Settles what is done and was claimed by this process; `None` if nothing has happened and it has to be done as every other step.
    pub(super) async fn settle_at_once(&self, settle: &Settle) -> Result<Option<Settled>> {
        if settle.results.is_empty() || !settle.results.iter().all(SettleSlice::is_all_done) {
            return Ok(None);
        }
        let Some(breaks) = self.is_assured() else { return Ok(None) };
        let leases = || settle.results.iter().map(|result| &result.lease);
        let Some(now) = settle.now.or_else(|| self.at_once.clock.now()) else { return Ok(None) };
        let Some(rows) = self.at_once.rows(leases()) else { return Ok(None) };
        let lanes_key = self.key(&format!("lanes:{}", settle.subscription));
        let lanes = leases().filter(|lease| lease.is_ordered());
        let lanes = lanes.map(|lease| hget(&lanes_key, lease.lane.to_string().as_bytes())).collect();
        let Some(lanes) = self.at_once.lanes(lanes) else { return Ok(None) };
        let catalog = self.cache.get();
        let reads = leases().map(|lease| slice_read(&self.options.name, lease.chunk, lease.slice));
        let seen = self.assumed(&catalog, reads.zip(rows).chain(lanes));
        let step = |session: &Session<'_>| settle::settle(session, settle);
        let Some((settled, left)) = self.decide(now, &seen, &catalog, step) else { return Ok(None) };
        let written = |lease: &Lease| {
            let row = slice_row(&self.options.name, &left.writes, lease.chunk, lease.slice)?;
            Some(((lease.chunk, lease.slice), row.to_vec()))
        };
        let rest: Vec<_> = leases().filter_map(written).collect();
        let lanes = left.writes.fields_under(&lanes_key);
        // Whatever comes of it, what was known is not so any more.
        self.at_once.forget(leases());
        match self.commit(&seen, left.writes, Step::Write(b""), breaks, None).await? {
            Ended::Done(time) => {
                self.at_once.clock.set(time);
                self.at_once.remember(rest.into_iter());
                self.at_once.remember_lanes(lanes);
                Ok(Some(settled))
            }
            Ended::Changed | Ended::Wait | Ended::Refused(_) => Ok(None),
        }
    }

    /// What is assumed, as if it had been read.
    fn assumed(&self, catalog: &Catalog, values: impl IntoIterator<Item = (Command, Vec<u8>)>) -> Seen {
        let version = (self.catalog_version(), catalog.version.to_string().into_bytes());
        let seen = |(command, value): (Command, Vec<u8>)| {
            let value = Value::BulkString(value);
            let sign = sign(&value);
            (command, (value, sign))
        };
        std::iter::once(version).chain(values).map(seen).collect()
    }

    /// Runs a step on what is assumed; nothing, if that is not enough.
    fn decide<T>(
        &self,
        now: Time,
        seen: &Seen,
        catalog: &Arc<Catalog>,
        step: impl Fn(&Session<'_>) -> Result<T>,
    ) -> Option<(T, Left)> {
        let draws = Draws::new(&self.numbers);
        let session = Session::new(self, now, seen, catalog.clone(), &draws);
        let result = step(&session).and_then(|value| session.finish().map(|_| value));
        let left = session.leave();
        let enough = left.missing.is_empty() && left.numbers_wanted == 0 && !left.writes.is_empty();
        result.ok().filter(|_| enough).map(|value| (value, left))
    }

    /// Claims where that is plain; `None` if nothing has happened and it has to be done as every other step.
    pub(super) async fn claim_at_once(&self, claim: &Claim) -> Result<Option<(RawClaim, Arc<Catalog>)>> {
        let Some(breaks) = self.is_assured() else { return Ok(None) };
        let catalog = self.cache.get();
        let Ok(subscription) = catalog.require_subscription(claim.subscription) else { return Ok(None) };
        let policy = &subscription.policy;
        let special = policy.is_ordered() || policy.is_at_most_once() || policy.compact || claim.single;
        let filled = lock(&self.at_once.filled).get(&claim.subscription) == Some(&catalog.version);
        if special || !policy.limits.is_none() || !filled {
            return Ok(None);
        }
        let Some(number) = self.numbers.take(1) else {
            self.draw_numbers(1).await?;
            return Ok(None);
        };
        let lease = millis(claim.lease.unwrap_or_else(|| policy.lease()));
        let most = i64::try_from(claim.max_bytes).unwrap_or(i64::MAX).max(1);
        let numbers = [lease, i64::from(claim.max_events), most].map(|number| number.to_string());
        let [lease_words, events, bytes] = numbers.map(String::into_bytes);
        let words = [
            self.key(""),
            catalog.version.to_string().into_bytes(),
            claim.subscription.to_string().into_bytes(),
            Packer::new().number(claim.owner.0).done(),
            lease_words,
            events,
            bytes,
            claim.now.map_or_else(Vec::new, |now| now.0.to_string().into_bytes()),
            number.to_string().into_bytes(),
            SLICE_BYTES.to_string().into_bytes(),
            CHUNK_BYTES.to_string().into_bytes(),
            self.numbers.epoch().to_string().into_bytes(),
        ];
        let Some(answer) = self.link.claim(&self.turn(), &words, breaks).await? else { return Ok(None) };
        let mut raw = self.claimed(answer)?;
        raw.until = Time(raw.now.0.saturating_add(lease));
        if !raw.missing().is_empty() {
            let rest = self.read_chunks(&raw).await?;
            raw.chunks.extend(rest);
        }
        Ok(Some((raw, catalog)))
    }

    /// Reads what the script of a claim gives.
    fn claimed(&self, answer: Vec<Value>) -> Result<RawClaim> {
        let mut answer = answer.into_iter();
        let mut time = || answer.next().and_then(|value| text(&value)?.parse().ok()).map(Time);
        let (now, next_due) = (time().unwrap_or_default(), time());
        let (slices, chunks) = (items(answer.next()), items(answer.next()));
        let mut raw = RawClaim { now, next_due, ..RawClaim::default() };
        let mut rows = Vec::with_capacity(slices.len() / 3);
        for slice in slices.chunks_exact(3) {
            let [chunk, id, Value::BulkString(row)] = slice else { continue };
            let place = (ChunkId(number(chunk)), SliceId(number(id)));
            raw.slices.push(unpack(place.0, place.1, row)?);
            rows.push((place, row.clone()));
        }
        for pair in chunks.chunks_exact(2) {
            let [chunk, Value::BulkString(row)] = pair else { continue };
            let chunk = ChunkId(number(chunk));
            raw.chunks.insert(chunk, unpack_chunk(chunk, row)?);
        }
        self.at_once.remember(rows.into_iter());
        Ok(raw)
    }
}

fn items(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

fn number(value: &Value) -> i64 {
    text(value).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
