//! Another server takes over: calls fail with a word that says so, nothing that was acknowledged is lost, and work goes on by itself.

use crate::bed::{Server, claim, claim_by, done, emit, events, subscribe, subscribe_to};
use crate::between::Between;
use redis::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tramline::error::{Error, Kind};
use tramline::model::id::{EventId, Incarnation, SubscriptionId};
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::redis::RedisStore;
use tramline::{Event, Result};

/// How long work may stand still after a fail-over.
const PATIENCE: Duration = Duration::from_secs(30);

/// Makes a server a copy of another one, and waits until it is.
pub(crate) async fn follow(replica: &Server, primary: &Server) {
    replica.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]).await;
    until_linked(replica).await;
}

pub(crate) async fn until_linked(replica: &Server) {
    until("the replica is linked", async || {
        let info = replica.command(&["INFO", "replication"]).await;
        matches!(info, Value::BulkString(text) if String::from_utf8_lossy(&text).contains("master_link_status:up"))
    })
    .await;
}

/// All that was acknowledged is at the replica.
pub(crate) async fn until_copied(primary: &Server, replica: &Server) {
    let written = primary.figure("replication", "master_repl_offset").await;
    let read = async || replica.figure("replication", "slave_repl_offset").await;
    until("the replica has all", async || read().await >= written).await;
}

pub(crate) async fn until(what: &str, mut reached: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !reached().await {
        assert!(start.elapsed() < PATIENCE, "never came true: {what}");
    }
}

/// Emits until it is acknowledged. Whatever goes wrong on the way has to be called unavailable.
async fn emit_at_last(store: &RedisStore, event: impl Fn() -> Event) -> (EventId, Vec<Error>) {
    let (start, mut errors) = (Instant::now(), Vec::new());
    loop {
        match emit(store, vec![event()]).await {
            Ok(emission) => return (emission.events[0].id, errors),
            Err(error) => {
                assert_eq!(error.kind(), Kind::Unavailable, "{error}");
                errors.push(error);
            }
        }
        assert!(start.elapsed() < PATIENCE, "nothing can be emitted any more: {errors:?}");
    }
}

/// Works until nothing is left, and gives what ran.
async fn work_off(store: &RedisStore, id: SubscriptionId) -> BTreeSet<EventId> {
    let mut ran = BTreeSet::new();
    loop {
        let claimed = claim(store, id, 1000).await.unwrap();
        if claimed.slices.is_empty() {
            return ran;
        }
        let events = claimed.slices.iter().flat_map(|slice| &slice.events);
        ran.extend(events.map(|event| event.event.id));
        let settled = done(store, id, &claimed).await.unwrap();
        assert!(settled.accepted.iter().flatten().all(|accepted| *accepted));
    }
}

fn keyed() -> Event {
    Event::new("t", "x").key("k")
}

#[tokio::test]
async fn a_primary_that_was_demoted_refuses_and_goes_on_when_it_is_primary_again() {
    let (server, other) = (Server::start(), Server::start());
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::Key).await;
    let (first, _) = emit_at_last(&store, keyed).await;
    follow(&other, &server).await;
    other.command(&["REPLICAOF", "NO", "ONE"]).await;
    follow(&server, &other).await;
    for refused in [emit(&store, vec![keyed()]).await.map(|_| ()), store.probe().await] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.remedy().contains("primary"), "{}", error.remedy());
    }
    server.command(&["REPLICAOF", "NO", "ONE"]).await;
    server.command(&["SCRIPT", "FLUSH"]).await;
    let second = emit(&store, vec![keyed()]).await.unwrap().events[0].clone();
    assert_eq!(second.prev, Some(first), "nothing of what was refused has happened");
    assert_eq!(work_off(&store, id).await, BTreeSet::from([first, second.id]));
}

