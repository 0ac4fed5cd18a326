//! While a script runs, everybody else waits: none may take long, however much there is.

use crate::bed::{Server, claim, claim_at, claim_by, done, emit, events, put, subscribe, words};
use redis::Value;
use std::time::Duration;
use tramline::Event;
use tramline::model::id::{EventId, Incarnation, SubscriptionId};
use tramline::model::lease::Lease;
use tramline::model::outcome::Outcome;
use tramline::model::retry::Retry;
use tramline::model::subscription::{Ordering, Policy};
use tramline::model::tally::{Ack, Ending, Items, NewTally};
use tramline::store::Store;
use tramline::store::redis::RedisStore;
use tramline::store::verbs::{
    Claim, ClaimedSlice, Extend, Release, Resend, Settle, SettleSlice, Shed, Surplus, Sweep,
};
use tramline::store::verbs_tally::{AckItems, AddItems, NameTally, OpenTally, SealTally, SweepTallies};

const EVENTS: usize = 1_000_000;
const BATCH: usize = 1_000;
const LONGEST: i64 = 5_000;

/// How often everything is measured. The system may take the processor from the server at any moment; what takes long each time is the
/// server's own.
const ROUNDS: usize = 3;

/// A server, and what took it longest.
struct Watch {
    server: Server,
    figures: Vec<(String, i64)>,
}

impl Watch {
    fn start() -> Watch {
        let server = Server::start_with(&["--slowlog-log-slower-than", "500", "--slowlog-max-len", "100000"]);
        Watch { server, figures: Vec::new() }
    }

    /// Notes what took the server longest since the last note, in microseconds.
    async fn note(&mut self, doing: &str) {
        let longest = self.longest().await;
        self.figures.push((doing.into(), longest));
    }

    async fn longest(&self) -> i64 {
        let Value::Array(slow) = self.server.command(&["SLOWLOG", "GET", "-1"]).await else {
            panic!("no slow log")
        };
        self.server.command(&["SLOWLOG", "RESET"]).await;
        let micros = |entry: &Value| match entry {
            Value::Array(fields) => match fields.get(2) {
                Some(Value::Int(micros)) => *micros,
                _ => 0,
            },
            _ => 0,
        };
        let longest = slow.iter().max_by_key(|entry| micros(entry));
        if let Some(entry) = longest {
            println!("  {} us: a command of {} words", micros(entry), words(entry));
        }
        longest.map_or(0, micros)
    }
}

/// Does the same in every round, and looks at the least of what each part of it took.
async fn never_longer(act: impl AsyncFn(&mut Watch)) {
    let mut least: Vec<(String, i64)> = Vec::new();
    for _ in 0..ROUNDS {
        let mut watch = Watch::start();
        act(&mut watch).await;
        if least.is_empty() {
            least = watch.figures;
        } else {
            least.iter_mut().zip(watch.figures).for_each(|(one, other)| one.1 = one.1.min(other.1));
        }
    }
    least.iter().for_each(|(doing, longest)| println!("{doing}: {longest} us at most"));
    assert!(least.iter().all(|(_, longest)| *longest < LONGEST), "{least:?}");
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
    never_longer(a_million).await;
}

