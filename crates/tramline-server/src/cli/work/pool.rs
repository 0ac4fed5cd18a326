//! Takes events, runs their commands, and stops in good order. Never more in hand than can run.

use super::super::client::Client;
use super::super::failure::Failure;
use super::super::outage::Outage;
use super::super::value::millis;
use super::event::{Claim, Claimed, rows};
use super::hand::Hand;
use super::report::{Exhaustion, Report};
use super::{keep, row, settle};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tramline::ShellCommand;

/// How the pool works.
pub(super) struct Setup {
    pub(super) subscription: String,
    pub(super) worker: String,
    pub(super) concurrency: usize,
    /// Events of one key run one after the other.
    pub(super) ordered: bool,
    /// At most once: what was begun is final. It is extended, so that what runs is not called interrupted, but never given back.
    pub(super) consumed: bool,
    pub(super) lease: Duration,
    /// How long a command may run.
    pub(super) time_limit: Option<Duration>,
    /// What becomes of an event that fails for the last time.
    pub(super) exhaustion: Exhaustion,
    pub(super) grace: Duration,
    pub(super) drain: bool,
}

/// What all tasks of a worker share.
pub(super) struct Pool {
    client: Client,
    pub(super) setup: Setup,
    pub(super) command: ShellCommand,
    pub(super) report: Report,
    /// Whether the server answers, for those who wait for it.
    pub(super) outage: Outage,
    hand: Mutex<Hand>,
    /// Something has left the hand.
    freed: Notify,
    /// Take nothing more.
    pub(super) stopping: CancellationToken,
    /// Stop what runs.
    pub(super) killing: CancellationToken,
}

/// How long a claim waits for events.
const WAIT: Duration = Duration::from_secs(20);
/// How often it is asked at most while there is nothing.
const SLOWLY: Duration = Duration::from_secs(1);
/// What an answer takes beside that.
const ANSWER: Duration = Duration::from_secs(30);
/// An answer that is on its way when the pool stops arrives within this. A server whose answer nobody takes gives the events back
/// by itself.
const UNDER_WAY: Duration = Duration::from_millis(250);

/// Works until told to stop, or until a failure that time does not heal.
pub(super) async fn run(pool: &Arc<Pool>) -> Result<(), Failure> {
    let (ended, to_settle) = mpsc::channel(pool.setup.concurrency);
    let settler = tokio::spawn(settle::run(pool.clone(), to_settle));
    let keeper = tokio::spawn(keep::run(pool.clone()));
    let mut running = JoinSet::new();
    let result = take(pool, &mut running, &ended).await;
    pool.stopping.cancel();
    let finished = async { while running.join_next().await.is_some() {} };
    tokio::select! {
        () = finished => {}
        () = tokio::time::sleep(pool.setup.grace) => {}
        () = pool.killing.cancelled() => {}
    }
    pool.killing.cancel();
    while running.join_next().await.is_some() {}
    drop(ended);
    let _ = settler.await;
    keeper.abort();
    result
}

/// Takes as much as can run at once, again and again.
async fn take(pool: &Arc<Pool>, running: &mut JoinSet<()>, ended: &settle::To) -> Result<(), Failure> {
    let mut outage = pool.outage.clone();
    while !pool.stopping.is_cancelled() {
        while running.try_join_next().is_some() {}
        let in_hand = pool.hand().events();
        if in_hand >= pool.setup.concurrency {
            pool.something_freed().await;
            continue;
        }
        let asked_at = Instant::now();
        match pool.claim(pool.setup.concurrency - in_hand).await {
            Ok(rows) if rows.is_empty() && pool.setup.drain => {
                if in_hand == 0 {
                    break;
                }
                pool.something_freed().await;
            }
            Ok(rows) if rows.is_empty() => {
                outage.over();
                pool.patience(asked_at).await;
            }
            Ok(rows) => {
                outage.over();
                for row in rows {
                    running.spawn(row::run(pool.clone(), row, ended.clone()));
                }
            }
            Err(failure) => tokio::select! {
                waited = outage.wait(failure) => waited?,
                () = pool.stopping.cancelled() => break,
            },
        }
    }
    Ok(())
}

impl Pool {
    pub(super) fn new(client: Client, setup: Setup, command: ShellCommand, report: Report) -> Pool {
        Pool {
            client,
            setup,
            command,
            report,
            outage: Outage::default(),
            hand: Mutex::default(),
            freed: Notify::new(),
            stopping: CancellationToken::new(),
            killing: CancellationToken::new(),
        }
    }

    /// What is in hand. Held for moments only.
    pub(super) fn hand(&self) -> MutexGuard<'_, Hand> {
        self.hand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the server about this subscription.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        verb: &str,
        body: &Value,
        limit: Duration,
    ) -> Result<T, Failure> {
        let path = ["v1", "subscriptions", &self.setup.subscription, verb];
        self.client.post_within(&path, body, limit).await
    }

    /// Takes up to `most` events and puts them into the hand, in rows. When the pool is told to stop while an answer is on its way,
    /// its events are given back.
    async fn claim(&self, most: usize) -> Result<Vec<row::Row>, Failure> {
        let wait = if self.setup.drain { Duration::ZERO } else { WAIT };
        let body = json!({"worker": self.setup.worker, "max_events": most, "wait_ms": millis(wait),
            "lease_ms": millis(self.setup.lease)});
        // Started before the claim: the lease cannot have begun earlier.
        let asked_at = Instant::now();
        let claim = async {
            let asking = self.ask::<Claim>("claim", &body, wait + ANSWER);
            let mut asking = std::pin::pin!(asking);
            tokio::select! {
                answer = &mut asking => answer,
                () = self.stopping.cancelled() => {
                    tokio::time::timeout(UNDER_WAY, asking).await.unwrap_or(Ok(Claim::default()))
                }
            }
        };
        Ok(self.hold(claim.await?.events, asked_at + self.setup.lease))
    }

    fn hold(&self, events: Vec<Claimed>, until: Instant) -> Vec<row::Row> {
        let mut hand = self.hand();
        let mut hold = |event: Claimed| {
            let stop = hand.take(&event.lease, until, &self.killing);
            (event, stop)
        };
        let rows = rows(events, self.setup.ordered).into_iter();
        rows.map(|row| row.into_iter().map(&mut hold).collect()).collect()
    }

    /// An event leaves the hand without an outcome.
    pub(super) async fn leave(&self, lease: &str) {
        let release = self.hand().leave(lease);
        self.freed(release).await;
    }

    /// An event leaves the hand with an outcome, which the server has taken or not.
    pub(super) async fn ended(&self, lease: &str, taken: bool) {
        if self.setup.consumed && !taken {
            self.hand().spent(lease);
            return self.freed.notify_one();
        }
        let release = self.hand().settled(lease);
        self.freed(release).await;
    }

    async fn freed(&self, release: Option<String>) {
        if let Some(lease) = release {
            // Best effort: the lease ends by itself if this fails.
            if let Err(failure) = self.ask::<Value>("release", &json!({"leases": [lease]}), ANSWER).await {
                tracing::debug!(error = %failure, "a lease could not be given back");
            }
        }
        self.freed.notify_one();
    }

    /// A server that has too many waiting answers at once that there is nothing; it is not asked again and again.
    async fn patience(&self, asked_at: Instant) {
        tokio::select! {
            () = tokio::time::sleep_until((asked_at + SLOWLY).into()) => {}
            () = self.stopping.cancelled() => {}
        }
    }

    async fn something_freed(&self) {
        tokio::select! {
            () = self.freed.notified() => {}
            () = self.stopping.cancelled() => {}
        }
    }
}
