//! While a script runs, everybody else waits: none may take long, however much there is.

use crate::bed::{Server, claim, claim_at, claim_by, done, emit, events, subscribe};
use redis::Value;
use std::time::Duration;
use tramline::Event;
use tramline::model::id::{Incarnation, SubscriptionId};
use tramline::model::lease::Lease;
use tramline::model::outcome::Outcome;
use tramline::model::subscription::Ordering;
use tramline::model::tally::{Ack, Ending, Items, NewTally};
use tramline::store::Store;
use tramline::store::redis::RedisStore;
use tramline::store::verbs::{Claim, ClaimedSlice, Extend, Release, Resend, Settle, SettleSlice, Sweep};
use tramline::store::verbs_tally::{AckItems, AddItems, NameTally, OpenTally, SealTally, SweepTallies};

const EVENTS: usize = 1_000_000;
const BATCH: usize = 1_000;
const LONGEST: i64 = 5_000;

fn slow_log() -> Server {
    Server::start_with(&["--slowlog-log-slower-than", "500", "--slowlog-max-len", "100000"])
}

/// What took the server longest since it was asked before, in microseconds.
async fn longest(server: &Server, doing: &str) -> i64 {
    let Value::Array(slow) = server.command(&["SLOWLOG", "GET", "-1"]).await else { panic!("no slow log") };
    server.command(&["SLOWLOG", "RESET"]).await;
    let micros = |entry: &Value| match entry {
        Value::Array(fields) => match fields.get(2) {
            Some(Value::Int(micros)) => *micros,
            _ => 0,
        },
        _ => 0,
    };
    let longest = slow.iter().map(micros).max().unwrap_or(0);
    let over = slow.iter().filter(|entry| micros(entry) > LONGEST).count();
    println!("{doing}: {longest} us at most, {} above 500, {over} above {LONGEST}", slow.len());
    longest
}

async fn sweep_all(store: &RedisStore, later: Duration, dead_after: Option<Duration>) {
    loop {
        let now = Some(store.now().await.unwrap().after(later));
        if !store.sweep(Sweep { dead_after, limit: 1_000, now }).await.unwrap().more {
            break;
        }
    }
}

#[tokio::test]
#[ignore = "a million events: measured on demand, on a machine that does nothing else"]
async fn nothing_takes_the_server_five_milliseconds() {
    let server = slow_log();
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::None).await;
    for _ in 0..EVENTS / BATCH {
        emit(&store, events(BATCH)).await.unwrap();
    }
    let mut figures = vec![longest(&server, "emitting").await];
    for _ in 0..200 {
        let claimed = claim(&store, id, BATCH as u32).await.unwrap();
        done(&store, id, &claimed).await.unwrap();
    }
    figures.push(longest(&server, "working").await);
    for _ in 0..100 {
        claim(&store, id, BATCH as u32).await.unwrap();
    }
    sweep_all(&store, Duration::from_secs(3600), Some(Duration::from_secs(60))).await;
    claim(&store, id, 1).await.unwrap();
    figures.push(longest(&server, "ending leases").await);
    sweep_all(&store, Duration::from_secs(400 * 24 * 3600), None).await;
    figures.push(longest(&server, "retention").await);
    store.delete_subscription("q").await.unwrap();
    sweep_all(&store, Duration::ZERO, None).await;
    figures.push(longest(&server, "a deleted subscription").await);
    store.delete_topic("t").await.unwrap();
    sweep_all(&store, Duration::ZERO, None).await;
    figures.push(longest(&server, "a deleted topic").await);
    assert!(figures.iter().all(|longest| *longest < LONGEST), "{figures:?}");
}

const MANY: u32 = 4_096;

async fn work_off(store: &RedisStore, id: SubscriptionId) {
    loop {
        let claimed = claim(store, id, MANY).await.unwrap();
        if claimed.slices.is_empty() && claimed.next_due.is_none() {
            return;
        }
        done(store, id, &claimed).await.unwrap();
    }
}

async fn emit_singles(store: &RedisStore, count: usize, event: impl Fn(usize) -> Event) {
    for number in 0..count {
        emit(store, vec![event(number)]).await.unwrap();
    }
}