async fn a_million(watch: &mut Watch) {
    let store = watch.server.open().await.unwrap();
    let id = subscribe(&store, Ordering::None).await;
    for _ in 0..EVENTS / BATCH {
        emit(&store, events(BATCH)).await.unwrap();
    }
    watch.note("emitting").await;
    for _ in 0..200 {
        let claimed = claim(&store, id, BATCH as u32).await.unwrap();
        done(&store, id, &claimed).await.unwrap();
    }
    watch.note("working").await;
    for _ in 0..100 {
        claim(&store, id, BATCH as u32).await.unwrap();
    }
    sweep_all(&store, Duration::from_secs(3600), Some(Duration::from_secs(60))).await;
    claim(&store, id, 1).await.unwrap();
    watch.note("ending leases").await;
    sweep_all(&store, Duration::from_secs(400 * 24 * 3600), None).await;
    watch.note("retention").await;
    store.delete_subscription("q").await.unwrap();
    sweep_all(&store, Duration::ZERO, None).await;
    watch.note("a deleted subscription").await;
    store.delete_topic("t").await.unwrap();
    sweep_all(&store, Duration::ZERO, None).await;
    watch.note("a deleted topic").await;
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
async fn park(watch: &mut Watch, store: &RedisStore, id: SubscriptionId) {
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
    watch.note("setting aside what waits for its key").await;
    let later = now.after(Duration::from_secs(600));
    loop {
        let claimed = claim_at(store, id, MANY, Some(later)).await.unwrap();
        if claimed.slices.is_empty() && claimed.next_due != Some(later) {
            break;
        }
        done(store, id, &claimed).await.unwrap();
    }
    watch.note("bringing it back").await;
}

/// Every event in a chunk of its own, many keys in one emit, a key with much behind it, lanes that are taken over.
async fn awkward(watch: &mut Watch, ordering: Ordering) {
    let store = watch.server.open().await.unwrap();
    let id = subscribe(&store, ordering).await;
    let keyed = |number: usize| Event::new("t", "x").key(format!("key-{number}"));
    emit_singles(&store, 6_000, keyed).await;
    watch.note("emitting one by one").await;
    work_off(&store, id).await;
    watch.note("working off what came one by one").await;
    for _ in 0..40 {
        emit(&store, (0..BATCH).map(keyed).collect()).await.unwrap();
    }
    watch.note("emitting a thousand keys at once").await;
    // An emit is one script, so that this is as long as its caller makes it.
    emit(&store, (0..MANY as usize).map(keyed).collect()).await.unwrap();
    println!("emitting {MANY} keys at once: {} us", watch.longest().await);
    work_off(&store, id).await;
    watch.note("working them off").await;
    if ordering == Ordering::Key {
        park(watch, &store, id).await;
    }
    emit_singles(&store, 2_000, keyed).await;
    for _ in 0..7 {
        claim(&store, id, 300).await.unwrap();
    }
    watch.note("claiming what nobody will settle").await;
    sweep_all(&store, Duration::from_secs(3600), Some(Duration::from_secs(60))).await;
    let later = store.now().await.unwrap().after(Duration::from_secs(3600));
    for _ in 0..70 {
        claim_at(&store, id, 1, Some(later)).await.unwrap();
    }
    watch.note("taking it over").await;
}

/// Everything that one worker may have in hand at once. Each event is in a slice of its own; or many are in one, and what fails gets a
/// time of its own.
async fn in_hand(watch: &mut Watch, ordering: Ordering, alone: bool) {
    let store = watch.server.open().await.unwrap();
    let keyed = |number: usize| Event::new("t", "x").key(format!("key-{number}"));
    let id = match alone {
        true => subscribe(&store, ordering).await,
        false => {
            let retry = Retry::exponential();
            put(&store, "q", "t", Policy { ordering, retry, ..Policy::default() }).await
        }
    };
    for some in (0..MANY as usize).collect::<Vec<_>>().chunks(if alone { 1 } else { BATCH }) {
        emit(&store, some.iter().map(|number| keyed(*number)).collect()).await.unwrap();
    }
    watch.note("emitting").await;
    let mut now = store.now().await.unwrap();
    let mut ids = Vec::new();
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
        watch.note("claiming").await;
        ids = slices.iter().flat_map(|slice| slice.events.iter().map(|event| event.event.id)).collect();
        let leases: Vec<Lease> = slices.iter().map(|slice| slice.lease).collect();
        let extend = Extend { subscription: id, leases: leases.clone(), lease: None, now: Some(now) };
        store.extend(extend).await.unwrap();
        watch.note("extending").await;
        match outcome {
            None => {
                store.release(Release { subscription: id, leases, now: Some(now) }).await.unwrap();
                watch.note("giving back").await;
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
                watch.note("failing").await;
            }
        }
        now = now.after(Duration::from_secs(3_600));
    }
    let resend = Resend { subscription: id, ids, now: Some(now) };
    assert_eq!(store.resend(resend).await.unwrap(), u64::from(MANY));
    watch.note("resending").await;
}

#[tokio::test]
#[ignore = "measured on demand, on a machine that does nothing else"]
async fn what_is_in_hand_takes_the_server_no_longer() {
    for ordering in [Ordering::None, Ordering::Key] {
        for alone in [true, false] {
            println!("{ordering:?}, each event alone: {alone}");
            never_longer(async |watch: &mut Watch| in_hand(watch, ordering, alone).await).await;
        }
    }
}

#[tokio::test]
#[ignore = "measured on demand, on a machine that does nothing else"]
async fn what_is_awkward_takes_the_server_no_longer() {
    for ordering in [Ordering::None, Ordering::Key] {
        println!("{ordering:?}");
        never_longer(async |watch: &mut Watch| awkward(watch, ordering).await).await;
    }
}

