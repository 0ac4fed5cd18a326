//! Group commit for acks: while one transaction is being written, the next ones gather. A lone ack waits for nobody.

use crate::engine::backoff;
use crate::engine::clock::Clock;
use crate::engine::courier::Courier;
use crate::error::{Error, Kind, Result};
use crate::model::id::Incarnation;
use crate::model::tally::part::PART;
use crate::model::tally::{Ack, AckCount, Items};
use crate::store::Store;
use crate::store::verbs_tally::{AckItems, AckedItems};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// How many numbers and ranges a group holds.
const MAX_ENTRIES: usize = 10_000;
/// How many parts a group touches, at most: about four million items.
const MAX_PARTS: u64 = 1_024;
/// How many parts one call may touch: about a thousand million items.
const MOST_PARTS: u64 = 1 << 18;
/// How many numbers and ranges may wait to be written.
const ROOM: usize = 200_000;
/// How often a group is tried.
const TRIES: u32 = 6;

/// Gathers acks and writes them in groups.
#[derive(Clone, Debug)]
pub(crate) struct Acker {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    clock: Clock,
    courier: Arc<Courier>,
    queue: Mutex<Queue>,
    room: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    is_flushing: bool,
}

/// Acks and the caller who waits for them.
#[derive(Debug)]
struct Waiting {
    acks: Vec<Ack>,
    size: Size,
    reply: oneshot::Sender<Result<AckedItems>>,
    _room: OwnedSemaphorePermit,
}

/// How much a list of acks is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    entries: usize,
    parts: u64,
}

impl Size {
    fn of(items: &Items) -> Size {
        Size { entries: 1, parts: items.last / PART - items.first / PART + 1 }
    }

    fn plus(self, other: Size) -> Size {
        Size { entries: self.entries + other.entries, parts: self.parts.saturating_add(other.parts) }
    }

    fn fits(self) -> bool {
        self.entries <= MAX_ENTRIES && self.parts <= MAX_PARTS
    }
}

impl Acker {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Clock, courier: Arc<Courier>) -> Acker {
        let (queue, room) = (Mutex::default(), Arc::new(Semaphore::new(ROOM)));
        Acker { inner: Arc::new(Inner { store, clock, courier, queue, room }) }
    }

    /// Ends items. What is too much for one group goes into several, one after the other.
    pub(crate) async fn ack(&self, acks: Vec<Ack>) -> Result<AckedItems> {
        let size = check(&acks)?;
        if size.fits() {
            return self.join(acks, size).await;
        }
        let mut sum = AckedItems {
            results: acks.iter().map(|ack| vec![AckCount::default(); ack.items.len()]).collect(),
            ..AckedItems::default()
        };
        for piece in cut(&acks) {
            let (places, acks): (Vec<_>, Vec<_>) = piece.entries.into_iter().unzip();
            let acked = self.join(acks, piece.size).await?;
            for ((ack, at), counts) in places.into_iter().zip(acked.results) {
                let count = counts.into_iter().fold(sum.results[ack][at], AckCount::plus);
                sum.results[ack][at] = count;
            }
            sum.completed.extend(acked.completed);
            sum.news.extend(acked.news);
        }
        Ok(sum)
    }

    /// No ack is accepted any more.
    pub(crate) fn close(&self) {
        self.inner.room.close();
    }

    async fn join(&self, acks: Vec<Ack>, size: Size) -> Result<AckedItems> {
        let entries = size.entries.max(1) as u32;
        let room = self.inner.room.clone().acquire_many_owned(entries).await.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        if self.inner.join(Waiting { acks, size, reply, _room: room }) {
            // A task of its own and not the caller's future, which may be dropped while others depend on the group. Nothing is locked
            // here: a runtime that shuts down refuses the task, and drops it at once.
            tokio::spawn(flush_all(Flushing { inner: self.inner.clone(), is_over: false }));
        }
        answer.await.map_err(|_| closed())?
    }
}

/// Everything that can be known before joining a group.
fn check(acks: &[Ack]) -> Result<Size> {
    let mut size = Size::default();
    for items in acks.iter().flat_map(|ack| &ack.items) {
        if items.last < items.first || items.last > i64::MAX.cast_unsigned() {
            return Err(Error::invalid(
                format!("the items from {} to {} are no range", items.first, items.last),
                "name the lower number first, as the addition gave it",
            ));
        }
        size = size.plus(Size::of(items));
    }
    if size.parts > MOST_PARTS || size.entries > ROOM {
        return Err(Error::new(
            Kind::TooLarge,
            "these are too many items for one call",
            "name at most 200,000 numbers and ranges, and a thousand million items",
        ));
    }
    Ok(size)
}

