//! Push: sends the events of push subscriptions to their callbacks.
//!
//! - `standing`: what is known of a subscription: its policy, its health, its opened secrets
//! - `line`: one subscription: waits for a batch, claims it, has it sent
//! - `gather`: when a batch goes; `share`: how many requests one subscription has under way
//! - `batch`: claimed events, cut into batches; `hand`: those that wait to be sent
//! - `sender`: sends one batch after the other; `send`: one request, and the handshake before the first
//! - `control`: steering and looking, for users
//! - `scribe`: writes outcomes and attempts back, many at once

mod batch;
mod control;
mod gather;
mod hand;
mod line;
mod scribe;
mod send;
mod sender;
mod share;
mod standing;

pub use control::Replayed;
pub use standing::{authorization_purpose, check_secrets, secret_purpose, user_purpose};

use crate::engine::backoff::Outage;
use crate::engine::shutdown::Shutdown;
use crate::engine::tramline::Tramline;
use crate::error::Result;
use crate::model::event::Event;
use crate::model::health::{Attempt, Disabled, Health};
use crate::model::id::SubscriptionId;
use crate::model::subscription::Subscription;
use crate::push::{Client, Keyring};
use crate::store::verbs::{PushEntry, Steer, SteerPush};
use line::Line;
use scribe::Scribe;
use standing::Standing;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How often every node looks at all push subscriptions: finds new ones, learns how others fared, repairs lost hints.
const LOOK: Duration = Duration::from_secs(1);

/// The topic on which Tramline says what became of push subscriptions.
pub const NOTICES: &str = "tramline.push";
/// The type of the event that says that a subscription was disabled.
pub const DISABLED: &str = "subscription.disabled";

/// Sends the events of all push subscriptions of a store. Any number of nodes may do so; a batch has one sender at a time.
#[derive(Debug)]
pub struct Pusher {
    shared: Arc<Shared>,
}

/// What all lines share.
#[derive(Debug)]
struct Shared {
    tram: Tramline,
    client: Client,
    keyring: Keyring,
    /// Room for requests, over all subscriptions, and how much that is.
    requests: Arc<Semaphore>,
    all_requests: usize,
    /// Good news is written down by one line at a time.
    recording: Mutex<()>,
    watch: Watch,
}

/// Is told of every request that has ended.
#[derive(Default)]
struct Watch(Option<Box<Told>>);

type Told = dyn Fn(&Subscription, &Attempt) + Send + Sync;

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watch({})", self.0.is_some())
    }
}

/// What each line had learned by itself when the board was asked for.
type Seen = HashMap<SubscriptionId, u64>;

/// A line that runs.
struct Running {
    standing: Arc<watch::Sender<Standing>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Tramline {
    /// What sends to callbacks, by this client. `keyring` opens the secrets of subscriptions; `requests` is how many may be under
    /// way at once.
    pub fn pusher(&self, client: Client, keyring: Keyring, requests: usize) -> Pusher {
        let all_requests = requests.clamp(1, Semaphore::MAX_PERMITS);
        let (requests, recording) = (Arc::new(Semaphore::new(all_requests)), Mutex::default());
        let (tram, watch) = (self.clone(), Watch::default());
        let shared = Shared { tram, client, keyring, requests, all_requests, recording, watch };
        Pusher { shared: Arc::new(shared) }
    }
}

impl Pusher {
    /// Has `told` called after each request, with what came of it.
    #[must_use]
    pub fn watch(mut self, told: impl Fn(&Subscription, &Attempt) + Send + Sync + 'static) -> Pusher {
        // Nobody else has it before it runs.
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.watch = Watch(Some(Box::new(told)));
        }
        self
    }

