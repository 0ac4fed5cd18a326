//! Hints between processes over any channel that carries short texts: what PostgreSQL, Redis and NATS have in common.
//!
//! A hint follows its commit, and while one is being sent the next ones gather into one. A process in which nobody listens needs no
//! connection to listen by. Where the channel is gone, hints stay in the process and whoever waits polls slowly, until it is back.

use crate::engine::backoff::delay;
use crate::model::id::{Incarnation, SubscriptionId};
use crate::wake::{Bells, Listener, Wake};
use async_trait::async_trait;
use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// The least time between two hints of a process while they keep coming: a busy emitter sends 200 a second and not thousands. A lone
/// one goes at once.
const PAUSE: Duration = Duration::from_millis(5);
/// How many ids one hint carries: a NOTIFY may have 8,000 bytes.
const IDS: usize = 350;
/// How many hints are known to have come.
const RECENT: usize = 256;
/// How long a connection or a hint may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a channel does not work.
pub(super) type Broken = Box<dyn std::error::Error + Send + Sync>;

/// A channel on some server.
#[async_trait]
pub(super) trait Channel: Send + Sync + std::fmt::Debug {
    /// Connects, to hear what is said from now on.
    async fn ear(&self) -> Result<Box<dyn Ear>, Broken>;
    /// Connects, to say something.
    async fn mouth(&self) -> Result<Box<dyn Mouth>, Broken>;
}

/// A connection by which hints are heard.
#[async_trait]
pub(super) trait Ear: Send {
    /// The next hint; an error when the connection is lost. Cancel-safe.
    async fn hear(&mut self) -> Result<String, Broken>;
}

/// A connection by which hints are said.
#[async_trait]
pub(super) trait Mouth: Send {
    /// Says a hint. It may be lost on its way.
    async fn say(&mut self, hint: &str) -> Result<(), Broken>;
}

/// Hints over a channel of a server. What can carry it: see [`Relay::postgres`], [`Relay::redis`] and [`Relay::nats`].
#[derive(Debug)]
pub struct Relay {
    outbox: Arc<Outbox>,
    me: Incarnation,
    tasks: [JoinHandle<()>; 2],
}

/// What a store needs that says hints itself, together with what it writes: nobody waits for another trip then.
#[derive(Clone, Debug)]
pub(crate) struct Voice {
    outbox: Arc<Outbox>,
    me: Incarnation,
}

impl Voice {
    /// The hint for others, unless it needs several.
    pub(crate) fn hint(&self, ids: &[SubscriptionId]) -> Option<String> {
        (ids.len() <= IDS).then(|| hint(self.me, self.outbox.number(), ids))
    }

    /// True if somebody in this process listens to one of them.
    pub(crate) fn is_heard(&self, ids: &[SubscriptionId]) -> bool {
        self.outbox.bells.are_heard(ids)
    }

    /// The same hint for this process, which does not listen to itself.
    pub(crate) fn ring(&self, ids: &[SubscriptionId]) {
        self.outbox.bells.ring(ids);
    }
}

#[derive(Debug, Default)]
struct Outbox {
    bells: Bells,
    pending: Mutex<Option<BTreeSet<SubscriptionId>>>,
    filled: Notify,
    said: AtomicU64,
}

