//! Group commit: while one transaction is being written, the next emits gather. A lone emit waits for nobody.

use crate::engine::backoff;
use crate::engine::clock::Clock;
use crate::error::{Error, Kind, Result};
use crate::model::event::Event;
use crate::model::id::SubscriptionId;
use crate::model::unique::check_unit;
use crate::store::Store;
use crate::store::verbs::{Emission, Emit};
use crate::wake::Wake;
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// How many events a group holds, unless one emit alone has more.
const MAX_EVENTS: usize = 4_096;
/// How much a group weighs, unless one emit alone weighs more.
const MAX_BYTES: usize = 4 << 20;
/// An emit of more events than this is a group of its own: it needs no copy to fall back on, and gains nothing from company.
const ALONE: usize = 256;
/// How much may wait to be written, in KiB; every emit counts for at least one.
const ROOM: usize = 64 << 10;
/// A group that takes longer is held up by something, and no longer counts.
const SLOW: Duration = Duration::from_millis(250);
/// How often an emit with an idempotency key is tried.
const TRIES: u32 = 6;

/// Gathers emits and writes them in groups.
#[derive(Clone, Debug)]
pub(crate) struct Emitter {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    clock: Clock,
    wake: Arc<dyn Wake>,
    queue: Mutex<Queue>,
    room: Arc<Semaphore>,
    flushers: usize,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    flushing: usize,
}

/// An emit and the caller who waits for it.
#[derive(Debug)]
struct Waiting {
    unit: Vec<Event>,
    bytes: usize,
    reply: oneshot::Sender<Result<Emission>>,
    _room: OwnedSemaphorePermit,
}

impl Emitter {
    /// At most `flushers` groups are written at the same time.
    pub(crate) fn new(store: Arc<dyn Store>, clock: Clock, wake: Arc<dyn Wake>, flushers: usize) -> Emitter {
        let inner = Inner {
            store,
            clock,
            wake,
            queue: Mutex::default(),
            room: Arc::new(Semaphore::new(ROOM)),
            flushers: flushers.max(1),
            hasher: RandomState::new(),
        };
        Emitter { inner: Arc::new(inner) }
    }

    /// Stores the events of one unit, all or none. If the future is dropped, they may be stored or not.
    pub(crate) async fn emit(&self, unit: Vec<Event>) -> Result<Emission> {
        check(&unit)?;
        let bytes = unit.iter().map(Event::weight).sum::<usize>();
        let size = (bytes >> 10).clamp(1, ROOM) as u32;
        let room = self.inner.room.clone().acquire_many_owned(size).await.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting { unit, bytes, reply, _room: room };
        match self.inner.claim_a_turn() {
            // Nobody else depends on this group, so it needs no task of its own, and no hand-over to one.
            Some(flushing) => drop(write(flushing, vec![waiting]).await),
            None => self.join(waiting),
        }
        answer.await.map_err(|_| closed())?
    }

    /// No emit is accepted any more.
    pub(crate) fn close(&self) {
        self.inner.room.close();
    }

    fn join(&self, waiting: Waiting) {
        self.inner.queue().waiting.push_back(waiting);
        self.inner.start_flushing();
    }
}

/// Everything that can be known before joining a group, so that nobody spoils it for the others.
pub(crate) fn check(unit: &[Event]) -> Result<()> {
    if unit.is_empty() {
        return Err(Error::invalid("there is no event to emit", "emit at least one"));
    }
    unit.iter().try_for_each(Event::check)?;
    check_unit(unit)
}

/// The right to write a group. Dropping it, even by a panic or a caller that goes away, lets the next one write.
struct Flushing {
    inner: Arc<Inner>,
    counted: bool,
}

impl Flushing {
    /// Counted down while the queue is locked: an emit either was seen by this task or starts one of its own.
    fn end(mut self, queue: &mut Queue) {
        queue.flushing -= 1;
        self.counted = false;
    }
}

impl Drop for Flushing {
    fn drop(&mut self) {
        if self.counted {
            self.inner.queue().flushing -= 1;
            self.inner.start_flushing();
        }
    }
}

async fn flush_all(mut flushing: Flushing) {
    let inner = flushing.inner.clone();
    loop {
        // Whoever is about to emit, because the last group answered him, joins this one: fewer and larger commits.
        tokio::task::yield_now().await;
        let group = {
            let mut queue = inner.queue();
            let group = inner.next_group(&mut queue.waiting);
            if group.is_empty() {
                return flushing.end(&mut queue);
            }
            group
        };
        match write(flushing, group).await {
            Some(again) => flushing = again,
            None => return,
        }
    }
}

/// Writes a group, and gives the right to write back if it did not take long.
async fn write(flushing: Flushing, group: Vec<Waiting>) -> Option<Flushing> {
    let writing = flushing.inner.clone().flush(group);
    tokio::pin!(writing);
    if tokio::time::timeout(SLOW, &mut writing).await.is_ok() {
        return Some(flushing);
    }
    // Somebody holds a key that is in the group. Others need not wait for that: another task takes this one's place.
    drop(flushing);
    writing.await;
    None
}

impl Inner {
    /// Starts a task that writes groups, unless there are enough or nothing waits.
    fn start_flushing(self: &Arc<Self>) {
        let mut queue = self.queue();
        if queue.flushing < self.flushers && !queue.waiting.is_empty() {
            // Without a runtime everything is over, and whoever waits is gone.
            let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
            queue.flushing += 1;
            // A task of its own and not the caller's future, which may be dropped while others depend on the group.
            runtime.spawn(flush_all(Flushing { inner: self.clone(), counted: true }));
        }
    }

