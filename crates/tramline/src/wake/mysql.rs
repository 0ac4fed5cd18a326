//! Hints between processes that share a MySQL or MariaDB database, which cannot call anybody: each feels its pulse while it waits.

use crate::model::id::SubscriptionId;
use crate::store::mysql::MysqlStore;
use crate::wake::{Audience, Bells, Listener, Wake};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How soon the pulse is felt again after it changed: where something happens, more will.
const SOON: Duration = Duration::from_millis(1);
/// How late at the latest: five looks per second cost a node about a thousandth of a core.
const LATE: Duration = Duration::from_millis(200);
/// How late where hints travel another way, and only the inbox is to be looked at: as often as anybody looks who waits.
const SLOW_POLL: Duration = Duration::from_secs(1);
/// A look that takes long says that the server is busy, and not with looks: it is asked for a tenth of the time at most.
const BREATH: u32 = 9;

/// Watches the last chunk, the last change of a rule and the version of the catalogue, and empties the inbox. What exactly changed is not known, so all bells
/// ring: a claim that finds nothing is cheap. What changes nothing of these (an emit that commits after a later one, a
/// replay) is found by the slow poll of those who wait.
#[derive(Debug)]
pub struct Pulse {
    bells: Arc<Bells>,
    watcher: JoinHandle<()>,
}

impl Pulse {
    /// Watches the database of a store. Needs a Tokio runtime.
    pub fn new(store: Arc<MysqlStore>) -> Pulse {
        let bells = Arc::new(Bells::default());
        let watcher = tokio::spawn(watch(store, bells.clone()));
        Pulse { bells, watcher }
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

impl Wake for Pulse {
    /// Only this process is told: the others feel the pulse.
    fn notify(&self, subscriptions: &[SubscriptionId]) {
        self.bells.ring(subscriptions);
    }

    fn listen(&self, to: SubscriptionId) -> Listener {
        self.bells.listen(to)
    }

    fn listen_to_all(&self) -> Listener {
        self.bells.listen_to_all()
    }
}

/// Another way for hints, on a store whose inbox is emptied all the same: those who insert into it tell nobody.
#[derive(Debug)]
pub(crate) struct WithInbox {
    wake: Arc<dyn Wake>,
    watcher: JoinHandle<()>,
}

impl WithInbox {
    /// Needs a Tokio runtime.
    pub(crate) fn new(store: Arc<MysqlStore>, wake: Arc<dyn Wake>) -> WithInbox {
        let watcher = tokio::spawn(empty_inbox(store, wake.clone()));
        WithInbox { wake, watcher }
    }
}

impl Drop for WithInbox {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

impl Wake for WithInbox {
    fn notify(&self, subscriptions: &[SubscriptionId]) {
        self.wake.notify(subscriptions);
    }

    fn listen(&self, to: SubscriptionId) -> Listener {
        self.wake.listen(to)
    }

    fn listen_to_all(&self) -> Listener {
        self.wake.listen_to_all()
    }
}

/// Looks once in a while, and tells whom it concerns. Where there was something, more may be.
async fn empty_inbox(store: Arc<MysqlStore>, wake: Arc<dyn Wake>) {
    let audience = wake.listen_to_all().audience.clone();
    loop {
        audience.somebody().await;
        let start = Instant::now();
        let woken = match store.pulse().await {
            Ok((_, true)) => store.take_in().await.unwrap_or_default(),
            // An error is met, and said, by the sweep.
            _ => BTreeSet::new(),
        };
        let pause = if woken.is_empty() { SLOW_POLL } else { (start.elapsed() * BREATH).clamp(SOON, LATE) };
        if !woken.is_empty() {
            wake.notify(&woken.into_iter().collect::<Vec<_>>());
        }
        tokio::time::sleep(pause).await;
    }
}

async fn watch(store: Arc<MysqlStore>, bells: Arc<Bells>) {
    let audience: Arc<Audience> = bells.audience();
    let (mut felt, mut pause) = (None, SOON);
    loop {
        audience.somebody().await;
        let start = Instant::now();
        match store.pulse().await {
            // What is emitted from the inbox is felt at the next look, and rings there.
            Ok((_, true)) if store.take_in().await.is_ok_and(|woken| !woken.is_empty()) => pause = SOON,
            Ok((pulse, _)) if felt == Some(pulse) => pause = next(pause),
            Ok((pulse, _)) => {
                (felt, pause) = (Some(pulse), SOON);
                bells.ring_all();
            }
            // Whoever waits meets the error by himself.
            Err(_) => pause = LATE,
        }
        tokio::time::sleep(pause.max((start.elapsed() * BREATH).min(LATE))).await;
    }
}

fn next(pause: Duration) -> Duration {
    (pause * 3 / 2).min(LATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_database_is_looked_at_less_and_less_often() {
        let pauses: Vec<Duration> =
            std::iter::successors(Some(SOON), |pause| Some(next(*pause))).take(20).collect();
        let busy: Duration = pauses.iter().filter(|pause| **pause < LATE).sum();
        assert!(busy < 3 * LATE, "a quiet one is left alone after {busy:?}");
        assert!(pauses.is_sorted());
        assert_eq!(pauses.last(), Some(&LATE));
    }
}