/// As much of a call as one group takes: each range with its place in the call.
#[derive(Default)]
struct Piece {
    entries: Vec<((usize, usize), Ack)>,
    size: Size,
}

fn cut(acks: &[Ack]) -> Vec<Piece> {
    let mut pieces = vec![Piece::default()];
    for (at, ack) in acks.iter().enumerate() {
        for (place, items) in ack.items.iter().enumerate() {
            for items in ranges(*items) {
                let size = Size::of(&items);
                if pieces.last().is_none_or(|piece| !piece.size.plus(size).fits()) {
                    pieces.push(Piece::default());
                }
                if let Some(piece) = pieces.last_mut() {
                    let ack = Ack { tally: ack.tally, items: vec![items], ending: ack.ending };
                    piece.entries.push(((at, place), ack));
                    piece.size = piece.size.plus(size);
                }
            }
        }
    }
    pieces
}

/// A range in pieces that begin and end with parts.
fn ranges(items: Items) -> impl Iterator<Item = Items> {
    let step = MAX_PARTS * PART;
    (items.first / step..=items.last / step).map(move |at| Items {
        first: items.first.max(at * step),
        last: items.last.min(at * step + (step - 1)),
    })
}

/// The task that writes groups. Dropping it, even by a panic, lets another take its place.
struct Flushing {
    inner: Arc<Inner>,
    /// Another may have taken its place already.
    is_over: bool,
}

impl Flushing {
    /// The next group. Where there is none it is over, while the queue is locked: an ack either is seen here or starts a task of its own.
    fn next(&mut self) -> Option<Vec<Waiting>> {
        let mut queue = self.inner.queue();
        let group = next_group(&mut queue.waiting);
        self.is_over = group.is_empty();
        queue.is_flushing = !self.is_over;
        Some(group).filter(|group| !group.is_empty())
    }
}

impl Drop for Flushing {
    fn drop(&mut self) {
        if !self.is_over {
            self.inner.queue().is_flushing = false;
        }
    }
}

async fn flush_all(mut flushing: Flushing) {
    while let Some(group) = flushing.next() {
        flushing.inner.flush(group).await;
    }
}

fn next_group(waiting: &mut VecDeque<Waiting>) -> Vec<Waiting> {
    let mut group = Vec::new();
    let mut size = Size::default();
    while let Some(next) = waiting.pop_front() {
        if !group.is_empty() && !size.plus(next.size).fits() {
            waiting.push_front(next);
            break;
        }
        size = size.plus(next.size);
        group.push(next);
    }
    group
}