    /// The right to write at once, if nobody waits and not too many write.
    fn claim_a_turn(self: &Arc<Self>) -> Option<Flushing> {
        let mut queue = self.queue();
        if queue.flushing >= self.flushers || !queue.waiting.is_empty() {
            return None;
        }
        queue.flushing += 1;
        Some(Flushing { inner: self.clone(), counted: true })
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a group from the queue. Emits with an idempotency key or unique key that is in it already stay for the next one.
    fn next_group(&self, waiting: &mut VecDeque<Waiting>) -> Vec<Waiting> {
        let mut group = Vec::with_capacity(waiting.len().min(MAX_EVENTS));
        let (mut events, mut bytes) = (0, 0);
        let mut keys = HashSet::new();
        let mut later = Vec::new();
        while let Some(next) = waiting.front() {
            let fits = events + next.unit.len() <= MAX_EVENTS && bytes + next.bytes <= MAX_BYTES;
            let alone = next.unit.len() > ALONE;
            if !group.is_empty() && (alone || !fits) {
                break;
            }
            let Some(next) = waiting.pop_front() else { break };
            let own: Vec<u64> = single(&next.unit).map(|key| self.hasher.hash_one(key)).collect();
            if own.iter().any(|key| keys.contains(key)) {
                // What comes after it with one of its keys has to stay behind it.
                keys.extend(own);
                later.push(next);
                continue;
            }
            keys.extend(own);
            events += next.unit.len();
            bytes += next.bytes;
            group.push(next);
            if alone {
                break;
            }
        }
        later.into_iter().rev().for_each(|next| waiting.push_front(next));
        group
    }

    async fn flush(self: Arc<Self>, mut group: Vec<Waiting>) {
        let keep = group.len() > 1 || idempotency(&group[0].unit).is_some();
        let units =
            group.iter_mut().map(|one| if keep { one.unit.clone() } else { std::mem::take(&mut one.unit) });
        let emit = Emit { units: units.collect(), now: self.clock.now() };
        match self.store.emit(emit).await {
            Ok(results) => self.answer(group, results),
            Err(error) if error.kind() == Kind::Unavailable => {
                let results = group.iter().map(|_| Err(error.share())).collect();
                self.answer(group, results);
            }
            Err(error) if group.len() == 1 => self.answer(group, vec![Err(error)]),
            // One of them spoils it for all: find out which.
            Err(_) => {
                for mut one in group {
                    let units = vec![one.unit.clone()];
                    let results = self.store.emit(Emit { units, now: self.clock.now() }).await;
                    let result = results.and_then(|mut results| results.pop().ok_or_else(closed)?);
                    if idempotency(&one.unit).is_none() {
                        one.unit = Vec::new();
                    }
                    self.answer(vec![one], vec![result]);
                }
            }
        }
    }

    fn answer(self: &Arc<Self>, group: Vec<Waiting>, results: Vec<Result<Emission>>) {
        self.notify(results.iter().flatten());
        for (one, result) in group.into_iter().zip(results) {
            let unavailable = result.as_ref().is_err_and(|error| error.kind() == Kind::Unavailable);
            if unavailable && idempotency(&one.unit).is_some() {
                tokio::spawn(self.clone().try_again(one));
            } else {
                // The caller may be gone; then nobody asks.
                let _ = one.reply.send(result);
            }
        }
    }

    /// An emit whose fate is unknown may be repeated only if it has an idempotency key.
    async fn try_again(self: Arc<Self>, one: Waiting) {
        let mut failures = 1;
        let result = loop {
            self.clock.sleep(backoff::delay(failures)).await;
            let emit = Emit { units: vec![one.unit.clone()], now: self.clock.now() };
            let result =
                self.store.emit(emit).await.and_then(|mut results| results.pop().ok_or_else(closed)?);
            failures += 1;
            match result {
                Err(error) if error.kind() == Kind::Unavailable && failures < TRIES => {}
                result => break result,
            }
        };
        self.notify(result.iter());
        let _ = one.reply.send(result);
    }

    fn notify<'a>(&self, emissions: impl Iterator<Item = &'a Emission>) {
        let mut wake: Vec<SubscriptionId> = Vec::new();
        for emission in emissions.filter(|emission| !emission.repeated) {
            let new = emission.wake.iter().filter(|id| !wake.contains(id)).copied().collect::<Vec<_>>();
            wake.extend(new);
        }
        self.wake.notify(&wake);
    }
}

/// What makes a unit repeatable: the idempotency key of its first event, which belongs to that one's topic.
fn idempotency(unit: &[Event]) -> Option<(&str, &str)> {
    let first = unit.first()?;
    first.idempotency_key.as_deref().map(|key| (first.topic.as_str(), key))
}

/// What no two units of a group share: idempotency keys and unique keys.
fn single(unit: &[Event]) -> impl Iterator<Item = (bool, &str, &str)> {
    let unique = unit
        .iter()
        .filter_map(|event| Some((true, event.topic.as_str(), event.unique.as_ref()?.key.as_str())));
    idempotency(unit).map(|(topic, key)| (false, topic, key)).into_iter().chain(unique)
}

fn closed() -> Error {
    Error::unavailable(
        "the emit was not carried out",
        "this Tramline is closed or its runtime is shutting down",
    )
}
