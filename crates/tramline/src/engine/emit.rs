//! Group commit: while one transaction is being written, the next emits gather. A lone emit waits for nobody.

use crate::engine::backoff;
use crate::engine::clock::Clock;
use crate::engine::gather::{ENOUGH, Flush, Queue, Waiting, idempotency};
use crate::engine::pace::Pace;
use crate::error::{Error, Kind, Result};
use crate::model::event::Event;
use crate::model::id::SubscriptionId;
use crate::model::unique::check_unit;
use crate::store::Store;
use crate::store::verbs::{Emission, Emit};
use crate::wake::Wake;
use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// How much may wait to be written, in KiB; every emit counts for at least one.
const ROOM: usize = 64 << 10;
/// How often whoever emits again may join a group before it is written.
const GATHERINGS: usize = 16;
/// A group that takes longer is held up by something, and no longer counts.
const SLOW: Duration = Duration::from_millis(250);
/// How often an emit with an idempotency key is tried.
const TRIES: u32 = 6;

/// Gathers emits and writes them in groups.
#[derive(Clone, Debug)]
pub(crate) struct Emitter {
    inner: Arc<Inner>,
    /// Where topics are on different servers each has groups of its own, so that none waits for a server that is away.
    apart: Option<Arc<Apart>>,
}

/// Who gathers the emits of each topic.
type Apart = Mutex<HashMap<String, Arc<Inner>>>;

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    clock: Clock,
    wake: Arc<dyn Wake>,
    queue: Mutex<Queue>,
    /// How long groups take.
    pace: Pace,
    /// The store makes the groups.
    store_gathers: bool,
    room: Arc<Semaphore>,
    hasher: RandomState,
}

impl Emitter {
    /// At most `lines` groups are written at the same time; `None`: the store makes groups itself.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Clock,
        wake: Arc<dyn Wake>,
        lines: Option<usize>,
        apart: bool,
    ) -> Emitter {
        let inner = Inner {
            store,
            clock,
            wake,
            queue: Mutex::new(Queue::new(lines.unwrap_or(1))),
            pace: Pace::default(),
            store_gathers: lines.is_none(),
            room: Arc::new(Semaphore::new(ROOM)),
            hasher: RandomState::new(),
        };
        Emitter { inner: Arc::new(inner), apart: apart.then(Arc::default) }
    }

    /// Who gathers a unit. All share the room.
    fn gatherer(&self, unit: &[Event]) -> Arc<Inner> {
        let Some((apart, first)) = self.apart.as_ref().zip(unit.first()) else { return self.inner.clone() };
        let mut apart = apart.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = apart.get(&first.topic) {
            return known.clone();
        }
        let own = Arc::new(self.inner.alike());
        apart.insert(first.topic.clone(), own.clone());
        own
    }

    /// Stores the events of one unit, all or none. If the future is dropped, they may be stored or not.
    pub(crate) async fn emit(&self, unit: Vec<Event>) -> Result<Emission> {
        check(&unit)?;
        let bytes = unit.iter().map(Event::weight).sum::<usize>();
        let size = (bytes >> 10).clamp(1, ROOM) as u32;
        let room = self.inner.room.clone().acquire_many_owned(size).await.map_err(|_| closed())?;
        let inner = self.gatherer(&unit);
        if inner.store_gathers && idempotency(&unit).is_none() {
            return inner.write_alone(unit).await;
        }
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting { unit, bytes, reply, _room: room };
        if inner.store_gathers {
            Box::pin(inner.flush(vec![waiting])).await;
            return answer.await.map_err(|_| closed())?;
        }
        match inner.claim_a_turn(&waiting.unit) {
            // Nobody else depends on this group, so it needs no task of its own, and no hand-over to one.
            Some(flushing) => drop(Box::pin(write(flushing, vec![waiting])).await),
            None => inner.join(waiting),
        }
        answer.await.map_err(|_| closed())?
    }

    /// No emit is accepted any more.
    pub(crate) fn close(&self) {
        self.inner.room.close();
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

/// The right to write the groups of a line. Dropping it, even by a panic or a caller that goes away, lets the next one write.
struct Flushing {
    inner: Arc<Inner>,
    line: usize,
    /// A task that never ran was refused by a runtime that shuts down: it would refuse the next one, too.
    ran: bool,
    over: bool,
}

impl Flushing {
    fn begin(inner: &Arc<Inner>, queue: &mut Queue, line: usize, flush: Flush) -> Flushing {
        queue.lines[line].flushing = flush;
        Flushing { inner: inner.clone(), line, ran: false, over: false }
    }

    /// Ends while the queue is locked: an emit either was seen by this task or starts one of its own.
    fn end(mut self, queue: &mut Queue) {
        queue.lines[self.line].flushing = Flush::Idle;
        self.over = true;
    }

    /// Says whether others may wait for this one.
    fn is(&self, flush: Flush) {
        self.inner.queue().lines[self.line].flushing = flush;
    }
}

impl Drop for Flushing {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        self.is(Flush::Idle);
        if self.ran {
            self.inner.start_flushing();
        }
    }
}