    /// Sends until the shutdown starts; then requests that are under way may finish within its grace. What could not be written back
    /// by then is sent again by somebody when its lease ends.
    pub async fn run(self, shutdown: Shutdown) {
        let mut lines: HashMap<SubscriptionId, Running> = HashMap::new();
        let mut outage = Outage::new("looking for push subscriptions");
        // Whoever drops this future stops the lines as well.
        let stop = CancellationToken::new();
        let _dropped = stop.clone().drop_guard();
        let (tram, clock) = (&self.shared.tram, self.shared.tram.clock());
        while !shutdown.is_started() {
            let seen: Seen = lines.iter().map(|(id, line)| (*id, line.standing.borrow().learned)).collect();
            match tram.store().push_board(clock.now()).await {
                Ok(board) => {
                    outage.over();
                    for entry in board.iter().filter(|entry| entry.health.is_untold) {
                        self.shared.tell_disabled(entry).await;
                    }
                    self.follow(&mut lines, board, &seen, &stop, shutdown.grace());
                }
                Err(error) => outage.wait(clock, &error).await,
            }
            tokio::select! {
                () = shutdown.started() => {}
                () = tram.pushes().notified() => {}
                () = clock.sleep(LOOK) => {}
            }
        }
        // All are told before one is waited for: else those at the end would go on sending, and the grace of each would add up.
        stop.cancel();
        for line in lines.into_values() {
            let _ = line.task.await;
        }
    }

    /// Starts lines of new subscriptions, ends those of deleted ones, and tells the others how they stand.
    fn follow(
        &self,
        lines: &mut HashMap<SubscriptionId, Running>,
        board: Vec<PushEntry>,
        seen: &Seen,
        stop: &CancellationToken,
        grace: Duration,
    ) {
        lines.retain(|id, line| {
            let goes_on = board.iter().any(|entry| entry.subscription.id == *id) && !line.task.is_finished();
            if !goes_on {
                line.stop.cancel();
            }
            goes_on
        });
        for entry in board {
            let id = entry.subscription.id;
            let due = entry.due;
            let known = lines.get(&id).map(|line| line.standing.borrow().clone());
            let standing = Standing::new(entry, known.as_ref(), &self.shared);
            match lines.get(&id) {
                Some(line) => standing.tell(due, seen.get(&id).copied().unwrap_or_default(), &line.standing),
                None => {
                    lines.insert(id, self.start(standing, stop.child_token(), grace));
                }
            }
        }
    }

    fn start(&self, standing: Standing, stop: CancellationToken, grace: Duration) -> Running {
        let standing = Arc::new(watch::Sender::new(standing));
        let scribe = Arc::new(Scribe::new(self.shared.clone(), standing.clone()));
        let line = Line::new(self.shared.clone(), standing.subscribe(), scribe);
        let task = tokio::spawn(line.run(stop.clone(), grace));
        Running { standing, stop, task }
    }
}

impl Shared {
    /// Says that a subscription was disabled. Whoever fails to say so, or to write down that it was said, leaves it to the next look at
    /// the board, by whichever node. All of them say it under one key, so nobody is told twice.
    async fn tell_disabled(&self, entry: &PushEntry) {
        let PushEntry { subscription, health, .. } = entry;
        let Some(disabled) = &health.disabled else { return };
        let told = match Shared::notice(subscription, health, disabled) {
            Ok(event) => self.tram.emit(event).await.map(|_| ()),
            Err(error) => Err(error),
        };
        if let Err(error) = told {
            tracing::debug!(error = %error, "that a push subscription was disabled is told later");
            return;
        }
        tracing::warn!(
            subscription = &*subscription.name,
            reason = disabled.reason,
            "a push subscription was disabled"
        );
        let (steer, by) = (Steer::Told { at: disabled.at }, self.tram.presence().name.to_string());
        let steer = SteerPush { subscription: subscription.id, steer, by, now: self.tram.clock().now() };
        if let Err(error) = self.tram.store().steer_push(steer).await {
            tracing::debug!(error = %error, "that a push subscription was disabled is told once more");
        }
    }

    fn notice(subscription: &Subscription, health: &Health, disabled: &Disabled) -> Result<Event> {
        let payload = serde_json::json!({
            "subscription": &*subscription.name,
            "reason": disabled.reason,
            "disabled_at_ms": disabled.at.0,
            "failing_since_ms": health.failing_since.map(|since| since.0),
        });
        Ok(Event::json(NOTICES, &payload)?
            .kind(DISABLED)
            .key(&*subscription.name)
            .idempotency_key(format!("disabled:{}:{}", subscription.id, disabled.at.0)))
    }
}