/// What goes at once where each chunk is in many lanes: left, shed, deleted.
async fn in_lanes(watch: &mut Watch) {
    const CHUNKS: usize = 300;
    let store = watch.server.open().await.unwrap();
    let fill = async || {
        for chunk in 0..CHUNKS {
            let keyed = |n: usize| Event::new("t", "x").key(format!("key-{chunk}-{n}"));
            emit(&store, (0..64).map(keyed).collect()).await.unwrap();
        }
    };
    let policy = || Policy { ordering: Ordering::Key, ..Policy::default() };
    put(&store, "q", "t", policy()).await;
    fill().await;
    watch.note("emitting").await;
    put(&store, "q", "other", policy()).await;
    watch.note("leaving a topic").await;
    put(&store, "q", "t", policy()).await;
    fill().await;
    watch.note("emitting again").await;
    let mut after = EventId(0);
    loop {
        let surplus = Surplus::Work { include_pull: true };
        let shed = Shed { surplus, after, limit: 1_000, bytes: u64::MAX, now: None };
        match store.shed(shed).await.unwrap().next {
            Some(next) => after = next,
            None => break,
        }
    }
    watch.note("shedding work").await;
    fill().await;
    watch.note("emitting once more").await;
    sweep_all(&store, Duration::from_secs(400 * 24 * 3600), None).await;
    watch.note("retention of what waits").await;
    store.delete_subscription("q").await.unwrap();
    sweep_all(&store, Duration::ZERO, None).await;
    watch.note("a deleted subscription").await;
}

#[tokio::test]
#[ignore = "measured on demand, on a machine that does nothing else"]
async fn what_is_in_many_lanes_takes_the_server_no_longer() {
    never_longer(in_lanes).await;
}

/// Keys that go on together, each with something behind it.
async fn keys_go_on(watch: &mut Watch) {
    let store = watch.server.open().await.unwrap();
    let id = subscribe(&store, Ordering::Key).await;
    let all = || (0..BATCH).map(|key| Event::new("t", "x").key(format!("key-{key}"))).collect::<Vec<_>>();
    let mut now = store.now().await.unwrap();
    for _ in 0..3 {
        emit(&store, all()).await.unwrap();
        now = now.after(Duration::from_millis(1));
        loop {
            let claimed = claim_at(&store, id, MANY, Some(now)).await.unwrap();
            if claimed.slices.is_empty() && claimed.next_due != Some(now) {
                break;
            }
            let retry = |slice: &ClaimedSlice| SettleSlice {
                lease: slice.lease,
                outcomes: slice
                    .events
                    .iter()
                    .map(|one| (one.event.id.index(), Outcome::retry("no")))
                    .collect(),
            };
            let results = claimed.slices.iter().map(retry).collect();
            let settle = Settle { subscription: id, results, worker: None, now: Some(now) };
            store.settle(settle).await.unwrap();
        }
    }
    watch.note("failing").await;
    let later = now.after(Duration::from_secs(600));
    loop {
        let claimed = claim_at(&store, id, MANY, Some(later)).await.unwrap();
        if claimed.slices.is_empty() && claimed.next_due != Some(later) {
            break;
        }
        done(&store, id, &claimed).await.unwrap();
    }
    watch.note("going on").await;
}

#[tokio::test]
#[ignore = "measured on demand, on a machine that does nothing else"]
async fn a_thousand_keys_that_go_on_take_the_server_no_longer() {
    never_longer(keys_go_on).await;
}

#[tokio::test]
#[ignore = "measured on demand, on a machine that does nothing else"]
async fn a_tally_of_a_hundred_million_items_takes_the_server_no_longer() {
    never_longer(a_tally).await;
}

async fn a_tally(watch: &mut Watch) {
    let store = watch.server.open().await.unwrap();
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
    watch.note("acks in every part").await;
    // As many parts as the engine ends at once.
    let items = (0..1_024).map(|part| Items { first: part * 4_096 + 7, last: part * 4_096 + 7 }).collect();
    let acks = vec![Ack { tally, items, ending: Ending::Done }];
    store.ack_items(AckItems { acks, by: 1, now: None }).await.unwrap();
    watch.note("many acks at once").await;
    let look = store.tally(NameTally { tally, now: None }).await.unwrap().unwrap();
    assert_eq!(look.done, 24_000 + 1_024);
    watch.note("looking").await;
    let (week, hours) = (Duration::from_secs(7 * 24 * 3600), Duration::from_secs(2 * 3600));
    let now = Some(store.now().await.unwrap().after(hours));
    let sweep = SweepTallies { keep_open: week, keep_sealed: week, limit: 100, now };
    assert_eq!(store.sweep_tallies(sweep).await.unwrap().repaired, 0);
    watch.note("counting anew").await;
}
