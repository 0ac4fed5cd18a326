//! Wakes: hints that there is work. They may be lost, repeated or reordered without harm, because everybody who waits for
//! one also looks by himself once in a while.
//!
//! - [`in_process`]: between the workers and emitters of one process
//! - [`relay`]: between processes, over a channel of a server: `postgres` (LISTEN and NOTIFY), `redis` (pub/sub) or `nats`
//! - [`mysql`]: between processes, by looking at what was written last
//! - [`sqlite`]: between processes that share a file, by watching it
//! - [`address`]: which of them, by a URL

pub mod address;
pub mod in_process;
pub mod mysql;
mod nats;
mod postgres;
mod redis;
pub mod relay;
pub mod sqlite;

use crate::model::id::SubscriptionId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, watch};

/// Carries hints between those who make work and those who wait for it.
pub trait Wake: Send + Sync + std::fmt::Debug {
    /// Says that these subscriptions may have work, and that something may have been emitted. Never blocks.
    fn notify(&self, subscriptions: &[SubscriptionId]);
    /// Listens for work of one subscription.
    fn listen(&self, to: SubscriptionId) -> Listener;
    /// Listens for anything at all.
    fn listen_to_all(&self) -> Listener;
}

/// Hears hints. It cannot miss one: *arm* it, look for work, then *wait*; a hint that came since arming ends the wait at once.
/// Many hints are heard as one.
#[derive(Debug)]
pub struct Listener {
    bell: watch::Receiver<()>,
    audience: Arc<Audience>,
}

impl Listener {
    /// Forgets the hints that came so far.
    pub fn arm(&mut self) {
        self.bell.borrow_and_update();
    }

    /// Waits for a hint since arming. Cancel-safe.
    pub async fn wait(&mut self) {
        let _waiting = self.audience.enter();
        if self.bell.changed().await.is_err() {
            // Nobody can ring any more; whoever waits still has his slow poll.
            std::future::pending::<()>().await;
        }
    }
}

/// The bells of one process: one per subscription that somebody listens to, and one for everything.
#[derive(Debug, Default)]
pub(crate) struct Bells {
    bells: Mutex<HashMap<SubscriptionId, watch::Sender<()>>>,
    all: watch::Sender<()>,
    audience: Arc<Audience>,
}

impl Bells {
    pub(crate) fn listen(&self, to: SubscriptionId) -> Listener {
        let mut bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.retain(|_, bell| bell.receiver_count() > 0);
        let bell = bells.entry(to).or_default().subscribe();
        Listener { bell, audience: self.audience.clone() }
    }

    pub(crate) fn listen_to_all(&self) -> Listener {
        Listener { bell: self.all.subscribe(), audience: self.audience.clone() }
    }

    pub(crate) fn are_heard(&self, subscriptions: &[SubscriptionId]) -> bool {
        let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        subscriptions.iter().filter_map(|id| bells.get(id)).any(|bell| bell.receiver_count() > 0)
    }

    pub(crate) fn ring(&self, subscriptions: &[SubscriptionId]) {
        self.all.send_replace(());
        let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        for bell in subscriptions.iter().filter_map(|subscription| bells.get(subscription)) {
            bell.send_replace(());
        }
    }

    /// Something happened, and nobody knows what.
    pub(crate) fn ring_all(&self) {
        self.all.send_replace(());
        for bell in self.bells.lock().unwrap_or_else(PoisonError::into_inner).values() {
            bell.send_replace(());
        }
    }

    pub(crate) fn audience(&self) -> Arc<Audience> {
        self.audience.clone()
    }
}

/// How many wait, so that watching costs nothing while nobody does.
#[derive(Debug, Default)]
pub(crate) struct Audience {
    waiting: AtomicUsize,
    arrived: Notify,
}

impl Audience {
    fn enter(self: &Arc<Self>) -> Seat {
        if self.waiting.fetch_add(1, Ordering::SeqCst) == 0 {
            self.arrived.notify_waiters();
        }
        Seat(self.clone())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }

    /// Waits until somebody waits. An arrival counts from when `notified` is called, so that one between look and wait is not missed.
    /// Several may watch for the same audience.
    pub(crate) async fn somebody(&self) {
        loop {
            let arrived = self.arrived.notified();
            if !self.is_empty() {
                return;
            }
            arrived.await;
        }
    }
}

struct Seat(Arc<Audience>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_hint_between_looking_and_waiting_is_not_lost_and_many_are_one() {
        let bells = Bells::default();
        let mut listener = bells.listen(SubscriptionId(1));
        listener.arm();
        bells.ring(&[SubscriptionId(1)]);
        bells.ring(&[SubscriptionId(1), SubscriptionId(2)]);
        assert!(listener.wait().now_or_never().is_some());
        assert!(listener.wait().now_or_never().is_none());
        bells.ring(&[SubscriptionId(2)]);
        assert!(listener.wait().now_or_never().is_none());
    }

    #[tokio::test]
    async fn everybody_who_watches_for_an_audience_is_told_of_it() {
        let bells = Arc::new(Bells::default());
        let watches: Vec<_> = (0..2)
            .map(|_| {
                let audience = bells.audience();
                tokio::spawn(async move { audience.somebody().await })
            })
            .collect();
        tokio::task::yield_now().await;
        let mut listener = bells.listen_to_all();
        let waiting = tokio::spawn(async move { listener.wait().await });
        for watch in watches {
            watch.await.unwrap();
        }
        waiting.abort();
    }

    #[test]
    fn who_listens_to_all_hears_even_what_nobody_subscribed_to() {
        let bells = Bells::default();
        let mut listener = bells.listen_to_all();
        listener.arm();
        bells.ring(&[]);
        assert!(listener.wait().now_or_never().is_some());
    }
}
