//! Numbers that nobody else has: drawn many at a time, and the same for a step that is run again.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

/// Numbers that nobody else has.
#[derive(Debug)]
pub(in crate::store::redis) struct Numbers {
    drawn: Mutex<Drawn>,
    /// The least epoch of what is claimed from now on.
    epoch: AtomicI64,
    /// Grows when something goes wrong.
    breaks: Arc<AtomicU64>,
}

/// The next number, how many are left, and when they were drawn.
#[derive(Debug, Default)]
struct Drawn {
    next: i64,
    left: i64,
    breaks: u64,
}

impl Numbers {
    pub(in crate::store::redis) fn new(breaks: Arc<AtomicU64>) -> Numbers {
        Numbers { drawn: Mutex::default(), epoch: AtomicI64::default(), breaks }
    }

    pub(in crate::store::redis) fn breaks(&self) -> u64 {
        self.breaks.load(SeqCst)
    }

    pub(in crate::store::redis) fn epoch(&self) -> i64 {
        self.epoch.load(SeqCst)
    }

    pub(in crate::store::redis) fn begin_epoch(&self, epoch: i64) {
        // Of two who ask at once, one may have asked a server that is no longer the primary.
        self.epoch.fetch_max(epoch, SeqCst);
    }

    /// Takes some, and gives the first. None of before something went wrong: a server that has taken over may not know that they were
    /// drawn, and give them to somebody else.
    pub(in crate::store::redis) fn take(&self, count: i64) -> Option<i64> {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        if drawn.breaks != self.breaks() || drawn.left < count {
            return None;
        }
        let first = drawn.next;
        drawn.next += count;
        drawn.left -= count;
        Some(first)
    }

    /// Keeps what was drawn when so much had gone wrong.
    pub(in crate::store::redis) fn fill(&self, next: i64, left: i64, breaks: u64) {
        *self.drawn.lock().unwrap_or_else(PoisonError::into_inner) = Drawn { next, left, breaks };
    }
}

/// The numbers that a step has drawn. When it is run again it gets the same: what it reads may depend on them, and it has to come to
/// the same again, else it would never have read enough.
pub(in crate::store::redis) struct Draws<'a> {
    pub(super) numbers: &'a Numbers,
    /// How many were drawn each time, and the first of them.
    drawn: Mutex<Vec<(i64, i64)>>,
}

impl<'a> Draws<'a> {
    pub(in crate::store::redis) fn new(numbers: &'a Numbers) -> Draws<'a> {
        Draws { numbers, drawn: Mutex::default() }
    }

    pub(super) fn get(&self, at: usize, count: i64) -> Option<i64> {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, first)) = drawn.get(at).filter(|(before, _)| *before == count) {
            return Some(*first);
        }
        drawn.truncate(at);
        let first = self.numbers.take(count)?;
        drawn.push((count, first));
        Some(first)
    }
}
