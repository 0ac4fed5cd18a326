//! Pushing while the store is slow, or away for a moment.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "a part of it is enough here")]
#[path = "pushing/receiver.rs"]
mod receiver;
mod support;

use receiver::Receiver;
use std::time::Duration;
use support::{Bench, until};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tramline::engine::push::NOTICES;
use tramline::push::{Client, Guard, Keyring, Settings};
use tramline::{Event, EventId, Kind, Policy, Push, Shutdown, Start, Tramline};

struct Node {
    shutdown: Shutdown,
    task: JoinHandle<()>,
    /// Requests that have ended: whose, and the status of the answer.
    told: mpsc::UnboundedReceiver<(String, Option<u16>)>,
}

impl Node {
    fn start(tram: &Tramline) -> Node {
        let guard = Guard::new(vec!["127.0.0.0/8".parse().unwrap()]);
        let client = Client::new(Settings { guard, ..Settings::default() });
        let (tell, told) = mpsc::unbounded_channel();
        let pusher = tram.pusher(client, Keyring::empty(), 8).watch(move |of, attempt| {
            tell.send((of.name.to_string(), attempt.status)).unwrap();
        });
        let shutdown = Shutdown::new();
        Node { task: tokio::spawn(pusher.run(shutdown.clone())), shutdown, told }
    }

    async fn stop(self) {
        self.shutdown.start();
        self.task.await.unwrap();
    }
}

async fn subscribe(tram: &Tramline, receiver: &Receiver) {
    let push = Push { timeout: Duration::ZERO, ..Push::to(receiver.url()) };
    let policy = Policy { push: Some(push), ..Policy::default() };
    tram.put_subscription("s", &["t"], policy, Start::Now).await.unwrap();
}

async fn emit(tram: &Tramline) {
    tram.emit(Event::json("t", &"a").unwrap()).await.unwrap();
}

/// Leases were timed from when the answer to a claim came. If that took long, the batch was still being sent when its lease had ended, and
/// another node sent it too.
#[tokio::test]
async fn what_was_claimed_too_slowly_is_given_back_and_not_sent_under_an_old_lease() {
    let bench = Bench::new().await;
    let (tram, mut receiver) = (bench.process(), Receiver::start().await);
    subscribe(&tram, &receiver).await;
    let mut claim = bench.store.hold("claim");
    let mut node = Node::start(&tram);
    emit(&tram).await;
    claim.begun().await;
    bench.clock.advance(Duration::from_secs(4));
    claim.release();
    let request = receiver.next().await;
    assert_eq!(bench.store.answers("settle"), 1, "it was given back before it was claimed again");
    request.answer(200);
    assert_eq!(node.told.recv().await.unwrap(), ("s".to_owned(), Some(200)));
    until("it is done", async || tram.stats("s").await.unwrap().counts.pending() == 0).await;
    node.stop().await;
}

/// Who died between the record of the failure and the event that tells of it told nobody.
#[tokio::test]
async fn that_a_subscription_was_disabled_is_told_by_the_next_node_if_need_be() {
    let bench = Bench::new().await;
    let (tram, mut receiver) = (bench.process(), Receiver::start().await);
    subscribe(&tram, &receiver).await;
    let node = Node::start(&tram);
    emit(&tram).await;
    let request = receiver.next().await;
    bench.store.fail_always("emit", Some(Kind::Unavailable));
    request.answer(410);
    let board = async || tram.push_board().await.unwrap().remove(0).health;
    until("it is disabled", async || board().await.disabled.is_some()).await;
    node.task.abort();
    bench.store.fail_always("emit", None);
    let heir = Node::start(&tram);
    until("somebody was told", async || !board().await.is_untold).await;
    let page = tram.read_log(NOTICES, EventId(0), 10).await.unwrap();
    assert_eq!(page.events.len(), 1);
    heir.stop().await;
}