impl Outbox {
    /// Every hint of a process has another one.
    fn number(&self) -> u64 {
        self.said.fetch_add(1, Ordering::Relaxed)
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, Option<BTreeSet<SubscriptionId>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Relay {
    /// Connects in the background, and again whenever the connection is lost. Needs a Tokio runtime.
    pub(super) fn new(channel: impl Channel + 'static) -> Relay {
        let (outbox, channel) = (Arc::new(Outbox::default()), Arc::new(channel));
        let me = Incarnation::random();
        let listen = tokio::spawn(listen(channel.clone(), me, outbox.clone()));
        let send = tokio::spawn(send(channel, me, outbox.clone()));
        Relay { outbox, me, tasks: [listen, send] }
    }

    /// For a store on the server of this channel.
    pub(crate) fn voice(&self) -> Voice {
        Voice { outbox: self.outbox.clone(), me: self.me }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Wake for Relay {
    fn notify(&self, subscriptions: &[SubscriptionId]) {
        self.outbox.bells.ring(subscriptions);
        self.outbox.pending().get_or_insert_default().extend(subscriptions);
        self.outbox.filled.notify_one();
    }

    fn listen(&self, to: SubscriptionId) -> Listener {
        self.outbox.bells.listen(to)
    }

    fn listen_to_all(&self) -> Listener {
        self.outbox.bells.listen_to_all()
    }
}

/// Rings the bells of this process for what the others say.
async fn listen(channel: Arc<dyn Channel>, me: Incarnation, outbox: Arc<Outbox>) {
    let mut failures = 0;
    outbox.bells.audience().somebody().await;
    loop {
        let Err(error) = hear(&*channel, me, &outbox, &mut failures).await;
        failures += 1;
        if failures == 1 {
            tracing::warn!(error = %error, "the wake-up connection is lost; polling every second until it is back");
        }
        tokio::time::sleep(delay(failures)).await;
    }
}

async fn hear(
    channel: &dyn Channel,
    me: Incarnation,
    outbox: &Outbox,
    failures: &mut u32,
) -> Result<std::convert::Infallible, Broken> {
    let mut ear = patiently(channel.ear()).await?;
    if *failures > 0 {
        tracing::info!(failures, "the wake-up connection is back");
    }
    *failures = 0;
    // What was said before this moment was not heard.
    outbox.bells.ring_all();
    let mut recent = Recent::default();
    loop {
        let (from, ids) = read(&ear.hear().await?);
        if from.is_none_or(|from| from.0 != me && recent.is_new(from)) {
            outbox.bells.ring(&ids);
        }
    }
}

/// Says what has gathered, one hint at a time.
async fn send(channel: Arc<dyn Channel>, me: Incarnation, outbox: Arc<Outbox>) {
    let mut mouth: Option<Box<dyn Mouth>> = None;
    let mut failures = 0;
    loop {
        outbox.filled.notified().await;
        let Some(ids) = outbox.pending().take() else { continue };
        match say(&*channel, &write(me, &outbox, &ids), &mut mouth).await {
            Ok(()) => {
                failures = 0;
                if outbox.pending().is_some() {
                    tokio::time::sleep(PAUSE).await;
                }
            }
            // A lost hint is repaired by the slow poll of whoever waits; trying again is for the hints to come.
            Err(error) => {
                tracing::debug!(error = %error, "a wake-up could not be sent");
                mouth = None;
                failures += 1;
                tokio::time::sleep(delay(failures)).await;
            }
        }
    }
}

async fn say(
    channel: &dyn Channel,
    hints: &[String],
    mouth: &mut Option<Box<dyn Mouth>>,
) -> Result<(), Broken> {
    let mouth = match mouth {
        Some(mouth) => mouth,
        None => mouth.insert(patiently(channel.mouth()).await?),
    };
    for hint in hints {
        patiently(mouth.say(hint)).await?;
    }
    Ok(())
}

/// A connection that is neither there nor lost is as good as lost.
async fn patiently<T>(future: impl Future<Output = Result<T, Broken>>) -> Result<T, Broken> {
    tokio::time::timeout(PATIENCE, future).await.map_err(|_| "no answer in time")?
}

/// Who says a hint, and which of his it is. Others may say hints that have no number.
type From = (Incarnation, u64);

/// The hints that came last: one that comes again would only make somebody look again. It was heard after what it tells of, and so
/// was its first copy.
#[derive(Debug, Default)]
struct Recent(VecDeque<From>);

impl Recent {
    fn is_new(&mut self, from: From) -> bool {
        let is_new = !self.0.contains(&from);
        if is_new {
            self.0.truncate(RECENT - 1);
            self.0.push_front(from);
        }
        is_new
    }
}

/// Who says it, which of his hints it is, and the subscriptions: `5f3a.7 1,2,9`.
fn hint(me: Incarnation, number: u64, ids: &[SubscriptionId]) -> String {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    format!("{:x}.{number:x} {}", me.0, ids.join(","))
}

/// As many hints as are needed for all subscriptions.
fn write(me: Incarnation, outbox: &Outbox, ids: &BTreeSet<SubscriptionId>) -> Vec<String> {
    let ids: Vec<SubscriptionId> = ids.iter().copied().collect();
    match ids.is_empty() {
        true => vec![hint(me, outbox.number(), &[])],
        false => ids.chunks(IDS).map(|ids| hint(me, outbox.number(), ids)).collect(),
    }
}

fn read(hint: &str) -> (Option<From>, Vec<SubscriptionId>) {
    let (from, ids) = hint.split_once(' ').unwrap_or(("", hint));
    let ids = ids.split(',').filter_map(|id| id.parse().ok()).map(SubscriptionId).collect();
    let from = from.split_once('.').and_then(|(who, number)| {
        let who = i64::from_str_radix(who, 16).ok().map(Incarnation)?;
        Some((who, u64::from_str_radix(number, 16).ok()?))
    });
    (from, ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_read_back_as_it_was_written_and_fits_into_a_notify() {
        let ids: BTreeSet<SubscriptionId> = (0..1_000).map(|n| SubscriptionId(i64::MAX - n)).collect();
        let (me, outbox) = (Incarnation(77), Outbox::default());
        let mut back = BTreeSet::new();
        for (number, hint) in (0..).zip(write(me, &outbox, &ids)) {
            assert!(hint.len() < 8_000);
            let (from, ids) = read(&hint);
            assert_eq!(from, Some((me, number)));
            back.extend(ids);
        }
        assert_eq!(back, ids);
        assert_eq!(read(&write(me, &outbox, &BTreeSet::new())[0]), (Some((me, 3)), vec![]));
    }

    #[test]
    fn a_hint_that_comes_again_is_known_for_a_while_whoever_else_speaks() {
        let mut recent = Recent::default();
        let from = |who: i64, number| (Incarnation(who), number);
        assert!(recent.is_new(from(1, 0)) && recent.is_new(from(2, 0)) && recent.is_new(from(1, 1)));
        assert!(!recent.is_new(from(1, 0)) && !recent.is_new(from(2, 0)));
        assert!((0..RECENT as u64).all(|number| recent.is_new(from(3, number))));
        assert_eq!(recent.0.len(), RECENT);
        assert!(recent.is_new(from(1, 0)));
    }

    #[test]
    fn nonsense_wakes_nobody_in_particular() {
        assert_eq!(read(""), (None, vec![]));
        assert_eq!(read("hello world, 1,x,2"), (None, vec![SubscriptionId(2)]));
        assert_eq!(read("x.y 1"), (None, vec![SubscriptionId(1)]));
    }
}