/// A key with much behind it.
async fn park(server: &Server, store: &RedisStore, id: SubscriptionId) -> [i64; 2] {
    let same = |_: usize| Event::new("t", "x").key("same");
    emit_singles(store, 1, same).await;
    let now = store.now().await.unwrap();
    let claimed = claim_at(store, id, 1, Some(now)).await.unwrap();
    let slice = &claimed.slices[0];
    let outcomes = vec![(slice.events[0].event.id.index(), Outcome::retry("not yet"))];
    let results = vec![SettleSlice { lease: slice.lease, outcomes }];
    store.settle(Settle { subscription: id, results, worker: None, now: Some(now) }).await.unwrap();
    emit_singles(store, 5_000, same).await;
    while claim_at(store, id, MANY, Some(now)).await.unwrap().next_due == Some(now) {}
    let aside = longest(server, "setting aside what waits for its key").await;
    let later = now.after(Duration::from_secs(600));
    loop {
        let claimed = claim_at(store, id, MANY, Some(later)).await.unwrap();
        if claimed.slices.is_empty() && claimed.next_due != Some(later) {
            break;
        }
        done(store, id, &claimed).await.unwrap();
    }
    [aside, longest(server, "bringing it back").await]
}

/// Every event in a chunk of its own, many keys in one emit, a key with much behind it, lanes that are taken over.
async fn awkward(server: &Server, ordering: Ordering) -> Vec<i64> {
    let store = server.open().await.unwrap();
    let id = subscribe(&store, ordering).await;
    let keyed = |number: usize| Event::new("t", "x").key(format!("key-{number}"));
    emit_singles(&store, 6_000, keyed).await;
    let mut figures = vec![longest(server, "emitting one by one").await];
    work_off(&store, id).await;
    figures.push(longest(server, "working off what came one by one").await);
    for _ in 0..40 {
        emit(&store, (0..BATCH).map(keyed).collect()).await.unwrap();
    }
    figures.push(longest(server, "emitting a thousand keys at once").await);
    // An emit is one script, so that this is as long as its caller makes it.
    emit(&store, (0..MANY as usize).map(keyed).collect()).await.unwrap();
    longest(server, "emitting four thousand keys at once").await;
    work_off(&store, id).await;
    figures.push(longest(server, "working them off").await);
    if ordering == Ordering::Key {
        figures.extend(park(server, &store, id).await);
    }
    emit_singles(&store, 2_000, keyed).await;
    for _ in 0..7 {
        claim(&store, id, 300).await.unwrap();
    }
    figures.push(longest(server, "claiming what nobody will settle").await);
    sweep_all(&store, Duration::from_secs(3600), Some(Duration::from_secs(60))).await;
    let later = store.now().await.unwrap().after(Duration::from_secs(3600));
    for _ in 0..70 {
        claim_at(&store, id, 1, Some(later)).await.unwrap();
    }
    figures.push(longest(server, "taking it over").await);
    figures
}

/// Everything that one worker may have in hand, each event in a slice of its own, at once.
async fn in_hand(server: &Server, ordering: Ordering) -> Vec<i64> {
    let store = server.open().await.unwrap();
    let id = subscribe(&store, ordering).await;
    emit_singles(&store, MANY as usize, |number| Event::new("t", "x").key(format!("key-{number}"))).await;
    longest(server, "emitting").await;
    let mut now = store.now().await.unwrap();
    let (mut figures, mut ids) = (Vec::new(), Vec::new());
    for outcome in [None, Some(Outcome::retry("not yet")), Some(Outcome::dead("never"))] {
        let owner = Incarnation::random();
        let mut slices = Vec::new();
        loop {
            let claimed = store.claim(Claim { now: Some(now), ..claim_by(owner, id, MANY) }).await.unwrap();
            if claimed.slices.is_empty() && claimed.next_due != Some(now) {
                break;
            }
            slices.extend(claimed.slices);
        }
        figures.push(longest(server, "claiming").await);
        ids = slices.iter().flat_map(|slice| slice.events.iter().map(|event| event.event.id)).collect();
        let leases: Vec<Lease> = slices.iter().map(|slice| slice.lease).collect();
        let extend = Extend { subscription: id, leases: leases.clone(), lease: None, now: Some(now) };
        store.extend(extend).await.unwrap();
        figures.push(longest(server, &format!("extending {}", leases.len())).await);
        match outcome {
            None => {
                store.release(Release { subscription: id, leases, now: Some(now) }).await.unwrap();
                figures.push(longest(server, "giving back").await);
            }
            Some(outcome) => {
                let result = |slice: &ClaimedSlice| SettleSlice {
                    lease: slice.lease,
                    outcomes: slice
                        .events
                        .iter()
                        .map(|event| (event.event.id.index(), outcome.clone()))
                        .collect(),
                };
                let results = slices.iter().map(result).collect();
                let settle = Settle { subscription: id, results, worker: None, now: Some(now) };
                store.settle(settle).await.unwrap();
                figures.push(longest(server, &format!("failing {}", slices.len())).await);
            }
        }
        now = now.after(Duration::from_secs(3_600));
    }
    let resend = Resend { subscription: id, ids, now: Some(now) };
    assert_eq!(store.resend(resend).await.unwrap(), u64::from(MANY));
    figures.push(longest(server, "resending").await);
    figures
}

