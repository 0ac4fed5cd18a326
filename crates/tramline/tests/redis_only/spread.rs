//! A store that is spread over topics.

use crate::bed::{Server, claim, claim_by, done, emit, put, subscribe_to};
use crate::fail_over::until;
use redis::Value;
use std::collections::BTreeSet;
use std::time::Duration;
use tramline::error::Kind;
use tramline::model::event::Emitted;
use tramline::model::limits::Limits;
use tramline::model::outcome::Outcome;
use tramline::model::rule::RuleKind;
use tramline::model::subscription::{Ordering, Policy, Start, TopicSettings};
use tramline::model::tally::NewTally;
use tramline::store::redis::{RedisStore, SpreadStore};
use tramline::store::verbs::*;
use tramline::store::verbs_tally::{NameTally, OpenTally};
use tramline::store::{self, Store};
use tramline::{Event, EventId, Incarnation, Result, SubscriptionId, Time};

const TOPICS: [&str; 3] = ["a", "b", "c"];

impl Server {
    /// A store on it that is spread.
    pub(crate) async fn open_spread(&self) -> SpreadStore {
        SpreadStore::open(format!("{}?spread=topics", self.url()).parse().unwrap()).await.unwrap()
    }
}

pub(crate) async fn put_to(
    store: &dyn Store,
    name: &str,
    topics: &[&str],
    policy: Policy,
) -> Result<SubscriptionId> {
    let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
    let (name, start, expected) = (name.into(), Start::Now, Expected::Anything);
    let put = PutSubscription { name, topics, policy, start, expected, now: None };
    store.put_subscription(put).await.map(|subscription| subscription.id)
}

/// Emits an event to each of these topics.
pub(crate) async fn emit_to(store: &dyn Store, topics: &[&str]) -> Vec<EventId> {
    let mut ids = Vec::new();
    for topic in topics {
        ids.push(emit(store, vec![Event::new(*topic, "x")]).await.unwrap().events[0].id);
    }
    ids
}

pub(crate) fn ids(claimed: &Claimed) -> BTreeSet<EventId> {
    claimed.slices.iter().flat_map(|slice| &slice.events).map(|claimed| claimed.event.id).collect()
}

/// How many events a subscription has in whatever state.
pub(crate) async fn left(store: &dyn Store, id: SubscriptionId, now: Option<Time>) -> u64 {
    let counts = store.stats(id, now).await.unwrap().counts;
    counts.ready + counts.delayed + counts.leased + counts.parked + counts.dead
}

pub(crate) async fn sweep(store: &dyn Store, now: Option<Time>) -> Swept {
    store.sweep(Sweep { dead_after: None, limit: 1000, now }).await.unwrap()
}

#[tokio::test]
async fn topics_are_on_all_nodes_of_a_cluster() {
    let url = std::env::var("TRAMLINE_TEST_REDIS_CLUSTER")
        .expect("TRAMLINE_TEST_REDIS_CLUSTER is not set: run ./test");
    let name = format!("spread_{:x}", Incarnation::random().0);
    let store = store::open(&format!("{url}?name={name}&spread=topics")).await.unwrap();
    let topics: Vec<String> = (0..30).map(|n| format!("t{n}")).collect();
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    let id = put_to(&*store, "q", &topics, Policy::default()).await.unwrap();
    let emitted = emit_to(&*store, &topics).await;
    for address in url.trim_start_matches("redis://").split(',') {
        let client = redis::Client::open(format!("redis://{address}")).unwrap();
        let mut node = client.get_multiplexed_async_connection().await.unwrap();
        let keys: Vec<String> =
            redis::cmd("KEYS").arg(format!("{{{name}/*:c:*")).query_async(&mut node).await.unwrap();
        assert!(!keys.is_empty(), "{address} has no events");
    }
    let claimed = claim(&*store, id, 100).await.unwrap();
    assert_eq!(ids(&claimed), emitted.into_iter().collect());
    assert!(done(&*store, id, &claimed).await.unwrap().accepted.iter().flatten().all(|taken| *taken));
}