/// A service that moves its name to the new primary leaves the connections to the old one open, and that one refuses for ever.
#[tokio::test]
async fn a_name_that_leads_to_the_new_primary_is_followed() {
    let (server, other) = (Server::start(), Server::start());
    let name = Between::start(&server).await;
    let store = RedisStore::open(name.url.parse().unwrap()).await.unwrap();
    let id = subscribe(&store, Ordering::Key).await;
    let (first, _) = emit_at_last(&store, keyed).await;
    let claimed = claim(&store, id, 10).await.unwrap();
    follow(&other, &server).await;
    until_copied(&server, &other).await;
    other.command(&["REPLICAOF", "NO", "ONE"]).await;
    follow(&server, &other).await;
    name.lead_to(&other);
    let second = emit(&store, vec![keyed()]).await.unwrap().events[0].clone();
    assert_eq!(second.prev, Some(first));
    // What was claimed at the one can be settled at the other.
    let settled = done(&store, id, &claimed).await.unwrap();
    assert_eq!(settled.accepted, [[true]]);
    assert_eq!(work_off(&store, id).await, BTreeSet::from([second.id]));
}

#[tokio::test]
async fn a_replica_that_takes_over_after_a_crash_has_all_that_it_was_given() {
    let (mut server, other) = (Server::start(), Server::start());
    let name = Between::start(&server).await;
    let store = RedisStore::open(name.url.parse().unwrap()).await.unwrap();
    let id = subscribe(&store, Ordering::None).await;
    emit(&store, events(100)).await.unwrap();
    follow(&other, &server).await;
    let (last, _) = emit_at_last(&store, || Event::new("t", "last")).await;
    until_copied(&server, &other).await;
    server.kill();
    let error = emit(&store, events(1)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    other.command(&["REPLICAOF", "NO", "ONE"]).await;
    name.lead_to(&other);
    let (after, _) = emit_at_last(&store, || Event::new("t", "after")).await;
    let ran = work_off(&store, id).await;
    assert!(ran.len() >= 102 && ran.contains(&last) && ran.contains(&after), "{}", ran.len());
}

/// Numbers of slices are drawn many at a time. A server that takes over may know nothing of the last ones, and gives them to others: of two
/// parts of a chunk with the same number one was lost.
#[tokio::test]
async fn numbers_that_the_new_primary_knows_nothing_of_are_not_used() {
    let (server, other) = (Server::start(), Server::start());
    let name = Between::start(&server).await;
    let first = RedisStore::open(name.url.parse().unwrap()).await.unwrap();
    let id = subscribe(&first, Ordering::None).await;
    emit(&first, (0..40).map(|_| Event::new("t", "x")).collect()).await.unwrap();
    follow(&other, &server).await;
    until_copied(&server, &other).await;
    other.command(&["REPLICAOF", "NO", "ONE"]).await;
    // Nothing of this reaches the other server.
    let late = RedisStore::open(name.url.parse().unwrap()).await.unwrap();
    for _ in 0..3 {
        claim(&late, id, 1).await.unwrap();
    }
    follow(&server, &other).await;
    name.lead_to(&other);
    let new = other.open().await.unwrap();
    let mut taken = BTreeSet::new();
    for round in 0..40 {
        let store = if round % 2 == 0 { &late } else { &new };
        let claimed = claim(store, id, 1).await.unwrap();
        taken.extend(claimed.slices.iter().flat_map(|slice| &slice.events).map(|event| event.event.id));
        assert_eq!(taken.len(), round + 1);
    }
}

/// A primary, and a replica that takes over and knows nothing of what the primary was told last.
struct Lossy {
    server: Server,
    other: Server,
    name: Between,
}

impl Lossy {
    /// The replica has what is there now, and will get no more.
    async fn before(server: Server, name: Between) -> Lossy {
        let other = Server::start();
        follow(&other, &server).await;
        until_copied(&server, &other).await;
        other.command(&["REPLICAOF", "NO", "ONE"]).await;
        Lossy { server, other, name }
    }

    /// It takes over. Gives another process, which has never known anything else.
    async fn fail_over(&self) -> RedisStore {
        follow(&self.server, &self.other).await;
        self.name.lead_to(&self.other);
        self.other.open().await.unwrap()
    }
}

/// The new primary gave the number of a subscription that it knew nothing of to the next one, under the same version of the catalogue: a worker of the
/// lost one got its events, and whoever had the old catalogue emitted past it.
#[tokio::test]
async fn a_subscription_that_was_lost_is_not_taken_for_the_next_one() {
    let server = Server::start();
    let name = Between::start(&server).await;
    let store = RedisStore::open(name.url.parse().unwrap()).await.unwrap();
    subscribe(&store, Ordering::None).await;
    let lossy = Lossy::before(server, name).await;
    let lost = subscribe_to(&store, "lost", "u", Ordering::None).await;
    let emitted = emit(&store, vec![Event::new("u", "lost")]).await.unwrap().events[0].id;
    let new = lossy.fail_over().await;
    let kept = subscribe_to(&new, "kept", "u", Ordering::None).await;
    let first = emit(&new, vec![Event::new("u", "kept")]).await.unwrap().events[0].id;
    assert_ne!((lost, emitted), (kept, first));
    assert!(claim(&store, lost, 10).await.is_err());
    let (second, _) = emit_at_last(&store, || Event::new("u", "kept")).await;
    assert_eq!(work_off(&store, kept).await, BTreeSet::from([first, second]));
    assert!(!BTreeSet::from([first, second]).contains(&emitted));
}

/// A worker had claimed what the new primary knew nothing of, and claimed what came there next: chunk, slice and epoch had the same numbers, and
/// what it said of the one was taken for the other.
#[tokio::test]
async fn a_lease_of_what_was_lost_matches_nothing() {
    let server = Server::start();
    let name = Between::start(&server).await;
    let store = RedisStore::open(name.url.parse().unwrap()).await.unwrap();
    let (id, owner) = (subscribe(&store, Ordering::None).await, Incarnation::random());
    let lossy = Lossy::before(server, name).await;
    emit(&store, vec![Event::new("t", "lost")]).await.unwrap();
    let lost = store.claim(claim_by(owner, id, 10)).await.unwrap();
    let new = lossy.fail_over().await;
    emit(&new, vec![Event::new("t", "kept")]).await.unwrap();
    let kept = store.claim(claim_by(owner, id, 10)).await.unwrap();
    assert_eq!((lost.slices.len(), kept.slices.len()), (1, 1));
    assert_ne!(lost.slices[0].lease, kept.slices[0].lease);
    assert_eq!(done(&store, id, &lost).await.unwrap().accepted, [[false]]);
    assert_eq!(done(&store, id, &kept).await.unwrap().accepted, [[true]]);
}

/// The new primary knows the event, and not that it was claimed. It is claimed again under another epoch, even by the same worker: what
/// that one says of the first time is not taken for the second.
#[tokio::test]
async fn a_lease_that_was_lost_is_not_the_next_one_of_the_same_events() {
    for ordering in [Ordering::None, Ordering::Key] {
        let server = Server::start();
        let name = Between::start(&server).await;
        let store = RedisStore::open(name.url.parse().unwrap()).await.unwrap();
        let (id, owner) = (subscribe(&store, ordering).await, Incarnation::random());
        emit(&store, vec![keyed()]).await.unwrap();
        let lossy = Lossy::before(server, name).await;
        let lost = store.claim(claim_by(owner, id, 10)).await.unwrap();
        lossy.fail_over().await;
        let again = store.claim(claim_by(owner, id, 10)).await.unwrap();
        assert_eq!((lost.slices.len(), again.slices.len()), (1, 1));
        assert_eq!(done(&store, id, &lost).await.unwrap().accepted, [[false]], "{ordering:?}");
        assert_eq!(done(&store, id, &again).await.unwrap().accepted, [[true]], "{ordering:?}");
    }
}

/// A server that lost its power, or is behind a wire that was cut, ends no connection: each command waited for its answer in vain, for ever.
#[tokio::test]
async fn a_server_that_vanished_without_a_word_is_left() {
    let server = Server::start();
    let name = Between::start(&server).await;
    let store = RedisStore::open(format!("{}?answer_ms=300", name.url).parse().unwrap()).await.unwrap();
    let id = subscribe(&store, Ordering::None).await;
    let unkeyed = || Event::new("t", "x");
    for _ in 0..2 {
        emit(&store, vec![unkeyed()]).await.unwrap();
    }
    let claimed = claim(&store, id, 10).await.unwrap();
    name.fall_silent();
    // What was sent is not sent again, because whether it was stored is open.
    let (emitted, errors) = emit_at_last(&store, unkeyed).await;
    assert!(errors.len() <= 1, "{errors:?}");
    name.fall_silent();
    // What only reads is asked again by itself.
    store.now().await.unwrap();
    assert_eq!(done(&store, id, &claimed).await.unwrap().accepted.concat(), [true, true]);
    assert_eq!(work_off(&store, id).await, BTreeSet::from([emitted]));
}

/// Six tries of ten seconds each were a minute.
#[tokio::test]
async fn a_call_gives_up_after_two_answers_did_not_come() {
    let server = Server::start();
    let answer = Duration::from_millis(500);
    let store = RedisStore::open(format!("{}?answer_ms=500", server.url()).parse().unwrap()).await.unwrap();
    subscribe(&store, Ordering::None).await;
    server.hang();
    for _ in 0..2 {
        let start = Instant::now();
        assert_eq!(store.now().await.unwrap_err().kind(), Kind::Unavailable);
        assert!(start.elapsed() < answer * 4, "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn connections_that_an_operator_ends_come_back() {
    let server = Server::start();
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::None).await;
    for _ in 0..5 {
        emit(&store, events(1)).await.unwrap();
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        // What only reads is asked again by itself.
        store.now().await.unwrap();
    }
    assert_eq!(work_off(&store, id).await.len(), 5);
}

/// It syncs each answer: on a busy disk, what came in the last two seconds may be lost with a kill.
#[tokio::test]
async fn a_server_that_is_still_loading_is_waited_for() {
    let mut server = Server::start_with(&["--appendfsync", "always"]);
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::None).await;
    for _ in 0..100 {
        emit(&store, events(1)).await.unwrap();
    }
    server.restart_slowly(Duration::from_millis(2));
    // The connection was lost, so one call may fail; then it is a new one.
    let (_, errors) = emit_at_last(&store, || Event::new("t", "x")).await;
    let ran = work_off(&store, id).await;
    assert!((101..=101 + errors.len()).contains(&ran.len()), "{} ran, {errors:?}", ran.len());
}

/// A Cluster of its own: a primary that has all slots, and its replica.
pub(crate) struct Cluster {
    pub(crate) primary: Server,
    pub(crate) replica: Server,
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        let node = || Server::start_with(&["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]);
        let (primary, replica) = (node(), node());
        let slots: Vec<String> = (0..16384).map(|slot| slot.to_string()).collect();
        let words: Vec<&str> =
            ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str)).collect();
        primary.command(&words).await;
        replica.command(&["CLUSTER", "MEET", "127.0.0.1", &primary.port().to_string()]).await;
        let Value::BulkString(id) = primary.command(&["CLUSTER", "MYID"]).await else { panic!("no id") };
        let id = String::from_utf8(id).unwrap();
        until("the replica knows the primary", async || {
            said(&replica, &["CLUSTER", "NODES"]).await.contains(&id)
        })
        .await;
        until("it follows it", async || replica.try_command(&["CLUSTER", "REPLICATE", &id]).await.is_ok())
            .await;
        until_linked(&replica).await;
        until("the cluster is up", async || {
            let up =
                async |node: &Server| said(node, &["CLUSTER", "INFO"]).await.contains("cluster_state:ok");
            up(&primary).await && up(&replica).await
        })
        .await;
        // A replica that was given nothing yet is no part of that.
        for words in [&["SET", "first", "x"][..], &["DEL", "first"]] {
            primary.command(words).await;
        }
        until("both say that the slots have a replica", async || {
            let port = format!("int({})", replica.port());
            let listed = async |node: &Server| {
                format!("{:?}", node.command(&["CLUSTER", "SLOTS"]).await).contains(&port)
            };
            listed(&primary).await && listed(&replica).await
        })
        .await;
        Cluster { primary, replica }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{},127.0.0.1:{}", self.primary.port(), self.replica.port())
    }

    pub(crate) async fn open(&self) -> Result<RedisStore> {
        RedisStore::open(self.url().parse()?).await
    }
}

