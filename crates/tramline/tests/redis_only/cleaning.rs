//! What is over is removed, however much there is of it, and never so much at a time that others have to wait.

use crate::bed::{Server, claim, done, emit, subscribe, subscribe_to};
use redis::Value;
use std::time::Duration;
use tramline::Event;
use tramline::model::id::{EventId, SubscriptionId};
use tramline::model::subscription::{Ordering, Policy, Start};
use tramline::store::Store;
use tramline::store::redis::RedisStore;
use tramline::store::verbs::{Expected, PutSubscription, Shed, Surplus, Sweep, Swept};

const KEYS: usize = 450;

async fn sweep(store: &RedisStore, later: Duration, limit: u32) -> Swept {
    let now = store.now().await.unwrap().after(later);
    store.sweep(Sweep { dead_after: None, limit, now: Some(now) }).await.unwrap()
}

async fn emit_keys(store: &RedisStore, make: impl Fn(usize) -> Event) {
    for key in 0..KEYS {
        emit(store, vec![make(key)]).await.unwrap();
    }
}

/// One step of a hundred per sweep was all: whoever emitted more than that in the meantime filled the memory.
#[tokio::test]
async fn idempotency_keys_that_are_over_go_with_the_next_sweeps() {
    let server = Server::start();
    let store = server.open().await.unwrap();
    emit_keys(&store, |key| Event::new("t", "x").idempotency_key(format!("k{key}"))).await;
    let left = async || server.command(&["ZCARD", "{tramline}:once"]).await;
    assert_eq!(left().await, Value::Int(KEYS as i64));
    let day = Duration::from_secs(25 * 3600);
    assert!(sweep(&store, day, 200).await.more);
    assert_eq!(left().await, Value::Int(KEYS as i64 - 200));
    let before = server.trips().await;
    assert!(!sweep(&store, day, 1000).await.more);
    assert_eq!(left().await, Value::Int(0));
    assert_eq!(server.command(&["EXISTS", "{tramline}:once:1"]).await, Value::Int(0));
    let trips = server.trips().await - before;
    assert!(trips < 40, "{trips} trips for 250 keys");
}

#[tokio::test]
async fn unique_keys_that_count_no_longer_go_with_the_next_sweeps() {
    let server = Server::start();
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::None).await;
    emit_keys(&store, |key| Event::new("t", "x").unique(format!("k{key}"))).await;
    loop {
        let claimed = claim(&store, id, 1000).await.unwrap();
        if claimed.slices.is_empty() {
            break;
        }
        done(&store, id, &claimed).await.unwrap();
    }
    let year = Duration::from_secs(366 * 24 * 3600);
    assert!(sweep(&store, year, 200).await.more);
    assert!(!sweep(&store, year, 1000).await.more);
    assert_eq!(server.command(&["ZCARD", "{tramline}:unique"]).await, Value::Int(0));
}

/// What all subscriptions have of all topics was read once for each topic: with some thousands of both a sweep kept the server for minutes,
/// and each of its steps for more than others can wait.
#[tokio::test]
async fn a_sweep_reads_of_each_topic_only_what_is_had_of_it() {
    const TOPICS: u64 = 50;
    let server = Server::start();
    let store = server.open().await.unwrap();
    for n in 0..TOPICS {
        subscribe_to(&store, &format!("s{n}"), &format!("t{n}"), Ordering::None).await;
    }
    sweep(&store, Duration::ZERO, 1000).await;
    server.command(&["CONFIG", "RESETSTAT"]).await;
    sweep(&store, Duration::ZERO, 1000).await;
    // Rules and workers of each subscription are whole tables of its own.
    let tables = server.calls("hgetall").await;
    assert!(tables < TOPICS * 5, "{tables} tables were read");
}

/// A backlog of which each chunk is in many lanes: how many slices that is.
async fn backlog_in_lanes(store: &RedisStore) -> SubscriptionId {
    let id = subscribe(store, Ordering::Key).await;
    for chunk in 0..150 {
        let keyed = |n: usize| Event::new("t", "x").key(format!("key-{chunk}-{n}"));
        emit(store, (0..64).map(keyed).collect()).await.unwrap();
    }
    id
}