#[tokio::test]
async fn a_store_is_opened_as_it_was_made() {
    let server = Server::start();
    let whole = server.open().await.unwrap();
    emit_to(&whole, &["a"]).await;
    let as_spread: Result<_> =
        async { SpreadStore::open(format!("{}?spread=topics", server.url()).parse()?).await }.await;
    assert_eq!(as_spread.unwrap_err().kind(), Kind::Conflict);
    let named = |query: &str| format!("{}?name=other{query}", server.url());
    let spread = store::open(&named("&spread=topics")).await.unwrap();
    emit_to(&*spread, &["a"]).await;
    assert_eq!(store::open(&named("")).await.unwrap_err().kind(), Kind::Conflict);
    let options = named("&spread=topics").parse().unwrap();
    assert_eq!(RedisStore::open(options).await.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(whole.topics().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_limit_counts_the_events_of_one_topic_only() {
    let server = Server::start();
    let store = server.open_spread().await;
    let limits = Limits { concurrency: Some(1), ..Limits::default() };
    let limited = Policy { limits, ..Policy::default() };
    let refused = put_to(&store, "q", &TOPICS, limited.clone()).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid);
    let id = put_to(&store, "q", &["a"], limited.clone()).await.unwrap();
    assert_eq!(put_to(&store, "q", &["a", "b"], limited).await.unwrap_err().kind(), Kind::Invalid);
    emit_to(&store, &["a", "a"]).await;
    let claimed = claim(&store, id, 10).await.unwrap();
    assert_eq!((ids(&claimed).len(), claimed.limited), (1, true));
}

#[tokio::test]
async fn a_claim_over_topics_takes_no_more_than_it_wants() {
    let server = Server::start();
    let store = server.open_spread().await;
    let id = put_to(&store, "q", &TOPICS, Policy::default()).await.unwrap();
    for topic in TOPICS {
        emit(&store, vec![Event::new(topic, "x"); 10]).await.unwrap();
    }
    let (mut left, mut seen) = (30, BTreeSet::new());
    for wanted in [1, 2, 4, 5, 8, 100] {
        let claimed = claim(&store, id, wanted).await.unwrap();
        let taken = ids(&claimed);
        assert_eq!(taken.len(), left.min(wanted as usize), "{wanted}");
        assert_eq!(claimed.next_due.is_some(), taken.len() < wanted as usize);
        left -= taken.len();
        seen.extend(taken);
    }
    assert_eq!((left, seen.len()), (0, 30));
}

/// Nobody knows which event ended the worker, so that nothing else may run beside the one that is tried.
#[tokio::test]
async fn suspects_of_several_topics_are_taken_one_by_one() {
    let server = Server::start();
    let (store, other) = (server.open_spread().await, server.open_spread().await);
    let id = put_to(&store, "q", &TOPICS, Policy::default()).await.unwrap();
    emit_to(&store, &TOPICS).await;
    let now = store.now().await.unwrap();
    assert_eq!(
        ids(&store.claim(Claim { now: Some(now), ..claim_by(Incarnation(1), id, 10) }).await.unwrap()).len(),
        3
    );
    let now = Some(now.after(Duration::from_secs(120)));
    emit_to(&store, &TOPICS).await;
    let mut suspects = 0;
    for _ in 0..20 {
        let claimed = other.claim(Claim { now, ..claim_by(Incarnation(2), id, 10) }).await.unwrap();
        let crashed = claimed.slices.iter().filter(|slice| slice.crashes > 0).count();
        assert!(crashed == 0 || ids(&claimed).len() == 1, "a suspect comes alone");
        suspects += crashed;
        done(&other, id, &claimed).await.unwrap();
    }
    assert_eq!(suspects, 3);
    assert_eq!(left(&other, id, now).await, 0);
}

/// A process that knew the topic when it was another one.
#[tokio::test]
async fn what_a_process_remembers_of_topics_that_have_changed_does_no_harm() {
    let server = Server::start();
    let (store, stale) = (server.open_spread().await, server.open_spread().await);
    let id = put_to(&store, "q", &["a"], Policy::default()).await.unwrap();
    emit_to(&stale, &["a"]).await;
    assert_eq!(ids(&claim(&stale, id, 10).await.unwrap()).len(), 1);
    store.delete_subscription("q").await.unwrap();
    store.delete_topic("a").await.unwrap();
    let id = put_to(&store, "q", &["a"], Policy::default()).await.unwrap();
    let emitted = emit_to(&stale, &["a"]).await;
    assert_eq!(ids(&claim(&store, id, 10).await.unwrap()), emitted.into_iter().collect());
    put_to(&store, "q", &["a", "b"], Policy::default()).await.unwrap();
    let emitted = emit_to(&store, &["b"]).await;
    assert_eq!(ids(&claim(&stale, id, 10).await.unwrap()), emitted.into_iter().collect());
    assert_eq!(stale.head("b", "k").await.unwrap(), None);
    assert_eq!(stale.head("z", "k").await.unwrap_err().kind(), Kind::NotFound);
}

/// Lua has no whole numbers above 2^53.
#[tokio::test]
async fn topics_with_great_numbers_are_claimed_from_as_others_are() {
    let server = Server::start();
    let store = server.open_spread().await;
    for before in ["8190", "8191", "99999", "131069"] {
        server.command(&["HSET", "{tramline}:meta", "topic", before]).await;
        let (name, topic) = (format!("q{before}"), format!("t{before}"));
        let id = subscribe_to(&store, &name, &topic, Ordering::None).await;
        // From the second one on a claim is one script.
        for _ in 0..3 {
            let emitted: Vec<Emitted> =
                emit(&store, vec![Event::new(topic.as_str(), "x"); 3]).await.unwrap().events;
            let first = claim(&store, id, 2).await.unwrap();
            let second = claim(&store, id, 2).await.unwrap();
            assert_eq!(ids(&first).len(), 2);
            assert_eq!(&ids(&first) | &ids(&second), emitted.iter().map(|event| event.id).collect());
            for claimed in [first, second] {
                assert!(
                    done(&store, id, &claimed).await.unwrap().accepted.iter().flatten().all(|taken| *taken)
                );
            }
        }
        assert_eq!(left(&store, id, None).await, 0);
    }
    let most = PutTopic { name: "last".into(), settings: TopicSettings::default(), now: None };
    store.put_topic(most).await.unwrap();
    let more = PutTopic { name: "more".into(), settings: TopicSettings::default(), now: None };
    assert_eq!(store.put_topic(more).await.unwrap_err().kind(), Kind::Invalid);
}

#[tokio::test]
async fn of_a_deleted_topic_nothing_is_left() {
    let server = Server::start();
    let store = server.open_spread().await;
    let policy = Policy { retry: tramline::Retry::never(), ..Policy::default() };
    let (plain, keyed) =
        (put(&store, "plain", "a", policy).await, subscribe_to(&store, "keyed", "a", Ordering::Key).await);
    let tally = store.open_tally(OpenTally { tally: NewTally::default(), now: None }).await.unwrap().id;
    for key in ["k", "l"] {
        let event = Event::new("a", "x")
            .key(key)
            .state("s")
            .idempotency_key(key)
            .unique(key)
            .tally_of(tally, "keyed");
        emit(&store, vec![event]).await.unwrap();
    }
    let claimed = claim(&store, plain, 1).await.unwrap();
    let outcomes = vec![(claimed.slices[0].events[0].event.id.index(), Outcome::retry("no"))];
    let results = vec![SettleSlice { lease: claimed.slices[0].lease, outcomes }];
    store.settle(Settle { subscription: plain, results, worker: None, now: None }).await.unwrap();
    claim(&store, keyed, 1).await.unwrap();
    store.delete_subscription("plain").await.unwrap();
    store.delete_subscription("keyed").await.unwrap();
    store.delete_topic("a").await.unwrap();
    let now = store.now().await.unwrap();
    for days in 0..4 {
        while sweep(&store, Some(now.after(Duration::from_secs(days * 86_400)))).await.more {}
    }
    let Value::Array(left) = server.command(&["KEYS", "{tramline/*"]).await else { panic!("no keys") };
    let used = [Value::BulkString(b"{tramline/1}:meta".to_vec())];
    assert_eq!(left, used, "it says that the slot was used");
    let Value::Array(left) = server.command(&["HKEYS", "{tramline}:leaving"]).await else {
        panic!("no fields")
    };
    assert!(left.is_empty(), "{left:?}");
    let tally = store.tally(NameTally { tally, now: None }).await.unwrap().unwrap();
    assert_eq!((tally.total, tally.failed), (2, 2));
}

/// Two primaries without replicas, which serve what they have when the other one is away.
async fn two_nodes() -> [Server; 2] {
    let node = || Server::start_with(&["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"]);
    let nodes = [node(), node()];
    for (node, (first, last)) in nodes.iter().zip([("0", "8191"), ("8192", "16383")]) {
        node.command(&["CLUSTER", "ADDSLOTSRANGE", first, last]).await;
    }
    nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &nodes[1].port().to_string()]).await;
    for node in &nodes {
        until("all slots are known", async || {
            let Value::Array(ranges) = node.command(&["CLUSTER", "SLOTS"]).await else { return false };
            ranges.len() == 2
        })
        .await;
        until("it serves", async || node.try_command(&["CLUSTER", "INFO"]).await.is_ok_and(|info| {
            matches!(info, Value::BulkString(text) if String::from_utf8_lossy(&text).contains("cluster_state:ok"))
        }))
        .await;
    }
    nodes
}