async fn said(node: &Server, words: &[&str]) -> String {
    match node.command(words).await {
        Value::BulkString(text) => String::from_utf8(text).unwrap(),
        Value::VerbatimString { text, .. } => text,
        other => panic!("{other:?}"),
    }
}

async fn until_primary(node: &Server) {
    until("it has taken over", async || said(node, &["INFO", "replication"]).await.contains("role:master"))
        .await;
}

#[tokio::test]
async fn a_fail_over_in_a_cluster_loses_nothing_that_was_acknowledged() {
    let cluster = Cluster::start().await;
    let store = cluster.open().await.unwrap();
    let id = subscribe(&store, Ordering::Key).await;
    emit(&store, events(100)).await.unwrap();
    let claimed = claim(&store, id, 10).await.unwrap();
    let taken: usize = claimed.slices.iter().map(|slice| slice.events.len()).sum();
    cluster.replica.command(&["CLUSTER", "FAILOVER"]).await;
    until_primary(&cluster.replica).await;
    // The old primary says where the slot is now, or that it only reads: nothing was done, and it is asked again.
    let (acknowledged, errors) = emit_at_last(&store, keyed).await;
    let settled = done(&store, id, &claimed).await.unwrap();
    assert!(settled.accepted.iter().flatten().all(|accepted| *accepted));
    let ran = work_off(&store, id).await;
    assert!(ran.contains(&acknowledged));
    assert!(
        (101..=101 + errors.len()).contains(&(ran.len() + taken)),
        "{} and {taken}, {errors:?}",
        ran.len()
    );
}