async fn counted(store: &RedisStore, id: SubscriptionId) -> u64 {
    store.stats(id, None).await.unwrap().counts.pending()
}

/// A step took so many chunks, whatever they held: with order that is thirty times as much.
#[tokio::test]
async fn what_a_subscription_leaves_goes_in_steps_however_many_lanes_it_is_in() {
    let server = Server::that_tells_all();
    let store = server.open().await.unwrap();
    let id = backlog_in_lanes(&store).await;
    server.longest_command().await;
    let put = PutSubscription {
        name: "q".into(),
        topics: vec!["other".into()],
        policy: Policy { ordering: Ordering::Key, ..Policy::default() },
        start: Start::Now,
        expected: Expected::Anything,
        now: None,
    };
    store.put_subscription(put).await.unwrap();
    assert_eq!(counted(&store, id).await, 0);
    let longest = server.longest_command().await;
    assert!(longest < 2_000, "a script of {longest} words");
}

#[tokio::test]
async fn a_deleted_subscription_goes_in_steps_however_many_lanes_it_is_in() {
    let server = Server::that_tells_all();
    let store = server.open().await.unwrap();
    backlog_in_lanes(&store).await;
    server.longest_command().await;
    store.delete_subscription("q").await.unwrap();
    while sweep(&store, Duration::ZERO, 1_000).await.more {}
    let longest = server.longest_command().await;
    assert!(longest < 2_000, "a script of {longest} words");
}

#[tokio::test]
async fn work_is_shed_in_steps_however_many_lanes_it_is_in() {
    let server = Server::that_tells_all();
    let store = server.open().await.unwrap();
    let id = backlog_in_lanes(&store).await;
    server.longest_command().await;
    let (mut after, mut dropped) = (EventId(0), 0);
    loop {
        let surplus = Surplus::Work { include_pull: true };
        let shed = Shed { surplus, after, limit: 1_000, bytes: u64::MAX, now: None };
        let went = store.shed(shed).await.unwrap();
        dropped += went.dropped.map_or(0, |(_, events)| events);
        match went.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!((dropped, counted(&store, id).await), (150 * 64, 0));
    let longest = server.longest_command().await;
    assert!(longest < 8_000, "a script of {longest} words");
    // What nobody needs any more goes too.
    let surplus = Surplus::Retained;
    let shed = Shed { surplus, after: EventId(0), limit: 1_000, bytes: u64::MAX, now: None };
    assert_eq!(store.shed(shed).await.unwrap().removed, 150 * 64);
}

/// The step after it began behind most of what was dropped, so that none of that went and even more was dropped.
#[tokio::test]
async fn what_was_shed_for_nobody_frees_its_room_in_the_next_step() {
    const EVENTS: u64 = 700;
    let server = Server::start();
    let store = server.open().await.unwrap();
    subscribe(&store, Ordering::None).await;
    for _ in 0..EVENTS {
        emit(&store, vec![Event::new("t", "x")]).await.unwrap();
    }
    let shed = |surplus, after| Shed { surplus, after, limit: 1_000, bytes: u64::MAX, now: None };
    let work = Surplus::Work { include_pull: true };
    let went = store.shed(shed(work, EventId(0))).await.unwrap();
    assert_eq!(went.dropped.map(|(_, events)| events), Some(EVENTS));
    let freed = store.shed(shed(Surplus::Retained, went.next.unwrap())).await.unwrap();
    assert_eq!(freed.removed, EVENTS);
}

/// Looking whether anybody needs them any more, it read all that is still to be done of them.
#[tokio::test]
async fn events_that_are_past_their_retention_but_wait_are_passed_over_lightly() {
    let server = Server::that_tells_all();
    let store = server.open().await.unwrap();
    let id = backlog_in_lanes(&store).await;
    let tables = server.calls("hgetall").await;
    while sweep(&store, Duration::from_secs(400 * 24 * 3600), 1_000).await.more {}
    let tables = server.calls("hgetall").await - tables;
    assert!(tables < 100, "{tables} tables were read");
    assert_eq!(counted(&store, id).await, 150 * 64);
}