#[tokio::test]
async fn while_one_node_is_away_the_topics_of_the_other_go_on() {
    let mut nodes = two_nodes().await;
    let slot = async |key: String| {
        let Value::Int(slot) = nodes[0].command(&["CLUSTER", "KEYSLOT", &key]).await else {
            panic!("no slot")
        };
        slot
    };
    let mut name = String::new();
    for number in 0.. {
        name = format!("store{number}");
        if slot(format!("{{{name}}}")).await < 8192 {
            break;
        }
    }
    let [one, two] = [0, 1].map(|at: usize| nodes[at].port());
    let url = format!("redis://127.0.0.1:{one},127.0.0.1:{two}?name={name}&spread=topics&answer_ms=500");
    let store = SpreadStore::open(url.parse().unwrap()).await.unwrap();
    let topics: Vec<String> = (0..8).map(|n| format!("t{n}")).collect();
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    let id = put_to(&store, "q", &topics, Policy::default()).await.unwrap();
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for topic in store.topics().await.unwrap() {
        let is_here = slot(format!("{{{name}/{}}}", topic.id)).await < 8192;
        if is_here { here.push(topic.name.to_string()) } else { there.push(topic.name.to_string()) }
    }
    assert!(!here.is_empty() && !there.is_empty(), "both nodes have some");
    let mut stored: BTreeSet<EventId> = emit_to(&store, &topics).await.into_iter().collect();

    nodes[1].kill();
    let unit = |topic: &String| vec![Event::new(topic.as_str(), "y")];
    let units: Vec<Vec<Event>> = here.iter().chain(&there).map(unit).collect();
    let answers = store.emit(Emit { units, now: None }).await.unwrap();
    let (fine, refused) = answers.split_at(here.len());
    stored.extend(fine.iter().map(|answer| answer.as_ref().unwrap().events[0].id));
    for answer in refused {
        assert_eq!(answer.as_ref().unwrap_err().kind(), Kind::Unavailable);
    }
    let claimed = claim(&store, id, 100).await.unwrap();
    let mut seen = ids(&claimed);
    assert_eq!(seen.len(), 2 * here.len());
    assert!(done(&store, id, &claimed).await.unwrap().accepted.iter().flatten().all(|taken| *taken));
    // Housekeeping leaves out what it cannot reach.
    sweep(&store, None).await;

    nodes[1].restart();
    until("everything goes on", async || {
        let Ok(claimed) = claim(&store, id, 100).await else { return false };
        seen.extend(ids(&claimed));
        done(&store, id, &claimed).await.unwrap();
        seen.len() >= stored.len()
    })
    .await;
    assert_eq!(seen, stored);
}

