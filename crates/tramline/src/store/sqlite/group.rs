//! Group commit of emits: all that waits when the writer is free is written as one emit, so that its events share chunks. The next
//! ones gather while it is written; a lone one waits for nobody.

use super::emit::{emit, emit_plain};
use super::session::CatalogCache;
use super::writer::in_savepoint;
use crate::error::{Error, Kind, Result};
use crate::model::event::Event;
use crate::model::id::SubscriptionId;
use crate::model::time::Time;
use crate::store::emit::needs_steps;
use crate::store::verbs::{Emission, Emit};
use rusqlite::Connection;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// How many events are written in one step, unless one emit alone has more.
const MAX_EVENTS: usize = 4_096;
/// What they weigh, unless one emit alone weighs more.
const MAX_BYTES: usize = 4 << 20;
/// Up to so many callers are told by the thread that writes. Telling more would hold up the next group.
const FEW: usize = 2;

/// How long the writer waits at most for those who were told to come again.
const PATIENCE: Duration = Duration::from_millis(1);

/// What an emit gives: an answer for each of its units.
pub(super) type Answer = Result<Vec<Result<Emission>>>;

/// How many callers emit at the same time, as far as the last groups tell.
#[derive(Debug)]
pub(super) struct Crowd {
    count: usize,
    told_at: Instant,
}

impl Crowd {
    pub(super) fn nobody() -> Crowd {
        Crowd { count: 0, told_at: Instant::now() }
    }

    /// So many were told. A crowd that gets smaller is forgotten little by little, because each group may be a half of it.
    pub(super) fn told(&mut self, count: usize) {
        let rest = self.count - self.count.div_ceil(8);
        *self = Crowd { count: count.max(rest), told_at: Instant::now() };
    }

    /// How many should wait before they are written, and how long to wait for them. While a half of a crowd is written, the other half
    /// comes: so the writer and the callers work at the same time, and groups stay large, which costs less than many small ones.
    /// Nobody waits for few, nor for those who have been away for long.
    fn awaited(&self, waiting: usize) -> Option<(usize, Duration)> {
        let half = self.count / 2;
        let rest = PATIENCE.saturating_sub(self.told_at.elapsed());
        (half >= FEW && (1..half).contains(&waiting) && !rest.is_zero()).then_some((half, rest))
    }
}

/// Emits that wait for the writer.
#[derive(Debug, Default)]
pub(super) struct Group {
    line: Mutex<Line>,
    /// The writer, while it waits for so many.
    awaited: Mutex<Option<(Thread, usize)>>,
}

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Waiting>,
    /// The writer has ended.
    closed: bool,
}

/// An emit, and the caller who waits for it.
#[derive(Debug)]
struct Waiting {
    emit: Emit,
    tell: oneshot::Sender<Answer>,
    /// Where callers are told from, if they are many.
    runtime: Option<Handle>,
}

impl Group {
    /// Joins those who wait. True: nobody did, so that the writer has to be told. `None` when there is no writer any more.
    pub(super) fn join(&self, emit: Emit) -> Option<(oneshot::Receiver<Answer>, bool)> {
        let (tell, told) = oneshot::channel();
        let mut line = self.line();
        if line.closed {
            return None;
        }
        line.waiting.push_back(Waiting { emit, tell, runtime: Handle::try_current().ok() });
        let count = line.waiting.len();
        drop(line);
        if let Some((writer, _)) = self.awaited().take_if(|(_, awaited)| count >= *awaited) {
            writer.unpark();
        }
        Some((told, count == 1))
    }

    /// The writer has ended: nobody can join any more, and whoever waits is told by the end of his channel.
    pub(super) fn close(&self) {
        let mut line = self.line();
        line.closed = true;
        line.waiting.clear();
    }

    /// Waits for a part of the crowd, if somebody waits already.
    pub(super) fn gather(&self, crowd: &Crowd) {
        let Some((awaited, patience)) = crowd.awaited(self.line().waiting.len()) else { return };
        *self.awaited() = Some((std::thread::current(), awaited));
        // They may have come before they could know that they are waited for.
        if self.line().waiting.len() < awaited {
            std::thread::park_timeout(patience);
        }
        self.awaited().take();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.line().waiting.is_empty()
    }

    /// Takes what can be written in one step: emits at the same time of a test, and not too many.
    pub(super) fn take(&self) -> Taken {
        let waiting = &mut self.line().waiting;
        let mut taken = Vec::with_capacity(waiting.len());
        let (mut events, mut bytes) = (0, 0);
        let now = waiting.front().and_then(|first| first.emit.now);
        while let Some(next) = waiting.front() {
            let of = || next.emit.units.iter().flatten();
            events += of().count();
            bytes += of().map(Event::weight).sum::<usize>();
            let fits = events <= MAX_EVENTS && bytes <= MAX_BYTES && next.emit.now == now;
            if !taken.is_empty() && !fits {
                break;
            }
            taken.extend(waiting.pop_front());
        }
        Taken { waiting: taken, written: Vec::new() }
    }

