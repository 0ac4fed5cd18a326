//! A server that crashes takes numbers back that it has given and not yet written down, and gives them again. Who went by them before must
//! not miss what gets them now.

use crate::crew::signal;
use crate::place::Place;
use crate::scenario::{ORDERED, PATIENCE, TOPIC};
use std::time::Duration;
use tramline::model::id::{EventId, Incarnation, SubscriptionId};
use tramline::model::lane::{Known, Share};
use tramline::model::outcome::Outcome;
use tramline::model::subscription::{Ordering, Policy, Start};
use tramline::store::Store;
use tramline::store::postgres::PostgresStore;
use tramline::store::verbs::{
    Claim, Claimed, Emit, Expected, PutSubscription, ReadLog, Settle, SettleSlice, Suspects,
};
use tramline::{Event, Result};

/// A server writes down 32 more than it gives.
const IN_VAIN: usize = 100;
const AFTERWARDS: usize = 5;

#[derive(Clone, Copy, Debug)]
enum Crash {
    /// A process of the server is killed, and the server begins anew by itself.
    Process,
    Server,
}

/// The story: a worker knew from before the crash that nobody writes below a number any more. It made lanes begin there, and what got a
/// lower number afterwards was not seen.
pub(crate) async fn run() {
    let place = Place::named("postgres").await;
    let store = PostgresStore::open(place.url.parse().unwrap()).await.unwrap();
    let id = subscribe(&store).await;
    for crash in [Crash::Process, Crash::Server] {
        place.settle_down().await;
        let first = emit(&store).await;
        // From here on nobody writes to the disk but who waits for it.
        let log_writer = place.log_writer().await;
        signal("-STOP", log_writer);
        draw_in_vain(&store).await;
        let taken = claim(&store, id).await;
        assert_eq!(ids(&taken), [first], "{crash:?}");
        let (_, mut after) = read(&store, first).await;
        match crash {
            Crash::Process => signal("-KILL", log_writer),
            Crash::Server => place.crash().await,
        }
        let again = claim(&store, id).await;
        settle(&store, id, &taken).await;
        settle(&store, id, &again).await;
        for _ in 0..AFTERWARDS {
            let event = emit(&store).await;
            let claimed = claim(&store, id).await;
            assert_eq!(ids(&claimed), [event], "{crash:?}: the lane begins above what is new");
            settle(&store, id, &claimed).await;
            let (events, next) = read(&store, after).await;
            assert_eq!(events, [event], "{crash:?}: the reader of the log is beyond what is new");
            after = next;
        }
    }
    store.close().await;
    place.remove().await;
}

async fn subscribe(store: &PostgresStore) -> SubscriptionId {
    let put = PutSubscription {
        name: ORDERED.into(),
        topics: vec![TOPIC.into()],
        policy: Policy { ordering: Ordering::Key, ..Policy::default() },
        start: Start::Beginning,
        expected: Expected::Anything,
        now: None,
    };
    store.put_subscription(put).await.unwrap().id
}

/// Emits that are given up: numbers were drawn for them.
async fn draw_in_vain(store: &PostgresStore) {
    let mut tx = insist(|| async { Ok(store.pool().begin().await?) }).await;
    for _ in 0..IN_VAIN {
        store.emit_in(&mut tx, [event()]).await.unwrap();
    }
    tx.rollback().await.unwrap();
}

fn event() -> Event {
    Event::new(TOPIC, "1").key("k")
}

async fn emit(store: &PostgresStore) -> EventId {
    let emit = || async { store.emit(Emit { units: vec![vec![event()]], now: None }).await?.remove(0) };
    insist(emit).await.events[0].id
}

async fn claim(store: &PostgresStore, subscription: SubscriptionId) -> Claimed {
    let claim = Claim {
        subscription,
        owner: Incarnation(7),
        max_events: 100,
        max_bytes: 1 << 20,
        lease: Some(Duration::from_secs(600)),
        suspects: Suspects::Leave,
        share: Share::ALL,
        known: Known::All,
        single: false,
        now: None,
    };
    insist(|| store.claim(claim.clone())).await
}

fn ids(claimed: &Claimed) -> Vec<EventId> {
    claimed.slices.iter().flat_map(|slice| slice.events.iter().map(|event| event.event.id)).collect()
}

/// Of what was taken before a crash the lease may be lost.
async fn settle(store: &PostgresStore, subscription: SubscriptionId, claimed: &Claimed) {
    let results = claimed.slices.iter().map(|slice| SettleSlice {
        lease: slice.lease,
        outcomes: slice.events.iter().map(|event| (event.event.id.index(), Outcome::Done)).collect(),
    });
    let settle = Settle { subscription, results: results.collect(), worker: None, now: None };
    insist(|| store.settle(settle.clone())).await;
}

/// What came to the log, and where to go on.
async fn read(store: &PostgresStore, after: EventId) -> (Vec<EventId>, EventId) {
    let page = insist(|| store.read_log(ReadLog { topic: TOPIC.into(), after, limit: 100 })).await;
    (page.events.iter().map(|event| event.id).collect(), page.next)
}

/// Connections that were lost in a crash show it when they are used, and the server needs a moment to recover.
async fn insist<T, F: Future<Output = Result<T>>>(what: impl Fn() -> F) -> T {
    let tries = async {
        loop {
            match what().await {
                Ok(value) => return value,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    tokio::time::timeout(3 * PATIENCE, tries).await.unwrap()
}