/// As if another server had taken over that had not heard of it yet.
async fn lose(server: &Server, what: &[&str]) {
    for table in what {
        server.command(&["DEL", &format!("{{tramline/1}}:{table}")]).await;
    }
    server.command(&["HSET", "{tramline/1}:meta", "copied", "0", "history", "another"]).await;
}

/// An event that came before a sweep missed whoever had joined in the moments that were lost.
#[tokio::test]
async fn what_a_topic_was_told_and_has_lost_it_hears_before_it_goes_on() {
    let server = Server::start();
    let store = server.open_spread().await;
    let id = put_to(&store, "q", &["a", "b"], Policy::default()).await.unwrap();
    lose(&server, &["subscriptions", "consumed", "joined"]).await;
    let later = server.open_spread().await;
    let emitted = emit_to(&later, &["a"]).await;
    assert_eq!(ids(&claim(&later, id, 10).await.unwrap()), emitted.into_iter().collect());

    emit_to(&later, &["a"]).await;
    let set = SetRule {
        subscription: id,
        kind: RuleKind::Pause,
        until: Some(RuleEnd::Open),
        by: "anna".into(),
        reason: String::new(),
        now: None,
    };
    store.set_rule(set).await.unwrap();
    lose(&server, &[&format!("rules:{id}")]).await;
    let later = server.open_spread().await;
    let claimed = claim(&later, id, 10).await.unwrap();
    assert!(claimed.slices.is_empty() && claimed.stopped_by.is_some());
}