#[tokio::test]
async fn a_cluster_whose_primary_died_says_so_until_another_has_taken_over() {
    let mut cluster = Cluster::start().await;
    let store = cluster.open().await.unwrap();
    let id = subscribe(&store, Ordering::None).await;
    emit(&store, events(100)).await.unwrap();
    until_copied(&cluster.primary, &cluster.replica).await;
    cluster.primary.kill();
    let error = emit(&store, events(1)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    cluster.replica.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    until_primary(&cluster.replica).await;
    let (acknowledged, _) = emit_at_last(&store, || Event::new("t", "x")).await;
    let ran = work_off(&store, id).await;
    assert!(ran.len() >= 101 && ran.contains(&acknowledged), "{}", ran.len());
}

/// The node closes nothing, so that the client stayed with it although its slots were elsewhere.
#[tokio::test]
async fn a_node_that_hangs_is_left_for_the_one_that_took_over() {
    let cluster = Cluster::start().await;
    let url = cluster.url();
    let store = RedisStore::open(format!("{url}?answer_ms=500").parse().unwrap()).await.unwrap();
    let id = subscribe(&store, Ordering::None).await;
    emit(&store, events(100)).await.unwrap();
    until_copied(&cluster.primary, &cluster.replica).await;
    cluster.primary.hang();
    cluster.replica.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    until_primary(&cluster.replica).await;
    let (acknowledged, _) = emit_at_last(&store, || Event::new("t", "x")).await;
    let ran = work_off(&store, id).await;
    assert!(ran.len() >= 101 && ran.contains(&acknowledged), "{}", ran.len());
}