async fn flush_all(mut flushing: Flushing) {
    let inner = flushing.inner.clone();
    flushing.ran = true;
    loop {
        inner.gather().await;
        let group = {
            let mut queue = inner.queue();
            let group = queue.next_group(flushing.line, &inner.hasher);
            if group.is_empty() {
                return flushing.end(&mut queue);
            }
            queue.lines[flushing.line].flushing = Flush::Quick;
            group
        };
        match write(flushing, group).await {
            Some(again) => flushing = again,
            None => return,
        }
    }
}

/// Writes a group, and gives the right to write back if it did not take long.
async fn write(mut flushing: Flushing, group: Vec<Waiting>) -> Option<Flushing> {
    flushing.ran = true;
    let inner = flushing.inner.clone();
    let writing = inner.pace.measure(inner.clone().flush(group));
    tokio::pin!(writing);
    // One that takes longer than most is not waited for: another one is written beside it, be it small.
    if tokio::time::timeout(inner.pace.long(), &mut writing).await.is_ok() {
        return Some(flushing);
    }
    flushing.is(Flush::Slow);
    inner.start_flushing();
    if tokio::time::timeout(SLOW, &mut writing).await.is_ok() {
        return Some(flushing);
    }
    // Somebody holds a key that is in the group. Others need not wait for that: another task takes this one's place.
    drop(flushing);
    writing.await;
    None
}

impl Inner {
    /// Another one that writes to the same store, with emits of its own.
    fn alike(&self) -> Inner {
        Inner {
            store: self.store.clone(),
            clock: self.clock.clone(),
            wake: self.wake.clone(),
            queue: Mutex::new(Queue::new(self.queue().lines.len())),
            pace: Pace::default(),
            store_gathers: self.store_gathers,
            room: self.room.clone(),
            hasher: RandomState::new(),
        }
    }

    /// Whoever is about to emit, because the last group answered him, joins the next one: fewer and larger commits. Lets all others run
    /// that can, again and again while some of them come to emit; where nobody does, it goes on at once.
    async fn gather(&self) {
        let mut before = self.queue().events();
        for _ in 0..GATHERINGS {
            tokio::task::yield_now().await;
            let events = self.queue().events();
            if events >= ENOUGH || events == before {
                return;
            }
            before = events;
        }
    }

    /// The right to write at once, if nobody waits, a line is free, and there is no crowd: of one, the first few would each write alone
    /// while all others wait for them.
    fn claim_a_turn(self: &Arc<Self>, unit: &[Event]) -> Option<Flushing> {
        let mut queue = self.queue();
        if !queue.is_empty() || queue.is_crowd {
            return None;
        }
        let free = queue.free_line(unit.len())?;
        let own = queue.line_of(unit).filter(|own| queue.lines[*own].flushing == Flush::Idle);
        // Nobody may rely on the caller's future: it may not be polled for long, because its task waits for another emit.
        Some(Flushing::begin(self, &mut queue, own.unwrap_or(free), Flush::Slow))
    }

    fn join(self: &Arc<Self>, waiting: Waiting) {
        self.queue().push(waiting);
        self.start_flushing();
    }

    /// Starts a task that writes groups, unless there are enough or nothing waits.
    fn start_flushing(self: &Arc<Self>) {
        // Without a runtime everything is over, and whoever waits is gone.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let flushing = {
            let mut queue = self.queue();
            let Some(line) = queue.free_line(0).filter(|_| !queue.is_empty()) else { return };
            Flushing::begin(self, &mut queue, line, Flush::Quick)
        };
        // A task of its own and not the caller's future, which may be dropped while others depend on the group.
        runtime.spawn(flush_all(flushing));
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn write_alone(&self, unit: Vec<Event>) -> Result<Emission> {
        let emit = Emit { units: vec![unit], now: self.clock.now() };
        let emission = self.store.emit(emit).await?.pop().ok_or_else(closed)??;
        self.notify(std::iter::once(&emission));
        Ok(emission)
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
        let mut emissions = emissions.filter(|emission| !emission.repeated && !emission.hinted).peekable();
        if emissions.peek().is_none() {
            return;
        }
        for emission in emissions {
            let new = emission.wake.iter().filter(|id| !wake.contains(id)).copied().collect::<Vec<_>>();
            wake.extend(new);
        }
        self.wake.notify(&wake);
    }
}

fn closed() -> Error {
    Error::unavailable(
        "the emit was not carried out",
        "this Tramline is closed or its runtime is shutting down",
    )
}