    fn awaited(&self) -> MutexGuard<'_, Option<(Thread, usize)>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Emits that are written together.
pub(super) struct Taken {
    waiting: Vec<Waiting>,
    /// Their events, once they are written. Where they are many, those who are told free them: their threads make such events and can use the
    /// memory again, while this one would have to lock the others' for each piece.
    written: Vec<Vec<Event>>,
}

impl Taken {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Writes them in the transaction that the connection is in, in which nothing else was written yet.
    ///
    /// # Errors
    /// There is no transaction any more, and nobody was told.
    pub(super) fn write(&mut self, conn: &Connection, cache: &CatalogCache) -> Result<Vec<Answer>> {
        let counts: Vec<usize> = self.waiting.iter().map(|one| one.emit.units.len()).collect();
        let units: Vec<Vec<Event>> =
            self.waiting.iter_mut().flat_map(|one| one.emit.units.drain(..)).collect();
        let step = Step { conn, cache, now: self.waiting.first().and_then(|one| one.emit.now) };
        if units.iter().any(|unit| needs_steps(unit)) {
            // Deciding what becomes of them changes them.
            return Ok(step.write_with_care(units, &counts));
        }
        self.written = units;
        step.write(&self.written, &counts)
    }

    /// Tells all of them why nothing was written.
    pub(super) fn fail(self, error: &Error) {
        let answers = self.waiting.iter().map(|_| Err(error.share())).collect();
        self.tell(answers);
    }

    /// Tells each of them what became of it.
    pub(super) fn tell(self, mut answers: Vec<Answer>) {
        mark_hinted(answers.iter_mut().flatten().flatten().flatten());
        let runtime = self.waiting.first().and_then(|first| first.runtime.clone());
        let callers = self.waiting.into_iter().map(|one| one.tell).zip(answers).collect();
        let told = Told { callers, _written: self.written };
        if told.callers.len() > FEW
            && let Some(runtime) = runtime
        {
            // A thread of the runtime wakes its tasks without a call of the system for each of them.
            runtime.spawn(async move { drop(told) });
        }
    }
}

/// Where units are written.
struct Step<'a> {
    conn: &'a Connection,
    cache: &'a CatalogCache,
    now: Option<Time>,
}

impl Step<'_> {
    /// Writes the plain units of several emits, of which each has so many.
    fn write(&self, units: &[Vec<Event>], counts: &[usize]) -> Result<Vec<Answer>> {
        if counts.is_empty() {
            return Ok(Vec::new());
        }
        match emit_plain(self.conn, units, self.now, self.cache) {
            Ok(results) => Ok(dealt(results, counts).into_iter().map(Ok).collect()),
            Err(error) => {
                // A savepoint for what hardly ever happens would have SQLite copy every page that it changes.
                self.cache.forget();
                match self.conn.execute_batch("ROLLBACK; BEGIN IMMEDIATE") {
                    Ok(()) => Ok(self.after(error, units.to_vec(), counts)),
                    Err(_) => Err(error),
                }
            }
        }
    }

    fn write_with_care(&self, units: Vec<Vec<Event>>, counts: &[usize]) -> Vec<Answer> {
        let kept = if counts.len() > 1 { units.clone() } else { Vec::new() };
        match self.emit(units) {
            Ok(results) => dealt(results, counts).into_iter().map(Ok).collect(),
            Err(error) => self.after(error, kept, counts),
        }
    }

    /// Nothing was written. If one of them spoils it for all, finds out which.
    fn after(&self, error: Error, units: Vec<Vec<Event>>, counts: &[usize]) -> Vec<Answer> {
        if counts.len() < 2 || error.kind() == Kind::Unavailable {
            return counts.iter().map(|_| Err(error.share())).collect();
        }
        dealt(units, counts).into_iter().map(|units| self.emit(units)).collect()
    }

    fn emit(&self, units: Vec<Vec<Event>>) -> Answer {
        in_savepoint(self.conn, self.cache, |conn| emit(conn, units, self.now, self.cache))
    }
}

/// Values in portions of so many.
fn dealt<T>(values: Vec<T>, counts: &[usize]) -> Vec<Vec<T>> {
    let mut values = values.into_iter();
    counts.iter().map(|count| values.by_ref().take(*count).collect()).collect()
}

