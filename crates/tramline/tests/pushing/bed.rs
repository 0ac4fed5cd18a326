//! The words in which the tests are written.

pub(crate) use crate::receiver::{LONG, Receiver, Request};
use crate::stores::Fresh;
pub(crate) use crate::stores::Place;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tramline::push::{Client, Guard, Keyring, Settings};
use tramline::{
    Clock, Counts, Event, Health, ManualClock, NoHooks, Options, Ordering, Policy, Push, Shutdown, Start,
    Time, Tramline,
};

/// The topic and the subscription that show that a node has gone round.
const BESIDE: &str = "beside";
pub(crate) const START: Time = Time(1_893_456_000_000);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Runs a test on every store.
#[macro_export]
macro_rules! on_every_store {
    ($($(#[$doc:meta])* async fn $name:ident($bed:ident: Bed) $body:block)*) => {$(
        mod $name {
            use super::*;
            $(#[$doc])*
            async fn test($bed: Bed) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                test(Bed::open(Place::SqliteMemory).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                test(Bed::open(Place::Postgres).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn mysql() {
                test(Bed::open(Place::Mysql).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redis() {
                test(Bed::open(Place::Redis).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redis_cluster() {
                test(Bed::open(Place::RedisCluster).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redis_spread() {
                test(Bed::open(Place::RedisSpread).await).await;
            }
        }
    )*};
}

/// A store, a clock to turn, a receiver, and a node that sends.
pub(crate) struct Bed {
    pub(crate) fresh: Fresh,
    pub(crate) clock: ManualClock,
    pub(crate) tram: Tramline,
    pub(crate) receiver: Receiver,
    /// The receiver of a subscription beside, which shows that a node has gone round.
    beside: Receiver,
    pub(crate) keyring: Keyring,
    pub(crate) node: Option<Node>,
}

/// A node that sends.
pub(crate) struct Node {
    tram: Tramline,
    shutdown: Shutdown,
    task: JoinHandle<()>,
}

impl Node {
    pub(crate) fn start(tram: &Tramline, keyring: &Keyring) -> Node {
        Node::with_room(tram, keyring, 64)
    }

    /// One that has so many requests under way at most.
    pub(crate) fn with_room(tram: &Tramline, keyring: &Keyring, requests: usize) -> Node {
        let guard = Guard::new(vec!["127.0.0.0/8".parse().unwrap()]);
        let client = Client::new(Settings { guard, ..Settings::default() });
        let shutdown = Shutdown::new();
        let pusher = tram.pusher(client, keyring.clone(), requests);
        let task = tokio::spawn(pusher.run(shutdown.clone()));
        Node { tram: tram.clone(), shutdown, task }
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) async fn stop(self) {
        self.shutdown.start();
        tokio::time::timeout(LONG, self.task).await.expect("the node does not stop").unwrap();
    }

    pub(crate) fn ask_to_stop(&self) {
        self.shutdown.start();
    }

    /// It dies: nothing is finished, nothing given back.
    pub(crate) fn kill(self) {
        self.task.abort();
    }
}

impl Bed {
    pub(crate) async fn open(place: Place) -> Bed {
        let fresh = Fresh::open(place).await;
        let clock = ManualClock::new(START);
        let keyring = Keyring::derived("a root token");
        let tram = process(&fresh, &clock);
        let (receiver, beside) = (Receiver::start().await, Receiver::start().await);
        let push = Some(Push { timeout: Duration::ZERO, ..Push::to(beside.url()) });
        let policy = Policy { push, ..Policy::default() };
        tram.put_subscription(BESIDE, &[BESIDE], policy, Start::Now).await.unwrap();
        let node = Node::start(&tram, &keyring);
        Bed { receiver, beside, fresh, clock, tram, keyring, node: Some(node) }
    }

    /// Another process on the same store.
    pub(crate) fn process(&self) -> Tramline {
        process(&self.fresh, &self.clock)
    }

    pub(crate) fn node(&mut self) -> Node {
        self.node.take().unwrap()
    }

    /// True if nothing is sent that the test has not answered or seen, although there was time for it: two events of another
    /// subscription are emitted, claimed and sent by the same node meanwhile, one after the other.
    pub(crate) async fn is_quiet(&mut self) -> bool {
        if let Some(node) = &self.node {
            for _ in 0..2 {
                node.tram.emit(Event::json(BESIDE, &"round").unwrap()).await.unwrap();
                self.beside.next().await.answer(200);
            }
        }
        self.receiver.has_nothing()
    }

    /// Where batches go at once, in Tramline's format.
    pub(crate) fn push(&self) -> Push {
        Push { timeout: Duration::ZERO, ..Push::to(self.receiver.url()) }
    }

    pub(crate) async fn subscribe(&self, push: Push) {
        self.subscribe_with(Policy { push: Some(push), ..Policy::default() }).await;
    }

    pub(crate) async fn subscribe_in_order(&self, ordering: Ordering, push: Push) {
        self.subscribe_with(Policy { push: Some(push), ordering, ..Policy::default() }).await;
    }

    pub(crate) async fn subscribe_with(&self, policy: Policy) {
        let policy = Policy { retry: Push::retry(), ..policy };
        let topics = if policy.ordering == Ordering::Subscriber { self.line() } else { &["t", "u"] };
        self.tram.put_subscription("s", topics, policy, Start::Now).await.unwrap();
    }

    /// What may be in one line: where a store is spread, one topic.
    pub(crate) fn line(&self) -> &[&str] {
        if matches!(self.fresh.place, Place::RedisSpread) { &["t"] } else { &["t", "u"] }
    }

    pub(crate) async fn emit(&self, payloads: &[&str]) {
        let events: Vec<Event> = payloads.iter().map(|payload| event(payload)).collect();
        self.tram.emit(events).await.unwrap();
    }

    pub(crate) async fn counts(&self) -> Counts {
        self.tram.stats("s").await.unwrap().counts
    }

    pub(crate) async fn health(&self) -> Health {
        let board = self.tram.push_board().await.unwrap();
        board.into_iter().find(|entry| &*entry.subscription.name == "s").unwrap().health
    }

    /// Waits until so many requests have failed, and what they had is written back: its delay runs from then.
    pub(crate) async fn failed(&self, requests: u64) {
        until("requests failed", async || {
            self.health().await.failed == requests && self.counts().await.leased == 0
        })
        .await;
    }

    /// Waits until a batch was written back: nothing is ready, delayed or being sent.
    pub(crate) async fn settled(&self) {
        until("everything is settled", async || self.counts().await == Counts::default()).await;
    }

    pub(crate) async fn close(mut self) {
        if let Some(node) = self.node.take() {
            node.stop().await;
        }
        self.fresh.close().await;
    }
}

fn process(fresh: &Fresh, clock: &ManualClock) -> Tramline {
    let options = Options::new(&fresh.url).clock(Clock::Manual(clock.clone())).hooks(Arc::new(NoHooks));
    Tramline::from_store(fresh.store.clone(), options)
}

pub(crate) fn event(payload: &str) -> Event {
    Event::json("t", &payload).unwrap()
}

/// Waits until something is true. Fails after a minute.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let wait = async {
        while !condition().await {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(LONG, wait).await.is_ok(), "never came true: {what}");
}
