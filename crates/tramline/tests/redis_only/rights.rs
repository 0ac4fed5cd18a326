//! A user who has the rights that the documentation names, and no others.

use crate::bed::{Server, claim, claim_at, emit, subscribe_to};
use crate::fail_over::Cluster;
use futures_util::StreamExt;
use redis::Value;
use std::time::Duration;
use tramline::model::id::{EventId, Incarnation, SubscriptionId};
use tramline::model::letter::Letters;
use tramline::model::outcome::Outcome;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::redis::{RedisStore, SpreadStore};
use tramline::store::verbs::{
    Beat, ClaimedSlice, FindEvent, Page, ReadLog, Revival, Revive, Settle, SettleSlice, Sweep, Which,
};
use tramline::wake::address::open;
use tramline::{Event, NewTally, Options, Schedule, Tramline};

const DOCUMENTATION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
/// Ends a turn, which only a step has that was overtaken again and again.
const RARE: &str = "del";

/// The rights, as an `ACL SETUSER` takes them.
fn documented() -> Vec<String> {
    let text = std::fs::read_to_string(DOCUMENTATION).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("user tramline ")).unwrap();
    line.split(' ').map(str::to_owned).collect()
}

/// Lets the user in, and nobody has asked for anything yet.
async fn admit(server: &Server) {
    let rights = documented();
    let words: Vec<&str> =
        ["ACL", "SETUSER", "tramline"].into_iter().chain(rights.iter().map(String::as_str)).collect();
    server.command(&words).await;
    server.command(&["CONFIG", "RESETSTAT"]).await;
}

/// What was refused, also where nobody was told. What the library says of itself to newer servers is not needed.
async fn refused(server: &Server) -> Vec<Value> {
    let Value::Array(mut log) = server.command(&["ACL", "LOG"]).await else { panic!("no log") };
    log.retain(|entry| !format!("{entry:?}").contains("client|setinfo"));
    log
}

/// Which of the commands that are allowed nobody has sent.
async fn unused(servers: &[&Server]) -> Vec<String> {
    let mut unused = Vec::new();
    for command in documented().iter().filter_map(|word| word.strip_prefix('+')) {
        let mut calls = 0;
        for server in servers {
            calls += server.calls(command).await;
        }
        if calls == 0 && command != RARE {
            unused.push(command.to_owned());
        }
    }
    unused
}

/// One of each: done, tried again, dead; then all the housekeeping.
async fn works(store: &dyn Store, name: &str, ordering: Ordering) {
    let id = subscribe_to(store, name, name, ordering).await;
    // From now on claims without order are one script.
    assert!(claim(store, id, 10).await.unwrap().slices.is_empty());
    let event = |n: u32| {
        let event = Event::new(name, "x").key(n.to_string()).idempotency_key(format!("i{n}"));
        event.unique(format!("u{n}")).state("s")
    };
    let emitted = emit(store, (0..6).map(event).collect()).await.unwrap().events;
    let claimed = claim(store, id, 10).await.unwrap();
    let outcome = |event: EventId| match event.index() % 3 {
        0 => Outcome::Done,
        1 => Outcome::retry("not yet"),
        _ => Outcome::dead("never"),
    };
    let settled = |slice: &ClaimedSlice| SettleSlice {
        lease: slice.lease,
        outcomes: slice
            .events
            .iter()
            .map(|event| event.event.id)
            .map(|id| (id.index(), outcome(id)))
            .collect(),
    };
    let settle = |results| Settle { subscription: id, results, worker: None, now: None };
    store.settle(settle(claimed.slices.iter().map(settled).collect())).await.unwrap();
    let later = store.now().await.unwrap().after(Duration::from_secs(400));
    assert!(!claim_at(store, id, 10, Some(later)).await.unwrap().slices.is_empty(), "what is tried again");
    assert_eq!(store.stats(id, None).await.unwrap().counts.dead, 2);
    let page = Page { subscription: id, after: EventId(0), limit: 10, now: None };
    assert_eq!(store.dead(page.into()).await.unwrap().events.len(), 2);
    let letters = Letters { key: Some("2".into()), ..Letters::default() };
    let (which, how) = (Which::Those(letters), Revival::Replay);
    let revive = Revive { subscription: id, which, how, after: EventId(0), now: None };
    assert_eq!(store.revive(revive).await.unwrap().count, 1);
    store.event(FindEvent { id: emitted[0].id, now: None }).await.unwrap().unwrap();
    let read = ReadLog { topic: name.into(), after: EventId(0), limit: 10 };
    assert_eq!(store.read_log(read).await.unwrap().events.len(), 6);
    store.head(name, "1").await.unwrap().unwrap();
    keeps_house(store, id).await;
    store.delete_subscription(name).await.unwrap();
    store.delete_topic(name).await.unwrap();
}