/// One hint is enough for all that is committed at once: only those give one who have to wake somebody else.
fn mark_hinted<'a>(emissions: impl Iterator<Item = &'a mut Emission>) {
    let mut woken: Option<Vec<SubscriptionId>> = None;
    for emission in emissions.filter(|emission| !emission.repeated) {
        match &mut woken {
            Some(woken) if emission.wake.iter().all(|one| woken.contains(one)) => emission.hinted = true,
            Some(woken) => woken.extend(&emission.wake),
            None => woken = Some(emission.wake.clone()),
        }
    }
}

/// Callers and their answers. Dropping it tells them, be it in a task or with a runtime that has ended.
struct Told {
    callers: Vec<(oneshot::Sender<Answer>, Answer)>,
    _written: Vec<Vec<Event>>,
}

impl Drop for Told {
    fn drop(&mut self) {
        let mut is_gone = false;
        for (tell, mut answer) in self.callers.drain(..) {
            if is_gone {
                // He might have given the hint.
                answer.iter_mut().flatten().flatten().for_each(|emission| emission.hinted = false);
            }
            is_gone |= tell.send(answer).is_err();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::{configure, migrate};
    use bytes::Bytes;

    fn emit(events: Vec<Event>) -> Emit {
        Emit { units: vec![events], now: Some(Time(1_000)) }
    }

    fn heavy(mebibytes: usize) -> Vec<Event> {
        vec![Event::new("t", Bytes::from(vec![0; 1 << 20])); mebibytes]
    }

    /// What is taken together, emit by emit, until nothing waits.
    fn groups(emits: Vec<Emit>) -> Vec<usize> {
        let group = Group::default();
        let told: Vec<_> = emits.into_iter().map(|emit| group.join(emit).unwrap()).collect();
        assert!(told[0].1 && told[1..].iter().all(|(_, is_first)| !is_first), "one hint is enough");
        std::iter::from_fn(|| Some(group.take().len()).filter(|count| *count > 0)).collect()
    }

    #[test]
    fn a_group_is_bounded_by_bytes_and_events_unless_one_emit_alone_has_more() {
        assert_eq!(groups((0..6).map(|_| emit(heavy(1))).collect()), [3, 3]);
        assert_eq!(groups(vec![emit(heavy(1)), emit(heavy(6)), emit(heavy(1))]), [1, 1, 1]);
        let many = |count| emit(vec![Event::new("t", "x"); count]);
        assert_eq!(groups(vec![many(MAX_EVENTS), many(1), many(MAX_EVENTS - 1), many(1)]), [1, 2, 1]);
    }

    #[test]
    fn the_writer_waits_for_half_of_a_crowd_and_for_nobody_else() {
        let mut crowd = Crowd::nobody();
        assert_eq!(crowd.awaited(1), None, "who comes first is alone");
        crowd.told(64);
        crowd.told_at += Duration::from_secs(60); // as if the test took no time
        let awaited = |crowd: &Crowd, waiting| crowd.awaited(waiting).map(|(half, _)| half);
        assert_eq!(awaited(&crowd, 0), None, "nobody is there who would gain by it");
        assert_eq!(
            (awaited(&crowd, 1), awaited(&crowd, 31), awaited(&crowd, 32)),
            (Some(32), Some(32), None)
        );
        crowd.told_at = Instant::now().checked_sub(PATIENCE).unwrap();
        assert_eq!(awaited(&crowd, 1), None, "they have been away for too long");
        for _ in 0..30 {
            crowd.told(1);
        }
        crowd.told_at += Duration::from_secs(60);
        assert_eq!(awaited(&crowd, 1), None, "the crowd has gone");
    }

    /// Trap 5: one emit must not fail the others of its group.
    #[test]
    fn of_a_group_that_fails_only_those_fail_that_spoil_it() {
        let conn = configure(Connection::open_in_memory().unwrap()).unwrap();
        migrate::run(&conn).unwrap();
        let cache = CatalogCache::default();
        let keyed = |key: &str| Event::new("t", "x").idempotency_key(key);
        for (good, bad, other) in [
            (Event::new("t", "x"), Event::new("two words", "x"), Event::new("t", "x")),
            (keyed("a"), Event::new("two words", "x").idempotency_key("b"), keyed("c")),
        ] {
            let group = Group::default();
            for event in [good, bad, other] {
                group.join(emit(vec![event])).unwrap();
            }
            conn.execute_batch("BEGIN IMMEDIATE").unwrap();
            let answers = group.take().write(&conn, &cache).unwrap();
            conn.execute_batch("COMMIT").unwrap();
            let events = |at: usize| answers[at].as_ref().unwrap()[0].as_ref().unwrap().events.len();
            assert_eq!((events(0), events(2)), (1, 1));
            assert_eq!(answers[1].as_ref().unwrap_err().kind(), Kind::Invalid);
        }
        let count = conn.query_row("SELECT sum(count) FROM tramline_chunk", [], |row| row.get::<_, i64>(0));
        assert_eq!(count.unwrap(), 4);
    }
}