impl Inner {
    fn queue(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if nobody writes what waits: then somebody has to begin.
    fn join(&self, waiting: Waiting) -> bool {
        let mut queue = self.queue();
        queue.waiting.push_back(waiting);
        !std::mem::replace(&mut queue.is_flushing, true)
    }

    async fn flush(&self, mut group: Vec<Waiting>) {
        let lengths: Vec<usize> = group.iter().map(|one| one.acks.len()).collect();
        let acks: Vec<Ack> = group.iter_mut().flat_map(|one| std::mem::take(&mut one.acks)).collect();
        let ack = AckItems { acks, by: Incarnation::random().0, now: None };
        match self.write(&ack).await {
            Ok(acked) => {
                self.courier.send(&acked.news);
                for (one, answer) in group.into_iter().zip(share(&ack.acks, &lengths, acked)) {
                    // The caller may be gone; then nobody asks.
                    let _ = one.reply.send(Ok(answer));
                }
            }
            Err(error) => group.into_iter().for_each(|one| {
                let _ = one.reply.send(Err(error.share()));
            }),
        }
    }

    /// Acking twice does no harm, so an unknown fate is simply tried again.
    async fn write(&self, ack: &AckItems) -> Result<AckedItems> {
        let mut failures = 0;
        loop {
            match self.store.ack_items(AckItems { now: self.clock.now(), ..ack.clone() }).await {
                Err(error) if error.kind() == Kind::Unavailable && failures + 1 < TRIES => {
                    failures += 1;
                    self.clock.sleep(backoff::delay(failures)).await;
                }
                result => return result,
            }
        }
    }
}

/// Every caller's part of the answer. A completion is told to one of them: the last that ended an item of the tally.
fn share(acks: &[Ack], lengths: &[usize], acked: AckedItems) -> Vec<AckedItems> {
    let mut results = acked.results.into_iter();
    let mut answers: Vec<AckedItems> = Vec::with_capacity(lengths.len());
    for length in lengths {
        let results = results.by_ref().take(*length).collect();
        answers.push(AckedItems { results, news: acked.news.clone(), ..AckedItems::default() });
    }
    let owners: Vec<usize> = lengths
        .iter()
        .enumerate()
        .flat_map(|(caller, length)| std::iter::repeat_n(caller, *length))
        .collect();
    let ended: Vec<bool> = answers
        .iter()
        .flat_map(|answer| &answer.results)
        .map(|counts| counts.iter().any(|c| c.acked > 0))
        .collect();
    for completed in acked.completed {
        let of_it = |at: &usize| acks[*at].tally == completed.id;
        let last = (0..acks.len()).filter(of_it).max_by_key(|at| (ended[*at], *at));
        if let Some(at) = last {
            answers[owners[at]].completed.push(completed);
        }
    }
    answers
}

fn closed() -> Error {
    Error::unavailable(
        "the ack was not carried out",
        "this Tramline is closed or its runtime is shutting down",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::TallyId;
    use crate::model::tally::Ending;
    use crate::store::sqlite::SqliteStore;
    use crate::store::verbs_tally::CompletedTally;
    use crate::wake::in_process::InProcess;
    use futures_util::FutureExt;

    async fn acker() -> Acker {
        let store: Arc<dyn Store> = Arc::new(SqliteStore::in_memory().await.unwrap());
        let courier = Courier::new(store.clone(), Clock::store(), Arc::new(InProcess::new()));
        Acker::new(store, Clock::store(), courier)
    }

    /// A handle that was dropped left its store open until the process ended.
    #[tokio::test]
    async fn a_group_that_is_written_keeps_nothing_alive() {
        let acker = acker().await;
        acker.ack(vec![ack(1, &[(0, 0)])]).await.unwrap();
        let left = Arc::downgrade(&acker.inner);
        drop(acker);
        assert_eq!(left.strong_count(), 0);
    }

    /// It drops the task where it is to be started, by whoever had the lock then, and waited for himself.
    #[test]
    fn a_runtime_that_is_over_refuses_a_group_and_nobody_waits() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let acker = runtime.block_on(acker());
        let handle = runtime.handle().clone();
        drop(runtime);
        let _entered = handle.enter();
        assert!(acker.ack(vec![ack(1, &[(0, 0)])]).now_or_never().is_none());
        assert!(!acker.inner.queue().is_flushing);
    }

    fn ack(tally: i64, items: &[(u64, u64)]) -> Ack {
        let items = items.iter().map(|(first, last)| Items { first: *first, last: *last }).collect();
        Ack { tally: TallyId(tally), items, ending: Ending::Done }
    }

    #[test]
    fn a_great_range_is_cut_into_groups_without_losing_a_number() {
        let acks = [ack(1, &[(5, 20_000_000), (7, 7)]), ack(2, &[(0, 1)])];
        let pieces = cut(&acks);
        assert!(pieces.len() > 4 && pieces.iter().all(|piece| piece.size.fits()));
        let mut next = 5;
        for (place, piece) in pieces.iter().flat_map(|piece| &piece.entries) {
            if *place == (0, 0) {
                assert_eq!(piece.items[0].first, next);
                next = piece.items[0].last + 1;
            }
        }
        assert_eq!(next, 20_000_001);
    }

    #[test]
    fn ranges_that_cannot_be_are_refused() {
        assert!(check(&[ack(1, &[(5, 4)])]).is_err());
        assert!(check(&[ack(1, &[(0, u64::MAX)])]).is_err());
        assert_eq!(check(&[ack(1, &[(0, 1 << 40)])]).unwrap_err().kind(), Kind::TooLarge);
    }

    #[test]
    fn a_completion_is_told_to_the_last_caller_who_ended_an_item() {
        let acks = [ack(1, &[(0, 0)]), ack(2, &[(0, 0)]), ack(1, &[(1, 1)]), ack(1, &[(1, 1)])];
        let count = |acked| vec![AckCount { acked, already: 1 - acked, ..AckCount::default() }];
        let completed = CompletedTally { id: TallyId(1), user_key: None };
        let results = vec![count(1), count(1), count(1), count(0)];
        let acked = AckedItems { results, completed: vec![completed], news: vec![] };
        let answers = share(&acks, &[1, 1, 1, 1], acked);
        let told: Vec<usize> = answers.iter().map(|answer| answer.completed.len()).collect();
        assert_eq!(told, [0, 0, 1, 0]);
    }
}