#[tokio::test]
#[ignore = "measured on demand, on a machine that does nothing else"]
async fn what_is_in_hand_takes_the_server_no_longer() {
    let mut figures = Vec::new();
    for ordering in [Ordering::None, Ordering::Key] {
        println!("{ordering:?}");
        figures.extend(in_hand(&slow_log(), ordering).await);
    }
    assert!(figures.iter().all(|longest| *longest < LONGEST), "{figures:?}");
}

#[tokio::test]
#[ignore = "measured on demand, on a machine that does nothing else"]
async fn what_is_awkward_takes_the_server_no_longer() {
    let mut figures = Vec::new();
    for ordering in [Ordering::None, Ordering::Key] {
        println!("{ordering:?}");
        figures.extend(awkward(&slow_log(), ordering).await);
    }
    assert!(figures.iter().all(|longest| *longest < LONGEST), "{figures:?}");
}

#[tokio::test]
#[ignore = "measured on demand, on a machine that does nothing else"]
async fn a_tally_of_a_hundred_million_items_takes_the_server_no_longer() {
    let server = slow_log();
    let store = server.open().await.unwrap();
    let tally = store.open_tally(OpenTally { tally: NewTally::new(), now: None }).await.unwrap().id;
    let add = AddItems { tally, count: 100_000_000, within: None, token: None, now: None };
    store.add_items(add).await.unwrap();
    store.seal_tally(SealTally { tally, expected: None, by: 1, now: None }).await.unwrap();
    for first in (0..24_000).step_by(500) {
        let items =
            (first..first + 500).map(|part| Items { first: part * 4_096, last: part * 4_096 }).collect();
        let acks = vec![Ack { tally, items, ending: Ending::Done }];
        store.ack_items(AckItems { acks, by: 1, now: None }).await.unwrap();
    }
    let mut figures = vec![longest(&server, "acks in every part").await];
    // As many parts as the engine ends at once.
    let items = (0..1_024).map(|part| Items { first: part * 4_096 + 7, last: part * 4_096 + 7 }).collect();
    let acks = vec![Ack { tally, items, ending: Ending::Done }];
    store.ack_items(AckItems { acks, by: 1, now: None }).await.unwrap();
    figures.push(longest(&server, "many acks at once").await);
    let look = store.tally(NameTally { tally, now: None }).await.unwrap().unwrap();
    assert_eq!(look.done, 24_000 + 1_024);
    figures.push(longest(&server, "looking").await);
    let (week, hours) = (Duration::from_secs(7 * 24 * 3600), Duration::from_secs(2 * 3600));
    let now = Some(store.now().await.unwrap().after(hours));
    let sweep = SweepTallies { keep_open: week, keep_sealed: week, limit: 100, now };
    assert_eq!(store.sweep_tallies(sweep).await.unwrap().repaired, 0);
    figures.push(longest(&server, "counting anew").await);
    assert!(figures.iter().all(|longest| *longest < LONGEST), "{figures:?}");
}