async fn keeps_house(store: &dyn Store, id: SubscriptionId) {
    let incarnation = Incarnation::random();
    let beat = Beat { incarnation, name: "w".into(), subscriptions: vec![id], leaving: false, now: None };
    store.beat(beat).await.unwrap();
    let now = store.now().await.unwrap().after(Duration::from_secs(100 * 86_400));
    store
        .sweep(Sweep { dead_after: Some(Duration::from_secs(6)), limit: 100, now: Some(now) })
        .await
        .unwrap();
    store.size().await.unwrap();
    store.probe().await.unwrap();
}

async fn tracks_and_ticks(url: &str) {
    let tram = Tramline::with(Options::new(url)).await.unwrap();
    tram.put_schedule(Schedule::cron("n", "* * * * *", Event::new("t", "x"))).await.unwrap();
    let tally = tram.tallies().open(NewTally::new()).await.unwrap().id;
    tram.tallies().add(tally, 3).await.unwrap();
    tram.tallies().done(tally, 0..3).await.unwrap();
    tram.tallies().seal(tally, Some(3)).await.unwrap();
    tram.close().await;
}

/// One listens, another one says something; and a connection on which nothing is heard asks whether it is still there.
async fn hears(url: &str, node: &str) {
    let (here, there) =
        (open(url, Some("tramline:wake")).unwrap(), open(url, Some("tramline:wake")).unwrap());
    let mut listener = here.listen(SubscriptionId(1));
    for _ in 0..2 {
        // First that it is connected, then what it hears.
        listener.arm();
        there.notify(&[SubscriptionId(1)]);
        tokio::time::timeout(Duration::from_secs(20), listener.wait()).await.expect("nothing is heard");
    }
    let mut quiet = redis::Client::open(node).unwrap().get_async_pubsub().await.unwrap();
    quiet.subscribe("tramline:wake").await.unwrap();
    let (mut sink, stream) = quiet.split();
    let reading = tokio::spawn(stream.for_each(|_| async {}));
    sink.ping::<Value>().await.unwrap();
    reading.abort();
}

async fn everything_is_allowed(url: &str, node: &str) {
    let store = RedisStore::open(url.parse().unwrap()).await.unwrap();
    works(&store, "plain", Ordering::None).await;
    works(&store, "ordered", Ordering::Key).await;
    tracks_and_ticks(url).await;
    hears(url, node).await;
    let figures = RedisStore::examine(url.parse().unwrap()).await.unwrap();
    assert!(figures.refused.is_none() && figures.schema.is_current(), "{figures:?}");
    assert!(figures.nodes.iter().all(|node| node.appendfsync.is_some()), "{figures:?}");
}

fn url(port: u16) -> String {
    format!("redis://tramline:password@127.0.0.1:{port}")
}

#[tokio::test]
async fn a_user_with_the_documented_rights_may_do_everything() {
    let server = Server::start();
    admit(&server).await;
    everything_is_allowed(&url(server.port()), &url(server.port())).await;
    assert_eq!(refused(&server).await, []);
    assert_eq!(unused(&[&server]).await, ["cluster|slots"], "that is for a Cluster");
}

#[tokio::test]
async fn a_user_with_the_documented_rights_may_do_everything_in_a_cluster() {
    let cluster = Cluster::start().await;
    let nodes = [&cluster.primary, &cluster.replica];
    for node in nodes {
        admit(node).await;
    }
    let several = format!("{},127.0.0.1:{}", url(nodes[0].port()), nodes[1].port());
    everything_is_allowed(&several, &url(nodes[0].port())).await;
    for node in nodes {
        assert_eq!(refused(node).await, []);
    }
    assert_eq!(unused(&nodes).await, [""; 0]);
}

#[tokio::test]
async fn a_store_that_is_spread_also_needs_the_keys_of_its_topics() {
    const KEYS: &str = "~{tramline/*}:*";
    assert!(std::fs::read_to_string(DOCUMENTATION).unwrap().contains(&format!("`{KEYS}`")));
    let server = Server::start();
    admit(&server).await;
    server.command(&["ACL", "SETUSER", "tramline", KEYS]).await;
    let url = format!("{}?spread=topics", url(server.port()));
    let store = SpreadStore::open(url.parse().unwrap()).await.unwrap();
    works(&store, "plain", Ordering::None).await;
    works(&store, "ordered", Ordering::Key).await;
    tracks_and_ticks(&url).await;
    assert_eq!(refused(&server).await, []);
}
