//! A pool: handlers of several workers of a process share a number of places.

use crate::engine::shares::{MemberId, Shares};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Places for handlers that several workers of one process share, by weight: see [`Worker::pool`](crate::Worker::pool).
///
/// At most as many handlers run at once as there are places. While all workers have something to do, events start in the proportion of their
/// weights, and none starves; what a worker does not need goes to the others. It is events that are shared, not time: whose handlers take long
/// has more of them running.
#[derive(Clone, Debug)]
pub struct Pool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    shares: Shares,
    waiting: HashMap<MemberId, VecDeque<oneshot::Sender<Place>>>,
}

impl Pool {
    /// So many places, at least one.
    pub fn new(places: usize) -> Pool {
        let state = State { shares: Shares::new(places.max(1)), waiting: HashMap::new() };
        Pool { inner: Arc::new(Inner { state: Mutex::new(state) }) }
    }

    /// A worker that takes part.
    pub(crate) fn join(&self, weight: u32) -> Seat {
        let member = self.inner.state().shares.join(weight);
        Seat { pool: self.inner.clone(), member }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives free places to those who wait.
    fn hand_out(self: &Arc<Self>) {
        // What nobody is there to take is given back after the lock: that takes it again.
        let mut untaken = Vec::new();
        let mut state = self.state();
        while let Some(member) = state.shares.grant() {
            let Some(next) = state.waiting.get_mut(&member).and_then(VecDeque::pop_front) else {
                state.shares.end();
                continue;
            };
            let place = Place { pool: self.clone(), member, used: false };
            untaken.extend(next.send(place).err());
        }
        drop(state);
        drop(untaken);
    }
}

/// The part of a worker in a pool.
#[derive(Debug)]
pub(crate) struct Seat {
    pool: Arc<Inner>,
    member: MemberId,
}

impl Seat {
    /// Waits for a place. Cancel-safe.
    pub(crate) async fn place(&self) -> Place {
        loop {
            let (give, given) = oneshot::channel();
            {
                let mut state = self.pool.state();
                state.shares.want(self.member);
                state.waiting.entry(self.member).or_default().push_back(give);
            }
            self.pool.hand_out();
            if let Ok(place) = given.await {
                return place;
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        state.shares.leave(self.member);
        let waiting = state.waiting.remove(&self.member);
        drop(state);
        drop(waiting);
    }
}

/// A place for one handler, free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    pool: Arc<Inner>,
    member: MemberId,
    used: bool,
}

impl Place {
    /// So many events start in it.
    pub(crate) fn start(&mut self, events: usize) {
        self.used = true;
        if events > 1 {
            self.pool.state().shares.charge(self.member, events - 1);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        {
            let mut state = self.pool.state();
            if !self.used {
                state.shares.refund(self.member);
            }
            state.shares.end();
        }
        self.pool.hand_out();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn whoever_gives_up_waiting_leaves_its_place_to_others() {
        let pool = Pool::new(1);
        let (one, other) = (pool.join(1), pool.join(1));
        let place = one.place().now_or_never().unwrap();
        assert!(one.place().now_or_never().is_none(), "it gives up at once");
        let mut waiting = Box::pin(other.place());
        assert!((&mut waiting).now_or_never().is_none());
        drop(place);
        assert!(waiting.now_or_never().is_some());
    }

    #[test]
    fn whoever_leaves_takes_no_place_with_it() {
        let pool = Pool::new(1);
        let (one, other) = (pool.join(1), pool.join(1));
        let place = one.place().now_or_never().unwrap();
        drop(one);
        assert!(other.place().now_or_never().is_none());
        drop(place);
        assert!(other.place().now_or_never().is_some());
    }
}
